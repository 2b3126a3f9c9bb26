"""`load_balanced` with racks: the bound on loads holds, traffic only falls while nothing is
rebalanced, and the two do not undo each other. (The contract, with racks: test_racks.)
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

import attrs
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from equipoise.assignors import AssignmentProblem, DelegatingAssignor, Partition, Plan, Task, TaskLoad
from equipoise.assignors.common.indexed_problem import IndexedProblem
from equipoise.assignors.common.racks import Racks
from equipoise.assignors.load_balanced import LoadBalanced
from equipoise.assignors.load_balanced.assignor import REBALANCING
from equipoise.assignors.load_balanced.rack_aware_swaps import swap_for_racks
from equipoise.assignors.load_balanced.utilisation import Utilisation
from equipoise.assignors.load_balanced.weights import weights
from equipoise.events.tasks import TaskId
from equipoise.testing import AssignorGroup
from tests.properties.test_load_balanced import AMOUNTS, CAPACITIES, ROUNDING, levels_of, measured

ASSIGNOR = LoadBalanced()
RACKS = ("a", "b", "c")


def placed(problem: AssignmentProblem) -> AssignmentProblem:
    """Members and partitions in racks, by their numbers; the partition of one task in four in two
    of them.
    """

    def source(task: Task) -> Partition:
        number = task.id.partition
        return Partition(topic="t", partition=number, racks=tuple(sorted({RACKS[number * number % 3], RACKS[(number + number % 4 // 3) % 3]})))

    return attrs.evolve(
        problem,
        tasks=tuple(attrs.evolve(task, source=(source(task),)) for task in problem.tasks),
        members=tuple(attrs.evolve(member, rack=RACKS[int(member.id[1:]) % 3]) for member in problem.members),
    )


def traffic(group: AssignorGroup) -> int:
    problem = group.problem()
    racks = Racks(problem.settings, {task.id: task for task in problem.tasks}, {member.id: member for member in problem.members})
    return racks.total(group.owners())


def made(amounts: list[int], capacities: list[int], *, strategy: str = "min_cost", **options: int) -> AssignorGroup:
    names = {f"m{place}": capacity for place, capacity in enumerate(capacities)}
    return AssignorGroup(
        measured(amounts),
        names,
        assignor=ASSIGNOR,
        adapted=placed,
        rack_aware_strategy=strategy,
        options=options,
        max_warmups=3,
        max_warmups_per_member=3,
    )


def assert_bound(group: AssignorGroup, plan: Plan, amounts: list[int], margin: int) -> None:
    """Fullest and emptiest differ by at most the fullest one's lightest task, on the emptiest one's
    threads, and the margin.
    """
    names = {name: process.capacity for name, process in group.members.items()}
    of = levels_of(group.tasks.values(), names, group.owners())
    fullest, emptiest = max(of.values()), min(of.values())
    fair = Fraction(sum(amounts), sum(names.values()))
    lightest = max(
        min((amounts[task.partition] / fair for task, at in group.owners().items() if at == name), default=Fraction())
        for name, level in of.items()
        if level == fullest
    )
    threads = min(names[name] for name, level in of.items() if level == emptiest)
    assert fullest - emptiest <= lightest / threads + Fraction(margin, 100) + ROUNDING
    assert plan.load is not None
    assert plan.load.highest - plan.load.lowest <= plan.load.bound


@settings(max_examples=60)
@given(amounts=AMOUNTS, capacities=CAPACITIES, high=st.integers(5, 60), low=st.integers(1, 5), data=st.data())
def test_bound_at_rest_holds_from_any_owners(amounts: list[int], capacities: list[int], high: int, low: int, data: st.DataObject):
    group = made(amounts, capacities, load_high_percent=high, load_low_percent=low)
    for task in group.tasks:
        group._grant(data.draw(st.sampled_from(sorted(group.members))), task)
    group.settle(10 * len(amounts))
    assert group.plan is not None
    assert_bound(group, group.plan, amounts, high)


class Watched(DelegatingAssignor):
    """Whether any of its plans rebalanced."""

    rebalanced = False

    def assign(self, problem: AssignmentProblem) -> Plan:
        plan = super().assign(problem)
        self.rebalanced |= REBALANCING in plan.memory
        return plan


@settings(max_examples=100)
@given(amounts=AMOUNTS, capacities=CAPACITIES, high=st.integers(5, 60), low=st.integers(1, 5), data=st.data())
def test_moves_for_traffic_lower_it_and_begin_no_rebalancing(amounts: list[int], capacities: list[int], high: int, low: int, data: st.DataObject):
    """Switches the strategy on in a group that settled without racks."""
    group = made(amounts, capacities, strategy="none", load_high_percent=high, load_low_percent=low)
    for task in group.tasks:
        group._grant(data.draw(st.sampled_from(sorted(group.members))), task)
    group.settle(10 * len(amounts))
    group.settings = attrs.evolve(group.settings, rack_aware_strategy="min_cost")
    before, at_rest = traffic(group), group.owners()
    group.assignor = watched = Watched(ASSIGNOR)
    group.settle(10 * len(amounts))
    assert not watched.rebalanced
    assert traffic(group) < before or group.owners() == at_rest
    assert group.plan is not None
    assert_bound(group, group.plan, amounts, high)


@settings(max_examples=150)
@given(amounts=AMOUNTS, capacities=CAPACITIES, data=st.data())
def test_moves_for_traffic_leave_no_move_that_pays_more(amounts: list[int], capacities: list[int], data: st.DataObject):
    """Computes a move's gain independently."""
    group = made(amounts, capacities)
    for task in group.tasks:
        group._grant(data.draw(st.sampled_from(sorted(group.members))), task)
    indexed = IndexedProblem(group.problem())
    weight = weights(indexed.tasks.values(), indexed.members.values(), indexed.settings)
    utilisation = Utilisation(indexed, weight, indexed.owner, tolerance=6_000)
    low = data.draw(st.sampled_from([0, 50_000, 500_000]))
    before = paid(utilisation, indexed.owner)
    moves = swap_for_racks(utilisation, mean=1_000_000, low=low, high=before)
    assert len({move.task for move in moves}) == len(moves)
    assert paid(utilisation, utilisation.owner) <= max(low, before) + 2  # roundings
    was, now = (
        [sum(weight[task] for task, at in owner.items() if at == name) // each.capacity for name, each in indexed.members.items()]
        for owner in (indexed.owner, utilisation.owner)
    )
    assert max(now) <= max(*was, 1_000_000 + low)
    assert min(now) >= min(*was, 1_000_000 - low)
    saved = indexed.racks.total(indexed.owner) - indexed.racks.total(utilisation.owner)
    assert saved >= sum(indexed.racks.move_cost(move.task) for move in moves) + bool(moves)


def paid(utilisation: Utilisation, owner: Mapping[TaskId, str]) -> int:
    """Returns the gain of the best move."""
    capacity = {member.id: member.capacity for member in utilisation.indexed.members.values()}
    load = dict.fromkeys(capacity, 0)
    for task, name in owner.items():
        load[name] += utilisation.weight[task]
    return max(
        (
            load[name] // capacity[name] - (load[other] + utilisation.weight[task]) // capacity[other]
            for task, name in owner.items()
            for other in capacity
            if other != name
        ),
        default=0,
    )


@settings(max_examples=60)
@given(amounts=st.lists(st.integers(1_000, 60_000), min_size=2, max_size=14), capacities=CAPACITIES, data=st.data())
def test_noise_begins_no_rebalancing(amounts: list[int], capacities: list[int], data: st.DataObject):
    """After a rebalancing and all changes for racks, weights vary as far as they may
    without racks: nothing moves for load, and what moves for traffic lowers it."""
    group = made(amounts, capacities)
    group.decide()
    group.memory = {REBALANCING: 1}
    group.settle(10 * len(amounts))
    assert group.plan is not None
    assert group.plan.load is not None
    assert_bound(group, group.plan, amounts, 5)
    wander = Fraction(15, 100) / (Fraction(13, 2) * Fraction(group.plan.load.highest, 1_000_000))
    assume(wander < 1)
    for _ in range(4):
        for task in list(group.tasks.values()):
            factor = 1 + wander * data.draw(st.integers(-100, 100)) / 100
            group.tasks[task.id] = attrs.evolve(task, load=TaskLoad(records_per_s=int(amounts[task.id.partition] * factor)))
        before, rest = traffic(group), group.owners()
        group.assignor = watched = Watched(ASSIGNOR)
        group.settle(10 * len(amounts))
        assert not watched.rebalanced
        assert traffic(group) < before or group.owners() == rest


def test_equal_loads_are_swapped_until_every_read_is_local():
    """Twelve equally busy tasks, four near each of three members; by load any assignment of four
    each is even.
    """
    group = AssignorGroup(
        [
            attrs.evolve(task, source=(Partition(topic="t", partition=task.id.partition, racks=(RACKS[task.id.partition // 4],)),))
            for task in measured([5] * 12)
        ],
        {"m0": 1, "m1": 1, "m2": 1},
        assignor=ASSIGNOR,
        adapted=lambda problem: attrs.evolve(problem, members=tuple(attrs.evolve(each, rack=RACKS[int(each.id[1:])]) for each in problem.members)),
        rack_aware_strategy="min_cost",
    )
    for task in group.tasks:
        group._grant(f"m{task.partition % 3}", task)
    plan = group.decide()
    assert {reason.code for task, reason in plan.reasons.items() if reason.code != "slot_full"} <= {"traffic", "traffic_room"}
    group.settle(40)
    assert group.owners() == {TaskId(0, number): f"m{number // 4}" for number in range(12)}
    assert group.plan is not None
    assert (group.plan.cost.rack_cost, group.plan.cost.optimal) == (0, True)


def test_many_weights_reach_local_reads_and_even_loads():
    """300 tasks that weigh from 50 to 109, on 15 members in three racks: most can change places
    with one that is nearly as heavy.
    """
    group = made([50 + number * 7919 % 60 for number in range(300)], [1] * 15)
    for task in group.tasks:
        group._grant(f"m{task.partition % 15}", task)
    problem = group.problem()
    plain = ASSIGNOR.assign(attrs.evolve(problem, settings=attrs.evolve(problem.settings, rack_aware_strategy="none")))
    near = ASSIGNOR.assign(problem)
    assert plain.cost.moves == 0
    assert near.cost.cross_rack * 3 < plain.cost.cross_rack
    assert near.load is not None
    assert plain.load is not None
    assert near.load.highest <= max(plain.load.highest, 1_050_000)
    assert near.load.lowest >= min(plain.load.lowest, 950_000)
