"""Hosts of partitions without the worker's Faust application."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from equipoise.events.facts import LogOpened
from equipoise.kafka.client import ENDS_S, call_off
from equipoise.worker.metrics import WorkerMetrics
from equipoise.worker.partition_host import PartitionHost
from equipoise.worker.settings import WorkerSettings
from equipoise.worker.takeover_session import FactBatch

TICK_S = 0.02


async def fold_each(batch: Callable[[], Awaitable[FactBatch]]) -> None:
    """Folds what comes, as the agent does."""
    while True:
        await (await batch()).fold()


class LoneHost(PartitionHost):
    """Folds what it is delivered by itself, and ticks by itself."""

    def __init__(self, settings: WorkerSettings, opened: LogOpened, partition: int, metrics: WorkerMetrics, **options: Any) -> None:
        super().__init__(settings, opened, partition, metrics, fold_each, settings.clients.producer, **options)
        self._ticking: asyncio.Task[None] | None = None

    def start(self) -> None:
        super().start()
        self._ticking = asyncio.create_task(self._tick())

    async def _tick(self) -> None:
        while True:
            self.tick()
            await asyncio.sleep(TICK_S)

    async def stop(self, *, checkpoint: bool = False) -> None:
        if self._ticking is not None:
            await call_off(self._ticking, again_s=ENDS_S)
        await super().stop(checkpoint=checkpoint)
