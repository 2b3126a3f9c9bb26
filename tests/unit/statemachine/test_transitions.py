"""What one fact does to a state built by hand, and which facts are rejected with which numbers."""

from __future__ import annotations

from typing import Any, get_args

import attrs
import pytest

from equipoise.assignors import MovementState
from equipoise.events.decisions import MemberAsked, MemberExpired, MemberWarned
from equipoise.events.facts import (
    AssignmentObserved,
    DealRequested,
    Fact,
    LagReported,
    LeaveCancelled,
    LeaveIntended,
    LeaveRequested,
    Load,
    MemberEnded,
    MemberJoined,
    MemberLeft,
    MemberUnchanged,
    ObservedMember,
    PartitionsObserved,
    SilenceObserved,
    TaskParked,
    TaskReady,
    TasksRevoked,
    TroublesReported,
    Undecodable,
)
from equipoise.events.tasks import TaskId
from equipoise.replay.recorded_inputs import Heard
from equipoise.statemachine import actions
from equipoise.statemachine.deadlines import Timer
from equipoise.statemachine.rejections import Rejected
from equipoise.statemachine.state import GroupPhase, Parked, Restart
from equipoise.statemachine.step_context import StepContext
from equipoise.statemachine.transitions import TRANSITIONS
from tests.groups import MARGIN_MS, SESSION_MS, Group, configured, joined, topology
from tests.support.reference_model.model import OF_A_MEMBER
from tests.unit.statemachine.contexts import context_of, gives_up, member_of, moves, owns, step

A, B, C = TaskId(0, 0), TaskId(0, 1), TaskId(0, 2)
WARMING, REVOKING = MovementState.WARMING, MovementState.REVOKING


def happens(context: StepContext, fact: Fact) -> StepContext:
    TRANSITIONS[context.state.phase][type(fact)](context, fact)
    return context


def rejects(context: StepContext, fact: Fact) -> tuple[Any, ...]:
    """Code and numbers of the rejection."""
    with pytest.raises(Rejected) as caught:
        happens(context, fact)
    return caught.value.code, *caught.value.numbers


def report(number: int = 10, epoch: int = 5, member_id: str = "m1", **fields: Any) -> LagReported:
    return LagReported(member_id=member_id, incarnation=1, number=number, assignment_epoch=epoch, **fields)


def timers(context: StepContext) -> set[tuple[Timer, str]]:
    return {(timer, key[0]) for _, timer, key in context.deadlines.running()}


# Envelopes (M3, M4)


OF_MEMBERS = [
    report(),
    TaskReady(member_id="m1", incarnation=1, assignment_epoch=5, tasks=()),
    TasksRevoked(member_id="m1", incarnation=1, assignment_epoch=5, tasks=()),
    LeaveIntended(member_id="m1", incarnation=1),
    LeaveCancelled(member_id="m1", incarnation=1),
    MemberLeft(member_id="m1", incarnation=1),
]


@pytest.mark.parametrize("fact", OF_MEMBERS, ids=lambda fact: type(fact).__name__)
def test_fact_of_an_unknown_member_or_another_incarnation_is_rejected(fact: Any):
    assert rejects(step("m2"), fact) == ("unknown_member",)
    assert rejects(step("m1"), attrs.evolve(fact, incarnation=4)) == ("stale_incarnation", 4, 1)


@pytest.mark.parametrize("fact", OF_MEMBERS[:-1], ids=lambda fact: type(fact).__name__)
def test_fact_of_a_member_renews_its_lease(fact: Any):
    context = step("m1")
    context.state.now_ms += 7_000
    happens(context, fact)
    assert member_of(context, "m1").last_heard_ms == context.state.now_ms


def test_every_fact_of_a_member_shows_the_replay_and_the_model_that_it_lives():
    own = {fact for fact in get_args(Fact) if {"member_id", "incarnation"} <= {field.name for field in attrs.fields(fact)}}
    assert set(get_args(Heard)) == set(OF_A_MEMBER) == own - {MemberJoined, MemberEnded}


@pytest.mark.parametrize("fact", OF_MEMBERS[:3], ids=lambda fact: type(fact).__name__)
def test_acknowledged_epoch_is_at_least_the_applied_and_at_most_the_issued_one(fact: Any):
    context = step("m1")
    member_of(context, "m1").applied_epoch = 3
    assert rejects(context, attrs.evolve(fact, assignment_epoch=6)) == ("epoch_from_future", 6, 5)
    assert rejects(context, attrs.evolve(fact, assignment_epoch=2)) == ("epoch_went_back", 2, 3)
    happens(context, attrs.evolve(fact, assignment_epoch=3))


# Reports (M2)


def test_report_out_of_order_is_rejected():
    context = happens(step("m1"), report(10))
    assert rejects(context, report(10)) == ("report_repeated", 10, 10)
    assert rejects(context, report(11, base=9)) == ("report_base_unknown", 9, 10)
    happens(context, report(11, base=10))


def test_unchanged_names_the_last_report_and_renews_the_lease():
    context = happens(step("m1"), report(10, lags={A: 7}))
    context.state.now_ms += 7_000
    kept = attrs.asdict(member_of(context, "m1"), recurse=False)
    happens(context, MemberUnchanged(member_id="m1", incarnation=1, report=10))
    assert attrs.asdict(member_of(context, "m1"), recurse=False) == {**kept, "last_heard_ms": context.state.now_ms}
    assert (context.causes, context.changed, context.emitted) == (set(), set(), [])
    for number in (9, 11):
        assert rejects(context, MemberUnchanged(member_id="m1", incarnation=1, report=number)) == ("report_base_unknown", number, 10)
    context.state.now_ms += 1
    assert rejects(context, MemberUnchanged(member_id="m1", incarnation=1, report=11)) == ("report_base_unknown", 11, 10)
    assert member_of(context, "m1").last_heard_ms == context.state.now_ms, "also when it is refused"


