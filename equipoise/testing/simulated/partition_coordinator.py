"""The deployed worker without Faust: a coordinator hands out the partitions of the log, as Faust's
consumer group does, and as late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import attrs

from equipoise.testing.simulated.machines import SimulatedProcess
from equipoise.testing.simulated.virtual_loops import MS_US, S_US, Scheduler
from equipoise.worker.app import Worker
from equipoise.worker.settings import WorkerSettings

LOOK_US = 300 * MS_US


@attrs.define
class CoordinatedGroup:
    """The membership of `worker` in the group of `coordinator`, in place of `FaustGroup`."""

    worker: SimulatedWorker
    coordinator: WorkerCoordinator
    has_ended: bool = True
    crash: str = ""

    async def start(self, folder: str) -> None:
        self.has_ended = False
        self.coordinator.join(self.worker)

    async def stop(self) -> None:
        self.has_ended = True
        self.coordinator.leave(self.worker)


class SimulatedWorker(Worker):
    """`Worker` with a coordinator in Faust's place, and without an HTTP server."""

    def __init__(self, settings: WorkerSettings, process: SimulatedProcess, coordinator: WorkerCoordinator) -> None:
        super().__init__(settings, process)
        self.process = process
        self._group = CoordinatedGroup(self, coordinator)  # type: ignore[assignment]
        self._rebalancing = asyncio.Lock()

    async def start(self) -> None:
        await self._log.open_with_retries()
        await self._group.start(self._folder)
        self._tasks = [asyncio.create_task(self._observation.run()), asyncio.create_task(self._watch())]

    async def rebalanced(self, assigned: Sequence[int]) -> None:
        """Stops all partitions, and leads those that are `assigned`."""
        async with self._rebalancing:
            await self._partitions.stop_all()
            if not self._group.has_ended:
                self._partitions.start(assigned)


class WorkerCoordinator:
    """Gives each partition to one of the workers that it has heard of within `session_s`. A worker
    that is silent for that long keeps what it has until it hears otherwise, so two may lead a
    partition at once.
    """

    def __init__(self, scheduler: Scheduler, partitions: int, session_s: float) -> None:
        self._scheduler = scheduler
        self._partitions = partitions
        self._session_us = int(session_s * S_US)
        self._heard_us: dict[SimulatedWorker, int] = {}
        self._told: dict[SimulatedWorker, tuple[int, ...]] = {}
        scheduler.call_later(LOOK_US, self._look)

    def join(self, worker: SimulatedWorker) -> None:
        self._heard_us[worker] = self._scheduler.now_us
        self._told.pop(worker, None)

    def leave(self, worker: SimulatedWorker) -> None:
        self._heard_us.pop(worker, None)
        self._told.pop(worker, None)

    def _look(self) -> None:
        now_us = self._scheduler.now_us
        self._scheduler.call_later(LOOK_US, self._look)
        for worker in self._heard_us:
            if worker.process.is_alive and not worker.process.is_paused and not worker.process.is_cut_off:
                self._heard_us[worker] = now_us
        for worker in [worker for worker in self._heard_us if not worker.process.is_alive and now_us - self._heard_us[worker] > self._session_us]:
            self.leave(worker)
        live = [worker for worker in self._heard_us if now_us - self._heard_us[worker] <= self._session_us]
        if not live:
            return
        wanted: dict[SimulatedWorker, list[int]] = {worker: [] for worker in live}
        for partition in range(self._partitions):
            wanted[live[partition % len(live)]].append(partition)
        for worker, each in wanted.items():
            partitions = tuple(each)
            if self._told.get(worker) != partitions and self._heard_us[worker] == now_us:
                self._told[worker] = partitions
                self._scheduler.call_later(self._scheduler.random.randrange(20, 800) * MS_US, self._tell, worker, partitions)
        for worker in [worker for worker in self._told if worker not in wanted]:
            self._told[worker] = ()

    def _tell(self, worker: SimulatedWorker, partitions: tuple[int, ...]) -> None:
        if worker.process.is_alive and self._told.get(worker) == partitions:
            worker.process.app.create_task(worker.rebalanced(partitions))
