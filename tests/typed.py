"""Blocks of code of the written pages, and shells that run them as a reader types them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import attrs

ROOT = Path(__file__).parents[1]
_BLOCK = re.compile(r"^```(?P<kind>[^\n]*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
_COMMENT = re.compile(r"<!--(?! made by).*?-->", re.DOTALL)


@attrs.frozen(kw_only=True)
class Block:
    """`kind`: the language behind the fence; "": none. `section`: the heading above it."""

    page: str
    section: str
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}: {self.section}: {self.text.partition(chr(10))[0][:60]}"


def blocks(page: str) -> list[Block]:
    """The blocks of a page, in order. `page`: its path in the repository."""
    text = _COMMENT.sub("", (ROOT / page).read_text(encoding="utf-8"))
    found = []
    for match in _BLOCK.finditer(text):
        outside = _BLOCK.sub("", text[: match.start()])
        headings = re.findall(r"^#+ (.+)$", outside, re.MULTILINE)
        found.append(Block(page=page, section=headings[-1] if headings else "", kind=match["kind"], text=match["text"]))
    return found


def clone(folder: Path) -> Path:
    """A folder that looks like a fresh clone with its `.venv`, where a page may write to `out`."""
    for name in (".venv", "Makefile", "bench", "constraints.txt", "docs", "examples", "pyproject.toml", "replay", "tests", "tools"):
        (folder / name).symlink_to(ROOT / name)
    return folder


def run(commands: str, folder: Path, timeout_s: float = 300, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs commands in one shell, which goes on after an error, as a reader's does."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    everything = {**os.environ, "NO_COLOR": "1", "COLUMNS": "200", "PYTHONPATH": str(ROOT), "PATH": path, **environment}
    return subprocess.run(
        ["bash", "-c", commands], cwd=folder, env=everything, capture_output=True, text=True, check=False, timeout=timeout_s
    )  # fmt: skip