def test_unchanged_of_an_unknown_member_or_another_incarnation_is_rejected():
    unchanged = MemberUnchanged(member_id="m1", incarnation=1, report=10)
    assert rejects(step("m2"), unchanged) == ("unknown_member",)
    assert rejects(happens(step("m1"), report(10)), attrs.evolve(unchanged, incarnation=4)) == ("stale_incarnation", 4, 1)


def test_unchanged_judges_again_what_is_on_its_way_to_the_member():
    context = happens(step("m1", "m2"), report(10, lags={A: 50}))
    owns(context.state, "m2", A)
    member = member_of(context, "m1")
    actions.begin_warmup(context.state, member, A, caught_up=False)
    happens(context, MemberUnchanged(member_id="m1", incarnation=1, report=10))
    assert (member.warmup[A].caught_up, context.causes) == (True, {"ready"})


def test_report_names_as_held_what_it_was_granted_alone():
    context = step("m1")
    owns(context.state, "m1", A)
    gives_up(context.state, "m1", B)
    happens(context, report(10, held=(A, B)))
    assert rejects(context, report(11, held=(A, B, C))) == ("held_not_granted", 0, 2)
    assert member_of(context, "m1").report_number == 10


def test_report_without_a_task_to_give_up_gives_it_up_when_its_epoch_is_reached():
    context = step("m1", "m2")
    gives_up(context.state, "m1", A, B)
    context.state.members["m1"].issued_epoch = 6  # the epoch of the revocation is issued
    happens(context, report(10, epoch=5))
    assert set(context.state.owner) == {A, B}
    happens(context, report(11, epoch=6, held=(B,)))
    assert set(context.state.owner) == {B}


@pytest.mark.parametrize(("epoch", "held", "keeps_hold"), [(5, (A,), False), (4, (A,), True), (5, (), True)])
def test_hold_ends_when_its_task_is_known_to_run_by_the_grant_that_had_it(epoch: int, held: tuple[TaskId, ...], keeps_hold: bool):
    context = step("m1", "m2")
    owns(context.state, "m2", A)
    context.remove_member(member_of(context, "m2"), hold_ms=SESSION_MS)
    owns(context.state, "m1", A)
    member_of(context, "m1").active[A] = 5
    happens(context, report(10, epoch=epoch, held=held))
    assert (A in context.state.holds) is keeps_hold


def test_hold_of_a_task_that_is_being_given_up_stays():
    context = step("m1", "m2")
    owns(context.state, "m2", A)
    context.remove_member(member_of(context, "m2"), hold_ms=SESSION_MS)
    gives_up(context.state, "m1", A)
    happens(context, report(10, held=(A,)))
    assert A in context.state.holds


def test_report_of_a_load_is_recorded():
    context = step("m1")
    owns(context.state, "m1", A)
    happens(context, report(10, held=(A,), load=Load(restored_records_per_s=70.0, behind={A: 9})))
    assert (context.state.behind, member_of(context, "m1").measured_records_per_s) == ({A: 9}, 70)


def test_preparation_is_dated_from_the_report_that_first_named_it():
    context = step("m1")
    began_ms = context.state.now_ms
    happens(context, report(10, preparing={A: 5}))
    context.state.now_ms += 3_000
    happens(context, report(11, preparing={A: 700, B: 1}))
    preparing = {task: (each.thousandths, each.since_ms) for task, each in member_of(context, "m1").preparing.items()}
    assert preparing == {A: (700, began_ms), B: (1, began_ms + 3_000)}


# Progress of copies


def warming(context: StepContext, **fields: Any) -> StepContext:
    """m1 runs A, m2 warms it up and has reported; `fields`: its next report."""
    owns(context.state, "m1", A)
    moves(context.state, A, "m1", "m2", WARMING)
    return context


@pytest.mark.parametrize(("lag", "causes"), [(10_001, set()), (10_000, {"ready"})])
def test_warm_up_that_catches_up_begins_a_round(lag: int, causes: set[str]):
    context = warming(step("m1", "m2"))
    happens(context, report(member_id="m2", lags={A: lag}))
    assert context.causes == causes


def test_warm_up_that_falls_behind_again_is_timed_again():
    context = warming(step("m1", "m2"))
    member_of(context, "m2").warmup[A].caught_up = True
    context.state.in_flight[A] = attrs.evolve(context.state.in_flight[A], state=REVOKING)
    assert (Timer.STALL, "m2") not in timers(context)
    happens(context, report(member_id="m2", lags={A: 10_001}))
    assert (Timer.STALL, "m2") in timers(context)
    assert context.causes == set()


def test_warm_up_that_loses_its_copy_ends_its_movement():
    context = warming(step("m1", "m2"))
    happens(context, report(member_id="m2", lags={A: 50_000}))
    happens(context, report(11, member_id="m2"))
    assert (context.state.in_flight, context.causes, context.changed) == ({}, {"wiped"}, {"m2"})
    assert [move.reason for move in context.moves.values()] == ["destination_wiped"]


def test_warm_up_without_a_copy_yet_continues():
    context = warming(step("m1", "m2"))
    happens(context, report(member_id="m2"))
    assert (set(context.state.in_flight), context.causes) == ({A}, set())


@pytest.mark.parametrize("other_destination", [False, True])
def test_warm_up_without_a_movement_of_its_own_ends_when_its_copy_is_lost(other_destination: bool):
    """It replaces a standby; a movement of the same task to another member continues."""
    context = step("m1", "m2", "m3")
    owns(context.state, "m1", A)
    if other_destination:
        moves(context.state, A, "m1", "m3", WARMING)
    actions.begin_warmup(context.state, member_of(context, "m2"), A, caught_up=False)
    happens(context, report(member_id="m2", lags={A: 50_000}))
    happens(context, report(11, member_id="m2"))
    assert (member_of(context, "m2").warmup, context.causes, context.changed) == ({}, {"wiped"}, {"m2"})
    assert (A in context.state.in_flight) is other_destination


