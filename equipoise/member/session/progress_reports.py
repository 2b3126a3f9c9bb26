"""Tells a member's session how far its copies are, and its load."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import attrs

from equipoise.events.facts import Load
from equipoise.events.tasks import Lag, LagSentinel, TaskId
from equipoise.hosting.machine_load import MEASURE_EVERY_MS
from equipoise.hosting.runtime import Runtime
from equipoise.member.tasks.runner import TaskRunner
from equipoise.statemachine.member import MemberSession


class ProgressReports:
    """Reports lags and load. The caller of each method holds the session's lock."""

    def __init__(self, runtime: Runtime, state_folder: Path | None) -> None:
        self._reported: set[TaskId] = set()
        """Copies that the session of this incarnation knows of."""
        self._rates, self._busy = Rates(), Rates()
        self._load_meter = runtime.load_meter(state_folder)

    def begin_incarnation(self) -> None:
        """Begins for a new incarnation, whose session knows of no copies."""
        self._reported = set()

    def restored(self, task: TaskId) -> None:
        """Notes that the session knows of this copy."""
        self._reported.add(task)

    def report_copies(self, session: MemberSession, lags: Mapping[TaskId, Lag], runners: Mapping[TaskId, TaskRunner], now_ms: int) -> None:
        """Reports the lag of every copy that is not running."""
        for task, lag in sorted(lags.items()):
            # A granted task is restored when its runner says so, even if its copy has lag 0.
            session.copy_progress(task, 1 if lag == 0 and task in session.grants else lag, now_ms)
        for task in sorted(self._reported.difference(lags)):
            if task not in runners:
                session.copy_dropped(task)
            elif task not in session.grants and task not in session.closing:
                # Stopped but not closed yet: its next owner may write, so its lag is unknown.
                session.copy_progress(task, LagSentinel.UNKNOWN, now_ms)
        self._reported = {*lags, *self._reported.intersection(runners)}

    def report_load(self, session: MemberSession, restored_records_per_s: float, runners: Mapping[TaskId, TaskRunner], now_ms: int) -> None:
        """Reports the rates of the tasks and the load of the host."""
        speed = restored_records_per_s
        behind = {task: records for task, runner in sorted(runners.items()) if (records := runner.behind) is not None}
        self._rates.look({task: runner.processed for task, runner in sorted(runners.items())}, now_ms)
        self._busy.look({task: int(runner.busy_s * 1_000_000) for task, runner in sorted(runners.items())}, now_ms)
        host = self._load_meter.look(now_ms)
        if speed or behind or self._rates.per_s:
            # Without rates the host's load cannot be divided among its tasks.
            shares = attrs.asdict(host) if self._rates.per_s else {}
            load = Load(**shares, restored_records_per_s=round(speed, 1), tasks=self._rates.per_s, behind=behind, busy=self._busy.per_s)
            session.load_measured(load)


# The rates of a member's tasks, for its reports.


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
