"""The model's results are those of its last search, and recorded logs and scenarios are runs of it."""

from __future__ import annotations

import json
from pathlib import Path

import attrs
import pytest

from equipoise.events.decisions import MemberAssigned
from equipoise.events.records import DecisionRecord, FactRecord
from equipoise.log import open_log
from equipoise.statemachine.machine import GroupMachine
from tests.model import lease, trace
from tests.model.__main__ import PAGE, RESULTS, page_with
from tests.model.configurations import BROKEN, CHANGELOG_RULES, COMPARED, OWNERS, RULES, SEARCHED
from tests.model.recording import Recording
from tests.model.without import WITHOUT, storm
from tests.seeds import setting_of
from tests.storms import run_storm
from tests.support.scenarios import run_file

ROOT = Path(__file__).resolve().parents[2]
PROTOCOL = ROOT / "tests" / "scenarios" / "protocol"
Log = tuple[list[FactRecord], list[DecisionRecord]]


def test_results_of_the_model_are_on_the_page_and_complete() -> None:
    results = json.loads(RESULTS.read_text())
    page = PAGE.read_text()
    assert page_with(results, page) == page, "make model"
    assert results["searched"].keys() >= {*SEARCHED, *(f"changelog: {name}" for name in OWNERS)}
    assert all(results["broken"][rule] for rule in {**RULES, **CHANGELOG_RULES})


@pytest.mark.parametrize("name", ["closed, crashed, superseded", "proven dead", "configured"])
def test_relation_in_python_has_as_many_states_as_spin_found(name: str) -> None:
    assert lease.states(COMPARED[name]) == json.loads(RESULTS.read_text())["compared"][name]


@pytest.mark.parametrize("rule", ["R_CLAMP", "R_HOLD", "R_OWN_SESSION", "R_HOLD_PASSES"])
def test_relation_in_python_without_a_rule_finds_two_owners(rule: str) -> None:
    with pytest.raises(lease.TwoOwners):
        lease.states(BROKEN[rule])


def _stored(path: Path) -> Log:
    records: list[FactRecord] = []
    decisions: list[DecisionRecord] = []
    with open_log(path) as log:
        for entry in log.read():
            if isinstance(entry, FactRecord):
                records.append(entry)
            elif isinstance(entry, DecisionRecord):
                decisions.append(entry)
    return records, decisions


@pytest.mark.parametrize("path", sorted((ROOT / "tests" / "data" / "logs").glob("*.jsonl")), ids=lambda path: path.name)
def test_recorded_log_is_a_run_of_the_model(path: Path) -> None:
    records, decisions = _stored(path)
    for group in dict.fromkeys(record.group for record in records if record.group):
        trace.follow([r for r in records if r.group == group], [d for d in decisions if d.group == group])


def _of_scenario(path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Log]:
    """The logs of a scenario: one for each group that begins in it."""
    runs: list[dict[int, tuple[FactRecord, list[DecisionRecord]]]] = [{}]
    plain = GroupMachine.step

    def step(self: GroupMachine, record: FactRecord) -> list[DecisionRecord]:
        begins = self.state.seq == 0
        decisions = plain(self, record)
        if begins and record.offset in runs[-1] and runs[-1][record.offset][0] is not record:
            runs.append({})
        runs[-1].setdefault(record.offset, (record, decisions))
        return decisions

    monkeypatch.setattr(GroupMachine, "step", step)
    run_file(path)
    return [([run[o][0] for o in sorted(run)], [each for o in sorted(run) for each in run[o][1]]) for run in runs]


@pytest.mark.parametrize("path", sorted([*PROTOCOL.glob("m[1-6]_*.txt"), *PROTOCOL.glob("l[23]_*.txt")]), ids=lambda path: path.stem)
def test_scenario_is_a_run_of_the_model(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for log in _of_scenario(path, monkeypatch):
        trace.follow(*log)


def _holds(each: DecisionRecord) -> bool:
    return isinstance(each.decision, MemberAssigned) and bool(each.decision.hold_ms)


def test_trace_with_a_corrupted_hold_token_or_grant_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    logs = _of_scenario(PROTOCOL / "m5_two_processes.txt", monkeypatch)
    records, decisions = next((records, decisions) for records, decisions in logs if any(_holds(each) for each in decisions))
    trace.follow(records, decisions)
    held = next(i for i, each in enumerate(decisions) if _holds(each))
    assigned = decisions[held].decision
    assert isinstance(assigned, MemberAssigned)
    for broken in (
        attrs.evolve(assigned, hold_ms={}),
        attrs.evolve(assigned, hold_ms={task: hold_ms - 1 for task, hold_ms in assigned.hold_ms.items()}),
        attrs.evolve(assigned, tokens=tuple(1 for _ in assigned.tokens)),
    ):
        with pytest.raises(trace.Refused):
            trace.follow(records, [*decisions[:held], attrs.evolve(decisions[held], decision=broken), *decisions[held + 1 :]])


STORMS = (2, "plain"), (6, "plain"), (37, "switching"), (2, "operators"), (3, "operators+switching")
"""Late decisions, late facts, and a member that is expelled when its session ends, are among them.
"""
MORE = [pytest.param(seed, None, marks=pytest.mark.slow) for seed in range(1_000, 1_040)]


@pytest.mark.parametrize(("seed", "kind"), [*STORMS, *MORE])
def test_storm_is_a_run_of_the_model(seed: int, kind: str | None) -> None:
    recording = Recording()
    with recording.on():
        run_storm(setting_of(seed, kind), judges=[recording])
    assert recording.follow().tasks


@pytest.mark.parametrize("rule", WITHOUT)
def test_storm_without_a_rule_is_refused(rule: str) -> None:
    with pytest.raises(trace.Refused):
        storm(WITHOUT[rule]).follow()
