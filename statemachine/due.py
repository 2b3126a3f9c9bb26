"""What happens when a deadline passes (docs/protocol.md#l3, #m5, #m7, #d2)."""

from __future__ import annotations

from equipoise.events.tasks import TaskId
from equipoise.statemachine import actions, restarts
from equipoise.statemachine.deadlines import Key, Timer
from equipoise.statemachine.slots import look_at
from equipoise.statemachine.state import MemberState
from equipoise.statemachine.step_context import StepContext


def deadline_passed(context: StepContext, timer: Timer, key: Key) -> None:
    """Handles one due deadline. Does nothing when an earlier deadline of the same step ended what
    it was for.
    """
    state = context.state
    member_id, task = key
    if timer is Timer.GATHERING:
        context.initial_delay_over()
    elif timer is Timer.SCHEDULED:
        actions.schedule(state, None)
        context.causes.add("scheduled")
    elif timer is Timer.PROBING:
        actions.set_probing(state, None)
        context.causes.add("probing")
    elif timer is Timer.FENCED:
        context.unfence(member_id)
    elif timer is Timer.UNBLOCK:
        backoff = state.backoffs.get((task, member_id))
        if backoff is not None:
            actions.end_backoff(backoff)
            context.causes.add("unblocked")
    elif member_id in state.members:
        _of_member(context, timer, state.members[member_id], task)


def _of_member(context: StepContext, timer: Timer, member: MemberState, task: TaskId) -> None:
    if timer is Timer.SESSION and context.state.is_away(member.member_id):
        restarts.not_back(context, member)
        context.rest_if_empty()
        context.causes.add("not_back")
    elif timer is Timer.SESSION:
        context.expire(member, "session_timeout", hold_ms=0)
        context.rest_if_empty()
        context.causes.add("expiry")
    elif timer is Timer.REVOCATION:
        context.expire(member, "revocation_timeout", hold_ms=member.session_timeout_ms)
        context.rest_if_empty()
        context.causes.add("expelled")
    elif timer is Timer.DRAIN:
        actions.expire_drain(member)
        context.causes.add("overdue")
    elif timer is Timer.CRASH_BACKOFF and member.member_id in context.state.crashes:
        actions.end_crash_backoff(context.state, member.member_id)
        context.causes.add("recovered")
    elif timer is Timer.SLOT_BACKOFF and member.slot_backoff is not None:
        actions.end_backoff(member.slot_backoff)
        context.causes.add("unblocked")
    elif timer is Timer.STALL and task in member.warmup:
        look_at(context, member, task)