def test_standby_that_catches_up_for_a_movement_begins_a_round():
    context = step("m1", "m2")
    owns(context.state, "m1", A)
    moves(context.state, A, "m1", "m2", WARMING)
    actions.end_warmup(member_of(context, "m2"), A)
    member_of(context, "m2").standby.add(A)
    happens(context, report(member_id="m2", lags={A: 10_001}))
    assert context.causes == set()
    happens(context, report(11, member_id="m2", lags={A: 10_000}))
    assert context.causes == {"ready"}


@pytest.mark.parametrize("told", [{"lags": {A: 5}}, {"ready": (A,)}])
def test_standby_that_loses_its_copy_ends_the_hand_over_to_it(told: dict[str, Any]):
    context = step("m1", "m2")
    gives_up(context.state, "m1", A)
    moves(context.state, A, "m1", "m2", REVOKING)
    for number in (10, 11):
        happens(context, report(number, member_id="m2", **told))
        assert set(context.state.in_flight) == {A}
    happens(context, report(12, member_id="m2"))
    assert (context.state.in_flight, "wiped" in context.causes) == ({}, True)
    assert [move.reason for move in context.moves.values()] == ["destination_wiped"]


def test_destination_that_never_had_a_copy_loses_none():
    context = step("m1", "m2")
    gives_up(context.state, "m1", A)
    moves(context.state, A, "m1", "m2", REVOKING)
    happens(context, report(member_id="m2"))
    assert (set(context.state.in_flight), context.causes) == ({A}, set())


def test_declared_readiness_of_a_movements_copy_begins_a_round():
    context = warming(step("m1", "m2"))
    ready = TaskReady(member_id="m2", incarnation=1, assignment_epoch=5, tasks=(A,))
    assert happens(context, ready).causes == {"ready"}


@pytest.mark.parametrize("is_standby", [False, True])
def test_declared_readiness_begins_a_round_though_the_lag_is_too_large(is_standby: bool):
    """An assignor may go by the word alone."""
    context = step("m1", "m2")
    owns(context.state, "m1", A)
    member = member_of(context, "m2")
    member.readiness, member.lags[A] = "word_and_lag", 10_001
    if is_standby:
        moves(context.state, A, "m1", "m2", WARMING)
        actions.end_warmup(member, A)
        member.standby.add(A)
    else:  # it replaces a standby
        actions.begin_warmup(context.state, member, A, caught_up=False)
    assert happens(context, TaskReady(member_id="m2", incarnation=1, assignment_epoch=5, tasks=(A,))).causes == {"ready"}


def test_readiness_is_of_assigned_copies_and_running_tasks():
    context = step("m1", "m2")
    owns(context.state, "m1", A)
    member_of(context, "m1").standby.add(B)
    ready = TaskReady(member_id="m1", incarnation=1, assignment_epoch=5, tasks=(A, B))
    happens(context, ready)
    assert (member_of(context, "m1").ready, context.causes) == (frozenset({A, B}), set())
    assert rejects(context, attrs.evolve(ready, tasks=(A, B, C))) == ("not_a_copy", 0, 2)


def test_readiness_of_a_task_that_is_already_handed_over_begins_no_round():
    context = warming(step("m1", "m2"))
    member_of(context, "m2").warmup[A].caught_up = True
    context.state.in_flight[A] = attrs.evolve(context.state.in_flight[A], state=REVOKING)
    happens(context, TaskReady(member_id="m2", incarnation=1, assignment_epoch=5, tasks=(A,)))
    assert context.causes == set()


# Tasks that handle nothing more


def test_failed_task_is_noted_until_it_is_granted_again():
    context = step("m1", "m2")
    owns(context.state, "m1", A)
    token = context.state.tokens[A]
    parked = TaskParked(member_id="m1", incarnation=1, task=A, token=token, topic="in", partition=3, offset=7, error="E: x")
    assert rejects(context, attrs.evolve(parked, task=B)) == ("not_granted", 0, 1, token)
    assert rejects(context, attrs.evolve(parked, token=token - 1)) == ("not_granted", 0, 0, token - 1)
    assert rejects(context, attrs.evolve(parked, member_id="m2")) == ("not_granted", 0, 0, token)
    assert happens(context, parked).causes == set()
    assert context.state.parked == {A: Parked("m1", context.state.now_ms, "in", 3, 7, "E: x")}
    again = attrs.evolve(parked, error="")
    assert rejects(context, attrs.evolve(again, token=token - 1)) == ("not_granted", 0, 0, token - 1)
    assert happens(context, again).causes == set()
    assert context.state.parked == {}
    happens(context, parked)
    gives_up(context.state, "m1", A)
    assert context.state.parked == {}
    happens(context, attrs.evolve(parked, token=token + 1))  # it is being revoked, and still held
    assert set(context.state.parked) == {A}
    actions.grant(context.state, member_of(context, "m2"), A)
    assert context.state.parked == {}


def test_failed_task_that_the_topology_no_longer_has_is_forgotten():
    context = step("m1")
    owns(context.state, "m1", A)
    happens(context, TaskParked(member_id="m1", incarnation=1, task=A, token=context.state.tokens[A], error="E"))
    context.state.parked[TaskId(9, 9)] = context.state.parked[A]
    actions.forget_removed_tasks(context.state)
    assert set(context.state.parked) == {A}


def test_troubles_are_those_of_the_last_report_of_this_incarnation():
    context = step("m1")
    reported = TroublesReported(member_id="m1", incarnation=1, troubles=("quotas", "a source"))
    assert rejects(context, attrs.evolve(reported, incarnation=0)) == ("stale_incarnation", 0, 1)
    assert happens(context, reported).causes == set()
    assert member_of(context, "m1").troubles == ("quotas", "a source")
    happens(context, attrs.evolve(reported, troubles=()))
    assert member_of(context, "m1").troubles == ()


# Tasks that are given up


