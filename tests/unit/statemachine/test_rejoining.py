"""Generations of a classic consumer group (docs/protocol.md#d13)."""

from __future__ import annotations

from typing import Any

import pytest

from equipoise.events.decisions import AssignmentIssued, EventRejected
from equipoise.events.errors import FieldError
from equipoise.events.facts import AbsentMember, GroupRejoined, RejoinedMember, Subtopology, TasksRevoked, TopologyDeclared
from equipoise.events.tasks import TaskId
from equipoise.statemachine.rejoining import SESSION_MS
from tests.groups import Group, configured

T = TaskId


def partitions(count: int, epoch: int = 1) -> TopologyDeclared:
    part = Subtopology(subtopology=0, partitions=count, stateful=False, source_topics=("in",))
    return TopologyDeclared(epoch=epoch, subtopologies=(part,))


def member(name: str, *held: int, incarnation: int = 1, **given: Any) -> RejoinedMember:
    topology_epoch = given.pop("topology_epoch", 1)
    tasks = tuple(T(0, each) for each in held)
    return RejoinedMember(member_id=name, incarnation=incarnation, client=f"{name}-{incarnation}", topology_epoch=topology_epoch, held=tasks, **given)


def generation(*members: RejoinedMember, absent: dict[str, int] | None = None, topologies: tuple[TopologyDeclared, ...] = ()) -> GroupRejoined:
    away = tuple(AbsentMember(member_id=name, back_within_ms=within_ms) for name, within_ms in (absent or {}).items())
    return GroupRejoined(generation=1, protocol="range", members=members, absent=away, topologies=topologies)


@pytest.fixture
def group() -> Group:
    found = Group()
    found.fact(configured(max_step_ms=60_000, revocation_timeout_ms=86_400_000))
    found.fact(generation(member("m1", 0, 1), member("m2", 2, 3), topologies=(partitions(4),)))
    return found


def active(group: Group) -> dict[str, list[int]]:
    return {name: sorted(task.partition for task in each.active) for name, each in sorted(group.state.members.items())}


def test_first_generation_adopts_what_members_have(group: Group) -> None:
    assert active(group) == {"m1": [0, 1], "m2": [2, 3]}
    assert group.state.tokens == {T(0, each): 1 for each in range(4)}


def test_members_expire_with_no_session_of_theirs(group: Group) -> None:
    for _ in range(20):
        group.tick(60_000)
    assert list(group.state.members) == ["m1", "m2"]
    assert {each.session_timeout_ms for each in group.state.members.values()} == {SESSION_MS}


def test_new_member_gets_what_was_given_up(group: Group) -> None:
    group.fact(generation(member("m1", 0, 1), member("m2", 2, 3), member("m3")))
    assert sorted(map(len, active(group).values())) == [0, 2, 2] or sorted(map(len, active(group).values())) == [0, 1, 2]
    giving = {name: each for name, each in group.state.members.items() if each.revoking}
    for name, each in sorted(giving.items()):
        group.fact(TasksRevoked(member_id=name, incarnation=1, assignment_epoch=each.issued_epoch, tasks=tuple(sorted(each.revoking))))
    assert sorted(map(len, active(group).values())) == [1, 1, 2]


def test_generation_in_which_it_is_not_held_any_more_hands_over(group: Group) -> None:
    group.fact(generation(member("m1", 0, 1), member("m2", 2, 3), member("m3")))
    moving = {task.partition for each in group.state.members.values() for task in each.revoking}
    kept = {name: [each for each in held if each not in moving] for name, held in {"m1": [0, 1], "m2": [2, 3]}.items()}
    group.fact(generation(member("m1", *kept["m1"]), member("m2", *kept["m2"]), member("m3")))
    assert active(group)["m3"] == sorted(moving)


def test_member_that_is_missing_has_left(group: Group) -> None:
    group.fact(generation(member("m1", 0, 1)))
    assert active(group) == {"m1": [0, 1, 2, 3]}
    assert not group.state.holds


def test_absent_member_is_waited_for_and_has_its_tasks_again(group: Group) -> None:
    group.fact(generation(member("m1", 0, 1), absent={"m2": 5_000}))
    assert active(group) == {"m1": [0, 1], "m2": [2, 3]}
    group.fact(generation(member("m1", 0, 1), member("m2", incarnation=2)))
    assert active(group) == {"m1": [0, 1], "m2": [2, 3]}
    assert group.state.members["m2"].incarnation == 2


