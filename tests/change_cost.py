"""The cost of a change of members in the simulated cluster: a settled group gains and loses members
and runs until it is settled again.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from equipoise.assignors import registry
from equipoise.events.decisions import AssignmentIssued, Move
from equipoise.events.errors import InvariantBroken
from equipoise.events.facts import GroupConfigured, Subtopology, TopologyDeclared
from equipoise.events.records import DecisionRecord, FactRecord
from equipoise.events.settings import GroupSettings
from equipoise.events.tasks import TaskId
from equipoise.replay.simulation.measures import active_moves, fewest_moves
from equipoise.replay.simulation.member_process import ProcessSettings
from equipoise.replay.simulation.restored_copies import RestoreModel
from equipoise.replay.simulation.simulated_cluster import ClusterConfig, SimulatedCluster
from equipoise.replay.simulation.world import steady
from equipoise.statemachine.machine import GroupMachine

LOOK_EVERY_MS = 5_000
MOST_WAITING_MS = 86_400_000
CHANGELOG = "changelog"
LOOKING = ("probing", "ready")
"""Causes of rounds that check copies."""


@attrs.frozen(kw_only=True)
class ChangeCost:
    """Costs of one change. `changed`: tasks with another owner in the end than before; `fewest`:
    the number that balance needs. `moves`: changes of owner, intermediate ones included.

    `rounds`: by cause, until the group is settled; `rounds_of_owners`: those of them that checked
    copies, up to the last change of owner. `interrupted`: tasks whose owner had to revoke them
    before the destination was caught up. `longest_silence_ms`: longest time that no member
    processed a task. `seconds`: from the change to the last round.
    """

    changed: int
    fewest: int
    moves: int
    moved_more_than_once: int
    rounds: dict[str, int]
    rounds_of_owners: int
    interrupted: tuple[TaskId, ...]
    longest_silence_ms: int
    restored_records: int
    seconds: float
    cluster: SimulatedCluster
    """The settled cluster, which can run on."""

    @property
    def probing_rounds(self) -> int:
        return self.rounds.get("probing", 0)

    @property
    def looking_rounds(self) -> int:
        """Number of rounds that checked copies: because one was ready, or in the probing interval."""
        return sum(self.rounds.get(cause, 0) for cause in LOOKING)


def change_cost(
    *,
    tasks: int,
    members: int,
    joiners: int = 1,
    leavers: int = 0,
    assignor: str = "high_availability",
    ids: Sequence[str] | None = None,
    settings: GroupSettings | None = None,
    records: int = 100_000,
    records_per_s: int = 100,
    seed: int = 1,
) -> ChangeCost:
    """Runs `members` members with `tasks` stateful tasks of `records` records each, which grow by
    `records_per_s`; then `joiners` cold members join, and at the same moment the last `leavers` of
    the first ones close without announcement. Returns what the change cost.

    `ids`: of the members, then of the joiners; None: m0, m1, ... Raises InvariantBroken(7) when the
    group is not settled within a day of simulated time.
    """
    leader = registry.latest(assignor)
    given = GroupSettings() if settings is None else settings
    width = len(str(members + joiners))
    names = [f"m{index:0{width}}" for index in range(members + joiners)] if ids is None else list(ids)
    rounds: list[tuple[int, str, tuple[Move, ...]]] = []

    def watch(record: FactRecord, decisions: list[DecisionRecord], machine: GroupMachine) -> None:
        issued = [each.decision for each in decisions if isinstance(each.decision, AssignmentIssued)]
        rounds.extend((record.append_ms, each.cause, each.moves) for each in issued)

    cluster = SimulatedCluster(
        ClusterConfig(
            configured=GroupConfigured(assignor=leader.name, behaviour_version=leader.version, solver=leader.solver, knobs=given),
            topology=TopologyDeclared(
                epoch=0, subtopologies=(Subtopology(subtopology=0, partitions=tasks, stateful=True, changelog_topics=(CHANGELOG,)),)
            ),
            growth={(CHANGELOG, partition): steady(records=records, records_per_s=records_per_s) for partition in range(tasks)},
        ),
        seed=seed,
        watcher=watch,
    )
    restore = RestoreModel(records_per_s=max(1_000, records))
    cluster.start_worker()
    for name in names[:members]:
        cluster.start_process(ProcessSettings(member_id=name, restore=restore))
    _rest(cluster)
    begun_ms = cluster.now_ms
    before = cluster.world.owners(begun_ms)
    rounds.clear()
    restored = len(cluster.world.restores)
    for process in cluster.live_processes():
        if process.member_id in names[members - leavers : members]:
            process.close()
    for name in names[members : members + joiners]:
        cluster.start_process(ProcessSettings(member_id=name, restore=restore))
    cluster.run_for(2 * LOOK_EVERY_MS)
    _rest(cluster)

    moves = [move for move in active_moves(cluster.world.history(cluster.now_ms)) if move.at_ms >= begun_ms]
    moved = [move.task for move in moves]
    settled_ms = max((move.at_ms for move in moves), default=begun_ms)
    after = cluster.world.owners(cluster.now_ms)
    causes = [cause for _, cause, _ in rounds]
    return ChangeCost(
        changed=sum(before[task] != owner for task, owner in after.items()),
        fewest=fewest_moves(before, {process.member_id: process.settings.capacity for process in cluster.live_processes()}),
        moves=len(moved),
        moved_more_than_once=len({task for task in moved if moved.count(task) > 1}),
        rounds={cause: causes.count(cause) for cause in sorted(set(causes))},
        rounds_of_owners=sum(cause in LOOKING and at_ms <= settled_ms for at_ms, cause, _ in rounds),
        interrupted=tuple(
            sorted(
                move.task
                for _, _, moves in rounds
                for move in moves
                if move.state == "revoking" and (move.lag_records is None or move.lag_records > given.acceptable_recovery_lag)
            )
        ),
        longest_silence_ms=_longest_silence_ms(cluster, begun_ms),
        restored_records=sum(each.records for each in cluster.world.restores[restored:]),
        seconds=(rounds[-1][0] - begun_ms) / 1_000 if rounds else 0.0,
        cluster=cluster,
    )


def _rest(cluster: SimulatedCluster) -> None:
    """Runs until every task has its target owner and nothing is under way."""
    until_ms = cluster.now_ms + MOST_WAITING_MS
    while cluster.now_ms < until_ms:
        cluster.run_for(LOOK_EVERY_MS)
        state = cluster.machine.state
        owners = cluster.world.owners(cluster.now_ms)
        if len(owners) == len(cluster.world.tasks) and state.owner == owners and state.verdict is not None and state.verdict[0] == "balanced":
            return
    raise InvariantBroken(7, f"not at rest after {MOST_WAITING_MS / 1_000:.0f} s: {cluster.machine.state.verdict}")


def _longest_silence_ms(cluster: SimulatedCluster, since_ms: int) -> int:
    longest_ms = 0
    ended: dict[TaskId, int] = {}
    for each in cluster.world.history(cluster.now_ms):
        if each.task in ended and each.start_ms >= since_ms:
            longest_ms = max(longest_ms, each.start_ms - ended[each.task])
        ended[each.task] = each.end_ms
    return longest_ms
