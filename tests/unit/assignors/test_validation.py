"""The judge of plans: a plan that holds passes, and each broken promise is found, named in one
line, and found only where it was promised.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest

from equipoise.assignors import AssignmentProblem, Guarantee, MemberPlan, Movement, MovementState, Plan
from equipoise.assignors.common.validation import plan_faults
from equipoise.assignors.cooperative import Cooperative
from equipoise.assignors.high_availability import HighAvailability
from equipoise.events.tasks import parse_task
from tests.unit.assignors.build import copies_by_task, ids, in_flight, member, problem, tasks

ALL = frozenset(Guarantee)

SMALL = problem(
    tasks("0_0 0_1 0_2 0_3", "1_0 1_1"),
    member("m1", "0_0 0_1 0_2 0_3 1_0 1_1", lags={"0_3": 5}),
    member("m2", standby="0_0", lags={"0_0": 40, "0_1": 9000}, previously_owned="1_0"),
    member("m3", leaving=True, lags={"0_1": 0}),
    num_standbys=1,
    max_warmups=1,
)
PLAN = HighAvailability().assign(SMALL)


def changed(name: str, **parts: str) -> Plan:
    """The plan with some of one member's lists replaced."""
    part = attrs.evolve(PLAN.members[name], **{what: ids(text) for what, text in parts.items()})
    return attrs.evolve(PLAN, members={**PLAN.members, name: part})


def first_movement(**fields: Any) -> Plan:
    return attrs.evolve(PLAN, movements=(attrs.evolve(PLAN.movements[0], **fields), *PLAN.movements[1:]))


def test_unbroken_plan_passes():
    assert plan_faults(SMALL, PLAN, ALL) == []
    assert PLAN.members == {
        "m1": MemberPlan(active=ids("0_1 0_2 0_3 1_1"), revoke=ids("0_0 1_0")),
        "m2": MemberPlan(standby=ids("0_0 0_1 0_2 0_3")),
        "m3": MemberPlan(),
    }
    assert [(str(each.task), each.destination, each.state.value) for each in PLAN.movements] == [
        ("0_0", "m2", "revoking"),
        ("1_0", "m2", "revoking"),
        ("0_1", "m2", "warming"),
    ]
    assert copies_by_task(PLAN.members.values()) == {
        parse_task(task): copies for task, copies in (("0_0", 2), ("0_1", 2), ("0_2", 2), ("0_3", 2), ("1_0", 1), ("1_1", 1))
    }


@pytest.mark.parametrize(
    ("broken", "fault"),
    [
        (
            attrs.evolve(PLAN, members={name: PLAN.members[name] for name in ("m1", "m2")}),
            "members: does not name every live member once, in rising order",
        ),
        (attrs.evolve(PLAN, target=dict(sorted(PLAN.target.items(), reverse=True))), "target: does not name every live member once, in rising order"),
        (changed("m2", standby="0_0 9_9"), "m2.standby: there is no task (9_9)"),
        (first_movement(destination="m9"), "movement of 0_0: there is no member m9"),
        (first_movement(task=parse_task("9_9")), "movement of 9_9: there is no such task"),
        (attrs.evolve(PLAN, reasons={}), "movement of 0_0: no reason is given"),
        (changed("m2", active="0_1"), "0_1 is active on m1 and m2"),
        (changed("m2", active="1_0"), "1_0 is active on m2 before m1 has given it up"),
        (changed("m1", revoke="0_0 1_0", active="0_0 0_1 0_2 0_3 1_1"), "m1 is to keep and to revoke (0_0)"),
        (changed("m1", revoke="0_0"), "m1 neither keeps nor revokes (1_0)"),
        (changed("m2", revoke="0_2"), "m2 is to revoke what it does not own (0_2)"),
        (attrs.evolve(PLAN, target={**PLAN.target, "m3": ids("0_2")}), "0_2 has two targets, m1 and m3"),
        (
            attrs.evolve(PLAN, target={**PLAN.target, "m1": ids("0_3"), "m3": ids("0_2")}),
            "the target of 0_2 is m3, which is leaving or does not know it",
        ),
        (changed("m1", standby="0_1"), "m1 runs and is to keep a standby of (0_1)"),
        (changed("m2", warmup="1_0"), "m2 is to keep a warm-up without state: (1_0)"),
        (changed("m2", warmup="0_1"), "m2 is to keep as standby and as warm-up (0_1)"),
        (changed("m3", standby="0_1"), "m3 is leaving or does not know what it is to copy: (0_1)"),
        (attrs.evolve(PLAN, movements=PLAN.movements[1:]), "no movement brings to its target (0_0)"),
        (attrs.evolve(PLAN, movements=(*PLAN.movements, PLAN.movements[0])), "a task has two movements"),
        (first_movement(source="m3"), "movement of 0_0: m3 does not run it"),
        (first_movement(destination="m1"), "movement of 0_0: to m1, the target is m2"),
        (first_movement(state=MovementState.WARMING), "movement of 0_0: warming, but its source is asked to revoke it"),
        (changed("m2", standby="0_0 0_2 0_3"), "movement of 0_1: warming, but m2 is not assigned a copy"),
        (attrs.evolve(PLAN, cost=attrs.evolve(PLAN.cost, moves=2, moves_lower_bound=2)), "cost.moves is 2; the target changes 3 owners"),
        (attrs.evolve(PLAN, cost=attrs.evolve(PLAN.cost, moves_lower_bound=4)), "cost.moves is 3, below its own lower bound 4"),
    ],
)
def test_fault_that_binds_every_assignor_is_found(broken: Plan, fault: str):
    assert fault in plan_faults(SMALL, broken, frozenset())


