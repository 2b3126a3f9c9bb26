"""docs/faults.md holds: every test and scenario that it names exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMED = re.findall(r"`(tests/[^`]+)`", (ROOT / "docs" / "faults.md").read_text())


def test_every_fault_is_held_by_something() -> None:
    rows = [line for line in (ROOT / "docs" / "faults.md").read_text().splitlines() if line.startswith("| ") and not line.startswith("| fault")]
    assert len(rows) == 21
    assert [row for row in rows if "`tests/" not in row] == []


@pytest.mark.parametrize("named", NAMED)
def test_what_holds_a_fault_exists(named: str) -> None:
    path, _, name = named.partition("::")
    text = (ROOT / path).read_text()
    if path.endswith(".py"):
        assert name in {each.name for each in ast.walk(ast.parse(text)) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
    else:
        assert text.strip()
