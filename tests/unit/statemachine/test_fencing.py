"""Fenced incarnations: removed by force, they may still run. Which next owners wait for them, and
how long (docs/protocol.md#m5).
"""

from __future__ import annotations

import pytest

from equipoise.events.codec import make_record
from equipoise.events.decisions import AssignmentIssued, Decision, EventRejected
from equipoise.events.errors import InvariantBroken
from equipoise.events.facts import LagReported, MemberLeft
from tests.groups import GROUP, SESSION_MS, Group, assigned, configured, joined, rejections, tasks
from tests.support.reference_model.invariants import Validator


def test_max_step_must_fit_the_smallest_margin_of_all_members():
    group = Group().starts(stateless=1)
    group.fact(joined("m1", lease_margin_ms=1_000))
    group.fact(joined("m2", lease_margin_ms=9_000))
    assert rejections(group.fact(configured(max_step_ms=1_001))) == ["step_exceeds_margin"]
    assert rejections(group.fact(configured(max_step_ms=1_000))) == []


def test_max_step_must_fit_the_margin_of_a_fenced_incarnation():
    group = Group().starts(stateless=1)
    group.fact(joined("m1", 1, lease_margin_ms=1_000))
    group.fact(joined("m1", 2, lease_margin_ms=9_000))
    (refused,) = group.fact(configured(max_step_ms=9_000))
    assert rejections([refused]) == ["step_exceeds_margin"]
    assert refused.numbers == (9_000, 1_000)  # type: ignore[union-attr]


def test_max_step_must_fit_the_margin_of_a_fenced_incarnation_of_an_empty_group():
    group = Group().starts(stateless=1)
    group.fact(joined("m1", 1, lease_margin_ms=1_000))
    group.fact(joined("m1", 2, lease_margin_ms=9_000))
    group.fact(MemberLeft(member_id="m1", incarnation=2))
    assert rejections(group.fact(configured(max_step_ms=9_000))) == ["step_exceeds_margin"]


def test_fenced_incarnation_without_tasks_does_not_limit_max_step():
    group = Group().starts("m1", stateless=1)
    group.fact(joined("m2", 1, lease_margin_ms=1_000))
    assert group.state.members["m2"].owns_nothing()
    group.fact(joined("m2", 2, lease_margin_ms=3_000))
    assert rejections(group.fact(configured(max_step_ms=3_000))) == []


def test_fenced_incarnation_does_not_limit_max_step_after_its_session_timeout():
    group = Group().starts(stateless=1)
    group.fact(joined("m1", 1, lease_margin_ms=1_000, session_timeout_ms=5_000))
    group.fact(joined("m1", 2, lease_margin_ms=3_000))
    group.pass_ms(4_000)
    assert rejections(group.fact(configured(max_step_ms=3_000), 999)) == ["step_exceeds_margin"]
    assert rejections(group.fact(configured(max_step_ms=3_000), 1)) == []


def test_fenced_incarnation_does_not_limit_max_step_once_its_successor_runs_its_tasks():
    group = Group().starts(stateless=1)
    group.fact(joined("m1", 1, lease_margin_ms=1_000))
    group.fact(joined("m1", 2, lease_margin_ms=3_000))
    group.fact(LagReported("m1", 2, 0, 1, held=tasks("1_0")))
    assert rejections(group.fact(configured(max_step_ms=3_000))) == []


def test_validator_finds_a_max_step_over_the_margin_of_a_fenced_incarnation():
    group = Group(watched=False).starts(stateless=1)
    group.fact(joined("m1", 1, lease_margin_ms=1_000))
    group.fact(joined("m1", 2, lease_margin_ms=9_000))
    group.state.fenced["m1#1"].lease_margin_ms = 9_000
    group.fact(configured(max_step_ms=9_000))
    model = Validator().model
    for record in group.records[:-1]:
        model.step(record, [decision for decision in group.decisions if decision.caused_by == record.offset])
    with pytest.raises(InvariantBroken, match=r"^invariant 1: max_step_ms 9000 is over the margin of m1 incarnation 1, 1000 ms"):
        model.step(group.records[-1], [])


def test_hold_that_ends_is_told_to_the_next_owner():
    group = Group().starts("m1", stateless=1)
    (task,) = tasks("1_0")
    assert assigned(group.fact(joined("m1", 2)))["m1"].hold_ms == {task: SESSION_MS}
    told: list[Decision] = []
    for number in range(SESSION_MS // 1_000):
        assert told == []
        told = group.fact(LagReported("m1", 2, number, 1), after_ms=1_000)
    assert [each.cause for each in told if isinstance(each, AssignmentIssued)] == ["hold_over"]
    assert assigned(told)["m1"].hold_ms == {}


# Late joins (M1)


def test_late_join_of_an_earlier_incarnation_changes_nothing():
    group = Group().starts(stateless=2)
    group.fact(joined("m1", 100))
    group.fact(joined("m1", 200, ended_incarnation=150))
    (answer,) = group.fact(joined("m1", 150, ended_incarnation=100))
    assert isinstance(answer, EventRejected)
    assert (answer.code, answer.numbers) == ("incarnation_too_low", (150, 200))
    assert group.state.members["m1"].incarnation == 200


def test_join_of_a_fenced_or_earlier_incarnation_is_rejected():
    group = Group().starts(stateless=2)
    group.fact(joined("m1", 100))
    group.fact(joined("m1", 200))
    group.fact(MemberLeft(member_id="m1", incarnation=200))
    for incarnation, nonce in ((99, "a"), (100, "b")):
        assert rejections(group.fact(joined("m1", incarnation, join_nonce=nonce))) == ["incarnation_too_low"]
    assert rejections(group.fact(joined("m1", 101))) == []
    assert rejections(group.fact(joined("m2", 1))) == [], "another name has incarnations of its own"


def test_late_join_is_rejected_in_shadow_too():
    group = Group()
    group.fact(configured(led_by="external"))
    group.fact(joined("m1", 5))
    assert rejections(group.fact(joined("m1", 4))) == ["incarnation_too_low"]
    assert rejections(group.fact(joined("m1", 6))) == []


def test_validator_finds_a_late_join_that_was_accepted():
    group = Group(watched=False).starts(stateless=1)
    group.fact(joined("m1", 5))
    model = Validator().model
    for record in group.records:
        model.step(record, [decision for decision in group.decisions if decision.caused_by == record.offset])
    late = make_record(GROUP, len(group.records), group.append_ms, joined("m1", 4))
    with pytest.raises(InvariantBroken, match=r"^invariant 0: m1 joined with incarnation 4 after 5"):
        model.step(late, [])
