"""Runs the application's `prepare` for each task that needs it.

Everything here belongs to the application's loop, except `progress`, `thousandths` and `failed`,
which any thread may read. A `prepare` that is not a coroutine function runs on a thread of its own,
because it may take minutes and must not delay other tasks.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import attrs

from equipoise.events.errors import InputError
from equipoise.events.facts import PREPARED
from equipoise.events.tasks import TaskId
from equipoise.hosting.runtime import DEPLOYED, Runtime
from equipoise.kafka.client import ENDS_S, call_off
from equipoise.member.tasks.callbacks import awaitable, result_of
from equipoise.member.tasks.fatal_errors import ApplicationError, begin_job, call_off_job, is_cancelled, settled

_LOG = logging.getLogger(__name__)
FIRST_RETRY_S = 1.0
LONGEST_RETRY_S = 60.0


@attrs.frozen
class PreparationProgress:
    """Progress of the preparation of one task, as `prepare` reported it. `fraction`: 0 to 1.
    `attempt`: from 1. `is_under_way`: False when the last attempt failed and the next one begins
    later.
    """

    fraction: float
    text: str
    attempt: int
    is_under_way: bool


class PrepareContext:
    """One attempt to prepare one task. `attempt`: its number, from 1. `runs_next`: the task was
    granted here unprepared, so nobody runs it until this attempt ends.
    """

    def __init__(self, task: TaskId, attempt: int, *, runs_next: bool) -> None:
        self.task = task
        self.attempt = attempt
        self.runs_next = runs_next
        self.cancelled = False
        """Whether the task is no longer wanted here. A coroutine is cancelled too; a function
        should check this and return.
        """
        self.reported: tuple[float, str] = (0.0, "")
        """The last arguments of `progress`."""

    def progress(self, fraction: float, text: str = "") -> None:
        """Reports progress, 0 to 1. The leader waits as long as it rises, and no longer than
        `warmup_stall_ms` without a rise. Raises InputError when `fraction` is not from 0 to 1.
        """
        if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 <= fraction <= 1:
            raise InputError(f"progress({fraction!r:.40}): give a number from 0 to 1")
        self.reported = (float(fraction), text)


PrepareCallback = Callable[[PrepareContext], Awaitable[None] | None]


class Preparer:
    """Runs `prepare` for tasks. Calls `declare` in the application's loop when a task is prepared,
    `changed` when there is something else to report, and `fail` when `prepare` has raised what no
    other attempt is made after: SystemExit, KeyboardInterrupt or another BaseException.
    """

    def __init__(
        self,
        prepare: PrepareCallback,
        declare: Callable[[TaskId], None],
        changed: Callable[[], None],
        fail: Callable[[BaseException], None],
        runtime: Runtime = DEPLOYED,
    ) -> None:
        self._prepare = prepare
        self._declare = declare
        self._changed, self._fail = changed, fail
        self._runtime = runtime
        self._jobs: dict[TaskId, asyncio.Task[None]] = {}
        self._contexts: dict[TaskId, PrepareContext] = {}
        self._failed: frozenset[TaskId] = frozenset()
        self._waiting: frozenset[TaskId] = frozenset()
        """Failed tasks that wait for their next attempt."""

    def update(self, wanted: frozenset[TaskId], kept: frozenset[TaskId]) -> None:
        """Begins to prepare `wanted`, and cancels preparations of tasks that are not in `kept`."""
        for task in sorted(self._jobs.keys() - kept):
            self._cancel(task)
        for task in sorted(wanted - self._jobs.keys()):
            self._begin(task, runs_next=False)

    async def prepared(self, task: TaskId) -> None:
        """Returns when the task is prepared. Begins to prepare it unless that is under way. Raises
        ApplicationError when the member ends before.
        """
        if task not in self._jobs:
            _LOG.info("task %s was granted unprepared: preparing it before its first record", task)
            self._begin(task, runs_next=True)
        await asyncio.shield(self._jobs[task])
        if task in self._jobs:
            raise ApplicationError(f"task {task} was not prepared, and the member ends")

    def progress(self) -> Mapping[TaskId, PreparationProgress]:
        """Progress of every task in preparation."""
        contexts = sorted(dict(self._contexts).items())
        return {task: PreparationProgress(*context.reported, context.attempt, task not in self._waiting) for task, context in contexts}

    def thousandths(self) -> dict[TaskId, int]:
        """Progress in thousandths, for reports; without tasks that wait for their next attempt."""
        return {task: int(each.fraction * PREPARED) for task, each in self.progress().items() if each.is_under_way}

    @property
    def failed(self) -> frozenset[TaskId]:
        """Tasks with a failed attempt that are not prepared yet."""
        return self._failed

    async def cancel_all(self) -> None:
        """Cancels all preparations."""
        jobs = list(self._jobs.values())
        for task in list(self._jobs):
            self._cancel(task)
        await call_off(*jobs, again_s=ENDS_S)

    def _begin(self, task: TaskId, *, runs_next: bool) -> None:
        self._jobs[task] = begin_job(self._until_prepared(task, runs_next=runs_next))

    def _cancel(self, task: TaskId) -> None:
        call_off_job(self._jobs.pop(task))
        context = self._contexts.pop(task, None)
        if context is not None:
            context.cancelled = True
        self._failed -= {task}
        self._waiting -= {task}

    async def _until_prepared(self, task: TaskId, *, runs_next: bool) -> None:
        attempt, wait_s = 1, FIRST_RETRY_S
        while True:
            context = self._contexts[task] = PrepareContext(task, attempt, runs_next=runs_next)
            self._waiting -= {task}
            self._changed()
            begun_s = self._runtime.monotonic_s()
            try:
                await self._call(context)
                if (pending := await settled()) is not None:
                    raise pending
                break
            except BaseException as error:  # the application's code may raise anything; another attempt may succeed
                if isinstance(error, asyncio.CancelledError) and is_cancelled():
                    raise
                await settled()
                if not isinstance(error, Exception | asyncio.CancelledError):
                    self._fail(error)
                    return
                took_s = self._runtime.monotonic_s() - begun_s
                _LOG.exception("task %s: attempt %d to prepare it failed after %.1f s, retrying in %.0f s", task, attempt, took_s, wait_s)
            self._failed |= {task}
            self._waiting |= {task}
            self._changed()
            await asyncio.sleep(wait_s)
            attempt, wait_s = attempt + 1, min(LONGEST_RETRY_S, 2 * wait_s)
        _LOG.info("task %s prepared in %.1f s", task, self._runtime.monotonic_s() - begun_s)
        del self._jobs[task], self._contexts[task]
        self._failed -= {task}
        self._declare(task)

    async def _call(self, context: PrepareContext) -> None:
        prepare = self._prepare
        is_coroutine = inspect.iscoroutinefunction(prepare) or inspect.iscoroutinefunction(getattr(prepare, "__call__", None))  # noqa: B004
        result: Any = prepare(context) if is_coroutine else await self._runtime.run_blocking(prepare, context)
        awaited = awaitable(result)
        if awaited is not None:
            await result_of(awaited)
