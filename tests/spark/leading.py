"""A live log in a real Kafka for the streaming tests: a leader that publishes facts and the real
machine's decisions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs
import pyarrow.dataset as ds

from equipoise.events.decisions import EventRejected
from equipoise.events.facts import Fact
from equipoise.events.records import DecisionRecord, FactRecord
from equipoise.kafka.connection import Connection
from equipoise.log.kafka.envelope import group_key, pack_decision, pack_fact, partition_of, read_fact
from equipoise.log.kafka.log_opening import open_partitions
from equipoise.log.kafka.log_topics import Topics
from equipoise.log.kafka.topic_making import ensure_topics
from equipoise.statemachine.machine import GroupMachine
from tests.live.kafka import writer
from tests.unit.replay.lived import lived

PARTITIONS = 2
GROUPS = ("orders", "clicks", "bills", "carts")


class Leader:
    """Publishes facts and the real machine's decisions on them, with the broker's own offsets and
    times. `wrong`: spoils a group's next decision.
    """

    def __init__(self, bootstrap: str, prefix: str, partitions: int = PARTITIONS) -> None:
        self._partitions = partitions
        self._connection, self._topics = Connection(bootstrap=bootstrap), Topics(prefix)
        self._machines: dict[str, GroupMachine] = {}
        self.wrong = ""

    def publish(self, facts: Iterable[tuple[str, Fact]]) -> None:
        with ThreadPoolExecutor(1) as thread:
            thread.submit(asyncio.run, self._publish(list(facts))).result()

    async def _publish(self, facts: list[tuple[str, Fact]]) -> None:
        await ensure_topics(self._connection, self._topics, partitions=self._partitions)
        opened = await open_partitions(self._connection, self._topics)
        async with writer(self._connection) as producer:
            for group, fact in facts:
                machine = self._machines.get(group)
                if machine is None:
                    machine = self._machines[group] = GroupMachine()
                    machine.step(FactRecord("", 0, 0, opened))
                partition, key, value = partition_of(group, self._partitions), group_key(group), pack_fact(fact)
                sent = await producer.send_and_wait(self._topics.facts, value, key=key, partition=partition)
                for decision in machine.step(read_fact(key, value, sent.offset, sent.append_ms)):
                    await producer.send_and_wait(self._topics.decisions, pack_decision(self._spoilt(decision)), key=key, partition=partition)

    def _spoilt(self, record: DecisionRecord) -> DecisionRecord:
        if record.group != self.wrong:
            return record
        self.wrong = ""
        return attrs.evolve(record, decision=EventRejected(kind=12, code="spoilt"))


def facts_of(first: int, last: int) -> list[tuple[str, Fact]]:
    """Returns facts [first, last) of a simulated group."""
    facts = [entry.event for entry in lived() if isinstance(entry, FactRecord)][1:]
    return [(group, fact) for fact in facts[first:last] for group in GROUPS]


def alerts_in(folder: Path) -> list[dict[str, Any]]:
    """Returns the rows of the alerts table, as any reader of the folder finds them."""
    files = [str(path) for path in sorted(folder.glob("*.parquet"))]
    rows: list[dict[str, Any]] = ds.dataset(files).to_table().to_pylist() if files else []
    return sorted(rows, key=lambda row: (row["partition"], row["group"], row["offset"]))