def test_revocation_names_tasks_to_give_up_in_their_epoch():
    context = step("m1")
    gives_up(context.state, "m1", A, B)
    given_up = TasksRevoked(member_id="m1", incarnation=1, assignment_epoch=5, tasks=(A,))
    assert rejects(context, given_up) == ("epoch_too_low", 5, 6)
    member_of(context, "m1").issued_epoch = 6
    assert rejects(context, attrs.evolve(given_up, assignment_epoch=6, tasks=(A, C))) == ("not_revoking", 0, 2)
    member_of(context, "m1").held = (A, B)
    happens(context, attrs.evolve(given_up, assignment_epoch=6))
    assert (context.state.owner, member_of(context, "m1").held) == ({B: "m1"}, (B,))


# Leaving (M7, M8)


def test_leave_begins_one_drain_and_ends_by_its_cancellation():
    context = step("m1", "m2")
    happens(context, LeaveIntended(member_id="m1", incarnation=1))
    assert (context.causes, member_of(context, "m1").leaving, member_of(context, "m1").intends) == ({"leave_intended"}, True, True)
    context.causes.clear()
    happens(context, LeaveIntended(member_id="m1", incarnation=1))
    assert context.causes == set()
    happens(context, LeaveCancelled(member_id="m1", incarnation=1))
    assert (context.causes, member_of(context, "m1").leaving, member_of(context, "m1").intends) == ({"leave_cancelled"}, False, False)
    context.causes.clear()
    happens(context, LeaveCancelled(member_id="m1", incarnation=1))
    assert context.causes == set()


def test_report_that_the_member_leaves_counts_like_the_fact():
    context = happens(step("m1", "m2"), report(leaving=True))
    assert (context.causes, member_of(context, "m1").intends) == ({"leave_intended"}, True)
    context.causes.clear()
    happens(context, report(11, leaving=True))
    assert context.causes == set()
    happens(context, report(12))
    assert (context.causes, member_of(context, "m1").leaving, member_of(context, "m1").intends) == ({"leave_cancelled"}, False, False)


def test_released_member_cannot_stay():
    context = happens(step("m1", "m2"), LeaveIntended(member_id="m1", incarnation=1))
    member_of(context, "m1").released = True
    context.causes.clear()
    assert rejects(context, LeaveCancelled(member_id="m1", incarnation=1)) == ("already_released",)
    happens(context, report())
    assert (context.causes, member_of(context, "m1").leaving) == (set(), True)


def test_asked_member_leaves_whatever_it_says():
    context = happens(step("m1", "m2"), LeaveRequested(members=("m1",)))
    assert (context.causes, [type(each) for each in context.emitted]) == ({"leave_requested"}, [MemberAsked])
    context.causes.clear()
    happens(context, report())
    happens(context, LeaveCancelled(member_id="m1", incarnation=1))
    assert (context.causes, member_of(context, "m1").leaving) == (set(), True)
    happens(context, LeaveRequested(members=("m1",)))
    assert len(context.emitted) == 1, "it is asked once"


def test_request_for_an_unknown_member_asks_none():
    context = step("m1", "m2")
    assert rejects(context, LeaveRequested(members=("m1", "m8", "m9"))) == ("unknown_members", 2)
    assert context.emitted == []


def test_request_for_another_incarnation_asks_nobody():
    context = step("m1", "m2")
    assert rejects(context, LeaveRequested(members=("m1", "m2"), incarnations=(1, 2))) == ("members_changed", 1)
    assert context.emitted == []
    happens(context, LeaveRequested(members=("m1", "m2"), incarnations=(1, 1)))
    assert [type(each) for each in context.emitted] == [MemberAsked, MemberAsked]


def test_request_after_which_fewer_stay_than_were_to_asks_nobody():
    context = happens(step("m1", "m2", "m3"), LeaveRequested(members=("m3",)))
    context.emitted.clear()
    assert rejects(context, LeaveRequested(members=("m1",), staying=2)) == ("too_few_stay", 1, 2)
    assert context.emitted == []
    happens(context, LeaveRequested(members=("m1", "m3"), staying=1))
    assert context.emitted == [MemberAsked(member_id="m1", incarnation=1, leave=True)]


def test_withdrawn_request_ends_the_drain_unless_the_member_wants_to_leave():
    withdraw = LeaveRequested(members=("m1",), withdrawn=True)
    context = happens(step("m1", "m2"), LeaveRequested(members=("m1",)))
    context.causes.clear()
    happens(context, withdraw)
    assert context.emitted[1:] == [MemberAsked(member_id="m1", incarnation=1, leave=False)]
    assert (context.causes, member_of(context, "m1").leaving) == ({"leave_withdrawn"}, False)
    assert rejects(context, withdraw) == ("nobody_asked",)
    happens(context, LeaveIntended(member_id="m1", incarnation=1))
    happens(context, LeaveRequested(members=("m1",)))
    happens(context, withdraw)
    assert member_of(context, "m1").leaving


def test_request_is_not_withdrawn_after_the_release():
    context = happens(step("m1", "m2"), LeaveRequested(members=("m1",)))
    member_of(context, "m1").released = True
    assert rejects(context, LeaveRequested(members=("m1",), withdrawn=True)) == ("nobody_asked",)


def test_member_that_returns_is_asked_again_by_its_first_report_unless_withdrawn():
    for withdrawn in (False, True):
        context = happens(step("m1", "m2"), LeaveRequested(members=("m1",)))
        context.remove_member(member_of(context, "m1"), hold_ms=0)
        context.emitted.clear()
        if withdrawn:
            happens(context, LeaveRequested(members=("m1",), withdrawn=True))
        happens(context, joined("m1", 2))
        happens(context, LagReported(member_id="m1", incarnation=2, number=0, assignment_epoch=0))
        assert member_of(context, "m1").leaving is not withdrawn
        assert len(context.emitted) == (0 if withdrawn else 1)


