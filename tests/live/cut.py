"""Kafka behind a network that fails: it can be cut, be slow, and break, half-close or silence its
connections.

Each client has a listener of each broker for itself, whose advertised port is that of a relay, so
that all its connections go through relays.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import attrs

from tools.brokers import free_ports

_MOST_BYTES = 2**16


@attrs.define(eq=False)
class _Relayed:
    """A connection. `hangs`: what the broker answers is dropped from here on; nothing behind it can
    arrive either, because nobody could read it. `halves`: it breaks within the next answer.
    """

    client: asyncio.StreamWriter
    broker: asyncio.StreamWriter
    hangs: bool = False
    halves: bool = False

    def abort(self) -> None:
        for each in (self.client, self.broker):
            each.transport.abort()


class Relay:
    """Passes bytes between `port` and `broker_port`, unless it is cut: then nothing arrives, no
    connection ends, and new ones are accepted and hear nothing.
    """

    def __init__(self, port: int, broker_port: int) -> None:
        self.port = port
        self.broker_port = broker_port
        self.delay_s = 0.0
        """How much later everything arrives."""
        self.bytes_per_s = 0
        """How much each connection passes; 0: all."""
        self.loses_answers = False
        """Whether connections begin to hang when a broker answers."""
        self._whole = asyncio.Event()
        self._whole.set()
        self._relayed: dict[_Relayed, None] = {}

    def cut(self) -> None:
        self._whole.clear()

    def mend(self) -> None:
        """What was sent meanwhile arrives. Connections that hang do so until they are closed."""
        self._whole.set()
        self.delay_s, self.bytes_per_s, self.loses_answers = 0.0, 0, False

    def reset(self) -> None:
        """Breaks every connection, and drops what is under way."""
        for each in self._relayed:
            each.abort()

    def half_close(self, *, to_client: bool) -> None:
        """Ends one direction of every connection."""
        for each in self._relayed:
            with contextlib.suppress(OSError, RuntimeError):  # it ends by itself
                (each.client if to_client else each.broker).write_eof()

    def hang(self) -> None:
        """No answer arrives over the present connections any more."""
        for each in self._relayed:
            each.hangs = True

    def halve(self) -> None:
        """Breaks every connection within its next answer."""
        for each in self._relayed:
            each.halves = True

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
            await asyncio.sleep(0.05)  # what was just accepted is among the connections then
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
        relayed = _Relayed(writer, to_them)
        self._relayed[relayed] = None
        ways = [asyncio.ensure_future(self._pass(reader, to_them, None)), asyncio.ensure_future(self._pass(theirs, writer, relayed))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            del self._relayed[relayed]
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            writer.close()
            to_them.close()

    async def _pass(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, answers: _Relayed | None) -> None:
        """`answers`: the connection, of which these are the brokers' answers."""
        with contextlib.suppress(OSError):
            while data := await source.read(min(_MOST_BYTES, self.bytes_per_s or _MOST_BYTES)):
                await self._whole.wait()
                slow_s = self.delay_s + (len(data) / self.bytes_per_s if self.bytes_per_s else 0.0)
                if slow_s:
                    await asyncio.sleep(slow_s)
                if answers is not None:
                    answers.hangs |= self.loses_answers
                    if answers.hangs:
                        continue
                    if answers.halves:
                        target.write(data[: len(data) // 2])
                        await target.drain()
                        return
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

    def of(self, name: str) -> Sequence[Relay]:
        """Those between the client and each broker."""
        return self._relays[name]

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
