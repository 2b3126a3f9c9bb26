"""Racks, for every problem: plans keep their promises, no equally balanced target costs less, names
and order do not matter, and a group moves once and then rests.

The cost of a target is computed here from the KIP's `getCost`, not by the assignor's functions.
"""

from __future__ import annotations

import itertools
import operator
from collections import Counter
from collections.abc import Mapping
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.assignors import AssignmentProblem, MemberSpec, Partition, Plan, Task, registry
from equipoise.assignors.common.transport import stable_hash
from equipoise.assignors.common.validation import plan_faults
from equipoise.assignors.high_availability import HighAvailability
from equipoise.events.settings import GroupSettings
from equipoise.events.tasks import LagSentinel, TaskId
from equipoise.testing import CONTRACT, AssignorGroup, Check, Subject, problems, stateful, stateless
from equipoise.testing.contract import a_group_that_obeys_settles, order_plays_no_part, plans_hold, renamed
from tests.properties.test_assignors import fair, imbalance, may_go_without_a_move

ASSIGNOR = HighAvailability()
RACKS = ("a", "b", "c")
TAGS = ("cluster", "rack", "zone")


# Every check of the contract, for groups with racks


def somewhere(problem: AssignmentProblem) -> AssignmentProblem:
    """Returns the problem with everything in a fixed rack, drawn from its name."""

    def racks(name: str) -> tuple[str, ...]:
        return tuple(rack for rack in RACKS if stable_hash(f"{name} {rack}") % 3)

    return attrs.evolve(
        problem,
        tasks=tuple(
            attrs.evolve(
                task,
                source=tuple(Partition(topic=topic, partition=task.id.partition, racks=racks(f"{topic} {task.id}")) for topic in "st"),
                changelog=(Partition(topic="c", partition=task.id.partition, racks=racks(f"c {task.id}")),) if task.stateful else (),
            )
            for task in problem.tasks
        ),
        members=tuple(
            attrs.evolve(
                member,
                rack=(*RACKS, None)[stable_hash(member.id) % 4],
                tags={key: f"{key}{stable_hash(key + member.id) % 3}" for key in TAGS if stable_hash(member.id + key) % 5},
            )
            for member in problem.members
        ),
    )


SETTINGS: dict[str, st.SearchStrategy[Any]] = {
    "rack_aware_strategy": st.sampled_from(["min_cost", "balanced_min_cost", "none"]),
    "rack_traffic_cost": st.sampled_from([10, 10, 1]),
    "rack_non_overlap_cost": st.sampled_from([1, 1, 0, 15]),
    "rack_standby_strategy": st.sampled_from(["balance", "greedy"]),
    "rack_standbys_apart": st.integers(0, 2),
    "rack_aware_tags": st.sampled_from([(), (), ("zone",), ("cluster", "zone"), ("rack",)]),
}
NOT_WITH_RACKS = {
    "names_play_no_part": "a member's rack hangs on its name here; asked below, with racks that do not",
    "hash_seeds_play_no_part": "it asks with the usual group_settings; the scenarios with racks are asked again under other seeds",
}


