"""What the leader makes of an assignment of processes (``StreamsPartitionAssignor.assign`` of
Apache Kafka 4): which thread of a process runs what, what is withheld until its owner has let go
(KIP-429), and who is to ask for the next round, when.

A thread is a consumer, a member of the group of its own. The adapters of equipoise know processes
only; the simulation of a Kafka Streams group (`equipoise.replay.simulation.kafka`) needs what its
threads do, for a task that changes its thread pauses like one that changes its process does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import attrs

from equipoise.assignors.common.problem import Task
from equipoise.assignors.kafka_streams.client_states import LATEST, ClientState
from equipoise.assignors.kafka_streams.java import Heap
from equipoise.events.tasks import TaskId


@attrs.frozen(kw_only=True)
class ThreadSubscription:
    """What one consumer reports when it joins. `offset_sums`: of copies that it has or found on
    disk; LATEST: it runs the task.
    """

    consumer: str
    process: str
    owned: frozenset[TaskId]
    offset_sums: Mapping[TaskId, int]


@attrs.frozen(kw_only=True)
class ThreadAssignment:
    """The assignment of one consumer. `now`: it must re-join at once, because a task is withheld
    from it; `probing`: it re-joins when the probing interval ends.
    """

    active: tuple[TaskId, ...]
    standby: tuple[TaskId, ...]
    withheld: tuple[TaskId, ...]
    probing: bool

    @property
    def now(self) -> bool:
        return bool(self.withheld)


def to_threads(
    client: ClientState,
    subscriptions: Sequence[ThreadSubscription],
    tasks: Mapping[TaskId, Task],
    owned_by_anybody: frozenset[TaskId],
    *,
    probing: bool,
) -> dict[str, ThreadAssignment]:
    """Consumer -> its assignment. `client`: the assignment of the process; `subscriptions`: of its
    consumers by name, at least one.

    `probing`: the process asks for a probing round, unless one of its earlier consumers re-joins at
    once.
    """
    previous = {each.consumer: _by_lag(each.offset_sums, tasks) for each in subscriptions}
    load = {each.consumer: 0 for each in subscriptions}
    stateful = _pack([task for task in client.active if tasks[task].stateful], load, previous)
    standby = _pack(client.standby, load, previous)
    stateless = _pack([task for task in client.active if not tasks[task].stateful], load, {})
    ran = frozenset(task for each in subscriptions for task in each.owned)
    had_copy = {task for each in subscriptions for task in each.offset_sums if task not in ran}
    found: dict[str, ThreadAssignment] = {}
    for each in subscriptions:
        active = [*stateful[each.consumer], *stateless[each.consumer]]
        withheld = [task for task in active if task not in each.owned and task in owned_by_anybody]
        meanwhile = [task for task in withheld if task in had_copy and tasks[task].stateful]
        found[each.consumer] = ThreadAssignment(
            active=tuple(sorted(task for task in active if task not in withheld)),
            standby=tuple(sorted({*standby[each.consumer], *meanwhile})),
            withheld=tuple(sorted(withheld)),
            probing=probing and not withheld,
        )
        probing = False
    return found


def _by_lag(offset_sums: Mapping[TaskId, int], tasks: Mapping[TaskId, Task]) -> list[TaskId]:
    """``ClientState.prevTasksByLag``: the consumer that runs a task has the least lag of all."""
    lags = {task: LATEST if records == LATEST else max(0, tasks[task].end_offset - records) for task, records in offset_sums.items() if task in tasks}
    return sorted(lags, key=lambda task: (lags[task], task))


def _pack(tasks: Iterable[TaskId], load: dict[str, int], previous: Mapping[str, Sequence[TaskId]]) -> dict[str, list[TaskId]]:
    """``StreamsPartitionAssignor.assignTasksToThreads``: as even as possible, with previous owners
    where that allows. Adds to `load`.
    """
    unassigned: Heap[TaskId] = Heap(lambda task: task, sorted(tasks))
    left = set(tasks)
    got: dict[str, list[TaskId]] = {consumer: [] for consumer in load}
    if not left:
        return got
    least = (len(left) + sum(load.values())) // len(load)

    def give(consumer: str, task: TaskId) -> None:
        got[consumer].append(task)
        left.discard(task)

    def count(consumer: str) -> int:
        return len(got[consumer]) + load[consumer]

    skipped: dict[TaskId, str] = {}
    to_fill: list[str] = []
    for consumer in load:
        for task in previous.get(consumer, ()):
            if task in left:
                if count(consumer) < least:
                    unassigned.remove(task)
                    give(consumer, task)
                else:
                    skipped[task] = consumer
        if count(consumer) < least:
            to_fill.append(consumer)
    while to_fill:
        consumer = to_fill.pop(0)
        give(consumer, unassigned.poll())
        if count(consumer) < least:
            to_fill.append(consumer)
    if left:
        to_fill = [consumer for consumer in load if count(consumer) == least]
        for task, consumer in sorted(skipped.items()):
            if consumer in to_fill and task in left:
                unassigned.remove(task)
                give(consumer, task)
                to_fill.remove(consumer)
        for consumer, task in zip(to_fill, unassigned.in_array_order(), strict=False):
            give(consumer, task)
    for consumer in load:
        load[consumer] += len(got[consumer])
    return got
