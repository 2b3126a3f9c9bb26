"""A client whose start, or request, is called off while a broker does not answer it, on a real
connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import socketserver
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
from aiokafka.errors import KafkaConnectionError, ProducerClosed, UnknownTopicOrPartitionError
from aiokafka.protocol.metadata import MetadataResponse_v1

from equipoise.kafka import aiokafka_lifecycle, aiokafka_metadata
from equipoise.kafka.aiokafka_wire import AiokafkaWire
from equipoise.kafka.client import Admin, Consumer, NewTopic, Producer, TopicPartition
from equipoise.kafka.consumer.requests import END, ListOffsetsRequest
from equipoise.kafka.throttling import Throttling
from equipoise.kafka.wire_clients import WireClients

_METADATA, _API_VERSIONS, _INIT_PRODUCER_ID = 3, 18, 22
_VERSIONS = bytes.fromhex("0000 00000004 0003 0000 0001 0002 0001 0004 0013 0000 0001 0016 0000 0000")
"""ApiVersions 0: no error; Metadata in the versions 0 and 1, ListOffsets in 1 to 4,
CreateTopics in 0 and 1, InitProducerId in 0."""
_MOST_S = 10.0


class SilentBroker(socketserver.ThreadingTCPServer):
    """Says what it can do, and nothing more; unless it `tells_brokers`, of which it is one."""

    daemon_threads = True
    tells_brokers = False
    is_mute = False
    """Says nothing any more to who asks for brokers."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Client)
        self.address = f"127.0.0.1:{self.server_address[1]}"
        self.unanswered, self.given_up = threading.Event(), threading.Event()
        self.others: list[tuple[str, int]] = []
        """Further brokers that it names."""
        self.connected = 0
        """Clients that have not closed their connection."""


class _Client(socketserver.StreamRequestHandler):
    server: SilentBroker

    def handle(self) -> None:
        self.server.connected += 1
        is_asked = False
        while size := self.rfile.read(4):
            request = self.rfile.read(int.from_bytes(size))
            if int.from_bytes(request[:2]) == _API_VERSIONS:
                answer = request[4:8] + _VERSIONS
                self.wfile.write(len(answer).to_bytes(4) + answer)
            elif int.from_bytes(request[:2]) == _INIT_PRODUCER_ID:
                answer = request[4:8] + bytes(4 + 2 + 8 + 2)
                self.wfile.write(len(answer).to_bytes(4) + answer)
            elif int.from_bytes(request[:2]) == _METADATA and self.server.tells_brokers and not self.server.is_mute:
                brokers = enumerate([self.server.server_address, *self.server.others])
                known = MetadataResponse_v1([(number, *address, None) for number, address in brokers], 0, [])
                answer = request[4:8] + known.encode()
                self.wfile.write(len(answer).to_bytes(4) + answer)
            else:
                is_asked = True
                self.server.unanswered.set()
        self.server.connected -= 1
        if is_asked:
            self.server.given_up.set()


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[SilentBroker]:
    monkeypatch.setattr(aiokafka_lifecycle, "_WHOLE_START_S", 0.2)
    with SilentBroker() as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        yield server
        server.shutdown()


async def until_asked(broker: SilentBroker) -> asyncio.Task[None]:
    """Returns the start of a client, which waits for metadata."""
    starting = asyncio.create_task(AiokafkaWire({"bootstrap_servers": broker.address}, Throttling()).start())
    assert await asyncio.to_thread(broker.unanswered.wait, _MOST_S)
    assert broker.connected == 1
    return starting


def assert_all_closed(broker: SilentBroker) -> None:
    end_s = time.monotonic() + _MOST_S
    while broker.connected:
        assert time.monotonic() < end_s, "a connection stays open"
        time.sleep(0.01)


@pytest.mark.parametrize("cancels", [1, 2])
async def test_start_that_is_called_off_leaves_no_connection(cancels: int, broker: SilentBroker) -> None:
    """Nor does one whose calling off is called off."""
    starting = await until_asked(broker)
    for _ in range(cancels):
        starting.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await starting
    await asyncio.to_thread(assert_all_closed, broker)


async def test_start_asks_the_next_broker_when_one_refuses(broker: SilentBroker) -> None:
    broker.tells_brokers = True
    wire = AiokafkaWire({"bootstrap_servers": ["127.0.0.1:1", broker.address]}, Throttling())
    await wire.start()
    await wire.stop()
    await asyncio.to_thread(assert_all_closed, broker)


async def test_start_asks_the_next_broker_when_one_is_silent(broker: SilentBroker) -> None:
    broker.tells_brokers = True
    with SilentBroker() as silent:
        threading.Thread(target=silent.serve_forever, kwargs={"poll_interval": 0.01}).start()
        for _ in range(4):  # aiokafka chooses whom it asks first
            wire = AiokafkaWire({"bootstrap_servers": [silent.address, broker.address], "request_timeout_ms": 200}, Throttling())
            await wire.start()
            await wire.stop()
        silent.shutdown()
        await asyncio.to_thread(assert_all_closed, silent)
    await asyncio.to_thread(assert_all_closed, broker)


