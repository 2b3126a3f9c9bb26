"""Calls functions of the application in its loop, for nobody who waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from equipoise.member.tasks.callbacks import awaitable, result_of
from equipoise.member.tasks.fatal_errors import begin_job, is_cancelled

T = TypeVar("T")


class LoopCallbacks:
    """Calls back in the event loop in which it is constructed. `fail`: takes what a function or its
    coroutine has raised.
    """

    def __init__(self, fail: Callable[[BaseException], None]) -> None:
        self._fail = fail
        self._loop = asyncio.get_running_loop()
        self._called: set[asyncio.Task[None]] = set()
        """Callbacks that are coroutines and under way: a task without a reference may be collected.
        """

    def call(self, callback: Callable[[T], Awaitable[None] | object], what: T) -> None:
        """Calls `callback` with `what`, soon. Any thread may call this."""
        self._loop.call_soon_threadsafe(self._call, callback, what)

    def _call(self, callback: Callable[[T], Awaitable[None] | object], what: T) -> None:
        try:
            result = awaitable(callback(what))
        except BaseException as error:  # noqa: BLE001  # the application's code may raise anything
            self._fail(error)
            return
        if result is not None:
            called = begin_job(self._called_back(result))
            self._called.add(called)
            called.add_done_callback(self._called.discard)

    async def _called_back(self, result: Awaitable[None]) -> None:
        try:
            await result_of(result)
        except BaseException as error:  # the application's code may raise anything
            if isinstance(error, asyncio.CancelledError) and is_cancelled():
                raise
            self._fail(error)
