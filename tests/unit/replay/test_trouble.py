"""What is wrong with a group, worst first, and when restores are expected to be ready."""

from __future__ import annotations

import attrs
import pytest

from equipoise.events.decisions import EventRejected
from equipoise.events.facts import PartitionsObserved, Subtopology, TaskParked, TopologyDeclared, TroublesReported
from equipoise.events.tasks import TaskId
from equipoise.replay.restore_progress import restores
from equipoise.replay.trouble import Severity, troubles
from equipoise.statemachine import snapshots
from equipoise.statemachine.state import REFUSED_MEMORY_MS
from tests.groups import MARGIN_MS, SESSION_MS, Group, configured, joined, topology


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


def test_failed_task_stands_still() -> None:
    group = settled("m1", stateful=2)
    token = group.state.tokens[TaskId(0, 1)]
    group.fact(TaskParked(member_id="m1", incarnation=1, task=TaskId(0, 1), token=token, error="ValueError"))
    assert troubles(group.state)[0].severity is Severity.STANDS_STILL
    assert texts(group) == ["1 task failed (0_1): ValueError"]


def test_members_that_say_the_same_of_what_holds_them_up_share_a_line() -> None:
    group = settled("m1", "m2", "m3")
    for name in ("m3", "m1"):
        group.fact(TroublesReported(member_id=name, incarnation=1, troubles=("quotas", f"a source of {name}")))
    assert {each.severity for each in troubles(group.state)} == {Severity.THREATENS}
    assert texts(group) == ["m1, m3: quotas", "m1: a source of m1", "m3: a source of m3"]
    group.fact(TroublesReported(member_id="m1", incarnation=1))
    assert texts(group) == ["m3: quotas", "m3: a source of m3"]


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


PARTS = (Subtopology(subtopology=0, partitions=2, stateful=False, source_topics=("clicks",)),)


def reading_clicks() -> Group:
    group = Group()
    group.fact(configured())
    group.fact(TopologyDeclared(epoch=1, subtopologies=PARTS))
    group.join("m1", topology_epoch=1)
    group.settles()
    return group


def test_partitions_that_no_task_reads_are_told() -> None:
    group = reading_clicks()
    group.fact(PartitionsObserved(end_offsets={"clicks": {0: 5, 1: 5}}))
    assert texts(group) == []
    group.fact(PartitionsObserved(end_offsets={"clicks": {2: 0}, "other": {7: 1}}))
    assert texts(group) == ["1 partition of clicks is read by nobody: deploy with a higher topology_epoch"]
    group.fact(PartitionsObserved(end_offsets={"clicks": {3: 7}}))
    (found,) = troubles(group.state)
    assert (found.severity, found.text, found.tasks) == (
        Severity.STANDS_STILL,
        "2 partitions of clicks are read by nobody: deploy with a higher topology_epoch",
        2,
    )
    group.fact(TopologyDeclared(epoch=2, subtopologies=(attrs.evolve(PARTS[0], partitions=4),)))
    assert not any("read by nobody" in text for text in texts(group))


def test_member_with_another_topology_is_told_until_it_joins_or_is_forgotten() -> None:
    group = reading_clicks()
    other = (attrs.evolve(PARTS[0], source_topics=("views",)),)

    def refused(number: int) -> None:
        decisions = group.fact(joined("m2", number, topology_epoch=1, subtopologies=other))
        assert [(each.code, each.numbers) for each in decisions if isinstance(each, EventRejected)] == [("sources_differ", (1, 0, 2, 2))]

    refused(1)
    assert [text.partition(":")[0] for text in texts(group)] == ["m2 may not join, because it runs another topology"]
    assert snapshots.load(snapshots.dump(group.state)).refused == group.state.refused
    group.fact(joined("m2", 2, topology_epoch=1, subtopologies=PARTS))
    assert group.state.recently_refused() == {}
    refused(3)
    group.pass_ms(REFUSED_MEMORY_MS)
    assert group.state.recently_refused() == {}


def test_member_of_an_epoch_that_is_not_known_is_told() -> None:
    group = reading_clicks()
    group.fact(joined("m2", topology_epoch=0, subtopologies=PARTS))
    assert texts(group) == ["m2 can run no task, because of an old topology_epoch: deploy the newest build there"]
