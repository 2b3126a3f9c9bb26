"""`lag_aware` for any group of consumers, beyond the contract of every assignor (test_contract):
counts and lags are within their bounds, names play no part, noisy lags move nothing.

The deal is compared with the KIP's pseudo-code, implemented here member by member.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping

import attrs
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from equipoise.assignors import AssignmentProblem, MemberSpec, Movement, MovementState, Task
from equipoise.assignors.common.validation import plan_faults
from equipoise.assignors.lag_aware import LagAware
from equipoise.events.fields import MOST_TASK_NUMBER
from equipoise.events.settings import GroupSettings
from equipoise.events.tasks import TaskId
from equipoise.testing import AssignorGroup
from equipoise.testing.contract import renamed
from equipoise.testing.problems import problems

ASSIGNOR = LagAware()
LAGS = st.sampled_from([0, 0, 0, 1, 7, 7, 300, 4_000, 500_000])


@st.composite
def groups(draw: st.DrawFn, *, running: bool = True, alike: bool = False, options: bool = True) -> AssignmentProblem:
    """Consumers of a few topics. `running`: partitions may have owners and be under way; `alike`:
    all subscribe to all topics.
    """
    topics = draw(st.integers(0, 5))
    tasks = [
        Task(id=TaskId(topic, partition), stateful=False, lag=draw(LAGS)) for topic in range(topics) for partition in range(draw(st.integers(0, 7)))
    ]
    names = [f"c{number}" for number in range(draw(st.integers(1, 6)))]
    owner: dict[TaskId, str | None] = {task.id: draw(st.sampled_from([*names, *names, None])) if running else None for task in tasks}
    members = tuple(
        MemberSpec(
            id=name,
            leaving=running and draw(st.integers(0, 6)) == 0,
            subtopologies=None if alike or draw(st.booleans()) else dict.fromkeys(draw(st.sets(st.integers(0, 5))), MOST_TASK_NUMBER + 1),
            active=tuple(task for task, has in owner.items() if has == name),
        )
        for name in names
    )
    in_flight = []
    for task, has in owner.items():
        to = draw(st.sampled_from([None, None, None, *names])) if running else None
        if to is not None and to != has:
            in_flight.append(Movement(task=task, source=has, destination=to, state=MovementState.REVOKING))
    group_settings = GroupSettings(options={"cross_topic": options and draw(st.booleans())})
    return AssignmentProblem(tasks=tuple(tasks), members=members, in_flight=tuple(in_flight), settings=group_settings)


def crossing(problem: AssignmentProblem, cross_topic: bool) -> AssignmentProblem:
    return attrs.evolve(problem, settings=GroupSettings(options={"cross_topic": cross_topic}))


def subscribers(problem: AssignmentProblem, topic: int) -> list[MemberSpec]:
    return [member for member in problem.members if not member.leaving and (member.subtopologies is None or topic in member.subtopologies)]


def by_topic(problem: AssignmentProblem) -> dict[int, list[Task]]:
    found: dict[int, list[Task]] = {}
    for task in sorted(problem.tasks, key=lambda task: (-(task.lag or 0), task.id)):
        found.setdefault(task.id.subtopology, []).append(task)
    return {topic: tasks for topic, tasks in found.items() if subscribers(problem, topic)}


def as_the_kip_says(problem: AssignmentProblem) -> dict[TaskId, str]:
    """KIP-169, "Algorithm", step 2, literally."""
    assigned: dict[TaskId, str] = {}
    for topic, tasks in by_topic(problem).items():
        partitions = dict.fromkeys(sorted(member.id for member in subscribers(problem, topic)), 0)
        lags = dict.fromkeys(partitions, 0)
        for task in tasks:
            chosen = min(partitions, key=lambda name: (partitions[name], lags[name], name))
            assigned[task.id] = chosen
            partitions[chosen] += 1
            lags[chosen] += task.lag or 0
    return assigned


def owners(target: Mapping[str, Iterable[TaskId]]) -> dict[TaskId, str]:
    return {task: name for name, tasks in target.items() for task in tasks}


@given(groups(running=False, options=False))
def test_first_assignment_equals_the_pseudo_code_of_kip_169(problem: AssignmentProblem):
    assert owners(ASSIGNOR.assign(problem).target) == as_the_kip_says(problem)


@given(groups(), st.booleans())
def test_counts_and_lags_of_a_topic_are_within_their_bounds(problem: AssignmentProblem, cross_topic: bool):
    problem = crossing(attrs.evolve(problem, in_flight=()), cross_topic)
    target = owners(ASSIGNOR.assign(problem).target)
    everything_dealt = not any(member.active for member in problem.members)
    for topic, tasks in by_topic(problem).items():
        names = [member.id for member in subscribers(problem, topic)]
        held = {name: [task for task in tasks if target[task.id] == name] for name in names}
        counts = [len(of) for of in held.values()]
        assert max(counts) - min(counts) <= 1
        if everything_dealt and not cross_topic:
            rows = [tasks[start : start + len(names)] for start in range(0, len(tasks), len(names))]
            widest = max((row[0].lag or 0) - ((row[-1].lag or 0) if len(row) == len(names) else 0) for row in rows)
            lags = [sum(task.lag or 0 for task in of) for of in held.values()]
            assert max(lags) - min(lags) <= widest


@given(groups())
def test_cross_topic_assignment_is_even_over_all_topics(problem: AssignmentProblem):
    problem = crossing(attrs.evolve(problem, in_flight=()), True)
    target = owners(ASSIGNOR.assign(problem).target)
    dealt = by_topic(problem)
    alike: dict[tuple[int, ...], list[int]] = {}
    for member in problem.members:
        topics = tuple(topic for topic in dealt if member in subscribers(problem, topic))
        if topics:
            alike.setdefault(topics, []).append(sum(target[task.id] == member.id for topic in topics for task in dealt[topic]))
    for counts in alike.values():
        assert max(counts) - min(counts) <= 1


@given(groups(running=False, alike=True))
def test_cross_topic_lags_are_within_their_bound(problem: AssignmentProblem):
    problem = crossing(problem, True)
    target = owners(ASSIGNOR.assign(problem).target)
    n = len(problem.members)
    widest = left = spread = 0
    for tasks in by_topic(problem).values():
        lags = [task.lag or 0 for task in tasks]
        full, rest = len(lags) // n * n, lags[len(lags) // n * n :]
        widest = max([widest, *(lags[start] - lags[start + n - 1] for start in range(0, full, n))])
        left = max([left, *rest])
        spread += max(rest, default=0) - min(rest, default=0)
    lag_of = {task.id: task.lag or 0 for task in problem.tasks}
    totals = [sum(lag for task, lag in lag_of.items() if target[task] == member.id) for member in problem.members]
    assert max(totals) - min(totals) <= widest + left + spread


@settings(max_examples=300)
@given(groups(), st.permutations(range(6)))
def test_renamed_members_keep_the_plan_cost(problem: AssignmentProblem, order: list[int]):
    other = renamed(problem, {f"c{index}": f"c{order[index]}" for index in range(6)})
    assert ASSIGNOR.assign(other).cost == ASSIGNOR.assign(problem).cost


def ties_in_the_second_topic() -> tuple[AssignmentProblem, list[int]]:
    """m0 and m1 have as much of both topics together when 1_4 is dealt, and not of each."""
    lags = [7, 0, 0, 0, 0, 0, 0, 0, 1, 7, 0, 0]
    tasks = [Task(id=TaskId(topic, partition), stateful=False) for topic, count in enumerate((4, 6)) for partition in range(count)]
    members = MemberSpec(id="m0", active=(TaskId(0, 1),)), MemberSpec(id="m1")
    to_m1 = Movement(task=TaskId(1, 3), source=None, destination="m1", state=MovementState.REVOKING)
    return AssignmentProblem(tasks=tuple(tasks), members=members, settings=GroupSettings(), in_flight=(to_m1,)), lags


@settings(max_examples=300)
@given(problems(most_tasks=12, most_members=6), st.booleans(), st.lists(LAGS, min_size=12, max_size=12), st.permutations(range(6)))
@example(ties_in_the_second_topic()[0], True, ties_in_the_second_topic()[1], [1, 0, 2, 3, 4, 5])
def test_renaming_members_changes_no_count_lag_or_move(problem: AssignmentProblem, cross_topic: bool, lags: list[int], order: list[int]):
    """What a member with another name would have to restore is left to chance, as copies play no
    part; all else is as good.

    Members know a topic whole or not at all: partitions that only some know yet are dealt as a
    topic of their own, where ties go by name. How even totals are, and so `optimal`, is left to
    chance where each topic is dealt alone.
    """
    members = tuple(
        attrs.evolve(each, subtopologies=None if each.subtopologies is None else dict.fromkeys(each.subtopologies, MOST_TASK_NUMBER + 1))
        for each in problem.members
    )
    problem = attrs.evolve(problem, members=members)
    tasks = tuple(attrs.evolve(task, lag=lag) for task, lag in zip(problem.tasks, lags, strict=False))
    problem = crossing(attrs.evolve(problem, tasks=tasks), cross_topic)
    found = [ASSIGNOR.assign(each) for each in (problem, renamed(problem, {f"m{index}": f"m{order[index]}" for index in range(6)}))]
    costs = [attrs.evolve(plan.cost, restore_records=0, cross_rack=0, optimal=plan.cost.optimal or not cross_topic) for plan in found]
    assert costs[0] == costs[1]
    lag_of = {task.id: task.lag or 0 for task in tasks}
    for topic in {task.id.subtopology for task in tasks}:
        of_topic = [[[lag_of[task] for task in has if task.subtopology == topic] for has in plan.target.values()] for plan in found]
        dealt = [sorted((len(bundle), sum(bundle)) for bundle in bundles) for bundles in of_topic]
        assert dealt[0] == dealt[1]


@settings(max_examples=100)
@given(st.lists(st.sets(st.integers(0, 2), min_size=1), min_size=1, max_size=5), st.lists(st.integers(1, 2), min_size=5, max_size=5), st.data())
def test_totals_of_different_subscriptions_are_as_even_as_can_be(readers: list[set[int]], sizes: list[int], data: st.DataObject):
    """With `cross_topic`, also of a group that runs. Every deal is tried in which each topic is
    even. Without it a deal is called optimal only if none has evener totals.
    """
    tasks = [Task(id=TaskId(topic, number), stateful=False) for topic in range(len(readers)) for number in range(sizes[topic])]
    able = {task.id: [f"c{name}" for name in sorted(readers[task.id.subtopology])] for task in tasks}
    names = sorted({name for each in able.values() for name in each})
    reads = {name: {topic: 9 for topic in range(len(readers)) if int(name[1]) in readers[topic]} for name in names}
    owner = {task.id: data.draw(st.sampled_from([None, *able[task.id]])) for task in tasks}
    active = {name: tuple(task for task, at in owner.items() if at == name) for name in names}

    def adapted(problem: AssignmentProblem) -> AssignmentProblem:
        return attrs.evolve(problem, members=tuple(attrs.evolve(each, subtopologies=reads[each.id]) for each in problem.members))

    def squares(deal: Iterable[str]) -> int:
        return sum(count * count for count in Counter(deal).values())

    def is_even(deal: Mapping[TaskId, str]) -> bool:
        counts = Counter((task.subtopology, name) for task, name in deal.items())
        of_topics = [[counts[topic, f"c{name}"] for name in of] for topic, of in enumerate(readers)]
        return all(max(of) - min(of) <= 1 for of in of_topics)

    every = (dict(zip(able, each, strict=True)) for each in itertools.product(*able.values()))
    evenest = min(squares(deal.values()) for deal in every if is_even(deal))
    for cross_topic in (True, False):
        group = AssignorGroup(tasks, dict.fromkeys(names, 1), assignor=ASSIGNOR, options={"cross_topic": cross_topic}, adapted=adapted)
        for name, held in active.items():
            group.members[name].owned = set(held)
        group.settle(6)
        plan = group.decide()
        reached = squares(group.owners().values())
        assert is_even(group.owners())
        assert reached == evenest if cross_topic else plan.cost.optimal == (reached == evenest)


@settings(max_examples=50)
@given(groups(running=False, alike=True), st.data())
def test_group_settles_and_noise_moves_nothing(problem: AssignmentProblem, data: st.DataObject):
    group = AssignorGroup([*problem.tasks], {member.id: 1 for member in problem.members}, assignor=ASSIGNOR, options=dict(problem.settings.options))
    group.settle(0)
    for change in data.draw(st.lists(st.sampled_from(["join", "die", "leave", "noise"]), max_size=6)):
        if change == "join":
            group.join(f"j{len(group.members)}")
        elif change == "die" and len(group.members) > 1:
            group.die(min(group.members))
        elif change == "leave" and sum(not process.leaving for process in group.members.values()) > 1:
            next(process for _, process in sorted(group.members.items()) if not process.leaving).leaving = True
        group.settle(1)
        before = group.owners()
        for task in list(group.tasks):
            group.tasks[task] = attrs.evolve(group.tasks[task], lag=data.draw(LAGS))
        assert group.settle(0) == 0
        assert group.owners() == before
    assert len(group.owners()) == len(problem.tasks)


@pytest.mark.parametrize("cross_topic", [False, True])
def test_large_group_is_assigned_in_seconds(cross_topic: bool):
    tasks = tuple(Task(id=TaskId(topic, partition), stateful=False, lag=topic * partition % 97) for topic in range(20) for partition in range(1_000))
    members = tuple(MemberSpec(id=f"c{number}") for number in range(300))
    owned = {task.id: f"c{index % 299}" for index, task in enumerate(tasks)}
    running = tuple(attrs.evolve(member, active=tuple(task for task, name in owned.items() if name == member.id)) for member in members)
    problem = AssignmentProblem(tasks=tasks, members=running, settings=GroupSettings(options={"cross_topic": cross_topic}))
    plan = ASSIGNOR.assign(problem)
    assert plan_faults(problem, plan, ASSIGNOR.guarantees) == []
    assert plan.cost.imbalance == 0
