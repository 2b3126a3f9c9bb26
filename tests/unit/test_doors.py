"""Banned APIs are found in the pure packages and nowhere else, and no package imports against the
contracts.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
LAYERS = ["equipoise.replay", "equipoise.statemachine", "equipoise.assignors", "equipoise.events"]  # each may import those to its right

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
def test_every_offence_is_found_in_a_pure_package(filename: str) -> None:
    silent = [offence for offence in OFFENCES if "TID251" not in ruff_codes(offence, filename)]
    assert silent == []


@pytest.mark.parametrize("filename", OTHER_FILES)
def test_the_other_packages_may_touch_the_world(filename: str) -> None:
    assert "TID251" not in ruff_codes("\n".join(OFFENCES), filename)


def test_a_pure_package_may_do_what_is_pure() -> None:
    assert "TID251" not in ruff_codes("import hashlib\nimport sys\nimport zlib\n\nprint_me = sys.maxsize, hashlib, zlib", "events/x.py")


def pure_files() -> list[Path]:
    world = [ROOT / "events" / "log", ROOT / "assignors" / "adapters"]
    found = sorted(path for room in ("events", "statemachine", "assignors") for path in (ROOT / room).rglob("*.py"))
    return [path for path in found if not any(path.is_relative_to(folder) for folder in world)]


def impure_builtins(source: str) -> list[str]:
    """Uses of an impure builtin, as ``line: name``. ruff's banned APIs see imported names only."""
    names = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
    return [f"{name.lineno}: {name.id}" for name in names if name.id in IMPURE_BUILTINS]


def test_no_impure_builtin_in_a_pure_package() -> None:
    assert impure_builtins("x = sorted(y, key=hash)\nwith open('x'):\n    pass") == ["1: hash", "2: open"]
    assert len(pure_files()) > 8
    assert {str(path.relative_to(ROOT)): found for path in pure_files() if (found := impure_builtins(path.read_text()))} == {}


def contracts() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    return found


def front() -> list[str]:
    """The modules of the front: all of `equipoise` but the linked packages and what every package
    needs.
    """
    found = [path.stem for path in (ROOT / "equipoise").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()]
    modules = [f"equipoise.{name}" for name in found if name not in ("__init__", "__main__", "_guard")]
    return sorted(module for module in modules if module not in LAYERS)


def test_import_contracts_name_every_package() -> None:
    by_id = {contract["id"]: contract for contract in contracts()}
    assert by_id["doors"]["layers"] == LAYERS
    assert sorted(by_id["front"]["source_modules"]) == sorted(LAYERS)
    assert by_id["front"]["forbidden_modules"] == front()
    assert by_id["nobody-needs-the-tests"]["forbidden_modules"] == ["tests", "bench"]


def lint_imports(cwd: Path) -> subprocess.CompletedProcess[str]:
    # Not `python -m importlinter`: it has no such module. The tool puts the working directory first
    # on the import path itself.
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()", "--no-cache"]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)


def test_import_contracts_are_kept() -> None:
    done = lint_imports(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("equipoise.events", "import equipoise.statemachine"),
        ("equipoise.assignors", "import equipoise.replay"),
        ("equipoise.statemachine", "import equipoise.reference_model"),
        ("equipoise.reference_model", "import equipoise.scenarios"),
        ("equipoise.replay", "import tests.conftest"),
        ("equipoise.assignors.common", "import equipoise.assignors.learner"),
        ("equipoise.assignors.cooperative", "import equipoise.assignors.lag_aware"),
        ("equipoise.replay.timelines", "import equipoise.replay.simulation"),
        ("equipoise.replay.simulation", "import equipoise.replay.whatif"),
        ("equipoise.replay.timelines", "import equipoise.replay.whatif"),
        ("equipoise.replay.whatif", "import equipoise.replay.importers"),
        ("equipoise.scenarios", "import equipoise.replay.whatif"),
    ],
)
def test_an_import_against_the_contracts_is_found(tmp_path: Path, module: str, line: str) -> None:
    """The same contracts, over empty packages with one wrong import."""
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    keys = ("layers", "modules", "source_modules", "forbidden_modules")
    named = {name for contract in contracts() for key in keys for name in contract.get(key, ())}
    for name in sorted({"equipoise", *named} - {"tests", "bench"}):
        package = tmp_path.joinpath(*name.split("."))
        package.mkdir()
        (package / "__init__.py").write_text("")
    assert lint_imports(tmp_path).returncode == 0, lint_imports(tmp_path).stdout
    tmp_path.joinpath(*module.split("."), "__init__.py").write_text(line + "\n")
    done = lint_imports(tmp_path)
    assert done.returncode == 1, done.stdout
    assert "BROKEN" in done.stdout


@pytest.mark.parametrize("layer", LAYERS)
def test_package_imported_by_the_name_of_its_folder_is_refused(layer: str) -> None:
    """From a working directory that is the repository there would be two of every class."""
    folder = layer.rpartition(".")[2]
    done = subprocess.run([sys.executable, "-c", f"import {folder}"], capture_output=True, text=True, cwd=ROOT, check=False)
    assert f"ImportError: {folder!r} is not imported by this name; import {layer!r}" in done.stderr


@pytest.mark.parametrize("folder", ["events", "bench"])
def test_import_by_the_name_of_a_folder_fails_the_check(folder: str) -> None:
    assert "TID253" in ruff_codes("from statemachine.machine import GroupMachine", f"{folder}/x.py")
