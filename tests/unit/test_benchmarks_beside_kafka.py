"""The benchmarks that compare with Kafka, on groups small enough for a test."""

from __future__ import annotations

import json
import re

from bench import convergence_bench, java_bench
from bench.convergence_bench import Case as Change
from bench.java_bench import Case
from tests.support.assign_json import problem_of


def test_convergence_has_the_fewest_moves_beside_kafkas() -> None:
    rows = convergence_bench.rows_of(Change(12, 3, 0, "one joins", 1, 0), draws=1)
    assert [what.partition(": ")[2] for what, _, _ in rows] == ["owners changed", "rounds", "rounds until at rest", "changes of owner on the way"]
    assert [value for _, value, _ in rows] == [3, 2, 2, 3]
    assert [note.partition(";")[0] for _, _, note in rows if ";" in note] == ["goal: at most 3, the fewest", "goal: at most 3", "fewest 3"]
    assert all(float(note.rpartition(" ")[2]) > value for _, value, note in rows), "Kafka's assignor needs more of each"


def test_ids_depend_only_on_the_seed() -> None:
    assert convergence_bench.ids(1, 3) == convergence_bench.ids(1, 3) != convergence_bench.ids(2, 3)


def test_decision_beside_java_reads_no_more_across_racks() -> None:
    case = Case(20, 4, racks=True)
    what, ratio, note = java_bench.beside_java(case)
    assert what == "20 tasks, 4 members, 0 standbys, racks: ours / warm Java"
    assert ratio > 0
    ours, java = map(int, re.search(r"read across racks (\d+), Java (\d+);", note).groups())  # type: ignore[union-attr]
    assert ours <= java


def test_reads_across_racks_are_counted_as_in_the_plan() -> None:
    asked = java_bench.question(Case(30, 5, racks=True))
    _, plan = java_bench.decided(problem_of(json.dumps(asked))[2], turns=1)
    assert plan.cost.cross_rack > 0
    assert java_bench.remote_reads(asked, {name: [str(task) for task in part.active] for name, part in plan.members.items()}) == plan.cost.cross_rack


def test_group_without_java_has_limits_of_seconds_and_memory() -> None:
    (what, seconds, _), (which, memory, _) = java_bench.alone(Case(50, 5, 1, goal=10.0))
    assert (what, which) == (
        "50 tasks, 5 members, 1 standbys: ours, over 10 s",
        "50 tasks, 5 members, 1 standbys: peak memory, over 2,000 MB",
    )
    assert 0 < seconds < 1
    assert 0 < memory < 1
