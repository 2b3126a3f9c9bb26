"""The proven fewest changes of owner: never more than a target needs, and exact where tasks differ
by nothing but their kind.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from equipoise.assignors.common.bounds import MULTIPLIERS, _priced, moves_lower_bound
from equipoise.assignors.common.indexed_problem import IndexedProblem
from equipoise.assignors.common.problem import MemberSpec, Task
from equipoise.assignors.common.shares import Shares
from equipoise.assignors.common.target import Candidates, min_rank
from equipoise.events.tasks import Lag, TaskId, parse_task
from tests.unit.assignors.build import member, numbered, problem, tasks


def bound(given: tuple[Task, ...], *members: MemberSpec, settled: dict[str, str] | None = None, balanced: bool = True, **settings: Any) -> int:
    """`settled`: task -> destination."""
    indexed = IndexedProblem(problem(given, *members, **settings))
    fixed = {parse_task(task): destination for task, destination in (settled or {}).items()}
    others = [task for task in indexed.unowned if indexed.tasks[task].stateful and task not in indexed.class_of]
    candidates: dict[TaskId, Candidates] = min_rank(indexed, others, [each for each in indexed.equivalence_classes if each.first.stateful])
    return moves_lower_bound(indexed, Shares(indexed), candidates, fixed, balanced=balanced)


def spread(counts: tuple[int, ...], subtopology: int) -> tuple[str, list[str]]:
    """All tasks, and those of each member."""
    ends = list(itertools.accumulate(counts, initial=0))
    return numbered(ends[-1], subtopology=subtopology), [
        numbered(count, subtopology=subtopology, start=start) for count, start in zip(counts, ends, strict=False)
    ]


def targets(indexed: IndexedProblem) -> Iterator[tuple[int, ...]]:
    """Every balanced number of stateful tasks of each member, then of stateless ones."""
    shares = Shares(indexed)
    stateful, stateless = len(indexed.stateful), len(indexed.tasks) - len(indexed.stateful)
    of_both = [range(share.lower, share.upper + 1) for share in shares.every.values()]
    of_stateful = [range(share.lower, share.upper + 1) for share in shares.stateful.values()]
    if not shares.two_kinds:
        of_stateful = of_both if stateful else [range(1)] * len(of_both)
    for s in itertools.product(*of_stateful):
        for both in itertools.product(*of_both):
            n = tuple(total - one for total, one in zip(both, s, strict=True))
            if sum(s) == stateful and sum(n) == stateless and min(n) >= 0:
                yield *s, *n


@pytest.mark.parametrize("capacities", [(1, 1), (1, 1, 1), (1, 2), (3, 1, 1)])
@pytest.mark.parametrize("balance_factor", [1, 2])
def test_bound_is_the_fewest_changes_where_every_task_may_run_everywhere(capacities: tuple[int, ...], balance_factor: int) -> None:
    for stateful in itertools.product((0, 4) if len(capacities) > 2 else (0, 1, 4), repeat=len(capacities)):
        for stateless in itertools.product((0, 2), repeat=len(capacities)):
            (every_s, of_s), (every_n, of_n) = spread(stateful, 0), spread(stateless, 1)
            members = [member(f"m{place}", f"{of_s[place]} {of_n[place]}", capacity=capacity) for place, capacity in enumerate(capacities)]
            given = tasks(every_s, every_n)
            indexed = IndexedProblem(problem(given, *members, balance_factor=balance_factor))
            given_up = [sum(max(0, had - has) for had, has in zip((*stateful, *stateless), each, strict=True)) for each in targets(indexed)]
            assert bound(given, *members, balance_factor=balance_factor) == min(given_up), (stateful, stateless)


OLD: dict[str, Any] = {"subtopologies": {1: 9}}
"""Of a topology without sub-topology 0."""
BOTH_HAVE: dict[str, Lag] = {"0_2": 0, "0_3": 0}


@pytest.mark.parametrize(
    ("given", "members", "settled", "fewest"),
    [
        # decided earlier
        (tasks("0_0 0_1"), [member("m1", "0_0 0_1"), member("m2")], {"0_0": "m2"}, 1),
        (tasks("0_0 0_1"), [member("m1", "0_1"), member("m2")], {"0_0": "m2"}, 0),
        (tasks("0_0 0_1"), [member("m1", "0_0"), member("m2", "0_1")], {"0_0": "m2"}, 2),
        (tasks("0_0 0_1 0_2 0_3"), [member("m1", numbered(4)), member("m2")], {"0_0": "m2"}, 2),
        # owners that may not keep a task
        (tasks("0_0"), [member("m1", "0_0", **OLD), member("m2")], {}, 1),
        (tasks("", "0_0"), [member("m1", "0_0", **OLD), member("m2")], {}, 1),
        (tasks("0_0"), [member("m1", "0_0", **OLD)], {}, 0),
        (tasks("0_0 0_1"), [member("m1", "0_0 0_1", leaving=True), member("m2"), member("m3")], {}, 2),
        (tasks("0_0 0_1"), [member("m1", "0_0 0_1", leaving=True)], {}, 0),
        (tasks("0_0 0_1 0_2"), [member("m1", "0_0", leaving=True), member("m2", "0_1 0_2"), member("m3")], {}, 1),
        # tasks without an owner
        (tasks("0_0 0_1"), [member("m1", "0_1", lags={"0_0": 0}), member("m2")], {}, 1),
        (tasks("0_0 0_1"), [member("m1", "0_1"), member("m2", lags={"0_0": 0})], {}, 0),
        (tasks("0_0 0_1 0_2"), [member("m1", "0_0 0_1"), member("m2")], {}, 0),
        (tasks(numbered(5)), [member("m1", numbered(4)), member("m2")], {}, 1),
        (tasks(numbered(4)), [member("m1", "0_0 0_1", lags=BOTH_HAVE), member("m2", lags=BOTH_HAVE), member("m3")], {}, 1),
        (tasks("", "1_0 1_1 1_2"), [member("m1", "1_0 1_1"), member("m2")], {}, 0),
        (tasks("", numbered(5, subtopology=1)), [member("m1", numbered(4, subtopology=1)), member("m2")], {}, 1),
        (
            tasks("", "0_0 0_1 0_2 0_3 1_0 2_0"),
            [member("m1", "0_0 0_1"), member("m2", "0_2 0_3", subtopologies={0: 9, 2: 9}), member("m3", subtopologies={0: 9, 1: 9})],
            {},
            1,
        ),
        (tasks("0_0"), [member("m1", leaving=True)], {}, 0),
        (tasks("0_0"), [], {}, 0),
    ],
)
def test_bound_counts_what_must_change(given: tuple[Task, ...], members: list[MemberSpec], settled: dict[str, str], fewest: int) -> None:
    assert bound(given, *members, settled=settled) == fewest


def test_bound_of_an_unbalanced_target_is_what_is_certain() -> None:
    members = [member("m1", numbered(4)), member("m2"), member("m3", "1_0", subtopologies={0: 9})]
    given = tasks(numbered(4), "1_0")
    assert (bound(given, *members), bound(given, *members, balanced=False)) == (3, 1)
    assert bound(given, *members, settled={"0_0": "m2", "0_1": "m2"}, balanced=False) == 3


@pytest.mark.parametrize("leave", [True, False])
def test_priced_bound_is_the_best_over_all_prices_and_numbers_of_tasks(leave: bool) -> None:
    dice = random.Random(3)
    for _ in range(60):
        kinds = []
        for _ in range(dice.randint(1, 3)):
            ls, lt = dice.randint(0, 3), dice.randint(0, 6)
            us, ut = ls + dice.randint(0, 2), lt + dice.randint(0, 2)
            kinds.append((dice.randint(1, 3), dice.randint(0, 5), dice.randint(0, 5), ls, us, lt, ut))
        stateful, stateless = dice.randint(0, 9), dice.randint(0, 9)
        best = []
        for a, b in itertools.product(MULTIPLIERS, repeat=2):
            bound = -a * stateful - b * stateless
            for times, s, n, ls, us, lt, ut in kinds:
                counts = [(one, total - one) for one in range(ls, us + 1) for total in range(max(lt, one), ut + 1)]
                sign = 1 if leave else -1
                bound += times * min(
                    (max(0, sign * (s - one)) + max(0, sign * (n - other)) + a * one + b * other for one, other in counts), default=10**9
                )
            best.append(bound)
        columns = np.array(kinds, dtype=np.int64).T
        found = _priced(columns[0], columns[1], columns[2], list(columns[3:]), stateful, stateless, leave=leave)
        assert found == (0 if max(best) > 10**8 else max(best))
