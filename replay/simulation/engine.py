"""The event queue: what happens next, by (time, order of asking). All of the simulation's time and
all of its chance are here.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random
from typing import Any


class Engine:
    """World time in whole milliseconds, one queue, one source of chance: the same seed gives the
    same run, byte for byte.
    """

    def __init__(self, *, seed: int, start_ms: int = 0) -> None:
        self.now_ms = start_ms
        self.random = Random(seed)
        self.steps = 0
        self._queue: list[tuple[int, int, Callable[..., object], tuple[Any, ...]]] = []
        self._asked = 0

    def after(self, delay_ms: int, action: Callable[..., object], *arguments: Any) -> None:
        """Calls ``action(*arguments)`` in `delay_ms` >= 0 milliseconds; of two at the same time,
        the one asked for first comes first.
        """
        self._asked += 1
        heapq.heappush(self._queue, (self.now_ms + delay_ms, self._asked, action, arguments))

    def at(self, time_ms: int, action: Callable[..., object], *arguments: Any) -> None:
        """Calls ``action(*arguments)`` at `time_ms`, or now when that has passed."""
        self.after(max(0, time_ms - self.now_ms), action, *arguments)

    def step(self) -> bool:
        """The next thing that happens; False when nothing is left."""
        if not self._queue:
            return False
        self.now_ms, _, action, arguments = heapq.heappop(self._queue)
        self.steps += 1
        action(*arguments)
        return True

    def run_until(self, time_ms: int) -> None:
        """Everything up to and including `time_ms`."""
        while self._queue and self._queue[0][0] <= time_ms:
            self.step()
        self.now_ms = max(self.now_ms, time_ms)

    def between(self, least: int, most: int) -> int:
        """A whole number from `least` to `most`, both included."""
        return least + int(self.random.random() * (most - least + 1))

    def chance(self, per_million: int) -> bool:
        """True `per_million` times in a million. Draws nothing when that is 0."""
        return per_million > 0 and self.random.random() * 1_000_000 < per_million
