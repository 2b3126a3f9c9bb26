"""Configurations are ranked by what each saves group by group; a group without an answer makes none
look better.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from equipoise.replay.spark.what_if import COLUMNS
from equipoise.replay.whatif.configuration_ranking import RANKED, Ranking, compared
from equipoise.replay.whatif.recorded_costs import METRICS
from tests.unit.replay.test_advice import outcome, run


def row(group: str, seq: int, unavailable: float, *, restored: float | None = 100.0, **changes: Any) -> dict[str, Any]:
    """A row of a what-if over groups."""
    metrics = {**dict.fromkeys(METRICS, 10.0), "unavailable_task_seconds": unavailable, "records_restored": restored}
    head = {"group": group, "location": "a", "seq": seq, "configuration": f"c{seq}", "front": seq > 0}
    return {**dict.fromkeys(name for name, _ in COLUMNS), **head, **metrics, **changes}


def failed(group: str, seq: int | None) -> dict[str, Any]:
    return {**dict.fromkeys(name for name, _ in COLUMNS), "group": group, "location": "a", "seq": seq, "configuration": f"c{seq}", "error": "no"}


ROWS = [
    row("big", 0, 100.0),
    row("big", 1, 40.5, compared="better", restored=70.0),
    failed("big", 2),
    row("small", 0, 10.25),
    row("small", 1, 12.5, compared="worse"),
    row("small", 2, 5.0, compared="better"),
    row("tiny", 0, 1.0, restored=None),
    row("tiny", 1, 1.5, compared="same"),
    row("tiny", 2, 1.0, compared="same"),
    failed("unread", None),
]


def ranked(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    ranking = Ranking()
    ranking.take(rows)
    return [each.as_json() for each in ranking.ranked()]


def test_ranking_counts_what_is_saved_group_by_group() -> None:
    """The third led no large group, so its sum is least; it saves less than the second."""
    found = ranked(ROWS)
    assert [(each["configuration"], each["saved_unavailable_task_seconds"], each["better"], each["worse"], each["failed"]) for each in found] == [
        ("c1", 56.75, 1, 1, 0),
        ("c2", 5.25, 1, 0, 1),
        ("c0", 0.0, 0, 0, 0),
    ]
    assert [(each["groups"], each["unavailable_task_seconds"], each["best_in"]) for each in found] == [(3, 54.5, 3), (2, 6.0, 2), (3, 111.25, 0)]
    assert [(each["worst_group"], each["worst_task_seconds"]) for each in found] == [("small", 2.25), (None, None), (None, None)]
    assert [each["saved_records_restored"] for each in found] == [None, None, None], "unknown in one group"
    assert [each["saved_moves"] for each in found] == [0.0, 0.0, 0.0]
    assert all(list(each) == [name for name, _ in RANKED] for each in found)


def test_ranking_is_the_same_in_any_order_of_the_groups() -> None:
    groups = [[row for row in ROWS if row["group"] == group] for group in ("big", "small", "tiny", "unread")]
    for seed in range(5):
        random.Random(seed).shuffle(groups)
        assert ranked([row for group in groups for row in group]) == ranked(ROWS)


def test_ranking_without_a_group_that_is_led_as_it_is_knows_no_savings() -> None:
    (first, second) = ranked([failed("big", 0), row("big", 1, 40.0)])
    assert (first["configuration"], first["saved_unavailable_task_seconds"], first["failed"]) == ("c0", None, 1)
    assert (second["groups"], second["saved_unavailable_task_seconds"], second["unavailable_task_seconds"]) == (1, None, 40.0)


@pytest.mark.parametrize(
    ("runs", "expected"),
    [((50.0, 52.0), "better"), ((150.0, 148.0), "worse"), ((99.5, 100.5), "same"), ((20.0, 180.0), "same")],
)
def test_outcome_is_compared_beyond_chance(runs: tuple[float, ...], expected: str) -> None:
    factual = outcome("as it is", run(100.0), run(100.0))
    assert compared(outcome("other", *map(run, runs)), factual) == expected
    assert compared(outcome("broken", error="no"), factual) is None
