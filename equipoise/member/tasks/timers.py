"""Timers of a task: functions that are called at intervals, between records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from equipoise.events.errors import InputError
from equipoise.member.tasks.callbacks import check_callback


@attrs.define(eq=False)
class _IntervalTimer:
    interval_s: float
    callback: Callable[..., Any]
    due_s: float


class IntervalTimers:
    """The timers of one task. `clock`: seconds, rising. `wall_ms`: ms since 1970."""

    def __init__(self, clock: Callable[[], float], wall_ms: Callable[[], int] | None = None) -> None:
        self._clock = clock
        self.wall_ms = wall_ms or (lambda: round(clock() * 1_000))
        self._timers: list[_IntervalTimer] = []

    def __bool__(self) -> bool:
        return bool(self._timers)

    def every(self, seconds: float, callback: Callable[..., Any]) -> None:
        """Adds a timer, first due in `seconds`. Raises InputError when that is not above 0,
        or nothing would be called.
        """
        if not seconds > 0:
            raise InputError(f"every({seconds!r}): an interval is a number of seconds above 0")
        check_callback("every: callback", callback, "context")
        self._timers.append(_IntervalTimer(seconds, callback, self._clock() + seconds))

    def wait_s(self) -> float | None:
        """Seconds until a timer is due, 0 if one is; None: there are none."""
        if not self._timers:
            return None
        return max(0.0, min(timer.due_s for timer in self._timers) - self._clock())

    def take_due(self) -> list[Callable[..., Any]]:
        """The callbacks that are due, each once, however many intervals have passed."""
        if not self._timers:
            return []
        now_s = self._clock()
        due = [timer for timer in self._timers if timer.due_s <= now_s]
        for timer in due:
            timer.due_s += timer.interval_s
            if timer.due_s <= now_s:
                timer.due_s = now_s + timer.interval_s
        return [timer.callback for timer in due]
