"""Errors of application code that are no `Exception`. They end the member, with a line in its log,
or park the task. They never leave a member that renews its lease and does nothing.
"""

from __future__ import annotations

import asyncio

from equipoise.events.errors import EquipoiseError


class ApplicationError(EquipoiseError):
    """Application code has raised what a future, or a coroutine, cannot pass on. Its cause is that.
    """

    exit_code = 1


def is_cancelled() -> bool:
    """Returns whether the running task is being cancelled. If it is not, a CancelledError comes
    from a future or a pool of the application's that was cancelled.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def passed_on(error: BaseException) -> BaseException:
    """The error, in a form that a future can hold and whoever awaits that future can tell from a
    cancellation or an end of its own.
    """
    if not isinstance(error, asyncio.CancelledError | StopIteration | StopAsyncIteration | GeneratorExit):
        return error
    made = ApplicationError(f"application code raised {type(error).__name__}{f' ({error})' if str(error) else ''}")
    made.__cause__ = error
    return made
