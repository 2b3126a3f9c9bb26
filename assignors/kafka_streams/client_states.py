"""The processes that tasks are assigned to, and the priority set they are picked from (KIP-441).

Kafka assigns to processes; which thread of a process runs a task is decided later (`threads`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs

from equipoise.assignors.kafka_streams.java import MAX_LONG, Heap, member_hash
from equipoise.events.java_order import hash_order
from equipoise.events.tasks import TaskId

LATEST = -2
"""Lag of a process that reports the task as running."""
UNKNOWN = -3
"""Lag of a process that has a copy of unknown age. It ranks before LATEST and is never caught up.
"""


@attrs.define(eq=False)
class ClientState:
    """A process. `index`: its place in Java's order of ids, the order of all loops. `capacity`:
    threads, >= 1.
    """

    index: int
    id: str
    capacity: int
    rack: str | None = None
    tags: Mapping[str, str] = attrs.field(factory=dict)
    active: set[TaskId] = attrs.field(factory=set)
    standby: set[TaskId] = attrs.field(factory=set)
    hash: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.hash = member_hash(self.id)

    def has(self, task: TaskId) -> bool:
        return task in self.active or task in self.standby

    def count(self) -> int:
        """Number of its tasks, active and standby."""
        return len(self.active) + len(self.standby)

    def load(self) -> float:
        return (len(self.active) + len(self.standby)) / self.capacity

    def active_load(self) -> float:
        return len(self.active) / self.capacity


@attrs.frozen(kw_only=True)
class KafkaSettings:
    """Kafka's AssignmentConfigs. `traffic_cost`, `non_overlap_cost`: of stateful tasks and
    standbys; stateless tasks cost 1 and 0.
    """

    acceptable_recovery_lag: int
    num_standbys: int
    tags: frozenset[str]
    """``rack.aware.assignment.tags``"""
    strategy: str
    """``rack.aware.assignment.strategy``: none, min_traffic or balance_subtopology"""
    traffic_cost: int
    non_overlap_cost: int


class RemainingWarmups:
    """``max.warmup.replicas``, counted down first over active and then over standby movements."""

    def __init__(self, slots: int) -> None:
        self._left = slots

    def take(self) -> bool:
        self._left -= 1
        return self._left >= 0


class ClientLags:
    """Lag of each client on each stateful task; without a report the whole changelog.

    `end_offsets`: stateful task -> records to restore from nothing. `reported`: task -> client
    index -> lag or sentinel.
    """

    def __init__(
        self, clients: list[ClientState], end_offsets: Mapping[TaskId, int], reported: Mapping[TaskId, Mapping[int, int]], acceptable: int
    ) -> None:
        self._clients = clients
        self._end_offsets = end_offsets
        self._reported = reported
        self._acceptable = acceptable
        self._least: dict[TaskId, int] = {}
        self._by_lag: dict[TaskId, list[ClientState]] = {}

    def lag(self, task: TaskId, client: ClientState) -> int:
        return self._reported.get(task, {}).get(client.index, self._end_offsets[task])

    def _caught_up(self, lag: int) -> bool:
        return lag == LATEST or self._acceptable == MAX_LONG or 0 <= lag <= self._acceptable

    def is_caught_up(self, task: TaskId, client: ClientState) -> bool:
        return self._caught_up(self.lag(task, client))

    def caught_up_clients(self, task: TaskId) -> int:
        """Number of caught-up clients."""
        reported = self._reported.get(task, {})
        silent = len(self._clients) - len(reported)
        return sum(map(self._caught_up, reported.values())) + silent * self._caught_up(self._end_offsets[task])

    def by_lag(self, task: TaskId) -> list[ClientState]:
        """All clients by lag, then by id."""
        if task not in self._by_lag:
            self._by_lag[task] = sorted(self._clients, key=lambda client: self.lag(task, client))
        return self._by_lag[task]

    def better_is_there(self, task: TaskId, client: ClientState) -> bool:
        """Returns whether the client is not caught up while another has less to restore."""
        lag = self.lag(task, client)
        if self._caught_up(lag):
            return False
        if task not in self._least:
            reported = self._reported.get(task, {})
            everything = () if len(reported) == len(self._clients) else (self._end_offsets[task],)
            self._least[task] = min((*reported.values(), *everything))
        return self._least[task] < lag


class PrioritySet:
    """``ConstrainedPrioritySet``: clients by load, from which the first that satisfies a constraint
    is taken.

    A load that changes while its client is in the set does not move it, so the client taken is not
    always the least loaded. Clients passed over are put back in the order of a ``HashSet`` of their
    ids.
    """

    def __init__(self, constraint: Callable[[ClientState, TaskId], bool], weight: Callable[[ClientState], float] = ClientState.load) -> None:
        self._constraint = constraint
        self._heap: Heap[ClientState] = Heap(lambda client: (weight(client), client.index))
        self._inside: set[ClientState] = set()

    def offer(self, client: ClientState) -> None:
        """Adds the client, or moves it to the place of its present load."""
        if client in self._inside:
            self._heap.remove(client)
        self._inside.add(client)
        self._heap.offer(client)

    def poll(self, task: TaskId, extra: Callable[[ClientState], bool] | None = None) -> ClientState | None:
        """Removes and returns the first client that may have the task; None: there is none."""
        passed_over: list[ClientState] = []
        found = None
        while self._heap:
            client = self._heap.poll()
            self._inside.discard(client)
            if self._constraint(client, task) and (extra is None or extra(client)):
                found = client
                break
            passed_over.append(client)
        for client in hash_order(passed_over, lambda client: client.hash):
            self.offer(client)
        return found
