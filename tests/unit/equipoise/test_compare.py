"""The table of assignors: each row is the simulation that `what-if --to` would write; an assignor
that cannot lead is reported.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from equipoise.assignors import AssignmentProblem, Plan, registry
from equipoise.assignors.high_availability import HighAvailability
from equipoise.cli import main
from equipoise.events.errors import InputError
from equipoise.log import open_log
from equipoise.replay.importers.kafka_streams import import_history, shipped_runs
from equipoise.replay.inputs_reader import sum_windows
from tests.support.compare import RECORDED, Contender, all_contenders, check_contender, cost_of, recorded_cost, recorded_runs, run_of


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("compare") / "recorded.db"
    with open_log(path, "w") as log, log.transaction():
        import_history(shipped_runs()["rolling"], log)
    return path


def test_compare_row_is_simulation(recorded: Path, tmp_path: Path) -> None:
    with open_log(recorded) as log:
        run = run_of("rolling", log)
    cost = cost_of(run, Contender(assignor="learner", options={"strict": True}), overrides={"max_warmups": 3}, seed=4)
    settings = [part for each in ("assignor=learner", "options.strict=true", "max_warmups=3") for part in ("--set", each)]
    simulated = CliRunner().invoke(main, ["what-if", str(recorded), "--to", str(tmp_path / "to.db"), *settings, "--seed", "4", "--json"])
    assert simulated.exit_code == 0, simulated.stderr
    windows = json.loads(simulated.stdout)["windows"]
    assert cost.totals == sum_windows([window["totals"] for window in windows])
    assert cost.totals["active_moves"] > 0
    (measured,) = recorded_cost(run)
    assert (measured.contender, measured.totals) == (RECORDED, sum_windows([window["measured"]["totals"] for window in windows]))


def test_compare_has_all_contenders_and_the_recorded_run() -> None:
    assert [str(each) for each in all_contenders()] == sorted({name for name, _ in registry.available()})
    assert [(each.name, each.measured["generations"]) for each in recorded_runs()] == [("scale-out", 68), ("rolling", 32)]
    assert str(Contender(assignor="learner", options={"strict": True})) == "learner:strict=true"


@pytest.mark.parametrize(
    ("contender", "complaint"),
    [
        (Contender(assignor="nobody"), "assignor: 'nobody' version 1 is not installed"),
        (Contender(assignor="learner", options={"srict": True}), "srict: learner has no such option; it has max_standby_steps, strict"),
        (Contender(assignor="learner", options={"strict": "perhaps"}), "strict: 'perhaps' is neither true nor false"),
    ],
)
def test_compare_wrong_contender_is_named(contender: Contender, complaint: str) -> None:
    with pytest.raises(InputError) as refused:
        check_contender(contender)
    assert complaint in str(refused.value)


class GivesUp(HighAvailability):
    name = "gives_up"

    def assign(self, problem: AssignmentProblem) -> Plan:
        if len(problem.members) > 1:
            raise InputError("more than I can do")
        return super().assign(problem)


def test_compare_reports_a_failed_contender(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = {**registry.available(), ("gives_up", GivesUp.version): GivesUp()}
    monkeypatch.setattr(registry, "available", lambda: there)
    with open_log(recorded) as log:
        run = run_of("rolling", log)
    failed, led = (cost_of(run, Contender(assignor=name)) for name in ("gives_up", "high_availability"))
    assert "more than I can do" in failed.error
    assert failed.totals == {}
    assert led.totals["active_moves"] > 0
