"""A member that keeps crashing: its copies are not preferred until it has run for its back-off
(docs/protocol.md#d10).
"""

from __future__ import annotations

from typing import Any

import pytest

from equipoise.events.decisions import AssignmentIssued, MemberExpired
from equipoise.events.facts import LagReported, MemberLeft, PartitionsObserved
from equipoise.events.records import Entry
from equipoise.events.tasks import Lag, TaskId
from equipoise.replay.explanation import explain
from equipoise.replay.group_view import view_of
from equipoise.statemachine.state import CRASH_MEMORY_MS, crash_backoff_ms
from tests.groups import Group, joined, rejections, topology

SECOND_BACKOFF_MS = 10_000


def group_of(*member_ids: str, assignor: str = "high_availability", **fields: Any) -> Group:
    group = Group().starts(assignor=assignor, **fields)
    for name in member_ids:
        group.join(name)
    group.settles()
    return group


def crashes(group: Group, member_id: str, *, proven: bool = True, after_ms: int = 1_000) -> None:
    """Restarts the member with the copies on its disk; it reports once."""
    before = group.members[member_id]
    lags: dict[TaskId, Lag] = dict(before.copies)
    ended = before.incarnation if proven else None
    group.pass_ms(after_ms)
    group.join(member_id, before.incarnation + 1, restores=before.restores, lags=lags, ended_incarnation=ended)
    group.members[member_id].reports()


def of(group: Group, member_id: str) -> list[TaskId]:
    return sorted(task for task, owner in group.state.owner.items() if owner == member_id)


def causes(group: Group) -> list[str]:
    return [each.decision.cause for each in group.decisions if isinstance(each.decision, AssignmentIssued)]


@pytest.mark.parametrize(("times", "wanted_s"), [(0, 0), (1, 0), (2, 10), (3, 20), (4, 40), (5, 80), (6, 160), (7, 300), (8, 300), (10_000, 300)])
def test_back_off_is_that_of_kubernetes_from_the_second_crash_on(times: int, wanted_s: int):
    assert crash_backoff_ms(times) == 1_000 * wanted_s


def test_first_crash_returns_its_tasks_to_the_member():
    group = group_of("m1", "m2", stateful=4, stateless=2, num_standbys=1)
    before = of(group, "m2")
    crashes(group, "m2")
    assert of(group, "m2") == before
    assert not group.state.is_crash_looping("m2")


@pytest.mark.parametrize("proven", [True, False])
@pytest.mark.parametrize("assignor", ["high_availability", "load_balanced", "learner", "cooperative", "lag_aware"])
def test_second_crash_moves_the_tasks_and_further_crashes_move_none(assignor: str, proven: bool):
    group = group_of("m1", "m2", "m3", stateful=6, stateless=3, num_standbys=1, assignor=assignor)
    crashes(group, "m3", proven=proven)
    had = of(group, "m3")
    assert had
    crashes(group, "m3", proven=proven)
    for _ in range(20):
        for _ in range(2):
            group.cycle()
        assert of(group, "m3") == []
        assert len(group.state.owner) == 9
        decided = len(group.decisions)
        crashes(group, "m3", proven=proven)
        moves = [move for each in group.decisions[decided:] if isinstance(each.decision, AssignmentIssued) for move in each.decision.moves]
        assert moves == [], "it had no task"
        assert group.state.members["m3"].standby == set(), "other members keep them"
    assert group.state.crashes["m3"].times == 22


def test_recovered_member_gets_its_tasks_back_and_takes_part_in_the_balance():
    group = group_of("m1", "m2", "m3", stateful=6, num_standbys=1)
    before = of(group, "m3")
    crashes(group, "m3")
    crashes(group, "m3")
    until_ms = group.state.now_ms + SECOND_BACKOFF_MS
    while group.state.now_ms < until_ms - 1_000:
        group.cycle()
        assert of(group, "m3") == []
    group.settles()
    for _ in range(6):
        group.cycle()
    group.settles()
    assert "recovered" in causes(group)
    assert of(group, "m3") == before


