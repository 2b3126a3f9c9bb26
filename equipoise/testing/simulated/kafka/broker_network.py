"""The network between clients and brokers: delays, lost messages, and connections, on which a
broker handles one request at a time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from random import Random
from typing import Any, Protocol

import attrs
from aiokafka.errors import KafkaConnectionError, NodeNotReadyError, RequestTimedOutError

from equipoise.testing.simulated.kafka.cluster_state import Reply, SimulatedBroker

_ENDING_SHARE = 0.2
Handler = Callable[[SimulatedBroker, Reply], None]
"""A request: a broker calls it, and it replies once, at once or later."""


class CallsLater(Protocol):
    """Calls functions at a time, outside of every event loop."""

    @property
    def now_us(self) -> int: ...
    def call_later(self, delay_us: float, callback: Callable[..., object], *arguments: Any) -> object: ...


class Ending(StrEnum):
    """A way in which a connection ends in place of an answer to what the broker has done."""

    BREAKS = "breaks"
    """In the middle of the answer."""
    HANGS = "hangs"
    """No answer arrives any more, and nothing says so."""


class Network:
    """Delays and losses. A simulation changes the fields while it runs, or overrides `trip_us`.

    `cut`: pairs of process and broker between which every message is lost. `slow_us`: process ->
    what its messages take longer, each way. `ending`: process -> how its connections end in place
    of every fifth answer.
    """

    def __init__(self, random: Random, *, least_us: int = 200, most_us: int = 1_500) -> None:
        self.random = random
        self.least_us, self.most_us = least_us, most_us
        self.cut: set[tuple[str, int]] = set()
        self.slow_us: dict[str, int] = {}
        self.ending: dict[str, Ending] = {}

    def trip_us(self, process: str, broker: int, request: str, *, back: bool) -> int | None:
        """Returns how long a request (or, with `back`, its response) is under way; None: it is
        lost.
        """
        if (process, broker) in self.cut:
            return None
        return self.least_us + int(self.random.random() * (self.most_us - self.least_us)) + self.slow_us.get(process, 0)

    def ends(self, process: str) -> Ending | None:
        """Returns how the connection ends in place of an answer to the process; None: it does not."""
        return self.ending[process] if process in self.ending and self.random.random() < _ENDING_SHARE else None

    def keeps(self, process: str, connection: BrokerConnection, request: str, arrive: Callable[[], None]) -> bool:
        """Returns whether the network keeps the request, and lets it `arrive` when it likes."""
        return False


@attrs.define(eq=False, slots=True)
class _Sent:
    name: str
    handler: Handler
    done: Reply
    timer: asyncio.TimerHandle | None = None


class BrokerConnection:
    """A connection of one client to one broker. Belongs to the client's loop, apart from `_arrive`,
    `_handle`, `_answered` and `broken`, which the scheduler and the broker call.

    A request that was sent reaches the broker whatever happens to the client and the connection
    meanwhile; its response does not. A request that takes longer than `timeout_s` closes the
    connection. A broker that throttles a client reads nothing from it meanwhile (KIP-219). It
    closes a connection over which a request arrives when its session is over (KIP-368), because
    aiokafka does not authenticate again.
    """

    def __init__(self, process: str, broker: SimulatedBroker, network: Network, scheduler: CallsLater, timeout_s: float) -> None:
        self.is_open = True
        self._process, self._broker, self._network, self._scheduler = process, broker, network, scheduler
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._in_flight: dict[int, _Sent] = {}
        self._queue: deque[_Sent] = deque()
        self._is_busy = self._hangs = False
        self._arrives_us = self._returns_us = 0
        self._opened_us = scheduler.now_us
        broker.connections[id(self)] = self

    def send(self, name: str, handler: Handler, done: Reply) -> None:
        """`done` gets the response, or an exception, in the client's loop."""
        sent = _Sent(name, handler, done)
        self._in_flight[id(sent)] = sent
        sent.timer = self._loop.call_later(self._timeout_s, self._timed_out, sent)
        trip_us = self._network.trip_us(self._process, self._broker.id, name, back=False)
        if trip_us is None:
            return
        if not self._broker.is_up:
            self._scheduler.call_later(trip_us, self._tell, sent, NodeNotReadyError(f"broker {self._broker.id}"))
            return
        if self._network.keeps(self._process, self, name, partial(self._arrive, sent)):
            return
        self._arrives_us = max(self._arrives_us + 1, self._scheduler.now_us + trip_us)
        self._scheduler.call_later(self._arrives_us - self._scheduler.now_us, self._arrive, sent)

    def close(self, error: Exception | None = None) -> None:
        """All requests under way fail with `error`; None: they are cancelled."""
        self.is_open = False
        self._broker.connections.pop(id(self), None)
        for sent in list(self._in_flight.values()):
            self._received(sent, asyncio.CancelledError() if error is None else error)

    def broken(self) -> None:
        """The broker, or its process, has ended the connection."""
        self._broker.connections.pop(id(self), None)
        self._queue.clear()
        trip_us = self._network.trip_us(self._process, self._broker.id, "Close", back=True)
        if trip_us is not None:
            self._scheduler.call_later(trip_us, self._loop.call_soon_threadsafe, self.close, KafkaConnectionError(f"broker {self._broker.id}"))

    def resumed(self) -> None:
        """The broker's process runs again after a pause."""
        self._handle()

    def _arrive(self, sent: _Sent) -> None:
        if not self._broker.is_up:
            self._tell(sent, KafkaConnectionError(f"broker {self._broker.id}"))
            return
        session_us = self._broker.session_us
        if session_us is not None and self._scheduler.now_us - self._opened_us > session_us:
            self.broken()
            return
        self._queue.append(sent)
        self._handle()

    def _handle(self) -> None:
        while self._queue and not self._is_busy and not self._broker.is_paused:
            sent = self._queue.popleft()
            self._is_busy = True
            sent.handler(self._broker, partial(self._answered, sent))

    def _answered(self, sent: _Sent, answer: Any) -> None:
        ending = self._network.ends(self._process)
        if ending is Ending.BREAKS:
            self.broken()
        self._hangs |= ending is Ending.HANGS
        trip_us = None if ending or self._hangs else self._network.trip_us(self._process, self._broker.id, sent.name, back=True)
        if trip_us is not None and self.is_open:
            self._returns_us = max(self._returns_us + 1, self._scheduler.now_us + trip_us)
            self._scheduler.call_later(self._returns_us - self._scheduler.now_us, self._tell, sent, answer)
        throttled_ms = getattr(answer, "throttle_time_ms", 0)
        self._is_busy = throttled_ms > 0
        if throttled_ms:
            self._scheduler.call_later(throttled_ms * 1_000, self._reads_on)
        elif self._queue:
            self._scheduler.call_later(0, self._handle)

    def _reads_on(self) -> None:
        self._is_busy = False
        self._handle()

    def _tell(self, sent: _Sent, answer: Any) -> None:
        self._loop.call_soon_threadsafe(self._received, sent, answer)

    def _received(self, sent: _Sent, answer: Any) -> None:
        if self._in_flight.pop(id(sent), None) is None:
            return
        if sent.timer is not None:
            sent.timer.cancel()
        sent.done(answer)

    def _timed_out(self, sent: _Sent) -> None:
        if self._in_flight.pop(id(sent), None) is not None:
            self.close(KafkaConnectionError(f"broker {self._broker.id}"))
            sent.done(RequestTimedOutError(f"broker {self._broker.id} has not answered {sent.name} within {self._timeout_s:.0f} s"))
