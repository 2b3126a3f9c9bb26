"""Decision records are numbered without a gap, listed in their index, of one form, and short."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "docs" / "decisions"
RECORDS = sorted(path for path in FOLDER.glob("*.md") if path.name != "README.md")
MOST_LINES = 60


def test_records_are_numbered_without_a_gap_and_listed_with_their_titles() -> None:
    assert [int(path.name[:4]) for path in RECORDS] == list(range(1, len(RECORDS) + 1))
    listed = re.findall(r"^\| \[(\d{4})\]\((\S+)\) \| (.*) \|$", (FOLDER / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    titles = [path.read_text(encoding="utf-8").splitlines()[0] for path in RECORDS]
    assert listed == [(path.name[:4], path.name, title.removeprefix(f"# {path.name[:4]} ")) for path, title in zip(RECORDS, titles, strict=True)]


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_record_has_the_three_parts_on_one_page(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == ["Context", "Decision", "Consequences"]
    assert all(part.strip() for part in re.split(r"^## .*$", text, flags=re.MULTILINE)[1:])
    assert len(text.splitlines()) <= MOST_LINES
