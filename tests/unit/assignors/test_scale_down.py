"""Whom to ask to leave: how many, from which racks, and of those the cheapest; judged by trying all
choices of small groups.
"""

from __future__ import annotations

import itertools
import random

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.assignors import AssignmentProblem, MemberSpec, Task
from equipoise.assignors.scale_down import Keep, ScaleDown, scale_down
from equipoise.events.errors import InputError
from equipoise.events.settings import GroupSettings
from equipoise.events.tasks import LagSentinel, TaskId
from equipoise.testing import problems
from equipoise.testing.contract import shuffled
from tests.unit.assignors.build import ids, member, problem, tasks


def names(found: ScaleDown) -> list[str]:
    return [each.member for each in found.asked]


def forty(racks: int = 0) -> AssignmentProblem:
    """m00 to m39, each with one task of its own; m07's is the smallest, m06's the next, and so on
    round.
    """
    made = [Task(id=TaskId(0, index), stateful=True, end_offset=1_000 * (1 + (7 - index) % 40)) for index in range(40)]
    group = [
        MemberSpec(
            id=f"m{index:02}",
            rack=f"r{index % racks}" if racks else None,
            active=(task.id,),
            lags={task.id: LagSentinel.ACTIVE},
        )
        for index, task in enumerate(made)
    ]
    return AssignmentProblem(tasks=tuple(made), members=tuple(group))


def test_forty_to_eighty_percent_asks_eight():
    found = scale_down(forty(), Keep(percent=80))
    assert names(found) == ["m07", "m06", "m05", "m04", "m03", "m02", "m01", "m00"]
    assert (found.keep, found.leaving, found.restore_records) == (32, (), 36_000)
    assert [each.records for each in found.asked] == [1_000 * number for number in range(1, 9)]
    assert found.racks == {"": (40, 32)}


def test_racks_give_their_share():
    found = scale_down(forty(racks=3), Keep(percent=80))
    assert len(found.asked) == 8
    assert [size for size, _ in found.racks.values()] == [14, 13, 13]
    assert sorted(kept for _, kept in found.racks.values()) == [10, 11, 11]
    assert names(scale_down(forty(racks=40), Keep(percent=80))) == names(scale_down(forty(), Keep(percent=80)))


def test_rack_keeps_last_member():
    group = [member("a1", "0_0"), member("b1", "0_1"), *(member(f"c{index}", f"0_{index}") for index in range(2, 6))]
    racked = tuple(attrs.evolve(each, rack=each.id[0]) for each in group)
    question = attrs.evolve(problem(tasks("0_0 0_1 0_2 0_3 0_4 0_5")), members=racked)
    assert names(scale_down(question, Keep(percent=50))) == ["c2", "c3", "c4"]
    assert len(scale_down(question, Keep(percent=20)).asked) == 4


def test_hot_copy_makes_leaving_cheap_until_it_leaves():
    """m1's task has a hot copy on m2; m2's task has none. Then m3 is cheaper than m2, who holds
    what m1 left.
    """
    question = problem(
        tasks("0_0 0_1", end_offset=5_000),
        member("m1", "0_0"),
        member("m2", "0_1", lags={"0_0": 0}),
        member("m3", lags={"0_0": 3_000}),
        member("m4"),
    )
    assert [(each.member, each.records) for each in scale_down(question, Keep(percent=25)).asked] == [("m3", 0), ("m4", 0), ("m1", 0)]


def test_standbys_to_recreate_count():
    question = problem(
        tasks("0_0 0_1", end_offset=5_000),
        member("m1", "0_0"),
        member("m2", standby="0_0", lags={"0_0": 0}),
        member("m3", "0_1"),
        member("m4", standby="0_1", lags={"0_1": 0}),
        member("m5"),
        num_standbys=1,
    )
    assert [(each.member, each.records) for each in scale_down(question, Keep(percent=60)).asked] == [("m5", 0), ("m2", 5_000)]
    assert [each.records for each in scale_down(attrs.evolve(question, settings=GroupSettings()), Keep(percent=60)).asked] == [0, 0]


