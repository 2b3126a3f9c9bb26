"""`lag_aware` with racks: the same bundles as without racks, assigned to reduce reads across racks;
compared with every other assignment of the bundles.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import attrs
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.assignors import AssignmentProblem, MemberSpec, Partition, Plan, Task
from equipoise.assignors.common.racks import Racks
from equipoise.assignors.common.validation import plan_faults
from equipoise.assignors.lag_aware import LagAware
from equipoise.events.settings import GroupSettings
from equipoise.events.tasks import TaskId

ASSIGNOR = LagAware()
RACKS = ("a", "b", "c")
LAGS = st.sampled_from([0, 0, 0, 1, 7, 7, 300, 500_000])
Owners = dict[TaskId, str]
Hands = list[tuple[int, ...]]


@st.composite
def groups(draw: st.DrawFn, *, topics: int = 1, most: int = 5, tolerance: int = 0) -> AssignmentProblem:
    """Consumers in racks, of topics to which all subscribe; partitions may have any owner or none."""
    names = [f"c{number}" for number in range(draw(st.integers(2, 4)))]
    has_state = draw(st.booleans())
    tasks, owner = [], {}
    for topic in range(topics):
        for number in range(draw(st.integers(1, most))):
            at = tuple(sorted(draw(st.sets(st.sampled_from(RACKS), min_size=0, max_size=2))))
            source = Partition(topic=f"t{topic}", partition=number, racks=at, weight=draw(st.sampled_from([1, 1, 4])))
            tasks.append(Task(id=TaskId(topic, number), stateful=has_state, end_offset=9 * has_state, lag=draw(LAGS), source=(source,)))
            owner[tasks[-1].id] = draw(st.sampled_from([*names, None]))
    members = tuple(
        MemberSpec(id=name, rack=draw(st.sampled_from([*RACKS, None])), active=tuple(task for task, has in owner.items() if has == name))
        for name in names
    )
    group_settings = GroupSettings(
        rack_aware_strategy=draw(st.sampled_from(["min_cost", "balanced_min_cost"])),
        rack_non_overlap_cost=draw(st.sampled_from([0, 1, 15])),
        options={"rack_lag_tolerance": tolerance} if tolerance else {},
    )
    return AssignmentProblem(tasks=tuple(tasks), members=members, settings=group_settings)


def answer(problem: AssignmentProblem) -> Plan:
    plan = ASSIGNOR.assign(problem)
    assert plan_faults(problem, plan, ASSIGNOR.guarantees) == []
    return plan


def owners(plan: Plan) -> Owners:
    return {task: name for name, tasks in plan.target.items() for task in tasks}


def without_racks(problem: AssignmentProblem) -> AssignmentProblem:
    return attrs.evolve(problem, settings=GroupSettings())


def bundles(problem: AssignmentProblem, owner: Owners) -> Hands:
    """Returns the members' bundles as topics and lags, without the members' names."""
    held: dict[str, list[int]] = {member.id: [] for member in problem.members}
    for task in problem.tasks:
        held[owner[task.id]].append(1_000_000 * task.id.subtopology + (task.lag or 0))
    return sorted(tuple(sorted(of)) for of in held.values())


def cost(problem: AssignmentProblem, owner: Owners) -> int:
    """Returns the cost of traffic plus that of changes of owner."""
    racks = Racks(problem.settings, {task.id: task for task in problem.tasks}, {member.id: member for member in problem.members})
    before = {task: member.id for member in problem.members for task in member.active}
    return sum(racks.cost(task, name) + (racks.move_cost(task) if before.get(task, name) != name else 0) for task, name in owner.items())


def options_(problem: AssignmentProblem, wanted: Hands) -> Iterator[Owners]:
    for chosen in itertools.product([member.id for member in problem.members], repeat=len(problem.tasks)):
        owner = dict(zip([task.id for task in problem.tasks], chosen, strict=True))
        if bundles(problem, owner) == wanted:
            yield owner


@settings(max_examples=150)
@given(groups())
def test_rack_aware_bundles_cost_no_more_and_their_bound_is_sound(problem: AssignmentProblem):
    plan, plain = answer(problem), owners(answer(without_racks(problem)))
    assert bundles(problem, owners(plan)) == bundles(problem, plain)
    told = cost(problem, owners(plan))
    assert told <= cost(problem, plain)
    if plan.cost.stages:
        least = min(cost(problem, owner) for owner in options_(problem, bundles(problem, plain)))
        assert plan.cost.rack_cost == told
        assert plan.cost.rack_cost_lower_bound <= least
        assert plan.cost.optimal == (told == plan.cost.rack_cost_lower_bound)
    else:
        assert owners(plan) == plain


@given(groups(topics=3, most=4))
def test_per_topic_counts_and_lags_equal_those_without_racks(problem: AssignmentProblem):
    """Only for a first assignment: a running, even group keeps its bundles, so there is no other
    result to compare.
    """
    fresh = attrs.evolve(problem, members=tuple(attrs.evolve(member, active=()) for member in problem.members))
    near, plain = owners(answer(fresh)), owners(answer(without_racks(fresh)))
    for topic in range(3):
        part = attrs.evolve(fresh, tasks=tuple(task for task in fresh.tasks if task.id.subtopology == topic))
        assert bundles(part, near) == bundles(part, plain)


@given(groups(most=8, tolerance=6))
def test_bundles_with_tolerance_have_lags_within_it(problem: AssignmentProblem):
    fresh = attrs.evolve(problem, members=tuple(attrs.evolve(member, active=()) for member in problem.members))
    near, plain = bundles(fresh, owners(answer(fresh))), bundles(fresh, owners(answer(without_racks(fresh))))
    counts = [len(bundle) for bundle in plain]
    assert sorted(map(len, near)) == sorted(counts)
    spread, bound = (max(map(sum, dealt)) - min(map(sum, dealt)) for dealt in (near, plain))
    assert spread <= bound + 2 * 6 * max(counts)


@given(groups(topics=2, most=6), st.booleans(), st.data())
def test_traffic_only_falls_under_changing_lags_until_the_group_settles(problem: AssignmentProblem, cross_topic: bool, data: st.DataObject):
    group_settings = attrs.evolve(problem.settings, options={"cross_topic": cross_topic})
    problem = after(attrs.evolve(problem, settings=group_settings))
    for _ in range(4):
        noisy = tuple(attrs.evolve(task, lag=data.draw(LAGS)) for task in problem.tasks)
        moved = after(attrs.evolve(problem, tasks=noisy))
        before, now = (cost(each, {task: member.id for member in each.members for task in member.active}) for each in (problem, moved))
        assert now < before or moved.members == problem.members
        problem = moved
    asked = 0
    while answer(problem).movements:
        problem, asked = after(problem), asked + 1
        assert asked < 20


def after(problem: AssignmentProblem) -> AssignmentProblem:
    """Returns the group after it carried out the plan."""
    target = answer(problem).target
    return attrs.evolve(problem, members=tuple(attrs.evolve(member, active=target[member.id]) for member in problem.members))


def test_equal_lags_make_every_read_local():
    """Six partitions, two in each of three racks; one consumer in each. Without racks they are
    dealt by their numbers.
    """
    tasks = tuple(
        Task(id=TaskId(0, number), stateful=False, lag=0, source=(Partition(topic="t", partition=number, racks=(RACKS[number // 2],)),))
        for number in range(6)
    )
    members = tuple(MemberSpec(id=f"c{index}", rack=rack) for index, rack in enumerate(RACKS))
    problem = AssignmentProblem(tasks=tasks, members=members, settings=GroupSettings(rack_aware_strategy="min_cost"))
    near, plain = answer(problem), answer(without_racks(problem))
    assert (near.cost.cross_rack, plain.cost.cross_rack) == (0, 4)
    assert (near.cost.rack_cost, near.cost.rack_cost_lower_bound, near.cost.optimal) == (0, 0, True)
    assert near.target == {"c0": (TaskId(0, 0), TaskId(0, 1)), "c1": (TaskId(0, 2), TaskId(0, 3)), "c2": (TaskId(0, 4), TaskId(0, 5))}


def test_large_group_in_racks_is_assigned_in_seconds():
    tasks = tuple(
        Task(
            id=TaskId(topic, number),
            stateful=False,
            lag=topic * number % 97,
            source=(Partition(topic=f"t{topic}", partition=number, racks=(RACKS[(topic + number) % 3],)),),
        )
        for topic in range(5)
        for number in range(1_000)
    )
    members = tuple(MemberSpec(id=f"c{number}", rack=RACKS[number % 3]) for number in range(200))
    problem = AssignmentProblem(tasks=tasks, members=members, settings=GroupSettings(rack_aware_strategy="min_cost"))
    plan = answer(problem)
    assert plan.cost.imbalance == 0
    assert plan.cost.cross_rack < answer(without_racks(problem)).cost.cross_rack
