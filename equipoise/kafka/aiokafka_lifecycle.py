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
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any

import attrs
from aiokafka.client import AIOKafkaClient
from aiokafka.conn import AIOKafkaConnection
from aiokafka.errors import KafkaConnectionError

from equipoise.kafka.client import CLOSE_S

_LOG = logging.getLogger(__name__)
_WHOLE_START_S = 1.0
AGAIN_S = 0.1
_ENDING: set[asyncio.Task[None]] = set()
"""Keeps tasks alive: a task without a reference may be collected before its end."""


async def start_client(client: AIOKafkaClient, close: Callable[[], Awaitable[None]], within_s: float) -> None:
    """Starts a client. Closes it if the start fails or is cancelled. A cancelled start is finished
    first, if brokers answer within a second. `within_s`: the timeout of its requests.
    """
    beginning = _Bootstrap(client, within_s)
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
    `within_s` come: it hears of these, and asks the next broker.
    """

    client: AIOKafkaClient
    within_s: float
    is_called_off: bool = False

    def __await__(self) -> Generator[Any, None, None]:
        now_s = asyncio.get_running_loop().time
        began_s = now_s()
        steps = self.client.bootstrap().__await__()
        failed: BaseException | None = None
        with contextlib.suppress(StopIteration):
            while True:
                wait = next(steps) if failed is None else steps.throw(failed)
                failed = None
                try:
                    yield wait
                except asyncio.CancelledError as error:
                    if not self.is_called_off and now_s() - began_s >= self.within_s:
                        failed = error
                        continue
                    with contextlib.suppress(StopIteration, KafkaConnectionError):
                        steps.throw(TimeoutError("the start is called off"))
                        steps.throw(error)
                    raise
                except BaseException as error:  # noqa: BLE001  # of what it waits for: aiokafka handles it
                    failed = error


async def _call_off(client: AIOKafkaClient, beginning: _Bootstrap, starting: asyncio.Future[None], close: Callable[[], Awaitable[None]]) -> None:
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
