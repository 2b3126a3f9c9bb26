"""Simulations (`what-if --to`): both recorded runs, led by equipoise, cost no more than the goals
allow; equal inputs write equal logs, and those verify.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs
import pytest

from equipoise.events.decisions import AssignmentIssued
from equipoise.events.errors import FieldError, InputError
from equipoise.events.facts import GroupConfigured, PartitionsObserved
from equipoise.events.records import DecisionRecord, FactRecord
from equipoise.log import open_log
from equipoise.replay.importers.kafka_streams import import_history
from equipoise.replay.inputs_reader import read_recorded_inputs
from equipoise.replay.recorded_inputs import PartitionsPlaced, ProcessEnded, ProcessStarted, RecordedInputs
from equipoise.replay.simulation import RestoreModel
from equipoise.replay.simulation.measures import WindowCost
from equipoise.replay.simulation.run import Simulation, SimulationResult, simulate
from equipoise.replay.simulation.simulated_cluster import MemorySink
from equipoise.replay.verification import Verdict, verify
from tests.unit.replay.clusters_under_test import Memory

RECORDED = Path(__file__).parents[3] / "replay" / "data"
FITTED = Simulation(restore=RestoreModel(records_per_s=120_000))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RecordedInputs]:
    found = {}
    for run in ("scale-out", "rolling"):
        location = tmp_path_factory.mktemp(run) / "recorded.jsonl"
        with open_log(location, "w") as log, log.transaction():
            import_history(RECORDED / run, log)
        with open_log(location) as log:
            found[run] = read_recorded_inputs(log.read())
            found[f"{run}, at once"] = read_recorded_inputs(log.read(), announce_closes=False)
    return found


@pytest.fixture(scope="module")
def results(recorded: dict[str, RecordedInputs]) -> dict[str, SimulationResult]:
    return {run: simulate(recorded[run], FITTED) for run in ("scale-out", "rolling")}


def window(results: dict[str, SimulationResult], action: str) -> WindowCost:
    return next(cost for result in results.values() for cost in result.windows if cost.label.startswith(f"{action}_"))


@pytest.mark.parametrize("action", ["A1", "A2", "A4"])
def test_simulate_join_moves_minimum_and_stops_no_task(results: dict[str, SimulationResult], action: str):
    totals = window(results, action).totals
    assert totals["unavailable_task_seconds"] == 0
    assert totals["active_moves"] == totals["min_moves_for_balance"] > 0
    assert totals["stateful_moves_between_untouched_instances"] == 0
    assert totals["probing_rebalances"] <= 5


def test_simulate_kill_stops_only_its_tasks_for_session_and_restore(results: dict[str, SimulationResult]):
    cost = window(results, "A3")
    assert cost.totals["unavailable_task_seconds_of_tasks_on_untouched_instances"] == 0
    assert cost.totals["active_moves"] == cost.totals["tasks_unavailable"] == cost.totals["min_moves_for_balance"]
    assert 7_000 < cost.totals["longest_silence_ms"] < 10_000 + 3_000 + 1_000_000 / 120
    assert cost.totals["generations"] == 1


@pytest.mark.parametrize("action", ["A5", "B5"])
def test_simulate_announced_close_moves_only_its_tasks(results: dict[str, SimulationResult], action: str):
    totals = window(results, action).totals
    assert totals["unavailable_task_seconds"] == 0
    assert totals["active_moves"] == totals["min_moves_for_balance"]
    assert totals["stateful_moves_between_untouched_instances"] == 0


def test_close_without_announcement_makes_its_tasks_wait_and_shows_in_result_and_log(recorded: dict[str, RecordedInputs]):
    memory = Memory()
    result = simulate(recorded["scale-out, at once"], FITTED, sink=memory)
    closed = next(cost for cost in result.windows if cost.label.startswith("A5_"))
    assert closed.totals["tasks_unavailable"] > 0
    assert closed.totals["unavailable_task_seconds_of_tasks_on_untouched_instances"] == 0
    assert result.as_json()["announce_closes"] is False
    assert '"announce_closes": false' in memory.lines[0]


@pytest.mark.parametrize("action", ["B1", "B2", "B3"])
def test_simulate_announced_bounce_stops_no_task(results: dict[str, SimulationResult], action: str):
    totals = window(results, action).totals
    assert totals["longest_silence_ms"] == 0
    assert totals["stateful_moves_between_untouched_instances"] == 0


def test_simulate_lost_disk_stops_only_its_tasks_for_session(results: dict[str, SimulationResult]):
    totals = window(results, "B4").totals
    assert totals["longest_silence_ms"] < 10_000 + 1_000
    assert totals["unavailable_task_seconds_of_tasks_on_untouched_instances"] == 0
    assert totals["stateful_moves_between_untouched_instances"] == 0


def test_simulate_near_copies_take_over_without_warm_up(recorded: dict[str, RecordedInputs], results: dict[str, SimulationResult]):
    """B3: i3 is back after 18 s with all its state, thousands of records behind, which is less than
    half a second.
    """
    log = MemorySink()
    result = simulate(recorded["rolling"], attrs.evolve(FITTED, overrides={"acceptable_recovery_ms": 1_000}), sink=log)
    by_records, in_time = window(results, "B3"), window({"rolling": result}, "B3")
    facts = {entry.offset: entry.append_ms for entry in log.entries if isinstance(entry, FactRecord)}
    rounds = [
        entry.decision
        for entry in log.entries
        if isinstance(entry, DecisionRecord)
        and isinstance(entry.decision, AssignmentIssued)
        and in_time.start_ms <= facts[entry.caused_by] < in_time.end_ms
    ]
    back = next(each for each in rounds if each.cause == "join")
    taken_over = [move.lag_records for move in back.moves if move.state == "revoking" and move.lag_records is not None]
    assert {move.state for move in back.moves} == {"revoking"}
    assert sum(lag > result.configured.knobs.acceptable_recovery_lag for lag in taken_over) >= 5
    assert in_time.totals["unavailable_task_seconds"] == by_records.totals["unavailable_task_seconds"] == 0
    assert in_time.totals["active_moves"] == by_records.totals["active_moves"]
    assert 3 * in_time.totals["generations"] <= by_records.totals["generations"]
    assert in_time.totals["standby_copies_begun"] < by_records.totals["standby_copies_begun"]


@pytest.mark.parametrize(("standbys", "moves"), [(0, (0, 0, 0)), (1, (18, 18, 16))])
def test_recorded_bounces_as_restarts_move_what_is_lent_and_nothing_for_good(
    recorded: dict[str, RecordedInputs], standbys: int, moves: tuple[int, int, int]
) -> None:
    """A lent task moves twice, out and back. What waits does not move, and is unavailable for as
    long as its process is away.
    """
    result = simulate(recorded["rolling"].with_restarts(30_000), attrs.evolve(FITTED, overrides={"num_standbys": standbys}))
    bounces = [window({"rolling": result}, action) for action in ("B1", "B2", "B3")]
    assert tuple(each.totals["active_moves"] for each in bounces) == moves
    for each, away_s in zip(bounces, (2.001, 10.001, 18.0), strict=True):
        longest_s = each.totals["longest_silence_ms"] / 1_000
        assert longest_s < 1.0 if standbys else away_s < longest_s < away_s + 3
        assert each.totals["stateful_moves_between_untouched_instances"] == 0


def test_simulate_json_windows_have_measured_and_simulated(results: dict[str, SimulationResult]):
    form = results["scale-out"].as_json()
    assert [each["label"][:2] for each in form["windows"]] == ["A1", "A2", "A3", "A4", "A5"]
    assert form["windows"][0]["measured"]["totals"]["active_moves"] == 18
    assert form["windows"][0]["totals"]["active_moves"] == 8
    assert set(form["windows"][0]["measured"]["totals"]) <= set(form["windows"][0]["totals"])


def short(inputs: RecordedInputs, ms: int = 200_000) -> RecordedInputs:
    end_ms = inputs.start.at_ms + ms
    happenings = tuple(each for each in inputs.happenings if each.at_ms < end_ms)
    return attrs.evolve(inputs, happenings=happenings, windows=(), end_ms=end_ms)


def test_simulate_twice_writes_one_log_that_verifies(recorded: dict[str, RecordedInputs], tmp_path: Path):
    inputs = short(recorded["scale-out"])
    for name in ("one.jsonl", "two.jsonl"):
        with open_log(tmp_path / name, "w") as log, log.transaction():
            result = simulate(inputs, FITTED, sink=log)
    assert (tmp_path / "one.jsonl").read_bytes() == (tmp_path / "two.jsonl").read_bytes()
    with open_log(tmp_path / "one.jsonl") as log:
        report = verify(log.read())
    assert report.verdict is Verdict.IDENTICAL
    assert report.records == result.facts + result.decisions + 1


WRITE = """
import sys
from equipoise.log import open_log
from equipoise.replay.inputs_reader import read_recorded_inputs
from equipoise.replay.simulation.run import Simulation, simulate
with open_log(sys.argv[1]) as log:
    inputs = read_recorded_inputs(log.read())
