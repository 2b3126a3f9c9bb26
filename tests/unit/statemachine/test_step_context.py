"""What a step does to one task or one member, apart from rounds: ends of movements, hand-overs,
members that go, drains.
"""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from equipoise.assignors import Guarantee, MovementState
from equipoise.events.decisions import AssignmentIssued, MemberAsked, MemberExpired, Move
from equipoise.events.facts import AssignmentObserved, PresentMember, RoundAsked
from equipoise.events.tasks import LagSentinel, TaskId
from equipoise.statemachine import actions
from equipoise.statemachine.deadlines import NO_TASK, Timer
from equipoise.statemachine.state import Crashes
from equipoise.statemachine.step_context import StepContext
from tests.groups import SESSION_MS, Group, configured
from tests.unit.statemachine.contexts import gives_up, member_of, moves, owns, step

A, B, C = TaskId(0, 0), TaskId(0, 1), TaskId(0, 2)
GONE = TaskId(0, 50)
"""A task that the topology does not have."""
WARMING, REVOKING = MovementState.WARMING, MovementState.REVOKING


def noted(context: StepContext) -> list[Move]:
    return [context.moves[place] for place in sorted(context.moves)]


def granted(task: TaskId, source: str | None, destination: str, lag: int | None = None) -> Move:
    return Move(task=task, source=source, destination=destination, state="granted", reason="carried", lag_records=lag)


def cancelled(task: TaskId, source: str | None, destination: str, reason: str) -> Move:
    return Move(task=task, source=source, destination=destination, state="cancelled", reason=reason)


@pytest.mark.parametrize(
    ("name", "effect"),
    [
        ("emitted", [MemberExpired(member_id="m1", incarnation=1, cause="superseded", silent_ms=0)]),
        ("causes", {"probing"}),
        ("changed", {"m1"}),
        ("moves", {(A, 0): granted(A, None, "m1")}),
        ("promised", {A: "m1"}),
        ("lifted", True),
        ("rescheduled", True),
        ("plan", object()),
        ("observed", AssignmentObserved(generation=1, members=())),
        ("round_asked", RoundAsked(round_id="r", members=(PresentMember(member_id="m1", incarnation=1),), carrier="kafka_streams")),
    ],
)
def test_context_with_any_effect_is_not_used_again(name: str, effect: Any) -> None:
    context = step("m1")
    assert context.is_untouched()
    setattr(context, name, effect)
    assert not context.is_untouched()


def test_step_begins_without_effects():
    context = step("m1")
    assert (context.emitted, context.causes, context.moves, context.changed, context.promised) == ([], set(), {}, set(), {})
    assert context.gone == []
    assert (context.plan, context.observed, context.unique) == (None, None, True)
    assert (context.lifted, context.rescheduled, context.deals_by_lag) == (False, False, False)


# Movements that end


def test_cancel_ends_the_movement_and_its_warm_up():
    context = step("m1", "m2")
    owns(context.state, "m1", A)
    moves(context.state, A, "m1", "m2", WARMING)
    context.cancel(A, "source_stays")
    assert noted(context) == [cancelled(A, "m1", "m2", "source_stays")]
    assert (context.state.in_flight, member_of(context, "m2").warmup, context.changed) == ({}, {}, {"m2"})


def test_cancel_of_a_movement_to_a_standby_changes_no_assignment():
    context = step("m1", "m2")
    owns(context.state, "m1", A)
    moves(context.state, A, "m1", "m2", REVOKING)
    context.cancel(A, "source_stays")
    assert context.changed == set()


def test_moves_of_one_task_are_in_the_order_of_what_happened():
    """What ends, who has the task now, where it goes next."""
    context = step("m1", "m2")
    ends, begins = cancelled(A, "m1", "m2", "not_wanted"), attrs.evolve(granted(A, "m1", "m2"), state="warming")
    regrant = attrs.evolve(begins, state="revoking", reason="eager")
    context.note_eager_regrant(regrant)
    context.note(begins)
    context.note(granted(A, None, "m1"))
    context.note(ends)
    assert noted(context) == [ends, granted(A, None, "m1"), begins, regrant]
    assert context.noted(A, "waiting") == begins
    assert context.noted(B, "waiting") is None


