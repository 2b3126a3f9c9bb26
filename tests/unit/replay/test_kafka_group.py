"""The simulated Kafka Streams group behaves as Kafka does: start and end of rebalances, tasks that
stop meanwhile, expiries; both recorded groups come out as measured.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import attrs
import pytest

from equipoise.bridge.mapping import ALL_AT_ONCE
from equipoise.events.facts import Subtopology, TopologyDeclared
from equipoise.events.settings import GroupSettings
from equipoise.replay.importers.kafka_streams import import_history
from equipoise.replay.recorded_inputs import Curve
from equipoise.replay.simulation import RestoreModel, steady
from equipoise.replay.simulation.kafka import InstanceSettings, KafkaGroup, KafkaProtocol, KafkaStreamsInstance
from equipoise.replay.simulation.measures import active_moves, silences
from equipoise.replay.simulation.run import Simulation, SimulationResult
from equipoise.replay.simulation.run_kafka import simulate_kafka
from equipoise.replay.whatif.evaluate import Configuration, WhatIf, what_if_recorded
from equipoise.replay.whatif.recorded_costs import Recording, read_recording
from tools.import_check import MemoryLog

SHIPPED = Path(__file__).parents[3] / "replay" / "data"
SIMULATION = Simulation(restore=RestoreModel(records_per_s=200_000))
TASKS = 8
PROTOCOL = KafkaProtocol(heartbeat_drift_ms=0, commit_interval_ms=1_000)


def group(*, stateful: bool = True, records: int = 100_000, **changes: Any) -> KafkaGroup:
    topology = TopologyDeclared(
        epoch=0,
        subtopologies=(Subtopology(subtopology=0, partitions=TASKS, stateful=stateful, changelog_topics=("c",) if stateful else ()),),
    )
    growth = {("c", partition): steady(records=records, records_per_s=50) for partition in range(TASKS)}
    settings: dict[str, Any] = {"acceptable_recovery_lag": 1_000, "probing_interval_ms": 60_000, **changes}
    return KafkaGroup(settings=GroupSettings(**settings), topology=topology, growth=growth, protocol=PROTOCOL, seed=3)


def begin(kafka: KafkaGroup, *names: str, threads: int = 1, kept: bool = True) -> list[KafkaStreamsInstance]:
    """Starts instances whose process ids sort as their names do."""
    return [
        kafka.start(
            InstanceSettings(member_id=name, identity=name, threads=threads, session_timeout_ms=10_000, restore=RestoreModel(records_per_s=200_000)),
            state_kept=kept,
        )
        for name in names
    ]


def owners(kafka: KafkaGroup) -> dict[str, int]:
    found: dict[str, int] = {}
    for owner in kafka.world.owners(kafka.engine.now_ms).values():
        found[owner] = found.get(owner, 0) + 1
    return found


def test_kafka_first_round_waits_initial_delay_again_after_a_join() -> None:
    alone, together = group(stateful=False), group(stateful=False)
    begin(alone, "a")
    begin(together, "a")
    together.engine.at(2_000, begin, together, "b")
    for kafka in (alone, together):
        kafka.engine.run_until(20_000)
    assert alone.notes.rounds[0][0] == pytest.approx(1_300 + 3_000, abs=50)
    assert together.notes.rounds[0][0] == pytest.approx(2_000 + 1_300 + 3_000, abs=50)
    assert owners(together) == {"a": 4, "b": 4}


def test_kafka_task_that_changes_hands_stops_until_the_follow_up_round() -> None:
    """One of a's threads keeps its tasks, and learns of the rebalance with its next heartbeat."""
    kafka = group(stateful=False)
    begin(kafka, "a", "b", threads=4)
    kafka.engine.at(60_000, begin, kafka, "c")
    kafka.engine.run_until(100_000)
    rounds = [at_ms for at_ms, _ in kafka.notes.rounds if at_ms > 60_000]
    assert [cause for at_ms, cause in kafka.notes.rounds if at_ms > 60_000] == ["join", "follow-up"]
    assert rounds[1] - rounds[0] == pytest.approx(3_000, abs=100)
    found = silences(kafka.world.history(100_000), 100_000)
    assert found
    moved = {move.task for move in active_moves(kafka.world.history(100_000))}
    assert {each.task for each in found} >= moved
    assert all(2_900 < each.lasts_ms < 3_300 for each in found)
    assert sum(owners(kafka).values()) == TASKS


