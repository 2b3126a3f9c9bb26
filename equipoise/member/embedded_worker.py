"""A worker in the member's own process (`Member(lead=True)`), on a thread of its own, so that a
group needs no other service.
"""

from __future__ import annotations

import attrs

from equipoise.events.log.kafka.connection import Connection
from equipoise.member.threads import LoopThread
from equipoise.worker.app import Worker
from equipoise.worker.settings import WorkerSettings


def worker_settings(connection: Connection, prefix: str) -> WorkerSettings:
    """Those of a worker that leads the same log, and serves its states on any free port of this
    machine.
    """
    reached = {field.name: getattr(connection, field.name) for field in attrs.fields(Connection)}
    return WorkerSettings(**reached, prefix=prefix, http_port=0)


class EmbeddedWorker:
    """Several processes may lead at once: Faust gives each partition to one of them, and to another
    when that one dies.
    """

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._thread = LoopThread("equipoise-worker")
        self._worker: Worker | None = None

    async def start(self) -> None:
        """Raises InputError for topics with wrong settings, and when no broker answers."""
        try:
            self._worker = await self._thread.run(self._begin())
        except BaseException:
            await self._thread.stop()
            raise

    async def _begin(self) -> Worker:
        worker = Worker(self._settings)  # in the loop that it lives in
        await worker.start()
        return worker

    @property
    def http_port(self) -> int:
        """Where its health, metrics and states are served."""
        return 0 if self._worker is None else self._worker.http_port

    async def stop(self) -> None:
        """Gives its partitions back."""
        if self._worker is not None:
            await self._thread.run(self._worker.stop())
        await self._thread.stop()
