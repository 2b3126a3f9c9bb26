"""`make check` finds banned APIs in the pure packages, and imports against the contracts."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tools.packages import LINKED

ROOT = Path(__file__).parents[2]
PURE = ["events", "statemachine", "statemachine/deep", "assignors"]
PURE_FILES = [
    "equipoise/member/tasks/commit_schedule.py",
    *(f"equipoise/kafka/consumer/{name}.py" for name in ("batches", "core", "fetch_session", "reading_orders")),
    *(
        f"equipoise/kafka/producer/{name}.py"
        for name in (
            "batch_queues",
            "core",
            "errors",
            "states",
            "record_batches",
            "sending_orders",
            "transaction_manager",
        )
    ),
]
IMPURE = ["replay", "equipoise/cli", "tests/unit", "bench"]

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


@pytest.fixture(scope="module")
def codes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """File -> codes that ruff finds in it with this repository's settings. One run for all files."""
    folder = tmp_path_factory.mktemp("ruff")
    (folder / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    sources = {f"{package}/offence_{number}.py": offence for package in PURE for number, offence in enumerate(OFFENCES)}
    sources |= {f"{package}/offences.py": "\n".join(OFFENCES) for package in IMPURE}
    sources["events/allowed.py"] = "import hashlib\nimport sys\nimport zlib\n\nprint_me = sys.maxsize, hashlib, zlib"
    sources |= dict.fromkeys(PURE_FILES, "import time")
    sources |= {f"{package}/by_folder.py": "from statemachine.machine import GroupMachine" for package in ("events", "bench")}
    for name, source in sources.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(source + "\n")
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--output-format=json", "."]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    assert done.returncode == 1, done.stderr
    found: dict[str, set[str]] = {name: set() for name in sources}
    for finding in json.loads(done.stdout):
        found[str(Path(finding["filename"]).relative_to(folder.resolve()))].add(finding["code"])
    return found


@pytest.mark.parametrize("package", PURE)
def test_banned_api_in_a_pure_package_is_found(codes: dict[str, set[str]], package: str) -> None:
    assert [offence for number, offence in enumerate(OFFENCES) if "TID251" not in codes[f"{package}/offence_{number}.py"]] == []


@pytest.mark.parametrize("file", PURE_FILES)
def test_banned_api_in_a_pure_file_is_found(codes: dict[str, set[str]], file: str) -> None:
    assert "TID251" in codes[file]


@pytest.mark.parametrize("package", IMPURE)
def test_banned_api_in_another_package_is_allowed(codes: dict[str, set[str]], package: str) -> None:
    assert "TID251" not in codes[f"{package}/offences.py"]


def test_pure_import_in_a_pure_package_is_allowed(codes: dict[str, set[str]]) -> None:
    assert "TID251" not in codes["events/allowed.py"]


def pure_files() -> list[Path]:
    found = (path for package in ("events", "statemachine", "assignors") for path in (ROOT / package).rglob("*.py"))
    return sorted([*found, *(ROOT / each for each in PURE_FILES)])


def impure_builtins(source: str) -> list[str]:
    """Uses of an impure builtin, as ``line: name``. ruff's banned APIs see imported names only."""
    names = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
    return [f"{name.lineno}: {name.id}" for name in names if name.id in IMPURE_BUILTINS]


def test_pure_package_has_no_impure_builtin() -> None:
    assert impure_builtins("x = sorted(y, key=hash)\nwith open('x'):\n    pass") == ["1: hash", "2: open"]
    assert len(pure_files()) > 8
    assert {str(path.relative_to(ROOT)): found for path in pure_files() if (found := impure_builtins(path.read_text()))} == {}


HOST_PACKAGES = {"console", "folding", "lead", "member", "operations", "witness", "worker"}
NO_HOSTS = {
    "cli": "the front: its loop is that of a command",
    "faust": "in somebody else's loop, by Faust's own client",
    "hosting": "the runtime itself",
    "kafka": "the client",
    "log": "stores: they write files, and have a loop of their own beside a plain caller",
    "replay": "the recorder asks live brokers",
    "start": "the front",
    "testing": "the simulation itself",
}
"""Package that imports asyncio and is no host -> why its clocks and threads are its own."""
REAL_ONLY = {"doctor", "child.py", "admission.py", "pages.py"}
"""The doctor examines real clusters with requests of its own. The witness' child must stay small,
and loads neither asyncio nor a client. Pages are drawn on threads, behind a secret key.
"""
OF_THE_RUNTIME = {"aiokafka", "concurrent", "datetime", "fcntl", "random", "secrets", "threading", "time", "uuid"}
ALLOWED_IN_HOSTS = {
    "aiokafka.errors",
    "aiokafka.partitioner",
    "aiokafka.protocol.commit",
    "aiokafka.protocol.group",
    "threading.Lock",
    "uuid.UUID",
    "uuid.uuid5",
}
"""They reach no broker and no clock."""
ADAPTER = {
    "admin/shell.py",
    "aiokafka_lifecycle.py",
    "aiokafka_metadata.py",
    "aiokafka_structs.py",
    "aiokafka_wire.py",
    "asking.py",
    "consumer/batches.py",
    "consumer/leader_questions.py",
    "consumer/requests.py",
    "declared_requests.py",
    "group_coordinators.py",
    "group_requests.py",
    "metadata_requests.py",
    "prepared_append.py",
    "producer/requests.py",
    "producer/record_batches.py",
    "transaction_requests.py",
}
OTHER_THREADS = {"new_event_loop", "run_in_executor", "to_thread"}


def offences_of_host(source: str) -> list[str]:
    """Clocks, random ids, threads and aiokafka, as ``line: name``: they are the runtime's and the
    adapter's, so that the simulation can replace them.
    """
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [node.module if node.module in ALLOWED_IN_HOSTS else f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name != "threading"]  # its uses are seen below
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            names = [f"threading.{node.attr}" if node.attr in OTHER_THREADS else f"{node.value.id}.{node.attr}"]
        else:
            continue
        found += [f"{node.lineno}: {name}" for name in names if name.split(".")[0] in OF_THE_RUNTIME and name not in ALLOWED_IN_HOSTS]
    return found


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("import time", "time"),
        ("from time import monotonic", "time.monotonic"),
        ("import uuid", "uuid"),
        ("import threading\nthreading.Thread(target=print)", "threading.Thread"),
        ("from threading import Thread", "threading.Thread"),
        ("import asyncio\nasyncio.to_thread(print)", "threading.to_thread"),
        ("from aiokafka import AIOKafkaProducer", "aiokafka.AIOKafkaProducer"),
        ("from aiokafka.errors import KafkaError\nimport threading\nlock = threading.Lock()", None),
    ],
)
def test_offence_of_a_host_is_found(source: str, name: str | None) -> None:
    assert [each.split(": ")[1] for each in offences_of_host(source)] == ([] if name is None else [name])


