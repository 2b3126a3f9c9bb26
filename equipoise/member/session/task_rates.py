"""The rates of a member's tasks, for its reports."""

from __future__ import annotations

from collections.abc import Mapping

from equipoise.events.tasks import TaskId
from equipoise.hosting.machine_load import MEASURE_EVERY_MS


class Rates:
    """Measures how much is done for each task. `per_s`: task -> increase of its counter a second
    between the last two measurements, rounded. A task that began in between is absent.
    """

    def __init__(self) -> None:
        self.per_s: dict[TaskId, int] = {}
        self._counted: dict[TaskId, int] = {}
        self._looked_ms: int | None = None

    def look(self, processed: Mapping[TaskId, int], now_ms: int) -> None:
        """Measures, unless the last measurement is less than MEASURE_EVERY_MS ago. `processed`:
        running task -> its counter; a lower counter than before means that the task was reopened.
        """
        if self._looked_ms is not None and now_ms - self._looked_ms < MEASURE_EVERY_MS:
            self.per_s = {task: rate for task, rate in self.per_s.items() if task in processed}
            return
        took_ms = 0 if self._looked_ms is None else now_ms - self._looked_ms
        self.per_s = {
            task: round((count - self._counted[task]) * 1_000 / took_ms)
            for task, count in sorted(processed.items())
            if took_ms and self._counted.get(task, count + 1) <= count
        }
        self._counted, self._looked_ms = dict(processed), now_ms
