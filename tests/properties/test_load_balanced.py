"""`load_balanced`: the bound on loads, the way to it, and noise that moves no task. (The rest:
test_contract.)

Utilisation and weights are computed here independently.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from fractions import Fraction

import attrs
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from equipoise.assignors import AssignmentProblem, MemberSpec, Task, TaskLoad
from equipoise.assignors.load_balanced import LoadBalanced
from equipoise.assignors.load_balanced.assignor import REBALANCING
from equipoise.assignors.load_balanced.weights import weights
from equipoise.events.settings import GroupSettings
from equipoise.events.tasks import TaskId
from equipoise.testing import AssignorGroup

ASSIGNOR = LoadBalanced()


def measured(amounts: Iterable[int]) -> list[Task]:
    return [Task(id=TaskId(0, place), stateful=True, end_offset=5_000, load=TaskLoad(records_per_s=amount)) for place, amount in enumerate(amounts)]


def levels_of(tasks: Iterable[Task], capacity: Mapping[str, int], owner: Mapping[TaskId, str]) -> dict[str, Fraction]:
    """Returns each member's load per thread, relative to a fair share."""
    amount = {task.id: task.load.records_per_s for task in tasks if task.load is not None}
    fair = Fraction(sum(amount.values()), sum(capacity.values()))
    return {name: sum((amount[task] / fair for task, at in owner.items() if at == name), Fraction()) / threads for name, threads in capacity.items()}


AMOUNTS = st.lists(st.integers(1, 60), min_size=1, max_size=14)
CAPACITIES = st.lists(st.sampled_from([1, 1, 1, 2, 3]), min_size=1, max_size=5)
ROUNDING = Fraction(1, 10_000)


@settings(max_examples=200)
@given(amounts=AMOUNTS, capacities=CAPACITIES, high=st.integers(5, 60), low=st.integers(1, 5), data=st.data())
def test_loads_at_rest_differ_by_at_most_the_bound(amounts: list[int], capacities: list[int], high: int, low: int, data: st.DataObject):
    """From any owners: the group comes to rest, and fullest and emptiest differ by at most the
    fullest one's lightest task plus the threshold; no round makes the utilisation, sorted from the
    highest, higher; the plan says the same numbers."""
    names = {f"m{place}": capacity for place, capacity in enumerate(capacities)}
    options = {"load_high_percent": high, "load_low_percent": low}
    group = AssignorGroup(measured(amounts), names, assignor=ASSIGNOR, options=options, max_warmups=data.draw(st.integers(1, 3)))
    for task in group.tasks:
        group._grant(data.draw(st.sampled_from(sorted(names))), task)
    tasks = list(group.tasks.values())
    before = sorted(levels_of(tasks, names, group.owners()).values(), reverse=True)
    for _ in range(4 * len(amounts) + 1):
        plan = group.decide()
        assert plan.load is not None
        reached = sorted(levels_of(tasks, names, {task: name for name, held in plan.target.items() for task in held}).values(), reverse=True)
        assert reached <= before
        if not plan.movements:
            break
        group.warm()
        before = sorted(levels_of(tasks, names, group.owners()).values(), reverse=True)
    assert not plan.movements
    of = levels_of(tasks, names, group.owners())
    fullest, emptiest = max(of.values()), min(of.values())
    fair = Fraction(sum(amounts), sum(capacities))
    lightest = max(
        min((amounts[task.partition] / fair for task, at in group.owners().items() if at == name), default=Fraction())
        for name, level in of.items()
        if level == fullest
    )
    assert fullest - emptiest <= lightest / min(names[name] for name, level in of.items() if level == emptiest) + Fraction(high, 100) + ROUNDING
    assert plan.load is not None
    assert plan.load.highest - plan.load.lowest <= plan.load.bound
    assert abs(Fraction(plan.load.highest, 1_000_000) - fullest) < ROUNDING
    assert abs(Fraction(plan.load.lowest, 1_000_000) - emptiest) < ROUNDING


