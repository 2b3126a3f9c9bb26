"""A worker in the member's process (`Member(lead=True)`), on a thread of its own. A group then
needs no `equipoise worker`.
"""

from __future__ import annotations

import asyncio
import logging

import attrs

from equipoise.hosting.runtime import Runtime
from equipoise.kafka.connection import Connection
from equipoise.replay.wording import names_text
from equipoise.worker.app import Worker
from equipoise.worker.settings import WorkerSettings

_LOG = logging.getLogger(__name__)
LOOK_S = 5.0
"""How often it is looked which groups are led."""
STOP_S = 5.0
"""Longest wait for a worker whose start was cancelled."""


def embedded_worker(reached: Connection, prefix: str, runtime: Runtime, group: str) -> EmbeddedWorker:
    """A worker for the member of `group`. `reached`: its settings, or the member's own connection:
    then the worker leads the log with this prefix, and serves HTTP on any free port of 127.0.0.1.
    """
    if not isinstance(reached, WorkerSettings):
        fields = {field.name: getattr(reached, field.name) for field in attrs.fields(Connection)}
        reached = WorkerSettings(**fields, prefix=prefix, http_port=0)
    return EmbeddedWorker(reached, runtime, group)


class EmbeddedWorker:
    """Runs a worker on its own thread. Several processes may do so: Faust gives each partition to
    one of them, and to another when that one dies.
    """

    def __init__(self, settings: WorkerSettings, runtime: Runtime, group: str) -> None:
        self._settings = settings
        self._group = group
        self._told: set[str] = set()
        self._telling: asyncio.Task[None] | None = None
        self._runtime = runtime
        self._thread = runtime.thread("equipoise-worker")
        self._worker: Worker | None = None
        self._starting: asyncio.Future[None] | None = None

    async def start(self) -> None:
        """Starts the worker. Raises InputError when topics have wrong settings, no broker answers,
        or the extra `kafka` is not installed.
        """
        try:
            await self._thread.run(self._begin())
        except BaseException:
            await self._thread.run(self._give_up())
            await self._thread.stop()
            raise

    async def _begin(self) -> None:
        self._worker = Worker(self._settings, self._runtime)  # in the loop that runs it
        self._starting = asyncio.ensure_future(self._worker.start())
        self._starting.add_done_callback(lambda each: each.cancelled() or each.exception())  # retrieved, should nobody wait any more
        await asyncio.shield(self._starting)
        self._telling = asyncio.ensure_future(self._tell_others(self._worker))

    async def _tell_others(self, worker: Worker) -> None:
        """Logs each other group that this process leads, once: its user may not expect it."""
        while True:
            await asyncio.sleep(LOOK_S)
            others = {lead.name for _, lead in worker.groups()} - {self._group} - self._told
            if others:
                self._told |= others
                _LOG.info(
                    "lead=True of group %s leads %s, too: they are in the same log, %s. A prefix of its own keeps a group apart",
                    self._group,
                    names_text(others),
                    self._settings.prefix,
                )

    async def _give_up(self) -> None:
        """Stops whatever a cancelled start has started: a thread of Faust that still runs would
        keep the process from ending.
        """
        if self._worker is not None and self._starting is not None:
            self._starting.cancel()
            await asyncio.wait((self._starting,), timeout=STOP_S)
            await self._worker.stop()

    @property
    def http_port(self) -> int:
        """Port of its HTTP server; 0: it is not running."""
        return 0 if self._worker is None else self._worker.http_port

    async def stop(self) -> None:
        """Stops the worker, which gives its partitions back."""
        if self._telling is not None:
            self._thread.loop.call_soon_threadsafe(self._telling.cancel)
        if self._worker is not None:
            await self._thread.run(self._worker.stop())
        await self._thread.stop()
