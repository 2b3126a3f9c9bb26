"""What happens when a deadline has passed: who is out, what may be tried again, when a round is due (PROTOCOL L3, M5, M7, D2)."""

from __future__ import annotations

from events.tasks import TaskId
from statemachine.context import Context
from statemachine.deadlines import Key, Timer
from statemachine.state import Backoff, MemberState, stall_ms


def deadline_passed(context: Context, timer: Timer, key: Key) -> None:
    """One due deadline (PROTOCOL L3, M7). What an earlier one of the same step has ended is passed over."""
    state = context.state
    member_id, task = key
    if timer is Timer.GATHERING:
        state.gathering_until_ms = None
        context.causes.add("start")
        return
    if timer is Timer.SCHEDULED:
        state.scheduled_ms = None
        context.causes.add("scheduled")
        return
    if timer is Timer.PROBING:
        state.probing_deadline_ms = None
        context.causes.add("probing")
        return
    if timer is Timer.GHOST:
        context.lay(member_id)
        return
    if timer is Timer.UNBLOCK:
        backoff = state.backoffs.get((task, member_id))
        if backoff is not None:
            backoff.over = True
            context.causes.add("unblocked")
        return
    member = state.members.get(member_id)
    if member is None:
        return
    if timer is Timer.SESSION:
        context.expire(member, "session_timeout", hold_ms=0)
        context.rest_if_empty()
        context.causes.add("expiry")
    elif timer is Timer.REVOCATION:
        context.expire(member, "revocation_timeout", hold_ms=member.session_timeout_ms)
        context.rest_if_empty()
        context.causes.add("expelled")
    elif timer is Timer.DRAIN:
        member.drain_deadline_ms = None
        member.drained = True
        context.causes.add("overdue")
    elif timer is Timer.STALL and task in member.warmup:
        _stalled(context, member, task)


def _stalled(context: Context, member: MemberState, task: TaskId) -> None:
    """The warm-up got no nearer: its slot goes to another, and it may try again later, each time twice as late (PROTOCOL M7)."""
    state = context.state
    movement = state.in_flight.get(task)
    if movement is not None and movement.destination == member.member_id:
        if movement.state.value == "revoking":
            return
        context.cancel(task, "stalled")
    else:
        del member.warmup[task]
        context.changed.add(member.member_id)
    backoff = state.backoffs.get((task, member.member_id))
    times = 1 if backoff is None else backoff.times + 1
    state.backoffs[task, member.member_id] = Backoff(until_ms=state.now_ms + stall_ms(state.knobs, times), times=times)
    context.deadlines.watch(Timer.UNBLOCK, (member.member_id, task))
    context.causes.add("stalled")
