"""Figures and code of docs/assignors.md are those of the code."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from equipoise.aiokafka import LagAwareAssignor
from tests import vectors
from tests.support.assign_json import assign_line

PAGE = (Path(__file__).parents[2] / "docs" / "assignors.md").read_text(encoding="utf-8")


def block(start: str) -> str:
    """Returns the code block of the page that contains the text."""
    found = [text for text in re.findall(r"```[a-z]*\n(.*?)```", PAGE, re.DOTALL) if start in text]
    assert len(found) == 1, start
    return str(found[0])


@pytest.mark.parametrize("more", [{}, {"cross_topic": True}])
def test_aiokafka_strategy_of_the_page_takes_its_options(more: dict[str, Any]):
    call = re.search(r"LagAwareAssignor\((.*?)\)\n", block("partition_assignment_strategy=[strategy]"))
    assert call is not None
    said = dict(part.split("=") for part in call[1].split(", "))
    strategy = LagAwareAssignor(**{name: json.loads(value) for name, value in said.items()}, **more)
    assert (strategy.fetcher.group_id, strategy.fetcher.auto_offset_reset) == ("billing", "earliest")


def spreads(topics: int, partitions: int, consumers: int, *, cross_topic: bool) -> tuple[int, int]:
    """Medians of 40 groups whose lags have a long tail (Pareto, from 100): how far the counts of
    consumers lie apart, and their lags.
    """
    dice = random.Random(1)
    found: list[tuple[int, int]] = []
    for _ in range(40):
        lags = {f"t{topic}": [int(100 * dice.paretovariate(1)) for _ in range(partitions)] for topic in range(topics)}
        problem = vectors.lag_problem({"lags": lags, "subs": {f"c{number}": list(lags) for number in range(consumers)}})
        answer = json.loads(assign_line(json.dumps({**problem, "config": {"options": {"cross_topic": cross_topic}}})))
        lag_of = {f"{topic}-{number}": lag for topic, of in lags.items() for number, lag in enumerate(of)}
        counts = [len(part["active"]) for part in answer["members"].values()]
        totals = [sum(lag_of[task] for task in part["active"]) for part in answer["members"].values()]
        found.append((max(counts) - min(counts), max(totals) - min(totals)))
    return sorted(count for count, _ in found)[20], sorted(lag for _, lag in found)[20]


@pytest.mark.parametrize(("topics", "partitions", "consumers"), [(10, 1, 2), (20, 3, 4), (30, 7, 5)])
@pytest.mark.docs
def test_cross_topic_gains_equal_those_of_the_page(topics: int, partitions: int, consumers: int):
    alone, together = (spreads(topics, partitions, consumers, cross_topic=cross_topic) for cross_topic in (False, True))
    row = f"| {topics} of {partitions} | {consumers} | {alone[0]} | {together[0]} | {alone[1]:,} | {together[1]:,} |"
    assert row in PAGE.splitlines()
