"""The event loop with which a log in Kafka is read, when an interrupt comes."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from equipoise.log.kafka.log_loop import LogLoop


@contextlib.asynccontextmanager
async def noted(said: list[str]) -> AsyncIterator[str]:
    said.append("entered")
    try:
        yield "client"
    finally:
        await asyncio.sleep(0)
        said.append("left")


def interrupt_once(monkeypatch: pytest.MonkeyPatch, *, done: bool) -> None:
    """The next wait for a result is interrupted: when that is there (`done`), or before."""
    result = concurrent.futures.Future.result

    def interrupted(future: concurrent.futures.Future[Any], timeout: float | None = None) -> Any:
        monkeypatch.setattr(concurrent.futures.Future, "result", result)
        if done:
            result(future, timeout)
        else:
            concurrent.futures.wait([future], timeout=0.1)
        raise KeyboardInterrupt

    monkeypatch.setattr(concurrent.futures.Future, "result", interrupted)


def test_context_is_left_at_the_end_of_its_block() -> None:
    loop, said = LogLoop(), list[str]()
    with loop.within(noted(said)) as client:
        assert (client, said) == ("client", ["entered"])
    assert said == ["entered", "left"]
    loop.close()


def test_context_is_left_if_an_interrupt_comes_just_when_it_was_entered(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, said = LogLoop(), list[str]()
    interrupt_once(monkeypatch, done=True)
    with pytest.raises(KeyboardInterrupt), loop.within(noted(said)):
        pytest.fail("it was interrupted before")
    assert said == ["entered", "left"]
    loop.close()


def test_context_of_a_reading_that_was_given_up_is_left_when_the_loop_closes() -> None:
    loop, said = LogLoop(), list[str]()
    block = loop.within(noted(said))
    block.__enter__()
    loop.close()
    assert said == ["entered", "left"]
    del block


def test_work_that_is_interrupted_ends_before_the_loop_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client whose start is called off is closed by another task."""
    loop, said = LogLoop(), list[str]()

    async def close_client() -> None:
        await asyncio.sleep(0.05)
        said.append("closed")

    async def start() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.shield(asyncio.ensure_future(close_client()))

    interrupt_once(monkeypatch, done=False)
    with pytest.raises(KeyboardInterrupt):
        loop.run(start())
    loop.close()
    assert said == ["closed"]


def test_work_that_does_not_end_is_called_off_when_the_loop_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("equipoise.log.kafka.log_loop._STOP_S", 0.05)
    loop, said = LogLoop(), list[str]()

    async def go_on() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            said.append("called off")

    async def begin() -> asyncio.Task[None]:
        task = asyncio.ensure_future(go_on())
        await asyncio.sleep(0)
        return task

    task = loop.run(begin())
    loop.close()
    assert said == ["called off"]
    assert task.cancelled()
