"""What windows, joins and timers must not drop without a word."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from equipoise import ErrorPolicy, JsonSerde, Processor, Record, StringSerde, TaskContext
from equipoise.events.errors import InputError
from equipoise.streams import StreamJoin, Timers, count, hopping, sessions, sliding, tumbling
from equipoise.testing import Group, TaskDriver

SERDES: Any = {"key_serde": StringSerde(), "value_serde": JsonSerde()}


async def call_later(context: TaskContext, key: Any, value: Any, at_ms: int) -> None:
    context.send("out", value, key=key)


def returns_awaitable(context: TaskContext, key: Any, value: Any, at_ms: int) -> object:
    return call_later(context, key, value, at_ms)


class Calls:
    async def __call__(self, context: TaskContext, key: Any, value: Any, at_ms: int) -> None:
        context.send("out", value, key=key)


MADE: list[Callable[[Any], object]] = [
    lambda callback: Timers("r", callback),
    lambda callback: tumbling("w", count(), size_ms=10, on_late=callback),
    lambda callback: hopping("w", count(), size_ms=10, advance_ms=5, on_late=callback),
    lambda callback: sessions("w", count(), gap_ms=10, on_late=callback),
    lambda callback: sliding("w", count(), size_ms=10, on_late=callback),
    lambda callback: StreamJoin("j", before_ms=1, after_ms=1, on_late=callback),
]


@pytest.mark.parametrize("make", MADE)
@pytest.mark.parametrize("callback", [call_later, Calls(), partial(call_later), partial(Calls())])
def test_callback_async_is_refused_when_made(make: Callable[[Any], object], callback: Any) -> None:
    with pytest.raises(InputError, match=r"is async, .*write it with def"):
        make(callback)


async def test_callback_that_returns_an_awaitable_raises_and_keeps_the_timer() -> None:
    timers = Timers("r", returns_awaitable)

    def handler(record: Record, context: TaskContext) -> None:
        timers.run(context, record.timestamp_ms)
        if record.value == "set":
            timers.set(context, 100, record.key)

    driver = TaskDriver(handler, on_error=ErrorPolicy.skip(), **SERDES)
    await driver.send("set", key="a", timestamp_ms=1)
    await driver.send("go", key="a", timestamp_ms=200)
    assert timers.pending(driver.context) == 1

    stopping = TaskDriver(handler, **SERDES)
    await stopping.send("set", key="a", timestamp_ms=1)
    with pytest.raises(InputError, match=r"Timers 'r': callback returns something to await"):
        await stopping.send("go", key="a", timestamp_ms=200)


async def test_on_late_that_returns_an_awaitable_raises() -> None:
    window = tumbling("w", count(), size_ms=10, on_late=returns_awaitable)

    def handler(record: Record, context: TaskContext) -> None:
        window.add(context, record.key, record.value, record.timestamp_ms)

    driver = TaskDriver(handler, **SERDES)
    await driver.send(1, key="a", timestamp_ms=1_000)
    with pytest.raises(InputError, match=r"FixedWindows 'w': on_late returns something to await"):
        await driver.send(1, key="a", timestamp_ms=1)


async def test_send_without_timestamp_has_the_time_of_what_is_handled() -> None:
    timers = Timers("r", lambda context, key, value, due_ms: context.send("due", value, key=key))

    def handler(record: Record, context: TaskContext) -> None:
        timers.run(context, record.timestamp_ms)
        timers.set(context, record.timestamp_ms + 100, record.key)
        context.send("out", 1, key=record.key)
        context.send_many("out", [(record.key, 2)])
        context.send("out", 3, key=record.key, timestamp_ms=context.now_ms)

    def assigned(context: TaskContext) -> None:
        context.send("out", 0)
        context.every(1, lambda context: context.send("out", 9))

    driver = TaskDriver(handler, on_assigned=assigned, **SERDES)
    assert [(each.value, each.timestamp_ms) for each in await driver.send(1, key="a", timestamp_ms=7)] == [(0, None), (1, 7), (2, 7), (3, 0)]
    assert [(each.value, each.timestamp_ms) for each in await driver.advance(1)] == [(9, None)]
    sent = await driver.send(1, key="a", timestamp_ms=500)
    assert [(each.topic, each.timestamp_ms) for each in sent] == [("due", 107), ("out", 500), ("out", 500), ("out", 1_000)]
    assert (await driver.send(1, key="a", timestamp_ms=-1))[0].timestamp_ms is None


async def test_send_of_a_batch_without_timestamp_has_its_latest_time() -> None:
    def batch(records: Sequence[Record], context: TaskContext) -> None:
        context.send("out", len(records))

    driver = TaskDriver(batch_handler=batch, **SERDES)
    await driver.advance(3)
    assert [(each.value, each.timestamp_ms) for each in await driver.send_many([("a", 1), ("b", 2)])] == [(2, 3_000)]


def test_windows_behind_another_topic_have_the_times_of_the_first_records() -> None:
    views = tumbling("v", count(), size_ms=60_000, grace_ms=86_400_000)

    def by_page(record: Record, context: TaskContext) -> None:
        context.send("mid", record.value, key=record.value["page"])

    def per_minute(record: Record, context: TaskContext) -> None:
        for each in views.add(context, record.key, record.value, record.timestamp_ms):
            context.send("out", {"minute": each.start_ms, "n": each.value}, key=each.key)

    chain = [Processor(by_page, sources="in", outputs="mid"), Processor(per_minute, sources="mid", state="s", outputs="out")]
    first_ms = 1_599_999_960_000
    with Group(processors=chain, guarantee="exactly_once", **SERDES) as group:
        group.join("m1")
        for minute in range(10):
            group.send({"page": "/"}, key=f"u{minute}", timestamp_ms=first_ms + minute * 60_000)
        group.settle()
        minutes = {(each.value["minute"], each.value["n"]) for each in group.outputs("out")}
    assert minutes == {(first_ms + minute * 60_000, 1) for minute in range(10)}
