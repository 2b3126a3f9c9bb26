"""A client whose start is called off while a broker does not answer it, on a real connection."""

from __future__ import annotations

import asyncio
import socketserver
import threading
import time
from collections.abc import Iterator

import pytest

from equipoise.kafka import aiokafka_lifecycle
from equipoise.kafka.aiokafka_wire import AiokafkaWire

_API_VERSIONS = 18
_VERSIONS = bytes.fromhex("0000 00000001 0003 0000 0008")
"""ApiVersions 0: no error; Metadata in the versions 0 to 8."""
_MOST_S = 10.0


class SilentBroker(socketserver.ThreadingTCPServer):
    """Says what it can do, and nothing more."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Client)
        self.address = f"127.0.0.1:{self.server_address[1]}"
        self.unanswered = threading.Event()
        self.connected = 0
        """Clients that have not closed their connection."""


class _Client(socketserver.StreamRequestHandler):
    server: SilentBroker

    def handle(self) -> None:
        self.server.connected += 1
        while size := self.rfile.read(4):
            request = self.rfile.read(int.from_bytes(size))
            if int.from_bytes(request[:2]) == _API_VERSIONS:
                answer = request[4:8] + _VERSIONS
                self.wfile.write(len(answer).to_bytes(4) + answer)
            else:
                self.server.unanswered.set()
        self.server.connected -= 1


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[SilentBroker]:
    monkeypatch.setattr(aiokafka_lifecycle, "_WHOLE_START_S", 0.2)
    with SilentBroker() as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        yield server
        server.shutdown()


async def until_asked(broker: SilentBroker) -> asyncio.Task[None]:
    """Returns the start of a client, which waits for metadata."""
    starting = asyncio.create_task(AiokafkaWire({"bootstrap_servers": broker.address}).start())
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


def test_loop_that_ends_during_a_start_leaves_no_connection(broker: SilentBroker) -> None:
    asyncio.run(until_asked(broker))
    assert_all_closed(broker)
