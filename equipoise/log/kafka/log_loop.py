"""An event loop on a thread of its own, for readers of logs that do not await."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

T = TypeVar("T")
_STOP_S = 5.0


class LogLoop:
    """An event loop on a thread of its own, so that a log can be read from anywhere, also inside
    another event loop.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._entered: set[AbstractAsyncContextManager[Any]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="equipoise-kafka-log", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs `work` and returns its result."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    @contextlib.contextmanager
    def within(self, context: AbstractAsyncContextManager[T]) -> Iterator[T]:
        """Enters `context` and leaves it at the end of the block, also when an interrupt comes
        after it was entered and before `run` returns. Raises what it raises.
        """
        try:
            yield self.run(self._enter(context))
        finally:
            if not self._loop.is_closed():  # `close` leaves those of readings that were given up
                self.run(self._leave(context))

    async def _enter(self, context: AbstractAsyncContextManager[T]) -> T:
        entered = await context.__aenter__()
        self._entered.add(context)
        return entered

    async def _leave(self, context: AbstractAsyncContextManager[Any]) -> None:
        if context in self._entered:
            self._entered.remove(context)
            await context.__aexit__(None, None, None)

    def close(self) -> None:
        """Leaves what is entered, and ends the thread."""
        asyncio.run_coroutine_threadsafe(self._ended(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _ended(self) -> None:
        """Work that an interrupt has called off stops its clients first: they cannot stop in a
        closed loop, and calling them off once more would leave them as they are.
        """
        for context in list(self._entered):
            await self._leave(context)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        if left:
            _, left = await asyncio.wait(left, timeout=_STOP_S)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=_STOP_S)
