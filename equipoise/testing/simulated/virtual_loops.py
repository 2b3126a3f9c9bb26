"""Event loops in virtual time. One scheduler runs the loops of all simulated threads, one callback
at a time, in an order that follows from the seed alone.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import heapq
import sys
import warnings
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextvars import Context
from random import Random
from typing import Any, TypeVar

T = TypeVar("T")
S_US = 1_000_000
MS_US = 1_000
CALLBACK_US = 20
"""Mean time that one callback of a loop takes."""
MOST_CANCELLED = 200
"""Cancelled timers that a loop keeps before it drops them all."""


class Event:
    """Something to be called at a time, outside of every loop: by the network or a broker."""

    __slots__ = ("arguments", "callback")

    def __init__(self, callback: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        self.callback: Callable[..., object] | None = callback
        self.arguments = arguments

    def cancel(self) -> None:
        self.callback = None


class Scheduler:
    """The virtual time and what is to happen in it. `now_us`: the true time since the start."""

    def __init__(self, seed: int) -> None:
        self.random = Random(f"scheduler {seed}")
        self.now_us = 0
        self.steps = 0
        """Callbacks and events so far."""
        self.loops: list[VirtualLoop] = []
        self.errors: list[str] = []
        """What loops reported as unhandled."""
        self._heap: list[tuple[int, int, Any]] = []
        self._sequence = 0
        self.current: VirtualLoop | None = None
        """The loop that runs now; None: an event does."""

    def call_later(self, delay_us: float, callback: Callable[..., object], *arguments: Any) -> Event:
        """Calls `callback` after `delay_us`, outside of every loop."""
        event = Event(callback, arguments)
        self.push(self.now_us + max(0, int(delay_us)), event)
        return event

    def push(self, due_us: int, item: Event | VirtualLoop) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (due_us, self._sequence, item))

    def run(self, until_us: int, until: Callable[[], bool] = lambda: False) -> None:
        """Runs until `until` holds after a step, nothing is left to do, or the time is `until_us`."""
        heap = self._heap
        hooks = sys.get_asyncgen_hooks()
        try:
            while heap and heap[0][0] <= until_us:
                due_us, _, item = heapq.heappop(heap)
                if item.__class__ is Event:
                    callback, item.callback = item.callback, None
                    if callback is None:
                        continue
                    self.now_us = max(self.now_us, due_us)  # a callback that computes moves it
                    self.steps += 1
                    callback(*item.arguments)
                elif item.due_us == due_us:
                    self.now_us = max(self.now_us, due_us)
                    self.steps += 1
                    item.step()
                else:
                    continue
                if until():
                    return
            self.now_us = max(self.now_us, until_us)
        finally:
            self.current = None
            asyncio._set_running_loop(None)
            sys.set_asyncgen_hooks(*hooks)

    def dispose(self) -> None:
        """Closes every coroutine that was left where it waited, so that none is closed later."""
        self._heap.clear()
        for loop in self.loops:
            loop.kill()
        hook, sys.unraisablehook = sys.unraisablehook, lambda error: None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of coroutines that no one will await now
                for loop in self.loops:
                    loop.dispose()
        finally:
            sys.unraisablehook = hook


class VirtualLoop(asyncio.BaseEventLoop):
    """The event loop of one simulated thread. `slowness`: how much longer its callbacks take."""

    def __init__(self, scheduler: Scheduler, name: str) -> None:
        super().__init__()
        self.name = name
        self.scheduler = scheduler
        self.slowness = 1.0
        self.due_us = -1
        """When the scheduler runs the next step; -1: none is planned."""
        self.is_alive = True
        self._is_paused = False
        self._free_us = 0
        """When the last callback has ended."""
        self._timers: list[tuple[int, int, asyncio.TimerHandle]] = []
        self._timer_sequence = 0
        self._cancelled = 0
        self._task_number = 0
        self._left: list[asyncio.Task[Any]] = []
        self.set_exception_handler(self._report)
        scheduler.loops.append(self)

    def create_task(self, coro: Any, *, name: Any = None, context: Context | None = None) -> asyncio.Task[Any]:
        """Names tasks by their order in this loop: asyncio's names count over all simulations."""
        self._task_number += 1
        return asyncio.Task(coro, loop=self, name=name or f"{self._task_number:09}", context=context)

    # Time

    def time(self) -> float:
        return self.scheduler.now_us / S_US

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:  # type: ignore[override]
        handle = asyncio.Handle(callback, args, self, context)
        if self.is_alive:
            self._ready.append(handle)  # type: ignore[attr-defined]
            if self.due_us < 0 or self.due_us > self.scheduler.now_us:
                self._plan()
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> asyncio.TimerHandle:  # type: ignore[override]
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        if self.is_alive:
            self._timer_sequence += 1
            heapq.heappush(self._timers, (round(when * S_US), self._timer_sequence, timer))
            timer._scheduled = True  # type: ignore[attr-defined]  # so that cancelling it is counted
            self._plan()
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        self._cancelled += 1
        if self._cancelled > MOST_CANCELLED and 2 * self._cancelled > len(self._timers):
            self._timers = [each for each in self._timers if not each[2].cancelled()]
            heapq.heapify(self._timers)
            self._cancelled = 0

    def _plan(self) -> None:
        """Asks the scheduler for the next step."""
        if self._is_paused or not self.is_alive:
            return
        now_us = self.scheduler.now_us
        if self._ready:  # type: ignore[attr-defined]
            due_us = max(now_us, self._free_us)
        elif self._timers:
            due_us = max(now_us, self._free_us, self._timers[0][0])
        else:
            return
        if self.due_us < 0 or due_us < self.due_us:
            self.due_us = due_us
            self.scheduler.push(due_us, self)

    def step(self) -> None:
        """Runs one callback."""
        scheduler, ready, timers = self.scheduler, self._ready, self._timers  # type: ignore[attr-defined]
        now_us = scheduler.now_us
        self.due_us = -1
        while timers and timers[0][0] <= now_us:
            timer = heapq.heappop(timers)[2]
            timer._scheduled = False  # type: ignore[attr-defined]
            if not timer._cancelled:
                ready.append(timer)
            else:
                self._cancelled -= 1
        while ready:
            handle = ready.popleft()
            if handle._cancelled:
                continue
            scheduler.current = self
            asyncio._set_running_loop(self)
            sys.set_asyncgen_hooks(finalizer=self._close_dropped)
            handle._run()
            asyncio._set_running_loop(None)
            scheduler.current = None
            self._free_us = now_us + 1 + int(scheduler.random.random() * 2 * CALLBACK_US * self.slowness)
            break
        self._plan()

    # What happens to the thread

    def pause(self) -> None:
        """SIGSTOP: time passes and nothing runs."""
        self._is_paused = True
        self.due_us = -1

    def resume(self) -> None:
        """SIGCONT."""
        self._is_paused = False
        self._plan()

    def kill(self) -> None:
        """SIGKILL: no line of this thread runs any more, no ``finally`` either."""
        if self.is_alive:
            self.is_alive = False
            self.due_us = -1
            self._left = list(asyncio.all_tasks(self))

    def dispose(self) -> None:
        """After the simulation: closes the coroutines where they are, whatever they raise."""
        for task in self._left:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            coroutine: Any = task.get_coro()
            asyncio._set_running_loop(self)
            for _ in range(10):  # a `finally` that awaits goes on to the next one
                try:
                    coroutine.close()
                    break
                except BaseException:  # noqa: BLE001  # whatever it is, it happens after the end
                    continue
        asyncio._set_running_loop(None)
        self._left.clear()
        self._ready.clear()  # type: ignore[attr-defined]
        self._timers.clear()
        self.close()

    def _close_dropped(self, generator: AsyncGenerator[Any, Any]) -> None:
        """Closes an asynchronous generator that nothing refers to any more, as asyncio does. After
        a SIGKILL, and after the simulation, none of its lines runs.
        """
        if self.is_alive:
            self.call_soon(self.create_task, generator.aclose())

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """Runs `func` at once, in this thread."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except BaseException as error:  # noqa: BLE001  # as an executor does
            future.set_exception(error)
        return future

    def _report(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.scheduler.errors.append(f"{self.scheduler.now_us / S_US:.3f} {self.name}: {context.get('message')}: {error!r}")


class VirtualThread:
    """A `HostThread` in virtual time."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop

    def start(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    async def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(self.start(coroutine))

    async def stop(self) -> None:
        await self.run(_cancel_all())
        self.loop.kill()


async def _cancel_all() -> None:
    own = asyncio.current_task()
    left = [task for task in sorted(asyncio.all_tasks(), key=lambda task: task.get_name()) if task is not own]
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
