"""Members that stop and will be back (docs/protocol.md#m12): whose turn it is, what they lend, and
how long the rest waits.

A member that restarts keeps its place. It stays in `GroupState.members` and owns the tasks that
wait for it, until it has joined again or its time is over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import attrs

from equipoise.assignors import Movement, MovementState
from equipoise.events.decisions import Move, RestartEnded, RestartPlanned
from equipoise.events.facts import RestartIntended
from equipoise.events.fields import INT64_MAX
from equipoise.events.tasks import TaskId
from equipoise.statemachine import actions
from equipoise.statemachine.deadlines import NO_TASK, Timer
from equipoise.statemachine.state import GroupState, Lent, MemberState, Restart, known_lag
from equipoise.statemachine.step_context import StepContext

LONGEST_WAIT_MS = 60_000
"""A member that says to be back within this time is waited for, whatever its tasks cost elsewhere:
most processes are back long before the time that they state. For a longer time its tasks are moved
first, if others would restore them sooner.
"""


def intend(context: StepContext, member: MemberState, fact: RestartIntended) -> None:
    """The member wants to restart. It repeats that, and may state another time before its turn."""
    state = context.state
    known = state.restarts.get(member.member_id)
    if member.leaving or member.released or (known is not None and known.begun):
        return
    if known is not None and (known.within_ms, known.wait_turn) == (fact.back_within_ms, fact.wait_turn):
        return
    actions.intend_restart(state, member, fact)
    if fact.wait_turn and _is_busy(state):
        restart = state.restarts[member.member_id]
        context.emitted.append(
            RestartPlanned(
                member_id=member.member_id,
                incarnation=member.incarnation,
                choice="turn",
                back_within_ms=_within_ms(state, member.member_id, restart),
                stated=restart.stated,
            )
        )


def cancel(context: StepContext, member: MemberState) -> None:
    """The member stays, or leaves for good. What it has lent comes back to it if it stays."""
    restart = actions.end_restart(context.state, member.member_id)
    actions.readmit(member)
    if restart.drains and not member.intends:
        context.cancel_drain(member, "restart_cancelled")
    context.emitted.append(RestartEnded(member_id=member.member_id, incarnation=member.incarnation, outcome="cancelled"))
    if not member.intends:
        for task in sorted(task for task in member.revoking if task in context.state.lent and task in context.state.in_flight):
            actions.end_loan(context.state, task)
            context.cancel(task, "source_stays")
        give_back(context, member)
    context.causes.add("restart_cancelled")


def go_on(context: StepContext) -> None:
    """Begins the restart of each member whose turn it is, and ends what has become of loans.
    Called in each step.
    """
    state = context.state
    _end_loans(context)
    waiting = sorted((restart.asked_ms, member_id) for member_id, restart in state.restarts.items() if not restart.begun)
    for _, member_id in waiting:
        if not state.restarts[member_id].wait_turn or not _is_busy(state):
            _begin(context, state.members[member_id])
            _end_loans(context)


def _is_busy(state: GroupState) -> bool:
    """Returns whether a restart is under way: a member is stopping or away, or is not given back
    yet what it had lent.
    """
    return bool(state.lent) or any(restart.begun for restart in state.restarts.values())


def _end_loans(context: StepContext) -> None:
    """Ends loans that mean nothing any more: the home is gone or will not get the task back, or the
    borrower cannot keep it. Whoever has the task then has it like any other.
    """
    state = context.state
    for task, lent in sorted(state.lent.items()):
        if state.is_restarting(lent.home):
            borrower = state.members.get(lent.borrower)
            gone = borrower is None or borrower.leaving or state.is_restarting(lent.borrower)
            over = gone or (state.owner.get(task) == lent.home and task not in state.in_flight)
        else:
            movement = state.in_flight.get(task)
            over = lent.home not in state.members or movement is None or movement.destination != lent.home
        if over:
            actions.end_loan(state, task)


def _begin(context: StepContext, member: MemberState) -> None:
    """Its turn has come: chooses by cost between lending with waiting, and moving all first."""
    state = context.state
    restart = state.restarts[member.member_id]
    _choose(context, member, restart)
    if restart.drains:
        context.begin_drain(member, "restart_intended")
        return
    context.stop_incoming(member, "destination_restarts")
    context.changed.add(member.member_id)
    context.causes.add("restart_intended")


def _choose(context: StepContext, member: MemberState, restart: Restart) -> None:
    state = context.state
    within_ms = _within_ms(state, member.member_id, restart)
    lent = {} if member.eager else borrowers(state, member)
    waiting = tuple(sorted(member.active.keys() - lent.keys()))
    cost = restore_cost(state, member, waiting)
    drains = bool(cost.records and cost.members) and within_ms > LONGEST_WAIT_MS and (cost.ms is None or cost.ms < within_ms)
    actions.begin_restart(restart, within_ms=within_ms, drains=drains)
    context.emitted.append(
        RestartPlanned(
            member_id=member.member_id,
            incarnation=member.incarnation,
            choice="drain" if drains else "wait",
            back_within_ms=within_ms,
            stated=restart.stated,
            lent=() if drains else tuple(sorted(lent)),
            waiting=waiting,
            restore_records=cost.records,
            restore_ms=cost.ms,
        )
    )


@attrs.frozen
class RestoreCost:
    """What it costs to run tasks elsewhere: records to restore, and how long `members` members
    would restore them together; None: their rates are not known.
    """

    records: int
    ms: int | None
    members: int


def restore_cost(state: GroupState, member: MemberState, tasks: Iterable[TaskId]) -> RestoreCost:
    """The cost of moving these tasks of the member to the others, which have no copies of them."""
    records = min(sum(state.records(task) for task in tasks if state.is_stateful(task)), INT64_MAX)
    others = [other for other in state.members.values() if other is not member and _stays(state, other)]
    rate = sum(other.restore_records_per_s for other in others)
    return RestoreCost(records, min(-(-records * 1_000 // rate), INT64_MAX) if rate else None, len(others))


def _within_ms(state: GroupState, member_id: str, restart: Restart) -> int:
    """The stated time, or else twice what its last restart took, or the longest last one of any
    member; LONGEST_WAIT_MS while none is known.
    """
    if restart.within_ms is not None:
        return restart.within_ms
    took_ms = state.restart_times_ms.get(member_id) or max(state.restart_times_ms.values(), default=0)
    return max(1, min(2 * took_ms, INT64_MAX)) if took_ms else LONGEST_WAIT_MS


def _stays(state: GroupState, member: MemberState) -> bool:
    name = member.member_id
    return not (member.leaving or state.is_restarting(name) or state.is_crash_looping(name))


def borrowers(state: GroupState, home: MemberState) -> dict[TaskId, str]:
    """Tasks that another member can run at once -> that member, where several can the one with the
    fewest tasks for its capacity. Tasks without state are lent only in a group with standbys: where
    there are none, a restart changes no owner.

    An eager member borrows nothing, because it would have to stop everything first.
    """
    able = [member for _, member in sorted(state.members.items()) if member is not home and _stays(state, member) and not member.eager]
    limits = {member.member_id: state.acceptable_lag(member) for member in able}
    owned = Counter(state.owner.values())
    found: dict[TaskId, str] = {}
    for task in sorted(home.active):
        if task in state.in_flight:
            continue
        stateful = state.is_stateful(task)
        if not stateful and not state.settings.num_standbys:
            continue
        having = [member for member in able if task in member.lags or task in member.ready] if stateful else able  # few of very many members
        ready = [member for member in having if knows(state, member, task) and (not stateful or member.is_caught_up(task, limits[member.member_id]))]
        if ready:
            best = min(ready, key=lambda member: (owned[member.member_id] * 1_000_000 // member.capacity, member.member_id))
            found[task] = best.member_id
            owned[best.member_id] += 1
    return found


def lend(state: GroupState) -> None:
    """Lends what can be lent of the members that restart. Called before each round: while a member
    is away, further copies may have caught up.
    """
    for member_id in sorted(state.restarts):
        home = state.members[member_id]
        if state.is_away(member_id) or (state.is_restarting(member_id) and not home.eager and not home.released):
            for task, borrower in borrowers(state, home).items():
                actions.lend(state, task, member_id, borrower)


def knows(state: GroupState, member: MemberState, task: TaskId) -> bool:
    """Returns whether the member's topology has the task (docs/protocol.md#d1)."""
    runnable = state.runnable(member)
    return state.has_task(task) and (runnable is None or task.partition < runnable.get(task.subtopology, 0))