@pytest.mark.parametrize("check", [plans_hold, order_plays_no_part, a_group_that_obeys_settles], ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", ["learner", "cooperative", "lag_aware", "load_balanced"])
def test_contract_of_other_assignors_holds_with_racks(name: str, check: Check):
    check(Subject(assignor=registry.latest(name), adapted=somewhere, group_settings=SETTINGS, settings=settings(max_examples=25)))


@pytest.mark.parametrize("check", [check for check in CONTRACT if check.__name__ not in NOT_WITH_RACKS], ids=lambda check: check.__name__)
def test_contract(check: Check):
    check(Subject(assignor=ASSIGNOR, adapted=somewhere, group_settings=SETTINGS, settings=settings(max_examples=60)))


@pytest.mark.parametrize("sizes", [(3, 4), (2, 5)])
def test_standbys_found_by_search_are_searched_again_before_the_group_rests(sizes: tuple[int, int]):
    """Two members join a small group with two standbys. The first search finds places from which
    another one finds better ones.
    """
    group = AssignorGroup(
        [*stateful(sizes[0]), *stateful(sizes[1], subtopology=2, end_offset=0)],
        {"m0": 1, "m1": 1},
        assignor=ASSIGNOR,
        adapted=somewhere,
        num_standbys=2,
        balance_factor=3,
        max_warmups=2,
        max_warmups_per_member=2,
        rack_aware_strategy="min_cost",
        rack_standby_strategy="greedy",
        rack_traffic_cost=10,
    )
    group.decide()
    group.join("a1")
    group.round()
    group.join("z2")
    group.settle(20)
    rest = {name: process.standby for name, process in group.members.items()}
    for _ in range(3):
        assert not group.round().probing
        assert {name: process.standby for name, process in group.members.items()} == rest


# Any racks at all


def partitions(topic: str) -> st.SearchStrategy[Partition]:
    racks = st.lists(st.sampled_from((*RACKS, "far")), max_size=3, unique=True).map(sorted).map(tuple)
    return st.builds(Partition, topic=st.just(topic), partition=st.just(0), racks=racks, weight=st.sampled_from([1, 1, 1, 0, 3]))


@st.composite
def with_racks(draw: st.DrawFn, problem: AssignmentProblem) -> AssignmentProblem:
    """The problem with partitions and members in racks, some of them unknown."""
    return attrs.evolve(
        problem,
        tasks=tuple(
            attrs.evolve(
                task,
                source=tuple(draw(partitions(f"s{index}")) for index in range(draw(st.integers(0, 2)))),
                changelog=(draw(partitions("c")),) if task.stateful else (),
            )
            for task in problem.tasks
        ),
        members=tuple(
            attrs.evolve(
                member,
                rack=draw(st.sampled_from((*RACKS, *RACKS, None))),
                tags={key: draw(st.sampled_from(["x", "y"])) for key in TAGS if key != "rack" and draw(st.booleans())},
            )
            for member in problem.members
        ),
        settings=attrs.evolve(
            problem.settings,
            rack_aware_strategy=draw(st.sampled_from(["min_cost", "balanced_min_cost"])),
            rack_traffic_cost=draw(st.sampled_from([10, 10, 1, 0])),
            rack_non_overlap_cost=draw(st.sampled_from([1, 1, 0, 10, 15])),
            rack_standby_strategy=draw(st.sampled_from(["balance", "greedy"])),
            rack_standbys_apart=draw(st.integers(0, 2)),
            rack_aware_tags=draw(st.sampled_from([(), (), ("zone",), ("cluster", "zone")])),
        ),
    )


def traffic(group_settings: GroupSettings, task: Task, member: MemberSpec) -> int:
    """What the KIP's `getCost` adds for traffic; a partition of unknown racks costs nothing, a
    member of an unknown rack is far from the rest.
    """
    each = group_settings.rack_traffic_cost if task.stateful else 1
    return sum(each * part.weight for part in task.source if part.racks and member.rack not in part.racks)


def makes_no_difference(problem: AssignmentProblem) -> bool:
    staying = [member for member in problem.members if not member.leaving]
    return all(len({traffic(problem.settings, task, member) for member in staying}) < 2 for task in problem.tasks)


@settings(max_examples=150)
@given(problems().flatmap(with_racks))
def test_plan_keeps_its_promises_and_is_proven(problem: AssignmentProblem):
    plan = ASSIGNOR.assign(problem)
    assert plan_faults(problem, plan, ASSIGNOR.guarantees) == []
    assert plan.unique
    assert plan.cost.moves_lower_bound <= plan.cost.moves
    assert all(stage.lower_bound <= stage.cost for stage in plan.cost.stages)
    assert plan.cost.rack_cost_lower_bound <= plan.cost.rack_cost
    assert all(stage.lower_bound == stage.cost for stage in plan.cost.stages if stage.name == "active")
    if plan.cost.optimal:
        assert plan.cost.rack_cost_lower_bound == plan.cost.rack_cost


@settings(max_examples=100)
@given(problems().flatmap(with_racks))
def test_racks_that_make_no_difference_change_nothing(problem: AssignmentProblem):
    """KIP-925, 5: used only when at least one partition has different costs."""
    same = attrs.evolve(problem, tasks=tuple(attrs.evolve(task, source=()) for task in problem.tasks))
    assert makes_no_difference(same)
    blind = attrs.evolve(same, settings=attrs.evolve(same.settings, rack_aware_strategy="none", num_standbys=0))
    plan = ASSIGNOR.assign(attrs.evolve(same, settings=attrs.evolve(same.settings, num_standbys=0)))
    assert plan == ASSIGNOR.assign(blind)
    assert plan.cost.stages == ()


@given(problems(most_tasks=12, most_members=6).flatmap(with_racks), st.permutations(range(6)))
def test_renamed_members_keep_the_plan_cost(problem: AssignmentProblem, order: list[int]):
    names = {f"m{index}": f"m{order[index]}" for index in range(6)}
    plans = ASSIGNOR.assign(renamed(problem, names)), ASSIGNOR.assign(problem)
    one, other = plans[0].cost, plans[1].cost
    assert one.imbalance == other.imbalance
    # Ids decide between equals: which member is granted a task now, from which the target starts;
    # and the actives, from which the stage of standbys starts. Several standbys are placed copy by
    # copy.
    exact = set()
    if _held_now(plans[0]) == {names[name]: held for name, held in _held_now(plans[1]).items()}:
        exact.add("active")
        if dict(plans[0].target) == {names[name]: tasks for name, tasks in plans[1].target.items()} and problem.settings.num_standbys == 1:
            exact.add("standby")
    stages = [[stage for stage in cost.stages if stage.name in exact] for cost in (one, other)]
    assert stages[0] == stages[1]
    if exact.issuperset(stage.name for stage in one.stages):
        assert one.rack_cost_lower_bound == other.rack_cost_lower_bound
    if not one.stages:
        assert one == attrs.evolve(other, cross_rack=one.cross_rack)


def _held_now(plan: Plan) -> dict[str, list[TaskId]]:
    return {name: sorted((*part.active, *part.revoke)) for name, part in plan.members.items()}


# The best target, by trying all


def crowding(problem: AssignmentProblem, owner: Mapping[TaskId, str]) -> int:
    """Tasks above ceil(g*u/T) (or what falls to a member of equal capacity), for each sub-topology:
    g its tasks, u the member's upper share of T.
    """
    if problem.settings.rack_aware_strategy != "balanced_min_cost":
        return 0
    capacity = sum(member.capacity for member in problem.members)
    kinds = {True: [task for task in problem.tasks if task.stateful], False: [task for task in problem.tasks if not task.stateful]}
    both = bool(kinds[True] and kinds[False])

    shares = {True: fair(problem, kinds[True]), False: fair(problem, kinds[False])}
    every = fair(problem, problem.tasks)
    over = 0
    for (_, has_state), group in itertools.groupby(problem.tasks, key=lambda task: (task.id.subtopology, task.stateful)):
        ids = [task.id for task in group]
        for member in problem.members:
            upper = min(len(kinds[has_state]), shares[has_state][member.id][1])
            if both and not has_state:
                upper = min(len(problem.tasks), every[member.id][1]) - shares[True][member.id][0]
            most = max(-(-len(ids) * upper // len(kinds[has_state])), -(-len(ids) * member.capacity // capacity))
            over += max(0, sum(owner[task] == member.id for task in ids) - most)
    return over


@settings(max_examples=150)
@given(problems(most_tasks=6, most_members=3, simple=True, others={"acceptable_recovery_ms": st.just(0)}).flatmap(with_racks))
def test_target_is_the_most_balanced_with_the_least_cost(problem: AssignmentProblem):
    cold = [task.id for task in problem.tasks if not may_go_without_a_move(problem, task)]
    if cold:  # who runs them for now is another property, so they are given an owner
        first = attrs.evolve(problem.members[0], active=tuple(sorted((*problem.members[0].active, *cold))), standby=(), warmup=())
        problem = attrs.evolve(problem, members=(first, *problem.members[1:]))
    if makes_no_difference(problem):
        return
    free = {task.id: may_go_without_a_move(problem, task) for task in problem.tasks}
    plan = ASSIGNOR.assign(problem)
    members = {member.id: member for member in problem.members}
    tasks = {task.id: task for task in problem.tasks}

    def worth(owner: Mapping[TaskId, str]) -> tuple[int, int, int]:
        cost = 0
        for task, name in owner.items():
            cost += traffic(problem.settings, tasks[task], members[name])
            cost += problem.settings.rack_non_overlap_cost if name not in free[task] and tasks[task].stateful else 0
        return imbalance(problem, owner), crowding(problem, owner), cost

    best = min(worth(dict(zip(tasks, choice, strict=True))) for choice in itertools.product(members, repeat=len(tasks)))
    target = {task: name for name, owned in plan.target.items() for task in owned}
    assert worth(target) == best
    assert plan.cost.stages[0].cost == plan.cost.stages[0].lower_bound == best[2]


# The best standbys, by trying all


@settings(max_examples=100)
@given(problems(most_tasks=5, most_members=4, simple=True).flatmap(with_racks))
def test_standbys_are_as_spread_even_and_cheap_as_any(problem: AssignmentProblem):
    """One standby each, of a group in which nothing moves, whatever copies it has."""
    group_settings = attrs.evolve(problem.settings, num_standbys=1, rack_standby_strategy="greedy", balance_factor=1)
    tasks = {task.id: task for task in problem.tasks if task.stateful}
    everywhere = attrs.evolve(problem, settings=group_settings, tasks=tuple(attrs.evolve(task, source=()) for task in tasks.values()))
    everywhere = attrs.evolve(
        everywhere,
        members=tuple(
            attrs.evolve(
                member, active=tuple(task for task in member.active if task in tasks), ready=frozenset(), previously_owned=frozenset(), lags={}
            )
            for member in everywhere.members
        ),
    )
    owners = {task: name for name, part in ASSIGNOR.assign(everywhere).target.items() for task in part}
    members = {member.id: member for member in everywhere.members}
    settled = attrs.evolve(
        everywhere,
        members=tuple(
            attrs.evolve(
                member,
                active=tuple(sorted(task for task, name in owners.items() if name == member.id)),
                standby=tuple(task for task in member.standby if owners[task] != member.id),
                warmup=(),
                lags=dict.fromkeys((task for task, name in owners.items() if name == member.id), LagSentinel.ACTIVE),
            )
            for member in everywhere.members
        ),
    )
    plan = ASSIGNOR.assign(settled)
    if plan.movements or len(members) < 2 or not tasks or not any(stage.name == "standby" for stage in plan.cost.stages):
        return
    keys = group_settings.rack_aware_tags
    held = {task: [member.id for member in settled.members if task in member.standby] for task in tasks}
    capacity = sum(member.capacity for member in members.values())
    copies = 2 * len(tasks)

    def alike(one: MemberSpec, other: MemberSpec) -> int:
        pairs = [(one.tags.get(key), other.tags.get(key)) for key in keys] or [(one.rack, other.rack)]
        return sum(value is None or value == another for value, another in pairs)

    def worth(choice: tuple[str, ...]) -> tuple[int, int, int]:
        common = cost = 0
        load = Counter(owners.values())
        for (task, owner), name in zip(owners.items(), choice, strict=True):
            load[name] += 1
            common += alike(members[name], members[owner])
            away = [part for part in tasks[task].changelog if part.racks and members[name].rack not in part.racks]
            cost += sum(group_settings.rack_traffic_cost * part.weight for part in away)
            cost += group_settings.rack_non_overlap_cost if held[task] and name not in held[task] else 0
        uneven = 0
        for name, member in members.items():
            lower, upper = copies * member.capacity // capacity, -(-copies * member.capacity // capacity)
            part = max(1, upper // 8)
            for place in range(Counter(owners.values())[name], load[name]):
                uneven += 0 if place < lower else 1 if place < upper else 2 + (place - upper) // part
        return common, uneven, cost

    best = min(worth(choice) for choice in itertools.product(members, repeat=len(tasks)) if all(map(operator.ne, choice, owners.values())))
    stage = next(stage for stage in plan.cost.stages if stage.name == "standby")
    assert stage.lower_bound <= stage.cost
    assert stage.cost == best[2] or stage.cost > stage.lower_bound


# Groups that obey


@settings(max_examples=50)
@given(st.data())
def test_group_moves_once_for_racks_then_rests(data: st.DataObject):
    """A balanced group with avoidable traffic moves once and comes to rest at the least traffic."""
    made = [*stateful(data.draw(st.integers(1, 12))), *stateless(data.draw(st.integers(0, 6)), subtopology=1)]
    tasks = [attrs.evolve(task, source=(data.draw(partitions("s")),)) for task in made]
    members = dict.fromkeys((f"m{index}" for index in range(data.draw(st.integers(1, 4)))), 1)
    racks = {name: data.draw(st.sampled_from(RACKS)) for name in members}
    group = AssignorGroup(
        tasks,
        members,
        adapted=lambda problem: attrs.evolve(problem, members=tuple(attrs.evolve(member, rack=racks[member.id]) for member in problem.members)),
        max_warmups=data.draw(st.integers(1, 4)),
        num_standbys=data.draw(st.integers(0, 2)),
        rack_aware_strategy="none",
    )
    most_rounds = 2 * len(tasks) * (1 + group.settings.num_standbys) + 2
    group.settle(most_rounds)
    drawn: dict[str, Any] = {name: data.draw(strategy) for name, strategy in SETTINGS.items()}
    group.settings = attrs.evolve(group.settings, **drawn)
    group.settle(2 * most_rounds)
    rest = ASSIGNOR.assign(group.problem())
    assert not rest.movements
    assert not rest.probing
    assert rest.cost.moves == rest.imbalance_now == 0
    assert all(stage.cost == stage.lower_bound for stage in rest.cost.stages if stage.name == "active")
