"""Equivalence classes of tasks, and round-robin order of members: the result for a class
equals the result for each of its tasks.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.assignors import AssignmentProblem, MemberSpec, Movement, MovementState, Partition, Plan, Task, registry
from equipoise.assignors.common import node_aggregation
from equipoise.assignors.common.indexed_problem import IndexedProblem
from equipoise.assignors.common.racks import traffic_cost
from equipoise.assignors.common.ranking import whole
from equipoise.assignors.common.round_robin import deal
from equipoise.assignors.common.validation import plan_faults
from equipoise.events.settings import GroupSettings
from equipoise.events.tasks import TaskId

RACKS = ("a", "b")


@st.composite
def groups(draw: st.DrawFn) -> AssignmentProblem:
    """A group near its start: many tasks are equivalent, and some differ from the others in one
    property.
    """
    names = [f"m{index}" for index in range(draw(st.integers(1, 4)))]
    tasks: list[Task] = []
    for subtopology in range(draw(st.integers(1, 3))):
        places = draw(st.sampled_from([((),), (("a",),), (("a",), ("b",)), (("a",), ("a",), ("a", "b"))]))
        for partition in range(draw(st.integers(0, 5))):
            has_state = draw(st.sampled_from([True, True, True, False]))
            at = draw(st.sampled_from(places))
            tasks.append(
                Task(
                    id=TaskId(subtopology, partition),
                    stateful=has_state,
                    end_offset=draw(st.sampled_from([0, 1_000, 1_000, 5_000])) if has_state else 0,
                    source=(Partition(topic="s", partition=partition, racks=at),),
                    changelog=(Partition(topic="c", partition=partition, racks=at),) if has_state else (),
                    displaced=draw(st.integers(0, 4)) == 0,
                )
            )
    members = {name: MemberSpec(id=name, capacity=draw(st.sampled_from([1, 1, 2])), rack=draw(st.sampled_from(RACKS))) for name in names}
    for name in names:
        if draw(st.integers(0, 3)) == 0:
            members[name] = attrs.evolve(members[name], subtopologies=draw(st.dictionaries(st.integers(0, 2), st.integers(1, 9), max_size=2)))
    in_flight: list[Movement] = []
    blocked: set[tuple[TaskId, str]] = set()
    for task in tasks:
        member = members[draw(st.sampled_from(names))]
        match draw(st.sampled_from([*[None] * 12, "owned", "copy", "home", "blocked", "in flight"])):
            case "owned":
                member = attrs.evolve(member, active=(*member.active, task.id))
            case "copy" if task.stateful:
                member = attrs.evolve(member, lags={**member.lags, task.id: draw(st.sampled_from([0, 600]))})
            case "home":
                member = attrs.evolve(member, previously_owned=member.previously_owned | {task.id})
            case "blocked":
                blocked.add((task.id, member.id))
            case "in flight":
                in_flight.append(Movement(task=task.id, source=None, destination=member.id, state=MovementState.REVOKING))
        members[member.id] = member
    return AssignmentProblem(
        tasks=tuple(tasks),
        members=tuple(members.values()),
        in_flight=tuple(in_flight),
        blocked=frozenset(blocked),
        settings=GroupSettings(
            acceptable_recovery_lag=100,
            num_standbys=draw(st.integers(0, 1)),
            rack_aware_strategy=draw(st.sampled_from(["none", "min_cost", "min_cost", "balanced_min_cost"])),
        ),
    )


def all_but_name_and_size(problem: AssignmentProblem, task: Task, *, racks_count: bool) -> tuple[Any, ...]:
    """What a target may ask of a task, read from the problem, and by member."""

    def at(member: MemberSpec) -> tuple[Any, ...]:
        return (
            member.knows(task.id),
            task.id in member.active or task.id in member.previously_owned or (task.stateful and (task.id in member.lags or task.id in member.ready)),
            task.stateful and (task.id, member.id) in problem.blocked,
            traffic_cost(task, member, problem.settings) if racks_count else None,
        )

    promised = {movement.destination for movement in problem.in_flight if movement.task == task.id}
    return (
        task.stateful,
        task.displaced,
        *[at(member) for member in problem.members],
        *[each.knows(task.id) and each.id in promised for each in problem.members],
    )


@settings(max_examples=300)
@given(groups())
def test_equivalent_tasks_differ_in_name_and_size_alone(problem: AssignmentProblem):
    indexed = IndexedProblem(problem)
    for alike in indexed.equivalence_classes:
        tasks = [indexed.tasks[task] for task in alike.tasks]
        assert tasks[0] is alike.first
        assert alike.tasks == sorted(alike.tasks)
        assert alike.records == [whole(task) if task.stateful else 0 for task in tasks]
        assert len({all_but_name_and_size(problem, task, racks_count=indexed.racks.counts) for task in tasks}) == 1
        assert all(indexed.class_of[task.id] is alike for task in tasks)
        for task in tasks:
            had = [member.id for member in problem.members if task.id in {*member.active, *member.previously_owned, *member.lags}]
            assert not had, f"{task.id} is in an equivalence class, and {had} knew it before"
    grouped = [task for alike in indexed.equivalence_classes for task in alike.tasks]
    assert sorted([*grouped, *indexed.others]) == sorted(task.id for task in problem.tasks)
    assert not set(grouped).intersection(indexed.others)


@given(groups())
def test_tasks_of_a_new_group_form_one_class_per_kind(problem: AssignmentProblem):
    members = tuple(attrs.evolve(member, active=(), previously_owned=frozenset(), lags={}) for member in problem.members)
    assert IndexedProblem(attrs.evolve(problem, members=members, in_flight=(), blocked=frozenset())).others == []


def planned(name: str, problem: AssignmentProblem, *, together: bool) -> Plan:
    """Not `together`: no two tasks are equivalent, and the solver aggregates none."""
    assignor = registry.latest(name)
    with pytest.MonkeyPatch.context() as patch:
        if not together:
            patch.setattr(IndexedProblem, "_equivalence_classes", lambda indexed: [])
            patch.setattr(node_aggregation, "LEAST_SAVED", len(problem.tasks) + 1)
        plan = assignor.assign(problem)
    assert plan_faults(problem, plan, assignor.guarantees) == []
    return plan


@pytest.mark.parametrize("name", ["high_availability", "learner", "cooperative", "kafka_streams"])
def test_plan_with_classes_equals_plan_without(name: str):
    """The same plan to the last field where it is the only one; otherwise one that costs the same."""

    @settings(max_examples=150)
    @given(groups())
    def check(problem: AssignmentProblem) -> None:
        together, alone = planned(name, problem, together=True), planned(name, problem, together=False)
        assert together.cost == alone.cost
        assert together.unique == alone.unique
        if together.unique:
            assert together == alone
            assert list(together.reasons) == list(alone.reasons)

    check()


# Members take turns

NAMES = ("m0", "m1", "m2", "m3")


@st.composite
def bundles(draw: st.DrawFn) -> tuple[list[TaskId], dict[str, int], dict[TaskId, tuple[str, ...]]]:
    """Tasks in some order, places on members, and members that a task must not go to."""
    tasks = draw(st.permutations([TaskId(0, partition) for partition in range(draw(st.integers(0, 7)))]))
    places = {name: draw(st.integers(0, 3)) for name in NAMES}
    shut = {task: tuple(draw(st.lists(st.sampled_from(NAMES), max_size=3, unique=True))) for task in tasks}
    return tasks, places, shut


def most_that_fit(tasks: Iterable[TaskId], places: Mapping[str, int], shut: Mapping[TaskId, tuple[str, ...]]) -> int:
    """By Hall's theorem in its form for a deficit: those that are left over are the most by which
    any tasks outnumber the places open to them.
    """
    every = list(tasks)
    left_over = 0
    for size in range(len(every) + 1):
        for some in itertools.combinations(every, size):
            open_to = {name for task in some for name in NAMES if name not in shut[task]}
            left_over = max(left_over, size - sum(places[name] for name in open_to))
    return len(every) - left_over


@settings(max_examples=300)
@given(bundles())
def test_round_robin_uses_every_augmenting_path(bundle: tuple[list[TaskId], dict[str, int], dict[TaskId, tuple[str, ...]]]):
    tasks, places, shut = bundle
    dealt = deal(tasks, places, shut.__getitem__)
    assert all(member not in shut[task] for task, member in dealt.items())
    assert all(count <= places[member] for member, count in Counter(dealt.values()).items())
    assert len(dealt) == most_that_fit(tasks, places, shut)


@given(bundles())
def test_unrestricted_tasks_are_dealt_round_robin(bundle: tuple[list[TaskId], dict[str, int], dict[TaskId, tuple[str, ...]]]):
    """A round gives one to each member that has a place left, in rising order; that is the same
    with a rule that forbids nothing.
    """
    tasks, places, _ = bundle
    turns = [name for number in range(max(places.values())) for name in NAMES if places[name] > number]
    assert deal(tasks, places) == dict(zip(tasks, turns, strict=False)) == deal(tasks, places, lambda task: ())