# Tasks that are given up


def released(context: StepContext, task: TaskId = A, member_id: str = "m1") -> StepContext:
    context.release(member_of(context, member_id), task)
    return context


def test_task_given_up_without_a_movement_begins_a_round():
    context = step("m1", "m2")
    gives_up(context.state, "m1", A)
    released(context)
    assert (context.causes, context.changed, context.state.owner, noted(context)) == ({"handover"}, {"m1"}, {}, [])


def test_task_given_up_because_the_topology_dropped_it_begins_no_round():
    context = step("m1", "m2")
    gives_up(context.state, "m1", GONE)
    assert released(context, GONE).causes == set()


def test_task_given_up_goes_to_its_destination_at_once():
    context = step("m1", "m2")
    gives_up(context.state, "m1", A, B)
    moves(context.state, A, "m1", "m2", REVOKING)
    moves(context.state, B, "m1", "m2", REVOKING)
    member_of(context, "m2").lags[A] = 7
    released(context)
    assert context.state.owner == {A: "m2", B: "m1"}
    assert (noted(context), context.changed) == ([granted(A, "m1", "m2", 7)], {"m1", "m2"})
    assert context.causes == set(), "another movement is in flight and nothing waits for a slot"


def test_last_hand_over_begins_a_round():
    context = step("m1", "m2")
    gives_up(context.state, "m1", A)
    moves(context.state, A, "m1", "m2", REVOKING)
    assert released(context).causes == {"handover"}


def test_hand_over_begins_a_round_while_a_movement_waits_for_a_slot():
    context = step("m1", "m2")
    gives_up(context.state, "m1", A, B)
    moves(context.state, A, "m1", "m2", REVOKING)
    moves(context.state, B, "m1", "m2", REVOKING)
    actions.count_waiting(context.state)
    assert released(context).causes == {"handover"}


def test_task_that_returns_to_its_source_begins_a_round():
    context = step("m1", "m2")
    gives_up(context.state, "m1", A, B)
    moves(context.state, A, "m1", "m1", REVOKING)
    moves(context.state, B, "m1", "m2", REVOKING)
    assert released(context).causes == {"handover"}


def test_task_given_up_while_its_copy_warms_up_is_free_and_a_round_decides():
    """An eager member gives up all its tasks for the movement of another one."""
    context = step("m1", "m2", "m3")
    gives_up(context.state, "m1", A, B)
    moves(context.state, A, "m1", "m2", WARMING)
    moves(context.state, B, "m1", "m2", REVOKING)
    released(context)
    assert noted(context) == [cancelled(A, "m1", "m2", "source_gone")]
    assert (context.causes, context.state.owner) == ({"handover"}, {B: "m1"})


@pytest.mark.parametrize(("leaving", "crashing", "returns"), [(False, False, False), (True, False, True), (False, True, True)])
def test_task_returns_later_to_a_source_that_gave_it_up_for_a_time(leaving: bool, crashing: bool, returns: bool):
    """A member that leaves may come back, and one that crashes may recover."""
    context = step("m1", "m2")
    gives_up(context.state, "m1", A)
    moves(context.state, A, "m1", "m2", REVOKING)
    context.state.previous_owners[A] = "m9"
    member_of(context, "m1").leaving = leaving
    if crashing:
        context.state.crashes["m1"] = Crashes(times=2, first_ms=0, changed_ms=0, until_ms=99)
    released(context)
    assert context.state.previous_owners == ({A: "m1"} if returns else {})


# Eager members: all tasks given up, then all granted together


def test_eager_destination_waits_until_every_task_that_comes_to_it_is_free():
    context = step("m1", "m2", "m3", eager=("m2",))
    gives_up(context.state, "m1", A)
    gives_up(context.state, "m3", B)
    moves(context.state, A, "m1", "m2", REVOKING)
    moves(context.state, B, "m3", "m2", REVOKING)
    moves(context.state, C, None, "m2", WARMING)
    member_of(context, "m2").lags[B] = 3
    released(context)
    assert (context.state.owner, noted(context)) == ({B: "m3"}, [])
    released(context, B, "m3")
    assert context.state.owner == {A: "m2", B: "m2"}
    assert noted(context) == [granted(A, "m1", "m2"), granted(B, "m3", "m2", 3)]
    assert context.causes == set(), "a warm-up is in flight"


