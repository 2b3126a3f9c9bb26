"""What makes a copy ready (PROTOCOL M2): the group's limit, one of the member's own, and what a word is worth beside them."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from events.decisions import Decision, MemberAssigned
from events.errors import InvariantBroken
from events.facts import LagReported, TaskReady
from events.tasks import LagSentinel, TaskId
from statemachine.invariants import Validator
from statemachine.machine import GroupMachine
from tests.groups import Group, configured, joined

LIMIT = 100


def warming(**join: Any) -> tuple[Group, TaskId]:
    """m1 runs two tasks; m2, which joined with `join`, warms up one of them."""
    group = Group().starts("m1", stateful=2, acceptable_recovery_lag=LIMIT)
    group.settles()
    group.fact(joined("m2", **join))
    (task,) = group.state.members["m2"].warmup
    return group, task


def says(group: Group, task: TaskId, lag: int | LagSentinel, *, ready: bool = False, number: int = 0) -> bool:
    """m2 reports. Whether it is to have the task now."""
    group.fact(LagReported("m2", 1, number, 1, lags={task: lag}, ready=(task,) if ready else ()))
    return task in group.state.members["m1"].revoking


@pytest.mark.parametrize(
    ("join", "lag", "ready", "moves"),
    [
        ({"readiness": "lag"}, LIMIT, False, True),
        ({"readiness": "lag"}, LIMIT + 1, True, False),
        ({"readiness": "lag"}, LagSentinel.UNKNOWN, True, False),
        ({"readiness": "lag", "ready_lag_records": 7}, 8, True, False),
        ({"readiness": "lag", "ready_lag_records": 7}, 7, False, True),
        ({"readiness": "lag", "ready_lag_records": 9_999}, 9_999, False, True),
        ({"readiness": "word_and_lag"}, LIMIT, True, True),
        ({"readiness": "word_and_lag"}, LIMIT + 1, True, False),
        ({"readiness": "word_and_lag"}, 0, False, False),
        ({}, 9_999, True, True),  # as members joined before: a limit that nobody knows
        ({}, LIMIT, False, True),
    ],
)
def test_a_task_moves_when_its_copy_is_ready(join: dict[str, Any], lag: int | LagSentinel, ready: bool, moves: bool):
    group, task = warming(**join)
    assert says(group, task, lag, ready=ready) is moves


def test_a_word_that_comes_sooner_than_a_report_is_worth_as_much():
    group, task = warming(readiness="word_and_lag")
    assert not says(group, task, LIMIT)
    group.fact(TaskReady(member_id="m2", incarnation=1, assignment_epoch=1, tasks=(task,)))
    assert task in group.state.members["m1"].revoking


def limits(decisions: list[Decision]) -> dict[str, tuple[int | None, int | None]]:
    return {each.member_id: (each.acceptable_recovery_lag, each.acceptable_recovery_ms) for each in decisions if isinstance(each, MemberAssigned)}


def test_who_judges_by_the_groups_limit_is_told_it_and_every_change_at_once():
    group = Group(watched=True).starts(stateful=4, acceptable_recovery_lag=LIMIT)
    for name, readiness in (("m1", "lag"), ("m2", "word_and_lag"), ("m3", "word_or_lag")):
        group.join(name, readiness=readiness)
    group.settles()
    told = {name: limit for decided in [each.decision for each in group.decisions] for name, limit in limits([decided]).items()}
    assert told == {"m1": (LIMIT, 0), "m2": (LIMIT, 0), "m3": (None, None)}
    changed = group.fact(configured(acceptable_recovery_lag=5_000, acceptable_recovery_ms=700))
    assert limits(changed) == {"m1": (5_000, 700), "m2": (5_000, 700)}
    assert limits(group.fact(configured(acceptable_recovery_lag=5_000, acceptable_recovery_ms=700, max_warmups=3))) == {}


def test_the_validator_sees_a_member_that_was_not_told():
    group = Group(watched=False).starts("m0", stateful=2, acceptable_recovery_lag=LIMIT)
    group.fact(joined("m1", readiness="lag"))
    validator, machine = Validator(), GroupMachine()
    for record in group.records:
        decided = machine.step(record)
        untold = [
            attrs.evolve(each, decision=attrs.evolve(each.decision, acceptable_recovery_lag=None, acceptable_recovery_ms=None))
            if isinstance(each.decision, MemberAssigned) and each.decision.member_id == "m1"
            else each
            for each in decided
        ]
        if untold != decided:
            with pytest.raises(InvariantBroken, match=r"m1 .* was told the limits \(None, None\), not \(100, 0\)"):
                validator.check(record, untold, machine.state)
            return
        validator.check(record, decided, machine.state)
    raise AssertionError("m1 was assigned nothing")