def test_list_order_faults():
    def faults(part: MemberPlan) -> list[str]:
        return plan_faults(SMALL, attrs.evolve(PLAN, members={**PLAN.members, "m1": part}), frozenset())

    part = PLAN.members["m1"]
    assert faults(attrs.evolve(part, active=tuple(reversed(part.active)))) == [], "an assignor may have an order of its own there"
    assert faults(attrs.evolve(part, active=(*part.active, part.active[0]))) == ["m1.active: not each task once"]
    assert len(part.revoke) > 1
    assert faults(attrs.evolve(part, revoke=tuple(reversed(part.revoke)))) == ["m1.revoke: not in rising order, each task once"]


FREE = problem(tasks("0_0"), member("m1", lags={"0_0": 9000}), member("m2", lags={"0_0": 3}), max_warmups=1)


def granted(name: str) -> Plan:
    """0_0, which has no owner, to one of the two."""
    answer = HighAvailability().assign(FREE)
    other = {"m1": "m2", "m2": "m1"}[name]
    return attrs.evolve(
        answer,
        members={name: MemberPlan(active=ids("0_0")), other: MemberPlan()}
        if name < other
        else {other: MemberPlan(), name: MemberPlan(active=ids("0_0"))},
        target={each: ids("0_0") if each == name else () for each in ("m1", "m2")},
    )


def unowned() -> Plan:
    answer = granted("m2")
    return attrs.evolve(answer, members={"m1": MemberPlan(), "m2": MemberPlan()}, target={"m1": (), "m2": ()})


def revoked_for_nobody() -> Plan:
    return changed("m1", active="0_1 0_3 1_1", revoke="0_0 0_2 1_0")


def too_many_standbys() -> Plan:
    answer = granted("m2")
    return attrs.evolve(answer, members={**answer.members, "m1": MemberPlan(standby=ids("0_0"))})


def two_warmups() -> tuple[AssignmentProblem, Plan]:
    question = problem(tasks("0_0 0_1"), member("m1", "0_0 0_1"), member("m2"), member("m3"), max_warmups=1)
    answer = HighAvailability().assign(question)
    members = {**answer.members, "m2": MemberPlan(warmup=ids("0_0")), "m3": MemberPlan(warmup=ids("0_1"))}
    return question, attrs.evolve(answer, members=members)


@pytest.mark.parametrize(
    ("guarantee", "question", "broken", "fault"),
    [
        (Guarantee.ALWAYS_OWNED, SMALL, revoked_for_nobody, "revoked although nothing is to move: (0_2)"),
        (Guarantee.ALWAYS_OWNED, FREE, unowned, "no target for (0_0)"),
        (Guarantee.ALWAYS_OWNED, FREE, unowned, "no member runs (0_0)"),
        (Guarantee.CAUGHT_UP_FIRST, FREE, lambda: granted("m1"), "0_0 is granted to m1, which is not caught up; m2 is"),
        (Guarantee.COPIES_CAPPED, FREE, too_many_standbys, "more than 0 standbys of (0_0)"),
        (Guarantee.COPIES_CAPPED, two_warmups()[0], lambda: two_warmups()[1], "2 warm-ups, the group may have 1"),
    ],
)
def test_fault_against_a_guarantee_is_found(guarantee: Guarantee, question: AssignmentProblem, broken: Callable[[], Plan], fault: str):
    assert fault in plan_faults(question, broken(), {guarantee})
    assert fault not in plan_faults(question, broken(), ALL - {guarantee})