def test_eager_member_waits_until_it_has_given_up_everything():
    context = step("m1", "m2", eager=("m2",))
    gives_up(context.state, "m1", A)
    gives_up(context.state, "m2", B)
    moves(context.state, A, "m1", "m2", REVOKING)
    released(context)
    assert context.state.owner == {B: "m2"}


def test_eager_member_gets_its_own_tasks_back_with_the_new_ones():
    context = step("m1", "m2", eager=("m2",))
    gives_up(context.state, "m2", A, B)
    member = member_of(context, "m2")
    actions.add_eager_regrant(member, A, had_it=True)
    actions.add_eager_regrant(member, B, had_it=False)
    member.lags.update({A: LagSentinel.UNKNOWN, B: 4})
    context.note_eager_regrant(Move(task=A, source="m2", destination="m2", state="revoking", reason="eager"))
    released(context, A, "m2")
    assert (context.state.owner, context.causes) == ({B: "m2"}, set())
    released(context, B, "m2")
    assert context.state.owner == {A: "m2", B: "m2"}
    assert noted(context) == [granted(A, "m2", "m2"), granted(B, None, "m2", 4)]
    assert (member.eager_regrants, context.causes, context.changed) == ({}, {"handover"}, {"m2"})


def test_eager_member_waits_for_a_regrant_that_another_member_still_runs():
    context = step("m1", "m2", eager=("m2",))
    owns(context.state, "m1", A)
    gives_up(context.state, "m2", B)
    actions.add_eager_regrant(member_of(context, "m2"), A, had_it=False)
    actions.add_eager_regrant(member_of(context, "m2"), B, had_it=True)
    assert released(context, B, "m2").state.owner == {A: "m1"}


def test_eager_member_with_nothing_to_get_begins_no_round_of_its_own():
    context = step("m1", "m2", eager=("m2",))
    context.grant_all_eager(member_of(context, "m2"))
    assert (context.causes, context.changed) == (set(), set())


def test_eager_grant_begins_a_round_while_a_movement_waits_for_a_slot():
    context = step("m1", "m2", eager=("m2",))
    gives_up(context.state, "m1", A)
    moves(context.state, A, "m1", "m2", REVOKING)
    moves(context.state, C, None, "m1", WARMING)
    actions.count_waiting(context.state)
    actions.release(context.state, member_of(context, "m1"), A)
    context.complete_handover(A)
    assert context.causes == {"handover"}


def test_regrant_that_ends_is_noted_with_its_source_if_the_member_had_the_task():
    context = step("m2", eager=("m2",))
    member = member_of(context, "m2")
    actions.add_eager_regrant(member, A, had_it=True)
    actions.add_eager_regrant(member, B, had_it=False)
    context.note(granted(A, None, "m2"))
    context.drop_eager_regrant(member, A, "not_wanted")
    context.drop_eager_regrant(member, B, "not_wanted")
    assert noted(context) == [cancelled(A, "m2", "m2", "not_wanted"), granted(A, None, "m2"), cancelled(B, None, "m2", "not_wanted")]


# Grants of this step that no member has seen


def test_untold_grant_is_passed_on_to_the_destination_of_the_round():
    context = step("m1", "m2")
    context.note(granted(A, "m0", "m1", 9))
    moves(context.state, A, None, "m2", REVOKING)
    context.note(Move(task=A, source="m1", destination="m2", state="revoking", reason="balance"))
    member_of(context, "m2").lags[A] = 2
    context.regrant_untold(A)
    assert (context.state.owner, context.state.in_flight, context.changed) == ({A: "m2"}, {}, {"m2"})
    assert noted(context) == [granted(A, "m0", "m2", 2)]


