"""Where standbys are kept, placed and passed on, without racks and tags."""

from __future__ import annotations

import random
from typing import Any

import attrs
import pytest

from equipoise.assignors.common import standbys
from equipoise.assignors.common.indexed_problem import IndexedProblem
from equipoise.assignors.common.movements import WarmupSlots, get_movements
from equipoise.assignors.common.problem import AssignmentProblem, MemberSpec
from equipoise.assignors.common.standbys import Standbys, assign_standbys
from equipoise.assignors.cooperative import Cooperative
from equipoise.events.tasks import TaskId, parse_task
from tests.unit.assignors.build import UNKNOWN, in_flight, member, movements, numbered, problem, tasks, text


def assigned(question: AssignmentProblem, target: dict[str, str] | None = None, *, full: bool = False) -> Standbys:
    """The owners stay, but for those in `target`. `full`: no slot is left."""
    indexed = IndexedProblem(question)
    ends = {**indexed.owner, **{parse_task(task): name for task, name in (target or {}).items()}}
    slots = WarmupSlots(indexed)
    planned = get_movements(indexed, indexed.owner, ends, slots)
    while full and slots.left:
        slots.hold("m1")
    return assign_standbys(indexed, indexed.owner, ends, planned, slots)


def held(found: Standbys) -> dict[str, str]:
    """Task -> ``"m1 m2"``."""
    return {str(task): " ".join(members) for task, members in found.holders.items()}


def warming(found: Standbys) -> list[str]:
    return sorted(f"{task} {name}" for task, name in found.warmups)


def in_zones(question: AssignmentProblem, **zones: str) -> AssignmentProblem:
    settings = attrs.evolve(question.settings, rack_aware_tags=("zone",))
    return attrs.evolve(question, settings=settings, members=tuple(attrs.evolve(each, tags={"zone": zones[each.id]}) for each in question.members))


TWO, SIX = tasks("0_0 0_1"), tasks(numbered(6))


def test_without_standbys_there_are_none():
    found = assigned(problem(TWO, member("m1", "0_0 0_1"), member("m2", standby="0_0")))
    assert (held(found), found.warmups, found.placed, found.unsettled, found.goal) == ({}, frozenset(), frozenset(), False, None)


# Kept


def test_copy_that_is_needed_stays():
    found = assigned(problem(TWO, member("m1", "0_0 0_1"), member("m2", standby="0_1 0_0"), member("m3"), num_standbys=1, balance_factor=9))
    assert (held(found), found.placed, found.unsettled) == ({"0_0": "m2", "0_1": "m2"}, frozenset(), False)


@pytest.mark.parametrize(
    ("fields", "stays"), [({"subtopologies": {0: 1}}, True), ({"subtopologies": {1: 9}}, False), ({"leaving": True, "subtopologies": {1: 9}}, True)]
)
def test_copy_of_a_task_that_its_member_does_not_know_ends_unless_it_leaves(fields: dict[str, Any], stays: bool):
    """A leaving member keeps its copies until they are replaced."""
    question = problem(tasks("0_0"), member("m1", "0_0"), member("m2", standby="0_0", **fields), member("m3"), num_standbys=1)
    found = assigned(question)
    assert held(found) == {"0_0": "m2" if stays else "m3"}


def test_copy_of_a_task_that_its_member_runs_now_is_no_standby():
    found = assigned(problem(tasks("0_0"), member("m1", "0_0", standby="0_0"), member("m2"), num_standbys=1))
    assert (held(found), found.placed) == ({"0_0": "m2"}, frozenset({TaskId(0, 0)}))


def test_copy_of_a_task_that_is_gone_or_has_no_owner_is_no_standby():
    question = problem(TWO, member("m1", "0_0"), member("m2", standby="0_0 0_1 7_7"), num_standbys=1)
    assert held(assigned(question)) == held(assigned(in_zones(question, m1="a", m2="b"))) == {"0_0": "m2"}


def test_tasks_without_owners_have_no_standbys():
    found = assigned(problem(TWO, member("m1"), member("m2", standby="0_0"), num_standbys=1))
    assert (held(found), found.placed, found.unsettled) == ({}, frozenset(), False)


def test_stateless_task_has_no_standby():
    found = assigned(problem(tasks("0_0", "1_0"), member("m1", "0_0 1_0"), member("m2"), num_standbys=1))
    assert held(found) == {"0_0": "m2"}


