"""One change of a simulated group: made when the group is at rest, and followed until it is at rest
again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import attrs

from equipoise.events.facts import MOST_QUIET_MS, ChangePlanned
from equipoise.events.tasks import TaskId
from equipoise.replay.prediction.draw import Draw
from equipoise.replay.prediction.placed_as_now import FirstDeal
from equipoise.replay.prediction.planned_change import JUDGED_AS, Configure, Join, Kill, Leave, PlannedChange, RestartAll, new_name
from equipoise.replay.prediction.present import MemberNow
from equipoise.replay.simulation import ProcessSettings, RestoreModel, SimulatedCluster
from equipoise.replay.simulation.measures import Costs, Notes, ProcessLifetime
from equipoise.replay.simulation.member_process import ReplayedProcess
from equipoise.statemachine.watched_change import ChangeObserver

BEGINS_WITHIN_MS = 30_000
"""A change begins at some time within so long after its prediction."""
STEP_MS = 500
QUIET_MS = 15_000
"""A group is at rest after a change when nothing was under way for this long."""
SETTLED_MS = 5_000
"""As QUIET_MS, before a change: its members have all reported once."""
TURN_MS = 1_000
"""As QUIET_MS, between two members that restart in turn."""
LONGEST_SETTLE_MS = 600_000
EARLY_MS = 500
"""A process opens its stores, and restores what is in them, from about so long before it joins."""
LOOK_MS = 100
"""Looks whether a member has left, or the next one restarts, are so far apart."""
FOLD_MS = 20
"""Looks whether a fact was folded are so far apart."""
MOST_WAIT_MS = 3_000
"""So long a member waits for decisions, unless its session is short: they end the wait, so it costs
time alone to wait more often.
"""
LONGEST_MS = 4 * 3_600_000
"""A change that is not over by then has no time to rest."""


@attrs.frozen(kw_only=True)
class RunCost:
    """The cost of a change in one run. `rest_s`: LONGEST_MS when it was not over by then. `before`,
    `owners`: task -> who runs it before the change, and at its end. `judged`: what its leader would
    judge it by, by `equipoise.events.facts.JUDGED_METRICS`; empty: it cannot be planned.
    """

    unavailable_task_seconds: float
    moves: int
    records_restored: int
    rest_s: float
    before: Mapping[TaskId, str]
    owners: Mapping[TaskId, str]
    judged: Mapping[str, int] = attrs.field(factory=dict)


class ChangeRun:
    """A simulated group that is changed. `notes` watches the cluster. `draw`: what its processes
    are started with. `deal`: ends when the group is at rest; None: it has had no such deal.
    `reports_loads`: whether members report what their tasks cost.
    """

    def __init__(
        self,
        cluster: SimulatedCluster,
        notes: Notes,
        members: Sequence[MemberNow],
        draw: Draw,
        deal: FirstDeal | None = None,
        *,
        reports_loads: bool = True,
    ) -> None:
        self.cluster = cluster
        self._deal, self._reports_loads = deal, reports_loads
        self._notes, self._members, self._draw = notes, members, draw
        self._joined = 0

    def costs(self, changes: Iterable[PlannedChange]) -> list[RunCost]:
        """Makes the changes one after the other, and returns what each costs."""
        self.until_at_rest(LONGEST_SETTLE_MS, SETTLED_MS)
        if self._deal is not None:
            self._deal.is_over = True
        return [self._cost(change) for change in changes]

    def _cost(self, change: PlannedChange) -> RunCost:
        cluster = self.cluster
        cluster.run_for(round(self._draw.phase * BEGINS_WITHIN_MS))
        before = cluster.world.owners(cluster.now_ms)
        observer = self._planned(change)
        began_ms = cluster.now_ms
        rest_ms = self._apply(change)
        ended_ms = cluster.now_ms + 1
        ends = {name: at_ms for at_ms, name, _ in cluster.exits}
        costs = Costs(
            tasks=cluster.world.tasks,
            history=cluster.world.history(ended_ms),
            restores=cluster.world.restores,
            notes=self._notes,
            lives=tuple(
                ProcessLifetime(member_id=each.member_id, capacity=each.settings.capacity, start_ms=each.started_ms, end_ms=ends.get(each.name))
                for each in cluster.processes
            ),
            end_ms=ended_ms,
        ).window("change", began_ms, ended_ms)
        return RunCost(
            unavailable_task_seconds=costs.totals["unavailable_task_seconds"],
            moves=costs.totals["active_moves"],
            records_restored=costs.totals["records_restored"],
            rest_s=round((rest_ms - began_ms) / 1_000, 1),
            before=before,
            owners=cluster.world.owners(cluster.now_ms),
            judged=(observer and observer.costs(cluster.machine.state)) or {},
        )

    def _planned(self, change: PlannedChange) -> ChangeObserver | None:
        """Has the leader watch the change, and returns who counts; None: it cannot be planned."""
        kind = JUDGED_AS.get(type(change))
        if kind is None:
            return None
        cluster = self.cluster
        planned = ChangePlanned(change_id="predicted", kind=kind, what=change.text(), quiet_ms=MOST_QUIET_MS, judge_within_ms=2 * LONGEST_MS)
        record = cluster.append(planned)
        while cluster.machine.state.last_offset < record.offset:
            cluster.run_for(FOLD_MS)
        cluster.run_for(self._draw.hand_ms)
        return cluster.workers[-1].observer

    def _apply(self, change: PlannedChange) -> int:
        """Makes the change and runs until the group is at rest. Returns when that began."""
        cluster = self.cluster
        if isinstance(change, Join):
            for _ in range(change.members):
                self._joined += 1
                self.start(_usual(self._members, new_name(self._joined)), start_ms=self._draw.start_ms)
        elif isinstance(change, Leave):
            for name in change.members:
                cluster.last_process(name).leave()
        elif isinstance(change, Kill):
            for name in change.members:
                cluster.last_process(name).kill()
        elif isinstance(change, Configure):
            cluster.append(change.config)
        else:
            return self._restart(change)
        return self.until_at_rest(LONGEST_MS)

    def _restart(self, change: RestartAll) -> int:
        for member in self._members:
            process = self.cluster.last_process(member.member_id)
            process.leave_to_restart()
            until_ms = self.cluster.now_ms + LONGEST_MS
            while process.alive and self.cluster.now_ms < until_ms:
                self.cluster.run_for(LOOK_MS)
            away_ms = self._draw.away_of(member.member_id) if change.away_ms is None else change.away_ms + self._draw.start_ms
            process = self.start(member, start_ms=away_ms, proven_dead=process.incarnation)
            if member is not self._members[-1]:
                self._until_next(process, self._draw.turn_of(member.member_id))
        return self.until_at_rest(LONGEST_MS)

    def _until_next(self, restarted: ReplayedProcess, turn_ms: int | None) -> None:
        """Runs until the next member restarts: when everything runs, `turn_ms` after the join at
        least; None: when the group is at rest.
        """
        if turn_ms is None:
            self.until_at_rest(LONGEST_MS, TURN_MS)
            return
        cluster = self.cluster
        until_ms, joined_ms = cluster.now_ms + LONGEST_MS, None
        while cluster.now_ms < until_ms:
            member = cluster.machine.state.members.get(restarted.member_id)
            if joined_ms is None and member is not None and member.incarnation == restarted.incarnation:
                joined_ms = cluster.now_ms
            if joined_ms is not None and cluster.now_ms >= joined_ms + turn_ms and cluster.world.all_run(cluster.now_ms):
                return
            cluster.run_for(LOOK_MS)

    def start(self, member: MemberNow, *, start_ms: int, proven_dead: int | None = None) -> ReplayedProcess:
        """Starts a process of the member, on its disk."""
        draw = self._draw
        settings = ProcessSettings(
            member_id=member.member_id,
            capacity=member.capacity,
            rack=member.rack,
            tags=dict(member.tags),
            eager=member.eager,
            session_timeout_ms=member.session_timeout_ms,
            lease_margin_ms=member.lease_margin_ms,
            ready_lag_records=member.ready_lag_records,
            heartbeat_interval_ms=max(1, min(draw.heartbeat_interval_ms, member.session_timeout_ms // 3)),
            fetch_wait_ms=max(1, min(MOST_WAIT_MS, member.session_timeout_ms // 4)),
            topology_epoch=self.cluster.config.topology.epoch,
            restore=RestoreModel(records_per_s=draw.speed_of(member.member_id), latency_ms=draw.latency_ms, sequential=draw.in_turn),
            start_ms=start_ms,
            early_ms=min(EARLY_MS, start_ms),
            close_ms=draw.close_ms,
            reports_load=self._reports_loads,
            knows_speed=member.knows_speed,
        )
        return self.cluster.start_process(settings, proven_dead=proven_dead)

    def until_at_rest(self, longest_ms: int, quiet_ms: int = QUIET_MS) -> int:
        """Runs until nothing has been under way for `quiet_ms`, or for `longest_ms`. Returns when
        the rest began; the time of now when it did not.
        """
        cluster = self.cluster
        until_ms = cluster.now_ms + longest_ms
        rest_ms: int | None = None
        rounds = -1
        while cluster.now_ms < until_ms:
            if self._is_at_rest() and rounds == len(self._notes.rounds):
                rest_ms = cluster.now_ms if rest_ms is None else rest_ms
                if cluster.now_ms - rest_ms >= quiet_ms:
                    return rest_ms
            else:
                rest_ms = None
            rounds = len(self._notes.rounds)
            cluster.run_for(STEP_MS)
        return cluster.now_ms

    def _is_at_rest(self) -> bool:
        cluster = self.cluster
        if not any(worker.machine is not None for worker in cluster.workers):
            return False
        state = cluster.machine.state
        here = {each.member_id for each in cluster.live_processes()}
        return (
            not state.in_flight
            and not state.waiting
            and here == state.members.keys()
            and not any(member.revoking or member.warmup or member.leaving for member in state.members.values())
            and all(member.is_caught_up(task, state.acceptable_lag(member)) for member in state.members.values() for task in member.standby)
            and cluster.world.all_run(cluster.now_ms)
        )


def _usual(members: Iterable[MemberNow], name: str) -> MemberNow:
    """Returns a member of the usual kind, with nothing on its disk."""
    ordered = sorted(members, key=lambda each: (each.capacity, each.member_id))
    return attrs.evolve(ordered[len(ordered) // 2], member_id=name, copies={}, tags=dict(ordered[len(ordered) // 2].tags))