def test_untold_grant_to_an_eager_member_waits_for_its_other_tasks():
    context = step("m1", "m2", eager=("m2",))
    context.note(granted(A, "m0", "m1", 9))
    moves(context.state, A, None, "m2", REVOKING)
    context.note(Move(task=A, source="m1", destination="m2", state="revoking", reason="balance"))
    context.regrant_untold(A)
    assert (context.state.owner, context.state.in_flight) == ({}, {})
    assert member_of(context, "m2").eager_regrants == {A: False}
    assert noted(context) == [
        attrs.evolve(cancelled(A, "m0", "m1", "not_wanted"), lag_records=9),
        Move(task=A, source=None, destination="m2", state="revoking", reason="eager", lag_records=9),
    ]


@pytest.mark.parametrize(("task", "reason"), [(A, "not_wanted"), (GONE, "task_gone")])
def test_untold_grant_without_a_further_movement_is_cancelled(task: TaskId, reason: str):
    context = step("m1", "m2")
    context.note(granted(task, "m0", "m1"))
    context.regrant_untold(task)
    assert noted(context) == [cancelled(task, "m0", "m1", reason)]


def test_untold_grant_whose_next_movement_warms_up_is_cancelled():
    context = step("m1", "m2")
    context.note(granted(A, "m0", "m1"))
    moves(context.state, A, None, "m2", WARMING)
    context.regrant_untold(A)
    assert (noted(context), set(context.state.in_flight)) == ([cancelled(A, "m0", "m1", "not_wanted")], {A})


def test_movement_without_a_grant_of_this_step_continues():
    context = step("m1", "m2")
    moves(context.state, A, None, "m2", REVOKING)
    context.regrant_untold(A)
    assert (noted(context), set(context.state.in_flight)) == ([], {A})


@pytest.mark.parametrize(("source", "had_it"), [("m1", True), ("m0", False), (None, False)])
def test_take_back_says_whether_the_member_had_the_task_before(source: str | None, had_it: bool):
    context = step("m1")
    context.grant(member_of(context, "m1"), A)
    context.note(granted(A, source, "m1"))
    assert context.take_back(member_of(context, "m1"), A) is had_it
    assert (noted(context), context.state.owner) == ([], {})


def test_take_back_of_a_grant_without_a_move():
    context = step("m1")
    context.grant(member_of(context, "m1"), A)
    assert context.take_back(member_of(context, "m1"), A) is False


# Members that go


def test_expired_member_is_said_with_its_silence_and_counts_as_crashed():
    context = step("m1", "m2")
    member_of(context, "m1").last_heard_ms = context.state.now_ms + 5_000
    context.state.now_ms += 45_000
    context.expire(member_of(context, "m1"), "session_timeout", hold_ms=0)
    assert context.emitted == [MemberExpired(member_id="m1", incarnation=1, cause="session_timeout", silent_ms=40_000, hold_ms=0)]
    assert (set(context.state.members), context.state.crashes["m1"].times) == ({"m2"}, 1)


def test_tasks_of_a_member_that_goes_are_lost_and_held():
    context = step("m1", "m2")
    owns(context.state, "m1", A)
    gives_up(context.state, "m1", B)
    context.changed.add("m1")
    context.remove_member(member_of(context, "m1"), hold_ms=SESSION_MS)
    state = context.state
    assert (set(state.lost), state.previous_owners, state.owner) == ({A, B}, {A: "m1", B: "m1"}, {})
    assert (state.holds, len(state.fenced)) == ({A: SESSION_MS, B: SESSION_MS}, 1)
    assert context.changed == set(), "a member that is gone gets no assignment"
    assert Timer.FENCED in {timer for _, timer, _ in context.deadlines.running()}


def test_tasks_of_a_member_that_is_proven_dead_are_lost_without_a_hold():
    context = step("m1", "m2")
    owns(context.state, "m1", A)
    context.remove_member(member_of(context, "m1"), hold_ms=0)
    assert (set(context.state.lost), context.state.holds, context.state.fenced) == ({A}, {}, {})


def test_member_without_tasks_leaves_no_fence():
    context = step("m1", "m2")
    context.remove_member(member_of(context, "m1"), hold_ms=SESSION_MS)
    assert context.state.fenced == {}
    assert Timer.FENCED not in {timer for _, timer, _ in context.deadlines.running()}


def test_task_of_a_member_that_goes_is_not_lost_if_the_topology_dropped_it():
    context = step("m1", "m2")
    owns(context.state, "m1", GONE)
    context.remove_member(member_of(context, "m1"), hold_ms=0)
    assert (context.state.lost, context.state.previous_owners) == ({}, {})


