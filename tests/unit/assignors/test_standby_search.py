"""The search that follows the rounds of the standbys' goal: nothing gets worse by it, and it ends."""

from __future__ import annotations

from collections import Counter

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.assignors import AssignmentProblem
from equipoise.assignors.common import standby_search
from equipoise.assignors.common.indexed_problem import IndexedProblem
from equipoise.assignors.common.shares import Share
from equipoise.assignors.common.standby_search import NOTHING, StandbySearch, Wish
from equipoise.assignors.common.validation import plan_faults
from equipoise.assignors.high_availability import HighAvailability
from equipoise.events.tasks import TaskId
from equipoise.testing import problems
from tests.properties.test_racks import with_racks

ASSIGNOR = HighAvailability()
STRATEGIES = ["min_cost", "balanced_min_cost"]


def placed_anyhow(data: st.DataObject, problem: AssignmentProblem, *, apart: int) -> StandbySearch | None:
    """Standbys wherever they may be; None: no task may have one."""
    indexed = IndexedProblem(problem)
    wishes: dict[TaskId, Wish] = {}
    holders: dict[TaskId, list[str]] = {}
    load: Counter[str] = Counter(dict.fromkeys(indexed.members, 0))
    for task in indexed.stateful:
        able = list(indexed.eligible(task).members)
        if len(able) < 2:
            continue
        owner = data.draw(st.sampled_from(able))
        others = [member for member in able if member != owner]
        chosen = data.draw(st.lists(st.sampled_from(others), min_size=1, max_size=3, unique=True))
        here = tuple(data.draw(st.lists(st.sampled_from(others), max_size=2, unique=True)))
        wishes[task] = Wish(copies=len(chosen), owner=owner, never=frozenset((owner,)), here=here, begun=())
        holders[task] = chosen
        load[owner] += 1
    copies = sum(map(len, holders.values())) + len(holders)
    share = Share(copies // len(indexed.members), -(-copies // len(indexed.members)))
    if not holders:
        return None
    return StandbySearch(indexed, wishes, load, dict.fromkeys(indexed.members, share), lambda number: number < apart, holders)


@pytest.mark.slow
@settings(max_examples=200)
@given(st.data(), problems(most_tasks=8, most_members=6).flatmap(with_racks), st.integers(0, 3))
def test_search_worsens_nothing_and_ends_without_gain(data: st.DataObject, problem: AssignmentProblem, apart: int):
    problem = attrs.evolve(problem, settings=attrs.evolve(problem.settings, num_standbys=2))
    search = placed_anyhow(data, problem, apart=apart)
    if search is None:
        return
    before, counts, total = search.worth(), {task: len(members) for task, members in search.holders.items()}, sum(search.load.values())
    search.search()
    after = search.worth()
    assert after <= before
    assert {task: len(members) for task, members in search.holders.items()} == counts
    for task, members in search.holders.items():
        assert len(set(members)) == len(members)
        assert not search.wishes[task].never.intersection(members)
        assert all(search.indexed.may_run(member, task) for member in members)
    assert sum(search.load.values()) == total
    again = StandbySearch(search.indexed, search.wishes, _without(search), search.shares, search.apart, search.holders)
    assert again.worth() == after, "its running totals equal recomputed ones"
    again.search()
    assert again.worth() == after


def _without(search: StandbySearch) -> dict[str, int]:
    """Member -> its load without standbys."""
    return {member: load - len(search.copies[member]) for member, load in search.load.items()}


@pytest.mark.slow
@settings(max_examples=200)
@given(problems(most_tasks=8, most_members=6).flatmap(with_racks))
def test_plan_standbys_cost_no_more_after_search(problem: AssignmentProblem):
    """Copies are as many as before, and no worse to have: the whole of what they have in common,
    are uneven by, and cost, one after the other.
    """
    problem = attrs.evolve(problem, settings=attrs.evolve(problem.settings, num_standbys=2))
    found: list[standby_search.Worth] = []

    def watched(search: StandbySearch) -> None:
        before = search.worth()
        original(search)
        assert search.worth() <= before
        found.append(search.worth())

    original = StandbySearch.search
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StandbySearch, "search", watched)
        plan = ASSIGNOR.assign(problem)
    assert plan_faults(problem, plan, ASSIGNOR.guarantees) == []
    stages = [stage.cost for stage in plan.cost.stages if stage.name == "standby"]
    assert all(worth >= NOTHING for worth in found)
    if found and stages:
        assert stages == [min(found)[2]]


def test_search_ends_after_most_looks(monkeypatch: pytest.MonkeyPatch):
    """It stops early; the result is valid."""
    from tests.unit.assignors.test_kafka_cases_racks import CLIENTS, crossed, traffic

    question = crossed(rack_standbys_apart=0)
    indexed = IndexedProblem(question)
    here = {task: [each.id for each in question.members if task in each.standby] for task in indexed.owner}
    wishes = {task: Wish(copies=2, owner=owner, never=frozenset((owner,)), here=(), begun=()) for task, owner in indexed.owner.items()}
    costs = []
    for looks in (0, 40, 120, 4_000):
        monkeypatch.setattr(standby_search, "MOST_LOOKS", looks)
        holders = {task: list(members) for task, members in here.items()}
        StandbySearch(indexed, wishes, dict.fromkeys(CLIENTS, 1), dict.fromkeys(CLIENTS, Share(3, 3)), lambda number: False, holders).search()
        costs.append(traffic({str(task): members for task, members in holders.items()}))
        assert all(len(set(members)) == 2 and indexed.owner[task] not in members for task, members in holders.items())
    assert costs[0] == 60
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] < costs[1] <= 60
