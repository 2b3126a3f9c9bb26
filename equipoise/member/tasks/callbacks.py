"""Functions of the application that a member calls: refuses what can never do its work, and calls
the others.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from functools import partial
from typing import Any, TypeVar

from equipoise.events.errors import FieldError, InputError
from equipoise.member.tasks.fatal_errors import is_cancelled, passed_on, settled

T = TypeVar("T")


def check_callback(field: str, callback: Any, takes: str, *, may_be_class: bool = False) -> None:
    """Raises FieldError when calling `callback` with the arguments `takes` (as in "record,
    context") would do nothing, or cannot be done. None is no callback.
    """
    if callback is None:
        return
    name = getattr(callback, "__qualname__", type(callback).__name__)
    if not callable(callback):
        raise FieldError(field, f"{callback!r:.60} cannot be called; give a function")
    if isinstance(callback, type) and not may_be_class:
        raise FieldError(field, f"{name} is a class; give a function, or an instance of it: {name}()")
    called = getattr(type(callback), "__call__", None)  # noqa: B004
    if any(map(inspect.isgeneratorfunction, (callback, called))) or any(map(inspect.isasyncgenfunction, (callback, called))):
        raise FieldError(field, f"{name} has a yield, so that a call runs none of its lines; write it without")
    try:
        inspect.signature(callback).bind(*takes.split(", "))
    except ValueError:
        return  # written in C, and says nothing
    except TypeError as error:
        raise FieldError(field, f"{name} is called with ({takes}): {error}") from None


def check_sync(field: str, callback: Any, takes: str) -> None:
    """Raises FieldError as `check_callback` does, and when nobody would await what `callback`
    returns: it is a coroutine function.
    """
    check_callback(field, callback, takes)
    function = callback
    while isinstance(function, partial):
        function = function.func
    if any(map(inspect.iscoroutinefunction, (function, getattr(type(function), "__call__", None)))):  # noqa: B004
        name = getattr(function, "__qualname__", type(function).__name__)
        raise FieldError(field, f"{name} is async, and is called where nobody can await; write it with def, and send or put in it")


def call_sync(name: str, function: Callable[..., object], *arguments: Any) -> None:
    """Calls a function of the application where nothing can be awaited. Raises InputError when it
    returns something to await, because none of its lines may have run.
    """
    result = awaitable(function(*arguments))
    if result is not None:
        if inspect.iscoroutine(result):
            result.close()
        raise InputError(f"{name} returns something to await, and is called where nobody can; write it without async")


def awaitable(result: object) -> Awaitable[Any] | None:
    """Returns what a call has returned, if it is to be awaited. Raises InputError for a generator,
    because nobody would run it.
    """
    if result is None:
        return None
    if inspect.isawaitable(result):
        return result
    if isinstance(result, Generator | AsyncGenerator):
        raise InputError("the function returns a generator, of which no line runs: write it without yield")
    return None


async def result_of(called: Awaitable[T]) -> T:
    """Waits for a function of the application, which ends when it likes."""
    return await called


async def call(function: Callable[..., Awaitable[None] | object], *arguments: Any) -> None:
    """Calls a function or a coroutine function of the application. A CancelledError that the member
    has not asked for is raised as ApplicationError.
    """
    try:
        awaited = awaitable(function(*arguments))
        if awaited is not None:
            await result_of(awaited)
    except BaseException as error:
        if isinstance(error, asyncio.CancelledError) and is_cancelled():
            raise
        await settled()
        if isinstance(error, asyncio.CancelledError):
            raise passed_on(error) from error
        raise
    pending = await settled()
    if pending is not None:
        raise passed_on(pending) from pending
