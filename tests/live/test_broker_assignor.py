"""The assignor inside the brokers, compiled: the same answers as its model in Python."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.broker_differential import compared, compared_tasks, java

DATA = Path(__file__).parents[1] / "data"


@pytest.mark.smoke
@pytest.mark.parametrize("name", ["broker_plans", "broker_tasks"])
def test_java_answers_every_vector(name: str) -> None:
    lines = (DATA / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    assert java(lines="".join(f"{line}\n" for line in lines)) == [json.loads(line)["answer"] for line in lines]


@pytest.mark.slow
def test_java_answers_made_groups_as_the_model_does() -> None:
    assert compared(seed=20_261_129, count=3_000)["groups"] == 3_000


@pytest.mark.slow
def test_java_answers_made_groups_of_streams_as_the_model_does() -> None:
    assert compared_tasks(seed=20_261_129, count=3_000) == 3_000