def test_kafka_dead_consumer_expires_a_session_timeout_after_its_last_commit() -> None:
    for end in (KafkaStreamsInstance.kill, KafkaStreamsInstance.close_silently):
        kafka = group(stateful=False)
        _, second = begin(kafka, "a", "b")
        kafka.engine.at(60_000, end, second)
        kafka.engine.run_until(90_000)
        expiry = next(at_ms for at_ms, cause in kafka.notes.rounds if cause == "expiry")
        assert 60_000 + 9_000 <= expiry <= 60_000 + 10_000 + 3_100
        assert owners(kafka) == {"a": TASKS}


def test_kafka_leave_ends_threads_one_by_one() -> None:
    kafka = group(stateful=False)
    _, second = begin(kafka, "a", "b", threads=2)
    kafka.engine.at(60_000, second.leave, 2_000)
    kafka.engine.run_until(60_500)
    assert [thread.alive for thread in second.threads] == [False, True]
    kafka.engine.run_until(90_000)
    assert second.ended_ms == 61_600
    assert next(cause for at_ms, cause in kafka.notes.rounds if at_ms > 60_000) == "leave"
    assert owners(kafka) == {"a": TASKS}


def test_kafka_cold_instance_warms_two_tasks_a_round() -> None:
    kafka = group(max_warmups=2)
    begin(kafka, "a")
    kafka.engine.at(60_000, begin, kafka, "b")
    kafka.engine.run_until(70_000)
    assert owners(kafka) == {"a": TASKS}
    kafka.engine.run_until(130_000)
    assert owners(kafka) == {"a": TASKS - 2, "b": 2}
    kafka.engine.run_until(200_000)
    assert owners(kafka) == {"a": TASKS - 4, "b": 4}
    probing = [at_ms for at_ms, cause in kafka.notes.rounds if cause == "probing"]
    assert probing[1] - probing[0] > 60_000


def test_kafka_changelog_without_owner_stays_and_restart_is_near() -> None:
    kafka = group()
    (only,) = begin(kafka, "a")
    kafka.engine.at(60_000, only.close_silently)
    kafka.engine.at(65_000, begin, kafka, "a")
    kafka.engine.run_until(66_000)
    task = next(iter(kafka.world.tasks))
    assert kafka.world.end_offset(task, 66_000) == kafka.world.end_offset(task, 60_000)
    kafka.engine.run_until(90_000)
    assert kafka.world.end_offset(task, 90_000) == kafka.world.growth["c", task.partition].at(90_000)
    assert not [each for each in kafka.world.restores if each.at_ms > 60_000 and each.records > 10]


def test_equal_seeds_give_equal_runs() -> None:
    histories = []
    for _ in range(2):
        kafka = group()
        begin(kafka, "a", "b", threads=2)
        kafka.engine.at(60_000, begin, kafka, "c")
        kafka.engine.run_until(200_000)
        histories.append((kafka.world.history(200_000), kafka.notes.rounds))
    assert histories[0] == histories[1]


def test_curve_filled_spans_pauses() -> None:
    stood_still = Curve(((0, 0), (10_000, 1_000), (20_000, 1_000), (30_000, 3_000), (40_000, 4_000)))
    assert [stood_still.filled().at(ms) for ms in (0, 10_000, 15_000, 20_000, 30_000, 40_000)] == [0, 1_000, 1_500, 2_000, 3_000, 4_000]
    faster = Curve(((0, 0), (100_000, 1_000), (200_000, 9_000)))
    assert faster.filled() == faster  # for good, not for a moment


# -- the recorded groups
# --------------------------------------------------------------------------------------------------


@functools.cache
def recording(run: str) -> Recording:
    log = MemoryLog()
    import_history(SHIPPED / run, log)
    return read_recording(log.records)


@functools.cache
def answer(run: str, fitted_on: str) -> WhatIf:
    """The factual configuration, with the restore speed fitted on one of the runs."""
    return what_if_recorded(recording(run), seeds=range(10), restore_records_per_s=recording(fitted_on).fit.records_per_s)


def errors(found: WhatIf) -> dict[str, float]:
    return {each.metric: each.error for each in found.fidelity if each.error is not None}


@pytest.mark.parametrize(("run", "fitted_on"), [("scale-out", "rolling"), ("rolling", "scale-out")])
def test_kafka_prediction_with_other_runs_speed_is_near(run: str, fitted_on: str) -> None:
    found = errors(answer(run, fitted_on))
    assert abs(found["rebalances"]) < 0.25
    assert abs(found["moves"]) < 0.2
    assert abs(found["unavailable_task_seconds"]) < 0.3
    assert abs(found["records_restored"]) < 0.2


