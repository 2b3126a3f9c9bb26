"""The counts and measurements of a member, for its metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from equipoise.events.tasks import TaskId


@attrs.frozen
class Done:
    """Counts the work of runners. `busy_s`: seconds in the handler, waits included. `out_of_order`:
    records that came behind later ones of another source of their task.
    """

    records: int = 0
    commits: int = 0
    busy_s: float = 0.0
    out_of_order: int = 0

    def __add__(self, other: Done) -> Done:
        return Done(self.records + other.records, self.commits + other.commits, self.busy_s + other.busy_s, self.out_of_order + other.out_of_order)


@attrs.frozen(kw_only=True)
class MemberFigures:
    """A member at one moment. `restored`: records. `fenced`: commits. `parked`: tasks. `tasks`:
    role -> number of tasks. `damaged`: copies that were given up. `failures`: source topic ("": a
    timer) and outcome -> number. `drops`: as `Drops` has them. `handler_times`: as `Failures` has
    them. `throttled_s`: of its process. The lags are in records, without those that are unknown.
    """

    done: Done
    restored: int
    damaged: int
    failures: Mapping[tuple[str, str], int]
    drops: Mapping[tuple[str, str, str], int]
    handler_times: tuple[Sequence[int], float]
    fenced: int
    parked: int
    tasks: Mapping[str, int]
    source_lags: Mapping[TaskId, int]
    restore_lags: Mapping[TaskId, int]
    lease_left_s: float
    throttled_s: float
