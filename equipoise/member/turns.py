"""Turns of a member's tasks in the application's loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from equipoise.member.commit_schedule import CommitTicks

MOST_RECORDS = 500
"""Records that tasks process before the loop looks for what has arrived."""


class Turns:
    """Turns of tasks that have much to do. After some of them the loop looks for what has arrived:
    otherwise each answer of a broker would wait for a turn of all tasks. Belongs to the
    application's loop.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

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