def test_kafka_first_action_equals_recording() -> None:
    """A1, one more cold instance: six minutes without randomness."""
    inputs = recording("scale-out").inputs
    for seed in range(3):
        found = simulate_kafka(inputs, attrs.evolve(SIMULATION, seed=seed)).windows[0]
        measured = inputs.windows[0].measured
        assert measured is not None
        for metric in ("generations", "probing_rebalances", "active_moves", "stateful_active_moves", "standby_copies_begun"):
            assert found.totals[metric] == measured["totals"][metric], metric
        assert found.totals["unavailable_task_seconds"] == pytest.approx(measured["totals"]["unavailable_task_seconds"], rel=0.05)


def test_what_if_keeps_kafka_streams_unless_an_assignor_is_named() -> None:
    found = what_if_recorded(
        recording("scale-out"),
        [Configuration(name="ten", settings={"max_warmups": 10}), Configuration(name="ours", assignor="high_availability")],
    )
    ten, ours = found.outcomes
    assert (found.factual.assignor, ten.assignor, ours.assignor) == ("kafka_streams", "kafka_streams", "high_availability")
    assert found.metrics_source == "measured"
    assert ten.metrics is not None
    assert ours.metrics is not None
    assert found.factual.metrics is not None
    assert ten.metrics.rebalances < found.factual.metrics.rebalances
    assert ours.metrics.unavailable_task_seconds < found.factual.metrics.unavailable_task_seconds / 10


def total(result: SimulationResult, name: str) -> float:
    return sum(window.totals[name] for window in result.windows)


def test_kafka_rounds_of_equipoise_move_less_and_stop_less() -> None:
    """Kafka's assignor and equipoise's rounds in the same application, threads and broker."""
    scale_out = recording("scale-out")
    stock = simulate_kafka(scale_out.inputs, SIMULATION)
    ours = simulate_kafka(scale_out.inputs, SIMULATION, rounds=True)
    again = simulate_kafka(scale_out.inputs, SIMULATION, rounds=True)
    assert ours.as_json() == again.as_json()
    assert (ours.configured.assignor, ours.configured.led_by) == ("high_availability", "external")
    assert ours.facts > ours.decisions > 0
    assert total(ours, "unavailable_task_seconds") < total(stock, "unavailable_task_seconds") / 3
    assert total(ours, "active_moves") < total(stock, "active_moves") / 2


def test_kafka_rounds_meet_heartbeats_at_random() -> None:
    """Whether a process that is back within its session is missed meanwhile is chance."""
    seeds = [simulate_kafka(recording("rolling").inputs, attrs.evolve(SIMULATION, seed=seed), rounds=True) for seed in range(4)]
    assert {each.windows[1].totals["generations"] for each in seeds} == {1, 4}


def test_kafka_rounds_keep_a_number_of_warmups_that_is_not_kafkas_default() -> None:
    scale_out = recording("scale-out")
    chosen = attrs.evolve(SIMULATION, overrides={"max_warmups": 1, "max_warmups_per_member": 1})
    wide, narrow = (simulate_kafka(scale_out.inputs, each, rounds=True) for each in (SIMULATION, chosen))
    assert wide.configured.knobs.max_warmups == ALL_AT_ONCE
    assert narrow.configured.knobs.max_warmups == 1
    assert total(narrow, "generations") > total(wide, "generations")


def test_what_if_of_an_application_says_who_carries_it_out() -> None:
    scale_out = recording("scale-out")
    rounds_ask = Configuration(name="rounds", carrier="kafka_streams")
    answer = what_if_recorded(scale_out, [rounds_ask, Configuration(name="members", assignor="high_availability", carrier="members")])
    rounds, members = answer.outcomes
    assert rounds.assignor == members.assignor == "high_availability"
    assert rounds.metrics is not None
    assert members.metrics is not None
    assert answer.factual.metrics is not None
    assert rounds.metrics.unavailable_task_seconds < answer.factual.metrics.unavailable_task_seconds
    assert rounds.metrics.rebalances < members.metrics.rebalances  # a round hands over everything that is ready
    bridged = attrs.evolve(scale_out, inputs=attrs.evolve(scale_out.inputs, carrier="kafka_streams"))
    stock = Configuration(name="stock", assignor="kafka_streams")
    answer = what_if_recorded(bridged, [stock])
    assert answer.factual.metrics == rounds.metrics, "its rounds are what it has"
    assert answer.outcomes[0].assignor == "kafka_streams"