def test_task_that_a_member_did_not_know_of_is_not_lost_with_it():
    context = step("m1", "m2")
    owns(context.state, "m1", B)
    context.grant(member_of(context, "m1"), A)
    context.note(granted(A, "m0", "m1"))
    context.remove_member(member_of(context, "m1"), hold_ms=0)
    assert noted(context) == [cancelled(A, "m0", "m1", "destination_gone")]
    assert (set(context.state.lost), context.state.owner) == ({B}, {})


def test_movements_of_a_member_that_goes_complete_or_end():
    context = step("m1", "m2", "m3")
    owns(context.state, "m1", A)
    gives_up(context.state, "m1", B)
    owns(context.state, "m3", C)
    moves(context.state, A, "m1", "m2", WARMING)
    moves(context.state, B, "m1", "m2", REVOKING)
    moves(context.state, C, "m3", "m1", WARMING)
    context.remove_member(member_of(context, "m1"), hold_ms=0)
    state = context.state
    assert (state.owner, state.in_flight) == ({B: "m2", C: "m3"}, {})
    assert (set(state.lost), state.previous_owners) == ({A}, {A: "m1"}), "B is handed over as decided"
    assert noted(context) == [
        cancelled(A, "m1", "m2", "source_gone"),
        granted(B, "m1", "m2"),
        cancelled(C, "m3", "m1", "destination_gone"),
    ]


def test_movement_to_an_eager_member_forgets_a_source_that_is_gone():
    context = step("m1", "m2", eager=("m2",))
    gives_up(context.state, "m1", A)
    gives_up(context.state, "m2", B)
    moves(context.state, A, "m1", "m2", REVOKING)
    context.remove_member(member_of(context, "m1"), hold_ms=0)
    assert context.state.in_flight[A].source is None
    assert context.state.owner == {B: "m2"}


def test_both_tasks_of_a_source_that_is_gone_reach_an_eager_member_together():
    context = step("m1", "m2", eager=("m2",))
    gives_up(context.state, "m1", A, B)
    moves(context.state, A, "m1", "m2", REVOKING)
    moves(context.state, B, "m1", "m2", REVOKING)
    context.remove_member(member_of(context, "m1"), hold_ms=0)
    assert (context.state.owner, context.state.in_flight) == ({A: "m2", B: "m2"}, {})


def test_eager_member_that_goes_loses_the_tasks_that_were_its_own():
    context = step("m1", "m2", eager=("m1",))
    actions.add_eager_regrant(member_of(context, "m1"), A, had_it=True)
    actions.add_eager_regrant(member_of(context, "m1"), B, had_it=False)
    context.remove_member(member_of(context, "m1"), hold_ms=0)
    assert set(context.state.lost) == {A}


def test_unfenced_incarnation_frees_the_tasks_that_wait_for_it():
    context = step("m1", "m2", "m3")
    owns(context.state, "m1", A, B, C)
    context.remove_member(member_of(context, "m1"), hold_ms=SESSION_MS)
    owns(context.state, "m2", A)
    gives_up(context.state, "m3", B)
    (key,) = context.state.fenced
    context.unfence(key)
    assert (context.changed, context.lifted, context.state.holds) == ({"m2"}, True, {})


def test_unfenced_incarnation_whose_tasks_nobody_runs_changes_no_assignment():
    context = step("m1", "m2")
    owns(context.state, "m1", A)
    context.remove_member(member_of(context, "m1"), hold_ms=SESSION_MS)
    (key,) = context.state.fenced
    context.unfence(key)
    assert (context.changed, context.lifted) == (set(), False)


# Drains


def test_drain_ends_what_comes_to_the_member():
    context = step("m1", "m2", eager=("m2",))
    owns(context.state, "m1", A)
    owns(context.state, "m2", B)
    moves(context.state, A, "m1", "m2", WARMING)
    actions.add_eager_regrant(member_of(context, "m2"), C, had_it=True)
    context.begin_drain(member_of(context, "m2"), "leave_intended")
    assert noted(context) == [cancelled(A, "m1", "m2", "destination_leaving"), cancelled(C, "m2", "m2", "destination_leaving")]
    assert (context.causes, member_of(context, "m2").leaving, context.state.owner[B]) == ({"leave_intended"}, True, "m2")
    assert Timer.DRAIN in {timer for _, timer, _ in context.deadlines.running()}


