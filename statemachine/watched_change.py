"""A planned change, watched by the leader until it is judged (docs/protocol.md#d14).

All of it is in the group's state, so a leader that takes over goes on, and `verify` finds the same
verdict. Its times are group time; a task counts as run when a report shows it, or when its copy was
near enough to start at once.
"""

from __future__ import annotations

from collections.abc import Iterable

from equipoise.events.decisions import ChangeJudged, EventRejected, MemberExpired
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
from equipoise.events.records import FactRecord
from equipoise.events.tasks import LagSentinel, TaskId
from equipoise.statemachine import actions
from equipoise.statemachine.state import GroupState, MemberState, WatchedChange
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
ALLOWANCE = {"unavailable_task_ms": 1_000, "moves": 0, "rest_ms": 10_000}
"""By how much more than the interval of 95 % is too much: the intervals are of simulated groups."""
NEAR_RECORDS = 10_000
"""Lag in records up to which a granted task starts at once, if the group accepts as much, and its
member restores it within a second.
"""
REST_LOOK_MS = 1_000
"""To look for rest takes time in the number of copies, so steps that decide nothing do it once in
this time (ms of group time).
"""
_QUIET = (ProbingTick, MemberUnchanged, TaskReady)


def begin(state: GroupState, planned: ChangePlanned, offset: int) -> WatchedChange:
    """Returns the change, not begun unless its kind begins at once, with who runs what."""
    begun_ms = None if BEGINS_WITH[planned.kind] else state.now_ms
    assert state.config is not None, "a change is planned of a configured group"
    change = WatchedChange(planned=planned, former=state.config, offset=offset, planned_ms=state.now_ms, begun_ms=begun_ms)
    for member_id, member in sorted(state.members.items()):
        change.hear(member_id, member.last_heard_ms)
    if planned.kind not in MEASURED_KINDS:
        _look(state, change, state.tasks(), ())
    return change


def replaced(change: WatchedChange, now_ms: int) -> ChangeJudged:
    """Returns the verdict on a change that another one replaces."""
    return _verdict(change, "replaced", change.costs(now_ms))


def measured(change: WatchedChange, fact: ChangeMeasured) -> ChangeJudged:
    """Returns the verdict on a change by what who made it has measured."""
    costs = {metric: getattr(fact, metric) for metric in JUDGED_METRICS}
    outcome = "at_rest" if fact.is_over else "late"
    exceeds = _exceeds(change, costs)
    return _verdict(change, "too_much" if exceeds else outcome, costs)


def watch(context: StepContext, record: FactRecord) -> None:
    """Takes note of the step, and emits the verdict when it is time. Costs time in the number of
    tasks where the step decided something, else in those of the member that reported.
    """
    state, change, event = context.state, context.state.change, record.event
    if change is None or change.undoes or record.offset == change.offset:
        return
    now_ms = state.now_ms
    if change.planned.kind in MEASURED_KINDS:
        _watch_measured(context, change, event)
        return
    expired = tuple(each.member_id for each in context.emitted if isinstance(each, MemberExpired))
    if change.begun_ms is None and expired and change.planned.kind in ENDS_MEMBERS:
        change.restart_at(max(change.planned_ms, min(change.heard_ms.get(each, now_ms) for each in expired)))
    elif change.begun_ms is None and _begins(change.planned, state, event):
        change.restart_at(now_ms)
    member_id = getattr(event, "member_id", None)
    if context.is_untouched() and isinstance(event, LagReported):
        member = state.members.get(event.member_id)
        _look(state, change, () if member is None else tuple(member.active), ())
    elif not context.is_untouched() or not isinstance(event, _QUIET):
        tasks = state.tasks()
        change.keep(tasks)
        _look(state, change, tasks, expired)
    if member_id is not None:
        change.hear(member_id, now_ms)
    verdict = _judged(state, change, context, event)
    if verdict is not None:
        context.emitted.append(verdict)
        if verdict.undone:
            change.undo()
        else:
            actions.watch_change(state, None)


def _watch_measured(context: StepContext, change: WatchedChange, event: Fact) -> None:
    """Its cost comes as a fact. Without one it ends with other settings, or late, at no known cost."""
    is_refused = any(isinstance(each, EventRejected) for each in context.emitted)
    is_late = context.state.now_ms - change.planned_ms >= change.planned.judge_within_ms
    outcome = "replaced" if isinstance(event, GroupConfigured) and not is_refused else "late" if is_late else ""
    if outcome:
        context.emitted.append(_verdict(change, outcome, dict.fromkeys(JUDGED_METRICS, 0), is_whole=False))
        actions.watch_change(context.state, None)


def _begins(planned: ChangePlanned, state: GroupState, event: Fact) -> bool:
    kind = planned.kind
    if isinstance(event, GroupConfigured):
        return _carries_out(event, planned)
    return isinstance(event, BEGINS_WITH[kind]) or (kind == "scale_down" and any(member.leaving for member in state.members.values()))


def _carries_out(event: GroupConfigured, planned: ChangePlanned) -> bool:
    return planned.kind == "configure" and (planned.made_from is None or event.change_id == planned.change_id)


