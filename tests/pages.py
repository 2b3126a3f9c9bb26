"""Tables of the written pages, and what they name: files as `path`, and tests, functions and
classes in them as `path::name`.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import attrs

ROOT = Path(__file__).parents[1]
PLACE = re.compile(r"`((?:assignors|bench|docs|equipoise|events|examples|replay|statemachine|tests)/[^`]+)`")


@attrs.frozen
class Row:
    """A row of a table: the heading above it, and its cells."""

    section: str
    cells: tuple[str, ...]


def read_page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def rows_of(page: str) -> list[Row]:
    """Of all tables, without their heads."""
    rows: list[Row] = []
    section, head = "", True
    for line in page.splitlines():
        if line.startswith("#"):
            section = line.lstrip("# ")
        if not line.startswith("|"):
            head = True
        elif line.startswith("|---"):
            head = False
        elif not head:
            rows.append(Row(section, tuple(cell.strip() for cell in line.strip("|").split(" | "))))
    return rows


def places_of(text: str) -> list[str]:
    """Each once, in order."""
    return list(dict.fromkeys(PLACE.findall(text)))


def check_place(place: str) -> None:
    """Raises AssertionError or FileNotFoundError where it is not there."""
    path, _, name = place.partition("::")
    text = (ROOT / path).read_text(encoding="utf-8")
    assert text.strip(), f"{path} is empty"
    if name:
        defined = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
        assert name in {each.name for each in ast.walk(ast.parse(text)) if isinstance(each, defined)}, f"{path} has no {name}"
