"""The walls hold: banned APIs bite in the pure rooms and nowhere else, and no room imports against the doors."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ["equipoise", "replay", "statemachine", "assignors", "events"]  # a room may import those to its right

PURE_FILES = ["events/x.py", "statemachine/x.py", "statemachine/deep/x.py", "assignors/x.py"]
OTHER_FILES = ["events/log/x.py", "assignors/adapters/x.py", "replay/x.py", "equipoise/cli/x.py", "tests/unit/x.py", "bench/x.py"]

OFFENCES = [
    "import time",
    "from time import monotonic",
    "import datetime",
    "from datetime import datetime",
    "import random",
    "from secrets import token_hex",
    "import uuid",
    "import numpy.random",
    "import numpy\n\nnumpy.random.default_rng(1)",
    "import os",
    "from os import environ",
    "from os.path import exists",
    "import sys\n\nsys.stdout.flush()",
    "import sys\n\nsys.argv.pop()",
    "import socket",
    "import subprocess",
    "import threading",
    "import asyncio",
    "from concurrent.futures import ThreadPoolExecutor",
    "from pathlib import Path",
    "import sqlite3",
    "import logging",
    "import builtins\n\nbuiltins.open('x')",
]

IMPURE_BUILTINS = {"__import__", "breakpoint", "eval", "exec", "hash", "id", "input", "open", "print"}  # hash and id differ from run to run


def ruff_codes(source: str, filename: str) -> list[str]:
    """Codes of what ruff finds in `source`, were it the file `filename` of this repository."""
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--output-format=json", "--stdin-filename", filename, "-"]
    done = subprocess.run(command, input=source + "\n", capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode in (0, 1), done.stderr
    return [finding["code"] for finding in json.loads(done.stdout)]


@pytest.mark.parametrize("filename", PURE_FILES)
def test_every_offence_is_found_in_a_pure_room(filename: str) -> None:
    silent = [offence for offence in OFFENCES if "TID251" not in ruff_codes(offence, filename)]
    assert silent == []


@pytest.mark.parametrize("filename", OTHER_FILES)
def test_the_other_rooms_may_touch_the_world(filename: str) -> None:
    assert "TID251" not in ruff_codes("\n".join(OFFENCES), filename)


def test_a_pure_room_may_do_what_is_pure() -> None:
    assert "TID251" not in ruff_codes("import hashlib\nimport sys\nimport zlib\n\nprint_me = sys.maxsize, hashlib, zlib", "events/x.py")


def pure_files() -> list[Path]:
    world = [ROOT / "events" / "log", ROOT / "assignors" / "adapters"]
    found = sorted(path for room in ("events", "statemachine", "assignors") for path in (ROOT / room).rglob("*.py"))
    return [path for path in found if not any(path.is_relative_to(folder) for folder in world)]


def impure_builtins(source: str) -> list[str]:
    """Uses of an impure builtin, as ``line: name``. ruff's banned APIs see imported names only."""
    names = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
    return [f"{name.lineno}: {name.id}" for name in names if name.id in IMPURE_BUILTINS]


def test_no_impure_builtin_in_a_pure_room() -> None:
    assert impure_builtins("x = sorted(y, key=hash)\nwith open('x'):\n    pass") == ["1: hash", "2: open"]
    assert len(pure_files()) > 8
    assert {str(path.relative_to(ROOT)): found for path in pure_files() if (found := impure_builtins(path.read_text()))} == {}


def test_the_door_contracts_exist() -> None:
    contracts = {c["id"]: c for c in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]}
    assert contracts["doors"]["layers"] == ROOMS
    assert sorted(contracts["nobody-needs-the-tests"]["source_modules"]) == sorted(ROOMS)
    assert contracts["nobody-needs-the-tests"]["forbidden_modules"] == ["tests", "bench"]


def lint_imports(cwd: Path) -> subprocess.CompletedProcess[str]:
    # Not `python -m importlinter`: it has no such module. The tool puts the working directory first on the import path itself.
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()", "--no-cache"]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)


def test_the_doors_are_kept() -> None:
    done = lint_imports(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("room", "line"),
    [("events", "import statemachine"), ("assignors", "import replay"), ("statemachine", "import equipoise"), ("replay", "import tests.conftest")],
)
def test_an_import_against_the_doors_is_found(tmp_path: Path, room: str, line: str) -> None:
    """The same contracts, over a house of empty rooms with one wrong import."""
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    for name in ROOMS:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
    assert lint_imports(tmp_path).returncode == 0, lint_imports(tmp_path).stdout
    (tmp_path / room / "__init__.py").write_text(line + "\n")
    done = lint_imports(tmp_path)
    assert done.returncode == 1, done.stdout
    assert "BROKEN" in done.stdout
