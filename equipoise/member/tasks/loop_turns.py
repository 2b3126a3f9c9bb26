"""Turns of a member's tasks in the application's loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from equipoise.member.tasks.commit_schedule import CommitTicks

MOST_RECORDS = 500
"""Records that tasks process before the loop looks for what has arrived."""
MOST_HURRY_S = 1.0
"""The busy tasks of a member let one that opens or closes go first for so long at most."""


class Turns:
    """Turns of tasks that have much to do. After some of them the loop looks for what has arrived:
    otherwise each answer of a broker would wait for a turn of all tasks. Belongs to the
    application's loop.

    A task that opens or closes asks brokers a dozen times, one after the other, and nobody runs it
    meanwhile. Each answer would wait for a handler of every other task, so these let it go first.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._hurried: dict[object, asyncio.TimerHandle] = {}
        self._giving_way: dict[object, asyncio.Future[None]] = {}

    async def next(self, records: int) -> None:
        """Returns when the task may go on. `records`: how many it has just processed, as it is
        likely to process as many again.
        """
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._begin)
        self._waiting.append((records, turn))
        await turn

    def hurry(self, task: object) -> None:
        """Until `hurried`, for MOST_HURRY_S at most, busy tasks let this one go first."""
        if task not in self._hurried:
            self._hurried[task] = asyncio.get_running_loop().call_later(MOST_HURRY_S, self.hurried, task)
            self._go_on(task)

    def hurried(self, task: object) -> None:
        """The task opens or closes no longer."""
        timer = self._hurried.pop(task, None)
        if timer is not None:
            timer.cancel()
            for each in () if self._hurried else list(self._giving_way):
                self._go_on(each)

    async def give_way(self, task: object) -> None:
        """Lets those that hurry go first, unless the task is one of them; for MOST_HURRY_S at most,
        also when one after the other hurries.
        """
        if self._hurried and task not in self._hurried:
            loop = asyncio.get_running_loop()
            self._giving_way[task] = waiting = loop.create_future()
            timer = loop.call_later(MOST_HURRY_S, self._go_on, task)
            try:
                await waiting
            finally:
                timer.cancel()

    def _go_on(self, task: object) -> None:
        waiting = self._giving_way.pop(task, None)
        if waiting is not None and not waiting.done():  # it was not cancelled
            waiting.set_result(None)

    def _begin(self) -> None:
        records = 0
        while self._waiting and records < MOST_RECORDS:
            more, turn = self._waiting.popleft()
            if not turn.done():  # it was not cancelled
                turn.set_result(None)
                records += more
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._begin)


def new_ticks(monotonic_s: Callable[[], float], interval_s: float, *, parts: int = 1) -> CommitTicks:
    """Returns ticks that begin in the application's loop. `monotonic_s`: a clock."""
    next_tick: asyncio.TimerHandle | None = None

    def plan(at_s: float | None) -> None:
        nonlocal next_tick
        if next_tick is not None:
            next_tick.cancel()
        next_tick = None if at_s is None else asyncio.get_running_loop().call_later(max(0.0, at_s - monotonic_s()), begin)

    def begin() -> None:
        nonlocal next_tick
        next_tick = None
        ticks.begin(monotonic_s())

    ticks = CommitTicks(interval_s, plan, parts=parts)
    return ticks