def test_ten_minutes_of_running_or_absence_clear_the_crashes():
    group = group_of("m1", "m2", stateful=2, initial_delay_ms=0)
    crashes(group, "m2")
    for _ in range(CRASH_MEMORY_MS // 3_000 + 1):
        group.cycle()
    crashes(group, "m2")
    assert group.state.crashes["m2"].times == 1

    del group.members["m2"]
    while "m2" in group.state.members:
        group.cycle()
    assert group.state.crashes["m2"].times == 2
    for _ in range(CRASH_MEMORY_MS // 3_000 + 1):
        group.cycle()
    group.join("m2", 9)
    assert "m2" not in group.state.crashes


def test_leaving_is_no_crash_and_clears_earlier_crashes():
    group = group_of("m1", "m2", stateful=2)
    crashes(group, "m2")
    crashes(group, "m2")
    incarnation = group.members["m2"].incarnation
    assert group.state.is_crash_looping("m2")
    assert rejections(group.fact(MemberLeft(member_id="m2", incarnation=incarnation))) == []
    del group.members["m2"]
    group.join("m2", incarnation + 1)
    assert group.state.crashes == {}
    assert not group.state.is_crash_looping("m2")


def test_deploy_that_kills_every_member_once_is_no_crash_loop():
    names = ("m1", "m2", "m3")
    group = group_of(*names, stateful=6, num_standbys=1)
    before = dict(group.state.owner)
    for name in names:
        crashes(group, name)
        group.settles()
    assert dict(group.state.owner) == before
    assert {group.state.crashes[name].times for name in names} == {1}


def test_task_without_warm_copy_elsewhere_stays_and_a_copy_warms_up():
    """A stateless task moves at once; each other task moves when its copy is ready, as slots allow."""
    group = group_of("m1", "m2", stateful=4, stateless=2, max_warmups=1)
    group.members["m1"].restores = 20_000
    crashes(group, "m2")
    had = of(group, "m2")
    group.members["m1"].copies = {task: lag for task, lag in group.members["m1"].copies.items() if task not in had}
    group.cycle()
    crashes(group, "m2")
    stateful = [task for task in had if task.subtopology == 0]
    assert of(group, "m2") == stateful
    assert len(group.state.members["m1"].warmup) == 1
    for _ in range(12):
        crashes(group, "m2")
        group.members["m1"].reports()
        assert len(group.state.owner) == 6
    group.cycle()
    assert of(group, "m2") == []


def test_task_that_only_the_crashing_member_can_run_stays_there():
    group = group_of("m1", "m2", stateful=2)
    crashes(group, "m2")
    group.fact(topology(epoch=2, stateful=2, stateless=1))
    before = group.members["m2"]
    group.join("m2", before.incarnation + 1, lags=dict(before.copies), ended_incarnation=before.incarnation, topology_epoch=2)
    assert group.state.is_crash_looping("m2")
    assert TaskId(1, 0) in of(group, "m2")


def test_members_all_crashing_are_equally_preferred():
    names = ("m1", "m2")
    group = group_of(*names, stateful=4)
    before = dict(group.state.owner)
    for _ in range(4):
        for name in names:
            crashes(group, name, after_ms=100)
    for _ in range(10):
        group.cycle()
    assert dict(group.state.owner) == before


def test_crash_looping_member_keeps_standbys_only_without_enough_others():
    group = group_of("m1", "m2", stateful=2, num_standbys=1)
    crashes(group, "m2")
    crashes(group, "m2")
    group.cycle()
    assert group.state.members["m2"].standby == set()
    while group.state.is_crash_looping("m2"):
        group.cycle()
    group.settles()
    assert group.state.members["m2"].standby


def test_cooperative_does_not_wait_for_a_member_that_keeps_crashing():
    group = group_of("m1", "m2", stateless=4, assignor="cooperative", options={"scheduled_delay_ms": 300_000})
    crashes(group, "m2")
    crashes(group, "m2")
    assert of(group, "m2") == []
    assert len(group.state.owner) == 4
    assert group.state.lost == {}


def test_session_timeout_and_expulsion_are_crashes():
    group = group_of("m1", "m2", stateless=2, revocation_timeout_ms=5_000)
    del group.members["m2"]
    while "m2" in group.state.members:
        group.cycle()
    assert group.state.crashes["m2"].times == 1
    group.join("m2", 7)
    group.fact(joined("m3"))
    stuck = next(name for name, member in group.state.members.items() if member.revoking)
    for number in range(100, 107):
        member = group.state.members.get(stuck)
        if member is None:
            break
        held = tuple(sorted((*member.active, *member.revoking)))
        group.fact(LagReported(stuck, member.incarnation, number, member.issued_epoch, held=held), after_ms=1_000)
    expired = [each.decision for each in group.decisions if isinstance(each.decision, MemberExpired)]
    assert [each.cause for each in expired] == ["session_timeout", "revocation_timeout"]
    assert group.state.crashes[stuck].times == (2 if stuck == "m2" else 1)


def test_explain_and_show_name_the_crashes_of_a_member():
    group = group_of("m1", "m2", "m3", stateful=3, num_standbys=1)
    crashes(group, "m3")
    (task,) = of(group, "m3")
    crashes(group, "m3")
    crashes(group, "m3")
    log: list[Entry] = []
    for record in group.records:
        log += [record, *(decision for decision in group.decisions if decision.caused_by == record.offset)]
    told = explain(log, task)
    assert any("m3 crashed 3 times in 2.0 s; its copies are not preferred for another 20.0 s" in line for line in told.what_next)
    assert any("m3 keeps crashing" in line for line in told.why_here)
    row = next(member for member in view_of(group.machine).members if member.member_id == "m3")
    assert (row.crashes, row.crash_backoff_ms) == (3, 20_000)


def test_half_restored_copy_of_a_crashing_member_keeps_its_slot_against_later_ones():
    """No member is caught up: then the member that is ready soonest runs the task, a crashing one
    too, unless others are ready as soon.
    """
    group = Group().starts("m1", "m2", stateful=1)
    group.fact(PartitionsObserved(end_offsets={"log": {0: 100_000}}))
    for incarnation in (2, 3):
        lags: dict[TaskId, Lag] = {TaskId(0, 0): 30_000}
        group.fact(joined("m1", incarnation, ended_incarnation=incarnation - 1, lags=lags))
        group.fact(joined("m2", incarnation, ended_incarnation=incarnation - 1, lags=lags))
    group.fact(joined("m3"))
    assert of(group, "m3") == []
    assert group.state.owner[TaskId(0, 0)] in ("m1", "m2")
