"""Each deadline ends what it is for and nothing else, and names the round after itself."""

from __future__ import annotations

from typing import Any

import pytest

from equipoise.assignors import Movement, MovementState
from equipoise.events.decisions import MemberExpired
from equipoise.events.tasks import TaskId
from equipoise.statemachine import actions
from equipoise.statemachine.deadlines import GROUP_KEY, NO_TASK, Timer
from equipoise.statemachine.due import deadline_passed
from equipoise.statemachine.step_context import StepContext
from tests.groups import SESSION_MS, Group
from tests.unit.statemachine.contexts import context_of


def everything_under_way() -> tuple[StepContext, TaskId]:
    """m2 warms a task up, drains, has both back-offs and has crashed twice; two group timers run."""
    group = Group(watched=False).starts("m1", stateful=2)
    group.settles()
    group.join("m2", restores=0)
    state, member = group.state, group.state.members["m2"]
    (task,) = member.warmup
    actions.begin_backoff(state, member, task)
    actions.begin_slot_backoff(state, member, set(), least_ms=0)
    actions.record_crash(state, "m2")
    actions.record_crash(state, "m2")
    assert actions.begin_crash_backoff(state, "m2")
    actions.begin_drain(state, member)
    actions.schedule(state, state.now_ms + 60_000)
    state.now_ms += state.settings.warmup_stall_ms
    return context_of(group, frozenset()), task


def running(context: StepContext, task: TaskId) -> set[Timer]:
    state, member = context.state, context.state.members.get("m2")
    backoff = state.backoffs.get((task, "m2"))
    by_timer: dict[Timer, Any] = {
        Timer.SESSION: member is not None,
        Timer.REVOCATION: member is not None,
        Timer.DRAIN: member is not None and not member.drain_expired,
        Timer.STALL: member is not None and task in member.warmup,
        Timer.UNBLOCK: backoff is not None and not backoff.over,
        Timer.SLOT_BACKOFF: member is not None and member.slot_backoff is not None and not member.slot_backoff.over,
        Timer.CRASH_BACKOFF: member is not None and "m2" in state.crashes and state.crashes["m2"].until_ms is not None,
        Timer.SCHEDULED: state.scheduled_ms is not None,
        Timer.PROBING: state.probing_deadline_ms is not None,
    }
    return {timer for timer, runs in by_timer.items() if runs}


@pytest.mark.parametrize(
    ("timer", "cause"),
    [
        (Timer.DRAIN, "overdue"),
        (Timer.STALL, "stalled"),
        (Timer.UNBLOCK, "unblocked"),
        (Timer.SLOT_BACKOFF, "unblocked"),
        (Timer.CRASH_BACKOFF, "recovered"),
        (Timer.SCHEDULED, "scheduled"),
        (Timer.PROBING, "probing"),
    ],
)
def test_deadline_ends_its_own_timer_and_names_the_round(timer: Timer, cause: str):
    context, task = everything_under_way()
    before = running(context, task)
    assert timer in before
    key = GROUP_KEY if timer in (Timer.SCHEDULED, Timer.PROBING) else ("m2", task)
    deadline_passed(context, timer, key)
    restarted = {Timer.UNBLOCK} if timer is Timer.STALL else set()  # a stall begins a back-off of its own
    assert before - running(context, task) - restarted == {timer}
    assert context.causes == {cause}


def test_stalled_copy_gives_its_slot_to_a_task_that_waits_for_one():
    context, task = everything_under_way()
    waiting = TaskId(0, 1 - task.partition)
    actions.queue(context.state, Movement(task=waiting, source="m2", destination="m1", state=MovementState.WAITING))
    deadline_passed(context, Timer.STALL, ("m2", task))
    assert (context.promised, context.state.queued) == ({waiting: "m1"}, {})


@pytest.mark.parametrize(
    ("timer", "expired_as", "cause", "hold_ms"),
    [
        (Timer.SESSION, "session_timeout", "expiry", 0),
        (Timer.REVOCATION, "revocation_timeout", "expelled", SESSION_MS),
    ],
)
def test_deadline_of_a_member_removes_it_with_its_hold(timer: Timer, expired_as: str, cause: str, hold_ms: int):
    context, _ = everything_under_way()
    deadline_passed(context, timer, ("m2", NO_TASK))
    (expired,) = context.emitted
    assert isinstance(expired, MemberExpired)
    assert (expired.member_id, expired.cause, expired.hold_ms) == ("m2", expired_as, hold_ms)
    assert set(context.state.members) == {"m1"}
    assert cause in context.causes
    assert context.state.probing_deadline_ms is not None


def test_initial_delay_that_is_over_begins_the_first_round():
    group = Group(watched=False).starts("m1", stateful=1, initial_delay_ms=500)
    assert group.state.gathering_until_ms is not None
    context = context_of(group)
    deadline_passed(context, Timer.GATHERING, GROUP_KEY)
    assert (context.causes, context.state.gathering_until_ms) == ({"start"}, None)


def test_hold_of_a_fenced_incarnation_ends_with_its_session():
    context, _ = everything_under_way()
    state = context.state
    context.remove_member(state.members["m1"], hold_ms=SESSION_MS)
    (key,) = state.fenced
    assert state.holds != {}
    deadline_passed(context, Timer.FENCED, (key, NO_TASK))
    assert (state.fenced, state.holds) == ({}, {})


@pytest.mark.parametrize("timer", [Timer.SESSION, Timer.REVOCATION])
def test_last_member_that_expires_stops_the_timers_of_the_group(timer: Timer):
    group = Group(watched=False).starts("m1", stateful=1)
    group.settles()
    context = context_of(group)
    actions.schedule(group.state, group.state.now_ms + 60_000)
    deadline_passed(context, timer, ("m1", NO_TASK))
    assert (group.state.members, group.state.scheduled_ms, group.state.probing_deadline_ms) == ({}, None, None)


# No deadline ends a fenced incarnation but its own, so FENCED is not here.
OF_A_MEMBER = [timer for timer in Timer if timer not in (Timer.FENCED, Timer.GATHERING, Timer.SCHEDULED, Timer.PROBING)]


@pytest.mark.parametrize(
    ("timer", "member_id"),
    [
        *((timer, "gone") for timer in OF_A_MEMBER),
        *((timer, "m1") for timer in (Timer.STALL, Timer.UNBLOCK, Timer.SLOT_BACKOFF, Timer.CRASH_BACKOFF)),
    ],
)
def test_deadline_whose_reason_ended_in_the_same_step_does_nothing(timer: Timer, member_id: str):
    """m1 has none of these timers, and "gone" is no member."""
    context, task = everything_under_way()
    before = running(context, task)
    deadline_passed(context, timer, (member_id, task))
    assert running(context, task) == before
    assert (context.causes, context.changed, context.emitted) == (set(), set(), [])