def test_cancelled_leave_ends_the_warm_ups_of_its_tasks_alone():
    context = step("m1", "m2", "m3")
    owns(context.state, "m1", A)
    gives_up(context.state, "m1", B)
    owns(context.state, "m2", C)
    happens(context, LeaveIntended(member_id="m1", incarnation=1))
    moves(context.state, A, "m1", "m2", WARMING)
    moves(context.state, B, "m1", "m2", REVOKING)
    moves(context.state, C, "m2", "m3", WARMING)
    happens(context, LeaveCancelled(member_id="m1", incarnation=1))
    assert set(context.state.in_flight) == {B, C}
    assert [move.reason for move in context.moves.values()] == ["source_stays"]


def test_member_that_left_is_forgotten_with_its_request_and_its_crashes():
    context = happens(step("m1"), LeaveRequested(members=("m1",)))
    actions.record_crash(context.state, "m1")
    actions.schedule(context.state, context.state.now_ms + 1)
    happens(context, MemberLeft(member_id="m1", incarnation=1))
    state = context.state
    assert (state.members, state.asked, state.crashes, state.scheduled_ms, "leave" in context.causes) == ({}, {}, {}, None, True)


# Proofs of death (M11)

PROVEN = MemberEnded(member_id="m1", incarnation=1, proof="pid 17 ended")


def test_member_that_is_proven_dead_is_out_at_once_without_a_hold():
    context = step("m1", "m2")
    owns(context.state, "m1", A)
    moves(context.state, B, "m2", "m1", WARMING)
    happens(context, PROVEN)
    state = context.state
    assert (set(state.members), state.owner, state.holds, state.fenced, set(state.in_flight)) == ({"m2"}, {}, {}, {}, set())
    assert context.emitted == [MemberExpired(member_id="m1", incarnation=1, cause="proven_dead", silent_ms=0, hold_ms=0)]
    assert "expiry" in context.causes
    assert state.crashes["m1"].times == 1
    assert rejects(context, PROVEN) == ("not_waited_for", 1)


def test_last_member_that_is_proven_dead_leaves_a_group_at_rest():
    context = step("m1")
    actions.schedule(context.state, context.state.now_ms + 1)
    happens(context, PROVEN)
    assert (context.state.members, context.state.scheduled_ms) == ({}, None)


def test_incarnation_that_was_removed_by_force_is_waited_for_until_it_is_proven_dead():
    context = step("m1", "m2", "m3")
    owns(context.state, "m1", A, B)
    context.remove_member(member_of(context, "m1"), hold_ms=SESSION_MS)
    owns(context.state, "m2", A)
    context.state.holds.update({A: SESSION_MS, B: SESSION_MS})
    assert rejects(context, attrs.evolve(PROVEN, incarnation=2)) == ("not_waited_for", 2)
    context.changed.clear()
    happens(context, PROVEN)
    assert (context.state.fenced, context.state.holds, context.lifted, context.changed) == ({}, {}, True, {"m2"})
    assert context.emitted == [], "it was out before"


def test_proof_renews_no_lease_of_the_next_incarnation():
    context = step("m1")
    context.state.now_ms += 5_000
    happens(context, joined("m1", 2))
    heard_ms = context.state.now_ms
    context.state.now_ms += 1_000
    assert rejects(context, PROVEN) == ("not_waited_for", 1)
    assert member_of(context, "m1").last_heard_ms == heard_ms


def test_another_leaders_member_that_is_proven_dead_is_forgotten():
    group = Group(watched=False)
    group.fact(configured(led_by="external"))
    group.fact(joined("m1"))
    assert group.fact(PROVEN) == []
    assert group.state.members == {}


# Joining (M1)


def test_join_with_a_known_nonce_or_an_old_incarnation_is_rejected():
    context = step("m1")
    assert rejects(context, joined("m1", 1)) == ("join_repeated",)
    assert rejects(context, joined("m1", 1, join_nonce="another")) == ("incarnation_repeated", 1)
    assert rejects(context, joined("m1", 0)) == ("incarnation_too_low", 0, 1)


def test_join_of_a_fenced_incarnation_is_rejected():
    context = step("m1", "m2")
    owns(context.state, "m1", A)
    context.remove_member(member_of(context, "m1"), hold_ms=SESSION_MS)
    assert rejects(context, joined("m1", 1, join_nonce="another")) == ("incarnation_too_low", 1, 1)


def test_join_with_another_topology_of_the_same_epoch_is_rejected_and_remembered():
    context = step("m1")
    fewer, same = topology(stateful=4).subtopologies, topology(stateful=6).subtopologies
    assert rejects(context, joined("m2", subtopologies=fewer)) == ("tasks_missing", 1, 0, 6, 4)
    assert (context.state.refused["m2"].code, context.state.refused["m2"].numbers) == ("tasks_missing", (1, 0, 6, 4))
    happens(context, joined("m2", subtopologies=same))
    happens(context, joined("m3", topology_epoch=2, subtopologies=fewer))  # the group knows no topology of that epoch yet


def test_join_with_a_margin_outside_its_limits_is_rejected():
    context = step("m1")
    most_step_ms = context.state.settings.max_step_ms
    assert rejects(context, joined("m2", lease_margin_ms=most_step_ms - 1)) == ("margin_too_small", most_step_ms - 1, most_step_ms)
    assert rejects(context, joined("m2", session_timeout_ms=MARGIN_MS)) == ("margin_too_large", MARGIN_MS, MARGIN_MS)
    happens(context, joined("m2", lease_margin_ms=most_step_ms, session_timeout_ms=most_step_ms + 1))


@pytest.mark.parametrize(("ended", "cause", "hold_ms"), [(None, "superseded", 9_000), (0, "superseded", 9_000), (1, "proven_dead", 0)])
def test_next_incarnation_ends_the_former_one(ended: int | None, cause: str, hold_ms: int):
    context = step("m1")
    member_of(context, "m1").session_timeout_ms = 9_000
    happens(context, joined("m1", 2, ended_incarnation=ended))
    (expired,) = context.emitted
    assert isinstance(expired, MemberExpired)
    assert (expired.incarnation, expired.cause, expired.hold_ms) == (1, cause, hold_ms)
    assert (member_of(context, "m1").incarnation, context.causes) == (2, {"join"})
    assert (Timer.SESSION, "m1") in timers(context)


