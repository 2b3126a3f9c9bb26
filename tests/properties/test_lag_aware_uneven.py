"""`lag_aware` that deals by itself (`deal_after_ms`), for any group: off it changes nothing; on, a
group whose lags stay the same is dealt once at most, after which nothing pays; counts stay as even;
names, unknown lags and lags within the threshold move nothing.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.assignors import AssignmentProblem, MemberSpec, Plan, Task
from equipoise.assignors.common.validation import plan_faults
from equipoise.assignors.lag_aware import LagAware, exchanges
from equipoise.events.fields import MOST_TASK_NUMBER
from equipoise.events.settings import GroupSettings
from equipoise.events.tasks import TaskId
from equipoise.testing import AssignorGroup
from equipoise.testing.assignor_group import ROUND_MS
from equipoise.testing.contract import renamed

ASSIGNOR = LagAware()
LAGS = st.sampled_from([0, 0, 1, 7, 40, 300, 4_000, 4_005, 500_000])
AFTER_MS = 2 * ROUND_MS
PRICE = 10
ON = {"deal_after_ms": AFTER_MS, "deal_gain_records": PRICE}


@attrs.frozen
class Reading:
    """Consumers of a few topics. `readers`: topic -> the numbers of its consumers."""

    readers: list[list[int]]
    sizes: list[int]
    cross_topic: bool

    @property
    def tasks(self) -> list[Task]:
        return [Task(id=TaskId(topic, part), stateful=False, lag=0) for topic, size in enumerate(self.sizes) for part in range(size)]

    def reads(self, name: str) -> dict[int, int]:
        return {topic: MOST_TASK_NUMBER + 1 for topic, names in enumerate(self.readers) if int(name[1:]) in names}

    @property
    def names(self) -> list[str]:
        return sorted({f"c{number}" for numbers in self.readers for number in numbers})

    def adapted(self, problem: AssignmentProblem) -> AssignmentProblem:
        return attrs.evolve(problem, members=tuple(attrs.evolve(each, subtopologies=self.reads(each.id)) for each in problem.members))

    def group(self, **options: int) -> AssignorGroup:
        """A group at rest, dealt with lags of 0."""
        chosen = {"cross_topic": self.cross_topic, **options}
        group = AssignorGroup(self.tasks, dict.fromkeys(self.names, 1), assignor=ASSIGNOR, options=chosen, adapted=self.adapted)
        group.settle(6)
        return group

    def units(self) -> list[list[int]]:
        """Topics that are dealt together."""
        topics = list(range(len(self.sizes)))
        return [topics] if self.cross_topic else [[topic] for topic in topics]


@st.composite
def readings(draw: st.DrawFn) -> Reading:
    topics = draw(st.integers(1, 4))
    consumers = draw(st.integers(2, 4))
    everyone = list(range(consumers))
    readers = [sorted(draw(st.sets(st.sampled_from(everyone), min_size=1))) if draw(st.integers(0, 2)) == 0 else everyone for _ in range(topics)]
    return Reading(readers, [draw(st.integers(1, 6)) for _ in range(topics)], draw(st.booleans()))


def with_lags(group: AssignorGroup, lags: Mapping[TaskId, int | None]) -> None:
    for task, lag in lags.items():
        group.tasks[task] = attrs.evolve(group.tasks[task], lag=lag)


def drawn_lags(data: st.DataObject, group: AssignorGroup) -> dict[TaskId, int]:
    return dict(zip(group.tasks, data.draw(st.lists(LAGS, min_size=len(group.tasks), max_size=len(group.tasks))), strict=True))


def squares(owner: Mapping[TaskId, str]) -> int:
    return sum(count * count for count in Counter(owner.values()).values())


def is_even(reading: Reading, owner: Mapping[TaskId, str]) -> bool:
    counts = Counter((task.subtopology, name) for task, name in owner.items())
    of_topics = [[counts[topic, f"c{number}"] for number in numbers] for topic, numbers in enumerate(reading.readers)]
    return all(max(of) - min(of) <= 1 for of in of_topics)


def paying(reading: Reading, owner: Mapping[TaskId, str], lags: Mapping[TaskId, int]) -> Iterator[tuple[TaskId, TaskId | None]]:
    """Every exchange that pays, by trying them all."""
    for topics in reading.units():
        of_unit = {task: name for task, name in owner.items() if task.subtopology in topics}
        for given_, taken in itertools.product(of_unit, [None, *of_unit]):
            for taker in reading.names if taken is None else [of_unit[taken]]:
                giver = of_unit[given_]
                after = {**of_unit, given_: taker} if taken is None else {**of_unit, given_: taker, taken: giver}
                if giver == taker or not all(task.subtopology in reading.reads(name) for task, name in after.items()):
                    continue
                if not is_even(reading, {**owner, **after}) or squares(after) > squares(of_unit):
                    continue
                most = [max(sum(lags[task] for task in at if at[task] == name) for name in (giver, taker)) for at in (of_unit, after)]
                if most[0] - most[1] >= PRICE * (1 if taken is None else 2):
                    yield given_, taken


@settings(max_examples=60)
@given(readings(), st.data())
def test_group_with_the_same_lags_is_dealt_once_at_most_and_then_nothing_pays(reading: Reading, data: st.DataObject):
    group = reading.group(**ON)
    before = group.owners()
    lags = drawn_lags(data, group)
    with_lags(group, lags)
    uneven = any(True for _ in paying(reading, before, lags))
    for _ in range(3):  # two looks, and the third is the first one after the time
        assert group.owners() == before
        plan = group.round()
    assert (group.owners() != before) == uneven
    assert plan.memory == {}
    dealt = group.owners()
    assert list(paying(reading, dealt, lags)) == []
    assert is_even(reading, dealt)
    assert not reading.cross_topic or squares(dealt) == squares(before)
    for _ in range(5):
        assert group.round().memory == {}
    assert group.owners() == dealt


@settings(max_examples=60)
@given(readings(), st.data())
def test_lags_that_change_move_only_what_was_uneven_at_each_look(reading: Reading, data: st.DataObject):
    """What moves was found at the first look, and at each something paid."""
    group = reading.group(**ON)
    before = group.owners()
    remembered: list[object] = []
    paid = []
    for _ in range(3):
        assert group.owners() == before
        lags = drawn_lags(data, group)
        with_lags(group, lags)
        paid.append(any(True for _ in paying(reading, before, lags)))
        remembered.append(group.round().memory.get("uneven_tasks", ()))
    moved = {task for task, name in group.owners().items() if before[task] != name}
    assert not moved or all(paid)
    assert isinstance(remembered[0], tuple)
    assert moved <= {*remembered[0]}
    assert is_even(reading, group.owners())


@settings(max_examples=60)
@given(readings(), st.data())
def test_lags_that_swing_within_twice_the_price_move_nothing(reading: Reading, data: st.DataObject):
    group = reading.group(**ON)
    before, sizes = group.owners(), Counter(group.owners().values())
    for _ in range(5):
        with_lags(group, {task: data.draw(st.integers(0, (2 * PRICE - 1) // sizes[name])) for task, name in before.items()})
        assert group.round().memory == {}
        assert group.owners() == before


@settings(max_examples=60)
@given(readings(), st.data())
def test_members_with_an_unknown_lag_take_no_part(reading: Reading, data: st.DataObject):
    group = reading.group(**ON)
    before = group.owners()
    with_lags(group, drawn_lags(data, group))
    unknown = data.draw(st.sampled_from(sorted(group.tasks)))
    with_lags(group, {unknown: None})
    for _ in range(4):
        group.round()
    after, silent = group.owners(), before[unknown]
    of_unit = [task for task in before if reading.cross_topic or task.subtopology == unknown.subtopology]
    assert [after[task] == silent for task in of_unit] == [before[task] == silent for task in of_unit]


def looks(problem: AssignmentProblem, times: int) -> list[Plan]:
    """Plans of a group at rest, each an interval after the one before."""
    found: list[Plan] = []
    for number in range(times):
        memory = found[-1].memory if found else {}
        found.append(ASSIGNOR.assign(attrs.evolve(problem, now_ms=number * ROUND_MS, memory=memory)))
        assert plan_faults(problem, found[-1], ASSIGNOR.guarantees) == []
    return found


def at_rest(reading: Reading, data: st.DataObject, **options: int) -> AssignmentProblem:
    group = reading.group(**options)
    with_lags(group, drawn_lags(data, group))
    return group.problem()


@settings(max_examples=60)
@given(readings(), st.data(), st.permutations(range(4)))
def test_renaming_members_changes_no_count_lag_or_move(reading: Reading, data: st.DataObject, order: list[int]):
    problem = at_rest(reading, data, **ON)
    other = renamed(problem, {f"c{number}": f"c{order[number]}" for number in range(4)})
    lag_of = {task.id: task.lag or 0 for task in problem.tasks}
    for mine, theirs in zip(looks(problem, 3), looks(other, 3), strict=True):
        assert mine.cost == theirs.cost
        assert len(mine.memory) == len(theirs.memory)
        bundles = [sorted(sorted((task.subtopology, lag_of[task]) for task in has) for has in plan.target.values()) for plan in (mine, theirs)]
        assert bundles[0] == bundles[1]


@settings(max_examples=60)
@given(readings(), st.data())
def test_off_it_looks_at_nothing(reading: Reading, data: st.DataObject):
    problem = at_rest(reading, data, deal_gain_records=1)
    remembering = attrs.evolve(problem, now_ms=10**12, memory=looks(attrs.evolve(problem, settings=set_to(problem, **ON)), 1)[0].memory)
    plan = ASSIGNOR.assign(remembering)
    assert (plan.movements, plan.memory, plan.watching, plan.scheduled_ms) == ((), {}, False, None)
    assert plan == ASSIGNOR.assign(attrs.evolve(remembering, settings=set_to(problem)))


def set_to(problem: AssignmentProblem, **options: int) -> GroupSettings:
    return attrs.evolve(problem.settings, options={"cross_topic": problem.settings.options["cross_topic"], **options})


def test_search_in_a_large_group_ends_in_time(monkeypatch: pytest.MonkeyPatch):
    """What it has found by then is dealt."""
    tasks = tuple(Task(id=TaskId(topic, part), stateful=False, lag=(topic + 7) * part % 997 * 1_000) for topic in range(5) for part in range(400))
    owned = {task.id: f"c{index % 100}" for index, task in enumerate(tasks)}
    members = tuple(MemberSpec(id=name, active=tuple(task for task, at in owned.items() if at == name)) for name in sorted(set(owned.values())))
    for cross_topic in (True, False):
        settled = GroupSettings(options={"cross_topic": cross_topic, "deal_after_ms": 1})
        problem = AssignmentProblem(tasks=tasks, members=members, settings=settled)
        found = []
        for steps in (20_000, exchanges.MOST_STEPS):
            monkeypatch.setattr(exchanges, "MOST_STEPS", steps)
            first, second = looks(problem, 2)
            assert not first.movements
            found.append(len(second.movements))
        assert 0 < found[0] < found[1]
