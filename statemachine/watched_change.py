"""Planned changes: what one has cost, counted fact by fact, and the verdict on it
(docs/protocol.md#d14).

`ChangeObserver` counts beside the machine, so that no count and no constant of a judgement decides
anything: its verdict comes as a fact. Only what former builds planned is judged in the fold, by
their constants. Times are group time; a task counts as run when a report shows it, or when its copy
was near enough to start at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import attrs

from equipoise.events.decisions import ChangeJudged, Decision, EventRejected, MemberExpired
from equipoise.events.facts import (
    JUDGED_METRICS,
    MEASURED_KINDS,
    ChangeMeasured,
    ChangePlanned,
    DealRequested,
    Fact,
    GroupConfigured,
    LagReported,
    LeaveIntended,
    LeaveRequested,
    MemberJoined,
    MemberLeft,
    MemberUnchanged,
    ProbingTick,
    RestartIntended,
    TaskReady,
)
from equipoise.events.records import DecisionRecord, FactRecord
from equipoise.events.tasks import LagSentinel, TaskId
from equipoise.statemachine import actions
from equipoise.statemachine.state import ChangeCounts, GroupState, MemberState, WatchedChange
from equipoise.statemachine.step_context import StepContext

BEGINS_WITH: dict[str, tuple[type, ...]] = {
    "configure": (GroupConfigured,),
    "deal": (DealRequested,),
    "scale_down": (LeaveRequested, LeaveIntended),
    "join": (MemberJoined,),
    "restart": (RestartIntended, MemberLeft),
    "other": (),
    **dict.fromkeys(MEASURED_KINDS, ()),
}
"""Kind of a change -> the facts of which the first one begins it; none: it begins when it is
planned.
"""
ENDS_MEMBERS = ("scale_down", "restart")
"""Kinds that begin, too, when a member is removed: it was killed in place of leaving. They then
begin when it was heard last.
"""
UNDO_AGAIN_MS = 60_000
"""Group time between two undos that the group refuses: it may have other members then."""
_QUIET = (ProbingTick, MemberUnchanged, TaskReady)


@attrs.frozen(kw_only=True)
class Yardstick:
    """The constants of a judgement. `allowance`: by how much more than the interval of 95 % is too
    much. `near_records`: lag up to which a granted task starts at once, if the group accepts as
    much and its member restores it within a second. `rest_look_ms`: to look for rest takes time in
    the number of copies, so steps that decide nothing do it once in this time.
    """

    allowance: Mapping[str, int]
    near_records: int
    rest_look_ms: int


OF_FORMER_BUILDS = Yardstick(allowance={"unavailable_task_ms": 1_000, "moves": 0, "rest_ms": 10_000}, near_records=10_000, rest_look_ms=1_000)
"""Never changed: decisions in logs follow from it."""
OF_THIS_BUILD = OF_FORMER_BUILDS
"""The intervals are of simulated groups. It may change with each build."""


class WatchedStep(NamedTuple):
    """A fact that was folded. `is_untouched`: nothing followed from it."""

    state: GroupState
    change: WatchedChange
    event: Fact
    decisions: Sequence[Decision]
    is_untouched: bool

    def is_rejected(self) -> bool:
        return any(isinstance(each, EventRejected) for each in self.decisions)


_SAID = Exception("said")


class ChangeObserver:
    """Counts what the planned change of a group costs, and judges it. It sees each fact after it
    was folded. One that begins in the midst of a change counts from there.
    """

    def __init__(self, by: Yardstick = OF_THIS_BUILD) -> None:
        self._by = by
        self._offset: int | None = None
        """Of the change's plan; None: nothing is watched."""
        self._since: int | None = None
        """The first fact that it has counted."""
        self.counts = ChangeCounts()
        self.verdict: ChangeMeasured | None = None
        """To be appended to the log; None: it is not time."""
        self._refused_ms: int | None = None
        """When the undo was rejected last; None: it was not."""
        self._failed: tuple[int, Exception] | None = None
        """The plan of the change that a defect keeps from being counted, and the defect."""

    def see(self, state: GroupState, record: FactRecord, decided: Iterable[DecisionRecord]) -> None:
        """Takes note of a step. Costs time in the number of tasks where it decided something, else
        in those of the member that reported. Raises nothing: a defect of a judgement keeps no group
        from being led, and the change is over without costs, as one that nobody waits for.
        """
        if self._failed is not None and state.change is not None and state.change.offset == self._failed[0]:
            return
        try:
            self._see(state, record, decided)
        except Exception as error:  # noqa: BLE001  # whatever it was
            self._offset = self._since = self.verdict = None
            if state.change is not None:
                self._failed = state.change.offset, error
                self.verdict = verdict_on(state.change.planned, "late", is_whole=False)

    def take_failure(self) -> Exception | None:
        """Returns the defect that has ended the counting, once; None: there is none."""
        if self._failed is None or self._failed[1] is _SAID:
            return None
        offset, error = self._failed
        self._failed = offset, _SAID
        return error

    def _see(self, state: GroupState, record: FactRecord, decided: Iterable[DecisionRecord]) -> None:
        change = state.change
        if change is None or not change.undoes:
            self._refused_ms = None
        elif isinstance(record.event, GroupConfigured) and record.event.change_id == change.planned.change_id:
            self._refused_ms = state.now_ms  # else the change would be over
        if change is None or change.undoes or change.counts is not None:
            self._offset = self.verdict = None
            return
        if change.offset != self._offset:
            self._offset, self._since, self.verdict = change.offset, record.offset, None
            self.counts = begun(state, change.planned, self._by)
            if change.configured:
                self.counts = _begun_at(self.counts, state.now_ms)
        decisions = [each.decision for each in decided]
        step = WatchedStep(state, change, record.event, decisions, not decisions)
        self.counts, verdict = _judged(step, _followed(step, self.counts, self._by), self._by)
        if self.verdict is None and verdict is not None:
            self.verdict = verdict if self._since == self._offset else attrs.evolve(verdict, below=())

    def undoes(self, state: GroupState) -> bool:
        """Returns whether the settings of before are to be appended now. A group that refuses them
        (docs/protocol.md#d8) is given them again only after a while.
        """
        if state.change is None or not state.change.undoes:
            return False
        return self._refused_ms is None or state.now_ms - self._refused_ms >= UNDO_AGAIN_MS

    def costs(self, state: GroupState) -> dict[str, int] | None:
        """Returns what the change under way has cost until now, by JUDGED_METRICS; None: nobody
        counts.
        """
        change = state.change
        if change is None or change.undoes:
            return None
        counts = change.counts or (self.counts if self._offset == change.offset else None)
        return None if counts is None else counts.costs(state.now_ms)

    def counts_since(self, state: GroupState) -> int | None:
        """Returns the offset of the plan of the change under way, if it was counted from there on,
        so that a leader that begins later would not know what it has cost; None: it was not.
        """
        return self._since if state.change is not None and state.change.offset == self._offset == self._since else None


