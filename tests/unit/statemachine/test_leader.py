"""What a round makes of the assignor's plan. The plans are written by hand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs
import pytest

from equipoise.assignors import AssignmentProblem, MemberPlan, Movement, MovementState, Plan, PlanCost, Reason, Revocations
from equipoise.events.decisions import (
    AssignmentIssued,
    AssignmentProposed,
    BalanceEvaluated,
    MemberAssigned,
    MemberAssignedPart,
    MemberExpired,
    Move,
    ProposedMember,
)
from equipoise.events.errors import GroupHalted
from equipoise.events.facts import PartitionsObserved
from equipoise.events.tasks import TaskId
from equipoise.statemachine import actions, leader
from equipoise.statemachine.deadlines import Timer
from equipoise.statemachine.state import GroupState, Lost, SlotBackoff
from equipoise.statemachine.step_context import StepContext
from tests.groups import configured
from tests.unit.statemachine.contexts import gives_up, member_of, moves, owns, step

A, B, C, D = (TaskId(0, partition) for partition in range(4))
WAITING, WARMING, REVOKING = MovementState.WAITING, MovementState.WARMING, MovementState.REVOKING
BALANCE = Reason(code="balance", lag_records=7)


class Answers:
    """An assignor with one answer."""

    name, version, solver, guarantees = "answers", 3, "", frozenset[Any]()

    def __init__(self, answer: Plan) -> None:
        self.answer = answer
        self.asked: AssignmentProblem | None = None

    def assign(self, problem: AssignmentProblem) -> Plan:
        self.asked = problem
        return self.answer


def plan(
    state: GroupState,
    active: Mapping[str, Iterable[TaskId]],
    *flights: Movement,
    standby: Mapping[str, tuple[TaskId, ...]] | None = None,
    warmup: Mapping[str, tuple[TaskId, ...]] | None = None,
    reasons: Mapping[TaskId, Reason] | None = None,
    **fields: Any,
) -> Plan:
    """`active`: what each member may run now; what else it owns it must give up."""
    owned = {name: {*member.active, *member.revoking} for name, member in state.members.items()}
    parts = {
        name: MemberPlan(
            active=tuple(sorted(active.get(name, ()))),
            revoke=tuple(sorted(owned[name] - set(active.get(name, ())))),
            standby=(standby or {}).get(name, ()),
            warmup=(warmup or {}).get(name, ()),
        )
        for name in sorted(state.members)
    }
    ends = {task: name for name, part in parts.items() for task in part.active}
    ends.update({flight.task: flight.destination for flight in flights})
    target = {name: tuple(sorted(task for task, end in ends.items() if end == name)) for name in parts}
    now = {task: name for name, part in parts.items() for task in (*part.active, *part.revoke)}
    changes = sum(now.get(task, end) != end for task, end in ends.items())
    cost = PlanCost(moves=changes, moves_lower_bound=0, restore_records=0, cross_rack=0, imbalance=0, optimal=True)
    why = {**{flight.task: BALANCE for flight in flights}, **(reasons or {})}
    return Plan(members=parts, target=target, movements=flights, reasons=why, **{"probing": False, "cost": cost, **fields})


def flight(task: TaskId, source: str | None, destination: str, state: MovementState) -> Movement:
    return Movement(task=task, source=source, destination=destination, state=state)


def decided(context: StepContext, answer: Plan) -> StepContext:
    leader.decide(context, Answers(answer), 9)
    return context


def issued(context: StepContext) -> list[Any]:
    leader.settle(context)
    leader.issue(context)
    return [each for each in context.emitted if not isinstance(each, BalanceEvaluated)]


def noted(context: StepContext) -> list[tuple[TaskId, str | None, str | None, str, str]]:
    moved = [context.moves[place] for place in sorted(context.moves)]
    return [(each.task, each.source, each.destination, each.state, each.reason) for each in moved]


def timers(context: StepContext) -> set[tuple[Timer, str]]:
    return {(timer, key[0]) for _, timer, key in context.deadlines.running()}


# Revocations and grants


def test_task_that_is_to_move_is_revoked_in_time():
    context = step("m1", "m2")
    owns(context.state, "m1", A, B)
    decided(context, plan(context.state, {"m1": [B]}, flight(A, "m1", "m2", REVOKING)))
    member = member_of(context, "m1")
    assert (set(member.active), member.revoking) == ({B}, {A: (6, context.state.now_ms)})
    assert noted(context) == [(A, "m1", "m2", "revoking", "balance")]
    assert context.moves[next(iter(context.moves))].lag_records == 7
    assert (context.changed, context.state.in_flight) == ({"m1"}, {A: flight(A, "m1", "m2", REVOKING)})
    assert (Timer.REVOCATION, "m1") in timers(context)


def test_task_that_stays_changes_nothing():
    context = step("m1", "m2")
    owns(context.state, "m1", A)
    decided(context, plan(context.state, {"m1": [A]}))
    assert (noted(context), context.changed) == ([], set())


@pytest.mark.parametrize("lag", [None, 3, 20_000])
def test_grant_of_a_free_task_says_why(lag: int | None):
    context = step("m1", "m2", stateless=1)
    state = context.state
    actions.observe_partitions(state, PartitionsObserved(end_offsets={"log": {0: 50_000}}))
    if lag is not None:
        member_of(context, "m1").lags[A] = lag
    decided(context, plan(state, {"m1": [A, TaskId(1, 0)]}))
    assert state.owner == {A: "m1", TaskId(1, 0): "m1"}
    assert noted(context) == [
        (A, None, "m1", "granted", "unowned" if lag == 3 else "unowned_cold"),
        (TaskId(1, 0), None, "m1", "granted", "unowned_stateless"),
    ]
    assert [move.lag_records for move in context.moves.values()] == [50_000 if lag is None else lag, None]
    assert context.changed == {"m1"}


def test_grant_has_the_reason_of_the_plan():
    context = step("m1", "m2")
    decided(context, plan(context.state, {"m1": [A]}, reasons={A: Reason(code="lost_for_good", lag_records=4)}))
    assert [(move.reason, move.lag_records) for move in context.moves.values()] == [("lost_for_good", 4)]


@pytest.mark.parametrize(("previous", "source", "reason"), [("m1", None, "return_home"), ("m2", "m2", "unowned_cold"), ("m9", "m9", "unowned_cold")])
def test_grant_names_the_previous_owner(previous: str, source: str | None, reason: str):
    context = step("m1", "m2")
    context.state.previous_owners[A] = previous
    decided(context, plan(context.state, {"m1": [A]}))
    assert noted(context) == [(A, source, "m1", "granted", reason)]


def test_task_that_its_member_has_not_given_up_yet_is_taken_back():
    context = step("m1", "m2")
    gives_up(context.state, "m1", A)
    decided(context, plan(context.state, {"m1": [A]}))
    assert noted(context) == [(A, None, "m1", "granted", "taken_back")]
    assert (set(member_of(context, "m1").active), member_of(context, "m1").revoking) == ({A}, {})


def test_grant_before_a_movement_that_begins_at_once_has_a_reason_of_its_own():
    context = step("m1", "m2")
    decided(context, plan(context.state, {"m1": [A]}, flight(A, "m1", "m2", WARMING), warmup={"m2": (A,)}))
    assert noted(context) == [(A, None, "m1", "granted", "unowned_cold"), (A, "m1", "m2", "warming", "balance")]


def test_grant_that_no_member_has_seen_is_passed_on():
    context = step("m1", "m2")
    state = context.state
    context.grant(member_of(context, "m1"), A)
    context.note(Move(task=A, source="m0", destination="m1", state="granted", reason="carried"))
    decided(context, plan(state, {}, flight(A, "m1", "m2", REVOKING)))
    assert (state.owner, state.in_flight) == ({A: "m2"}, {})
    assert noted(context) == [(A, "m0", "m2", "granted", "carried")]
    assert state.probing_deadline_ms == state.now_ms, "no report tells that the movement is complete"
    assert (Timer.PROBING, "") in timers(context)


def test_grant_passed_on_beside_a_movement_needs_no_round():
    context = step("m1", "m2")
    owns(context.state, "m1", B)
    context.grant(member_of(context, "m1"), A)
    context.note(Move(task=A, source=None, destination="m1", state="granted", reason="carried"))
    decided(context, plan(context.state, {}, flight(A, "m1", "m2", REVOKING), flight(B, "m1", "m2", REVOKING)))
    assert context.state.probing_deadline_ms is None


def test_grant_that_no_member_has_seen_hides_no_revocation():
    context = step("m1", "m2")
    owns(context.state, "m1", B)
    context.grant(member_of(context, "m1"), A)
    context.note(Move(task=A, source=None, destination="m1", state="granted", reason="carried"))
    decided(context, plan(context.state, {}, flight(A, "m1", "m2", REVOKING), flight(B, "m1", "m2", REVOKING)))
    assert (context.state.owner, set(member_of(context, "m1").revoking)) == ({A: "m2", B: "m1"}, {B})


def test_grant_passed_on_to_an_eager_member_that_has_nothing_is_made_at_once():
    context = step("m1", "m2", eager=("m2",))
    context.grant(member_of(context, "m1"), A)
    context.note(Move(task=A, source=None, destination="m1", state="granted", reason="carried"))
    decided(context, plan(context.state, {}, flight(A, "m1", "m2", REVOKING)))
    assert (context.state.owner, member_of(context, "m2").eager_regrants) == ({A: "m2"}, {})


# Movements


def test_movement_that_continues_is_not_noted_again():
    context = step("m1", "m2")
    owns(context.state, "m1", A)
    moves(context.state, A, "m1", "m2", WARMING)
    decided(context, plan(context.state, {"m1": [A]}, flight(A, "m1", "m2", WARMING), warmup={"m2": (A,)}))
    assert (noted(context), set(context.state.in_flight), set(member_of(context, "m2").warmup)) == ([], {A}, {A})


def test_movement_that_the_plan_lacks_is_cancelled():
    context = step("m1", "m2")
    owns(context.state, "m1", A, B)
    for task in (B, A):
        moves(context.state, task, "m1", "m2", WARMING)
    decided(context, plan(context.state, {"m1": [A, B]}))
    assert noted(context) == [(task, "m1", "m2", "cancelled", "not_wanted") for task in (A, B)]
    assert (member_of(context, "m2").warmup, context.changed) == ({}, {"m2"})


def test_movement_that_waits_is_counted_and_queued_if_a_slot_is_all_it_waits_for():
    context = step("m1", "m2")
    owns(context.state, "m1", A, B, C, D)
    moves(context.state, C, "m1", "m2", WARMING)
    flights = [*(flight(task, "m1", "m2", WAITING) for task in (A, B, C)), flight(D, "m1", "m2", REVOKING)]
    reasons = {A: Reason(code="slot_full"), B: Reason(code="blocked"), C: Reason(code="slot_full")}
    decided(context, plan(context.state, {"m1": [A, B, C]}, *flights, reasons=reasons))
    assert (context.state.waiting, context.state.queued, set(context.state.in_flight)) == (3, {A: "m2", C: "m2"}, {D})
    assert noted(context) == [(C, "m1", "m2", "cancelled", "not_wanted"), (D, "m1", "m2", "revoking", "balance")]


def test_warm_up_of_a_new_movement_is_timed():
    context = step("m1", "m2")
    owns(context.state, "m1", A)
    decided(context, plan(context.state, {"m1": [A]}, flight(A, "m1", "m2", WARMING), warmup={"m2": (A,)}))
    assert noted(context) == [(A, "m1", "m2", "warming", "balance")]
    assert (context.changed, (Timer.STALL, "m2") in timers(context)) == ({"m2"}, True)


def test_copy_that_is_ready_can_stall_once_a_movement_waits_for_it():
    context = step("m1", "m2")
    owns(context.state, "m1", A)
    actions.begin_warmup(context.state, member_of(context, "m2"), A, caught_up=True)
    decided(context, plan(context.state, {"m1": [A]}, flight(A, "m1", "m2", WARMING), warmup={"m2": (A,)}))
    assert (Timer.STALL, "m2") in timers(context)


def test_movement_that_an_eager_regrant_replaces_is_not_cancelled():
    context = step("m1", "m2", eager=("m2",))
    gives_up(context.state, "m1", C)
    owns(context.state, "m1", B)
    moves(context.state, A, None, "m2", REVOKING)
    moves(context.state, B, "m1", "m2", WARMING)
    moves(context.state, C, "m1", "m2", REVOKING)
    actions.add_eager_regrant(member_of(context, "m2"), A, had_it=False)
    decided(context, plan(context.state, {"m1": [B], "m2": [A]}, flight(C, "m1", "m2", REVOKING)))
    assert noted(context) == [(B, "m1", "m2", "cancelled", "not_wanted")]


# Copies


def test_copies_are_those_of_the_plan():
    context = step("m1", "m2", "m3")
    owns(context.state, "m1", A, B, C)
    member = member_of(context, "m2")
    member.standby = {A}
    member.lags[C] = 3
    actions.begin_warmup(context.state, member, B, caught_up=False)
    decided(context, plan(context.state, {"m1": [A, B, C]}, standby={"m2": (B,)}, warmup={"m2": (C,)}))
    assert (member.standby, {task: warmup.caught_up for task, warmup in member.warmup.items()}) == ({B}, {C: True})
    assert (context.changed, (Timer.STALL, "m2") in timers(context)) == ({"m2"}, False), "a copy that is ready never stalls"
    context.changed.clear()
    decided(context, plan(context.state, {"m1": [A, B, C]}, standby={"m2": (B,)}, warmup={"m2": (C,)}))
    assert context.changed == set()


@pytest.mark.parametrize(("standby", "warmup"), [((A,), ()), ((), (A,))])
def test_copies_that_the_plan_lacks_end(standby: tuple[TaskId, ...], warmup: tuple[TaskId, ...]):
    context = step("m1", "m2")
    owns(context.state, "m1", A)
    decided(context, plan(context.state, {"m1": [A]}, standby={"m2": standby}, warmup={"m2": warmup}))
    assert context.changed == {"m2"}
    context.changed.clear()
    decided(context, plan(context.state, {"m1": [A]}))
    assert (member_of(context, "m2").standby, member_of(context, "m2").warmup, context.changed) == (set(), {}, {"m2"})


# Leaving


@pytest.mark.parametrize(("leaving", "owned", "released"), [(True, (), True), (True, (A,), False), (False, (), False)])
def test_leaving_member_that_owns_nothing_is_released(leaving: bool, owned: tuple[TaskId, ...], released: bool):
    for settles in (False, True):
        context = step("m1", "m2")
        owns(context.state, "m1", *owned)
        member_of(context, "m1").leaving = leaving
        if settles:
            context.changed.add("m1")
            leader.settle(context)
        else:
            flights = [flight(task, "m1", "m2", WAITING) for task in owned if leaving]
            decided(context, plan(context.state, {"m1": owned}, *flights))
            assert context.changed == ({"m1"} if released else set())
        assert member_of(context, "m1").released is released


def test_released_member_that_stays_is_readmitted():
    context = step("m1", "m2")
    member_of(context, "m1").released = True
    decided(context, plan(context.state, {}))
    assert not member_of(context, "m1").released
    member_of(context, "m1").leaving = member_of(context, "m1").released = True
    decided(context, plan(context.state, {}))
    assert member_of(context, "m1").released
    assert context.changed == set(), "it was told before"


# Eager members


def test_eager_member_gives_up_all_for_one_task_that_comes():
    context = step("m1", "m2", eager=("m2",))
    owns(context.state, "m1", A)
    owns(context.state, "m2", B, C)
    decided(context, plan(context.state, {"m2": [B, C]}, flight(A, "m1", "m2", REVOKING)))
    assert (set(member_of(context, "m2").revoking), member_of(context, "m2").eager_regrants) == ({B, C}, {B: True, C: True})
    assert noted(context) == [(A, "m1", "m2", "revoking", "balance"), (B, "m2", "m2", "revoking", "eager"), (C, "m2", "m2", "revoking", "eager")]


def test_eager_member_whose_tasks_stay_keeps_them():
    context = step("m1", "m2", eager=("m1", "m2"))
    owns(context.state, "m1", A)
    owns(context.state, "m2", B)
    decided(context, plan(context.state, {"m1": [A], "m2": [B]}, flight(A, "m1", "m2", WARMING), warmup={"m2": (A,)}))
    assert [set(member_of(context, name).active) for name in ("m1", "m2")] == [{A}, {B}]


@pytest.mark.parametrize("granted", [(), (A,)])
def test_eager_member_without_tasks_is_granted_free_ones_at_once(granted: tuple[TaskId, ...]):
    """Beside what it was granted in this step and does not know of."""
    context = step("m1", "m2", eager=("m1", "m2"))
    owns(context.state, "m1", C)
    for task in granted:
        context.grant(member_of(context, "m2"), task)
    decided(context, plan(context.state, {"m1": [C], "m2": [A, B]}))
    assert context.state.owner == {A: "m2", B: "m2", C: "m1"}
    assert member_of(context, "m2").eager_regrants == {}
    assert noted(context) == [(task, None, "m2", "granted", "unowned_cold") for task in (A, B) if task not in granted]


def test_eager_member_that_keeps_its_tasks_does_not_hide_one_that_does_not():
    context = step("m1", "m2", eager=("m1", "m2"))
    owns(context.state, "m1", C)
    owns(context.state, "m2", B)
    decided(context, plan(context.state, {"m1": [C], "m2": [A, B]}))
    assert (set(member_of(context, "m1").active), member_of(context, "m2").eager_regrants) == ({C}, {A: False, B: True})


def test_eager_member_with_a_task_gets_a_free_one_with_it():
    context = step("m1", "m2", eager=("m2",))
    owns(context.state, "m2", B)
    decided(context, plan(context.state, {"m2": [A, B]}))
    assert (context.state.owner, member_of(context, "m2").eager_regrants) == ({B: "m2"}, {A: False, B: True})
    assert noted(context) == [(A, None, "m2", "revoking", "eager"), (B, "m2", "m2", "revoking", "eager")]


def test_eager_member_that_leaves_is_not_granted_what_it_gives_up():
    context = step("m1", "m2", eager=("m2",))
    owns(context.state, "m2", A, B)
    member_of(context, "m2").leaving = True
    decided(context, plan(context.state, {"m2": [B]}, flight(A, "m2", "m1", REVOKING), flight(B, "m2", "m1", WAITING)))
    assert (set(member_of(context, "m2").revoking), member_of(context, "m2").eager_regrants) == ({A, B}, {})


def eager_regrants(*revoking: TaskId) -> StepContext:
    """m2 is to be granted A and B together, and still gives these up."""
    context = step("m1", "m2", eager=("m2",))
    gives_up(context.state, "m2", *revoking)
    for task in (A, B):
        actions.add_eager_regrant(member_of(context, "m2"), task, had_it=task in revoking)
    return context


def test_eager_regrant_that_the_plan_lacks_is_dropped():
    context = decided(eager := eager_regrants(B), plan(eager.state, {"m2": [B]}))
    assert (member_of(context, "m2").eager_regrants, noted(context)) == ({B: True}, [(A, None, "m2", "cancelled", "not_wanted")])


def test_eager_regrants_that_need_nothing_given_up_are_granted():
    context = decided(eager := eager_regrants(), plan(eager.state, {"m2": [B]}))
    assert (member_of(context, "m2").eager_regrants, context.state.owner) == ({}, {B: "m2"})
    assert noted(context) == [(A, None, "m2", "cancelled", "not_wanted"), (B, None, "m2", "granted", "unowned_cold")]


def test_grant_of_this_step_to_an_eager_member_that_gathers_is_taken_back():
    context = step("m1", "m2", eager=("m2",))
    owns(context.state, "m1", B)
    context.grant(member_of(context, "m2"), A)
    context.note(Move(task=A, source="m0", destination="m2", state="granted", reason="carried"))
    decided(context, plan(context.state, {"m2": [A]}, flight(B, "m1", "m2", REVOKING)))
    assert (context.state.owner, member_of(context, "m2").eager_regrants) == ({B: "m1"}, {A: False})
    assert noted(context) == [(A, None, "m2", "revoking", "eager"), (B, "m1", "m2", "revoking", "balance")]


# Probing and schedule


@pytest.mark.parametrize(
    ("plan_probes", "watches", "cause", "before_ms", "in_ms"),
    [
        (False, False, "join", 5, None),
        (True, False, "join", 5, 600_000),
        (False, True, "join", None, 600_000),
        (True, False, "ready", 5, -1),
        (True, False, "ready", None, 600_000),
    ],
)
def test_probing_interval_begins_with_a_natural_round(plan_probes: bool, watches: bool, cause: str, before_ms: int | None, in_ms: int | None):
    context = step("m1")
    actions.configure(context.state, configured(probing_interval_ms=600_000))
    context.state.now_ms, context.state.probing_deadline_ms = 50, before_ms
    context.causes.add(cause)
    decided(context, plan(context.state, {}, probing=plan_probes, watching=watches))
    assert context.state.probing_deadline_ms == (before_ms if in_ms == -1 else None if in_ms is None else 50 + in_ms)
    if in_ms == 600_000:
        assert (Timer.PROBING, "") in timers(context)


@pytest.mark.parametrize(("cause", "follow_up", "anew"), [("handover", True, False), ("ready", False, False), ("deal_requested", False, True)])
def test_problem_names_the_kind_of_cause(cause: str, follow_up: bool, anew: bool):
    context = step("m1")
    context.causes.add(cause)
    assignor = Answers(plan(context.state, {}))
    leader.decide(context, assignor, 9)
    assert assignor.asked is not None
    assert (assignor.asked.follow_up, assignor.asked.anew) == (follow_up, anew)


def test_lost_tasks_that_wait_are_noted_once_and_scheduled():
    context = step("m1", "m2")
    state = context.state
    state.lost = {A: Lost(0), B: Lost(0, 80)}
    state.previous_owners = {A: "m9"}
    answer = plan(
        state,
        {},
        lost_until_ms={A: 90, B: 80},
        reasons={A: Reason(code="lost"), B: Reason(code="lost")},
        memory={"turn": 1},
        revocations=Revocations(times=2),
    )
    decided(context, answer)
    assert noted(context) == [(A, "m9", None, "waiting", "lost")]
    assert ({task: lost.until_ms for task, lost in state.lost.items()}, state.scheduled_ms) == ({A: 90, B: 80}, 80)
    assert (state.memory, state.revocations, context.rescheduled) == ({"turn": 1}, Revocations(times=2), True)
    assert (Timer.SCHEDULED, "") in timers(context)
    context.rescheduled = False
    context.moves.clear()
    decided(context, answer)
    assert (noted(context), context.rescheduled) == ([], False)
    decided(context, plan(state, {}))
    assert ({task: lost.until_ms for task, lost in state.lost.items()}, state.scheduled_ms, context.rescheduled) == ({A: None, B: None}, None, False)


@pytest.mark.parametrize(("queued", "over", "cut"), [(False, False, True), (True, False, False), (False, True, False)])
def test_slot_back_off_ends_with_the_next_record_when_nothing_waits(queued: bool, over: bool, cut: bool):
    context = step("m1", "m2")
    owns(context.state, "m1", A)
    context.state.now_ms = 50
    member_of(context, "m2").slot_backoff = SlotBackoff(until_ms=900, times=1, over=over)
    flights = [flight(A, "m1", "m2", WAITING)] if queued else []
    decided(context, plan(context.state, {"m1": [A]}, *flights, reasons={A: Reason(code="slot_full")}))
    assert member_of(context, "m2").slot_backoff == SlotBackoff(until_ms=50 if cut else 900, times=1, over=over)
    assert ((Timer.SLOT_BACKOFF, "m2") in timers(context)) is cut


# Verdicts


@pytest.mark.parametrize(
    ("flights", "fields", "verdict", "available"),
    [
        ((), {}, "balanced", 0),
        ((), {"lost_until_ms": {B: 90}}, "blocked", 0),
        ((), {"ask_again_ms": 90}, "blocked", 0),
        ((), {"probing": True}, "balanced", 0),
        ((flight(A, "m1", "m2", REVOKING),), {}, "moving", 1),
        ((flight(A, "m1", "m2", WARMING),), {}, "warming", 0),
        ((flight(A, "m1", "m2", WAITING),), {}, "blocked", 0),
    ],
)
def test_verdict_says_what_the_group_waits_for(flights: tuple[Movement, ...], fields: dict[str, Any], verdict: str, available: int):
    context = step("m1", "m2")
    owns(context.state, "m1", A)
    context.state.lost = {B: Lost(0)}
    keeps = [] if available else [A]
    warmup = {"m2": (A,)} if flights and flights[0].state is WARMING else {}
    reasons = {A: Reason(code="blocked"), B: Reason(code="lost")}
    answer = plan(context.state, {"m1": keeps}, *flights, warmup=warmup, reasons=reasons, imbalance_now=4, **fields)
    cost = attrs.evolve(answer.cost, imbalance=2)
    decided(context, attrs.evolve(answer, cost=cost, movements=flights))
    (evaluated,) = context.emitted
    assert evaluated == BalanceEvaluated(
        verdict=verdict, available_movements=available, planned_movements=len(flights), imbalance_before=4, imbalance_after=2
    )
    assert context.state.verdict == (verdict, available, len(flights), 4, 2)


def test_verdict_is_said_when_it_changes():
    context = step("m1")
    context.state.verdict = None
    answer = plan(context.state, {})
    decided(context, answer)
    decided(context, answer)
    assert len(context.emitted) == 1


def test_task_given_up_for_the_next_round_is_moving():
    context = step("m1", "m2")
    owns(context.state, "m1", A)
    decided(context, plan(context.state, {}, probing=True))
    assert [each.verdict for each in context.emitted if isinstance(each, BalanceEvaluated)] == ["moving"]


@pytest.mark.parametrize(("first", "second"), [(True, False), (False, True)])
def test_step_is_unique_if_each_plan_is(first: bool, second: bool):
    context = step("m1")
    for unique in (first, second):
        decided(context, plan(context.state, {}, unique=unique))
    assert context.unique is False


# Invalid plans, proposals, decisions


def test_plan_that_does_not_hold_halts_the_group():
    context = step("m1", "m2")
    answer = plan(context.state, {"m1": [A], "m2": [A]})
    with pytest.raises(GroupHalted) as caught:
        decided(context, answer)
    assert (caught.value.group, caught.value.offset, caught.value.code) == (context.state.group, 9, "plan_invalid")
    assert caught.value.problem.startswith("the plan of answers 3 does not hold: ")
    assert caught.value.problem.endswith("; the last one stays in force")


def test_proposal_has_the_target_and_applies_nothing():
    context = step("m1", "m2")
    state = context.state
    state.generation = 4
    owns(state, "m1", A, B)
    flights = flight(B, "m1", "m2", REVOKING), flight(A, "m1", "m2", WARMING)
    answer = plan(state, {"m1": [A]}, *flights, warmup={"m2": (A,)}, standby={"m2": (C,)}, probing=True, unique=False)
    leader.propose(context, Answers(answer), 9)
    assert (context.plan, state.in_flight, context.moves, context.changed) == (answer, {}, {}, set())
    ends = (A, "warming"), (B, "revoking")
    moved = [Move(task=task, source="m1", destination="m2", state=how, reason="balance", lag_records=7) for task, how in ends]
    assert context.emitted == [
        AssignmentProposed(
            generation=4,
            members=(ProposedMember(member_id="m1"), ProposedMember(member_id="m2", active=(A, B), standby=(C,), warmup=(A,))),
            moves=tuple(moved),
            probing=True,
            unique=False,
        )
    ]


def test_long_proposal_comes_after_what_the_step_decided_in_parts():
    context = step("m1", "m2")
    owns(context.state, "m1", A, B)
    context.most_event_bytes = 1
    expired = MemberExpired(member_id="m9", incarnation=1, cause="superseded", silent_ms=0, hold_ms=0)
    context.emitted = [expired]
    leader.propose(context, Answers(plan(context.state, {"m1": [A, B]})), 9)
    first, *others = context.emitted
    assert first == expired
    assert len(others) > 1


def test_proposal_that_does_not_hold_halts_the_group():
    context = step("m1", "m2")
    with pytest.raises(GroupHalted) as caught:
        leader.propose(context, Answers(plan(context.state, {"m1": [A], "m2": [A]})), 9)
    assert (caught.value.group, caught.value.offset) == (context.state.group, 9)


def test_nothing_changed_is_not_issued():
    context = step("m1")
    generation = context.state.generation
    assert (issued(context), context.state.generation) == ([], generation)


@pytest.mark.parametrize(
    ("causes", "lifted", "cause"),
    [({"ready", "join"}, False, "join"), (set(), False, "handover"), (set(), True, "hold_over"), ({"ready"}, True, "ready")],
)
def test_issued_assignment_is_named_after_its_first_cause(causes: set[str], lifted: bool, cause: str):
    context = step("m1")
    context.changed, context.causes, context.lifted = {"m1"}, causes, lifted
    assert issued(context)[0].cause == cause


@pytest.mark.parametrize("what", ["rescheduled", "moved", "changed"])
def test_assignment_is_issued_for_a_change_a_move_or_a_new_schedule(what: str):
    context = step("m1")
    state = context.state
    state.generation, state.now_ms, state.scheduled_ms = 4, 50, {"rescheduled": 80, "moved": 30}.get(what)
    move = Move(task=A, source=None, destination=None, state="waiting", reason="lost")
    context.rescheduled = what == "rescheduled"
    context.changed = {"m1"} if what == "changed" else set()
    if what == "moved":
        context.note(move)
    state.probing_deadline_ms = 5 if what == "moved" else None
    context.unique = what == "moved"
    first, *others = issued(context)
    assert first == AssignmentIssued(
        generation=5,
        cause="handover",
        members=("m1",) if what == "changed" else (),
        moves=(move,) if what == "moved" else (),
        probing=what == "moved",
        scheduled_delay_ms=30 if what == "rescheduled" else 0,
        unique=what == "moved",
    )
    assert [each.member_id for each in others] == (["m1"] if what == "changed" else [])


@pytest.mark.parametrize("follows", [False, True])
def test_assignment_has_all_that_a_member_may_run_and_keep(follows: bool):
    context = step("m1", "m2")
    state = context.state
    actions.configure(state, configured(acceptable_recovery_lag=70, acceptable_recovery_ms=80))
    member = member_of(context, "m1")
    owns(state, "m1", B, A)
    gives_up(state, "m1", C)
    state.tokens = {A: 11, B: 12, C: 13}
    state.holds = {B: 500, C: 600}
    member.standby = {TaskId(0, 4), TaskId(0, 3)}
    actions.begin_warmup(state, member, TaskId(0, 5), caught_up=False)
    member.readiness, member.released = "lag" if follows else "word_or_lag", follows
    context.changed = {"m2", "m1"}
    before = MemberExpired(member_id="m9", incarnation=1, cause="superseded", silent_ms=0, hold_ms=0)
    context.emitted = [before]
    expired, _, first, second = issued(context)
    assert expired == before
    assert first == MemberAssigned(
        member_id="m1",
        incarnation=1,
        assignment_epoch=6,
        active=(A, B),
        standby=(TaskId(0, 3), TaskId(0, 4)),
        warmup=(TaskId(0, 5),),
        revoke=(C,),
        tokens=(11, 12),
        hold_ms={B: 500},
        released=follows,
        acceptable_recovery_lag=70 if follows else None,
        acceptable_recovery_ms=80 if follows else None,
    )
    assert (second.member_id, second.assignment_epoch, member.issued_epoch) == ("m2", 6, 6)


def test_long_decisions_are_emitted_in_parts():
    context = step("m1")
    owns(context.state, "m1", A, B, C)
    context.changed = {"m1"}
    context.most_event_bytes = 1
    _, *assigned = issued(context)
    assert {type(each) for each in assigned} == {MemberAssignedPart}
    context.changed, context.emitted = set(), []
    for task in (A, B, C):
        context.note(Move(task=task, source=None, destination=None, state="waiting", reason="lost"))
    assert [len(each.moves) for each in issued(context)] == [1, 1, 1]
