"""The rates of a member's tasks."""

from __future__ import annotations

from equipoise.events.tasks import TaskId
from equipoise.hosting.machine_load import MEASURE_EVERY_MS
from equipoise.member.session.progress_reports import Rates

A, B = TaskId(0, 0), TaskId(0, 1)


def test_rates_are_taken_between_measurements_that_are_far_enough_apart() -> None:
    rates = Rates()
    rates.look({A: 100, B: 7}, 1_000)
    assert rates.per_s == {}
    rates.look({A: 900, B: 7}, 1_000 + MEASURE_EVERY_MS - 1)
    assert rates.per_s == {}
    rates.look({A: 1_100, B: 7}, 1_000 + MEASURE_EVERY_MS)
    assert rates.per_s == {A: 200, B: 0}
    rates.look({A: 9_999, B: 7}, 2_000 + MEASURE_EVERY_MS)
    assert rates.per_s == {A: 200, B: 0}


def test_rate_of_a_stopped_task_goes_at_once_and_of_a_reopened_one_comes_a_measurement_later() -> None:
    rates = Rates()
    rates.look({A: 0}, 0)
    rates.look({A: 10_000}, 10_000)
    assert rates.per_s == {A: 1_000}
    rates.look({B: 5}, 10_001)
    assert rates.per_s == {}
    rates.look({A: 3, B: 5}, 20_000)
    assert rates.per_s == {}
    rates.look({A: 10_003, B: 5}, 30_000)
    assert rates.per_s == {A: 1_000, B: 0}
