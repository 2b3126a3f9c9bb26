"""Waits of a host for its brokers."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest

from equipoise.worker import broker_answers


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_answers, "MOST_PASS_S", 0.05)


async def test_answer_that_arrives_while_the_event_loop_is_held_is_in_time() -> None:
    near, far = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=near)
    asked = asyncio.ensure_future(broker_answers.answered(reader.readexactly(2), 0.2))
    await asyncio.sleep(0)
    far.sendall(b"ok")
    time.sleep(0.5)  # noqa: ASYNC251  # as a very large decision does
    assert await asked == b"ok"
    writer.close()
    far.close()


async def test_request_without_an_answer_ends_with_a_timeout() -> None:
    ended = asyncio.Event()

    async def ask() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with pytest.raises(TimeoutError):
        await broker_answers.answered(ask(), 0.2)
    assert ended.is_set()


async def test_request_that_fails_raises_its_error() -> None:
    async def ask() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await broker_answers.answered(ask(), 0.2)
