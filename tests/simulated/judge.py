"""What must hold in a simulation: while it runs, no task has two owners; at its end, the recount of
outputs and of the state in changelogs is as the guarantee promises, the log verifies, and it is a
run of the model (`tests.simulated.traces`). `tests.simulated.stores` compares members' stores with
their changelogs.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Collection, Mapping
from typing import Any

import attrs

from equipoise.events.facts import LogOpened
from equipoise.events.tasks import TaskId
from equipoise.folding.log_reading import PartitionReading, next_fact
from equipoise.kafka.client import Clients, TopicPartition
from equipoise.kafka.connection import Connection
from equipoise.log.kafka.envelope import pack_fact, read_fact
from equipoise.log.kafka.log_opening import read_opening
from equipoise.log.kafka.log_topics import Topics
from equipoise.member.copies.fencing import RESERVED_PREFIX, ChangelogFence, ChangelogRecord
from equipoise.statemachine.partition import PartitionLead
from examples.orders.recount import Recount, Recounting

MOST_FAULTS = 20


@attrs.define
class OwnerWatch:
    """Sees every call of a handler. A process may not process a task once another process has
    processed it under a later grant (docs/protocol.md#m4, #m5).
    """

    faults: list[str] = attrs.field(factory=list)
    calls: int = 0
    openings: Counter[str] = attrs.field(factory=Counter)
    """``<log id>/<group>/<task>/<token>`` -> how often that grant was opened."""
    at_least_once: set[str] = attrs.field(factory=set)
    """Those of them that commit so."""
    logs_overlap: bool = False
    """Whether members of two logs run, each as the owner by its log."""
    _logs: list[str] = attrs.field(factory=list)
    _last: dict[TaskId, tuple[int, int, str]] = attrs.field(factory=dict)
    """Task -> latest grant that processed it: number of the log, token, process."""

    def handles(self, now_s: float, process: str, log_id: str, task: TaskId, token: int) -> None:
        """`process` calls its handler under the grant `token` of `task`."""
        self.calls += 1
        if self.logs_overlap:
            return
        if log_id not in self._logs:
            self._logs.append(log_id)
        grant = self._logs.index(log_id), token
        *latest, owner = self._last.get(task, (-1, -1, process))
        if grant < tuple(latest) and process != owner and len(self.faults) < MOST_FAULTS:
            self.faults.append(f"{now_s:.3f} s: {process} processes {task} under token {token} of log {log_id}, after {owner} under {latest[1]}")
        if grant >= tuple(latest):
            self._last[task] = (*grant, process)

    def processed_by(self, process: str) -> frozenset[TaskId]:
        """Tasks that this process was the last to process."""
        return frozenset(task for task, (*_, owner) in self._last.items() if owner == process)

    def begins_log(self, *, overlap: bool = False) -> None:
        """Members join another log, also one of the former ones again."""
        self.logs_overlap = overlap
        self._logs.clear()
        self._last.clear()


def repeated_faults(found: Recount, openings: Mapping[str, int], most_uncommitted: int) -> list[str]:
    """With at_least_once: a grant counts one commit again each time it is opened, at most, and one
    more that is late (docs/protocol.md#m6).
    """
    commits = {grant: max(1, openings.get(grant, 0)) + (grant in found.late) for grant in found.again}
    wrong = [(grant, again) for grant, again in sorted(found.again.items()) if again > most_uncommitted * commits[grant]]
    return [f"grant {grant} counts {again} orders again, and was opened {openings.get(grant, 0)} times" for grant, again in wrong]


async def records_of(clients: Clients, topic: str, *, committed: bool) -> AsyncIterator[Any]:
    """Every record of a topic, partition by partition."""
    consumer = clients.consumer(read_committed=committed)
    await consumer.start()
    try:
        for partition in sorted(consumer.partitions_for_topic(topic) or await _partitions(clients, topic)):
            tp = TopicPartition(topic, partition)
            consumer.assign([tp])
            begin, end = (await consumer.beginning_offsets([tp]))[tp], (await consumer.end_offsets([tp]))[tp]
            consumer.seek(tp, begin)
            while await consumer.position(tp) < end:
                for record in (await consumer.getmany(tp, timeout_ms=100)).get(tp, ()):
                    if record.offset < end:
                        yield record
    finally:
        await consumer.stop()


async def _partitions(clients: Clients, topic: str) -> Collection[int]:
    producer = clients.producer()
    await producer.start()
    try:
        return await producer.partitions_for(topic)
    finally:
        await producer.stop()


async def recount_all(clients: Clients, topic: str, *, exactly_once: bool, at_least_once: Collection[str] = ()) -> tuple[Recount, list[str]]:
    """The recount of outputs, and what is wrong with the state. `at_least_once`: grants that
    committed so nevertheless; where the guarantee was changed, the state may hold orders twice.
    """
    recounting = Recounting(exactly_once=exactly_once, at_least_once=at_least_once)
    orders: dict[tuple[int, bytes], list[Any]] = {}
    async for record in records_of(clients, topic, committed=False):
        recounting.order(record)
        orders.setdefault((record.partition, record.key), []).append(record)
    async for record in records_of(clients, f"{topic}-counts", committed=exactly_once):
        recounting.count(record)
    state = await fold_changelog(clients, f"{topic}-state")
    return recounting.finish(), _state_faults(orders, state, not at_least_once)


async def fold_changelog(clients: Clients, topic: str) -> dict[int, dict[bytes, bytes]]:
    """The application's state as a next owner would restore it: partition -> values."""
    fences: dict[int, ChangelogFence] = {}
    state: dict[int, dict[bytes, bytes]] = {}
    async for record in records_of(clients, topic, committed=True):
        values = state.setdefault(record.partition, {})
        folded = ChangelogRecord(record.key, record.value, tuple(record.headers))
        for key, value in fences.setdefault(record.partition, ChangelogFence()).fold([folded]).items():
            if key.startswith(RESERVED_PREFIX):
                continue
            if value is None:
                values.pop(key, None)
            else:
                values[key] = value
    return state


def _state_faults(orders: Mapping[tuple[int, bytes], list[Any]], state: Mapping[int, Mapping[bytes, bytes]], exactly_once: bool) -> list[str]:
    faults = []
    for (partition, customer), given in sorted(orders.items()):
        said = state.get(partition, {}).get(customer)
        totals = {"orders": 0, "cents": 0, "read": -1} if said is None else json.loads(said)
        cents = sum(json.loads(order.value)["cents"] for order in given)
        exact = totals["orders"] == len(given) and totals["cents"] == cents
        enough = totals["orders"] >= len(given) and totals["cents"] >= cents
        if totals["read"] != given[-1].offset or not (exact if exactly_once else enough):
            faults.append(f"state of {customer.decode()}: {totals}; the input has {len(given)} orders, {cents} cents, the last at {given[-1].offset}")
    return faults


async def verify_log(connection: Connection, topics: Topics) -> list[str]:
    """Folds the whole log without checkpoints, and compares every published decision."""
    faults: list[str] = []
    opened: LogOpened = await read_opening(connection, topics)
    for partition in range(opened.partitions):
        reading = PartitionReading(connection, topics, opened, partition)
        opening = read_fact(b"", pack_fact(opened), 0, 0)
        lead = PartitionLead(0, opened=opening, answers=False)
        await reading.read_published(lead, 0)
        async with reading.facts() as facts:
            await facts.place(0)
            async for found in facts.until(await facts.end()):
                record = next_fact(lead, found)
                if record is not None:
                    lead.fold(record, 0)
        faults += [f"group {name} is halted: {group.halted}" for name, group in lead.groups.items() if group.halted is not None]
    return faults
