"""``HighAvailabilityTaskAssignor.assign``: the steps of one assignment in Kafka's order (KIP-441,
KIP-708, KIP-925).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from equipoise.assignors.common.problem import Task
from equipoise.assignors.kafka_streams.actives import assign_stateful, assign_stateless, balance
from equipoise.assignors.kafka_streams.client_states import ClientLags, ClientState, KafkaSettings, RemainingWarmups
from equipoise.assignors.kafka_streams.movements import ActiveMovement, assign_active_movements, assign_standby_movements
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
