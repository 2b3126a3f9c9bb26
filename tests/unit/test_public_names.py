"""The public names: each loads, and has a docstring."""

from __future__ import annotations

import ast
import inspect
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import equipoise
from equipoise import replay
from equipoise.log import open_log
from equipoise.replay import spark
from equipoise.replay.importers.kafka_streams import import_history

ROOT = Path(__file__).parents[2]
PACKAGES = (equipoise, replay, spark)
each_package = pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)


def summary(value: object) -> str:
    """The first sentence of a docstring, on one line."""
    text = " ".join((inspect.getdoc(value) or "").partition("\n\n")[0].split())
    return re.split(r"(?<=[.:]) (?=[A-Z`])", text)[0].rstrip(".:")


@each_package
def test_public_names_each_loads_and_has_a_docstring_of_its_own(package: ModuleType) -> None:
    values = {name: getattr(package, name) for name in package.__all__}
    assert [name for name, value in values.items() if not summary(value)] == []
    assert [name for name, value in values.items() if value.__name__ != name] == []
    assert set(values) <= set(dir(package))
    with pytest.raises(AttributeError, match="nothing_of_that_name"):
        package.nothing_of_that_name  # noqa: B018


@each_package
def test_public_names_for_type_checkers_are_those_that_load(package: ModuleType) -> None:
    (block,) = [each for each in ast.parse(inspect.getsource(package)).body if isinstance(each, ast.If)]
    imported = {
        name.asname: each.module for each in block.body if isinstance(each, ast.ImportFrom) for name in each.names if name.asname == name.name
    }
    assert imported == package.PUBLIC_NAMES


@each_package
def test_public_names_shadow_no_module(package: ModuleType) -> None:
    assert {module.name for module in pkgutil.iter_modules(package.__path__)} & set(package.__all__) == set()


def test_public_names_of_two_packages_differ() -> None:
    names = [name for package in PACKAGES for name in package.__all__]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("package", ["equipoise", "equipoise.replay"])
def test_import_loads_neither_the_solver_nor_kafka_nor_spark(package: str) -> None:
    heavy = ("ortools", "numpy", "aiokafka", "faust", "pyarrow", "pyspark", "hypothesis")
    code = f"import sys, {package}; print(sorted(set({heavy!r}) & set(sys.modules)))"
    answer = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert answer.stdout.strip() == "[]"


def test_replay_functions_take_a_location_or_an_open_log(tmp_path: Path) -> None:
    path = tmp_path / "recorded.db"
    with open_log(path, "w") as log, log.transaction():
        import_history(ROOT / "replay" / "data" / "rolling", log)
    with open_log(path) as log:
        assert replay.explain(log, "0_3") == replay.explain(path, equipoise.TaskId(0, 3))
        assert replay.show(log) == replay.show(str(path), group="orders")
        assert replay.read_recorded_inputs(log) == replay.read_recorded_inputs(path, group="orders")
    assert replay.show(path, at_offset=50).offset == 50


def test_replay_simulate_without_settings_does_what_the_command_does(tmp_path: Path) -> None:
    from click.testing import CliRunner

    from equipoise.cli import main

    recorded, by_command, by_function = tmp_path / "recorded.db", tmp_path / "command.jsonl", tmp_path / "function.jsonl"
    assert CliRunner().invoke(main, ["import", "kafka-streams", "rolling", "--to", str(recorded)]).exit_code == 0
    assert CliRunner().invoke(main, ["what-if", str(recorded), "--to", str(by_command)]).exit_code == 0
    with open_log(by_function, "w") as log, log.transaction():
        replay.simulate(recorded, to=log)
    assert by_function.read_bytes() == by_command.read_bytes()