def test_each_package_that_imports_asyncio_is_a_host() -> None:
    imports = re.compile(r"^\s*(import asyncio|from asyncio)", re.MULTILINE)
    names = {path.stem if path.suffix else path.name: path for path in (ROOT / "equipoise").iterdir() if path.suffix == ".py" or path.is_dir()}
    found = {
        name
        for name, path in names.items()
        if any(imports.search(each.read_text()) for each in ([path] if path.is_file() else path.resolve().rglob("*.py")))
    }
    assert found == HOST_PACKAGES | set(NO_HOSTS)


def test_host_takes_clocks_threads_and_clients_from_its_runtime_and_connection() -> None:
    found_in = sorted(path for package in HOST_PACKAGES for path in (ROOT / "equipoise" / package).rglob("*.py"))
    files = [path for path in found_in if REAL_ONLY.isdisjoint(path.parts)]
    assert len(files) > 20
    assert {str(path.relative_to(ROOT)): found for path in files if (found := offences_of_host(path.read_text()))} == {}


def test_log_in_kafka_reaches_brokers_by_the_client_alone() -> None:
    files = [path for package in ("kafka", "log") for path in (ROOT / "equipoise" / package).rglob("*.py")]
    reach = [path for path in files if any("aiokafka" in each for each in offences_of_host(path.read_text()))]
    assert {str(path.relative_to(ROOT / "equipoise")) for path in reach} == {f"kafka/{name}" for name in ADAPTER}