def test_absent_member_that_is_not_back_in_time_is_out(group: Group) -> None:
    group.fact(generation(member("m1", 0, 1), absent={"m2": 5_000}))
    group.tick(4_000)
    group.fact(generation(member("m1", 0, 1), absent={"m2": 5_000}))  # the time counts from the first
    group.tick(1_500)
    assert active(group) == {"m1": [0, 1, 2, 3]}


def test_another_process_of_a_member_replaces_it_without_a_hold(group: Group) -> None:
    group.fact(generation(member("m1", 0, 1), member("m2", incarnation=2)))
    assert active(group) == {"m1": [0, 1], "m2": [2, 3]}
    assert not group.state.holds
    assert not group.state.crashes


def test_holder_has_the_task_whoever_had_it(group: Group) -> None:
    group.fact(generation(member("m1", 2, 3), member("m2", 0, 1)))
    assert active(group) == {"m1": [2, 3], "m2": [0, 1]}
    assert group.state.tokens == {T(0, each): 2 for each in range(4)}


def test_task_of_a_member_that_is_away_is_its_holders(group: Group) -> None:
    group.fact(generation(member("m1", 0, 1), absent={"m2": 5_000}))
    group.fact(generation(member("m1", 0, 1, 2)))
    assert active(group) == {"m1": [0, 1, 2], "m2": [3]}


def test_task_that_is_given_up_and_held_by_a_third_goes_nowhere_else(group: Group) -> None:
    group.fact(generation(member("m1", 0, 1, 2, 3), member("m2")))
    (moving, *_) = sorted(group.state.members["m1"].revoking)
    held = [each for each in range(4) if each != moving.partition]
    group.fact(generation(member("m1", *held), member("m2"), member("m3", moving.partition)))
    assert group.state.owner[moving] == "m3"
    assert moving not in group.state.in_flight


def test_granted_task_that_nobody_holds_stays_granted(group: Group) -> None:
    group.fact(generation(member("m1"), member("m2", 2, 3)))
    assert active(group) == {"m1": [0, 1], "m2": [2, 3]}


def test_new_topology_in_the_same_round(group: Group) -> None:
    decided = group.fact(generation(member("m1", 0, 1, topology_epoch=2), member("m2", 2, 3, topology_epoch=2), topologies=(partitions(6, 2),)))
    assert sum(isinstance(each, AssignmentIssued) for each in decided) == 1
    assert sorted(map(len, active(group).values())) == [3, 3]


def test_capacity_and_rack_follow_the_generation(group: Group) -> None:
    group.fact(generation(member("m1", 0, 1, capacity=3, rack="a"), member("m2", 2, 3)))
    assert (group.state.members["m1"].capacity, group.state.members["m1"].rack) == (3, "a")
    assert len(group.state.members["m2"].revoking) == 1


def test_empty_generation_leaves_no_timer(group: Group) -> None:
    group.fact(generation())
    assert active(group) == {}
    assert group.machine.next_deadline_ms is None


def test_group_that_something_else_leads_rejects_it() -> None:
    group = Group()
    group.fact(configured(led_by="external", max_step_ms=60_000))
    decided = group.fact(generation(member("m1"), topologies=(partitions(4),)))
    assert [each.code for each in decided if isinstance(each, EventRejected)] == ["external"]


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"members": (member("m2"), member("m1"))}, r"members\[1\]"),
        ({"members": (member("m1"), member("m1"))}, r"members\[1\]"),
        ({"members": (member("m1", 0), member("m2", 0))}, "members"),
        ({"members": (member("m1"),), "absent": (AbsentMember(member_id="m1", back_within_ms=1),)}, r"absent\[0\]"),
        ({"members": (), "topologies": (partitions(1, 2), partitions(1, 2))}, r"topologies\[1\]"),
    ],
)
def test_unsound_generation_is_refused(given: dict[str, Any], field: str) -> None:
    with pytest.raises(FieldError, match=rf"GroupRejoined\.{field}"):
        GroupRejoined(generation=1, protocol="range", **given)
