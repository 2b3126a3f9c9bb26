"""A host stops whatever becomes of its last checkpoints."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from equipoise.events.facts import LogOpened
from equipoise.worker.host import PartitionHost
from equipoise.worker.metrics import WorkerMetrics
from equipoise.worker.settings import WorkerSettings


class Ended:
    """A producer that its session has closed: closing has cancelled what waits for it."""

    async def flush(self) -> None:
        closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        closed.cancel()
        await closed


class Silent:
    """A producer whose brokers do not answer."""

    async def flush(self) -> None:
        await asyncio.Event().wait()


def leading(producer: Any) -> PartitionHost:
    host = PartitionHost(WorkerSettings(), LogOpened(log_id="l1", partitions=1), 0, WorkerMetrics())
    host.leading, host._producer = True, producer
    host._task = asyncio.ensure_future(asyncio.Event().wait())  # type: ignore[arg-type]  # a session that leads
    return host


async def test_stop_ends_the_session_when_its_producer_was_closed_meanwhile() -> None:
    host = leading(Ended())
    session = host._task
    await host.stop(checkpoint=True)
    assert session is not None
    assert session.cancelled()
    assert not host.leading


async def test_stop_that_is_cancelled_is_cancelled() -> None:
    host = leading(Silent())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(host.stop(checkpoint=True), 0.05)
    await host.stop()
    assert not host.leading
