"""Lag judged in time, `acceptable_recovery_ms`, is for all assignors that rank: a member far
behind in records and near in time takes over at once.
"""

from __future__ import annotations

import pytest

from equipoise.assignors import AssignmentProblem, MovementState, Plan, registry
from equipoise.assignors.common.validation import plan_faults
from tests.unit.assignors.build import member, numbered, problem, tasks

RANK = ("high_availability", "load_balanced")
"""By lag, in records or in time."""
BY_WORD = ("learner",)
"""Only a member's word begins a hand-over; a task without an owner goes to the nearest copy."""
DO_NOT = ("cooperative", "kafka_connect", "lag_aware")
"""How near a copy is plays no part in where a task goes, or when."""
AS_KAFKA = ("kafka_streams",)
"""By records alone, as Kafka Streams does."""


def near_in_time(acceptable_ms: int, *, owned: bool) -> AssignmentProblem:
    """m2 is 3,000 records behind on all four tasks and restores 60,000 a second: 0.2 s for them
    all. m1 runs them, or no member does.
    """
    of = numbered(4)
    return problem(
        tasks(of),
        member("m1", of if owned else ""),
        member("m2", every=3_000, of=of, speed=60_000),
        acceptable_recovery_ms=acceptable_ms,
        max_warmups=4,
        max_warmups_per_member=4,
    )


def answer(name: str, question: AssignmentProblem) -> Plan:
    assignor = registry.latest(name)
    plan = assignor.assign(question)
    assert plan_faults(question, plan, assignor.guarantees) == []
    return plan


def begins(plan: Plan) -> list[MovementState]:
    return [movement.state for movement in plan.movements]


def test_assignors_have_one_kind():
    assert sorted(dict.fromkeys(name for name, _ in registry.available())) == sorted((*RANK, *BY_WORD, *DO_NOT, *AS_KAFKA))


@pytest.mark.parametrize("name", RANK)
def test_copy_near_in_time_takes_over_without_a_warm_up(name: str):
    by_records = answer(name, near_in_time(0, owned=True))
    assert begins(by_records) == [MovementState.WARMING] * 2
    in_time = answer(name, near_in_time(500, owned=True))
    assert begins(in_time) == [MovementState.REVOKING] * 2
    assert begins(answer(name, near_in_time(100, owned=True))) == [MovementState.WARMING] * 2  # all four take 0.2 s, and count together


@pytest.mark.parametrize("name", [*RANK, *BY_WORD])
def test_unowned_task_goes_to_the_copy_near_in_time(name: str):
    """And as one that is caught up; without it as the one that is soonest ready of those that are
    not.
    """
    for acceptable_ms, code in ((500, "unowned"), (100, "unowned_cold"), (0, "unowned_cold")):
        plan = answer(name, near_in_time(acceptable_ms, owned=False))
        assert len(plan.members["m2"].active) == 4
        staying = {reason.code for task, reason in plan.reasons.items() if task in plan.target["m2"]}
        assert staying == {code}


@pytest.mark.parametrize("name", BY_WORD)
def test_learner_waits_for_ready_however_near(name: str):
    assert begins(answer(name, near_in_time(500, owned=True))) == [MovementState.WARMING] * 2


@pytest.mark.parametrize("name", [*DO_NOT, *AS_KAFKA])
@pytest.mark.parametrize("owned", [True, False])
def test_other_assignors_ignore_recovery_time(name: str, owned: bool):
    with_it, without = (answer(name, near_in_time(ms, owned=owned)) for ms in (500, 0))
    assert (with_it.members, with_it.target, with_it.movements) == (without.members, without.target, without.movements)
