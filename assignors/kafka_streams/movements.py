"""Interim owners until the new owner is caught up, and the copies that restore meanwhile (KIP-441).

An active task whose new client is not caught up goes to a client with less to restore, if there is
one; the new client gets a warm-up copy while slots last. Standbys likewise. Racks and tags play no
part here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from equipoise.assignors.kafka_streams.client_states import ClientLags, ClientState, PrioritySet, RemainingWarmups
from equipoise.assignors.kafka_streams.java import Heap
from equipoise.events.tasks import TaskId


@attrs.frozen
class ActiveMovement:
    """`source` runs the task until `destination` is caught up. `warmup`: the destination got a copy
    in one of the slots; an exchange with a standby takes none.
    """

    task: TaskId
    source: ClientState
    destination: ClientState
    warmup: bool


def assign_active_movements(clients: Sequence[ClientState], lags: ClientLags, slots: RemainingWarmups) -> list[ActiveMovement]:
    """Movements of active tasks whose client has too much to restore, those with the fewest
    caught-up clients first.
    """
    caught_up = PrioritySet(lambda client, task: lags.is_caught_up(task, client))
    wanted: list[tuple[int, TaskId, ClientState]] = []
    for client in clients:
        wanted.extend((lags.caught_up_clients(task), task, client) for task in client.active if lags.better_is_there(task, client))
        caught_up.offer(client)
    movements = []
    for _, task, destination in sorted(wanted, key=lambda movement: movement[:2]):
        source = _runs_meanwhile(task, lags, caught_up)
        destination.active.remove(task)
        source.active.add(task)
        if task in source.standby:
            source.standby.remove(task)
            destination.standby.add(task)
            warmup = False
        else:
            warmup = slots.take()
            if warmup:
                destination.standby.add(task)
        caught_up.offer(source)
        caught_up.offer(destination)
        movements.append(ActiveMovement(task, source, destination, warmup))
    return movements


def _runs_meanwhile(task: TaskId, lags: ClientLags, caught_up: PrioritySet) -> ClientState:
    """The interim owner: a caught-up standby of the task, else a caught-up client, else the client
    with the least to restore.
    """
    standby = caught_up.poll(task, lambda client: task in client.standby)
    if standby is not None:
        return standby
    return caught_up.poll(task) or lags.by_lag(task)[0]


def assign_standby_movements(
    clients: Sequence[ClientState], lags: ClientLags, slots: RemainingWarmups, warmups: frozenset[tuple[TaskId, ClientState]]
) -> int:
    """Keeps standbys on clients with less to restore; returns their number. `warmups`: copies of
    active movements, which stay.

    Equally urgent movements are in the order of a Java heap.
    """
    caught_up = PrioritySet(lambda client, task: lags.is_caught_up(task, client))
    wanted: Heap[tuple[int, TaskId, ClientState]] = Heap(lambda movement: (movement[0], *movement[1]))
    for client in clients:
        for task in sorted(client.standby):
            if (task, client) not in warmups and lags.better_is_there(task, client):
                wanted.offer((lags.caught_up_clients(task), task, client))
        caught_up.offer(client)
    moved = 0
    while wanted:
        _, task, destination = wanted.poll()
        source = caught_up.poll(task, _without_copy(task)) or _less_to_restore(task, destination, lags)
        if source is None:
            continue
        source.standby.add(task)
        if not slots.take():
            destination.standby.remove(task)
        caught_up.offer(source)
        caught_up.offer(destination)
        moved += 1
    return moved


def _without_copy(task: TaskId) -> Callable[[ClientState], bool]:
    return lambda client: not client.has(task)


def _less_to_restore(task: TaskId, destination: ClientState, lags: ClientLags) -> ClientState | None:
    """The first client without a copy among those with less lag than the destination."""
    for client in lags.by_lag(task):
        if client is destination:
            return None
        if not client.has(task):
            return client
    return None