def left(context: StepContext, member: MemberState) -> bool:
    """The member has stopped everything, or is proven dead, and will be back: its tasks wait for
    it, or for their borrowers. False: it is gone like any other, because it was drained, or would
    have been, or said nothing of coming back.
    """
    state = context.state
    restart = state.restarts.get(member.member_id)
    if restart is None or member.leaving:
        return False
    if not restart.begun:
        _choose(context, member, restart)
    if restart.drains:
        return False
    context.stop_incoming(member, "destination_restarts")
    for task in sorted(member.revoking):
        context.release(member, task)
    for task in sorted(member.warmup):
        actions.end_warmup(member, task)
    actions.go_away(state, member)
    context.deadlines.watch(Timer.SESSION, (member.member_id, NO_TASK))
    actions.forget_crashes(state, member.member_id)
    context.causes.add("restarting")
    return True


def not_back(context: StepContext, member: MemberState, outcome: str = "not_back") -> None:
    """Stops waiting for a member that is away: its tasks go to others."""
    _end_wait(context, member, outcome)
    context.remove_member(member, hold_ms=0)


def _end_wait(context: StepContext, old: MemberState, outcome: str) -> int:
    """Returns how long it was away, in ms."""
    left_ms = context.state.restarts[old.member_id].left_ms
    assert left_ms is not None, "it is away"
    away_ms = context.state.now_ms - left_ms
    context.emitted.append(RestartEnded(member_id=old.member_id, incarnation=old.incarnation, outcome=outcome, away_ms=away_ms))
    return away_ms


