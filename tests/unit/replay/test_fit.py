"""The fitted restore speed: measurements and bounds, their combination, and a comparison with
speeds that processes logged.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from equipoise.events.decisions import MemberAssigned
from equipoise.events.facts import Fact, GroupConfigured, LagReported, MemberJoined, PartitionsObserved, Subtopology, TaskReady, TopologyDeclared
from equipoise.events.records import DecisionRecord, Entry, FactRecord
from equipoise.events.settings import GroupSettings
from equipoise.events.tasks import Lag, LagSentinel, TaskId
from equipoise.replay.importers.kafka_streams import import_history
from equipoise.replay.inputs_reader import read_recorded_inputs
from equipoise.replay.simulation import RestoreModel
from equipoise.replay.simulation.run import Simulation, simulate
from equipoise.replay.simulation.simulated_cluster import MemorySink
from equipoise.replay.whatif.fit import Fit, Fitting, fit
from equipoise.replay.whatif.restore_speeds import DEFAULT_RECORDS_PER_S, Estimate, Observation, estimate_of, most_likely, speed_of
from equipoise.statemachine.machine import GroupMachine
from tests.unit.replay.lived import lived
from tools.import_check import MemoryLog

SHIPPED = Path(__file__).parents[3] / "replay" / "data"
TASK, OTHER = TaskId(0, 0), TaskId(0, 1)


def observation(low: float, high: float | None = None) -> Observation:
    return Observation(member_id="m", from_ms=0, to_ms=1, copies=1, records=1, low=low, high=high, basis="reports")


def group(*entries: tuple[int, Fact | MemberAssigned]) -> list[FactRecord | DecisionRecord]:
    """A log that equipoise led: one stateful sub-topology of two tasks, changelogs of 100,000
    records, acceptable lag 1,000.
    """
    topology = TopologyDeclared(epoch=1, subtopologies=(Subtopology(subtopology=0, partitions=2, stateful=True, changelog_topics=("c",)),))
    start: list[tuple[int, Fact | MemberAssigned]] = [
        (0, GroupConfigured(knobs=GroupSettings(acceptable_recovery_lag=1_000))),
        (0, topology),
        (0, PartitionsObserved(end_offsets={"c": {0: 100_000, 1: 100_000}})),
        (0, MemberJoined(member_id="m", incarnation=1, join_nonce="n")),
    ]
    found: list[FactRecord | DecisionRecord] = []
    offset = number = 0
    for append_ms, event in [*start, *entries]:
        if isinstance(event, MemberAssigned):
            number += 1
            found.append(DecisionRecord("log", "g", number, offset - 1, 0, 0, event))
        else:
            found.append(FactRecord("g", offset, append_ms, event))
            offset += 1
    return found


def told(*tasks: TaskId) -> MemberAssigned:
    return MemberAssigned(member_id="m", incarnation=1, assignment_epoch=1, warmup=tasks)


def report(number: int, lags: dict[TaskId, Lag], **more: Any) -> LagReported:
    return LagReported(member_id="m", incarnation=1, number=number, assignment_epoch=1, lags=lags, **more)


def test_fit_copy_far_behind_is_a_measurement() -> None:
    """80,000 -> 50,000 behind while 6,000 were written: 36,000 records in 3 s."""
    found = fit(
        group(
            (0, told(TASK)),
            (1_000, report(1, {TASK: 80_000})),
            (4_000, PartitionsObserved(end_offsets={"c": {0: 106_000}})),
            (4_000, report(2, {TASK: 50_000})),
        )
    )
    last = found.observations[-1]
    assert (last.records, last.low, last.high, last.copies) == (36_000, 12_000.0, 12_000.0, 1)
    assert last.measured == 12_000.0
    assert found.join_wait_ms == 0


def test_fit_first_observation_of_an_end_is_no_growth() -> None:
    """The changelog was as long as that all the time."""
    observed = PartitionsObserved(end_offsets={"c": {0: 100_000}})
    entries = group((0, told(TASK)), (1_000, report(1, {TASK: 80_000})), (2_000, observed), (4_000, report(2, {TASK: 50_000})))
    late = [each for each in entries if not (isinstance(each, FactRecord) and isinstance(each.event, PartitionsObserved) and each.append_ms == 0)]
    assert [each.records for each in fit(late).observations] == [30_000]


def test_fit_copy_caught_up_is_a_bound() -> None:
    for caught_up in (1_000, 0, LagSentinel.ACTIVE):
        found = fit(group((0, told(TASK)), (1_000, report(1, {TASK: 80_000})), (4_000, report(2, {TASK: caught_up}))))
        last = found.observations[-1]
        assert last.measured is None
        assert last.low == (80_000 - (caught_up if isinstance(caught_up, int) else 0)) / 3
        assert found.overall.bounds >= 1


def test_fit_adds_copies_of_a_member() -> None:
    """One copy caught up and one did not, so the member restored all the time."""
    found = fit(group((0, told(TASK, OTHER)), (1_000, report(1, {TASK: 5_000, OTHER: 60_000})), (3_000, report(2, {TASK: 0, OTHER: 25_000}))))
    assert (found.observations[-1].records, found.observations[-1].copies, found.observations[-1].measured) == (40_000, 2, 20_000.0)


def opened(*, others: int) -> Fit:
    """A copy of 100,000 records that is opened within 500 ms, and restored with 10,000 records/s;
    `others`: reports while it is restored.
    """
    reports = [(2_000 + 1_000 * number, report(2 + number, {TASK: 85_000 - 10_000 * number})) for number in range(others + 1)]
    return fit(group((0, told(TASK)), (0, report(1, {TASK: 100_000})), *reports))


def test_opening_of_a_copy_is_told_apart_from_its_speed_where_enough_is_measured() -> None:
    assert (opened(others=3).records_per_s, opened(others=3).opening_ms) == (10_000, (500,))
    assert opened(others=2).opening_ms == (), "the speed has it in it"
    assert len(opened(others=2).observations) == 3


def test_opening_is_not_told_where_speeds_differ_by_more_than_it_takes() -> None:
    """Restored at 10,000 and 15,000 records/s in turn: half a second may as well be the speed."""
    lags = [70_000, 55_000, 45_000, 30_000, 20_000]
    reports = [(5_000 + 1_000 * number, report(2 + number, {TASK: lag})) for number, lag in enumerate(lags)]
    found = fit(group((0, told(TASK)), (0, report(1, {TASK: 120_000})), *reports))
    assert found.opening_ms == ()
    assert len(found.observations) == len(lags) - 1


def test_copy_that_had_begun_by_the_first_report_is_not_opened_after_it() -> None:
    found = fit(group((0, told(TASK)), (1_000, report(1, {TASK: 95_000})), (2_000, report(2, {TASK: 85_000}))))
    assert [each.opens for each in found.observations] == [False]
    assert found.opening_ms == ()


@pytest.mark.parametrize(("later", "in_turn"), [(lambda left: (left, left), 0.0), (lambda left: (90_000, left), 1.0)])
def test_members_restore_several_copies_at_once_or_in_turn(later: Callable[[int], tuple[int, int]], in_turn: float) -> None:
    reports = [(1_000 * number, report(number, dict(zip((TASK, OTHER), later(90_000 - 5_000 * number), strict=True)))) for number in range(1, 5)]
    assert fit(group((0, told(TASK, OTHER)), *reports)).in_turn == in_turn
    assert fit(group((0, told(TASK, OTHER)), *reports[:3])).in_turn is None


def test_fit_log_without_restores_gives_no_speed() -> None:
    silent = [
        group((1_000, report(1, {TASK: 80_000})), (4_000, report(2, {TASK: 50_000}))),  # it was not assigned the copy
        group((0, told(TASK)), (1_000, report(1, {TASK: 900})), (4_000, report(2, {TASK: 0}))),  # it was caught up
        group((0, told(TASK)), (1_000, report(1, {TASK: LagSentinel.UNKNOWN})), (4_000, report(2, {TASK: 50_000}))),
        group((0, told(TASK)), (1_000, report(1, {TASK: 80_000})), (4_000, report(2, {TASK: LagSentinel.UNKNOWN}))),
        group((0, told(TASK)), (1_000, report(1, {TASK: 80_000})), (1_000, report(2, {TASK: 50_000}))),  # no time passed
        group((0, told(TASK)), (1_000, report(1, {TASK: 80_000})), (4_000, report(2, {TASK: 90_000}))),  # it lost ground
    ]
    for records in silent:
        found = fit(records)
        assert not [each for each in found.observations if each.from_ms >= 1_000]
    quiet = fit(silent[1])
    assert (quiet.records_per_s, quiet.basis) == (DEFAULT_RECORDS_PER_S, "default: nothing was seen restoring")


def test_deltas_build_on_the_report_before() -> None:
    found = fit(
        group(
            (0, told(TASK, OTHER)),
            (1_000, report(1, {TASK: 80_000, OTHER: 90_000})),
            (2_000, report(2, {OTHER: 70_000}, base=1)),
            (3_000, report(3, {OTHER: 60_000}, base=2, forgotten=(TASK,))),
        )
    )
    measured = [(each.from_ms, each.records) for each in found.observations if each.from_ms >= 1_000]
    assert measured == [(1_000, 20_000), (2_000, 10_000)]


def test_fit_speed_within_factor_four_is_a_measurement() -> None:
    assert observation(100, 400).measured == 200
    assert observation(100, 401).measured is None
    assert observation(100).measured is None


def test_quartiles_of_measurements_are_their_own() -> None:
    speed = speed_of([observation(each, each) for each in (40, 10, 30, 20)])
    assert (speed.lower_quartile, speed.median, speed.upper_quartile) == (10, 20, 30)
    assert (speed.measured, speed.bounds, speed.largest_bound) == (4, 0, 40)


def test_bounds_count_as_speeds_beyond_them() -> None:
    """Kaplan-Meier by hand: 10 (1/4 slower), bound 15, 20 (of the two left: 5/8 slower), bound 30:
    the upper quartile stays open.
    """
    speed = speed_of([observation(10, 10), observation(15), observation(20, 20), observation(30)])
    assert (speed.lower_quartile, speed.median, speed.upper_quartile) == (10, 20, None)
    assert speed_of([observation(10), observation(20)]).median is None
    assert speed_of([]).largest_bound is None


def test_fit_ready_right_after_report_ends_the_restore() -> None:
    entries = ((0, told(TASK)), (1_000, report(1, {TASK: 80_000})), (3_000, report(2, {TASK: 900})))
    ready = TaskReady(member_id="m", incarnation=1, assignment_epoch=1, tasks=(TASK,))
    assert fit(group(*entries)).observations[-1].high is None
    assert fit(group(*entries, (3_010, ready))).observations[-1].measured == pytest.approx(39_550)
    assert fit(group(*entries, (3_100, ready))).observations[-1].high is None  # made for another reason


def test_estimate_is_median_of_measurements() -> None:
    measured = [observation(each, each) for each in (10, 20, 30)]
    assert estimate_of(measured) == Estimate(records_per_s=20, low=10, high=30, basis="median of 3 measurements")
    many = estimate_of([observation(each, each) for each in range(100, 200)])
    assert many.low is not None
    assert many.high is not None
    assert 135 < many.low < many.records_per_s < many.high < 165


def test_estimate_of_many_measurements_is_narrow() -> None:
    """Of 100,000 the median's rank lies within 1.645 standard deviations of the middle, 316 / 2
    ranks each, 9 times in 10.
    """
    measured = range(1, 100_001)
    estimate = estimate_of([observation(each, each) for each in measured])
    assert estimate.low == pytest.approx(50_000 - 260, abs=2)
    assert estimate.high == pytest.approx(50_000 + 260, abs=2)


def test_estimate_without_observations_is_the_default() -> None:
    assert estimate_of([]) == Estimate(records_per_s=DEFAULT_RECORDS_PER_S, low=None, high=None, basis="default: nothing was seen restoring")


def test_estimate_from_bounds_is_open_until_an_interval_narrows() -> None:
    bounds = [observation(each * 1_000) for each in (5, 20, 60, 100, 110, 120)]
    open_end, pinned = estimate_of(bounds), estimate_of([*bounds, observation(120_000, 480_000)])
    assert 120_000 < open_end.records_per_s < 1_000_000
    for each in (open_end, pinned):
        assert each.low is not None
        assert each.high is not None
        assert each.low < each.records_per_s < each.high
    assert (pinned.high or 0) < (open_end.high or 0) / 2
    assert "6 bounds and 1 interval," in pinned.basis


@pytest.mark.parametrize("spread", [0.1, 0.4])
@pytest.mark.parametrize("window_s", [0.5, 2.0])
def test_most_likely_finds_speed_from_intervals(spread: float, window_s: float) -> None:
    """Restores whose speeds are log-normal around 200,000/s, seen only in steps of a window: the
    interval holds the truth 9 times in 10.
    """
    chance = Random(7)
    inside = 0
    for _ in range(REPEATS):
        seen = []
        for _ in range(8):
            speed = 200_000 * math.exp(chance.gauss(0, spread))
            records = chance.randint(100_000, 900_000)
            steps = math.ceil(records / speed / window_s)  # caught up at this look, and not at the one before
            seen.append(observation(records / steps / window_s, records / (steps - 1) / window_s if steps > 1 else None))
        low, _, high = most_likely(seen)
        inside += low <= 200_000 <= high
    assert inside >= 0.8 * REPEATS


def shipped(run: str) -> Fit:
    log = MemoryLog()
    import_history(SHIPPED / run, log)
    return fit(log.records)


REPEATS = 60
LOGGED = (83_905, 31_840, 144_211, 240_682, 353_800, 99_763, 265_762, 455_599)
"""Records/s of the eight longer restores of both runs, as their processes logged them. Median:
193,000.
"""


@pytest.mark.parametrize("run", ["scale-out", "rolling"])
def test_fit_recorded_run_gives_the_logged_speed(run: str) -> None:
    found = shipped(run)
    assert found.overall.measured == 0  # reports are up to a third of the session timeout old: nothing can be measured in a few seconds
    assert found.join_wait_ms == 3_333
    assert found.overall.bounds >= 30
    logged = statistics.median(LOGGED)
    assert found.low_records_per_s is not None
    assert found.high_records_per_s is not None
    assert found.low_records_per_s < logged < found.high_records_per_s
    assert logged / 1.35 < found.records_per_s < logged * 1.35
    assert "90 % between" in found.basis


def test_speed_fitted_on_one_run_covers_the_other() -> None:
    """Held out: a median speed outside the other run's interval would refute the fit."""
    one, other = shipped("scale-out"), shipped("rolling")
    for fitted, held_out in ((one, other), (other, one)):
        assert (held_out.low_records_per_s or 0) <= fitted.records_per_s <= (held_out.high_records_per_s or 0)


