"""The shells of consumer and producer have this in common: a core without I/O says which requests
are due and when to look again, and the event loop carries that out.
"""

from __future__ import annotations

import abc
import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from math import inf
from typing import Any, Protocol

from equipoise.kafka.broker_wire import Wire, leader_address
from equipoise.kafka.client import CLOSE_S, TopicPartition, call_off
from equipoise.kafka.metadata_requests import topic_ids


class DueOrders(Protocol):
    """`again_ms`: when to look again, by the loop's clock."""

    @property
    def orders(self) -> Iterable[Any]: ...
    @property
    def asks_metadata(self) -> bool: ...
    @property
    def again_ms(self) -> float: ...


class CoreShell(abc.ABC):
    """`_send_due` asks the core, and `_carry_out` sends the request of an order."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiters: set[asyncio.Future[None]] = set()
        self._is_planned = self._is_closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = inf

    async def _connect(self, within_s: float | None) -> None:
        await self.wire.start(within_s=within_s)
        self._loop = asyncio.get_running_loop()
        self.wire.watch(self._heard)
        self._heard()

    async def _disconnect(self, was_closed: bool, within_s: float = CLOSE_S) -> None:
        """Ends all requests. `was_closed`: somebody else disconnects."""
        if self._timer is not None:
            self._timer.cancel()
        self._wake()
        for task in self._tasks:
            task.cancel()
        if not was_closed:
            await self.wire.stop(within_s=within_s)
        await call_off(*self._tasks)

    @abc.abstractmethod
    def _heard(self) -> None: ...

    @abc.abstractmethod
    def _send_due(self) -> None: ...

    @abc.abstractmethod
    def _carry_out(self, order: Any) -> Coroutine[Any, Any, None]: ...

    def _plan(self) -> None:
        """Sends what is due, when the host has done what it does now."""
        if not self._is_planned and not self._is_closed and self._loop is not None:
            self._is_planned = True
            self._loop.call_soon(self._send_due)

    def _send(self, due: DueOrders) -> None:
        assert self._loop is not None
        for order in due.orders:
            task = self._loop.create_task(self._carry_out(order))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if due.asks_metadata:
            self.wire.refresh()
        if due.again_ms != self._timer_ms:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_ms = due.again_ms
            self._timer = None if due.again_ms == inf else self._loop.call_at(due.again_ms / 1_000, self._look_again)

    def _look_again(self) -> None:
        self._timer, self._timer_ms = None, inf
        self._send_due()

    async def _change(self, timeout_s: float) -> bool:
        """Returns whether something has changed within this time."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await asyncio.wait((waiter,), timeout=timeout_s)
        finally:
            self._waiters.discard(waiter)
        return waiter.done()

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def topic_ids(self, topics: Sequence[str], leads: TopicPartition) -> tuple[str, ...] | None:
        """See `client.DataClient`."""
        return await topic_ids(self.wire, topics, leads)

    def leader(self, partition: TopicPartition) -> tuple[str, int] | None:
        """See `client.DataClient`."""
        return leader_address(self.wire, partition)