def test_speed_of_a_new_member_is_its_former_one_else_the_slowest_known():
    context = step("m1", "m2", "m3")
    for member_id, speed, measured in (("m1", 70, 60), ("m2", 50, 0)):
        member_of(context, member_id).restore_records_per_s, member_of(context, member_id).measured_records_per_s = speed, measured
    happens(context, joined("m4"))
    happens(context, joined("m1", 2))
    happens(context, joined("m3", 2))
    speeds = {name: (member.restore_records_per_s, member.measured_records_per_s) for name, member in context.state.members.items()}
    assert speeds == {"m1": (70, 60), "m2": (50, 0), "m3": (50, 0), "m4": (50, 0)}


def test_speed_of_a_new_member_is_unknown_when_no_other_is():
    assert member_of(happens(step("m1"), joined("m2")), "m2").restore_records_per_s == 0


@pytest.mark.parametrize(("initial_delay_ms", "others", "gathers"), [(500, False, True), (0, False, False), (500, True, False)])
def test_first_member_begins_the_initial_delay(initial_delay_ms: int, others: bool, gathers: bool):
    group = Group(watched=False)
    group.fact(configured(initial_delay_ms=0))
    if others:
        group.fact(joined("m0"))
    group.fact(configured(initial_delay_ms=initial_delay_ms))
    context = happens(context_of(group), joined("m1"))
    assert (group.state.gathering_until_ms is not None) is gathers
    assert ((Timer.GATHERING, "") in timers(context)) is gathers


def test_member_that_joins_after_two_crashes_is_in_back_off():
    context = step("m1")
    actions.record_crash(context.state, "m2")
    actions.record_crash(context.state, "m2")
    happens(context, joined("m2"))
    assert (Timer.CRASH_BACKOFF, "m2") in timers(context)


def test_join_and_configuration_warn_of_racks_that_contradict_the_tags():
    group = Group(watched=False)
    group.fact(configured(initial_delay_ms=0, rack_aware_tags=("rack",), num_standbys=1))
    warned = MemberWarned(member_id="m1", incarnation=1, code="rack_tag_missing", said="r1", tag=None)
    context = happens(context_of(group), joined("m1", rack="r1"))
    assert context.emitted == [warned]
    again = configured(initial_delay_ms=0, rack_aware_tags=("rack",), num_standbys=1)
    assert happens(context_of(group), again).emitted == []
    assert happens(context_of(group), attrs.evolve(again, knobs=attrs.evolve(again.knobs, rack_aware_tags=("rack", "zone")))).emitted == [warned]


# Configurations (D8)


def test_leader_changes_in_an_empty_group_alone():
    context = step("m1", "m2")
    assert rejects(context, configured(led_by="external")) == ("leader_change", 2)
    happens(context, configured())


def test_step_is_at_most_the_smallest_margin():
    context = step("m1", "m2")
    member_of(context, "m2").lease_margin_ms = 700
    assert rejects(context, configured(max_step_ms=701)) == ("step_exceeds_margin", 701, 700)
    happens(context, configured(max_step_ms=700))


def test_step_is_at_most_the_margin_of_a_fenced_incarnation():
    context = step("m1", "m2")
    owns(context.state, "m1", A)
    member_of(context, "m1").lease_margin_ms = 700
    context.remove_member(member_of(context, "m1"), hold_ms=SESSION_MS)
    assert rejects(context, configured(max_step_ms=701)) == ("step_exceeds_margin", 701, 700)


def test_refused_configuration_changes_nothing():
    context = step("m1")
    context.refusal_of = lambda config: "knobs_refused"
    before = context.state.config
    assert rejects(context, configured(num_standbys=1)) == ("knobs_refused",)
    assert context.state.config is before


def test_changed_limit_goes_to_the_members_that_follow_it_and_have_an_assignment():
    context = step("m1", "m2", "m3")
    for member_id in ("m1", "m3"):
        member_of(context, member_id).readiness = "lag"
    member_of(context, "m3").issued_epoch = 0
    happens(context, configured(initial_delay_ms=0))
    assert context.changed == set(), "the limits are what they were"
    lower = configured(initial_delay_ms=0, acceptable_recovery_lag=9)
    for changed in (lower, attrs.evolve(lower, knobs=attrs.evolve(lower.knobs, acceptable_recovery_ms=5))):
        context.changed.clear()
        happens(context, changed)
        assert context.changed == {"m1"}
    assert context.causes == {"configured"}


def lowered(context: StepContext, **settings: Any) -> dict[str, set[TaskId]]:
    """The warm-ups that are left after a configuration."""
    happens(context, configured(initial_delay_ms=0, **settings))
    return {name: set(member.warmup) for name, member in context.state.members.items() if member.warmup}


def three_warm_ups() -> StepContext:
    """m1 runs A, B, C. m2 warms up A and B, m3 warms up C; B is the nearest, C the furthest."""
    context = step("m1", "m2", "m3")
    owns(context.state, "m1", A, B, C)
    for task, destination, lag in ((A, "m2", 500), (B, "m2", 100), (C, "m3", 900)):
        moves(context.state, task, "m1", destination, WARMING)
        member_of(context, destination).lags[task] = lag
    return context


def test_lowered_caps_end_the_warm_ups_that_are_furthest_from_ready():
    context = three_warm_ups()
    assert lowered(context, max_warmups=2, max_warmups_per_member=2) == {"m2": {A, B}}
    assert [(move.task, move.reason) for move in context.moves.values()] == [(C, "reconfigured")]
    assert lowered(three_warm_ups(), max_warmups=3, max_warmups_per_member=1) == {"m2": {B}, "m3": {C}}
    assert lowered(three_warm_ups(), max_warmups=3, max_warmups_per_member=2) == {"m2": {A, B}, "m3": {C}}


def test_lowered_caps_end_a_warm_up_of_unknown_lag_first():
    context = three_warm_ups()
    del member_of(context, "m2").lags[B]
    assert lowered(context, max_warmups=2, max_warmups_per_member=2) == {"m2": {A}, "m3": {C}}