def conclude(context: StepContext, change: WatchedChange, verdict: ChangeMeasured) -> None:
    """The change is over, or undone next."""
    judged = judgement(change.planned, verdict)
    context.emitted.append(judged)
    actions.watch_change(context.state, attrs.evolve(change, undoes=True) if judged.undone else None)


def judgement(planned: ChangePlanned, verdict: ChangeMeasured) -> ChangeJudged:
    """Returns the verdict as the group has it: whether it undoes the change follows from the plan."""
    return ChangeJudged(**attrs.asdict(verdict), undone=planned.or_undo and verdict.outcome == "too_much")


def judge_in_fold(context: StepContext, change: WatchedChange, event: Fact) -> None:
    """Judges a plan of former builds by the step that was taken, as they did."""
    if change.counts is None or change.undoes or context.state.last_offset == change.offset:
        return
    step = WatchedStep(context.state, change, event, context.emitted, context.is_untouched())
    counts, verdict = _judged(step, _followed(step, change.counts, OF_FORMER_BUILDS), OF_FORMER_BUILDS)
    change = attrs.evolve(change, counts=counts)
    if verdict is None:
        actions.watch_change(context.state, change)
    else:
        conclude(context, change, verdict)


def begun(state: GroupState, planned: ChangePlanned, by: Yardstick) -> ChangeCounts:
    """Returns what nothing has been counted in yet, with who runs what. Costs time in the number of
    tasks.
    """
    begun_ms = None if BEGINS_WITH[planned.kind] else state.now_ms
    counts = ChangeCounts(begun_ms=begun_ms, heard_ms={name: member.last_heard_ms for name, member in state.members.items()})
    return counts if planned.kind in MEASURED_KINDS else _looked(state, state.now_ms, counts, state.tasks(), by)


