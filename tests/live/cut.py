"""Kafka behind a network that can be cut.

Each client has a listener of each broker for itself, whose advertised port is that of a relay, so
that all its connections go through relays.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from tools.brokers import free_ports

_MOST_BYTES = 2**16


class Relay:
    """Passes bytes between `port` and `broker_port`, unless it is cut: then nothing arrives, no
    connection ends, and new ones are accepted and hear nothing.
    """

    def __init__(self, port: int, broker_port: int) -> None:
        self.port = port
        self.broker_port = broker_port
        self._whole = asyncio.Event()
        self._whole.set()

    def cut(self) -> None:
        self._whole.clear()

    def mend(self) -> None:
        """What was sent meanwhile arrives."""
        self._whole.set()

    @asynccontextmanager
    async def relaying(self) -> AsyncIterator[None]:
        connections: set[asyncio.Task[None]] = set()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            relay = asyncio.ensure_future(self._relay(reader, writer))  # so that this task ends in order: asyncio logs one that is cancelled
            connections.add(relay)
            relay.add_done_callback(connections.discard)
            (error,) = await asyncio.gather(relay, return_exceptions=True)
            writer.close()
            if isinstance(error, Exception):
                raise error

        server = await asyncio.start_server(accept, "127.0.0.1", self.port)
        try:
            yield
        finally:
            server.close()
            for task in list(connections):
                task.cancel()
            await asyncio.gather(*connections, return_exceptions=True)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._whole.wait()
        try:
            theirs, to_them = await asyncio.open_connection("127.0.0.1", self.broker_port)
        except OSError:
            writer.close()
            return
        ways = [asyncio.ensure_future(self._pass(reader, to_them)), asyncio.ensure_future(self._pass(theirs, writer))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            writer.close()
            to_them.close()

    async def _pass(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await source.read(_MOST_BYTES):
                await self._whole.wait()
                target.write(data)
                await target.drain()


class Relays:
    """Relays from each client of `names` to `brokers` brokers. Pass `listeners` to `Brokers`."""

    def __init__(self, names: Sequence[str], brokers: int = 1) -> None:
        self._relays: dict[str, list[Relay]] = {}
        for name in names:
            ports = free_ports(2 * brokers)
            self._relays[name] = [Relay(*ports[2 * index : 2 * index + 2]) for index in range(brokers)]

    @property
    def listeners(self) -> list[list[tuple[int, int]]]:
        """For each client and broker (port, advertised port) of the broker's listener."""
        return [[(relay.broker_port, relay.port) for relay in relays] for relays in self._relays.values()]

    def bootstrap(self, name: str) -> str:
        """Where the client finds the brokers."""
        return ",".join(f"127.0.0.1:{relay.port}" for relay in self._relays[name])

    def cut(self, name: str) -> None:
        """Between the client and all brokers."""
        for relay in self._relays[name]:
            relay.cut()

    def mend(self, name: str) -> None:
        for relay in self._relays[name]:
            relay.mend()

    @asynccontextmanager
    async def relaying(self) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for relays in self._relays.values():
                for relay in relays:
                    await stack.enter_async_context(relay.relaying())
            yield
