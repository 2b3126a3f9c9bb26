"""The fitted restore speed: what is a measurement and what only a bound, what they say together, and how it compares with what processes logged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from events.decisions import MemberAssigned
from events.facts import Fact, GroupConfigured, LagReported, MemberJoined, PartitionsObserved, Subtopology, TopologyDeclared
from events.knobs import Knobs
from events.records import DecisionRecord, Record
from events.tasks import Lag, LagSentinel, TaskId
from replay.fit import DEFAULT_RECORDS_PER_S, Fit, Observation, fit, speed_of, speed_to_use
from replay.kafka_streams import import_history
from replay.kafka_streams.check import Gathered

SHIPPED = Path(__file__).parents[3] / "replay" / "data"
TASK, OTHER = TaskId(0, 0), TaskId(0, 1)


def observation(low: float, high: float | None = None) -> Observation:
    return Observation(member_id="m", from_ms=0, to_ms=1, copies=1, records=1, low=low, high=high, basis="reports")


def group(*entries: tuple[int, Fact | MemberAssigned]) -> list[Record | DecisionRecord]:
    """A log that equipoise led: one stateful sub-topology of two tasks, changelogs of 100,000 records, acceptable lag 1,000."""
    topology = TopologyDeclared(epoch=1, subtopologies=(Subtopology(subtopology=0, partitions=2, stateful=True, changelog_topics=("c",)),))
    start: list[tuple[int, Fact | MemberAssigned]] = [
        (0, GroupConfigured(knobs=Knobs(acceptable_recovery_lag=1_000))),
        (0, topology),
        (0, PartitionsObserved(end_offsets={"c": {0: 100_000, 1: 100_000}})),
        (0, MemberJoined(member_id="m", incarnation=1, join_nonce="n")),
    ]
    found: list[Record | DecisionRecord] = []
    offset = number = 0
    for append_ms, event in [*start, *entries]:
        if isinstance(event, MemberAssigned):
            number += 1
            found.append(DecisionRecord("log", "g", number, offset - 1, 0, 0, event))
        else:
            found.append(Record("g", offset, append_ms, event))
            offset += 1
    return found


def told(*tasks: TaskId) -> MemberAssigned:
    return MemberAssigned(member_id="m", incarnation=1, assignment_epoch=1, warmup=tasks)


def report(number: int, lags: dict[TaskId, Lag], **more: Any) -> LagReported:
    return LagReported(member_id="m", incarnation=1, number=number, assignment_epoch=1, lags=lags, **more)


def test_a_copy_that_is_still_far_behind_is_a_measurement() -> None:
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


def test_a_copy_that_has_caught_up_is_a_bound() -> None:
    for caught_up in (1_000, 0, LagSentinel.ACTIVE):
        found = fit(group((0, told(TASK)), (1_000, report(1, {TASK: 80_000})), (4_000, report(2, {TASK: caught_up}))))
        last = found.observations[-1]
        assert last.measured is None
        assert last.low == (80_000 - (caught_up if isinstance(caught_up, int) else 0)) / 3
        assert found.overall.bounds >= 1


def test_all_copies_of_a_member_count_together() -> None:
    """One caught up, one did not: the member was restoring all the time."""
    found = fit(group((0, told(TASK, OTHER)), (1_000, report(1, {TASK: 5_000, OTHER: 60_000})), (3_000, report(2, {TASK: 0, OTHER: 25_000}))))
    assert (found.observations[-1].records, found.observations[-1].copies, found.observations[-1].measured) == (40_000, 2, 20_000.0)


def test_what_shows_no_restore_says_nothing() -> None:
    silent = [
        group((1_000, report(1, {TASK: 80_000})), (4_000, report(2, {TASK: 50_000}))),  # nobody told it to keep the copy
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


def test_a_speed_known_within_a_factor_of_four_is_a_measurement() -> None:
    assert observation(100, 400).measured == 200
    assert observation(100, 401).measured is None
    assert observation(100).measured is None


def test_quartiles_of_measurements_are_their_own() -> None:
    speed = speed_of([observation(each, each) for each in (40, 10, 30, 20)])
    assert (speed.lower_quartile, speed.median, speed.upper_quartile) == (10, 20, 30)
    assert (speed.measured, speed.bounds, speed.largest_bound) == (4, 0, 40)


def test_bounds_count_as_speeds_beyond_them() -> None:
    """Kaplan-Meier by hand: 10 (1/4 slower), bound 15, 20 (of the two left: 5/8 slower), bound 30: the upper quartile stays open."""
    speed = speed_of([observation(10, 10), observation(15), observation(20, 20), observation(30)])
    assert (speed.lower_quartile, speed.median, speed.upper_quartile) == (10, 20, None)
    assert speed_of([observation(10), observation(20)]).median is None
    assert speed_of([]).largest_bound is None


def used(*observations: Observation) -> tuple[int, str]:
    return speed_to_use(speed_of(observations))


def test_what_is_used_says_where_it_comes_from() -> None:
    measured = [observation(each, each) for each in (10, 20, 30)]
    assert used(*measured) == (20, "median of 3 measurements")
    assert used(*measured[:2], observation(25)) == (25, "largest of 1 bounds: at least so fast")
    assert used() == (DEFAULT_RECORDS_PER_S, "default: nothing was seen restoring")


def shipped(run: str) -> Fit:
    log = Gathered()
    import_history(SHIPPED / run, log)
    return fit(log.records)


@pytest.mark.parametrize("run", ["scale-out", "rolling"])
def test_the_recorded_runs_give_bounds_that_hold(run: str) -> None:
    """What the processes of these runs logged themselves of their eight longer restores: 32,000 to 456,000 records/s, median 193,000."""
    found = shipped(run)
    assert found.overall.measured == 0  # reports are up to a third of the session timeout old: nothing can be measured in a few seconds
    assert found.join_wait_ms == 3_333
    assert found.overall.bounds >= 30
    assert "at least so fast" in found.basis
    assert 100_000 < found.records_per_s < 456_000
    assert found.overall.largest_bound is not None
    assert all(speed.largest_bound is not None and speed.largest_bound <= found.overall.largest_bound for speed in found.members.values())


def test_write_rates_of_the_recorded_run() -> None:
    """1,200 orders/s over 12 partitions, in the ratios 2.0 1.6 1.3 1.1 1.0 1.0 0.9 0.8 0.7 0.6 0.5 0.5 (of 12.0)."""
    rates = {rate.partition: rate.median for rate in shipped("scale-out").write_rates if rate.topic == "orders-orders-store-changelog"}
    assert len(rates) == 12
    for partition, share in enumerate((2.0, 1.6, 1.3, 1.1, 1.0, 1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.5)):
        assert rates[partition] == pytest.approx(1_200 * share / 12.0, rel=0.1)


def test_the_fit_is_shown() -> None:
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