def carries_out(config: GroupConfigured, planned: ChangePlanned) -> bool:
    """Returns whether the plan is of this configuration."""
    return planned.kind == "configure" and (planned.made_from is None or config.change_id == planned.change_id)


def verdict_on(planned: ChangePlanned, outcome: str, costs: Mapping[str, int] | None = None, *, is_whole: bool | None = None) -> ChangeMeasured:
    """Returns the verdict. `costs` None: not known. `is_whole`: whether less than expected can be
    told; None: by the outcome.
    """
    is_whole = outcome in ("at_rest", "late") if is_whole is None else is_whole
    costs = costs or dict.fromkeys(JUDGED_METRICS, 0)
    above = [each.metric for each in planned.expected if costs[each.metric] > each.high_95]
    below = [each.metric for each in planned.expected if is_whole and costs[each.metric] < each.low_95]
    limit = ["limit"] if _is_over_the_limit(planned, costs) else []
    return ChangeMeasured(change_id=planned.change_id, outcome=outcome, **costs, above=(*above, *limit), below=tuple(below))


def measured(planned: ChangePlanned, costs: Mapping[str, int], *, is_over: bool, by: Yardstick = OF_THIS_BUILD) -> ChangeMeasured:
    """Returns the verdict on a change by what who made it has measured. `is_over` False: it was not
    waited for any longer.
    """
    return verdict_on(planned, "too_much" if _exceeds(planned, costs, by) else "at_rest" if is_over else "late", costs)


def _exceeds(planned: ChangePlanned, costs: Mapping[str, int], by: Yardstick) -> bool:
    return _is_over_the_limit(planned, costs) or any(costs[each.metric] > each.high_95 + by.allowance[each.metric] for each in planned.expected)


def _is_over_the_limit(planned: ChangePlanned, costs: Mapping[str, int]) -> bool:
    most_ms = planned.most_unavailable_task_ms
    return most_ms is not None and costs["unavailable_task_ms"] > most_ms


def _followed(step: WatchedStep, counts: ChangeCounts, by: Yardstick) -> ChangeCounts:
    """Returns the counts after a step."""
    state, change, event, now_ms = step.state, step.change, step.event, step.state.now_ms
    if change.planned.kind in MEASURED_KINDS:
        return counts
    expired = tuple(each.member_id for each in step.decisions if isinstance(each, MemberExpired))
    if counts.begun_ms is None and expired and change.planned.kind in ENDS_MEMBERS:
        counts = _begun_at(counts, max(change.planned_ms, min(counts.heard_ms.get(each, now_ms) for each in expired)))
    elif counts.begun_ms is None and _begins(change.planned, state, event):
        counts = _begun_at(counts, now_ms)
    member_id = getattr(event, "member_id", None)
    if step.is_untouched and isinstance(event, LagReported):
        member = state.members.get(event.member_id)
        counts = _looked(state, change.planned_ms, counts, () if member is None else member.active, by)
    elif not step.is_untouched or not isinstance(event, _QUIET):
        tasks = state.tasks()
        standing = {task: since_ms for task, since_ms in counts.standing.items() if task in tasks}  # the topology may have lost others
        counts = _looked(state, change.planned_ms, attrs.evolve(counts, standing=standing), tasks, by, expired)
    return counts if member_id is None else attrs.evolve(counts, heard_ms={**counts.heard_ms, member_id: now_ms})


def _begins(planned: ChangePlanned, state: GroupState, event: Fact) -> bool:
    if isinstance(event, GroupConfigured):
        return carries_out(event, planned)
    return isinstance(event, BEGINS_WITH[planned.kind]) or (planned.kind == "scale_down" and any(member.leaving for member in state.members.values()))


def _begun_at(counts: ChangeCounts, now_ms: int) -> ChangeCounts:
    """It begins: nothing of before counts."""
    return attrs.evolve(counts, begun_ms=now_ms, unavailable_task_ms=0, moves=0, standing=dict.fromkeys(counts.standing, now_ms))