async def test_start_waits_for_no_silent_broker_for_long_but_for_the_last(broker: SilentBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aiokafka_lifecycle, "SILENT_S", 0.2)
    broker.tells_brokers = True
    with SilentBroker() as silent:
        threading.Thread(target=silent.serve_forever, kwargs={"poll_interval": 0.01}).start()
        for _ in range(4):
            wire = AiokafkaWire({"bootstrap_servers": [silent.address, broker.address]}, Throttling())
            async with asyncio.timeout(_MOST_S):
                await wire.start()
            await wire.stop()
        broker.is_mute = True
        began_s = time.monotonic()
        wire = AiokafkaWire({"bootstrap_servers": [silent.address, broker.address], "request_timeout_ms": 1_000}, Throttling())
        with pytest.raises(KafkaConnectionError):
            await wire.start()
        assert time.monotonic() - began_s >= 1.0
        silent.shutdown()
        await asyncio.to_thread(assert_all_closed, silent)
    await asyncio.to_thread(assert_all_closed, broker)


@pytest.mark.parametrize("says", ["nothing", "its versions"])
async def test_silent_broker_holds_up_no_metadata_that_others_have(broker: SilentBroker, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aiokafka_metadata, "SILENT_S", 0.2)
    monkeypatch.setattr(aiokafka_metadata, "CONNECTED_S", 0.2)
    broker.tells_brokers = True
    with SilentBroker() as silent, socket.socket() as mute:
        threading.Thread(target=silent.serve_forever, kwargs={"poll_interval": 0.01}).start()
        mute.bind(("127.0.0.1", 0))
        mute.listen(50)
        broker.others = [("127.0.0.1", mute.getsockname()[1] if says == "nothing" else silent.server_address[1])]
        wire = AiokafkaWire({"bootstrap_servers": broker.address}, Throttling())
        await wire.start()
        heard = 0

        def hear() -> None:
            nonlocal heard
            heard += 1

        wire.watch(hear)
        async with asyncio.timeout(_MOST_S):
            for _ in range(8):  # the client chooses whom it asks first
                await wire.refresh()
        assert heard >= 8
        await wire.stop()
        silent.shutdown()


async def test_start_fails_when_every_broker_is_silent(broker: SilentBroker) -> None:
    wire = AiokafkaWire({"bootstrap_servers": broker.address, "request_timeout_ms": 200}, Throttling())
    with pytest.raises(KafkaConnectionError, match=f"{broker.address}: "):
        await wire.start()
    await asyncio.to_thread(assert_all_closed, broker)


async def test_connection_that_hangs_is_closed_when_its_requests_are_called_off(broker: SilentBroker) -> None:
    """Those who asked had less patience than the client, and asked over it again and again."""
    broker.tells_brokers = True
    wire = AiokafkaWire({"bootstrap_servers": broker.address, "request_timeout_ms": 1_000}, Throttling())
    await wire.start()
    try:
        request = ListOffsetsRequest({TopicPartition("t", 0): END}, read_committed=False)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await wire.send(0, request)
        assert not broker.given_up.is_set()
        assert await asyncio.to_thread(broker.given_up.wait, _MOST_S)
    finally:
        await wire.stop()


def test_loop_that_ends_during_a_start_leaves_no_connection(broker: SilentBroker) -> None:
    asyncio.run(until_asked(broker))
    assert_all_closed(broker)


PLACE = TopicPartition("t", 0)


def clients_of(broker: SilentBroker) -> WireClients:
    return WireClients(lambda **options: AiokafkaWire({"bootstrap_servers": broker.address, **options}, Throttling()), Throttling())


@contextlib.asynccontextmanager
async def muted(broker: SilentBroker, client: Producer | Consumer | Admin) -> AsyncIterator[None]:
    """A client that has started, while its broker does not answer any more."""
    broker.tells_brokers = True
    await client.start()
    broker.is_mute = True
    try:
        yield
    finally:
        await client.stop(within_s=0.1)


async def test_partitions_of_topic_when_no_metadata_comes_end_with_the_request_timeout(broker: SilentBroker) -> None:
    producer = clients_of(broker).producer(request_timeout_ms=500)
    async with muted(broker, producer), asyncio.timeout(_MOST_S):
        with pytest.raises(UnknownTopicOrPartitionError):
            await producer.partitions_for("t")


async def test_partitions_of_topic_when_producer_is_abandoned_end_with_it(broker: SilentBroker) -> None:
    """aiokafka never ends its question for metadata when it is closed. Tasks waited for ever."""
    for passes in range(8):
        producer = clients_of(broker).producer()
        async with muted(broker, producer), asyncio.timeout(_MOST_S):
            asking = asyncio.ensure_future(producer.partitions_for("t"))
            for _ in range(passes):
                await asyncio.sleep(0)
            await producer.abandon()
            with pytest.raises(ProducerClosed):
                await asking
        broker.is_mute = False


@pytest.mark.parametrize(
    ("kind", "ask"),
    [
        ("consumer", lambda client: client.end_offsets([PLACE])),
        ("consumer", lambda client: client.topic_ids(["t"], PLACE)),
        ("admin", lambda client: client.create_topics([NewTopic("t", 1, 1)])),
    ],
)
async def test_question_when_client_is_closed_ends_with_it(kind: str, ask: Callable[[Any], Awaitable[Any]], broker: SilentBroker) -> None:
    client = getattr(clients_of(broker), kind)()
    async with muted(broker, client), asyncio.timeout(_MOST_S):
        asking = asyncio.ensure_future(ask(client))
        await asyncio.to_thread(broker.unanswered.wait, _MOST_S)
        await client.stop(within_s=0.1)
        await asyncio.wait((asking,))
    if not asking.cancelled():  # a request in flight is cancelled when its connection is closed
        assert isinstance(asking.exception(), KafkaConnectionError)
