"""The event queue of a simulation. It holds all of the simulation's time and randomness."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random
from typing import Any


class Engine:
    """A queue of actions ordered by (time in whole milliseconds, order of scheduling), and the only
    random generator of the simulation. Equal seeds give equal runs.
    """

    def __init__(self, *, seed: int, start_ms: int = 0) -> None:
        self.now_ms = start_ms
        self.random = Random(seed)
        self.steps = 0
        self._queue: list[tuple[int, int, Callable[..., object], tuple[Any, ...]]] = []
        self._asked = 0

    def after(self, delay_ms: int, action: Callable[..., object], *arguments: Any) -> None:
        """Schedules ``action(*arguments)`` in `delay_ms` >= 0 milliseconds. Actions of one time run
        in the order in which they were scheduled.
        """
        self._asked += 1
        heapq.heappush(self._queue, (self.now_ms + delay_ms, self._asked, action, arguments))

    def at(self, time_ms: int, action: Callable[..., object], *arguments: Any) -> None:
        """Schedules ``action(*arguments)`` at `time_ms`, or now when that is past."""
        self.after(max(0, time_ms - self.now_ms), action, *arguments)

    def step(self) -> bool:
        """Runs the next action. Returns False when the queue is empty."""
        if not self._queue:
            return False
        self.now_ms, _, action, arguments = heapq.heappop(self._queue)
        self.steps += 1
        action(*arguments)
        return True

    def run_until(self, time_ms: int) -> None:
        """Runs every action up to and including `time_ms`."""
        while self._queue and self._queue[0][0] <= time_ms:
            self.step()
        self.now_ms = max(self.now_ms, time_ms)

    def between(self, least: int, most: int) -> int:
        """Returns a random whole number from `least` to `most`, both included."""
        return least + int(self.random.random() * (most - least + 1))

    def chance(self, per_million: int) -> bool:
        """Returns True with a probability of `per_million` / 1,000,000. Draws no random number when
        `per_million` is 0.
        """
        return per_million > 0 and self.random.random() * 1_000_000 < per_million