def test_leaving_members_count_as_asked():
    question = problem(tasks("0_0 0_1 0_2"), member("m1", "0_0", leaving=True), member("m2", "0_1"), member("m3", "0_2"), member("m4"))
    found = scale_down(question, Keep(percent=50))
    assert (found.leaving, names(found), found.keep) == (("m1",), ["m4"], 2)
    assert scale_down(question, Keep(percent=100)).asked == ()
    assert scale_down(question, Keep(percent=75)).asked == ()


@pytest.mark.parametrize(("text", "keep"), [("4", Keep(number=4)), ("80%", Keep(percent=80)), ("1", Keep(number=1)), ("100%", Keep(percent=100))])
def test_number_is_of_members_and_a_percentage_is_a_share(text: str, keep: Keep):
    assert Keep.parse(text) == keep


@pytest.mark.parametrize("text", ["0", "0%", "101%", "-1", "", "%", "4.5", "eighty", "80 %", "٤", "9" * 40])
def test_keep_that_is_neither_is_refused(text: str):
    with pytest.raises(InputError, match="neither a number of members, as 4, nor a share of them, as 80%"):
        Keep.parse(text)


@given(st.integers(1, 50), st.integers(1, 60))
def test_number_of_members_stays_exactly(members: int, number: int):
    found = scale_down(problem(tasks("0_0"), *(member(f"m{index:02}") for index in range(members))), Keep(number=number))
    assert found.keep == min(members, number)


def test_group_without_members_is_refused():
    with pytest.raises(InputError, match="nobody to ask"):
        scale_down(problem(tasks("0_0")), Keep(percent=50))


@given(problems(most_tasks=8, most_members=6), st.integers(1, 100), st.randoms(use_true_random=False))
def test_asked_number_does_not_depend_on_the_order(question: AssignmentProblem, percent: int, dice: random.Random):
    found = scale_down(question, Keep(percent=percent))
    assert found == scale_down(shuffled(question, dice), Keep(percent=percent))
    count, leaving = len(question.members), [each.id for each in question.members if each.leaving]
    to_go = count - -(-count * percent // 100)
    assert len(found.asked) == max(0, to_go - len(leaving))
    assert not {*names(found)} & {*leaving}
    assert len({*names(found)}) == len(found.asked)
    assert found.keep == count - len(leaving) - len(found.asked) == sum(kept for _, kept in found.racks.values())
    if not leaving and found.keep >= len(found.racks):
        assert all(kept >= 1 for _, kept in found.racks.values())
    assert all(each.records >= 0 for each in found.asked)


@st.composite
def unshared(draw: st.DrawFn) -> AssignmentProblem:
    """Every task has one copy, its owner's."""
    made, group = [], []
    for index in range(draw(st.integers(2, 7))):
        size = draw(st.sampled_from([0, 1, 500, 501, 9_000]))
        made.append(Task(id=TaskId(0, index), stateful=True, end_offset=size))
        owned = ids(f"0_{index}")
        lags = dict.fromkeys(owned, LagSentinel.ACTIVE)
        group.append(MemberSpec(id=f"m{index}", rack=draw(st.sampled_from("ab")), active=owned, lags=lags))
    return AssignmentProblem(tasks=tuple(made), members=tuple(group))


@given(unshared(), st.integers(1, 99))
def test_choice_is_cheapest_when_no_copies_are_shared(question: AssignmentProblem, percent: int):
    found = scale_down(question, Keep(percent=percent))
    size = {member.id: max(1, task.end_offset) for member, task in zip(question.members, question.tasks, strict=True)}
    rack = {member.id: member.rack for member in question.members}
    count, go = len(size), len(found.asked)
    racks = sorted({str(each) for each in rack.values()})
    of_rack = {each: sum(other == each for other in rack.values()) for each in racks}
    lone = 1 if count - go >= len(racks) else 0

    def allowed(choice: tuple[str, ...]) -> bool:
        gone = {each: sum(rack[name] == each for name in choice) for each in racks}
        most = {each: min(-(-of_rack[each] * go // count), of_rack[each] - lone) for each in racks}
        if sum(most.values()) < go:
            return all(gone[each] <= of_rack[each] - lone for each in racks)
        return all(min(of_rack[each] * go // count, most[each]) <= gone[each] <= most[each] for each in racks)

    assert found.restore_records == min(
        (sum(size[name] for name in choice) for choice in itertools.combinations(sorted(size), go) if allowed(choice)), default=0
    )
