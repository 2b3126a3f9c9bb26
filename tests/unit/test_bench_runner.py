"""`python -m bench`: finds the benchmarks, prints their rows as a table or as one JSON document,
refuses a name it does not have.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench.__main__ import bench, benchmarks

ROOT = Path(__file__).parents[2]


def test_benchmarks_are_found_by_their_file_names(tmp_path: Path) -> None:
    for name in ("fold_bench.py", "assign_bench.py", "live_latency_bench.py", "helpers.py"):
        (tmp_path / name).write_text("")
    assert benchmarks(tmp_path) == ["assign", "fold", "live-latency"]


@pytest.mark.parametrize("name", benchmarks(ROOT / "bench"))
def test_every_benchmark_can_be_run(name: str) -> None:
    assert callable(importlib.import_module(f"bench.{name.replace('-', '_')}_bench").run)


def test_rows_come_as_a_table_and_as_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_those_on_a_real_kafka_are_run_only_when_they_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_an_unknown_name_is_refused_with_the_names_there_are() -> None:
    result = CliRunner().invoke(bench, ["nothing"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("equipoise: 'nothing' is no benchmark; there are: ")
