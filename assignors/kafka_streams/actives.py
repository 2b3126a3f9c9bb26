"""Active tasks: stateful ones in round-robin order and then evened out, stateless ones to the least
loaded client (KIP-441).

Present owners play no part. One more member changes the turn of nearly every task.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from equipoise.assignors.kafka_streams.client_states import ClientState, PrioritySet
from equipoise.events.tasks import TaskId

TaskRole = Literal["active", "standby"]


def assign_stateful(tasks: Sequence[TaskId], clients: Sequence[ClientState]) -> None:
    """Gives task i to client i modulo their number, then evens out. `tasks` and `clients` are in
    rising order.
    """
    for place, task in enumerate(tasks):
        clients[place % len(clients)].active.add(task)
    balance(clients, "active", lambda source, destination: True)


def balance(clients: Sequence[ClientState], kind: TaskRole, allowed: Callable[[ClientState, ClientState], bool]) -> None:
    """``balanceTasksOverThreads``: moves tasks of one kind to clients with less load per thread,
    until a whole pass moves nothing. The load counts copies of both kinds.
    """
    moved = True
    while moved:
        moved = False
        for source in clients:
            for destination in clients:
                if destination is source or not _should_move(source, destination) or not allowed(source, destination):
                    continue
                have: set[TaskId] = getattr(source, kind)
                gets: set[TaskId] = getattr(destination, kind)
                for task in sorted(have):
                    if not _should_move(source, destination):
                        break
                    if not destination.has(task):
                        have.remove(task)
                        gets.add(task)
                        moved = True


def _should_move(source: ClientState, destination: ClientState) -> bool:
    """Returns whether the move lowers the difference of loads without reversing it."""
    skew = source.load() - destination.load()
    if skew <= 0:
        return False
    after = (source.count() - 1) / source.capacity - (destination.count() + 1) / destination.capacity
    return 0 <= after < skew


def assign_stateless(tasks: Sequence[TaskId], clients: Sequence[ClientState]) -> None:
    """Gives each task to the client with the fewest active tasks per thread. `tasks` and `clients`
    are in rising order.
    """
    least_loaded = PrioritySet(lambda client, task: True, ClientState.active_load)
    for client in clients:
        least_loaded.offer(client)
    for task in tasks:
        found = least_loaded.poll(task)
        assert found is not None, "there are clients, and none is refused"
        found.active.add(task)
        least_loaded.offer(found)
