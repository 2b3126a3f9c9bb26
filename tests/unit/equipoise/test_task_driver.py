"""`TaskDriver` shows what a handler sends, keeps, and does when it fails, without Kafka."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from equipoise import BytesSerde, ErrorPolicy, JsonSerde, MsgpackSerde, Record, StringSerde, TaskContext
from equipoise.events.errors import InputError
from equipoise.testing import SentRecord, TaskDriver

SERDES: dict[str, Any] = {"key_serde": StringSerde(), "value_serde": JsonSerde()}


async def add_up(record: Record, context: TaskContext) -> None:
    total = (context.state.get(record.key) or 0) + record.value["cents"]
    context.state.put(record.key, total)
    context.send("totals", total, key=record.key, timestamp_ms=record.timestamp_ms)


async def test_driver_returns_what_was_sent_and_shows_the_state() -> None:
    driver = TaskDriver(add_up, **SERDES)
    assert await driver.send({"cents": 5}, key="c1", timestamp_ms=9) == [SentRecord("totals", "c1", 5, timestamp_ms=9)]
    assert await driver.send({"cents": 7}, key="c1") == [SentRecord("totals", "c1", 12, timestamp_ms=0)]
    assert list(driver.state.items()) == [("c1", 12)]
    assert driver.failed is None


async def test_driver_raises_what_the_handler_raises_and_keeps_nothing_of_the_record() -> None:
    driver = TaskDriver(add_up, **SERDES)
    with pytest.raises(KeyError, match="cents"):
        await driver.send_many([("c1", {"cents": 5}), ("c2", {})])
    assert list(driver.state.items()) == [("c1", 5)]
    assert driver.failed is not None
    assert (driver.failed.topic, driver.failed.offset) == ("source", 1)
    assert await driver.send({"cents": 5}, key="c3") == []  # it has failed


async def test_driver_sends_dead_letters_of_records_that_cannot_be_read() -> None:
    driver = TaskDriver(add_up, on_error=ErrorPolicy.retry(3, backoff_s=10, then=ErrorPolicy.dead_letter("dead")), **SERDES)
    (letter,) = await driver.send(b"{", key="c1", value_serde=BytesSerde())
    assert (letter.topic, letter.key, letter.value) == ("dead", "c1", b"{")
    assert dict(letter.headers)["equipoise.error.offset"] == b"0"
    assert await driver.send({"cents": 5}, key="c1") == [SentRecord("totals", "c1", 5, timestamp_ms=70_000)]  # after the retries


async def test_driver_runs_timers_when_time_passes() -> None:
    async def flush(context: TaskContext) -> None:
        context.send("totals", sum(value for _, value in context.state.items()))

    driver = TaskDriver(add_up, on_assigned=lambda context: context.every(60, flush), **SERDES)
    await driver.send({"cents": 5}, key="c1")
    assert await driver.advance(59) == []
    assert await driver.advance(1) == [SentRecord("totals", None, 5)]
    assert await driver.advance(120) == [SentRecord("totals", None, 5)] * 2


async def test_driver_gives_a_batch_handler_many_records() -> None:
    async def handle(records: Sequence[Record], context: TaskContext) -> None:
        known = context.states["counts"].get_many(record.key for record in records)
        context.send("out", [known, [record.value for record in records]])

    driver = TaskDriver(batch_handler=handle, sources=["a", "b"], state="counts", value_serde=MsgpackSerde())
    assert await driver.send_many([(b"x", 1), (b"y", 2)], topic="b") == [SentRecord("out", None, [[None, None], [1, 2]], timestamp_ms=0)]


async def test_driver_gives_a_batch_handler_as_many_records_as_a_member() -> None:
    sizes: list[int] = []

    async def handle(records: Sequence[Record], context: TaskContext) -> None:
        sizes.append(len(records))

    await TaskDriver(batch_handler=handle).send_many([(b"k", b"v")] * 1_200)
    await TaskDriver(batch_handler=handle, most_uncommitted_records=2).send_many([(b"k", b"v")] * 3)
    assert sizes == [500, 500, 200, 2, 1]


async def test_driver_names_the_changelog_of_a_record_that_is_too_large() -> None:
    def keep(record: Record, context: TaskContext) -> None:
        context.state.put("k", "x" * 2**20)

    driver = TaskDriver(keep, state="totals", key_serde=StringSerde(), value_serde=JsonSerde())
    with pytest.raises(InputError, match=r"a record for totals has 1,0\d\d,\d\d\d bytes"):
        await driver.send(1)


def test_driver_needs_no_hypothesis() -> None:
    code = "import sys; sys.modules['hypothesis'] = None; from equipoise.testing import TaskDriver, Group; print(TaskDriver.__name__)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "TaskDriver"
