"""`high_availability` beyond the contract of every assignor (test_contract): plans are proven
optimal, and a join moves the fewest tasks in the fewest rounds.

Optimality is judged by trying every target of small problems, with shares, ranks and movements
counted here independently of the assignor's functions.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.assignors import AssignmentProblem, MemberSpec, Plan, Task
from equipoise.assignors.high_availability import HighAvailability
from equipoise.events.settings import GroupSettings
from equipoise.events.tasks import Lag, TaskId
from equipoise.testing import AssignorGroup, Subject, problems, stateful, stateless
from equipoise.testing.contract import change, groups, most_rounds
from equipoise.testing.problems import ACCEPTABLE

ASSIGNOR = HighAvailability()


@settings(max_examples=400)
@given(problems())
def test_plan_stages_are_optimal(problem: AssignmentProblem):
    plan = ASSIGNOR.assign(problem)
    assert plan.cost.optimal
    assert plan.unique
    assert plan.cost.moves_lower_bound <= plan.cost.moves


# The best target, by trying all


def fair(problem: AssignmentProblem, kind: Iterable[Task]) -> dict[str, tuple[int, int]]:
    """Member -> fewest and most tasks of this kind, when no member leaves and nothing is in flight.
    Tries every way to split the slack (docs/protocol.md#d4).
    """
    ids = {task.id for task in kind}
    total, factor = sum(member.capacity for member in problem.members), problem.settings.balance_factor
    even = {member.id: (len(ids) * member.capacity // total, -(-len(ids) * member.capacity // total)) for member in problem.members}
    count = {member.id: sum(task in ids for task in member.active) for member in problem.members}
    whole = all(floor == ceiling for floor, ceiling in even.values())
    splits = [(0, 0)] if factor == 1 else [(below, factor - below) for below in range(1, factor)]
    splits = splits if whole else [(below, factor - 1 - below) for below in range(factor)]

    def moves(split: tuple[int, int]) -> int:
        arriving = sum(max(0, even[name][0] - split[0] - count[name]) for name in even) - (len(ids) - sum(count.values()))
        return max(0, arriving, sum(max(0, count[name] - even[name][1] - split[1]) for name in even))

    below, above = min(splits, key=lambda split: (moves(split), abs(split[0] - sum(split) // 2)))
    return {name: (max(0, floor - below), ceiling + above) for name, (floor, ceiling) in even.items()}


def imbalance(problem: AssignmentProblem, owner: Mapping[TaskId, str]) -> int:
    """Tasks outside their members' shares: of stateful tasks and of all, once when there is only
    one kind.
    """
    kinds = [problem.tasks, [task for task in problem.tasks if task.stateful]]
    if len(kinds[1]) in (0, len(problem.tasks)):
        kinds.pop()
    outside = 0
    for kind in kinds:
        for name, (lower, upper) in fair(problem, kind).items():
            count = sum(owner[task.id] == name for task in kind)
            outside += max(0, count - upper, lower - count)
    return outside


def may_go_without_a_move(problem: AssignmentProblem, task: Task) -> frozenset[str]:
    """Its owner; without one, the caught-up members; without state, every member."""
    names = frozenset(member.id for member in problem.members)
    owner = [member.id for member in problem.members if task.id in member.active]
    if owner:
        return frozenset(owner)
    if not task.stateful:
        return names
    caught_up = set()
    for member in problem.members:
        lag = member.lags.get(task.id)
        if task.id in member.ready or (isinstance(lag, int) and lag <= ACCEPTABLE):
            caught_up.add(member.id)
    return frozenset(caught_up)


@settings(max_examples=300)
@given(problems(most_tasks=6, most_members=3, simple=True, others={"acceptable_recovery_ms": st.just(0)}))
def test_target_is_the_most_balanced_with_the_fewest_moves(problem: AssignmentProblem):
    free = {task.id: may_go_without_a_move(problem, task) for task in problem.tasks}
    if not all(free.values()):
        # Tasks without a caught-up member go to the soonest ready one: their present owner is
        # another property, so they are given one here.
        cold = [task for task, names in free.items() if not names]
        first = attrs.evolve(problem.members[0], active=tuple(sorted((*problem.members[0].active, *cold))), standby=(), warmup=())
        problem = attrs.evolve(problem, members=(first, *problem.members[1:]))
        free = {task.id: may_go_without_a_move(problem, task) for task in problem.tasks}
    plan = ASSIGNOR.assign(problem)
    names = [member.id for member in problem.members]
    ids = [task.id for task in problem.tasks]
    best = min(
        (imbalance(problem, dict(zip(ids, choice, strict=True))), sum(name not in free[task] for task, name in zip(ids, choice, strict=True)))
        for choice in itertools.product(names, repeat=len(ids))
    )
    assert (plan.cost.imbalance, plan.cost.moves) == best
    target = {task: name for name, tasks in plan.target.items() for task in tasks}
    assert imbalance(problem, target) == plan.cost.imbalance
    if plan.cost.imbalance == 0:
        assert plan.cost.moves_lower_bound <= best[1]


@given(problems(simple=True))
def test_shares_are_kept_if_all_members_are_eligible(problem: AssignmentProblem):
    assert ASSIGNOR.assign(problem).cost.imbalance == 0


@settings(max_examples=60)
@given(counts=st.lists(st.integers(0, 4), min_size=1, max_size=4), factor=st.integers(1, 5), leaving=st.sets(st.integers(0, 3)))
def test_target_within_balance_factor_moves_the_fewest(counts: list[int], factor: int, leaving: set[int]):
    """KIP-441, for members of equal capacity; tries every assignment within the balance factor."""
    numbers = iter(range(sum(counts)))
    members = [
        MemberSpec(
            id=f"m{index}",
            active=tuple(TaskId(0, next(numbers)) for _ in range(count)),
            leaving=index in leaving and len(leaving) < len(counts),
        )
        for index, count in enumerate(counts)
    ]
    every = tuple(Task(id=task, stateful=False) for member in members for task in member.active)
    plan = ASSIGNOR.assign(AssignmentProblem(tasks=every, members=tuple(members), settings=GroupSettings(balance_factor=factor)))
    staying = [member for member in members if not member.leaving]
    fewest = min(
        sum(max(0, after - len(member.active)) for member, after in zip(staying, split, strict=True))
        for split in itertools.product(range(len(every) + 1), repeat=len(staying))
        if sum(split) == len(every) and max(split) - min(split) <= factor
    )
    after = [len(plan.target[member.id]) for member in staying]
    assert max(after) - min(after) <= factor
    assert plan.cost.moves == plan.cost.moves_lower_bound == fewest


# Groups that obey


@settings(max_examples=150)
@given(st.data())
def test_group_at_rest_keeps_shares_and_has_all_standbys(data: st.DataObject):
    """After any changes, some of them during movements. The contract covers coming to rest."""
    group = data.draw(groups(Subject(assignor=ASSIGNOR)))
    gone: dict[str, dict[TaskId, Lag]] = {}
    for number in range(data.draw(st.integers(1, 6))):
        change(data.draw, group, number, gone)
        for _ in range(data.draw(st.integers(0, 2))):
            group.round()
    group.settle(most_rounds(group))
    staying = [process for process in group.members.values() if not process.leaving]
    staying = [process for process in staying if not process.crash_looping] or staying  # docs/protocol.md#d10: those get no standbys
    if not staying:
        return
    assert ASSIGNOR.assign(group.problem()).imbalance_now == 0
    held: dict[TaskId, int] = {}
    for process in group.members.values():
        for task in process.standby:
            held[task] = held.get(task, 0) + 1
    wanted = min(group.settings.num_standbys, len(staying) - 1)
    assert held == ({task.id: wanted for task in group.tasks.values() if task.stateful} if wanted else {})


@given(count=st.integers(1, 40), members=st.integers(2, 6), wanted=st.integers(1, 4))
def test_copies_are_spread_evenly(count: int, members: int, wanted: int):
    """With equal members, no member of a new group holds more copies, active ones included, than
    its share rounded up;

    nor two less than rounded down.
    """
    group = AssignorGroup(stateful(count), {f"m{index}": 1 for index in range(members)}, num_standbys=wanted)
    group.decide()
    held = [len(process.owned) + len(process.standby) for process in group.members.values()]
    assert sum(held) == count * min(1 + wanted, members)
    assert max(held) <= -(-sum(held) // members)
    assert min(held) >= sum(held) // members - 1


@given(
    count=st.integers(2, 60),
    members=st.integers(1, 6),
    max_warmups=st.integers(1, 4),
    stateless_count=st.integers(0, 10),
    num_standbys=st.integers(0, 1),
)
def test_join_makes_the_fewest_moves_in_the_fewest_generations(count: int, members: int, max_warmups: int, stateless_count: int, num_standbys: int):
    """Changes as few owners as the bound proves, each once, in as many rounds as the slots need;
    standbys may move after that.
    """
    group = AssignorGroup(
        [*stateful(count), *stateless(stateless_count)],
        {f"m{index}": 1 for index in range(members)},
        max_warmups=max_warmups,
        max_warmups_per_member=max_warmups,
        num_standbys=num_standbys,
    )
    group.settle(most_rounds(group))
    before, changes = group.owners(), group.owner_changes
    group.join("new")
    first = ASSIGNOR.assign(group.problem())
    assert first.cost.moves == first.cost.moves_lower_bound
    with_state = sum(group.tasks[movement.task].stateful for movement in first.movements)
    rounds = 0
    while group.decide().movements:
        group.warm()
        rounds += 1
    assert rounds <= -(-with_state // max_warmups)
    changed = [task for task, name in group.owners().items() if before[task] != name]
    assert len(changed) == group.owner_changes - changes == first.cost.moves


@given(count=st.integers(1, 60), members=st.integers(2, 7), gone=st.integers(1, 6), num_standbys=st.integers(0, 3))
def test_staying_members_keep_their_tasks_when_others_leave(count: int, members: int, gone: int, num_standbys: int):
    """As Faust's own properties have it, of which the fresh deal and a join are above: survivors
    keep all they run, counts are floor or ceil of the share, every task runs once, and standbys are
    as many as asked for and as there are other members, on none beside its active task. A survivor
    whose standbys gave it more than its share may give up others instead, to a standby that is
    caught up: that moves as much, and restores less."""
    gone = min(gone, members - 1)
    group = AssignorGroup(stateful(count), {f"m{index}": 1 for index in range(members)}, num_standbys=num_standbys)
    group.settle(most_rounds(group))
    before = group.owners()
    for index in range(gone):
        group.die(f"m{index}")
    group.decide()
    left = members - gone
    beyond = {name: max(0, len(process.owned) - count // left) for name, process in group.members.items()}
    group.settle(most_rounds(group))
    after = group.owners()
    assert after.keys() == before.keys()
    given_up = Counter(name for task, name in before.items() if name in group.members and after[task] != name)
    assert all(times <= beyond[name] for name, times in given_up.items())
    assert num_standbys or not given_up
    assert all(count // left <= len(process.owned) <= -(-count // left) for process in group.members.values())
    assert sum(len(process.standby) for process in group.members.values()) == count * min(num_standbys, left - 1)
    assert not any(process.owned & process.standby for process in group.members.values())


def test_seventh_member_moves_eight_tasks():
    """Exactly 8 owners change, in at most 5 rounds; further rounds change nothing."""
    group = AssignorGroup(stateful(60), {f"m{index}": 1 for index in range(6)}, acceptable_recovery_lag=10_000, max_warmups=2)
    group.settle(0)
    group.join("m6")
    assert group.settle(5) <= 5
    assert group.owner_changes == 8
    assert group.cold_grants == 60
    resting = group.problem()
    plan: Plan | None = None
    for _ in range(50):
        group.warm()
        assert group.problem() == resting
        again = group.decide()
        assert plan is None or again == plan
        plan = again


@pytest.mark.parametrize("members", [1, 2, 3, 7, 50])
def test_state_of_one_task_is_never_restored_twice(members: int):
    """A join begins one copy for each stateful task that moves, and no other."""
    group = AssignorGroup(stateful(100), {f"m{index}": 1 for index in range(members)}, max_warmups=5, max_warmups_per_member=5)
    group.settle(0)
    group.join("new")
    group.settle(100)
    assert group.new_copies == group.owner_changes == 100 // (members + 1)