with open_log(sys.argv[2], "w") as log, log.transaction():
    simulate(inputs, Simulation(), sink=log)
"""


def test_simulate_log_is_same_under_any_hash_seed(recorded: dict[str, RecordedInputs], tmp_path: Path):
    source = tmp_path / "source.jsonl"
    with open_log(source, "w") as log, log.transaction():
        simulate(short(recorded["rolling"], 160_000), FITTED, sink=log)
    written = []
    for hash_seed in ("1", "2"):
        target = tmp_path / f"{hash_seed}.jsonl"
        subprocess.run([sys.executable, "-c", WRITE, str(source), str(target)], check=True, env={**os.environ, "PYTHONHASHSEED": hash_seed})
        written.append(target.read_bytes())
    assert written[0] == written[1]
    assert len(written[0]) > 10_000


def test_simulate_other_seed_or_setting_changes_log_and_id(recorded: dict[str, RecordedInputs]):
    inputs = short(recorded["scale-out"], 60_000)
    logs = []
    for simulation in (FITTED, attrs.evolve(FITTED, seed=1), attrs.evolve(FITTED, overrides={"max_warmups": 5})):
        memory = Memory()
        result = simulate(inputs, simulation, sink=memory)
        logs.append((result.log_id, tuple(memory.lines)))
    assert len({log_id for log_id, _ in logs}) == 3
    assert len({lines[3:] for _, lines in logs}) == 3


@pytest.mark.parametrize(("run", "log_id"), [("scale-out", "simulated-6e3485bfc27b4f50"), ("rolling", "simulated-a8189543846ee98d")])
def test_simulate_same_run_keeps_its_log_id(recorded: dict[str, RecordedInputs], run: str, log_id: str):
    """The ids of an earlier release: a renamed class must not change them (`_NAMES_IN_LOG_IDS`)."""
    assert simulate(short(recorded[run], 60_000), FITTED).log_id == log_id


def test_simulate_same_run_with_ends_of_processes_keeps_its_log_id(results: dict[str, SimulationResult]):
    """Nor must a new field (`_NOT_IN_LOG_IDS`)."""
    assert results["rolling"].log_id == "simulated-f0ad7349931d5f19"


def test_simulate_simulated_log_same_lives(recorded: dict[str, RecordedInputs], tmp_path: Path):
    inputs = short(recorded["rolling"], 400_000)
    with open_log(tmp_path / "one.db", "w") as log, log.transaction():
        first = simulate(inputs, FITTED, sink=log)
    with open_log(tmp_path / "one.db") as log:
        again = read_recorded_inputs(log.read())
    lives = [(each.member_id, each.capacity) for each in first.lives]
    assert [(each.member_id, each.capacity) for each in simulate(again, FITTED).lives] == lives
    assert not again.imported


def test_simulate_passes_on_overrides_and_progress(recorded: dict[str, RecordedInputs]):
    inputs = short(recorded["scale-out"], 60_000)
    seen: list[tuple[int, int]] = []
    result = simulate(inputs, attrs.evolve(FITTED, overrides={"num_standbys": 1}), progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (60_000, 60_000)
    assert seen == sorted(seen)
    assert result.configured.knobs.num_standbys == 1
    assert result.configured.led_by == "equipoise"
    assert result.whole.totals["standby_copies_begun"] >= 20


def test_simulate_racks_and_weights_come_when_recorded(recorded: dict[str, RecordedInputs], tmp_path: Path):
    inputs = short(recorded["scale-out"], 30_000)
    start_ms = inputs.start.at_ms
    source = inputs.start.topology.subtopologies[0].source_topics[0]
    placed = PartitionsPlaced(at_ms=start_ms, observed=PartitionsObserved(racks={source: {0: ("a",)}}))
    weighed = PartitionsPlaced(at_ms=start_ms + 20_000, observed=PartitionsObserved(weights={source: {0: 7}}))
    told = attrs.evolve(inputs, happenings=(placed, weighed, *inputs.happenings))
    with open_log(tmp_path / "one.db", "w") as log, log.transaction():
        simulate(told, FITTED, sink=log)
    with open_log(tmp_path / "one.db") as log:
        again = read_recorded_inputs(log.read())
        facts = [each.event for each in log.read() if isinstance(each, FactRecord)]
    observed = [fact for fact in facts if isinstance(fact, PartitionsObserved)]
    assert [(fact.racks, fact.weights) for fact in observed if fact.racks or fact.weights] == [
        ({source: {0: ("a",)}}, {}),
        ({}, {source: {0: 7}}),
    ]
    found = [each for each in again.happenings if isinstance(each, PartitionsPlaced)]
    assert [each.observed for each in found] == [placed.observed, weighed.observed]
    assert found[1].at_ms - found[0].at_ms == pytest.approx(20_000, abs=50)


def test_simulate_other_assignor_drops_recorded_options(recorded: dict[str, RecordedInputs]):
    short_one = short(recorded["scale-out"], 30_000)
    config = attrs.evolve(short_one.start.config, assignor="learner", knobs=attrs.evolve(short_one.start.config.knobs, options={"strict": True}))
    learned = attrs.evolve(short_one, start=attrs.evolve(short_one.start, config=config))
    assert simulate(learned, FITTED).configured.knobs.options == {"strict": True}
    assert simulate(learned, attrs.evolve(FITTED, assignor="cooperative")).configured.knobs.options == {}


def test_simulate_restart_waits_for_drain(recorded: dict[str, RecordedInputs]):
    inputs = recorded["rolling"]
    start = next(each for each in inputs.happenings if isinstance(each, ProcessStarted) and each.member_id == "i1")
    at_ms = inputs.start.at_ms + 60_000
    happenings = [
        *[each for each in inputs.happenings if each.at_ms < at_ms],
        ProcessEnded(at_ms=at_ms, member_id="i1", incarnation=1, how="announced", inferred=False, done_ms=None),
        attrs.evolve(start, at_ms=at_ms, state_kept=True, pause_ms=5_000),  # at once, says the log; but it still drains
    ]
    result = simulate(attrs.evolve(inputs, happenings=tuple(happenings), windows=(), end_ms=at_ms + 60_000), FITTED)
    first, second = [life for life in result.lives if life.member_id == "i1"]
    assert first.end_ms is not None
    assert first.end_ms > at_ms
    assert 5_000 <= second.start_ms - first.end_ms <= 5_200


@pytest.mark.parametrize(
    ("changes", "error", "problem"),
    [
        ({"overrides": {"max_warmup": 1}}, InputError, "max_warmup.*does not exist"),
        ({"overrides": {"max_warmups": 0}}, FieldError, r"Knobs\.max_warmups"),
        ({"overrides": {"max_step_ms": 9_000}}, InputError, "lease_margin_ms"),
        ({"assignor": "nobody"}, InputError, "nobody"),
        ({"overrides": {"options": {"strict": True}}}, FieldError, "config.options.strict: high_availability has no such option"),
    ],
)
def test_simulate_bad_input_is_refused_with_the_reason(
    recorded: dict[str, RecordedInputs], changes: dict[str, Any], error: type[Exception], problem: str
):
    with pytest.raises(error, match=problem):
        simulate(short(recorded["scale-out"]), attrs.evolve(FITTED, **changes))


def test_imported_group_is_led_by_equipoise_from_the_first_fact(recorded: dict[str, RecordedInputs]):
    memory = Memory()
    simulate(short(recorded["scale-out"], 20_000), FITTED, sink=memory)
    configured = [line for line in memory.lines if GroupConfigured.__name__ in line]
    assert len(configured) == 1
    assert "led_by='equipoise'" in configured[0]


def as_kafka_closes(inputs: RecordedInputs) -> RecordedInputs:
    """Kafka Streams closes without LeaveGroup unless it is asked to leave the group, as in B5
    alone: its process just disappears.
    """
    return attrs.evolve(
        inputs,
        happenings=tuple(
            attrs.evolve(each, how="killed") if isinstance(each, ProcessEnded) and each.how == "closed" else each for each in inputs.happenings
        ),
    )


def test_simulate_kafka_streams_assignor_equals_the_recording(recorded: dict[str, RecordedInputs]):
    """A cold third instance (A1): the same stateful moves, copies and probing rounds. A bounce
    within the session timeout (B1): nothing moves.
    """
    kafka = attrs.evolve(FITTED, assignor="kafka_streams")
    for run, action in (("scale-out", "A1"), ("rolling", "B1")):
        result = simulate(as_kafka_closes(recorded[f"{run}, at once"]), kafka)
        cost, measured = next(
            (cost.totals, measured["totals"])
            for cost, measured in zip(result.windows, result.measured, strict=True)
            if measured is not None and cost.label.startswith(action)
        )
        for same in ("stateful_active_moves", "standby_copies_begun", "probing_rebalances", "min_moves_for_balance"):
            assert cost[same] == measured[same], f"{action}: {same}"
        assert abs(cost["active_moves"] - measured["active_moves"]) <= 1