@pytest.mark.parametrize(
    ("second", "third", "stays"),
    [
        ({"lags": {"0_0": 700}}, {"lags": {"0_0": 800}}, "m2"),
        ({"lags": {"0_0": 800}}, {"lags": {"0_0": 700}}, "m3"),
        ({"lags": {"0_0": 700}, "leaving": True}, {"lags": {"0_0": 800}}, "m3"),
        ({"lags": {"0_0": 700}, "active": "0_1 0_2 0_3 0_4 0_5"}, {"lags": {"0_0": 800}}, "m3"),
        ({}, {}, "m3"),
    ],
)
def test_copy_too_many_ends_where_it_is_worth_least(second: dict[str, Any], third: dict[str, Any], stays: str):
    """Leaving members first, then those above their share, then those with most to restore."""
    runs = [member("m1", "0_0") if "active" in second else member("m1", numbered(6)), member("m2", standby="0_0", **second)]
    question = problem(SIX, *runs, member("m3", standby="0_0", **third), num_standbys=1, balance_factor=20 if "active" not in second else 1)
    assert held(assigned(question))["0_0"] == stays


def test_copy_too_many_ends_by_what_it_restores_and_not_by_the_load_beside_it():
    """m2 has its share of two copies; m3 has this one alone, but more to restore."""
    second = member("m2", "0_1", standby="0_0", lags={"0_0": 700})
    found = assigned(problem(TWO, member("m1", "0_0"), second, member("m3", standby="0_0", lags={"0_0": 800}), num_standbys=1))
    assert (held(found)["0_0"], found.warmups) == ("m2", frozenset())


def test_member_whose_copy_ends_may_hold_another():
    second, third = member("m2", standby="0_0", lags={"0_0": 700}), member("m3", standby="0_0", lags={"0_0": 800})
    found = assigned(problem(TWO, member("m1", "0_0 0_1"), second, third, num_standbys=1))
    assert held(found) == {"0_0": "m2", "0_1": "m3"}


def test_copy_that_a_movement_needs_stays_though_it_is_worth_less():
    question = problem(
        tasks("0_0"), member("m1", "0_0"), member("m2", standby="0_0", lags={"0_0": 0}), member("m3", standby="0_0", lags={"0_0": 9}), num_standbys=1
    )
    assert held(assigned(question, {"0_0": "m3"})) == {"0_0": "m3"}


# Placed


def test_each_task_has_as_many_copies_as_there_are_other_members_that_may_run_it():
    members = [member("m1", "0_0 0_1"), member("m2"), member("m3", subtopologies={0: 1}), member("m4", leaving=True)]
    for wanted, copies in ((1, [1, 1]), (2, [2, 1]), (3, [2, 1])):
        found = assigned(problem(TWO, *members, num_standbys=wanted))
        assert [len(each.split()) for each in held(found).values()] == copies


@pytest.mark.parametrize("leaving", [False, True])
def test_task_that_no_other_member_may_run_has_no_standby_beside_one_that_has(leaving: bool):
    question = problem(tasks("0_0 1_0"), member("m1", "0_0 1_0", leaving=leaving), member("m2", subtopologies=[0]), num_standbys=1)
    assert held(assigned(question)) == {"0_0": "m2", "1_0": ""}


def test_owner_that_may_not_run_its_task_is_no_member_beside_itself():
    members = [member("m1", "0_0", subtopologies={1: 1}), member("m2"), member("m3")]
    assert held(assigned(problem(tasks("0_0"), *members, num_standbys=3))) == {"0_0": "m2 m3"}


@pytest.mark.parametrize(
    ("second", "third", "holder"),
    [
        ({"lags": {"0_0": 500}}, {"lags": {"0_0": 600}}, "m2"),
        ({"lags": {"0_0": 600}}, {"lags": {"0_0": 500}}, "m3"),
        ({"lags": {"0_0": UNKNOWN}}, {"lags": {"0_0": 600}}, "m3"),
        ({"lags": {"0_0": 50}}, {"ready": "0_0", "lags": {"0_0": 40}}, "m3"),
        ({"lags": {"0_0": 500}}, {"ready": "0_0", "lags": {"0_0": 600}}, "m3"),
        ({"lags": {"0_0": 5}, "leaving": True}, {"lags": {"0_0": 600}}, "m3"),
        ({}, {"lags": {"0_0": 149_000}}, "m3"),
    ],
)
def test_left_over_copy_that_is_nearest_becomes_the_standby(second: dict[str, Any], third: dict[str, Any], holder: str):
    found = assigned(problem(tasks("0_0"), member("m1", "0_0"), member("m2", **second), member("m3", **third), num_standbys=1))
    assert (held(found), found.placed) == ({"0_0": holder}, frozenset({TaskId(0, 0)}))


