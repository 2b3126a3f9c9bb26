"""`python -m tests.support.scenarios`: prints the output of files; 1 and a diff where it
differs from the file; 2 for a file that cannot be run.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.support.scenarios.__main__ import scenario

SCENARIOS = Path(__file__).parents[2] / "scenarios"
EXAMPLE = (SCENARIOS / "high_availability" / "cold_joiner.txt").read_text(encoding="utf-8")
CHANGED = EXAMPLE.replace("gen=1 probing=no", "gen=1 probing=yes")


def run(*args: str) -> Result:
    return CliRunner().invoke(scenario, args)


def test_scenario_that_holds_is_printed_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "one.txt"
    path.write_text(EXAMPLE, encoding="utf-8")
    result = run(str(path))
    assert (result.exit_code, result.stdout) == (0, EXAMPLE)
    assert result.stderr.endswith("1 of 1 scenarios hold\n")


def test_scenario_that_differs_prints_a_diff(tmp_path: Path) -> None:
    path = tmp_path / "one.txt"
    path.write_text(CHANGED, encoding="utf-8")
    result = run(str(tmp_path))
    assert result.exit_code == 1
    assert "--> AssignmentIssued gen=1 probing=yes\n+-> AssignmentIssued gen=1 probing=no" in result.stdout
    assert path.read_text(encoding="utf-8") == CHANGED


def test_scenario_without_golden_text_exits_0(tmp_path: Path) -> None:
    path = tmp_path / "one.txt"
    path.write_text("group\ntasks stateful=(0_0)\njoin m1\n----\n", encoding="utf-8")
    result = run(str(path))
    assert result.exit_code == 0
    assert result.stdout.endswith("----\n#2 MemberJoined m1\n-> AssignmentIssued gen=1 probing=no\nm1 gen=1 STABLE active=(0_0)\n")


def test_directives_are_listed_with_their_arguments() -> None:
    result = run("--directives")
    assert result.exit_code == 0
    assert "\njoin MEMBER...\n    MemberJoined, one for each member.\n    incarnation=N  number of the incarnation" in result.stdout
    assert "    at_ms=N  append time of the first fact" in result.stdout


def test_scenario_without_files_says_what_to_give() -> None:
    result = run()
    assert result.exit_code == 2
    assert "--directives" in result.stderr


def test_rewrite_updates_the_file_and_is_refused_in_ci(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "one.txt"
    path.write_text(CHANGED, encoding="utf-8")
    monkeypatch.setenv("CI", "true")
    assert run("--rewrite", str(path)).exit_code == 2
    assert path.read_text(encoding="utf-8") == CHANGED
    monkeypatch.delenv("CI")
    assert run("--rewrite", str(path)).exit_code == 0
    assert path.read_text(encoding="utf-8") == EXAMPLE


def test_scenario_invalid_file_is_an_input_error(tmp_path: Path) -> None:
    path = tmp_path / "one.txt"
    path.write_text("jion m1\n----\n", encoding="utf-8")
    result = run(str(path))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"equipoise: {path}:1: unknown directive")
