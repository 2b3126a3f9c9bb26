"""A leader as small as one can be: one group of one log, the real machine over the real topics. For
tests of members alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

from equipoise.events.decisions import Decision
from equipoise.events.errors import EquipoiseError
from equipoise.events.facts import Fact, GroupConfigured, PartitionsObserved, ProbingTick, TopologyDeclared
from equipoise.events.records import DecisionRecord, FactRecord
from equipoise.kafka.connection import Connection
from equipoise.kafka.started_clients import reader
from equipoise.log.kafka.envelope import group_key, pack_decision, pack_fact, partition_of, read_fact
from equipoise.log.kafka.log_opening import open_partitions
from equipoise.log.kafka.log_topics import Topics
from equipoise.log.kafka.topic_making import ensure_topics
from equipoise.statemachine.machine import GroupMachine
from equipoise.statemachine.watched_change import ChangeObserver

TICK_S = 0.3


class Leader:
    """`facts` and `decisions`: all there were, in order."""

    def __init__(self, bootstrap: str, prefix: str, group: str) -> None:
        self.connection = Connection(bootstrap=bootstrap)
        self.topics = Topics(prefix)
        self.group = group
        self.machine = GroupMachine()
        self.observer = ChangeObserver()
        self.facts: list[FactRecord] = []
        self.decisions: list[DecisionRecord] = []
        self.failure: EquipoiseError | None = None
        self._producer: Any = None

    async def open(self, config: GroupConfigured, topology: TopologyDeclared, partitions: int = 1) -> None:
        await ensure_topics(self.connection, self.topics, partitions=partitions)
        opened = await open_partitions(self.connection, self.topics)
        self.partition = partition_of(self.group, opened.partitions)
        self._producer = self.connection.clients.producer()
        await self._producer.start()
        for fact in (config, topology):
            await self.say(fact)

    async def close(self) -> None:
        await self._producer.stop()

    async def say(self, fact: Fact) -> None:
        await self._producer.send_and_wait(self.topics.facts, pack_fact(fact), key=group_key(self.group), partition=self.partition)

    async def run(self) -> None:
        """Reads on from where the machine is, decides, publishes, ticks. May be cancelled and run
        again: then the group has no leader for a while.
        """
        from aiokafka import TopicPartition

        facts = TopicPartition(self.topics.facts, self.partition)
        async with reader(self.connection) as consumer:
            consumer.assign([facts])
            consumer.seek(facts, self.machine.state.last_offset + 1)
            ticked_s = 0.0
            while True:
                for record in (await consumer.getmany(facts, timeout_ms=100)).get(facts, ()):
                    await self._fold(read_fact(record.key, record.value, record.offset, record.timestamp_ms))
                if time.monotonic() - ticked_s >= TICK_S:
                    ticked_s = time.monotonic()
                    await self._observe(consumer)
                    await self.say(self.observer.verdict or ProbingTick())

    async def _fold(self, record: FactRecord) -> None:
        try:
            decided = self.machine.step(record)
        except EquipoiseError as error:
            self.failure = error
            raise
        self.observer.see(self.machine.state, record, decided)
        self.facts.append(record)
        for each in decided:
            self.decisions.append(each)
            await self.publish(each)

    async def publish(self, decision: DecisionRecord) -> None:
        await self._producer.send_and_wait(self.topics.decisions, pack_decision(decision), key=group_key(self.group), partition=self.partition)

    async def _observe(self, consumer: Any) -> None:
        from aiokafka import TopicPartition

        topology = self.machine.state.topology
        wanted = [
            TopicPartition(topic, partition)
            for part in (() if topology is None else topology.subtopologies)
            for topic in part.changelog_topics
            for partition in range(part.partitions)
        ]
        ends: dict[str, dict[int, int]] = {}
        for tp, end in (await consumer.end_offsets(wanted)).items() if wanted else ():
            if self.machine.state.end_offsets.get(tp.topic, {}).get(tp.partition) != end:
                ends.setdefault(tp.topic, {})[tp.partition] = end
        if ends:
            await self.say(PartitionsObserved(end_offsets=ends))

    def decided(self, kind: type[Decision]) -> list[Any]:
        return [each.decision for each in self.decisions if isinstance(each.decision, kind)]


@contextlib.asynccontextmanager
async def leading(
    bootstrap: str, prefix: str, group: str, config: GroupConfigured, topology: TopologyDeclared, partitions: int = 1
) -> AsyncIterator[Leader]:
    """`partitions`: of the log."""
    leader = Leader(bootstrap, prefix, group)
    await leader.open(config, topology, partitions)
    running = asyncio.ensure_future(leader.run())
    try:
        yield leader
        assert leader.failure is None
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await leader.close()
