"""Who should run a task: the members of its min rank, and the target that changes least."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import attrs
import pytest

from equipoise.assignors.common import target
from equipoise.assignors.common.flow_network import AssignmentNetwork
from equipoise.assignors.common.indexed_problem import IndexedProblem, pool_of
from equipoise.assignors.common.problem import AssignmentProblem, MemberSpec, Partition
from equipoise.assignors.common.restore_rate import RestoreRates
from equipoise.assignors.common.shares import Share, Shares
from equipoise.assignors.common.target import (
    Candidates,
    Target,
    _FillLevel,
    _restore_queues,
    _steps_of_part,
    constrained_balanced_assignment,
    min_rank,
)
from equipoise.events.tasks import Lag, TaskId
from tests.unit.assignors.build import UNKNOWN, ids, member, plan, problem, tasks, text

A, B = TaskId(0, 0), TaskId(0, 1)


def ranked(question: AssignmentProblem, *names: str) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    """Task -> members of its min rank with a copy, and those without one."""
    indexed = IndexedProblem(question)
    found = min_rank(indexed, ids(*names))
    return {str(task): (each.members, () if each.fresh is None else each.fresh.members) for task, each in found.items()}


def has(name: str, lag: int, speed: int = 0) -> MemberSpec:
    return member(name, lags={"0_0": lag}, speed=speed)


def crashes(name: str, lag: int) -> MemberSpec:
    return attrs.evolve(has(name, lag), crash_looping=True)


ONE = tasks("0_0")


@pytest.mark.parametrize(
    ("members", "copies", "fresh"),
    [
        # rank 0: caught up
        ((has("m1", 100), has("m2", 101), member("m3")), ("m1",), ()),
        ((has("m1", 0), has("m2", 100)), ("m1", "m2"), ()),
        ((member("m1", lags={"0_0": 0}, leaving=True), has("m2", 500)), ("m2",), ()),
        ((crashes("m1", 0), member("m2")), ("m1",), ()),
        ((crashes("m1", 0), has("m2", 100)), ("m2",), ()),
        ((crashes("m1", 100), has("m2", 101)), ("m1",), ()),
        # nobody is caught up: the soonest ready, and those within the acceptable lag of it
        ((has("m1", 1_000), has("m2", 1_100), has("m3", 1_101), member("m4")), ("m1", "m2"), ()),
        ((has("m1", 1_000, speed=10), has("m2", 1_500, speed=20)), ("m2",), ()),
        ((crashes("m1", 500), has("m2", 600)), ("m2",), ()),
        ((crashes("m1", 500), has("m2", 601)), ("m1",), ()),
        ((member("m1", lags={"0_0": 500}, leaving=True), member("m2")), (), ("m2",)),
        # no copy is sooner than a fresh one
        ((member("m1"), member("m2")), (), ("m1", "m2")),
        ((has("m1", 200_000), member("m2")), (), ("m1", "m2")),
        ((member("m1", lags={"0_0": UNKNOWN}), member("m2")), (), ("m1", "m2")),
        ((has("m1", 149_999), member("m2")), ("m1",), ()),
        ((has("m1", 100_000, speed=10), member("m2", speed=20)), (), ("m2",)),
    ],
)
def test_min_rank_has_the_caught_up_else_the_soonest_ready(members: tuple[MemberSpec, ...], copies: tuple[str, ...], fresh: tuple[str, ...]):
    assert ranked(problem(ONE, *members), "0_0") == {"0_0": (copies, fresh)}


@pytest.mark.parametrize(
    ("acceptable", "speed", "lag", "equal"),
    [
        (1_000_000, 0, 12_000, True),
        (1_000_000, 0, 12_001, False),
        (500, 0, 11_500, True),
        (500, 0, 11_501, False),
        (1_000_000, 30_000, 41_000, True),
        (1_000_000, 30_000, 41_001, False),
    ],
)
def test_ready_within_a_second_is_equally_soon(acceptable: int, speed: int, lag: int, equal: bool):
    """Or within 1,000 records while no speed is known; and never beyond acceptable_recovery_lag."""
    acceptable_lag = min(acceptable, 10_000)
    members = has("m1", 11_000, speed), has("m2", lag, speed)
    limited = tuple(attrs.evolve(each, ready_lag_records=acceptable_lag) for each in members)
    question = problem(ONE, *limited, acceptable_recovery_lag=acceptable)
    assert ranked(question, "0_0") == {"0_0": (("m1", "m2") if equal else ("m1",), ())}


def test_task_that_no_member_may_run_has_no_min_rank():
    assert ranked(problem(ONE, member("m1", lags={"0_0": 0}, leaving=True)), "0_0") == {}


def test_copies_that_are_restored_first_are_queued_before_those_of_later_tasks():
    """m1 has half of each task. After the first one it restores the second as late as m2 does."""
    question = problem(tasks("0_0 0_1"), member("m1", lags={"0_0": 5_000, "0_1": 5_000}), member("m2", lags={"0_1": 9_000}))
    assert ranked(question, "0_0", "0_1") == {"0_0": (("m1",), ()), "0_1": (("m2",), ())}


def test_members_that_are_equally_soon_share_the_queue():
    """Each restores half of 0_0 on average, so 0_1 is soonest ready on m3."""
    lags: dict[str, Lag] = {"0_0": 4_000, "0_1": 4_000}
    question = problem(tasks("0_0 0_1"), member("m1", lags=lags), member("m2", lags=lags), member("m3", lags={"0_1": 5_899}))
    assert ranked(question, "0_0", "0_1")["0_1"] == (("m3",), ())
    question = problem(tasks("0_0 0_1"), member("m1", lags=lags), member("m2", lags=lags), member("m3", lags={"0_1": 5_900}))
    assert ranked(question, "0_0", "0_1")["0_1"] == (("m1", "m2", "m3"), ())


def test_task_without_copies_goes_to_members_that_are_not_busy_restoring():
    busy = member("m1", "0_9", lags={"0_9": 100_000})
    small = tasks("0_0 0_9", end_offset=1_000)
    question = problem((small[0], attrs.evolve(small[1], end_offset=150_000)), busy, member("m2"))
    assert ranked(question, "0_0") == {"0_0": ((), ("m2",))}


def test_equivalence_class_has_one_min_rank():
    indexed = IndexedProblem(problem(tasks("0_0 0_1"), member("m1"), member("m2")))
    found = min_rank(indexed, (), indexed.equivalence_classes)
    assert list(found) == [A, B]
    assert found[A] is found[B]
    assert found[A].everyone == {"m1", "m2"}


def test_candidates_contain_members_with_and_without_copies():
    both = Candidates(members=("m1",), fresh=pool_of(("m2",)))
    assert ["m1" in both, "m2" in both, "m3" in both, "m2" in Candidates(members=("m1",))] == [True, True, False, False]


def test_restore_queue_is_what_a_member_owns_and_still_restores():
    m1 = member("m1", "0_0 0_1 0_2 1_0", lags={"0_1": 500, "0_2": UNKNOWN}, speed=20)
    indexed = IndexedProblem(problem(tasks("0_0 0_1 0_2", "1_0", end_offset=9_000), m1, member("m2", lags={"0_1": 7}, speed=10)))
    assert _restore_queues(indexed) == {"m1": 250 + 4_500, "m2": 0}


# The level of restore queues

QUEUES = [*itertools.product((0, 3, 8), repeat=3), (0, 6, 8)]
SPEEDS = [(1, 1, 1), (1, 2, 3), (3, 1, 2), (2, 4, 4), (1, 3, 4)]
POURED = [(), ((1, 1),), ((6, 1),), ((5, 2), (7, 1)), ((40, 5),)]


def level_of(queues: tuple[int, ...], speeds: tuple[int, ...], records: int) -> tuple[Fraction, int]:
    """Time to which the records fill the queues, and how many members are at it."""
    slowest, order = min(speeds), sorted(range(len(queues)), key=lambda place: (queues[place], -speeds[place]))
    for count in range(len(queues), 0, -1):
        at = order[:count]
        level = Fraction(sum(queues[place] * speeds[place] for place in at) + records * slowest, sum(speeds[place] for place in at))
        if count == 1 or level > queues[at[-1]]:
            return level, count
    raise AssertionError


@pytest.mark.parametrize("speeds", SPEEDS)
@pytest.mark.parametrize("poured", POURED)
def test_level_is_that_of_water_in_the_shortest_queues(speeds: tuple[int, ...], poured: tuple[tuple[int, int], ...]):
    names = ("a", "b", "c")
    rates, slowest = RestoreRates(dict(zip(names, speeds, strict=True))), min(speeds)
    for queues in QUEUES:
        queue = dict(zip(names, queues, strict=True))
        fill, other = _FillLevel(rates, queue, pool_of(names)), _FillLevel(rates, queue, pool_of(names))
        for records, count in poured:
            fill.add(records, count)
            other.add(records, count)
        level, at = level_of(queues, speeds, sum(records for records, _ in poured))
        for records in (1, 4):
            first = min(max(Fraction(length), level) + Fraction(records * slowest, speed) for length, speed in zip(queues, speeds, strict=True))
            for than in (1, 3, 4, 8, 12):
                assert fill.is_later(records, than=than) == (first > than), (queues, records, than)
        mean = sum(records for records, _ in poured) // max(1, sum(count for _, count in poured))
        done = {name: queue[name] + -(-mean * slowest // speed) for name, speed in zip(names, speeds, strict=True)}
        speed_at = sum(sorted(zip(queues, (-speed for speed in speeds), strict=True), key=lambda each: each)[place][1] for place in range(at))
        below = level + Fraction(mean * slowest * at, -speed_at)
        for slack in (0, 2):
            wanted = tuple(name for name in names if done[name] < below or done[name] <= min(done.values()) + slack)
            assert fill.idle(queue, slack).members == other.idle(queue, slack).members == wanted, (queues, slack)


def test_pool_whose_members_are_all_idle_is_the_pool_itself():
    everyone = pool_of(("a", "b"))
    assert _FillLevel(RestoreRates({"a": 0, "b": 0}), {"a": 0, "b": 0}, everyone).idle({"a": 0, "b": 0}, 0) is everyone


# Owners for now


def for_now(question: AssignmentProblem, candidates: dict[str, Candidates], running: dict[str, str] | None = None) -> dict[str, str]:
    indexed = IndexedProblem(question)
    of = {ids(task)[0]: each for task, each in candidates.items()}
    runs = {ids(task)[0]: name for task, name in (running or {}).items()}
    return {str(task): name for task, name in constrained_balanced_assignment(indexed, Shares(indexed), of, runs).items()}


BOTH = Candidates(members=("m1", "m2"))


@pytest.mark.parametrize(("one", "other"), [("m1", "m2"), ("m2", "m1")])
def test_owner_for_now_is_a_previous_one_then_the_soonest_ready(one: str, other: str):
    near, far = has(one, 10), has(other, 60)
    assert for_now(problem(ONE, near, far), {"0_0": BOTH}) == {"0_0": one}
    assert for_now(problem(ONE, near, attrs.evolve(far, previously_owned=frozenset({A}))), {"0_0": BOTH}) == {"0_0": other}
    assert for_now(problem(ONE, has(one, 0), far), {"0_0": Candidates(members=(other,))}) == {"0_0": other}


def test_owners_for_now_are_as_balanced_as_what_runs_already_allows():
    given = tasks("0_0 0_1 0_2")
    runs = member("m1", "0_2")
    assert for_now(problem(given, runs, member("m2")), {"0_0": BOTH, "0_1": BOTH}, {"0_2": "m1"}) in (
        {"0_0": "m1", "0_1": "m2"},
        {"0_0": "m2", "0_1": "m1"},
        {"0_0": "m2", "0_1": "m2"},
    )
    given = tasks("0_0 0_1 0_2 0_3")
    runs = member("m1", "0_2 0_3")
    assert for_now(problem(given, runs, member("m2")), {"0_0": BOTH, "0_1": BOTH}, {"0_2": "m1", "0_3": "m1"}) == {"0_0": "m2", "0_1": "m2"}


FRESH = Candidates(fresh=pool_of(("m1", "m2")))


def test_owners_for_now_share_members_without_copies():
    found = for_now(problem(tasks("0_0 0_1"), member("m1"), member("m2")), {"0_0": FRESH, "0_1": FRESH})
    assert sorted(found.values()) == ["m1", "m2"]
    assert for_now(problem(ONE, member("m1"), member("m2")), {}) == {}


@pytest.mark.parametrize(("one", "other"), [("m1", "m2"), ("m2", "m1")])
def test_copy_on_a_member_for_now_counts_by_its_records(one: str, other: str):
    nearer = problem(ONE, has(one, 149_999), member(other))
    assert for_now(nearer, {"0_0": FRESH}) == {"0_0": one}
    assert for_now(nearer, {"0_0": Candidates(fresh=pool_of((other,)))}) == {"0_0": other}


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize(("one", "other"), [("m1", "m2"), ("m2", "m1")])
def test_owners_for_now_restore_least_together(one: str, other: str, swapped: bool):
    """500 and 1,400 records are one fewer than 600 and 1,301, though these two are copies."""
    first, second = ("0_1", "0_0") if swapped else ("0_0", "0_1")
    lags: dict[str, Lag] = {first: 500, second: 1_301}
    given = [attrs.evolve(task, end_offset=1_400) for task in tasks("0_0 0_1")]
    question = problem(given, member(one, lags=lags), member(other, lags={first: 600}))
    assert for_now(question, {"0_0": FRESH, "0_1": FRESH}) == {first: one, second: other}


# Costs of the target


@pytest.mark.parametrize(
    ("most", "part", "steps"),
    [
        (2, None, {2: (0, 0), 5: (1, 0)}),
        (5, None, {5: (0, 0)}),
        (3, Share(1, 2), {1: (0, 0), 2: (0, 1), 3: (0, 2), 5: (1, 2)}),
        (1, Share(2, 2), {1: (0, 0), 2: (1, 0), 5: (1, 2)}),
    ],
)
def test_place_costs_crowding_above_the_limit_and_unevenness_beyond_the_even_part(most: int, part: Share | None, steps: dict[int, tuple[int, int]]):
    found = {end: (cost[1], cost[4]) for end, cost in _steps_of_part(most, part, 5)}
    assert found == steps
    assert {sum(cost) - cost[1] - cost[4] for _, cost in _steps_of_part(most, part, 5)} == {0}


# What the target prefers


def target_of(question: AssignmentProblem, name: str) -> str:
    return text(plan(question).target[name])


@pytest.mark.parametrize("restores", ["0_0", "0_1"])
def test_move_for_balance_ends_a_restore_where_it_can(restores: str):
    every: dict[str, Lag] = {"0_0": 0, "0_1": 0}
    question = problem(tasks("0_0 0_1"), member("m1", "0_0 0_1", lags={restores: 90_000}), member("m2", lags=every))
    assert target_of(question, "m2") == restores


@pytest.mark.parametrize("home", ["0_0", "0_1"])
def test_task_that_returns_home_moves_before_one_that_is_ready_there(home: str):
    lags: dict[str, Lag] = {"0_0": 0, "0_1": 0, home: 5_000}
    question = problem(tasks("0_0 0_1"), member("m1", "0_0 0_1"), member("m2", lags=lags, previously_owned=home))
    assert target_of(question, "m2") == home


@pytest.mark.parametrize("name", ["m1", "m2"])
def test_stateless_task_without_an_owner_returns_home(name: str):
    members = [member(each, previously_owned="1_0" if each == name else "") for each in ("m1", "m2")]
    assert target_of(problem(tasks("", "1_0"), *members), name) == "1_0"


@pytest.mark.parametrize("busy", ["m1", "m2"])
def test_task_without_a_copy_goes_where_least_is_restored_among_even_members(busy: str):
    owns = {"m1": "0_8", "m2": "0_9"}
    members = [member(name, task, lags={task: 100_000} if name == busy else {}) for name, task in owns.items()]
    given = tuple(attrs.evolve(task, end_offset=1_000 if task.id == A else 150_000) for task in tasks("0_0 0_8 0_9"))
    assert "0_0" not in target_of(problem(given, *members), busy)


def test_owner_keeps_what_nobody_else_may_run_while_other_tasks_are_placed():
    old = member("m1", "0_0", subtopologies={1: 9})
    question = problem(tasks("0_0 0_1", "1_0"), old)
    assert target_of(question, "m1") == "0_0 1_0"


def test_copy_that_is_caught_up_is_not_in_the_restore_queue_though_it_was_not_declared_ready():
    indexed = IndexedProblem(problem(ONE, member("m1", "0_0", lags={"0_0": 50})), announced=True)
    assert _restore_queues(indexed) == {"m1": 0}


def test_part_of_a_restore_is_rounded_down():
    lags: dict[str, Lag] = {"0_0": 4_001, "0_1": 4_001}
    question = problem(tasks("0_0 0_1"), member("m1", lags=lags), member("m2", lags=lags), member("m3", lags={"0_1": 5_901}))
    assert ranked(question, "0_0", "0_1")["0_1"] == (("m1", "m2", "m3"), ())


# Whether it is adopted


def adopted(question: AssignmentProblem) -> Target:
    indexed = IndexedProblem(question)
    return target.adopted_target(indexed, Shares(indexed), {}, {})


@pytest.mark.parametrize(("optimal", "unique"), [(True, False), (False, True)])
def test_owners_that_stay_are_as_proven_as_the_target_that_is_no_better(monkeypatch: pytest.MonkeyPatch, optimal: bool, unique: bool):
    """m1 may not have fewer than both, since m2 knows neither."""
    question = problem(tasks("0_0 0_1"), member("m1", "0_0 0_1"), member("m2", subtopologies={1: 1}))
    stays = {A: "m1", B: "m1"}
    monkeypatch.setattr(target, "propose_balanced_assignment", lambda *_, **__: Target(owner=dict(stays), optimal=optimal, unique=unique))
    assert adopted(question) == Target(owner=stays, optimal=optimal, unique=unique)
    even = problem(tasks("0_0 0_1"), member("m1", "0_0"), member("m2", "0_1"))
    assert adopted(even) == Target(owner={A: "m1", B: "m2"}), "the best there is, so nothing is proposed"


def test_tasks_of_a_crowded_sub_topology_move_though_all_have_their_shares_and_read_nearby():
    near_m2 = (Partition(topic="t", partition=0, racks=("b",)),)
    given = [attrs.evolve(task, source=near_m2 if task.id == TaskId(1, 0) else ()) for task in tasks("0_0 0_1 1_0 2_0")]
    members = [attrs.evolve(member("m1", "0_0 0_1"), rack="a"), attrs.evolve(member("m2", "1_0 2_0"), rack="b")]
    spread = adopted(problem(given, *members, rack_aware_strategy="balanced_min_cost"))
    assert spread.owner[A] != spread.owner[B]
    assert spread.owner[TaskId(1, 0)] == "m2"


def test_task_that_its_owner_may_not_keep_moves_though_all_have_their_shares():
    question = problem(tasks("0_0 1_0"), member("m1", "0_0", subtopologies={1: 1}), member("m2", "1_0"))
    assert adopted(question).owner == {A: "m2", TaskId(1, 0): "m1"}


@pytest.mark.parametrize("given", [{}, {"even_parts": False}, {"even_parts": True}])
@pytest.mark.parametrize("owned", ["0_0 0_1 0_2", "0_0 0_1"])
def test_parts_are_even_only_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch, owned: str, given: dict[str, bool]):
    """Both for a task without an owner, and when the owners have too much."""
    indexed = IndexedProblem(problem(tasks("0_0 0_1 0_2"), member("m1", owned), member("m2")))
    shares = Shares(indexed)
    answers = iter([shares.parts()] * 2)
    monkeypatch.setattr(shares, "parts", lambda: next(answers))
    target.adopted_target(indexed, shares, {}, {}, **given)
    target.propose_balanced_assignment(indexed, shares, {}, {}, **given)
    assert len(list(answers)) == (0 if given.get("even_parts") else 2)


def test_target_that_is_as_good_as_the_owners_is_not_adopted(monkeypatch: pytest.MonkeyPatch):
    members = member("m1", "0_0 0_1"), member("m2", "0_2"), member("m3", subtopologies={1: 1})
    monkeypatch.setattr(target, "propose_balanced_assignment", lambda *_, **__: Target(owner={A: "m1", B: "m2", TaskId(0, 2): "m2"}))
    assert adopted(problem(tasks("0_0 0_1 0_2"), *members)).owner[B] == "m1"


@pytest.mark.parametrize(("optimal", "unique"), [(True, False), (False, True)])
def test_target_is_as_proven_as_the_flow(monkeypatch: pytest.MonkeyPatch, optimal: bool, unique: bool):
    solve = AssignmentNetwork.solve
    monkeypatch.setattr(AssignmentNetwork, "solve", lambda network: attrs.evolve(solve(network), optimal=optimal, unique=unique))
    indexed = IndexedProblem(problem(ONE, member("m1")))
    assert target.propose_balanced_assignment(indexed, Shares(indexed), {}, {}) == Target(owner={A: "m1"}, optimal=optimal, unique=unique)


# Tasks that stay with their owners unless balance needs them, though others have copies


@pytest.mark.parametrize("announced", [False, True])
@pytest.mark.parametrize("lags", [{"0_0": 0, "0_1": 500, "0_2": UNKNOWN}, {"0_0": 100, "0_1": 101, "0_3": 0}, {}])
def test_tasks_with_copies_elsewhere_are_proposed_as_any_other(lags: dict[str, Lag], announced: bool, monkeypatch: pytest.MonkeyPatch):
    runs = member("m1", "0_0 0_1 0_2", lags={"0_2": 7_000})
    copies = member("m2", "0_3", standby="0_0 0_1 0_2", lags=lags, ready="0_0")
    leaves, misses = member("m4", lags={"0_1": 0}, leaving=True), member("m5", lags={"0_2": 0}, subtopologies={0: 3, 1: 1})
    indexed = IndexedProblem(problem(tasks("0_0 0_1 0_2 0_3", "1_0"), runs, copies, member("m3", lags={"0_0": 0}), leaves), announced=announced)
    networks: list[AssignmentNetwork] = []
    solve = AssignmentNetwork.solve

    def noted(network: AssignmentNetwork) -> Any:
        networks.append(network)
        return solve(network)

    monkeypatch.setattr(AssignmentNetwork, "solve", noted)
    together = target.propose_balanced_assignment(indexed, Shares(indexed), {}, {})
    assert {A, B, TaskId(0, 2)} <= indexed.copied
    indexed.copied = set()
    assert target.propose_balanced_assignment(indexed, Shares(indexed), {}, {}) == together
    first, second = networks
    assert (first._direct, first._offers, first._row_of) == (second._direct, second._offers, second._row_of), "so the solver is asked the same"
    assert not IndexedProblem(problem(tasks("0_0 0_1 0_2 0_3"), runs, copies, misses)).copied, "m5 does not know all of 0"


def test_settled_tasks_and_those_that_need_an_owner_are_not_left_to_the_others():
    indexed = IndexedProblem(problem(tasks("0_0 0_1"), member("m1", "0_0 0_1"), member("m2", standby="0_0 0_1", lags={"0_0": 0, "0_1": 0})))
    assert indexed.copied == {A, B}
    assert target.propose_balanced_assignment(indexed, Shares(indexed), {}, {B: "m1"}).owner == {A: "m2", B: "m1"}