def _judged(state: GroupState, change: WatchedChange, context: StepContext, event: Fact) -> ChangeJudged | None:
    """Returns the verdict, if it is time."""
    planned, now_ms = change.planned, state.now_ms
    if isinstance(event, GroupConfigured):
        if any(isinstance(each, EventRejected) for each in context.emitted):
            return _verdict(change, "refused", change.costs(now_ms)) if _carries_out(event, planned) and change.configured == 0 else None
        if change.configure() > _carries_out(event, planned):
            return _verdict(change, "replaced", change.costs(now_ms))
    costs = change.costs(now_ms)
    if change.begun_ms is None:
        return _verdict(change, "late", costs) if now_ms - change.planned_ms >= planned.judge_within_ms else None
    if not context.is_untouched() or now_ms >= change.looked_ms + REST_LOOK_MS:
        change.rest(_is_at_rest(state, change), now_ms)
        costs = change.costs(now_ms)
    if _exceeds(change, costs):
        return _verdict(change, "too_much", costs)
    if change.rest_since_ms is not None and _rested(state, change.rest_since_ms + planned.quiet_ms):
        return _verdict(change, "at_rest", costs)
    return _verdict(change, "late", costs) if now_ms - change.planned_ms >= planned.judge_within_ms else None


def _rested(state: GroupState, until_ms: int) -> bool:
    """Returns whether it is over by then: every member was heard later, so none died before."""
    return all(member.last_heard_ms >= until_ms for member in state.members.values())


def _verdict(change: WatchedChange, outcome: str, costs: dict[str, int], *, is_whole: bool | None = None) -> ChangeJudged:
    """`is_whole`: whether less than expected can be told; None: by the outcome."""
    planned = change.planned
    above = [each.metric for each in planned.expected if costs[each.metric] > each.high_95]
    if _is_over_the_limit(change, costs):
        above.append("limit")
    if is_whole is None:
        is_whole = outcome in ("at_rest", "late")
    return ChangeJudged(
        change_id=planned.change_id,
        outcome=outcome,
        **costs,
        above=tuple(above),
        below=tuple(each.metric for each in planned.expected if is_whole and costs[each.metric] < each.low_95),
        undone=planned.or_undo and outcome == "too_much",
    )


def _exceeds(change: WatchedChange, costs: dict[str, int]) -> bool:
    return _is_over_the_limit(change, costs) or any(costs[each.metric] > each.high_95 + ALLOWANCE[each.metric] for each in change.planned.expected)


def _is_over_the_limit(change: WatchedChange, costs: dict[str, int]) -> bool:
    most_ms = change.planned.most_unavailable_task_ms
    return most_ms is not None and costs["unavailable_task_ms"] > most_ms


def _is_at_rest(state: GroupState, change: WatchedChange) -> bool:
    """Returns whether nothing is under way: everything runs, and copies are near enough."""
    if change.standing or state.in_flight or state.waiting or state.restarts or state.lent or not state.members:
        return False
    members = state.members.values()
    if any(member.revoking or member.warmup or member.leaving for member in members):
        return False
    for member in members:
        limit = state.acceptable_lag(member) if member.standby else 0
        if not all(member.is_caught_up(task, limit) for task in member.standby):
            return False
    return True


def _look(state: GroupState, change: WatchedChange, tasks: Iterable[TaskId], expired: tuple[str, ...]) -> None:
    """Notes who runs these tasks now. `expired`: members that were removed in this step: nobody ran
    their tasks since they were heard last.
    """
    now_ms = state.now_ms
    for task in sorted(tasks):
        before = change.runners.get(task)
        is_standing = task in change.standing
        if before is not None and before[0] in expired and not is_standing:
            change.stand(task, change.heard_ms.get(before[0], now_ms))
            is_standing = True
        runner = None if _is_parked(state, change, task) else _runner(state, task, None if is_standing else before)
        if runner is None:
            change.stand(task, now_ms)
        else:
            change.run(task, runner, now_ms)


def _is_parked(state: GroupState, change: WatchedChange, task: TaskId) -> bool:
    """Returns whether its owner handles nothing more in the task, since the change was planned."""
    parked = state.parked.get(task)
    return parked is not None and parked.member_id == state.owner.get(task) and parked.since_ms > change.planned_ms


def _runner(state: GroupState, task: TaskId, before: tuple[str, int] | None) -> tuple[str, int] | None:
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
    return now if task not in state.holds and _has_started(state, member, task) else None


def _has_started(state: GroupState, member: MemberState, task: TaskId) -> bool:
    if not state.is_stateful(task) or not state.records(task):
        return True
    lag = member.lags.get(task)
    runs = lag is LagSentinel.ACTIVE or (task in member.held and lag == 0)
    speed = member.measured_records_per_s or member.restore_records_per_s or NEAR_RECORDS
    return runs or member.is_caught_up(task, min(NEAR_RECORDS, speed, state.acceptable_lag(member)))


assert set(ALLOWANCE) == set(JUDGED_METRICS), "each metric has its allowance"