def _judged(step: WatchedStep, counts: ChangeCounts, by: Yardstick) -> tuple[ChangeCounts, ChangeMeasured | None]:
    """Returns the counts, after a look for rest, and the verdict, if it is time."""
    state, change, event, planned, now_ms = step.state, step.change, step.event, step.change.planned, step.state.now_ms
    is_measured = planned.kind in MEASURED_KINDS
    costs = None if is_measured else counts.costs(now_ms)
    if isinstance(event, GroupConfigured) and step.is_rejected():
        if not is_measured:
            is_refused = carries_out(event, planned) and change.configured == 0
            return counts, verdict_on(planned, "refused") if is_refused else None
    elif isinstance(event, GroupConfigured) and change.configured > carries_out(event, planned):
        return counts, verdict_on(planned, "replaced", costs)
    is_late = now_ms - change.planned_ms >= planned.judge_within_ms
    if costs is None or counts.begun_ms is None:
        return counts, verdict_on(planned, "late", is_whole=not is_measured) if is_late else None
    if not step.is_untouched or now_ms >= counts.looked_ms + by.rest_look_ms:
        since_ms = now_ms if counts.rest_since_ms is None else counts.rest_since_ms
        counts = attrs.evolve(counts, looked_ms=now_ms, rest_since_ms=since_ms if _is_at_rest(state, counts) else None)
        costs = counts.costs(now_ms)
    outcome = "late" if is_late else ""
    if _exceeds(planned, costs, by):
        outcome = "too_much"
    elif counts.rest_since_ms is not None and _rested(state, counts.rest_since_ms + planned.quiet_ms):
        outcome = "at_rest"
    return counts, verdict_on(planned, outcome, costs) if outcome else None


def _rested(state: GroupState, until_ms: int) -> bool:
    """Returns whether it is over by then: every member was heard later, so none died before."""
    return all(member.last_heard_ms >= until_ms for member in state.members.values())


def _is_at_rest(state: GroupState, counts: ChangeCounts) -> bool:
    """Returns whether nothing is under way: everything runs, and copies are near enough."""
    if counts.standing or state.in_flight or state.waiting or state.restarts or state.lent or not state.members:
        return False
    members = state.members.values()
    if any(member.revoking or member.warmup or member.leaving for member in members):
        return False
    for member in members:
        limit = state.acceptable_lag(member) if member.standby else 0
        if not all(member.is_caught_up(task, limit) for task in member.standby):
            return False
    return True


def _looked(
    state: GroupState, planned_ms: int, counts: ChangeCounts, tasks: Iterable[TaskId], by: Yardstick, expired: Sequence[str] = ()
) -> ChangeCounts:
    """Returns the counts with who runs these tasks now. `expired`: members that were removed in
    this step: nobody ran their tasks since they were heard last.
    """
    now_ms = state.now_ms
    standing, runners = dict(counts.standing), dict(counts.runners)
    unavailable_ms, moves = counts.unavailable_task_ms, counts.moves
    for task in tasks:
        before = runners.get(task)
        if before is not None and before[0] in expired and task not in standing:
            standing[task] = max(counts.heard_ms.get(before[0], now_ms), counts.begun_ms or 0)
        runner = None if _is_parked(state, planned_ms, task) else _runner(state, task, None if task in standing else before, by)
        if runner is None:
            standing.setdefault(task, now_ms)
        else:
            unavailable_ms += now_ms - standing.pop(task, now_ms)
            moves += before is not None and before[0] != runner[0]
            runners[task] = runner
    return attrs.evolve(counts, standing=standing, runners=runners, unavailable_task_ms=unavailable_ms, moves=moves)


def _is_parked(state: GroupState, planned_ms: int, task: TaskId) -> bool:
    """Returns whether its owner handles nothing more in the task, since the change was planned."""
    parked = state.parked.get(task)
    return parked is not None and parked.member_id == state.owner.get(task) and parked.since_ms > planned_ms


def _runner(state: GroupState, task: TaskId, before: tuple[str, int] | None, by: Yardstick) -> tuple[str, int] | None:
    """Returns member and incarnation that run the task; None: nobody does. `before`: who ran it
    without a break.
    """
    owner = state.owner.get(task)
    member = None if owner is None else state.members.get(owner)
    if owner is None or member is None or state.is_away(owner):
        return None
    now = owner, member.incarnation
    if now == before:
        return now
    return now if task not in state.holds and _has_started(state, member, task, by) else None


def _has_started(state: GroupState, member: MemberState, task: TaskId, by: Yardstick) -> bool:
    if not state.is_stateful(task) or not state.records(task):
        return True
    lag = member.lags.get(task)
    runs = lag is LagSentinel.ACTIVE or (task in member.held and lag == 0)
    speed = member.measured_records_per_s or member.restore_records_per_s or by.near_records
    return runs or member.is_caught_up(task, min(by.near_records, speed, state.acceptable_lag(member)))


assert set(OF_THIS_BUILD.allowance) == set(JUDGED_METRICS), "each metric has its allowance"