@settings(max_examples=150)
@given(amounts=st.lists(st.integers(1_000, 60_000), min_size=2, max_size=14), capacities=CAPACITIES, data=st.data())
def test_noise_moves_no_work(amounts: list[int], capacities: list[int], data: st.DataObject):
    """At rest after a rebalancing each weight may wander by (high - low) / (6.5 x the highest
    level), to and fro, and nothing moves.
    """
    names = {f"m{place}": capacity for place, capacity in enumerate(capacities)}
    group = AssignorGroup(measured(amounts), names, assignor=ASSIGNOR, max_warmups=4, max_warmups_per_member=4)
    group.decide()
    group.memory = {REBALANCING: 1}  # so that it goes on down to the lower threshold
    group.settle(4 * len(amounts))
    rest = group.owners()
    assert group.plan is not None
    assert group.plan.load is not None
    wander = Fraction(15, 100) / (Fraction(13, 2) * Fraction(group.plan.load.highest, 1_000_000))
    assume(wander < 1)
    for _ in range(4):
        for task in list(group.tasks.values()):
            factor = 1 + wander * data.draw(st.integers(-100, 100)) / 100
            group.tasks[task.id] = attrs.evolve(task, load=TaskLoad(records_per_s=int(amounts[task.id.partition] * factor)))
        plan = group.decide()
        assert not plan.movements
        assert not plan.memory
        assert group.owners() == rest


@settings(max_examples=100)
@given(amounts=st.lists(st.integers(1, 9), min_size=1, max_size=6), members=st.integers(2, 3), data=st.data())
def test_moves_lower_bound_holds_for_equally_even_assignments(amounts: list[int], members: int, data: st.DataObject):
    """Tries every assignment. Even is what the assignor's weights say, which are whole numbers."""
    names = {f"m{place}": data.draw(st.sampled_from([1, 1, 2])) for place in range(members)}
    owner = {place: data.draw(st.sampled_from(sorted(names))) for place in range(len(amounts))}
    tasks = measured(amounts)
    problem = AssignmentProblem(
        tasks=tuple(tasks),
        members=tuple(
            MemberSpec(id=name, capacity=capacity, active=tuple(TaskId(0, place) for place, at in owner.items() if at == name))
            for name, capacity in names.items()
        ),
        settings=GroupSettings(max_warmups=9),
    )
    plan = ASSIGNOR.assign(problem)
    weight = weights(tasks, problem.members, problem.settings)

    def utilisations(at: Mapping[TaskId, str]) -> list[int]:
        return [sum(weight[task] for task, owner in at.items() if owner == name) // threads for name, threads in names.items()]

    reached = utilisations({task: name for name, held in plan.target.items() for task in held})
    fewest = len(amounts)
    for deal in itertools.product(sorted(names), repeat=len(amounts)):
        found = utilisations({TaskId(0, place): at for place, at in enumerate(deal)})
        if max(found) <= max(reached) and min(found) >= min(reached):
            fewest = min(fewest, sum(owner[place] != at for place, at in enumerate(deal)))
    assert plan.cost.moves_lower_bound <= fewest <= plan.cost.moves
    assert plan.cost.optimal == (plan.cost.moves == plan.cost.moves_lower_bound)


@settings(max_examples=60)
@given(amounts=st.lists(st.integers(1, 9), min_size=1, max_size=5), members=st.integers(2, 3), data=st.data())
def test_bound_holds_where_members_may_not_run_everything(amounts: list[int], members: int, data: st.DataObject):
    """Every plan's bound, from any owners on: of the loads at rest, and so of the evenest
    assignment of all (tried one by one).
    """
    names = [f"m{place}" for place in range(members)]
    knows = {name: data.draw(st.sets(st.integers(0, len(amounts) - 1))) for name in names[1:]}
    tasks = [attrs.evolve(task, id=TaskId(place, 0)) for place, task in enumerate(measured(amounts))]

    def may_run(name: str, task: TaskId) -> bool:
        return name == names[0] or task.subtopology in knows[name]

    def adapted(problem: AssignmentProblem) -> AssignmentProblem:
        of = {name: None if name == names[0] else dict.fromkeys(sorted(knows[name]), 1) for name in names}
        return attrs.evolve(problem, members=tuple(attrs.evolve(member, subtopologies=of[member.id]) for member in problem.members))

    group = AssignorGroup(tasks, dict.fromkeys(names, 1), assignor=ASSIGNOR, adapted=adapted)
    for task in group.tasks:
        group._grant(data.draw(st.sampled_from([name for name in names if may_run(name, task)])), task)
    loads = []
    for _ in range(4 * len(amounts) + 4):
        plan = group.decide()
        assert plan.load is not None
        loads.append(plan.load)
        if not plan.movements:
            break
        group.warm()
    assert not plan.movements
    weight = weights(tasks, group.problem().members, group.settings)
    able = [[name for name in names if may_run(name, task.id)] for task in tasks]
    evenest = min(
        max(of) - min(of)
        for deal in itertools.product(*able)
        for of in [[sum(weight[task.id] for task, at in zip(tasks, deal, strict=True) if at == name) for name in names]]
    )
    for load in loads:
        assert evenest <= loads[-1].highest - loads[-1].lowest <= load.bound
