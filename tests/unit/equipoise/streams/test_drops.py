"""What windows, joins and reminders must not drop without a word."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from equipoise import ErrorPolicy, JsonSerde, Record, StringSerde, TaskContext
from equipoise.events.errors import InputError
from equipoise.streams import Reminders, StreamJoin, count, hopping, sessions, sliding, tumbling
from equipoise.testing import TaskDriver

SERDES: Any = {"key_serde": StringSerde(), "value_serde": JsonSerde()}


async def call_later(context: TaskContext, key: Any, value: Any, at_ms: int) -> None:
    context.send("out", value, key=key)


def returns_awaitable(context: TaskContext, key: Any, value: Any, at_ms: int) -> object:
    return call_later(context, key, value, at_ms)


class Calls:
    async def __call__(self, context: TaskContext, key: Any, value: Any, at_ms: int) -> None:
        context.send("out", value, key=key)


MADE: list[Callable[[Any], object]] = [
    lambda callback: Reminders("r", callback),
    lambda callback: tumbling("w", count(), size_ms=10, on_late=callback),
    lambda callback: hopping("w", count(), size_ms=10, every_ms=5, on_late=callback),
    lambda callback: sessions("w", count(), gap_ms=10, on_late=callback),
    lambda callback: sliding("w", count(), size_ms=10, on_late=callback),
    lambda callback: StreamJoin("j", before_ms=1, after_ms=1, on_late=callback),
]


@pytest.mark.parametrize("make", MADE)
@pytest.mark.parametrize("callback", [call_later, Calls(), partial(call_later), partial(Calls())])
def test_callback_async_is_refused_when_made(make: Callable[[Any], object], callback: Any) -> None:
    with pytest.raises(InputError, match=r"is async, .*write it with def"):
        make(callback)


async def test_callback_that_returns_an_awaitable_raises_and_keeps_the_reminder() -> None:
    reminders = Reminders("r", returns_awaitable)

    def handler(record: Record, context: TaskContext) -> None:
        reminders.run(context, record.timestamp_ms)
        if record.value == "set":
            reminders.set(context, 100, record.key)

    driver = TaskDriver(handler, on_error=ErrorPolicy.skip(), **SERDES)
    await driver.send("set", key="a", timestamp_ms=1)
    await driver.send("go", key="a", timestamp_ms=200)
    assert reminders.pending(driver.context) == 1

    stopping = TaskDriver(handler, **SERDES)
    await stopping.send("set", key="a", timestamp_ms=1)
    with pytest.raises(InputError, match=r"Reminders 'r': callback returns something to await"):
        await stopping.send("go", key="a", timestamp_ms=200)


async def test_on_late_that_returns_an_awaitable_raises() -> None:
    window = tumbling("w", count(), size_ms=10, on_late=returns_awaitable)

    def handler(record: Record, context: TaskContext) -> None:
        window.add(context, record.key, record.value, record.timestamp_ms)

    driver = TaskDriver(handler, **SERDES)
    await driver.send(1, key="a", timestamp_ms=1_000)
    with pytest.raises(InputError, match=r"FixedWindows 'w': on_late returns something to await"):
        await driver.send(1, key="a", timestamp_ms=1)
