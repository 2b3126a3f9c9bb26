"""Runs the worker's Faust application, and ends it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from equipoise.hosting.live_settings import LiveSettings
from equipoise.kafka.client import Producer
from equipoise.worker.takeover_session import Deliver

if TYPE_CHECKING:
    from equipoise.worker.faust_transport import LogApp
from equipoise.log.kafka.log_topics import Topics

_LOG = logging.getLogger(__name__)
CLIENT_ID = "equipoise-worker-reads-"
"""Client id in the consumer group, before the newest kind of facts that the worker reads: so others
know before they write one (`equipoise.operations.worker_builds`).
"""
_STOP_FAUST_S = 2.0
_SLOW_START_S = 10.0


def group_name(log: LiveSettings | Topics) -> str:
    """Returns the name of the consumer group of the log's workers."""
    return f"{log.prefix}.worker"


class FaustGroup:
    """One application after the other: `start` and `stop` may follow each other. `declare`: makes
    one, whose files are in a folder.
    """

    def __init__(self, declare: Callable[[str], LogApp]) -> None:
        self._declare = declare
        self._app: LogApp | None = None

    async def start(self, folder: str) -> None:
        """Joins the group. `folder`: for Faust's files. Raises what Faust raises."""
        self._app = app = self._declare(folder)
        app.finalize()
        await _started(app.start(), app.conf.id)

    async def stop(self) -> None:
        """Leaves the group, if it is in it."""
        app, self._app = self._app, None
        if app is not None:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(app.stop(), _STOP_FAUST_S)

    @property
    def has_ended(self) -> bool:
        """Returns whether Faust does not run."""
        return self._app is None or self._app.crashed or self._app.should_stop

    @property
    def crash(self) -> str:
        """Returns the error by which Faust has ended, behind a colon; "" when it was not started."""
        return "" if self._app is None else f": {self._app.crash_reason!r}"

    def delivery(self, partition: int) -> Deliver:
        """Returns what brings the facts of a partition to the agent."""
        assert self._app is not None, "it was assigned by the group"
        return self._app.delivery(partition)

    def make_producer(self, **options: Any) -> Producer:
        """Returns a producer of a takeover session."""
        assert self._app is not None, "it was assigned by the group"
        made: Producer = self._app.producer.session(**options)
        return made


async def _started(starting: Coroutine[Any, Any, None], group: str) -> None:
    """Starts Faust, which says nothing where it waits for ever."""
    task = asyncio.ensure_future(starting)
    try:
        while not (await asyncio.wait((task,), timeout=_SLOW_START_S))[0]:
            _LOG.warning("Faust has not started yet: consumer group %s has no coordinator, or this user may not Read on it (equipoise doctor)", group)
        task.result()
    finally:
        if task.cancel():
            await asyncio.wait((task,), timeout=_STOP_FAUST_S)
