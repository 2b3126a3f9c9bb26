"""tests/kafka_cases.md: every case of the lists has an existing place or a reason."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", (TESTS / "kafka_cases.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL))
CASES = {title: re.findall(r"^\| (?!case |---)(.+?) \| (.+?) \|$", section, re.MULTILINE) for title, section in SECTIONS.items()}
HOW_MANY = {
    "HighAvailabilityTaskAssignorTest": 34,
    "TaskMovementTest": 6,
    "TaskAssignorConvergenceTest": 5,
    "ClientTagAwareStandbyTaskAssignorTest": 17,
    "RackAwareTaskAssignorTest": 27,
    "GraphTest": 7,
    "ConstrainedPrioritySetTest": 6,
    "StandbyTaskAssignorFactoryTest": 9,
    "StreamsAssignmentScaleTest": 5,
    "TaskAssignmentUtilsTest": 12,
    "IncrementalCooperativeAssignorTest": 27,
    "LagBasedPartitionAssignorTest": 8,
    "Faust's": 5,
    "The": 9,
}
"""First word of a section -> cases in it, so that none is lost."""


def file_of(place: str) -> Path:
    name = place.split("::", maxsplit=1)[0]
    return TESTS / name if "/" in name else TESTS / "unit" / "assignors" / name


def test_cases_are_listed_once() -> None:
    assert {re.split(r"[ ,]", title)[0]: len(cases) for title, cases in CASES.items()} == HOW_MANY
    for title, cases in CASES.items():
        names = [name for name, _ in cases]
        assert len(set(names)) == len(names), title


@pytest.mark.parametrize("title", CASES)
def test_case_has_an_existing_place_or_a_reason(title: str) -> None:
    last_reason = ""
    for case, place in CASES[title]:
        if place.startswith("- "):
            assert last_reason or not place.startswith("- the same"), case
            last_reason = place
            for name, function in re.findall(r"(test_\w+\.py)::(\w+)", place):
                assert f"def {function}(" in file_of(name).read_text(encoding="utf-8"), case
            continue
        text = file_of(place).read_text(encoding="utf-8")
        if "::" in place:
            assert f"def {place.split('::')[1]}(" in text, case
        elif re.fullmatch(r"[a-z]\w+", case):
            assert case in text, place
