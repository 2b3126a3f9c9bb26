"""The way of one fact through the code, as the docstring of `equipoise.worker` lists it."""

from __future__ import annotations

import re
from pathlib import Path

import equipoise.worker

ROOT = Path(__file__).parents[4]
STEPS = re.findall(r"^\d+\. ``(\S+)``(.*)$", equipoise.worker.__doc__ or "", re.MULTILINE)


def test_path_of_a_fact_has_at_most_15_files() -> None:
    assert 10 <= len(STEPS) <= 15
    assert len({file for file, _ in STEPS}) == len(STEPS)


def test_path_of_a_fact_names_what_is_there() -> None:
    for file, text in STEPS:
        source = (ROOT / file).read_text(encoding="utf-8")
        names = re.findall(r"`(\w+)`", text.partition(":")[0])
        assert all(re.search(rf"^(async )?(def|class) {name}\b", source, re.MULTILINE) for name in names), (file, names)
