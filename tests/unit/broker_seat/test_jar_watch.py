"""Whether brokers still have the assignor, asked of brokers that answer, fail and answer again."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import attrs
import pytest

from equipoise.hosting.runtime import DEPLOYED
from equipoise.kafka.connection import Connection
from equipoise.lead.broker_seat import jar_watch
from equipoise.lead.broker_seat.extra_member import NoBrokerSeatError
from equipoise.lead.broker_seat.jar_watch import JarWatch
from equipoise.lead.broker_seat.ways import Way

WAY = Way(name="brokers")


class Answers:
    """What brokers answer, one look after another."""

    def __init__(self, *answers: tuple[int, ...] | Exception) -> None:
        self.left = list(answers)

    async def look_inside(self, _asking: Any, way: Way) -> Way:
        answer = self.left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return attrs.evolve(way, without_jar=answer)


class NoClient:
    def __init__(self, connection: Connection) -> None:
        pass

    async def __aenter__(self) -> NoClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass


async def looked(monkeypatch: pytest.MonkeyPatch, *answers: tuple[int, ...] | Exception, watch: JarWatch | None = None) -> None:
    """Has the brokers answer so until one lacks the assignor, or nothing is left to answer."""
    answering = Answers(*answers)
    for name, value in (("CHECK_S", 0.0), ("Asking", NoClient), ("look_inside", answering.look_inside)):
        monkeypatch.setattr(jar_watch, name, value)
    watching = asyncio.create_task((watch or JarWatch(Connection(), DEPLOYED.monotonic_s)).until_lost(WAY, "orders"))
    while answering.left and not watching.done():  # noqa: ASYNC110  # each turn is a look
        await asyncio.sleep(0)
    watching.cancel()
    await watching


async def test_seat_hears_of_a_broker_that_lost_the_assignor_also_after_looks_that_failed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    with pytest.raises(NoBrokerSeatError, match=r"of broker 2 does not name"):
        await looked(monkeypatch, (), RuntimeError("a client's own"), OSError("away"), (), (2,), ())
    assert [each.getMessage() for each in caplog.records] == [
        "whether brokers still have the assignor cannot be asked (RuntimeError a client's own); asking again"
    ]


async def test_look_that_fails_says_nothing_about_the_assignor(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(asyncio.CancelledError):
        await looked(monkeypatch, (), *[OSError("away")] * 3)


async def test_seat_that_began_once_brokers_had_it_again_does_not_leave_for_a_look_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = JarWatch(Connection(), DEPLOYED.monotonic_s)
    with pytest.raises(NoBrokerSeatError):
        await looked(monkeypatch, (2,), watch=watch)
    with pytest.raises(asyncio.CancelledError):
        await looked(monkeypatch, OSError("away"), OSError("away"), watch=watch)
