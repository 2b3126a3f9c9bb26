"""The member's connection to its leader, without a broker: how it reads records of the decisions
topic.
"""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import msgpack
import pytest
from aiokafka.errors import ProducerClosed, UnknownTopicOrPartitionError

from equipoise.events import codec
from equipoise.events.decisions import MemberAssigned
from equipoise.events.errors import DamagedError
from equipoise.events.facts import Fact, LogOpened, MemberJoined, TaskReady
from equipoise.events.records import DecisionRecord, UnreadDecision
from equipoise.events.tasks import TaskId
from equipoise.hosting.runtime import DEPLOYED
from equipoise.kafka.connection import Connection
from equipoise.member.options import MemberOptions
from equipoise.member.session.link import Link
from equipoise.statemachine.member import Reception

KIND, VERSION, PAYLOAD = codec.encode(MemberAssigned(member_id="m1", incarnation=1, assignment_epoch=1))


def link() -> Link:
    noted: dict[str, Any] = dict.fromkeys(("received", "read_up_to_end", "went_back", "replaced", "acknowledged"), print)
    made = Link(Connection(), "g", MemberOptions(), DEPLOYED, **noted)
    made._opening = LogOpened(log_id="log")
    return made


def record(kind: int = KIND, version: int = VERSION, payload: bytes = PAYLOAD, *, key: bytes = b"g", damaged: bool = False) -> Any:
    checksum = codec.decision_checksum("log", "g", 4, 3, 0, 1, kind, version, payload)
    value = b"".join((b"\x99", *map(msgpack.packb, ("log", 4, 3, 0, 1, checksum + damaged, kind, version)), payload))
    return SimpleNamespace(key=key, value=value, topic="t", partition=0, offset=0)


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        (record(), None),
        (record(version=VERSION + 1), (True, "m1", 1)),
        (record(version=VERSION + 1, payload=msgpack.packb(["m2", 9, {"whatever": 1}])), (True, "m2", 9)),
        (record(kind=199, version=1, payload=msgpack.packb(["m1", 1])), (True, "m1", 1)),
        (record(kind=250, version=1, payload=b"anything"), (False, None, None)),
        (record(payload=msgpack.packb([*msgpack.unpackb(PAYLOAD), None, None, "appended"])), None),
    ],
)
def test_decision_is_decoded_or_names_the_member_it_binds(of: Any, expected: tuple[bool, str | None, int | None] | None) -> None:
    read = link()._decode(of)
    if expected is None:
        assert isinstance(read, DecisionRecord)
        assert read.decision == MemberAssigned(member_id="m1", incarnation=1, assignment_epoch=1)
    else:
        assert isinstance(read, UnreadDecision)
        assert (read.binding, read.member_id, read.incarnation) == expected
    assert read.number == link()._number_of(of) == 4


def test_damaged_decision_is_an_error_when_read_and_has_no_number(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(DamagedError, match="differ from their checksum"):
        link()._decode(record(damaged=True))
    with caplog.at_level(logging.WARNING):
        assert link()._number_of(record(damaged=True)) == 0
    assert "ignoring an unreadable decision" in caplog.text


async def test_forgotten_link_passes_no_decision_to_the_next_session() -> None:
    seen: list[Any] = []
    asked, answer = asyncio.Event(), asyncio.Event()

    async def getmany(*partitions: Any, **how: Any) -> dict[Any, list[Any]]:
        asked.set()
        await answer.wait()
        return {partitions[0]: [record()]}

    def received(decision: Any) -> Reception:
        seen.append(decision)
        return Reception.APPLIED

    reading = link()
    reading._received = received
    reading._consumer = SimpleNamespace(getmany=getmany, resume=print, hold_fetches=print)
    reading.begin_reading()
    job = asyncio.ensure_future(reading.read())
    await asked.wait()
    reading.forget()
    answer.set()
    await asyncio.sleep(0.01)
    job.cancel()
    await asyncio.gather(job, return_exceptions=True)
    assert seen == []


def test_decision_of_another_log_has_no_number_here() -> None:
    other = link()
    other._opening = LogOpened(log_id="another")
    assert (link()._number_of(record()), other._number_of(record())) == (4, 0)


async def asking(made: Link) -> tuple[asyncio.Task[Any], asyncio.Future[Any]]:
    """A request for the topics' ids over the link's producer, and what it waits for."""
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def topic_ids(*_: Any) -> Any:
        return await answer

    made._producer = SimpleNamespace(topic_ids=topic_ids)
    task = asyncio.create_task(made._ask_topic_ids(made._producer))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return task, answer


async def test_request_of_an_abandoned_producer_fails_and_does_not_cancel_the_job_that_asks() -> None:
    task, answer = await asking(link())
    answer.cancel()  # as closing a client does
    with pytest.raises(ProducerClosed, match="its client was closed"):
        await task


async def test_cancelled_job_cancels_its_request() -> None:
    task, answer = await asking(link())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert answer.cancelled()


JOINED = MemberJoined(member_id="m1", incarnation=2, join_nonce="n", ended_incarnation=1)
READY = TaskReady(member_id="m1", incarnation=2, assignment_epoch=1, tasks=(TaskId(0, 0),))


async def sent_after_failures(*facts: Fact, is_forgotten: bool = False) -> list[Fact]:
    """What is acknowledged of facts whose first two sends fail, as while a partition's leader is
    elected. `is_forgotten`: the next incarnation is placed after the first failure.
    """
    made, acknowledged, sends = link(), list[Fact](), 0

    async def send(value: bytes) -> None:
        nonlocal sends
        sends += 1
        if is_forgotten:
            made._placements += 1
        if sends <= 2:
            raise UnknownTopicOrPartitionError("it has no leader")

    made._send = send  # type: ignore[method-assign]
    made._acknowledged = lambda fact, said_ms: acknowledged.append(fact)
    for fact in facts:
        made.queue(fact)
    sending = asyncio.ensure_future(made.send_queued())
    await made.flushed(5.0)
    sending.cancel()
    return acknowledged


async def test_join_that_cannot_be_sent_is_sent_again_before_what_follows_it() -> None:
    assert await sent_after_failures(JOINED, READY) == [JOINED, READY]


async def test_report_that_cannot_be_sent_is_dropped() -> None:
    assert await sent_after_failures(READY, READY, JOINED) == [JOINED]


async def test_join_of_a_former_incarnation_is_not_sent_again() -> None:
    assert await sent_after_failures(JOINED, is_forgotten=True) == []
