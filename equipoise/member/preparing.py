"""Runs the application's `prepare` for each task that needs it: caches to warm, indexes to open,
models to load.

All of it is for the application's loop but `progress`, `thousandths` and `failed`, which any thread
may ask. A hook that is no coroutine runs on a thread of its own, because it may take minutes and
must not keep other tasks waiting.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import attrs

from equipoise.events.errors import InputError
from equipoise.events.facts import PREPARED
from equipoise.events.tasks import TaskId

_LOG = logging.getLogger(__name__)
FIRST_RETRY_S = 1.0
LONGEST_RETRY_S = 60.0


@attrs.frozen
class PreparationProgress:
    """How far a preparation is. `fraction`: 0 to 1."""

    fraction: float
    text: str
    attempt: int
    """From 1."""
    is_under_way: bool
    """False: the last attempt failed, and the next one begins later."""


class PrepareContext:
    """One attempt to prepare one task. `runs_next`: the task was granted here before anybody had
    prepared it, so that nobody runs it meanwhile.
    """

    def __init__(self, task: TaskId, attempt: int, *, runs_next: bool) -> None:
        self.task = task
        self.attempt = attempt
        self.runs_next = runs_next
        self.cancelled = False
        """The task is not wanted here any more: what has been prepared may be let go of. A
        coroutine is cancelled too; a function should look.
        """
        self.said: tuple[float, str] = (0.0, "")

    def progress(self, fraction: float, text: str = "") -> None:
        """How far it is, 0 to 1. While that rises, however slowly, the leader waits; without a rise
        no longer than `warmup_stall_ms`.
        """
        if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 <= fraction <= 1:
            raise InputError(f"progress({fraction!r:.40}): say a number from 0 to 1")
        self.said = (float(fraction), text)


PrepareCallback = Callable[[PrepareContext], Awaitable[None] | None]


class Preparer:
    """`declare` is called, in the application's loop, when a task is prepared. `changed`: there is
    something else to report.
    """

    def __init__(self, prepare: PrepareCallback, declare: Callable[[TaskId], None], changed: Callable[[], None]) -> None:
        self._prepare = prepare
        self._declare = declare
        self._changed = changed
        self._jobs: dict[TaskId, asyncio.Task[None]] = {}
        self._contexts: dict[TaskId, PrepareContext] = {}
        self._failed: frozenset[TaskId] = frozenset()
        self._resting: frozenset[TaskId] = frozenset()
        """Of these, what waits to be tried again."""

    def update(self, wanted: frozenset[TaskId], kept: frozenset[TaskId]) -> None:
        """Begins what is wanted, and calls off what is not kept here any more."""
        for task in sorted(self._jobs.keys() - kept):
            self._call_off(task)
        for task in sorted(wanted - self._jobs.keys()):
            self._begin(task, runs_next=False)

    async def prepared(self, task: TaskId) -> None:
        """Returns when the task is prepared; begins that unless it is under way."""
        if task not in self._jobs:
            _LOG.info("task %s was granted before it was prepared: that is done now, before its first record", task)
            self._begin(task, runs_next=True)
        await asyncio.shield(self._jobs[task])

    def progress(self) -> Mapping[TaskId, PreparationProgress]:
        """Of what is under way."""
        contexts = sorted(dict(self._contexts).items())
        return {task: PreparationProgress(*context.said, context.attempt, task not in self._resting) for task, context in contexts}

    def thousandths(self) -> dict[TaskId, int]:
        """The same for reports, without what waits to be tried again."""
        return {task: int(each.fraction * PREPARED) for task, each in self.progress().items() if each.is_under_way}

    @property
    def failed(self) -> frozenset[TaskId]:
        """Tasks of which an attempt failed, those included that are tried again now."""
        return self._failed

    async def let_go(self) -> None:
        """Calls everything off."""
        jobs = list(self._jobs.values())
        for task in list(self._jobs):
            self._call_off(task)
        await asyncio.gather(*jobs, return_exceptions=True)

    def _begin(self, task: TaskId, *, runs_next: bool) -> None:
        self._jobs[task] = asyncio.ensure_future(self._until_prepared(task, runs_next=runs_next))

    def _call_off(self, task: TaskId) -> None:
        self._jobs.pop(task).cancel()
        context = self._contexts.pop(task, None)
        if context is not None:
            context.cancelled = True
        self._failed -= {task}
        self._resting -= {task}

    async def _until_prepared(self, task: TaskId, *, runs_next: bool) -> None:
        attempt, wait_s = 1, FIRST_RETRY_S
        while True:
            context = self._contexts[task] = PrepareContext(task, attempt, runs_next=runs_next)
            self._resting -= {task}
            self._changed()
            begun_s = time.monotonic()
            try:
                await _call(self._prepare, context)
                break
            except Exception:  # noqa: BLE001  # of the application's code, which may raise anything; another attempt may do better
                took_s = time.monotonic() - begun_s
                _LOG.exception("task %s: preparing it failed after %.1f s, attempt %d; again in %.0f s", task, took_s, attempt, wait_s)
            self._failed |= {task}
            self._resting |= {task}
            self._changed()
            await asyncio.sleep(wait_s)
            attempt, wait_s = attempt + 1, min(LONGEST_RETRY_S, 2 * wait_s)
        _LOG.info("task %s is prepared, after %.1f s", task, time.monotonic() - begun_s)
        del self._jobs[task], self._contexts[task]
        self._failed -= {task}
        self._declare(task)


async def _call(prepare: PrepareCallback, context: PrepareContext) -> None:
    is_coroutine = inspect.iscoroutinefunction(prepare) or inspect.iscoroutinefunction(getattr(prepare, "__call__", None))  # noqa: B004
    result: Any = prepare(context) if is_coroutine else await asyncio.to_thread(prepare, context)
    if inspect.isawaitable(result):
        await result