def test_revoked_before_the_destination_is_caught_up():
    question = problem(tasks("0_0 0_1"), member("m1", "0_0 0_1"), member("m2", lags={"0_1": 5000}))
    answer = HighAvailability().assign(question)
    early = attrs.evolve(
        answer,
        members={"m1": MemberPlan(active=ids("0_0"), revoke=ids("0_1")), "m2": MemberPlan()},
        movements=(attrs.evolve(answer.movements[0], state=MovementState.REVOKING),),
    )
    assert plan_faults(question, early, ALL) == [
        "0_1 is revoked for m2, which is not caught up; m1 is",
        "0_1 is revoked from m1 before m2 is caught up",
    ]
    decided = attrs.evolve(question, in_flight=(in_flight("0_1", "m1", "m2", "revoking"),))
    assert plan_faults(decided, early, ALL) == []


def test_warm_up_during_back_off():
    question = problem(tasks("0_0 0_1"), member("m1", "0_0 0_1"), member("m2"))
    answer = HighAvailability().assign(question)
    (begun,) = answer.movements
    blocked = attrs.evolve(question, blocked=frozenset({(begun.task, "m2")}))
    assert plan_faults(blocked, answer, ALL) == [f"movement of {begun.task}: begins on m2 during its back-off"]


def test_lowered_caps_let_warm_ups_finish():
    """Two warm-ups were begun under a cap of two; it is one now. They may end, and no third begins."""
    question, answer = two_warmups()
    before = attrs.evolve(question, members=tuple(attrs.evolve(each, warmup=answer.members[each.id].warmup) for each in question.members))
    warming = attrs.evolve(
        answer, movements=tuple(attrs.evolve(each, state=MovementState.WARMING) for each in answer.movements), members=answer.members
    )
    assert not [fault for fault in plan_faults(before, warming, ALL) if "warm-ups" in fault]


def test_movement_without_source_is_fault():
    assert plan_faults(
        FREE,
        attrs.evolve(granted("m2"), movements=(Movement(task=parse_task("0_0"), source=None, destination="m2", state=MovementState.REVOKING),)),
        ALL,
    )


LOST = attrs.evolve(
    problem([attrs.evolve(task, lost_since_ms=4_000 if task.id.partition else None) for task in tasks(stateless="1_0 1_1")], member("m1", "1_0")),
    now_ms=5_000,
)
WAITS = Cooperative().assign(LOST)


def test_lost_work_may_be_unassigned_for_a_stated_time():
    assert WAITS.lost_until_ms == {parse_task("1_1"): 304_000}
    assert plan_faults(LOST, WAITS, ALL) == []
    forgotten = attrs.evolve(WAITS, lost_until_ms={})
    assert plan_faults(LOST, forgotten, ALL) == ["no member runs (1_1)"]


@pytest.mark.parametrize(
    ("until_ms", "reasons", "fault"),
    [
        ({"1_0": 304_000, "1_1": 304_000}, True, "1_0 is left without an owner until 304000, but it was not lost"),
        ({"1_1": 5_000}, True, "1_1 is left without an owner until 5000, and it is 5000 already"),
        ({"1_1": 304_000}, False, "1_1 is left without an owner and without a reason"),
    ],
)
def test_task_left_unassigned_must_be_lost_and_have_an_end(until_ms: dict[str, int], reasons: bool, fault: str):
    plan = attrs.evolve(WAITS, lost_until_ms={parse_task(task): until for task, until in until_ms.items()}, reasons=WAITS.reasons if reasons else {})
    assert plan_faults(LOST, plan, ALL) == [fault]


def test_task_left_unassigned_may_have_no_owner():
    given = attrs.evolve(WAITS, members={"m1": MemberPlan(active=ids("1_0 1_1"))})
    assert plan_faults(LOST, given, ALL) == ["1_1 is left without an owner until 304000, but a member runs it"]
