"""docs/architecture.md: every event has a row, sizes are correct, lines are short."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from equipoise.events.codec import MOST_EVENT_BYTES, encode
from equipoise.events.decisions import Decision, MemberAssigned
from equipoise.events.errors import TooLargeError
from equipoise.events.facts import MOST_TASKS, Fact, LagReported
from equipoise.events.tasks import TaskId
from tests.pages import check_place

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
WRAPPED = sorted([*ROOT.glob("*.md"), *(path for path in (ROOT / "docs").rglob("*.md") if path.name not in ("states.md", "scenarios.md"))])


def section(heading: str) -> str:
    return PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize(("heading", "events"), [("Facts", get_args(Fact)), ("Decisions", get_args(Decision))])
def test_events_have_a_row_each(heading: str, events: tuple[type, ...]) -> None:
    rows = re.findall(r"^\| `(\w+)` \| \w", section(heading), re.MULTILINE)
    assert rows == [event.__name__ for event in events]


def test_sizes_equal_those_of_the_page() -> None:
    tasks = tuple(TaskId(0, partition) for partition in range(100_000))
    encode(MemberAssigned(member_id="m1", incarnation=1, assignment_epoch=1, active=tasks, tokens=(1_000_000,) * len(tasks)))
    encode(LagReported("m1", 1, 1, 1, lags=dict.fromkeys(tasks[:70_000], 1_000_000)))
    with pytest.raises(TooLargeError):
        encode(LagReported("m1", 1, 1, 1, lags=dict.fromkeys(tasks, 1_000_000)))
    assert f"A topology has at most {MOST_TASKS:,} tasks" in PAGE
    assert f"An event has at most {MOST_EVENT_BYTES:,} bytes" in PAGE


@pytest.mark.parametrize("path", WRAPPED, ids=lambda path: str(path.relative_to(ROOT)))
def test_prose_ends_at_column_100(path: Path) -> None:
    """Except tables, pictures and blocks of code or output."""
    text = re.sub(r"<!-- made by.*?<!-- end -->|```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert [line for line in text.splitlines() if len(line) > 100 and not line.startswith(("|", "!["))] == []


def tree() -> list[str]:
    """Folders of the tree that the page shows, as paths, in its order."""
    found: list[str] = []
    above: list[str] = []
    block = section("Packages").partition("```\n")[2].partition("```")[0]
    for line in block.splitlines():
        folder = re.match(r"( *)(\w+)/ +\S", line)
        assert folder, f"{line!r} is not a folder with a description"
        above = [*above[: len(folder[1]) // 2], folder[2]]
        found.append("/".join(above))
    return found


def linked(path: Path) -> bool:
    """Whether the path goes through a link in `equipoise/`."""
    return path.resolve() != path


def test_tree_names_every_package_once() -> None:
    folders = ("events", "assignors", "statemachine", "replay", "equipoise")
    packages = {path.parent for folder in folders for path in (ROOT / folder).rglob("__init__.py") if not linked(path)}
    assert sorted(tree()) == sorted(str(path.relative_to(ROOT)) for path in packages)


@pytest.mark.parametrize(("path", "most_files"), [("Following one fact", 15), ("Following verify", 10)])
def test_paths_through_the_code_name_files_that_exist_and_are_short(path: str, most_files: int) -> None:
    steps = re.findall(r"^\d+\. `([^`]+)`", section("Following the code").partition(f"**{path}**")[2].partition("\n**")[0], re.MULTILINE)
    assert 0 < len(steps) <= most_files
    for place in steps:
        check_place(place.replace("::TRANSITIONS", ""))
