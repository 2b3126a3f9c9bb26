"""What makes a copy ready (docs/protocol.md#m2): the group's limit or the member's own, combined
with the member's declaration.
"""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from equipoise.events.decisions import Decision, MemberAssigned
from equipoise.events.errors import InvariantBroken
from equipoise.events.facts import LagReported, TaskReady
from equipoise.events.tasks import LagSentinel, TaskId
from equipoise.statemachine.machine import GroupMachine
from tests.groups import Group, configured, joined
from tests.support.reference_model.invariants import Validator

LIMIT = 100


def warming(**join: Any) -> tuple[Group, TaskId]:
    """m1 runs two tasks; m2, which joined with `join`, warms up one of them."""
    group = Group().starts("m1", stateful=2, acceptable_recovery_lag=LIMIT)
    group.settles()
    group.fact(joined("m2", **join))
    (task,) = group.state.members["m2"].warmup
    return group, task


def says(group: Group, task: TaskId, lag: int | LagSentinel, *, ready: bool = False, number: int = 0) -> bool:
    """m2 reports. Returns whether it will get the task now."""
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
        ({}, 9_999, True, True),  # as members joined formerly: their limit is unknown
        ({}, LIMIT, False, True),
    ],
)
def test_task_moves_when_its_copy_is_ready(join: dict[str, Any], lag: int | LagSentinel, ready: bool, moves: bool):
    group, task = warming(**join)
    assert says(group, task, lag, ready=ready) is moves


def test_task_ready_counts_like_a_report():
    group, task = warming(readiness="word_and_lag")
    assert not says(group, task, LIMIT)
    group.fact(TaskReady(member_id="m2", incarnation=1, assignment_epoch=1, tasks=(task,)))
    assert task in group.state.members["m1"].revoking


def limits(decisions: list[Decision]) -> dict[str, tuple[int | None, int | None]]:
    return {each.member_id: (each.acceptable_recovery_lag, each.acceptable_recovery_ms) for each in decisions if isinstance(each, MemberAssigned)}


def test_member_that_follows_the_groups_limit_is_told_each_change_at_once():
    group = Group(watched=True).starts(stateful=4, acceptable_recovery_lag=LIMIT)
    for name, readiness in (("m1", "lag"), ("m2", "word_and_lag"), ("m3", "word_or_lag")):
        group.join(name, readiness=readiness)
    group.settles()
    told = {name: limit for decided in [each.decision for each in group.decisions] for name, limit in limits([decided]).items()}
    assert told == {"m1": (LIMIT, 0), "m2": (LIMIT, 0), "m3": (None, None)}
    changed = group.fact(configured(acceptable_recovery_lag=5_000, acceptable_recovery_ms=700))
    assert limits(changed) == {"m1": (5_000, 700), "m2": (5_000, 700)}
    assert limits(group.fact(configured(acceptable_recovery_lag=5_000, acceptable_recovery_ms=700, max_warmups=3))) == {}


def test_validator_finds_a_member_that_was_not_told_the_limit():
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
            with pytest.raises(InvariantBroken, match=r"m1 .* was assigned the limits \(None, None\), not \(100, 0\)"):
                validator.check(record, untold, machine.state)
            return
        validator.check(record, decided, machine.state)
    raise AssertionError("m1 was assigned nothing")


# Prepared by the application


def prepares(group: Group, task: TaskId, number: int, done: int | None, *, after_ms: int = 0, failed: bool = False) -> list[Decision]:
    """m2, which has no lag, reports the progress of preparing the task."""
    preparing = {} if done is None else {task: done}
    report = LagReported("m2", 1, number, 1, lags={task: 0}, preparing=preparing, failed=(task,) if failed else ())
    return group.fact(report, after_ms)


def held_slot_until(group: Group, task: TaskId, steps: list[tuple[int | None, int]]) -> int | None:
    """Reports each (thousandths, ms later). Returns the group time at which the warm-up lost its
    slot; None: it still has it.
    """
    group.members.clear()
    for number, (done, after_ms) in enumerate(steps):
        for _ in range(after_ms // 1_000):
            group.fact(LagReported("m1", 1, 1_000 + len(group.records), group.state.members["m1"].applied_epoch), 1_000)
            if task not in group.state.members["m2"].warmup:
                return group.state.now_ms
        prepares(group, task, number, done, failed=done is None)
        if task not in group.state.members["m2"].warmup:
            return group.state.now_ms
    return None


def preparing_group() -> tuple[Group, TaskId, int]:
    group, task = warming(readiness="word_and_lag", session_timeout_ms=3_600_000)
    group.fact(configured(acceptable_recovery_lag=LIMIT, warmup_stall_ms=20_000, initial_delay_ms=0))
    return group, task, group.state.now_ms


def test_preparation_with_progress_keeps_its_slot():
    group, task, _ = preparing_group()
    assert held_slot_until(group, task, [(done, 15_000) for done in range(0, 1_000, 50)]) is None
    assert group.state.members["m2"].measured_records_per_s == 0, "its speed is unknown without a lag"


@pytest.mark.parametrize(
    "steps",
    [
        [(None, 1_000)] * 40,  # it never begins: it fails at once, again and again
        [(0, 1_000)] * 40,
        [(done, 1_000) for _ in range(10) for done in (0, 300, None, None)],  # progress up to an earlier value is no progress
    ],
)
def test_preparation_without_progress_stalls_with_its_reason(steps: list[tuple[int | None, int]]):
    group, task, began_ms = preparing_group()
    lost_ms = held_slot_until(group, task, steps)
    assert lost_ms is not None
    assert 20_000 <= lost_ms - began_ms <= 24_000
    assert [move.reason for move in group.moves("cancelled")] == ["not_prepared"]
    assert (task, "m2") in group.state.backoffs


def test_task_without_changelogs_moves_when_prepared():
    """Sub-topology 0 is stateful and has no changelog: it must be prepared, with no state to
    restore.
    """
    group = Group().starts(stateful=2, end_offset=0)
    group.join("m1", readiness="word_and_lag")
    group.settles()
    group.fact(joined("m2", readiness="word_and_lag"))
    (task,) = group.state.members["m2"].warmup
    assert not says(group, task, 0)
    assert says(group, task, 0, ready=True, number=1)
