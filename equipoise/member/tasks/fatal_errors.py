"""Errors of application code that are no `Exception`. They end the member, with a line in its log,
or park the task. They never leave a member that renews its lease and does nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any
from weakref import WeakKeyDictionary

from equipoise.events.errors import EquipoiseError


class ApplicationError(EquipoiseError):
    """Application code has raised what a future, or a coroutine, cannot pass on. Its cause is that."""

    exit_code = 1


_JOBS: WeakKeyDictionary[asyncio.Task[Any], bool] = WeakKeyDictionary()
"""Job of a member that calls the application -> whether the member has called it off."""


def begin_job(coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Begins a job of the member's that calls the application. Only `call_off_job` and the end of
    its event loop cancel it: any other cancellation is an error of the application.
    """
    job = asyncio.ensure_future(coroutine)
    _JOBS[job] = False
    return job


def call_off_job(job: asyncio.Task[Any]) -> None:
    """Cancels a job of the member's."""
    _JOBS[job] = True
    job.cancel()


def is_cancelled() -> bool:
    """Returns whether the running task is being cancelled, in a job by the member. If it is not, a
    CancelledError comes from the application.
    """
    task = asyncio.current_task()
    if task is None or not task.cancelling():
        return False
    return _JOBS.get(task, True) or _loop_ends(task)


def _loop_ends(job: asyncio.Task[Any]) -> bool:
    """Returns whether all tasks are cancelled, as `asyncio.run` does at its end. Some have ended by
    then, or begun.
    """
    others = asyncio.all_tasks() - {job}
    return not others or sum(each.cancelling() > 0 for each in others) * 2 > len(others)


async def settled() -> asyncio.CancelledError | None:
    """After a function of the application has ended in a job: makes the job go on as if the
    application had not cancelled it. Returns a cancellation that had not yet reached the function;
    None: there was none. Raises CancelledError when the job is called off meanwhile.
    """
    job, pending = asyncio.current_task(), None
    if job is None or not job.cancelling() or is_cancelled():
        return None
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError as error:
        if is_cancelled():
            raise
        pending = error
    while job.uncancel():
        pass
    return pending


def passed_on(error: BaseException) -> BaseException:
    """The error, in a form that a future can hold and whoever awaits that future can tell from a
    cancellation or an end of its own.
    """
    if not isinstance(error, asyncio.CancelledError | StopIteration | StopAsyncIteration | GeneratorExit):
        return error
    made = ApplicationError(f"application code raised {type(error).__name__}{f' ({error})' if str(error) else ''}")
    made.__cause__ = error
    return made
