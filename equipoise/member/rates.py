"""How much a second is done for each task, in records or in time: counters, looked at every few
seconds.
"""

from __future__ import annotations

from collections.abc import Mapping

from equipoise.events.tasks import TaskId

LOOK_EVERY_MS = 5_000
"""Shorter, and a batch more or less would be a different speed."""


class Rates:
    """`per_s`: task -> what it counted a second between the last two looks, rounded; a task that
    began since then is absent.
    """

    def __init__(self) -> None:
        self.per_s: dict[TaskId, int] = {}
        self._counted: dict[TaskId, int] = {}
        self._looked_ms: int | None = None

    def look(self, processed: Mapping[TaskId, int], now_ms: int) -> None:
        """`processed`: task -> its count so far, of what runs now; one that counts from 0 again was
        opened anew.

        Too soon after the last look, nothing is measured.
        """
        if self._looked_ms is not None and now_ms - self._looked_ms < LOOK_EVERY_MS:
            self.per_s = {task: rate for task, rate in self.per_s.items() if task in processed}
            return
        took_ms = 0 if self._looked_ms is None else now_ms - self._looked_ms
        self.per_s = {
            task: round((count - self._counted[task]) * 1_000 / took_ms)
            for task, count in sorted(processed.items())
            if took_ms and self._counted.get(task, count + 1) <= count
        }
        self._counted, self._looked_ms = dict(processed), now_ms