@pytest.mark.parametrize("true_speed", [60_000, 250_000])
def test_fit_simulated_log_gives_its_speed(true_speed: int) -> None:
    log = MemoryLog()
    import_history(SHIPPED / "scale-out", log)
    memory = MemorySink()
    simulate(read_recorded_inputs(log.records), Simulation(restore=RestoreModel(records_per_s=true_speed)), sink=memory)
    found = fit(memory.entries)
    assert "measurements" in found.basis
    assert found.records_per_s == pytest.approx(true_speed, rel=0.1)


def test_write_rates_of_the_recorded_run() -> None:
    """1,200 orders/s over 12 partitions, in the ratios 2.0 1.6 1.3 1.1 1.0 1.0 0.9 0.8 0.7 0.6 0.5
    0.5 (of 12.0).
    """
    rates = {rate.partition: rate.median for rate in shipped("scale-out").write_rates if rate.topic == "orders-orders-store-changelog"}
    assert len(rates) == 12
    for partition, share in enumerate((2.0, 1.6, 1.3, 1.1, 1.0, 1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.5)):
        assert rates[partition] == pytest.approx(1_200 * share / 12.0, rel=0.1)


def test_fit_table_and_json() -> None:
    found = shipped("rolling")
    rows = found.table()
    assert len({len(row) for row in rows}) == 1
    assert [row[0] for row in rows[:5]] == ["what", "restore, all members", "restore, i1", "restore, i2", "restore, i3"]
    assert rows[1][-1] == f"{found.records_per_s:,}/s ({found.basis})"
    assert [row[0] for row in rows[5:]] == [
        "writes, orders-customer-store-changelog (8 partitions)",
        "writes, orders-orders-store-changelog (12 partitions)",
    ]
    document = json.loads(json.dumps(found.as_json()))
    assert document["records_per_s"] == found.records_per_s
    assert len(document["observations"]) == found.overall.measured + found.overall.bounds


