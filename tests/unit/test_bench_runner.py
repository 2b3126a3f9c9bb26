"""`python -m bench`: finds the benchmarks, prints their rows as a table or as one JSON document,
refuses a name it does not have.
"""

from __future__ import annotations

import importlib
import inspect
import json
import sys
from pathlib import Path
from typing import get_type_hints

import pytest
from click.testing import CliRunner

from bench.__main__ import Row, bench, benchmarks, misses_goal

ROOT = Path(__file__).parents[2]


def test_benchmarks_are_found_by_their_file_names(tmp_path: Path) -> None:
    for name in ("fold_bench.py", "assign_bench.py", "live_latency_bench.py", "helpers.py"):
        (tmp_path / name).write_text("")
    assert benchmarks(tmp_path) == ["assign", "fold", "live-latency"]


@pytest.mark.parametrize("name", benchmarks(ROOT / "bench"))
def test_benchmark_has_a_run_without_arguments_that_returns_rows(name: str) -> None:
    module = importlib.import_module(f"bench.{name.replace('-', '_')}_bench")
    assert get_type_hints(module.run) == {"return": list[Row]}
    assert inspect.signature(module.run).parameters == {}


@pytest.mark.parametrize(
    ("value", "note", "missed"),
    [
        (8.0, "3 us over 1 us; goal: at most 8", False),
        (8.1, "3 us over 1 us; goal: at most 8", True),
        (0.5, "goal: at least 0.5", False),
        (0.49, "goal: at least 0.5", True),
        (0.9, "goal: 0.9 to 1.1", False),
        (1.2, "goal: 0.9 to 1.1", True),
        (0.8, "goal: 0.9 to 1.1", True),
        (99.0, "for orientation", False),
    ],
)
def test_number_is_compared_with_its_goal(value: float, note: str, missed: bool) -> None:
    assert misses_goal(value, note) is missed


def test_goal_in_another_form_is_refused() -> None:
    with pytest.raises(ValueError, match="write a goal as"):
        misses_goal(1.0, "the goal is 1")


def test_missed_goal_ends_the_command_with_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.__main__.FOLDER", tmp_path)
    monkeypatch.setattr("bench.__path__", [str(tmp_path)])
    for name, value in (("kept", 2.0), ("missed", 2.5)):
        (tmp_path / f"{name}_bench.py").write_text(f"def run():\n    return [('one over two', {value}, 'goal: at most 2')]\n")
        monkeypatch.delitem(sys.modules, f"bench.{name}_bench", raising=False)
    assert CliRunner().invoke(bench, ["kept"]).exit_code == 0
    result = CliRunner().invoke(bench, [])
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == "goal missed: missed: one over two: 2.5 (goal: at most 2)"


def test_rows_are_printed_as_a_table_and_as_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "two_bench.py").write_text("def run():\n    return [('one over two', 0.5, 'at most 1'), ('rounds', 5, '')]\n")
    monkeypatch.setattr("bench.__main__.FOLDER", tmp_path)
    monkeypatch.setattr("bench.__path__", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "bench.two_bench", raising=False)
    result = CliRunner().invoke(bench, ["--json"])
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["environment"].startswith("Python 3.")
    assert document["rows"][0] == {"benchmark": "two", "measure": "one over two", "value": 0.5, "note": "at most 1"}
    lines = CliRunner().invoke(bench, ["two"]).stdout.splitlines()
    assert lines[1].split() == ["benchmark", "measure", "value", "note"]
    assert len(lines) == 4


def test_live_benchmarks_run_only_when_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.__main__.FOLDER", tmp_path)
    monkeypatch.setattr("bench.__path__", [str(tmp_path)])
    for name in ("three", "live_four"):
        (tmp_path / f"{name}_bench.py").write_text(f"def run():\n    return [('{name}', 1, '')]\n")
        monkeypatch.delitem(sys.modules, f"bench.{name}_bench", raising=False)

    def ran(*arguments: str) -> list[str]:
        return [row["measure"] for row in json.loads(CliRunner().invoke(bench, [*arguments, "--json"]).stdout)["rows"]]

    assert ran() == ["three"]
    assert ran("--live") == ["live_four"]
    assert ran("live-four", "three") == ["live_four", "three"]


def test_unknown_benchmark_is_refused_with_the_known_names() -> None:
    result = CliRunner().invoke(bench, ["nothing"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("equipoise: 'nothing' is no benchmark; there are: ")
