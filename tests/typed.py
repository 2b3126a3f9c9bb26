"""Blocks of code of the written pages, and shells that run them as a reader types them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

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


def environment_of(**more: str) -> dict[str, str]:
    """What a reader's shell has: the programs of the `.venv`, and `more`."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**os.environ, "NO_COLOR": "1", "COLUMNS": "200", "PYTHONPATH": str(ROOT), "PATH": path, **more}


def run(commands: str, folder: Path, timeout_s: float = 300, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs commands in one shell, which goes on after an error, as a reader's does."""
    return subprocess.run(
        ["bash", "-c", commands], cwd=folder, env=environment_of(**environment), capture_output=True, text=True, check=False, timeout=timeout_s
    )


class Terminal:
    """One command, which a reader has typed into a shell of its own. What it prints, errors
    included, is in `folder`.
    """

    def __init__(self, command: str, folder: Path, **environment: str) -> None:
        self.command = command
        self._out = Path(tempfile.mkstemp(prefix="terminal-", suffix=".txt", dir=folder)[1])
        with open(self._out, "w") as out:
            self.process = subprocess.Popen(["bash", "-c", f"exec {command}"], cwd=folder, env=environment_of(**environment), stdout=out, stderr=out)

    @property
    def said(self) -> str:
        return self._out.read_text(encoding="utf-8")

    def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Returns the exit code, also of one that has ended by itself."""
        if self.process.poll() is None:
            self.process.send_signal(how)
        return self.process.wait(90)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.end(signal.SIGKILL)
