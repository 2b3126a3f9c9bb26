"""`equipoise compare`: a row for each assignor, each the simulation that `simulate` would run; an
assignor that cannot lead is reported, and the others go on.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from equipoise.assignors import AssignmentProblem, Plan, registry
from equipoise.assignors.high_availability import HighAvailability
from equipoise.cli import main
from equipoise.cli.compare import contender_of
from equipoise.compare import RECORDED, all_contenders, recorded_runs
from equipoise.events.errors import InputError
from equipoise.events.log import open_log
from equipoise.replay.importers.kafka_streams import import_history, shipped_runs
from equipoise.replay.recorded_inputs import sum_windows


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("compare") / "recorded.db"
    with open_log(path, "w") as log, log.transaction():
        import_history(shipped_runs()["rolling"], log)
    return path


def run(*args: str | Path) -> Any:
    result = CliRunner().invoke(main, [*map(str, args), "--json"])
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_compare_row_is_simulation(recorded: Path, tmp_path: Path):
    compared = run("compare", recorded, "--assignor", "learner", "--set", "max_warmups=3", "--seed", "4")
    assert [row["contender"] for row in compared["rows"]] == [RECORDED, "learner"]
    simulated = run("simulate", recorded, "--to", tmp_path / "to.db", "--assignor", "learner", "--set", "max_warmups=3", "--seed", "4")
    totals = sum_windows([window["totals"] for window in simulated["windows"]])
    assert compared["rows"][1]["runs"][0]["totals"] == totals
    assert compared["rows"][0]["runs"][0]["totals"] == sum_windows([window["measured"]["totals"] for window in simulated["windows"]])
    assert totals["active_moves"] > 0


def test_compare_has_all_contenders_and_the_recorded_run():
    assert [str(each) for each in all_contenders()] == sorted({name for name, _ in registry.available()})
    assert [(each.name, each.measured["generations"]) for each in recorded_runs()] == [("scale-out", 68), ("rolling", 32)]


def test_contender_text_has_its_options():
    contender = contender_of("learner:strict=true")
    assert (contender.assignor, dict(contender.options), str(contender)) == ("learner", {"strict": True}, "learner:strict=true")
    assert str(contender_of("high_availability")) == "high_availability"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("nobody", "assignor: 'nobody' version 1 is not installed"),
        ("learner:strict", "write options as NAME:OPTION=VALUE"),
        ("learner:srict=true", "srict: learner has no such option; it has max_standby_steps, strict"),
        ("learner:strict=perhaps", "strict: 'perhaps' is neither true nor false"),
    ],
)
def test_compare_wrong_argument_error_names_it(text: str, complaint: str):
    with pytest.raises(InputError) as refused:
        contender_of(text)
    assert complaint in str(refused.value)


class GivesUp(HighAvailability):
    name = "gives_up"

    def assign(self, problem: AssignmentProblem) -> Plan:
        if len(problem.members) > 1:
            raise InputError("more than I can do")
        return super().assign(problem)


def test_compare_reports_a_failed_contender(recorded: Path, monkeypatch: pytest.MonkeyPatch):
    there = {**registry.available(), ("gives_up", GivesUp.version): GivesUp()}
    monkeypatch.setattr(registry, "available", lambda: there)
    rows = run("compare", recorded, "--assignor", "gives_up", "--assignor", "high_availability")["rows"]
    assert "more than I can do" in rows[1]["runs"][0]["error"]
    assert rows[1]["runs"][0]["totals"] == {}
    assert rows[2]["runs"][0]["totals"]["active_moves"] > 0
    printed = CliRunner().invoke(main, ["compare", str(recorded), "--assignor", "gives_up"])
    assert f"gives_up could not lead {recorded}" in printed.stdout