def test_lowered_caps_keep_what_is_handed_over_already():
    context = three_warm_ups()
    context.state.in_flight[C] = attrs.evolve(context.state.in_flight[C], state=REVOKING)
    assert lowered(context, max_warmups=1, max_warmups_per_member=1) == {"m3": {C}}


def test_lowered_caps_do_not_count_warm_ups_for_a_leaving_owner():
    context = three_warm_ups()
    member_of(context, "m1").leaving = True
    assert lowered(context, max_warmups=1, max_warmups_per_member=1) == {"m2": {A, B}, "m3": {C}}


def test_lowered_caps_count_the_other_warm_ups_of_a_member_that_takes_over_from_a_leaving_one():
    context = step("m1", "m2", "m3")
    owns(context.state, "m1", A)
    owns(context.state, "m3", B, C)
    member_of(context, "m1").leaving = True
    for task, source, lag in ((A, "m1", 900), (B, "m3", 100), (C, "m3", 500)):
        moves(context.state, task, source, "m2", WARMING)
        member_of(context, "m2").lags[task] = lag
    assert lowered(context, max_warmups=1, max_warmups_per_member=1) == {"m2": {A, B}}


def test_lowered_cap_of_a_member_counts_each_of_its_warm_ups():
    context = step("m1", "m2")
    owns(context.state, "m1", A, B, C)
    for lag, task in enumerate((A, B, C)):
        moves(context.state, task, "m1", "m2", WARMING)
        member_of(context, "m2").lags[task] = lag
    assert lowered(context, max_warmups=6, max_warmups_per_member=2) == {"m2": {A, B}}


