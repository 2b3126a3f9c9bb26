"""The table of all assignors on both recorded runs, in docs/assignors.md, is what `equipoise compare` prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from assignors import registry
from equipoise.cli import main

PAGE = Path(__file__).parents[2] / "docs" / "assignors.md"
BLOCK = re.compile(r"(<!-- made by equipoise compare -->\n```\n)(.*?)(```\n<!-- end -->)", re.DOTALL)


def test_the_table_of_all_assignors_is_the_one_that_compare_prints(rewrite: bool):
    done = CliRunner().invoke(main, ["compare", "--quiet"])
    assert done.exit_code == 0, done.output
    rows = [line.split()[0] for line in done.stdout.splitlines()[2:]]
    assert {name for name, _ in registry.available()} <= {*rows}
    assert "could not lead" not in done.stdout
    text = PAGE.read_text(encoding="utf-8")
    found = BLOCK.search(text)
    assert found is not None
    if rewrite:
        PAGE.write_text(BLOCK.sub(lambda match: match[1] + done.stdout + match[3], text), encoding="utf-8")
    elif found[2] != done.stdout:
        pytest.fail("docs/assignors.md has another table than `equipoise compare` prints: pytest --rewrite tests/unit/test_side_by_side.py")