def end_away(context: StepContext, old: MemberState) -> list[TaskId]:
    """The next incarnation of a member that is away joins. Returns the tasks that waited for it."""
    away_ms = _end_wait(context, old, "returned")
    waited = sorted(old.active)
    context.remove_member(old, hold_ms=0)
    actions.learn_restart_time(context.state, old.member_id, away_ms)
    return waited


def give_back(context: StepContext, member: MemberState, waited: Iterable[TaskId] = ()) -> None:
    """Grants a member that is back what waited for it, as far as its copies are still there, and
    begins to give back what it lent.
    """
    state = context.state

    def can_run(task: TaskId) -> bool:
        return knows(state, member, task) and (not state.is_stateful(task) or task in member.lags)

    for task in filter(can_run, waited):
        if task not in state.owner and not _is_ready_elsewhere(state, member, task):
            context.grant(member, task)
            lag = known_lag(member.lags.get(task))
            context.note(Move(task=task, source=None, destination=member.member_id, state="granted", reason="restarted", lag_records=lag))
    for task, lent in sorted(state.lent.items()):
        mine = lent.home == member.member_id and state.owner.get(task) == lent.borrower and task not in state.in_flight
        if mine and can_run(task) and not state.is_crash_looping(member.member_id) and _has_copy_begun(context, member, task, lent):
            actions.begin_movement(state, Movement(task=task, source=lent.borrower, destination=member.member_id, state=MovementState.WARMING))
            context.deadlines.watch(Timer.STALL, (member.member_id, task))
            lag = known_lag(member.lags.get(task))
            context.note(Move(task=task, source=lent.borrower, destination=member.member_id, state="warming", reason="return_home", lag_records=lag))


def _is_ready_elsewhere(state: GroupState, member: MemberState, task: TaskId) -> bool:
    """Returns whether another is the better place by rank, so that a round decides: it is caught up
    and the member is not, or the member keeps crashing.
    """
    if not state.is_stateful(task):
        return False
    caught_up, loops = member.is_caught_up(task, state.acceptable_lag(member)), state.is_crash_looping(member.member_id)
    if caught_up and not loops:
        return False
    others = [other for other in state.members.values() if other is not member and not other.leaving and not state.is_restarting(other.member_id)]
    others = [other for other in others if not (caught_up and state.is_crash_looping(other.member_id))]
    return any(knows(state, other, task) and other.is_caught_up(task, state.acceptable_lag(other)) for other in others)


def _has_copy_begun(context: StepContext, member: MemberState, task: TaskId, lent: Lent) -> bool:
    """Begins the copy by which the member gets a task back: as the standby that the borrower was,
    or as a warm-up, as far as the caps allow. Returns whether.
    """
    state, settings = context.state, context.state.settings
    if not state.is_stateful(task):
        return True
    if lent.as_standby and settings.num_standbys:
        actions.set_standbys(member, {*member.standby, task})
    elif len(member.warmup) < settings.max_warmups_per_member and sum(len(each.warmup) for each in state.members.values()) < settings.max_warmups:
        actions.begin_warmup(state, member, task, caught_up=member.is_caught_up(task, state.acceptable_lag(member)))
    else:
        return False
    context.changed.add(member.member_id)
    return True