def test_left_over_copy_on_a_member_with_its_share_is_not_used():
    """m2 has its share of two copies: one more is above."""
    question = problem(TWO, member("m1", "0_0"), member("m2", "0_1", lags={"0_0": 5}), member("m3"), member("m4"), num_standbys=1)
    assert held(assigned(question))["0_0"] in ("m3", "m4")


@pytest.mark.parametrize("balance_factor", [1, 9])
def test_left_over_copy_of_a_destination_is_not_its_standby(balance_factor: int):
    members = member("m1", "0_0"), member("m2", lags={"0_0": 500}), member("m3")
    question = problem(tasks("0_0"), *members, num_standbys=1, balance_factor=balance_factor)
    assert held(assigned(question, {"0_0": "m2"})) == {"0_0": "m3"}
    assert held(assigned(question)) == {"0_0": "m2"}


@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.parametrize("capacity", [1, 3])
@pytest.mark.parametrize("count", [6, 60])
def test_copies_follow_capacity(count: int, capacity: int, copies: int):
    owners = [numbered(count // 3, start=start) for start in range(0, count, count // 3)]
    members = [member(f"m{place}", owner, capacity=capacity if place == 3 else 1) for place, owner in enumerate([*owners, ""])]
    found = assigned(problem(tasks(numbered(count)), *members, num_standbys=copies))
    loads = {each.id: len(each.active) for each in members}
    for holders in found.holders.values():
        for name in holders:
            loads[name] += 1
    every = count * (1 + copies)
    if capacity == 1:
        assert max(loads.values()) - min(loads.values()) <= 1
    else:
        most = min(every // 2, count)  # a member has a task at most once
        assert loads["m3"] in (most, most + 1)
    assert all(len(set(holders)) == copies and not {task} & set(holders) for task, holders in found.holders.items())


def test_copies_just_placed_stay_where_an_owner_has_the_capacity_of_three():
    """m2 gets no copy of its own two tasks, though its share is larger."""
    members = member("m1", "0_0"), member("m2", "0_1 0_2", capacity=3), member("m3"), member("m4")
    found = assigned(problem(tasks(numbered(3)), *members, num_standbys=2))
    assert (held(found), found.warmups, found.unsettled) == ({"0_0": "m2 m3", "0_1": "m3 m4", "0_2": "m1 m4"}, frozenset(), False)


def test_standbys_of_one_owner_spread_over_the_others():
    owners = [numbered(6, start=start) for start in (0, 6, 12, 18)]
    members = [member(f"m{place}", owner) for place, owner in enumerate(owners)]
    found = assigned(problem(tasks(numbered(24)), *members, num_standbys=1))
    for owner in members:
        names = [name for task in owner.active for name in found.holders[task]]
        assert sorted(names.count(name) for name in set(names)) == [2, 2, 2]


def test_destination_without_other_members_has_the_standby_that_counts_at_its_source():
    question = problem(tasks("0_0"), member("m1", "0_0"), member("m2"), num_standbys=1)
    found = assigned(question, {"0_0": "m2"})
    assert (held(found), found.placed) == ({"0_0": "m2"}, frozenset({TaskId(0, 0)}))
    three = problem(TWO, member("m1", "0_0 0_1"), member("m2", standby="0_0"), member("m3"), num_standbys=1)
    assert held(assigned(three, {"0_0": "m2"})) == {"0_0": "m2", "0_1": "m3"}


def test_destination_is_the_standby_in_place_of_a_leaving_member():
    """m2 takes the task of m1 over and is the only one that stays beside m1, so m3's copy ends."""
    members = member("m1", "0_0"), member("m2"), member("m3", standby="0_0", lags={"0_0": 0}, leaving=True)
    found = assigned(problem(tasks("0_0"), *members, num_standbys=1), {"0_0": "m2"})
    assert (held(found), found.placed, found.warmups) == ({"0_0": "m2"}, frozenset({TaskId(0, 0)}), frozenset())


def test_second_copies_are_dealt_among_members_without_the_first():
    members = [member("m1", "0_0"), member("m2", "0_1"), member("m3", capacity=5), member("m4")]
    assert held(assigned(problem(TWO, *members, num_standbys=2))) == {"0_0": "m2 m3", "0_1": "m1 m4"}


@pytest.mark.parametrize(
    ("target", "holders"),
    [
        ({"0_0": "m2"}, {"0_0": "m3", "0_1": "m2"}),
        ({"0_0": "m3"}, {"0_0": "m2", "0_1": "m2"}),
    ],
)
def test_destination_that_restores_gets_the_standby_of_another_task(target: dict[str, str], holders: dict[str, str]):
    question = problem(TWO, member("m1", "0_0 0_1"), member("m2"), member("m3"), num_standbys=1)
    assert held(assigned(question, target)) == holders


def test_destination_is_the_last_resort_of_an_assignor_without_warm_ups():
    """Its destinations restore when they own the task, so a standby there is no copy of the
    movement; m2 is the only one beside m1.
    """
    answer = Cooperative().assign(problem(TWO, member("m1", "0_0 0_1"), member("m2"), num_standbys=1))
    assert movements(answer) == ["0_1 m1 -> m2 revoking"]
    assert {name: text(part.standby) for name, part in answer.members.items()} == {"m1": "", "m2": "0_0 0_1"}


def test_tasks_that_change_places_have_their_standbys_on_a_third_member():
    """Its share is less, but the others restore the tasks that they take over."""
    question = problem(TWO, member("m1", "0_0"), member("m2", "0_1"), member("m3"), num_standbys=1)
    assert held(assigned(question, {"0_0": "m2", "0_1": "m1"})) == {"0_0": "m3", "0_1": "m3"}


def test_standby_of_a_movement_counts_at_its_source():
    """m2 takes 0_0 over and m3 keeps the copy, so each has one copy; m2 has the capacity of two."""
    members = member("m1", "0_1"), member("m2", standby="0_0", capacity=2), member("m3", "0_0")
    assert held(assigned(problem(TWO, *members, num_standbys=1), {"0_0": "m2"})) == {"0_0": "m2", "0_1": "m2"}


# Passed on


def passes_on(lag: int | None = None, **settings: Any) -> AssignmentProblem:
    """m1 holds all standbys of m2's and m3's tasks, and m3 holds none."""
    third = member("m3", "0_4 0_5", lags={} if lag is None else {"0_2": lag})
    return problem(
        SIX, member("m1", "0_0 0_1", standby=numbered(4, start=2)), member("m2", "0_2 0_3", standby="0_0 0_1"), third, num_standbys=1, **settings
    )


def uneven(third: MemberSpec, **settings: Any) -> AssignmentProblem:
    """m2 holds both standbys of m1's tasks, and m3 has less than its share: one of four copies."""
    return problem(TWO, member("m1", "0_0 0_1"), member("m2", standby="0_0 0_1"), third, **{"num_standbys": 1, **settings})


def test_member_with_more_than_the_least_passes_one_copy_on_to_one_with_less():
    found = assigned(uneven(member("m3")))
    assert (warming(found), held(found), found.unsettled) == (["0_0 m3"], {"0_0": "m2", "0_1": "m2"}, True)


def test_balance_factor_allows_the_copies_as_they_are():
    found = assigned(uneven(member("m3"), balance_factor=2))
    assert (found.warmups, found.unsettled) == (frozenset(), False)


@pytest.mark.parametrize("blocked", [[], [("0_1", "m3")]])
def test_warm_up_that_began_goes_on_before_others_begin_and_though_it_is_blocked(blocked: list[tuple[str, str]]):
    found = assigned(uneven(member("m3", warmup="0_1"), blocked=blocked))
    assert (warming(found), held(found), found.unsettled) == (["0_1 m3"], {"0_0": "m2", "0_1": "m2"}, True)


def test_warm_up_that_nothing_needs_any_more_stops_no_other():
    """0_0's standby may stay on m4; m2 leaves with that of 0_1. Both began on m3 before they were
    blocked.
    """
    members = member("m1", "0_0 0_1"), member("m2", standby="0_1", leaving=True), member("m3", warmup="0_0 0_1"), member("m4", standby="0_0")
    found = assigned(problem(TWO, *members, num_standbys=1, blocked=[("0_0", "m3"), ("0_1", "m3")]))
    assert (warming(found), held(found)) == (["0_1 m3"], {"0_0": "m4", "0_1": "m2"})


def test_warm_up_of_a_task_that_is_gone_ends():
    assert warming(assigned(uneven(member("m3", warmup="7_7")))) == ["0_0 m3"]


def test_warm_up_that_is_ready_becomes_the_standby_before_a_nearer_copy_that_is_left_over():
    third, fourth = member("m3", warmup="0_0", lags={"0_0": 50}), member("m4", lags={"0_0": 5})
    found = assigned(problem(tasks("0_0"), member("m1", "0_0"), member("m2", standby="0_0", leaving=True), third, fourth, num_standbys=1))
    assert (held(found), warming(found), found.unsettled) == ({"0_0": "m3"}, [], False)


@pytest.mark.parametrize(
    ("second", "third", "stays"),
    [
        ({"leaving": True}, {"active": "2_0 2_1"}, "m3"),
        ({"active": "1_0 1_1"}, {"leaving": True}, "m2"),
        ({"active": "1_0 1_1"}, {"active": "2_0 2_1 2_2"}, "m2"),
        ({"active": "1_0 1_1 1_2"}, {"active": "2_0 2_1"}, "m3"),
    ],
)
def test_warm_up_replaces_the_copy_of_a_leaving_member_or_of_the_one_most_above_its_share(second: dict[str, Any], third: dict[str, Any], stays: str):
    """Both have more than one task, their share beside m4 with its capacity. Sub-topologies 1 and 2
    are known to their owner alone.
    """
    members = member("m2", standby="0_0", subtopologies=[0, 1], **second), member("m3", standby="0_0", subtopologies=[0, 2], **third)
    others = member("m1", "0_0", subtopologies=[0]), member("m4", warmup="0_0", lags={"0_0": 0}, capacity=20, subtopologies=[0])
    found = assigned(problem(tasks(text([TaskId(0, 0), *members[0].active, *members[1].active])), *members, *others, num_standbys=2))
    assert held(found)["0_0"] == f"{stays} m4"


def test_warm_up_takes_no_copy_from_a_member_that_has_the_least():
    """m1 has too many, but they are its own; m2 has two of six copies, which is its share."""
    members = member("m1", numbered(3)), member("m2", standby="0_0 0_1"), member("m3", standby="0_2", warmup="0_0")
    found = assigned(problem(tasks(numbered(3)), *members, num_standbys=1))
    assert (warming(found), found.unsettled) == ([], False)


def test_each_member_with_more_than_the_least_passes_one_copy_on():
    """m2 has two copies of its share of four, and each of the others two; the least is one."""
    first, second = member("m1", standby="0_0 0_1"), member("m2", "0_1", standby="0_3", capacity=3)
    members = first, second, member("m3", "0_0", standby="0_2"), member("m4", "0_2 0_3")
    assert warming(assigned(problem(tasks(numbered(4)), *members, num_standbys=1))) == ["0_0 m2", "0_2 m2"]


def test_member_above_its_share_passes_one_copy_on_to_one_within_it():
    """The shares of eight copies are two or three; m3 has four."""
    members = member("m1", "0_0 0_1"), member("m2", "0_2 0_3"), member("m3", standby=numbered(4))
    assert warming(assigned(problem(tasks(numbered(4)), *members, num_standbys=1))) == ["0_0 m2"]


def test_copies_go_to_the_least_loaded_member():
    members = member("m1", "0_2 0_3"), member("m2", "0_0 0_1"), member("m3", standby=numbered(4)), member("m4")
    assert warming(assigned(problem(tasks(numbered(4)), *members, num_standbys=1))) == ["0_0 m4", "0_1 m4"]


def test_copy_goes_to_the_member_with_the_least_load_for_its_capacity():
    """m4 has a third of its capacity in use by a task of its own sub-topology, and m3 nothing."""
    members = member("m1", "0_0", subtopologies=[0]), member("m2", standby="0_0", leaving=True), member("m3", subtopologies=[0])
    question = problem(tasks("0_0 1_0"), *members, member("m4", "1_0", capacity=3), num_standbys=1, balance_factor=9)
    assert warming(assigned(question)) == ["0_0 m3"]


def test_copy_is_not_passed_on_to_the_destination_of_its_task():
    """m3, which restores 0_0, has less load than m4."""
    members = member("m1", "0_0"), member("m2", standby="0_0", leaving=True), member("m3"), member("m4", "0_1 0_2")
    question = problem(tasks(numbered(3)), *members, num_standbys=1, balance_factor=9)
    assert [each for each in warming(assigned(question, {"0_0": "m3"})) if each.startswith("0_0")] == ["0_0 m4"]


def test_one_copy_of_each_task_is_passed_on_at_a_time():
    """m2 and m3 leave, each with a copy of both tasks."""
    members = member("m1", "0_0 0_1"), member("m2", standby="0_0 0_1", leaving=True), member("m3", standby="0_0 0_1", leaving=True)
    found = assigned(problem(TWO, *members, member("m4"), member("m5"), num_standbys=2))
    assert (warming(found), found.unsettled) == (["0_0 m4", "0_1 m5"], True)


def test_member_that_gets_a_copy_passes_none_on_in_the_same_plan():
    """m2 has its least, one of four copies, and gets that of m3, because it restored some of it;
    m4, which has nothing, waits for the next plan.
    """
    members = member("m1", "0_0 0_1"), member("m2", standby="0_1", lags={"0_0": 500}), member("m3", standby="0_0", leaving=True), member("m4")
    found = assigned(problem(TWO, *members, num_standbys=1))
    assert (warming(found), found.unsettled) == (["0_0 m2"], True)


def test_copy_that_is_passed_on_lets_another_take_its_place():
    """0_0 may go from m1 to m2 alone, which is full until m3 takes 0_1 over. Then nothing is too
    few, and m1 still has four of eight copies, one more than its share.
    """
    first, second = member("m1", "0_1", standby="0_0 1_0 1_1"), member("m2", "1_0 1_1", standby="0_1")
    third = member("m3", "0_0", subtopologies=[0], lags={"0_1": 5})
    found = assigned(problem(tasks("0_0 0_1 1_0 1_1"), first, second, third, num_standbys=1))
    assert (warming(found), held(found)["0_1"], found.unsettled) == (["0_0 m2"], "m3", True)


def test_free_slots_go_first_to_the_copies_that_come_next():
    """As above, but 0_2 may go to m2, too, and is next when 0_1 leaves a slot free."""
    first, second = member("m1", "0_1", standby="0_0 0_2 1_0 1_1", subtopologies=[0, 1]), member("m2", "1_0 1_1 2_0", standby="0_1")
    third = member("m3", "0_0 0_2", subtopologies=[0], lags={"0_1": 5})
    found = assigned(problem(tasks("0_0 0_1 0_2 1_0 1_1 2_0"), first, second, third, num_standbys=1))
    assert (warming(found), held(found)["0_1"]) == (["0_2 m2"], "m3")


def test_member_above_its_share_passes_copies_on_as_warm_ups():
    found = assigned(passes_on())
    assert (warming(found), found.unsettled, found.placed) == (["0_2 m3", "0_3 m3"], True, frozenset())
    assert held(found)["0_2"] == "m1", "the old copy stays until the new one is ready"


def test_copy_that_is_ready_elsewhere_replaces_the_old_one():
    found = assigned(passes_on(0))
    assert (held(found)["0_2"], "0_2 m3" in warming(found)) == ("m3", False)
    assert found.unsettled, "one more is still too many"


def test_left_over_copy_is_passed_on_first():
    assert warming(assigned(passes_on(5_000), full=False))[0] == "0_2 m3"


def test_copy_waits_for_a_slot_or_for_the_end_of_a_back_off():
    full = assigned(passes_on(), full=True)
    assert (full.warmups, full.unsettled) == (frozenset(), True)
    one = assigned(passes_on(max_warmups=1))
    assert (warming(one), one.unsettled) == (["0_2 m3"], True)
    blocked = assigned(passes_on(blocked=[("0_2", "m3")]))
    assert (warming(blocked), blocked.unsettled) == (["0_3 m3"], True)


@pytest.mark.parametrize(
    ("lag", "full", "warms", "holder", "unsettled"),
    [
        (None, False, ["0_0 m3"], "m2", True),
        (None, True, [], "m2", True),
        (5, False, [], "m3", False),
    ],
)
def test_warm_up_that_began_replaces_the_copy_of_a_leaving_member(lag: int | None, full: bool, warms: list[str], holder: str, unsettled: bool):
    taker = member("m3", warmup="0_0", lags={} if lag is None else {"0_0": lag})
    found = assigned(problem(tasks("0_0"), member("m1", "0_0"), member("m2", standby="0_0", leaving=True), taker, num_standbys=1), full=full)
    assert (warming(found), held(found), found.unsettled) == (warms, {"0_0": holder}, unsettled)


def test_warm_up_that_nothing_needs_any_more_ends():
    found = assigned(problem(tasks("0_0"), member("m1", "0_0"), member("m2", standby="0_0"), member("m3", warmup="0_0"), num_standbys=1))
    assert (warming(found), held(found), found.unsettled) == ([], {"0_0": "m2"}, False)


@pytest.mark.parametrize("balance_factor", [1, 9])
def test_warm_up_of_a_movement_is_no_standby_to_come(balance_factor: int):
    question = problem(
        tasks("0_0"),
        member("m1", "0_0"),
        member("m2", standby="0_0", leaving=True),
        member("m3", warmup="0_0"),
        member("m4"),
        in_flight=[in_flight("0_0", "m1", "m3", "warming")],
        num_standbys=1,
        balance_factor=balance_factor,
    )
    assert warming(assigned(question, {"0_0": "m3"})) == ["0_0 m4"]


def test_smaller_state_is_passed_on_first():
    given = tuple(attrs.evolve(task, end_offset=5) if task.id == TaskId(0, 3) else task for task in SIX)
    question = attrs.evolve(passes_on(max_warmups=1), tasks=given)
    assert warming(assigned(question)) == ["0_3 m3"]


def test_even_copies_are_not_passed_on():
    members = [member("m1", "0_0", standby="0_1"), member("m2", "0_1", standby="0_2"), member("m3", "0_2", standby="0_0")]
    found = assigned(problem(tasks("0_0 0_1 0_2"), *members, num_standbys=1))
    assert (warming(found), found.unsettled, held(found)) == ([], False, {"0_0": "m3", "0_1": "m1", "0_2": "m2"})


def test_copy_of_a_movement_stays_with_its_destination():
    """m2 leaves nothing to m3 of what it takes over."""
    question = problem(tasks("0_0"), member("m1", "0_0"), member("m2", standby="0_0"), member("m3"), num_standbys=1)
    found = assigned(question, {"0_0": "m2"})
    assert (held(found), warming(found), found.unsettled) == ({"0_0": "m2"}, [], False)


@pytest.mark.parametrize(("destination", "holder"), [("m2", "m3"), ("m3", "m2")])
def test_destination_that_restores_gets_no_standby_while_another_member_may_hold_it(destination: str, holder: str):
    question = problem(tasks("0_0"), member("m1", "0_0"), member("m2"), member("m3"), num_standbys=1)
    assert held(assigned(question, {"0_0": destination})) == {"0_0": holder}


def test_copies_filled_to_a_level_are_those_placed_one_by_one(monkeypatch: pytest.MonkeyPatch):
    dice = random.Random(5)
    for _ in range(40):
        names = [f"m{place}" for place in range(dice.randint(1, 5))]
        owner = {place: dice.choice(names[: 1 + place % len(names)]) for place in range(24)}
        members = [
            member(
                name,
                " ".join(f"0_{place}" for place in owner if owner[place] == name),
                standby=" ".join(f"0_{place}" for place in owner if owner[place] != name and dice.random() < 0.1),
                capacity=dice.choice([1, 1, 2, 5, 40]),
                leaving=dice.random() < 0.1,
            )
            for name in names
        ]
        question = problem(tasks(numbered(24)), *members, num_standbys=dice.randint(1, 2), balance_factor=dice.randint(1, 3))
        found = []
        for many in (0, 1_000):
            monkeypatch.setattr(standbys, "MANY_COPIES", many)
            found.append(assigned(question))
        assert found[0] == found[1]


def test_copy_of_a_task_without_other_members_weighs_nothing_when_others_end():
    """m4's copy of 1_0 ends first, so both copies of 0_0 are worth the same but for their names."""
    question = problem(
        tasks("0_0 1_0"),
        member("m1", "0_0 1_0"),
        member("m2", subtopologies={0: 9}),
        member("m3", standby="0_0", leaving=True),
        member("m4", standby="0_0 1_0", leaving=True),
        num_standbys=1,
    )
    assert held(assigned(question)) == {"0_0": "m4", "1_0": ""}


def test_copy_of_a_movement_counts_once_where_tags_matter():
    members = [attrs.evolve(each, tags={"zone": each.id}) for each in (member("m1", "0_0"), member("m2", standby="0_0"), member("m3"))]
    found = assigned(problem(tasks("0_0"), *members, num_standbys=2, rack_aware_tags=("zone",)), {"0_0": "m2"})
    assert (held(found), found.placed, found.unsettled) == ({"0_0": "m2 m3"}, frozenset({TaskId(0, 0)}), False)
    one = assigned(problem(tasks("0_0"), *members, num_standbys=1, rack_aware_tags=("zone",)), {"0_0": "m2"})
    assert (held(one), one.placed, one.unsettled) == ({"0_0": "m2"}, frozenset(), False)
    gone = attrs.evolve(members[2], warmup=(TaskId(7, 7),))
    assert assigned(problem(tasks("0_0"), *members[:2], gone, num_standbys=1, rack_aware_tags=("zone",))).holders == {TaskId(0, 0): ("m2",)}


def test_destination_without_other_members_has_the_standby_where_tags_matter():
    found = assigned(in_zones(problem(tasks("0_0"), member("m1", "0_0"), member("m2"), num_standbys=1), m1="a", m2="b"), {"0_0": "m2"})
    assert (held(found), found.placed) == ({"0_0": "m2"}, frozenset({TaskId(0, 0)}))


def test_warm_up_that_began_in_another_zone_goes_on_before_others_and_though_it_is_blocked():
    members = [member("m1", "0_0 0_1"), member("m2", standby="0_0 0_1"), member("m3", warmup="0_1", lags={"0_1": 149_000})]
    small = (attrs.evolve(TWO[0], end_offset=5), TWO[1])
    found = assigned(in_zones(problem(small, *members, num_standbys=1, max_warmups=1, blocked=[("0_1", "m3")]), m1="a", m2="a", m3="b"))
    assert (held(found), warming(found), found.unsettled) == ({"0_0": "m2", "0_1": "m2"}, ["0_1 m3"], True)
    new = [*members[:2], attrs.evolve(members[2], warmup=())]
    found = assigned(in_zones(problem(small, *new, num_standbys=1, max_warmups=1, blocked=[("0_0", "m3")]), m1="a", m2="a", m3="b"))
    assert warming(found) == ["0_1 m3"]


@pytest.mark.parametrize("near", ["0_0", "0_1"])
def test_copy_with_the_least_to_restore_is_passed_on_first_where_tags_matter(near: str):
    members = [member("m1", "0_0 0_1"), member("m2", standby="0_0 0_1"), member("m3", lags={near: 500})]
    found = assigned(in_zones(problem(TWO, *members, num_standbys=1, max_warmups=1), m1="a", m2="a", m3="b"))
    assert warming(found) == [f"{near} m3"]


def test_copy_of_a_movement_is_not_replaced_by_a_warm_up_that_began():
    members = [member("m1", "0_0", standby="0_1 0_2 0_3"), member("m2", "0_1 0_2 0_3 0_4 0_5", standby="0_0"), member("m3", warmup="0_0")]
    found = assigned(problem(SIX, *members, num_standbys=1), {"0_0": "m2"})
    assert (held(found)["0_0"], "0_0 m3" in warming(found)) == ("m2", False)


def test_copy_that_is_ready_in_another_zone_replaces_the_old_one_and_the_next_begins():
    members = member("m1", "0_0 0_1"), member("m2", standby="0_0 0_1"), member("m3", lags={"0_0": 5, "0_1": 500})
    found = assigned(in_zones(problem(TWO, *members, num_standbys=1), m1="a", m2="a", m3="b"))
    assert (held(found), warming(found), found.unsettled) == ({"0_0": "m3", "0_1": "m2"}, ["0_1 m3"], True)


def test_copy_for_another_zone_waits_for_the_end_of_a_back_off():
    """m4 alone is in a third zone."""
    members = member("m1", "0_0"), member("m2", standby="0_0"), member("m3", standby="0_0"), member("m4")
    for blocked, warms in (([], ["0_0 m4"]), ([("0_0", "m4")], []), ([("0_0", "m3"), ("7_7", "m4")], ["0_0 m4"])):
        question = in_zones(problem(tasks("0_0"), *members, num_standbys=2, blocked=blocked), m1="a", m2="b", m3="b", m4="c")
        found = assigned(question)
        assert (held(found), warming(found), found.unsettled) == ({"0_0": "m2 m3"}, warms, True)


@pytest.mark.parametrize(
    ("second", "third", "zones", "stays"),
    [
        ({"lags": {"0_0": 700}}, {"lags": {"0_0": 800}}, "aaa", "m2"),
        ({"lags": {"0_0": 800}}, {"lags": {"0_0": 700}}, "aaa", "m3"),
        ({"lags": {"0_0": 700}, "leaving": True}, {"lags": {"0_0": 800}}, "aaa", "m3"),
        ({"lags": {"0_0": 700}}, {"lags": {"0_0": 800}}, "aab", "m3"),
        ({"lags": {"0_0": 800}}, {"lags": {"0_0": 700}}, "aba", "m2"),
    ],
)
def test_copy_too_many_ends_where_it_is_worth_least_where_tags_matter(second: dict[str, Any], third: dict[str, Any], zones: str, stays: str):
    """Those that are not where they should be, first; then those of leaving members, and those with
    most to restore.
    """
    members = member("m1", "0_0"), member("m2", standby="0_0", **second), member("m3", standby="0_0", **third), member("m4")
    question = problem(tasks("0_0"), *members, num_standbys=1)
    found = assigned(in_zones(question, **dict(zip(("m1", "m2", "m3"), zones, strict=True)), m4="b"))
    assert (held(found), warming(found)) == ({"0_0": stays}, [] if "b" in zones else ["0_0 m4"])
