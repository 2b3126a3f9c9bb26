"""Starts and stops aiokafka clients so that no task keeps running and no connection stays open,
whatever the brokers do.

aiokafka closes its connections last. When an earlier step fails, hangs on a silent broker or is
cancelled, connections stay open and a task that reconnects may keep running. There is no public way
to finish the shutdown; only this file uses internals of the client for it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from typing import Any

_LOG = logging.getLogger(__name__)
CLOSE_S = 5.0
"""Seconds for a client to send what it has and to disconnect."""
_WHOLE_START_S = 1.0
_AGAIN_S = 0.1
_ENDING: set[asyncio.Task[None]] = set()
"""Keeps tasks alive: a task without a reference may be collected before its end."""


async def start_client(client: Any) -> None:
    """Starts a producer, consumer or admin client. Closes it if the start fails or is cancelled.

    A cancelled start is finished first, if brokers answer within a second: otherwise aiokafka would
    lose the connection over which it asks for the brokers of the cluster, and leave it open.
    """
    starting = asyncio.ensure_future(client.start())
    try:
        await asyncio.shield(starting)
    except BaseException:
        ending = asyncio.ensure_future(_call_off(client, starting))
        _ENDING.add(ending)
        ending.add_done_callback(_ENDING.discard)
        await asyncio.shield(ending)  # which goes on should this be called off once more
        raise


async def _call_off(client: Any, starting: asyncio.Task[None]) -> None:
    await asyncio.wait((starting,), timeout=_WHOLE_START_S)
    starting.cancel()
    await stop_client(client)
    await _ended(client, [starting])


async def stop_client(client: Any, *, within_s: float = CLOSE_S) -> None:
    """Stops a producer, consumer or admin client: cleanly within `within_s`, else at once. May be
    called again. When cancelled, stops it at once.
    """
    # In a task of its own: closing a client during a request may raise CancelledError, which must
    # not look like a cancellation of the caller.
    stopping = asyncio.ensure_future(client.stop() if hasattr(client, "stop") else client.close())
    try:
        await asyncio.wait((stopping,), timeout=within_s)
        if stopping.done() and not stopping.cancelled() and stopping.exception() is not None:
            _LOG.info("a client was not closed cleanly: %r", stopping.exception())
    finally:
        stopping.cancel()
        tasks = _cut(client)
    await _ended(client, [*tasks, stopping])


async def call_off(*tasks: asyncio.Future[Any]) -> None:
    """Cancels tasks that use a client, again and again until they end: a request that is answered
    at the same moment swallows a cancellation, and its loop continues.
    """
    while running := [task for task in tasks if not task.done()]:
        for task in running:
            task.cancel()
        await asyncio.wait(running, timeout=_AGAIN_S)
    await asyncio.gather(*tasks, return_exceptions=True)  # what they have raised has been looked at


async def abandon_producer(producer: Any) -> None:
    """Closes the producer at once. Unsent records are never sent; `stop` would send them first,
    however long that takes.
    """
    producer._closed = True
    await _ended(producer, _cut(producer))


def _cut(client: Any) -> list[asyncio.Task[Any]]:
    """Ends all tasks and connections as far as possible without waiting. Returns the tasks that
    still have to end.
    """
    connected = client.client if hasattr(client, "client") else client._client
    connected.cluster._brokers.clear()  # so that nothing reconnects
    connected.cluster._bootstrap_brokers.clear()
    running = [task for task in (connected._sync_task, *_tasks(client)) if task is not None and not task.done()]
    for task in running:
        task.cancel()
    for connection in list(connected._conns.values()):
        writer = connection._writer
        connection.close()
        if writer is not None:
            writer.transport.abort()  # closing waits until the broker has taken what was written
    return running


async def _ended(client: Any, tasks: list[asyncio.Task[Any]]) -> None:
    end_s = time.monotonic() + CLOSE_S
    while (running := [task for task in tasks if not task.done()]) and time.monotonic() < end_s:
        await asyncio.wait(running, timeout=_AGAIN_S)
        for task in running:
            task.cancel()  # a sender that is called off calls off one of its requests at a time
        _cut(client)
    _cut(client)  # what the last of them opened on its way
    for task in tasks:
        if task.done() and not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not report it


def _tasks(client: Any) -> Iterator[asyncio.Task[Any] | None]:
    fetcher, coordinator, sender = (getattr(client, name, None) for name in ("_fetcher", "_coordinator", "_sender"))
    if fetcher is not None:
        yield fetcher._fetch_task
        yield from fetcher._pending_tasks
    for name in ("_coordination_task", "_heartbeat_task", "_commit_refresh_task", "_reset_committed_task"):
        yield getattr(coordinator, name, None)
    yield getattr(sender, "sender_task", None)
