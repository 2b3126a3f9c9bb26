"""``HighAvailabilityTaskAssignor.assign``: the steps of one assignment in Kafka's order (KIP-441,
KIP-708, KIP-925).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import attrs

from equipoise.assignors.common.problem import Task
from equipoise.assignors.kafka_streams.actives import assign_stateful, assign_stateless, balance
from equipoise.assignors.kafka_streams.client_states import ClientLags, ClientState, KafkaSettings, PrioritySet, RemainingWarmups
from equipoise.assignors.kafka_streams.java import Heap
from equipoise.assignors.kafka_streams.racks import RackOptimizer
from equipoise.assignors.kafka_streams.standbys import DefaultStandbys, StandbyAssignor, TagAwareStandbys
from equipoise.events.tasks import TaskId

STATELESS_TRAFFIC_COST = 1
STATELESS_NON_OVERLAP_COST = 0


@attrs.frozen
class Assigned:
    """`movements`: active tasks with an interim owner. `probing`: Kafka asks for a probing
    rebalance. The assignment itself is in the clients.
    """

    movements: list[ActiveMovement]
    probing: bool


def assign(
    clients: list[ClientState], tasks: Sequence[Task], reported: Mapping[TaskId, Mapping[int, int]], settings: KafkaSettings, slots: RemainingWarmups
) -> Assigned:
    """Fills in `active` and `standby` of `clients`, which are empty. `clients` (not empty) and
    `tasks` are in rising order.

    `reported`: task -> index of the client -> lag, LATEST or UNKNOWN. The standbys of a client
    include its warm-ups: Kafka does not tell them apart.
    """
    stateful = [task.id for task in tasks if task.stateful]
    racks = RackOptimizer(clients, tasks, settings)
    assign_stateful(stateful, clients)
    if racks.enabled:
        racks.optimize_active(stateful, settings.traffic_cost, settings.non_overlap_cost)

    if settings.num_standbys:
        standbys: StandbyAssignor = TagAwareStandbys(clients, settings.tags) if settings.tags else DefaultStandbys(clients)
        standbys.assign(stateful, settings.num_standbys)
        balance(clients, "standby", standbys.may_pass)
        if racks.enabled:
            racks.optimize_standby(settings.traffic_cost, settings.non_overlap_cost, standbys.may_swap)

    end_offsets = {task.id: task.end_offset for task in tasks if task.stateful}
    lags = ClientLags(clients, end_offsets, reported, settings.acceptable_recovery_lag)
    movements = assign_active_movements(clients, lags, slots)
    warmups = frozenset((each.task, each.destination) for each in movements if each.warmup)
    moved_standbys = assign_standby_movements(clients, lags, slots, warmups)

    stateless = [task.id for task in tasks if not task.stateful]
    assign_stateless(stateless, clients)
    if racks.enabled:
        racks.optimize_active(stateless, STATELESS_TRAFFIC_COST, STATELESS_NON_OVERLAP_COST)
    return Assigned(movements, bool(movements) or moved_standbys > 0)


# Interim owners until the new owner is caught up, and the copies that restore meanwhile
# (KIP-441).


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
