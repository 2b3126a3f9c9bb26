"""The deployed worker on simulated brokers, without an HTTP server."""

from __future__ import annotations

import asyncio

from equipoise.testing.simulated.machines import SimulatedProcess
from equipoise.worker.app import Worker
from equipoise.worker.settings import WorkerSettings


class SimulatedWorker(Worker):
    """`Worker` in a process of the simulation."""

    def __init__(self, settings: WorkerSettings, process: SimulatedProcess) -> None:
        super().__init__(settings, process)
        self.process = process

    async def start(self) -> None:
        self._folder = str(self.process.machine.folder / "faust")
        await self._log.open_with_retries()
        await self._group.start(self._folder)
        self._tasks = [asyncio.create_task(self._observation.run()), asyncio.create_task(self._watch())]
