"""What is dropped is counted by who drops and why, and logged once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from equipoise import ErrorPolicy, JsonSerde, Record, StringSerde, TaskContext
from equipoise.member.tasks.drops import DropReason, Drops
from equipoise.streams import StreamJoin, StreamTable, TableJoin, Timers, count, hopping, sessions, sliding, tumbling
from equipoise.streams.stream_time import stream_time_ms
from equipoise.streams.windows import AnyWindows
from equipoise.testing import TaskDriver

SERDES: Any = {"key_serde": StringSerde(), "value_serde": JsonSerde()}
Add = Callable[[TaskContext, Any, Any, int], object]
JOIN: StreamJoin[Any, Any] = StreamJoin("x", before_ms=10, grace_ms=5)
WINDOWS: list[AnyWindows[Any, Any, Any]] = [
    tumbling("x", count(), size_ms=10, grace_ms=5),
    hopping("x", count(), size_ms=10, advance_ms=5, emit="final"),
    sessions("x", count(), gap_ms=10),
    sliding("x", count(), size_ms=10),
]
ADDS: list[tuple[str, Add]] = [*[(type(each).__name__, each.add) for each in WINDOWS], ("StreamJoin", JOIN.left), ("StreamJoin", JOIN.right)]
TABLE: StreamTable[Any] = StreamTable("x")
TABLES: TableJoin[Any, Any] = TableJoin("x")
PUTS: list[tuple[str, Add]] = [
    ("x", lambda context, key, value, at_ms: TABLE.put(context, key, value)),
    ("x.left", TABLES.left),
    ("x.right", TABLES.right),
]


def driver_of(add: Add, **given: Any) -> TaskDriver:
    def handle(record: Record, context: TaskContext) -> None:
        add(context, record.key, record.value, record.timestamp_ms)
        if record.value == "bad":
            raise ValueError("bad")

    return TaskDriver(handle, sources="in", **{**SERDES, **given})


@pytest.mark.parametrize(("what", "add"), ADDS)
async def test_late_records_are_counted_and_logged_once(what: str, add: Add, caplog: pytest.LogCaptureFixture) -> None:
    driver = driver_of(add, subtopology=3)
    for at_ms in (1_000, 1, 2, 3, 1_001):
        await driver.send(at_ms, key="a", timestamp_ms=at_ms)
    assert driver.dropped == {("x", "late"): 3}
    (line,) = (each.getMessage() for each in caplog.records)
    assert line == (
        f"task 3_0: {what} 'x' left out a record as late: in/0 at offset 1, key 'a', time 1 ms. "
        "This is logged once, equipoise_member_dropped_records_total counts the others"
    )


@pytest.mark.parametrize(("by", "add"), [*[("x", add) for _, add in ADDS], *PUTS])
@pytest.mark.parametrize("key_serde", [StringSerde(), JsonSerde()])
async def test_record_without_key_is_dropped_and_counted(by: str, add: Add, key_serde: Any, caplog: pytest.LogCaptureFixture) -> None:
    driver = driver_of(add, key_serde=key_serde)
    for key in (None, "a", None):
        await driver.send(1, key=key, timestamp_ms=5)
    assert driver.dropped == {(by, "null_key"): 2}
    assert [each.getMessage().count("as null_key: in/0 at offset 0, key None") for each in caplog.records] == [1]


async def test_table_has_nothing_for_no_key() -> None:
    found = []
    driver = TaskDriver(lambda record, context: found.append(TABLE.get(context, record.key)), sources="in", **SERDES)
    await driver.send(1)
    assert found == [None]
    assert driver.dropped == {}


async def test_join_that_waits_in_vain_drops_nothing() -> None:
    driver = driver_of(JOIN.left)
    for at_ms in (1, 1_000):
        await driver.send(1, key="a", timestamp_ms=at_ms)
    assert driver.dropped == {}


async def test_late_record_of_a_call_that_fails_counts_as_skipped_alone() -> None:
    driver = driver_of(WINDOWS[0].add, on_error=ErrorPolicy.retry(2, then=ErrorPolicy.skip()))
    for value, at_ms in ((1, 1_000), ("bad", 1), ("bad", 2), (1, 3)):
        await driver.send(value, key="a", timestamp_ms=at_ms)
    assert driver.dropped == {("in", "skipped"): 2, ("x", "late"): 1}


async def test_dead_letters_are_counted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    driver = driver_of(TABLES.left, on_error=ErrorPolicy.dead_letter("dead"))
    for _ in range(3):
        await driver.send("bad", key="a")
    assert driver.dropped == {("in", "dead_lettered"): 3}
    assert [each.getMessage() for each in caplog.records] == [
        "task 0_0: in/0 at offset 0 was sent to dead: ValueError: bad (equipoise_member_dropped_records_total counts the others)"
    ]


async def test_batches_and_timers_count_what_they_drop(caplog: pytest.LogCaptureFixture) -> None:
    window = tumbling("x", count(), size_ms=10)

    def batch(records: Sequence[Record], context: TaskContext) -> None:
        for each in records:
            window.add(context, each.key, each.value, each.value)

    def assigned(context: TaskContext) -> None:
        context.every(1, lambda context: TABLE.put(context, None, 1))

    driver = TaskDriver(batch_handler=batch, on_assigned=assigned, sources="in", **SERDES)
    await driver.send_many([("a", 100), ("a", 1), ("b", 2)])
    await driver.advance(2)
    assert driver.dropped == {("x", "late"): 2, ("x", "null_key"): 2}
    assert [each.getMessage().partition(". ")[0] for each in caplog.records] == [
        "task 0_0: FixedWindows 'x' left out a record as late: batch from in/0 at offset 0, key 'a', time 1 ms",
        "task 0_0: StreamTable 'x' left out a record as null_key: in a timer, key None, time None ms",
    ]


async def test_drops_of_windows_joins_and_tables_are_counted_from_0_on() -> None:
    used = [*WINDOWS[:1], StreamJoin("j", before_ms=1), StreamTable("t"), Timers("r", lambda *given: None)]

    def handle(record: Record, context: TaskContext) -> None:
        for each in used:
            each._state(context)

    driver = TaskDriver(handle, sources="in", **SERDES)
    await driver.send(1, key="a")
    found = [(by, reason) for _, by, reason in driver._failures.drops.counts]
    assert found == [("x", "late"), ("x", "null_key"), ("j", "late"), ("j", "null_key"), ("t", "null_key")]


def test_what_drops_of_a_source_are_counted_from_0_on() -> None:
    drops = Drops([("views", "in")])
    of_source = {("views", "in", reason): 0 for reason in ("skipped", "dead_lettered", "expired")}
    assert drops.counts == of_source | {("views", "stream time", "ahead"): 0}
    assert [drops.note("views", "in", DropReason.EXPIRED, 5) for _ in range(2)] == [True, False]
    assert drops.counts["views", "in", "expired"] == 10


async def test_time_ahead_counts_once_for_each_record() -> None:
    """However many windows it goes to; it has its place in them."""
    windows = [tumbling(name, count(), size_ms=10) for name in ("x", "y")]

    def handle(record: Record, context: TaskContext) -> None:
        for each in windows:
            each.add(context, record.key, record.value, record.timestamp_ms)

    driver = TaskDriver(handle, sources="in", **SERDES)
    driver.context.look_up_latest = lambda: driver.now_ms + 1_000
    for at_ms in (5, 9_001, 9_005, 1_000):
        await driver.send(1, key="a", timestamp_ms=at_ms)
    assert driver.dropped == {("stream time", "ahead"): 2}
    assert [windows[1].get(driver.context, "a", at_ms) for at_ms in (9_000, 1_000)] == [2, 1]
    assert stream_time_ms(driver.context) == 1_000
    await driver.advance(60)
    await driver.send(1, key="a", timestamp_ms=61_000)
    assert stream_time_ms(driver.context) == 61_000


async def test_time_ahead_is_not_handed_on_and_counts_where_there_is_no_window() -> None:
    driver = TaskDriver(lambda record, context: context.send("out", 1, key="a"), sources="in", **SERDES)
    driver.context.look_up_latest = lambda: 1_000
    sent = [(await driver.send(1, key="a", timestamp_ms=at_ms))[0].timestamp_ms for at_ms in (900, 4_000, 4_000, 1_000)]
    assert sent == [900, None, None, 1_000]
    assert driver.dropped == {("stream time", "ahead"): 2}


async def test_times_ahead_of_a_batch_are_left_out() -> None:
    window = tumbling("x", count(), size_ms=10)

    def batch(records: Sequence[Record], context: TaskContext) -> None:
        context.send("out", 1, key="a")
        for each in records:
            window.add(context, each.key, each.value, each.timestamp_ms)

    driver = TaskDriver(batch_handler=batch, sources="in", **SERDES)
    driver.context.look_up_latest = lambda: 1_000
    given = [driver._consumed(1, "a", None, (), at_ms, None) for at_ms in (900, 4_000, 4_000, 950)]
    assert [each.timestamp_ms for each in await driver._handle(given)] == [950]
    assert driver.dropped == {("stream time", "ahead"): 2}
    assert stream_time_ms(driver.context) == 950