def contracts() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    return found


def test_contracts_keep_the_tests_out_of_the_product() -> None:
    by_id = {contract["id"]: contract for contract in contracts()}
    assert by_id["tests"]["forbidden_modules"] == ["bench", "tests", "tools"]
    assert by_id["layers"]["exhaustive"], "a package without a place in the layers fails the check"


def lint_imports(cwd: Path) -> subprocess.CompletedProcess[str]:
    # Not `python -m importlinter`: it has no such module. The tool puts the working directory first
    # on the import path itself.
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()", "--no-cache"]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)


@pytest.fixture(scope="module")
def empty_packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Empty packages with the names of the real ones, and the contracts, which they keep."""
    folder = tmp_path_factory.mktemp("contracts")
    (folder / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    keys = ("layers", "modules", "source_modules", "forbidden_modules")
    named = {
        f"{contract.get('containers', [''])[0]}.{name}".lstrip(".")
        for contract in contracts()
        for key in keys
        for value in contract.get(key, ())
        for name in re.split(r" [:|] ", value)
    }
    for name in sorted({"equipoise", *named} - {"bench", "tests", "tools"}):
        package = folder.joinpath(*name.split("."))
        package.mkdir()
        (package / "__init__.py").write_text("")
    done = lint_imports(folder)
    assert done.returncode == 0, done.stdout
    return folder


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("equipoise.events", "import equipoise.statemachine"),
        ("equipoise.assignors", "import equipoise.replay"),
        ("equipoise.kafka", "import equipoise.statemachine"),
        ("equipoise.member", "import equipoise.worker"),
        ("equipoise.lead", "import equipoise.worker"),
        ("equipoise.lead", "import equipoise.operations"),
        ("equipoise.faust", "import equipoise.worker"),
        ("equipoise.console", "import equipoise.cli"),
        ("equipoise.replay", "import tests.conftest"),
        ("equipoise.assignors.common", "import equipoise.assignors.learner"),
        ("equipoise.assignors.cooperative", "import equipoise.assignors.lag_aware"),
        ("equipoise.replay.timelines", "import equipoise.replay.simulation"),
        ("equipoise.replay.simulation", "import equipoise.replay.whatif"),
        ("equipoise.replay.timelines", "import equipoise.replay.whatif"),
        ("equipoise.replay.importers", "import equipoise.replay.whatif"),
        ("equipoise.replay.wording", "import equipoise.replay.drawing"),
    ],
)
def test_import_against_the_contracts_is_found(empty_packages: Path, tmp_path: Path, module: str, line: str) -> None:
    shutil.copytree(empty_packages, tmp_path, dirs_exist_ok=True)
    tmp_path.joinpath(*module.split("."), "__init__.py").write_text(line + "\n")
    done = lint_imports(tmp_path)
    assert done.returncode == 1, done.stdout
    assert "BROKEN" in done.stdout


@pytest.mark.parametrize("folder", LINKED)
def test_package_imported_by_the_name_of_its_folder_is_refused(folder: str) -> None:
    """With the repository as working directory every class would exist twice. Other folders are not
    at the top.
    """
    layer = f"equipoise.{folder}"
    done = subprocess.run([sys.executable, "-c", f"import {folder}"], capture_output=True, text=True, cwd=ROOT, check=False)
    assert f"ImportError: {folder!r} is not imported by this name; import {layer!r}" in done.stderr


@pytest.mark.parametrize("package", ["events", "bench"])
def test_import_by_the_name_of_a_folder_fails_the_check(codes: dict[str, set[str]], package: str) -> None:
    assert "TID253" in codes[f"{package}/by_folder.py"]
