"""Standbys: Kafka's default assignor (KIP-441), and the one that spreads copies over client tags
(KIP-708).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from equipoise.assignors.kafka_streams.client_states import ClientState, PrioritySet
from equipoise.assignors.kafka_streams.hash_map import HashMap
from equipoise.assignors.kafka_streams.java import task_hash
from equipoise.events.tasks import TaskId


class StandbyAssignor(Protocol):
    """Kafka's StandbyTaskAssignor."""

    def assign(self, tasks: Sequence[TaskId], copies: int) -> None:
        """Assigns `copies` standbys of each of `tasks` (in rising order), as far as there are
        clients.
        """

    def may_pass(self, source: ClientState, destination: ClientState) -> bool:
        """Returns whether standbys may go from one client to the other for balance."""

    def may_swap(self, source: ClientState, destination: ClientState, task: TaskId) -> bool:
        """Returns whether this standby may go from one client to the other for less traffic."""


def _without_copy(client: ClientState, task: TaskId) -> bool:
    return not client.has(task)


class DefaultStandbys:
    """Gives each copy to the least loaded client without the task."""

    def __init__(self, clients: Sequence[ClientState]) -> None:
        self._clients = clients

    def assign(self, tasks: Sequence[TaskId], copies: int) -> None:
        assign_least_loaded(self._clients, [(task, copies) for task in tasks])

    def may_pass(self, source: ClientState, destination: ClientState) -> bool:
        return True

    def may_swap(self, source: ClientState, destination: ClientState, task: TaskId) -> bool:
        return True


def assign_least_loaded(clients: Sequence[ClientState], wanted: Sequence[tuple[TaskId, int]], least_loaded: PrioritySet | None = None) -> None:
    """Gives, for each task in the order given, as many copies as wanted to the least loaded clients
    without one.
    """
    if least_loaded is None:
        least_loaded = PrioritySet(_without_copy)
    for client in clients:
        least_loaded.offer(client)
    for task, copies in wanted:
        for _ in range(copies):
            found = least_loaded.poll(task)
            if found is None:
                break
            found.standby.add(task)
            least_loaded.offer(found)


class TagAwareStandbys:
    """``ClientTagAwareStandbyTaskAssignor``: each copy goes to the least loaded client that shares
    no configured tag with the clients that have one.

    A tag whose values are all used no longer constrains. Copies that find no client this way are
    assigned by default.
    """

    def __init__(self, clients: Sequence[ClientState], tags: frozenset[str]) -> None:
        self._clients = clients
        self._tags = tags
        self._values: dict[str, set[str]] = {}
        self._sharing: dict[tuple[str, str], set[ClientState]] = {}
        for client in clients:
            for key, value in client.tags.items():
                self._values.setdefault(key, set()).add(value)
                self._sharing.setdefault((key, value), set()).add(client)

    def assign(self, tasks: Sequence[TaskId], copies: int) -> None:
        pending = HashMap(tasks, task_hash, lambda task: task)
        remaining: dict[TaskId, int] = {}
        least_loaded = PrioritySet(_without_copy)
        owners = {task: client for client in self._clients for task in client.active}
        for task in tasks:
            for client in self._clients:
                least_loaded.offer(client)
            left = self._spread(task, copies, owners[task], least_loaded)
            if left:
                remaining[task] = left
            else:
                pending.remove(task)
        if remaining:
            assign_least_loaded(self._clients, [(task, remaining[task]) for task in pending], least_loaded)

    def _spread(self, task: TaskId, copies: int, owner: ClientState, least_loaded: PrioritySet) -> int:
        """Returns the number of copies without a client that differs in every tag. A client with a
        copy is not offered again for this task.
        """
        blocked: dict[tuple[str, str], set[ClientState]] = {}
        last, used = owner, 1
        while copies:
            self._block(blocked, last.tags, used)
            client = least_loaded.poll(task, lambda client: not any(client in sharing for sharing in blocked.values()))
            if client is None:
                break
            used += 1
            copies -= 1
            client.standby.add(task)
            last = client
        return copies

    def _block(self, blocked: dict[tuple[str, str], set[ClientState]], tags: Mapping[str, str], used: int) -> None:
        """After `used` copies, the last of them on a client with these tags."""
        for key, value in tags.items():
            if key not in self._tags:
                continue
            if len(self._values[key]) <= used:
                for pair in [pair for pair in blocked if pair[0] == key]:
                    del blocked[pair]
            else:
                blocked[key, value] = self._sharing[key, value]

    def may_pass(self, source: ClientState, destination: ClientState) -> bool:
        """Only between clients with the same tags, configured or not."""
        return all(destination.tags.get(key) == value for key, value in source.tags.items())

    def may_swap(self, source: ClientState, destination: ClientState, task: TaskId) -> bool:
        """Only if the clients with a copy have as many different tags afterwards."""
        others = {pair for client in self._clients if client not in (source, destination) and client.has(task) for pair in client.tags.items()}
        return len(others.union(destination.tags.items())) >= len(others.union(source.tags.items()))
