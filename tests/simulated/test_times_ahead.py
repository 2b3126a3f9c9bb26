"""A record whose time is far ahead of the brokers' clock moves no stream time."""

from __future__ import annotations

from typing import Any

import pytest

from equipoise import JsonSerde, Record, StringSerde, TaskContext
from equipoise.streams import count, tumbling
from equipoise.testing import Group
from tests.simulated.test_dropped_records import metrics_of

SERDES: Any = {"key_serde": StringSerde(), "value_serde": JsonSerde()}
YEAR_2100_MS = 4_102_444_800_000
MINUTE_MS = 60_000
ONCE = "This is logged once, equipoise_member_dropped_records_total counts the others"


@pytest.mark.parametrize("clock_ms", [0, 2 * 3_600_000, -2 * 3_600_000])
@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_record_of_2100_makes_no_later_ones_late(guarantee: str, clock_ms: int, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever the member's own clock says."""
    views = tumbling("minutes", count(), size_ms=MINUTE_MS, emit="final")

    def handle(record: Record, context: TaskContext) -> None:
        for each in views.add(context, record.key, record.value, record.timestamp_ms):
            context.send("out", {"minute": each.start_ms, "views": each.value}, key=each.key)

    with Group(handle, state="s", outputs="out", partitions=1, guarantee=guarantee, **SERDES) as group:
        group.join("m1")
        group.settle()
        group._seats["m1"].machine.wall_offset_us += clock_ms * 1_000
        first_ms = group._cluster.now_ms() // MINUTE_MS * MINUTE_MS
        for number in range(10):
            for at_ms in (first_ms + number * MINUTE_MS, YEAR_2100_MS + number):
                group.send(1, key="a", timestamp_ms=at_ms)
        group.settle()
        assert [each.value for each in group.outputs()] == [{"minute": first_ms + number * MINUTE_MS, "views": 1} for number in range(9)]
        assert metrics_of(group) == {("0", "stream time", "ahead"): 10}
        assert [each.getMessage() for each in caplog.records if "as ahead" in each.getMessage()] == [
            f"task 0_0: stream time left out a record as ahead: source/0 at offset 1, key b'a', time {YEAR_2100_MS} ms. {ONCE}"
        ]
        group.crash("m1")
        group.join("m1")
        group.send(1, key="a", timestamp_ms=first_ms + 10 * MINUTE_MS)
        group.settle()
        assert len(group.outputs()) == 10
        group.recount()


def test_windows_of_times_to_come_move_with_them_where_that_is_meant() -> None:
    bookings = tumbling("days", count(), size_ms=24 * 60 * MINUTE_MS, emit="final")

    def handle(record: Record, context: TaskContext) -> None:
        for each in bookings.add(context, record.key, record.value, record.value):
            context.send("out", each.start_ms, key=each.key, timestamp_ms=context.now_ms)

    with Group(handle, state="s", outputs="out", partitions=1, max_ahead_ms=100 * 366 * 24 * 60 * MINUTE_MS, **SERDES) as group:
        group.join("m1")
        for days in range(3):
            group.send(YEAR_2100_MS + days * 24 * 60 * MINUTE_MS, key="a")
        group.settle()
        assert [each.value for each in group.outputs()] == [YEAR_2100_MS, YEAR_2100_MS + 24 * 60 * MINUTE_MS]
        assert metrics_of(group) == {}
