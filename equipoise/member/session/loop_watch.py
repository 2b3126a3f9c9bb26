"""Notices that an event loop does not run."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable


class LoopBeat:
    """Watches an event loop. It is asked at each look, so that an idle loop has nothing to do."""

    def __init__(self, loop: asyncio.AbstractEventLoop, monotonic_s: Callable[[], float]) -> None:
        self._loop, self._monotonic_s = loop, monotonic_s
        self._asked_s: float | None = None

    def silent_s(self) -> float:
        """Seconds since the first look that the loop has not answered; 0: it has answered."""
        now_s = self._monotonic_s()
        if self._asked_s is None:
            self._asked_s = now_s
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._answer)
        asked_s = self._asked_s
        return 0.0 if asked_s is None else now_s - asked_s

    def _answer(self) -> None:
        self._asked_s = None
