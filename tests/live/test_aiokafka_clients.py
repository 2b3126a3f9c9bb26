"""Clients of aiokafka end for good, whatever state they and their brokers are in.
`no_connection_stays_open` looks at every test here.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import NewTopic
from aiokafka.conn import AIOKafkaConnection
from aiokafka.errors import ProducerFenced

from equipoise.kafka.connection import Connection
from equipoise.worker.observer import Observer
from tests.live.conftest import open_connections
from tests.live.kafka import admin_client, reader, writer
from tools.brokers import Brokers

pytestmark = pytest.mark.xdist_group("clients")  # one broker serves all
OPENING: dict[str, Callable[..., AbstractAsyncContextManager[Any]]] = {"reader": reader, "admin": admin_client, "writer": writer}
AWAY = ["answers", "stands still", "is dead"]


@pytest.fixture(scope="module")
def brokers() -> Iterator[Brokers]:
    with Brokers() as brokers:
        yield brokers


@contextlib.contextmanager
def away(brokers: Brokers, how: str) -> Iterator[None]:
    if how == "is dead":
        brokers.kill(0)
    elif how == "stands still":
        os.kill(brokers.pid(0), signal.SIGSTOP)
    try:
        yield
    finally:
        if how == "is dead":
            brokers.start(0)
        elif how == "stands still":
            os.kill(brokers.pid(0), signal.SIGCONT)


async def writing(connection: Connection, topic: str, **options: Any) -> Any:
    """A producer that has written one record into a new topic."""
    async with admin_client(connection) as admin:
        await admin.create_topics([NewTopic(topic, 1, 1)])
    producer = connection.clients.producer(**options)
    await producer.start()
    await write(producer, topic, 1)
    return producer


async def write(producer: Any, topic: str, count: int) -> None:
    for number in range(count):
        await producer.send(topic, b"%04d" % number * 1_000, partition=0)


@pytest.mark.slow
@pytest.mark.parametrize("how", AWAY)
@pytest.mark.parametrize("group", [None, "readers"])
async def test_consumer_stopped_while_requesting_closes_its_connections(how: str, group: str | None, brokers: Brokers, prefix: str) -> None:
    connection, tp = Connection(bootstrap=brokers.bootstrap), TopicPartition(prefix, 0)
    await (await writing(connection, prefix)).stop()
    consumer = connection.clients.consumer(group=group and f"{prefix}-{group}", auto_offset_reset="earliest")
    await consumer.start()
    consumer.assign([tp])
    assert await consumer.getmany(timeout_ms=20_000)
    with away(brokers, how):
        asking: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(ask) for ask in (consumer.getmany(timeout_ms=60_000), consumer.end_offsets([tp]), consumer.beginning_offsets([tp]))
        ]
        if group is not None:
            asking.append(asyncio.ensure_future(consumer.committed(tp)))
        await asyncio.sleep(0.2)
        began_s = time.monotonic()
        await consumer.stop(within_s=1.0)
        assert time.monotonic() - began_s < 4.0
        assert open_connections() == []
        for each in asking:
            each.cancel()
        await asyncio.gather(*asking, return_exceptions=True)


@pytest.mark.parametrize("opening", ["reader", "admin"])
async def test_client_stopped_while_a_question_connects_closes_that_connection_too(opening: str, brokers: Brokers, prefix: str) -> None:
    connection = Connection(bootstrap=brokers.bootstrap)
    await (await writing(connection, prefix)).stop()
    async with OPENING[opening](connection) as client:
        with away(brokers, "stands still"):
            asked = client.end_offsets([TopicPartition(prefix, 0)]) if opening == "reader" else client.describe_topics([prefix])
            asking = asyncio.ensure_future(asked)
            await asyncio.sleep(0.2)
            assert not asking.done()
            await client.stop(within_s=1.0)
        await asyncio.wait((asking,), timeout=1.0)
        assert open_connections() == []
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


async def test_consumer_stopped_while_backing_off_closes_its_connections(brokers: Brokers, prefix: str, caplog: pytest.LogCaptureFixture) -> None:
    connection, tp = Connection(bootstrap=brokers.bootstrap), TopicPartition(prefix, 0)
    await (await writing(connection, prefix)).stop()
    async with reader(connection, auto_offset_reset="earliest", request_timeout_ms=1_000) as consumer:
        consumer.assign([tp])
        assert await consumer.getmany(timeout_ms=20_000)
        assert not await consumer.getmany(timeout_ms=100)
        assert open_connections()
        with away(brokers, "stands still"):
            async with asyncio.timeout(20):
                while "Failed fetch" not in caplog.text:  # noqa: ASYNC110  # only its log says so
                    await asyncio.sleep(0.01)
    assert open_connections() == []


@pytest.mark.slow
@pytest.mark.parametrize("how", AWAY)
@pytest.mark.parametrize("abandoned", [False, True])
async def test_producer_stopped_while_sending_closes_its_connections(how: str, abandoned: bool, brokers: Brokers, prefix: str) -> None:
    producer = await writing(Connection(bootstrap=brokers.bootstrap), prefix)
    with away(brokers, how):
        sending = asyncio.ensure_future(write(producer, prefix, 20_000))
        await asyncio.sleep(0.2)
        began_s = time.monotonic()
        await (producer.abandon() if abandoned else producer.stop(within_s=1.0))
        assert time.monotonic() - began_s < 4.0
        assert open_connections() == []
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


async def test_fenced_producer_leaves_no_error_that_nobody_retrieves(brokers: Brokers, prefix: str) -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    connection, owner = Connection(bootstrap=brokers.bootstrap), f"{prefix}-owner"
    async with admin_client(connection) as admin:
        await admin.create_topics([NewTopic(prefix, 1, 1)])
    async with writer(connection, transactional_id=owner) as former, writer(connection, transactional_id=owner):
        await former.begin_transaction()
        with pytest.raises(ProducerFenced):
            await (await former.send(prefix, b"1", partition=0))
    del former
    gc.collect()
    await asyncio.sleep(0)
    assert reported == []


async def test_observer_closed_while_it_connects_has_no_connection_that_nobody_closes(brokers: Brokers, prefix: str) -> None:
    connection = Connection(bootstrap=brokers.bootstrap)
    observer = Observer(connection)
    await (await writing(connection, prefix)).stop()
    with away(brokers, "stands still"):
        asking = [asyncio.ensure_future(observer.look({prefix})) for _ in range(2)]
        await asyncio.sleep(0.2)
        await observer.close()
    for ends, _ in await asyncio.gather(*asking):
        assert ends == {prefix: {0: 1}}
    assert open_connections()
    await observer.close()
    assert open_connections() == []


@pytest.mark.parametrize("how", AWAY)
@pytest.mark.smoke
async def test_cancelled_stop_closes_every_connection(how: str, brokers: Brokers, prefix: str) -> None:
    producer = await writing(Connection(bootstrap=brokers.bootstrap), prefix)
    with away(brokers, how):
        sending = asyncio.ensure_future(write(producer, prefix, 1_000))
        await asyncio.sleep(0.1)
        stopping = asyncio.ensure_future(producer.stop(within_s=30.0))
        await asyncio.sleep(0.0)
        stopping.cancel()
        await asyncio.wait((stopping,), timeout=5.0)
        assert stopping.cancelled()
        assert open_connections() == []
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
    await producer.stop()  # and again does no harm


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("kind", OPENING)
async def test_cancelled_start_closes_every_connection(kind: str, times: int, bootstrap: str) -> None:
    """Called off at every point of its way; the second time while the first is seen to."""
    opening = OPENING[kind]
    before = asyncio.all_tasks()

    async def open_and_close() -> None:
        async with opening(Connection(bootstrap=bootstrap)):
            pass

    for turns in itertools.count():
        running = asyncio.create_task(open_and_close())
        await asyncio.sleep(turns * 0.0003)
        if not running.cancel():
            break
        if times == 2:
            await asyncio.sleep(0)
            running.cancel()
        (outcome,) = await asyncio.gather(running, return_exceptions=True)
        assert outcome is None or isinstance(outcome, asyncio.CancelledError)  # None: too late, it was closing already
        async with asyncio.timeout(30.0):
            while open_connections() or asyncio.all_tasks() - before:  # noqa: ASYNC110  # called off twice, it ends by itself
                await asyncio.sleep(0.005)
    assert turns > 3


@pytest.mark.parametrize("kind", OPENING)
async def test_start_cancelled_while_brokers_are_slow_closes_its_connection(kind: str, brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker stands still once it is asked for the brokers of the cluster."""
    opening = OPENING[kind]
    asked, sends = asyncio.Event(), AIOKafkaConnection.send

    def send(self: AIOKafkaConnection, request: Any, *arguments: Any, **named: Any) -> Any:
        if "Metadata" in type(request).__name__ and not asked.is_set():
            os.kill(brokers.pid(0), signal.SIGSTOP)
            asked.set()
        return sends(self, request, *arguments, **named)

    async def start() -> None:
        async with opening(Connection(bootstrap=brokers.bootstrap)):
            raise AssertionError("it has started")

    monkeypatch.setattr(AIOKafkaConnection, "send", send)
    before = asyncio.all_tasks()
    starting = asyncio.create_task(start())
    try:
        await asyncio.wait_for(asked.wait(), 10.0)
        starting.cancel()
        await asyncio.wait((starting,), timeout=5.0)
        assert starting.cancelled()
        assert not open_connections()
    finally:
        os.kill(brokers.pid(0), signal.SIGCONT)
    async with asyncio.timeout(10.0):
        while open_connections() or asyncio.all_tasks() - before:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
