"""A host stops whatever becomes of its last checkpoints."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Any

import pytest
from prometheus_client import Gauge

from equipoise.events.facts import LogOpened
from equipoise.folding.checkpoints import find
from equipoise.folding.log_reading import StartedLead
from equipoise.statemachine.partition import PartitionLead
from equipoise.worker.decision_marks import DecisionMarks
from equipoise.worker.metrics import WorkerMetrics
from equipoise.worker.partition_host import PartitionHost
from equipoise.worker.session_sender import SessionSender
from equipoise.worker.settings import WorkerSettings
from equipoise.worker.takeover_session import TakeoverSession
from tests.support.lone_hosts import LoneHost


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
    settings, opened, metrics = WorkerSettings(), LogOpened(log_id="l1", partitions=1), WorkerMetrics()
    host = LoneHost(settings, opened, 0, metrics)
    sender = SessionSender(producer, 0, settings.topics.facts)
    begun = StartedLead(lead=PartitionLead(), found=find("l1", []), published_to=0)
    host._session = TakeoverSession(settings, opened, host._reading, begun, sender, DecisionMarks(), host._identity, host._asked, metrics, monotonic)
    host._session._has_caught_up = True
    host._task = asyncio.ensure_future(asyncio.Event().wait())  # type: ignore[arg-type]  # a session that leads
    assert host.leading
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


async def test_gauges_of_a_partition_end_with_its_lead() -> None:
    metrics = WorkerMetrics()
    gauges = [each for each in vars(metrics).values() if isinstance(each, Gauge)]
    assert {gauge._labelnames for gauge in gauges} == {("partition",)}, "a gauge with another subject: let it disappear, too"
    hosts = [LoneHost(WorkerSettings(), LogOpened(log_id="l1", partitions=2), partition, metrics) for partition in (0, 1)]
    for gauge in gauges:
        gauge.labels("0").set(1)
        gauge.labels("1").set(1)
    await hosts[0].stop()
    assert b'partition="0"' not in metrics.text()
    assert metrics.text().count(b'partition="1"') == len(gauges)
    await hosts[1].stop()
    await hosts[1].stop()
    assert b'partition="1"' not in metrics.text()