def test_configuration_with_shorter_times_finds_timers_that_run():
    context = warming(step("m1", "m2"))
    happens(context, configured(initial_delay_ms=0))
    stall_ms = context.state.settings.warmup_stall_ms
    assert (Timer.STALL, "m2") in timers(context)
    happens(context, configured(initial_delay_ms=0, warmup_stall_ms=stall_ms // 2))
    assert (Timer.STALL, "m2") in timers(context)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_lowered_caps_end_a_warm_up_that_replaces_a_standby_without_a_move(elsewhere: bool):
    context = step("m1", "m2", "m3")
    owns(context.state, "m1", A, B)
    for task, lag in ((A, 100), (B, 500)):
        actions.begin_warmup(context.state, member_of(context, "m2"), task, caught_up=False)
        member_of(context, "m2").lags[task] = lag
    if elsewhere:
        actions.begin_movement(context.state, attrs.evolve(three_warm_ups().state.in_flight[B], destination="m3", state=REVOKING))
    assert lowered(context, max_warmups=1, max_warmups_per_member=1) == {"m2": {A}}
    assert (context.moves, context.changed) == ({}, {"m2"})


def test_movement_to_a_standby_beyond_the_wanted_number_counts_as_a_warm_up():
    context = step("m1", "m2", "m3")
    owns(context.state, "m1", A, B)
    moves(context.state, A, "m1", "m2", WARMING)
    actions.end_warmup(member_of(context, "m2"), A)
    member_of(context, "m2").standby.add(A)
    member_of(context, "m2").lags[A] = 900
    moves(context.state, B, "m1", "m3", WARMING)
    member_of(context, "m3").lags[B] = 100
    happens(context, configured(initial_delay_ms=0, num_standbys=1, max_warmups=1, max_warmups_per_member=1))
    assert set(context.state.in_flight) == {A, B}
    happens(context, configured(initial_delay_ms=0, num_standbys=0, max_warmups=1, max_warmups_per_member=1))
    assert set(context.state.in_flight) == {B}


# Topologies, partitions


def test_topology_ends_the_movements_of_tasks_that_it_drops():
    context = three_warm_ups()
    assert rejects(context, topology(1, stateful=1)) == ("topology_not_newer", 1, 1)
    happens(context, topology(2, stateful=1))
    assert (set(context.state.in_flight), context.causes) == ({A}, {"topology"})
    assert {(move.task, move.reason) for move in context.moves.values()} == {(B, "task_gone"), (C, "task_gone")}


def test_topology_forgets_what_was_known_of_tasks_that_it_drops():
    context = step("m1", "m2")
    owns(context.state, "m1", A, B)
    actions.begin_backoff(context.state, member_of(context, "m2"), B)
    context.remove_member(member_of(context, "m1"), hold_ms=0)
    happens(context, topology(2, stateful=1))
    assert (set(context.state.lost), context.state.previous_owners, context.state.backoffs) == ({A}, {A: "m1"}, {})


@pytest.mark.parametrize(("strategy", "causes"), [("none", set()), ("min_traffic", {"racks"})])
def test_changed_racks_begin_a_round_where_racks_count(strategy: str, causes: set[str]):
    group = Group(watched=False)
    group.fact(configured(initial_delay_ms=0, rack_aware_strategy=strategy))
    group.fact(topology(stateful=1))
    observed = PartitionsObserved(racks={"in": {0: ("r1",)}})
    context = happens(context_of(group), observed)
    assert context.causes == causes
    assert happens(context_of(group), observed).causes == set()
    assert happens(context_of(group), PartitionsObserved(end_offsets={"log": {0: 5}})).causes == set()


# Deals


def test_deal_is_rejected_where_nothing_is_dealt_or_tasks_are_handed_over():
    context = step("m1", "m2")
    assert rejects(context, DealRequested()) == ("deals_nothing",)
    context.deals_by_lag = True
    assert happens(context, DealRequested()).causes == {"deal_requested"}
    gives_up(context.state, "m1", A, B)
    moves(context.state, A, "m1", "m2", REVOKING)
    assert rejects(context, DealRequested()) == ("handing_over", 2)


def test_deal_is_rejected_before_the_first_one():
    context = step("m1")
    context.deals_by_lag = True
    actions.begin_gathering(context.state)
    assert rejects(context, DealRequested()) == ("not_dealt_yet",)


# Another leader (D7)


def shadowing() -> StepContext:
    group = Group(watched=False)
    group.fact(configured(led_by="external", initial_delay_ms=500))
    group.fact(topology(stateful=3))
    for member_id in ("m1", "m2"):
        group.fact(joined(member_id))
    assert group.state.phase is GroupPhase.SHADOWING
    return context_of(group)


def observed(generation: int, **active: tuple[TaskId, ...]) -> AssignmentObserved:
    members = tuple(ObservedMember(member_id=name, incarnation=1, active=tasks) for name, tasks in sorted(active.items()))
    return AssignmentObserved(generation=generation, members=members)


def test_observed_assignment_is_checked_before_it_becomes_current():
    context = shadowing()
    assert rejects(context, observed(3, m9=())) == ("unknown_member",)
    other = attrs.evolve(observed(3, m1=()), members=(ObservedMember(member_id="m1", incarnation=8),))
    assert rejects(context, other) == ("stale_incarnation", 8, 1)
    assert rejects(context, observed(3, m1=(A,), m2=(A,))) == ("task_owned_twice", 0, 0)
    assert rejects(context, observed(3, m1=(TaskId(0, 3),))) == ("observed_unknown_task", 0, 3)
    assert set(context.state.members) == {"m1", "m2"}
    happens(context, observed(3, m1=(A,)))
    assert (set(context.state.members), context.state.generation, context.observed) == ({"m1"}, 3, observed(3, m1=(A,)))
    assert rejects(context, observed(3, m1=(A,))) == ("generation_not_newer", 3, 3)


def test_member_that_another_leader_no_longer_names_is_gone_without_a_hold():
    context = shadowing()
    actions.observe_assignment(context.state, observed(3, m1=(A,), m2=(B,)))
    actions.observe_generation(context.state, 3)
    happens(context, observed(4, m1=(A,)))
    assert (set(context.state.members), context.state.holds, context.state.fenced) == ({"m1"}, {}, {})


def test_member_of_another_leader_joins_without_delay_and_replaces_its_former_incarnation():
    context = shadowing()
    actions.observe_assignment(context.state, observed(3, m1=(A,), m2=(B,)))
    happens(context, joined("m1", 2))
    assert (context.state.owner, context.state.holds, context.state.fenced) == ({B: "m2"}, {}, {})
    assert (context.emitted, context.state.gathering_until_ms, context.state.crashes) == ([], None, {})
    assert member_of(context, "m1").incarnation == 2


def test_report_to_another_leader_is_recorded_and_judged_by_nothing():
    context = shadowing()
    happens(context, report(0, epoch=0, held=(A,), leaving=True, lags={B: 4}))
    member = member_of(context, "m1")
    assert (member.held, member.lags, member.leaving, context.causes) == ((A,), {B: 4}, False, set())


@pytest.mark.parametrize("fact", OF_MEMBERS[1:5], ids=lambda fact: type(fact).__name__)
def test_fact_for_a_leading_equipoise_is_rejected_in_shadow_and_shows_that_the_member_lives(fact: Any):
    context = shadowing()
    context.state.now_ms += 5_000
    assert rejects(context, fact) == ("external",)
    assert member_of(context, "m1").last_heard_ms == context.state.now_ms


@pytest.mark.parametrize("fact", [LeaveRequested(members=("m1",)), DealRequested()])
def test_request_of_an_operator_is_rejected_in_shadow(fact: Any):
    assert rejects(shadowing(), fact) == ("external",)


def test_observed_assignment_is_rejected_where_equipoise_leads():
    assert rejects(step("m1"), observed(9, m1=())) == ("not_external",)


def test_fact_before_the_first_configuration_is_rejected():
    context = context_of(Group(watched=False))
    assert rejects(context, joined("m1")) == ("not_configured",)


def test_undecodable_fact_is_rejected_with_its_size_and_checksum():
    assert rejects(step("m1"), Undecodable(code="json", length_bytes=7, crc32=9)) == ("undecodable", 7, 9)


# Silence (L11)


def silent(context: StepContext, after_offset: int = 12, **silent_ms: int) -> SilenceObserved:
    """As the worker measured behind fact 12, which was the last one."""
    context.previous_offset = 12
    return SilenceObserved(silent_ms=silent_ms, after_offset=after_offset)


def silences(context: StepContext) -> dict[str, int]:
    """Member -> how long it was silent, in ms of group time."""
    return {name: context.state.now_ms - member.last_heard_ms for name, member in context.state.members.items()}


def test_members_are_as_silent_as_the_worker_measured_where_that_is_longer():
    context = step("m1", "m2", "m3")
    context.state.now_ms += 2_000
    before = silences(context)
    measured = {"m1": before["m1"] + 500, "m2": before["m2"] - 500, "m4": 9_000, "m3": before["m3"] + SESSION_MS}
    happens(context, silent(context, **measured))
    assert silences(context) == {"m1": before["m1"] + 500, "m2": before["m2"], "m3": SESSION_MS}


def test_time_of_a_silent_member_runs_out_by_what_was_measured():
    context = step("m1", "m2")
    happens(context, silent(context, m1=SESSION_MS - 700))
    ends = {key[0]: at_ms - context.state.now_ms for at_ms, timer, key in context.deadlines.running() if timer is Timer.SESSION}
    assert ends["m1"] == 700


def test_silence_of_a_member_that_is_away_does_not_count():
    context = step("m1", "m2")
    context.state.restarts["m1"] = Restart(asked_ms=0, within_ms=60_000, stated=True, wait_turn=False, left_ms=context.state.now_ms)
    before = silences(context)
    happens(context, silent(context, m1=5_000, m2=5_000))
    assert silences(context) == {**before, "m2": 5_000}


def test_silence_behind_which_something_came_is_rejected():
    context = step("m1")
    assert rejects(context, silent(context, 11, m1=5_000)) == ("silence_outdated", 11, 12)
    happens(context, silent(context, m1=5_000))
    assert silences(context) == {"m1": 5_000}
