"""The problems that docs/assignors.md shows are sound, and their plans say what the page says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from assignors.adapters.aiokafka import LagAwareAssignor
from assignors.wire import assign_line

PAGE = (Path(__file__).parents[2] / "docs" / "assignors.md").read_text(encoding="utf-8")


def block(start: str) -> str:
    """The code block of the page in which this stands."""
    found = [text for text in re.findall(r"```[a-z]*\n(.*?)```", PAGE, re.DOTALL) if start in text]
    assert len(found) == 1, start
    return str(found[0])


def plan(name: str) -> dict[str, Any]:
    """The plan of the problem that the page shows for this assignor, in a shell command or as it is."""
    text = block(f'"assignor": "{name}"').replace("\n", " ")
    problem = re.search(r"\{.*\}", text)
    assert problem is not None
    answer: dict[str, Any] = json.loads(assign_line(problem[0]))
    return answer


def test_two_consumers_and_one_topic():
    assert {name: part["active"] for name, part in plan("lag_aware")["members"].items()} == {"C0": ["t0-0"], "C1": ["t0-1", "t0-2"]}


def test_a_round_of_connect():
    answer = plan("kafka_connect")
    assert answer["members"]["w1"]["revoke"] == ["1_0"]
    assert answer["memory"]["revoked_tasks"] == ["1_0"]
    assert answer["memory"]["delay_ms"] == 0


@pytest.mark.parametrize("more", [{}, {"cross_topic": True}])
def test_the_strategy_for_aiokafka(more: dict[str, Any]):
    call = re.search(r"LagAwareAssignor\((.*?)\)\n", block("partition_assignment_strategy=[strategy]"))
    assert call is not None
    said = dict(part.split("=") for part in call[1].split(", "))
    strategy = LagAwareAssignor(**{name: json.loads(value) for name, value in said.items()}, **more)
    assert (strategy.fetcher.group_id, strategy.fetcher.auto_offset_reset) == ("billing", "earliest")