def read_on(fitting: Fitting, entries: Iterable[Entry]) -> dict[tuple[str, int, int], int]:
    """Member, begin and end of each stretch that it observes -> the records restored in it."""
    for entry in entries:
        fitting.take(entry)
    return {(each.member_id, each.from_ms, each.to_ms): each.records for each in fitting.observations}


@pytest.mark.parametrize("standbys", [0, 1])
@pytest.mark.parametrize("share", [0.02, 0.1, 0.3, 0.5, 0.9])
def test_reader_that_begins_in_the_middle_observes_nothing_else(share: float, standbys: int) -> None:
    """Without the settings, copies that are near enough would count as restored, slowly. It knows
    no growth at first.
    """
    entries = lived(num_standbys=standbys)
    machine = GroupMachine()
    for entry in entries:
        if isinstance(entry, FactRecord):
            machine.step(entry)
    whole = read_on(Fitting(), entries)
    found = read_on(Fitting(group="orders", state=machine.state), entries[round(share * len(entries)) :])
    assert set(found) <= set(whole)
    assert all(records == pytest.approx(whole[place], rel=0.03) for place, records in found.items())
    assert found or share > 0.5
    assert len(whole) > 20


def test_fresh_fitting_goes_on_as_the_one_before() -> None:
    entries = lived(num_standbys=1)
    fitting, half = Fitting(), len(entries) // 2
    before = read_on(fitting, entries[:half])
    fresh = fitting.afresh()
    after = read_on(fitting, entries[half:])
    assert read_on(fresh, entries[half:]) == {place: records for place, records in after.items() if place not in before}
    assert before
    assert len(after) > len(before)
