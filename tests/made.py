"""Blocks of the written pages that a command makes: golden texts, which `--rewrite`
replaces.

A block stands between ``<!-- made by `make pictures`: NAME -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

BLOCK = re.compile(r"(<!-- made by `make pictures`: (\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def hold(page: Path, made: Mapping[str, str], rewrite: bool) -> None:
    """Compares the page's blocks with what was made, name -> text; or writes them anew."""
    text = page.read_text(encoding="utf-8")
    assert sorted(name for _, name, _, _ in BLOCK.findall(text)) == sorted(made)
    wanted = BLOCK.sub(lambda block: f"{block[1]}\n{made[block[2]].strip()}\n\n{block[4]}", text)
    if rewrite:
        page.write_text(wanted, encoding="utf-8")
    elif text != wanted:
        pytest.fail(f"{page.name} is not what is computed now: run `make pictures`, and look at what it changed\n" + "\n".join(made.values()))
