"""What is wrong with a group, worst first, and when restores are expected to be ready."""

from __future__ import annotations

import pytest

from equipoise.events.facts import TaskParked
from equipoise.events.tasks import TaskId
from equipoise.replay.restores import restores
from equipoise.replay.trouble import Severity, troubles
from tests.groups import MARGIN_MS, SESSION_MS, Group, configured, topology


def texts(group: Group) -> list[str]:
    return [each.text for each in troubles(group.state)]


def settled(*members: str, stateful: int = 4) -> Group:
    group = Group().starts(*members, stateful=stateful)
    group.settles()
    return group


def restoring() -> Group:
    """Eight tasks restore at m2, because their owner died; m3 has joined."""
    group = settled("m1", stateful=8)
    group.join("m2", restores=2_000)
    del group.members["m1"]
    while "m1" in group.state.members:
        group.cycle()
    group.join("m3", restores=2_000)
    for _ in range(3):
        group.cycle()
    return group


def test_group_at_rest_has_no_trouble() -> None:
    assert troubles(settled("m1", "m2").state) == []


def test_halted_group_says_why_and_nothing_else() -> None:
    (found,) = troubles(settled("m1").state, "halted at offset 7")
    assert (found.severity, found.text) == (Severity.HALTED, "halted at offset 7")


def test_group_without_members_has_tasks_without_an_owner() -> None:
    group = Group()
    group.fact(configured())
    group.fact(topology(stateful=3))
    assert texts(group) == ["no member; 3 tasks without an owner"]


def test_tasks_that_nobody_may_run_are_named() -> None:
    group = settled("m1", stateful=2)
    group.fact(topology(epoch=2, stateful=4))
    assert texts(group)[0] == "2 tasks without an owner (0_2..3)"


def test_parked_task_stands_still() -> None:
    group = settled("m1", stateful=2)
    token = group.state.tokens[TaskId(0, 1)]
    group.fact(TaskParked(member_id="m1", incarnation=1, task=TaskId(0, 1), token=token, error="ValueError"))
    assert troubles(group.state)[0].severity is Severity.STANDS_STILL
    assert texts(group) == ["1 task parked (0_1), because the handler failed"]


def test_silent_member_threatens() -> None:
    group = settled("m1", "m2")
    del group.members["m2"]
    while group.state.now_ms - group.state.members["m2"].last_heard_ms < SESSION_MS - MARGIN_MS:
        group.cycle()
    group.tick()
    (found,) = troubles(group.state)
    assert found.severity is Severity.THREATENS
    assert found.text.startswith("m2 is silent for 2")


def test_member_that_restarts_is_waited_for() -> None:
    group = Group().starts("m1", "m2", stateless=4)
    group.settles()
    group.members["m2"].restarts(20_000)
    for _ in range(3):
        group.cycle()
    assert group.state.is_away("m2")
    assert texts(group)[0].startswith("m2 restarts, expected within ")
    assert texts(group)[0].endswith("; 2 tasks wait for it")


def test_warm_ups_move_and_are_expected_by_their_own_speed_before_any_was_measured() -> None:
    group = settled("m1")
    group.join("m2", restores=5_000)
    for _ in range(3):
        group.cycle()
    (row, *_) = rows = restores(group.state)
    assert not row.stands_still
    assert (row.member_id, row.source, row.end_offset) == ("m2", "m1", 50_000)
    left = sum(each.lag_records or 0 for each in rows)
    assert 0 < row.done < 1
    assert row.records_per_s
    assert row.expected_ms == pytest.approx(1_000 * left / row.records_per_s, abs=2)
    (found,) = troubles(group.state)
    assert found.severity is Severity.MOVES
    assert found.text.startswith(f"{len(rows)} tasks warm up (0_")
    assert found.text.endswith(" to go")


def test_restores_that_tasks_wait_for_come_first() -> None:
    group = restoring()
    rows = restores(group.state)
    assert [row.stands_still for row in rows] == sorted((row.stands_still for row in rows), reverse=True)
    assert rows[0].stands_still
    assert troubles(group.state)[0].severity is Severity.STANDS_STILL
    assert "before" in texts(group)[0]


def test_many_names_are_cut() -> None:
    group = Group().starts("m1", stateful=0, stateless=2)
    group.settles()
    group.fact(topology(epoch=2, stateful=40, stateless=2))
    (text, *_) = texts(group)
    assert text == "40 tasks without an owner (0_0..39)"
    assert len(text) < 200
