"""Starts and stops clients of aiokafka, within a time and whatever they wait for, so that no task
keeps running and no connection stays open.

aiokafka closes its connections last. When an earlier step fails, hangs on a silent broker or is
cancelled, connections stay open and a task that reconnects may keep running. There is no public way
to finish the shutdown.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from typing import Any

import attrs
from aiokafka.client import AIOKafkaClient
from aiokafka.conn import AIOKafkaConnection
from aiokafka.errors import KafkaConnectionError

from equipoise.kafka.admin.broker_choice import SILENT_S
from equipoise.kafka.client import CLOSE_S, NO_ANSWER

_LOG = logging.getLogger(__name__)
_WHOLE_START_S = 1.0
_LEAST_S = 1.0
"""A broker is not taken for silent earlier."""
AGAIN_S = 0.1
_ENDING: set[asyncio.Task[None]] = set()
"""Keeps tasks alive: a task without a reference may be collected before its end."""


class CountingClient(AIOKafkaClient):  # type: ignore[misc]  # aiokafka ships no types
    """Knows how many bootstrap brokers it has not asked yet, while it starts."""

    unasked = 0

    @property
    def hosts(self) -> list[Any]:
        return _Counted(self, AIOKafkaClient.hosts.fget(self))


class _Counted(list[Any]):
    def __init__(self, client: CountingClient, hosts: Sequence[Any]) -> None:
        super().__init__(hosts)
        self._client = client

    def __iter__(self) -> Iterator[Any]:
        for number, host in enumerate(super().__iter__(), 1):
            self._client.unasked = len(self) - number
            yield host


async def start_client(client: CountingClient, close: Callable[[], Awaitable[None]], within_s: float, first_answer_s: float | None = None) -> None:
    """Starts a client. Closes it if the start fails or is cancelled. A cancelled start is finished
    first, if brokers answer within a second. `within_s`: the timeout of its requests.
    `first_answer_s`: see `client.Client`.
    """
    each_s = None if first_answer_s is None else max(_LEAST_S, first_answer_s / len(client.hosts))
    beginning = _Bootstrap(client, within_s, each_s)
    starting = asyncio.ensure_future(beginning)
    try:
        await asyncio.shield(starting)
    except BaseException:
        ending = asyncio.ensure_future(_call_off(client, beginning, starting, close))
        _ENDING.add(ending)
        ending.add_done_callback(_ENDING.discard)
        await asyncio.shield(ending)  # which goes on should this be called off once more
        raise


@attrs.define
class _Bootstrap:
    """aiokafka closes the connection over which it asks for brokers when the answer takes too long,
    and forgets it when it is cancelled. It hears of a cancellation as of an answer that takes too
    long; the next broker is not asked. Its own timeouts are cancellations, too, which no sooner than
    `within_s` come: it hears of these, and asks the next broker. So it does when a broker has not
    answered for `each_s`; None: for SILENT_S, unless that is the last one.
    """

    client: CountingClient
    within_s: float
    each_s: float | None = None
    is_called_off: bool = False
    _is_silent: bool = False
    _asked: int = -1
    _timer: asyncio.TimerHandle | None = None

    def __await__(self) -> Generator[Any, None, None]:
        try:
            yield from self._bootstrap()
        finally:
            if self._timer is not None:
                self._timer.cancel()

    def _watch(self, task: asyncio.Task[Any]) -> None:
        """Gives each broker that is asked its time."""

        def silent() -> None:
            self._is_silent = True
            task.cancel()

        most_s = self.each_s or (SILENT_S if self.client.unasked else None)

        if self.client.unasked == self._asked:
            return
        self._asked = self.client.unasked
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if most_s is None else asyncio.get_running_loop().call_later(most_s, silent)

    def _bootstrap(self) -> Generator[Any, None, None]:
        now_s, task = asyncio.get_running_loop().time, asyncio.current_task()
        assert task is not None, "it is awaited by one"
        began_s = now_s()
        steps = self.client.bootstrap().__await__()
        failed: BaseException | None = None
        with contextlib.suppress(StopIteration):
            while True:
                wait = next(steps) if failed is None else steps.throw(failed)
                failed = None
                self._watch(task)
                try:
                    yield wait
                except asyncio.CancelledError as error:
                    if self._is_silent and not self.is_called_off:
                        self._is_silent, failed = False, TimeoutError(f"{NO_ANSWER} {self.each_s or SILENT_S:.0f} s")
                        task.uncancel()
                        continue
                    if not self.is_called_off and now_s() - began_s >= self.within_s:
                        failed = error
                        continue
                    with contextlib.suppress(StopIteration, KafkaConnectionError):
                        steps.throw(TimeoutError("the start is called off"))
                        steps.throw(error)
                    raise
                except BaseException as error:  # noqa: BLE001  # of what it waits for: aiokafka handles it
                    failed = error


async def _call_off(client: CountingClient, beginning: _Bootstrap, starting: asyncio.Future[None], close: Callable[[], Awaitable[None]]) -> None:
    await asyncio.wait((starting,), timeout=_WHOLE_START_S)
    beginning.is_called_off = True
    starting.cancel()
    await close()
    await wait_for_end(client, [starting])


async def stop_client(client: AIOKafkaClient, within_s: float) -> None:
    """Stops a client. When cancelled, stops it at once."""
    # In a task of its own: closing a client during a request may raise CancelledError, which must
    # not look like a cancellation of the caller.
    stopping = asyncio.ensure_future(client.close())
    try:
        await asyncio.wait((stopping,), timeout=within_s)
        if stopping.done() and not stopping.cancelled() and stopping.exception() is not None:
            _LOG.debug("a client was not closed cleanly: %r", stopping.exception())
    finally:
        stopping.cancel()
        tasks = cut_connections(client)
    await wait_for_end(client, [*tasks, stopping])


def cut_connections(client: AIOKafkaClient) -> list[asyncio.Task[Any]]:
    """Ends all tasks and connections as far as possible without waiting. Returns the tasks that
    still have to end.
    """
    client.cluster._brokers.clear()  # so that nothing reconnects
    client.cluster._bootstrap_brokers.clear()
    client._conns = _OfStopped(client._conns)
    running = [task for task in (client._sync_task,) if task is not None and not task.done()]
    for task in running:
        task.cancel()
    for connection in list(client._conns.values()):
        writer = connection._writer
        connection.close()
        if writer is not None:
            writer.transport.abort()  # closing waits until the broker has taken what was written
    return running


class _OfStopped(dict[Any, AIOKafkaConnection]):
    """Connections of a stopped client. What a question in flight still connects is closed."""

    def __setitem__(self, node: Any, connection: AIOKafkaConnection) -> None:
        connection.close()
        super().__setitem__(node, connection)


async def wait_for_end(client: AIOKafkaClient, tasks: Sequence[asyncio.Future[Any]]) -> None:
    end_s = time.monotonic() + CLOSE_S
    while (running := [task for task in tasks if not task.done()]) and time.monotonic() < end_s:
        await asyncio.wait(running, timeout=AGAIN_S)
        for task in running:
            task.cancel()
        cut_connections(client)
    cut_connections(client)  # what the last of them opened on its way
    for task in tasks:
        if task.done() and not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not report it