def test_drain_takes_back_a_grant_that_the_member_has_not_seen():
    context = step("m1", "m2")
    owns(context.state, "m1", B)
    context.grant(member_of(context, "m1"), A)
    context.note(granted(A, None, "m1"))
    context.begin_drain(member_of(context, "m1"), "leave_intended")
    assert (context.state.owner, noted(context)) == ({B: "m1"}, [cancelled(A, None, "m1", "destination_leaving")])


@pytest.mark.parametrize("leaving", [False, True])
def test_asked_member_is_drained_once(leaving: bool):
    context = step("m1", "m2")
    member_of(context, "m1").leaving = leaving
    context.ask(member_of(context, "m1"))
    assert context.emitted == [MemberAsked(member_id="m1", incarnation=1, leave=True)]
    assert context.state.is_asked("m1")
    assert context.causes == (set() if leaving else {"leave_requested"})


@pytest.mark.parametrize(
    ("guarantees", "leaving", "apart"),
    [
        (frozenset(Guarantee), True, True),
        (frozenset(Guarantee), False, False),
        (frozenset(Guarantee) - {Guarantee.LEAVING_APART}, True, False),
    ],
)
def test_warm_up_is_outside_the_caps_for_a_leaving_owner_alone(guarantees: frozenset[Guarantee], leaving: bool, apart: bool):
    context = step("m1", "m2", guarantees=guarantees)
    owns(context.state, "m1", A)
    member_of(context, "m1").leaving = leaving
    assert context.is_apart(A) is apart
    assert context.is_apart(B) is False


# Rounds


def test_round_that_changes_nothing_is_not_issued():
    group = Group(watched=False).starts("m1", stateless=2)
    group.settles()
    assert group.fact(configured(initial_delay_ms=0)) == []


def test_round_says_that_its_plan_is_the_only_one():
    group = Group(watched=False).starts("m1", stateless=2)
    assert [each.decision.unique for each in group.decisions if isinstance(each.decision, AssignmentIssued)] == [True]


# Timers of a group


def test_group_without_members_rests():
    context = step("m1")
    actions.schedule(context.state, context.state.now_ms + 1)
    context.rest_if_empty()
    assert context.state.scheduled_ms is not None
    context.remove_member(member_of(context, "m1"), hold_ms=0)
    context.rest_if_empty()
    assert context.state.scheduled_ms is None


def test_member_that_crashed_repeatedly_is_timed_when_it_joins():
    context = step("m1", "m2")
    for times, is_timed in ((1, False), (2, True)):
        actions.record_crash(context.state, "m1")
        context.back_off_from_crashes("m1")
        timers = {(timer, key) for _, timer, key in context.deadlines.running()}
        assert ((Timer.CRASH_BACKOFF, ("m1", NO_TASK)) in timers) is is_timed, times


@pytest.mark.parametrize("deals_by_lag", [False, True])
def test_initial_delay_waits_once_more_for_lags_that_the_assignor_needs(deals_by_lag: bool):
    context = step("m1")
    context.deals_by_lag = deals_by_lag
    actions.begin_gathering(context.state)
    context.initial_delay_over()
    assert context.causes == (set() if deals_by_lag else {"start"})
    assert context.state.awaiting_lags is deals_by_lag
    if deals_by_lag:
        assert Timer.GATHERING in {timer for _, timer, _ in context.deadlines.running()}
        context.begin_if_lags_known()
        assert context.causes == set()
        context.initial_delay_over()
        assert (context.causes, context.state.gathering_until_ms) == ({"start"}, None)


def test_wait_for_lags_ends_when_the_assignor_no_longer_needs_them():
    context = step("m1")
    actions.begin_gathering(context.state)
    context.begin_if_lags_known()
    assert context.causes == set(), "it waits for the initial delay alone"
    actions.await_lags(context.state)
    context.begin_if_lags_known()
    assert context.causes == {"start"}
