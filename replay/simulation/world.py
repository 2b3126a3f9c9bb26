"""Ground truth of a simulation: the records in the changelogs, and the member that processes each
task at each millisecond.

The world watches the processes and not the leader. Two processes on one task at the same time end
the run.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from typing import Protocol

import attrs

from equipoise.events.errors import FieldError, InvariantBroken
from equipoise.events.facts import TopologyDeclared
from equipoise.events.tasks import TaskId

NEVER_MS = 2**62
RATE_MS = 5_000
"""Length of time over which a write rate is measured."""

PartitionKey = tuple[str, int]
"""(topic, partition)."""


class EndOffsetCurve(Protocol):
    """End offset of one partition over time: recorded (`equipoise.replay.recorded_inputs.Curve`) or
    synthetic (`ChangelogGrowth`).
    """

    def at(self, ms: int, /) -> int:
        """Returns the records at world time `ms`. Never falls."""


@attrs.frozen
class ChangelogGrowth:
    """An end offset over time, as points (world time in ms, records) that both rise: linear between
    them, constant before and after.
    """

    points: tuple[tuple[int, int], ...]
    _times: tuple[int, ...] = attrs.field(init=False, repr=False, eq=False)

    def __attrs_post_init__(self) -> None:
        times = tuple(at_ms for at_ms, _ in self.points)
        if not times or any(later[0] <= earlier[0] or later[1] < earlier[1] for earlier, later in zip(self.points, self.points[1:], strict=False)):
            raise FieldError("ChangelogGrowth.points", "needs at least one point (ms, records), in rising order of time, never falling in records")
        object.__setattr__(self, "_times", times)

    def at(self, time_ms: int) -> int:
        """Returns the records at `time_ms`, rounded down."""
        index = bisect_right(self._times, time_ms)
        if index == 0:
            return self.points[0][1]
        before_ms, before = self.points[index - 1]
        if index == len(self.points):
            return before
        after_ms, after = self.points[index]
        return before + (after - before) * (time_ms - before_ms) // (after_ms - before_ms)


def steady(*, records: int, records_per_s: int, start_ms: int = 0, lasts_ms: int = 10**10) -> ChangelogGrowth:
    """Returns a growth of `records` at `start_ms` and `records_per_s` more each second for
    `lasts_ms`.
    """
    return ChangelogGrowth(((start_ms, records), (start_ms + lasts_ms, records + records_per_s * lasts_ms // 1_000)))


@attrs.frozen(kw_only=True)
class Ownership:
    """One member processed one task from `start_ms` to `end_ms`. `process`: number of the member's
    process.
    """

    task: TaskId
    member_id: str
    process: str
    incarnation: int
    token: int
    start_ms: int
    end_ms: int


@attrs.frozen(kw_only=True)
class CopyRestore:
    """`records` were read into one copy until it was caught up or dropped. `to_run`: the task
    waited to run there.
    """

    at_ms: int
    task: TaskId
    member_id: str
    records: int
    to_run: bool


class Owner(Protocol):
    """A process that runs a task, as the world sees it."""

    @property
    def name(self) -> str: ...
    @property
    def member_id(self) -> str: ...
    @property
    def incarnation(self) -> int: ...
    @property
    def stops_by_ms(self) -> int:
        """It processes nothing from this time on, unless its lease is renewed before."""


@attrs.define(eq=False)
class _Running:
    owner: Owner
    incarnation: int
    token: int
    start_ms: int


class SimulatedWorld:
    """The growing changelogs, and the history of which member processed which task."""

    def __init__(self, topology: TopologyDeclared, growth: Mapping[PartitionKey, EndOffsetCurve], *, stands_still: bool = False) -> None:
        """`stands_still`: nothing is written to the changelogs of a task that no member runs; the
        next owner writes all of it at once.
        """
        self._stands_still = stands_still
        self._idle: dict[TaskId, tuple[int, int]] = {}
        """Task -> (time of its last stop, time at which it ran again)."""
        self.growth = dict(sorted(growth.items()))
        self.tasks: dict[TaskId, bool] = {}
        """Every task -> whether it has state."""
        self.ownerships: list[Ownership] = []
        self.restores: list[CopyRestore] = []
        self._growths: dict[TaskId, tuple[EndOffsetCurve, ...]] = {}
        self._running: dict[TaskId, _Running] = {}
        self._tokens: dict[TaskId, int] = {}
        self.declare(topology)

    def declare(self, topology: TopologyDeclared) -> None:
        """Replaces the tasks by those of `topology`."""
        for part in topology.subtopologies:
            for partition in range(part.partitions):
                task = TaskId(part.subtopology, partition)
                self.tasks[task] = part.stateful
                self._growths[task] = tuple(self.growth[topic, partition] for topic in part.changelog_topics if (topic, partition) in self.growth)

    def end_offset(self, task: TaskId, time_ms: int) -> int:
        """Returns the records in the task's changelogs at `time_ms`."""
        if self._stands_still and task in self._idle:
            stopped_ms, runs_ms = self._idle[task]
            if stopped_ms <= time_ms < runs_ms:
                time_ms = stopped_ms
        growths = self._growths[task]
        return growths[0].at(time_ms) if len(growths) == 1 else sum(growth.at(time_ms) for growth in growths)

    def written_per_s(self, task: TaskId, time_ms: int) -> int:
        """Returns the records per second written to the task's changelogs in the last RATE_MS
        before `time_ms`.
        """
        return (self.end_offset(task, time_ms) - self.end_offset(task, time_ms - RATE_MS)) * 1_000 // RATE_MS

    def started(self, task: TaskId, owner: Owner, token: int, now_ms: int) -> None:
        """Notes that `owner` processes `task` from now on. Raises InvariantBroken(1) when another
        process still does, or a newer owner did before.
        """
        other = self._running.get(task)
        if other is not None and other.owner is not owner:
            stops_ms = other.owner.stops_by_ms
            if stops_ms > now_ms:
                raise InvariantBroken(
                    1,
                    f"task {task} at {now_ms} ms: {owner.name} (incarnation {owner.incarnation}, token {token}) starts while "
                    f"{other.owner.name} (incarnation {other.incarnation}, token {other.token}) may go on until {stops_ms} ms",
                )
            self._note(task, other, stops_ms)
        if token < self._tokens.get(task, 0):
            raise InvariantBroken(1, f"task {task} at {now_ms} ms: {owner.name} starts with token {token} after token {self._tokens[task]} was used")
        self._tokens[task] = token
        if task in self._idle:
            self._idle[task] = (self._idle[task][0], now_ms)
        self._running[task] = _Running(owner, owner.incarnation, token, now_ms)

    def stopped(self, task: TaskId, owner: Owner, now_ms: int) -> None:
        """Notes that `owner` no longer processes `task`. When its lease ended before now, it
        stopped then.
        """
        running = self._running.get(task)
        if running is not None and running.owner is owner:
            del self._running[task]
            stopped_ms = min(now_ms, owner.stops_by_ms)
            self._idle[task] = (stopped_ms, NEVER_MS)
            self._note(task, running, stopped_ms)

    def _note(self, task: TaskId, running: _Running, end_ms: int) -> None:
        owner = running.owner
        self.ownerships.append(
            Ownership(
                task=task,
                member_id=owner.member_id,
                process=owner.name,
                incarnation=running.incarnation,
                token=running.token,
                start_ms=running.start_ms,
                end_ms=max(running.start_ms, end_ms),
            )
        )

    def owner_of(self, task: TaskId, now_ms: int) -> str | None:
        """Returns the member that processes `task` now, or None."""
        running = self._running.get(task)
        return None if running is None or running.owner.stops_by_ms <= now_ms else running.owner.member_id

    def owners(self, now_ms: int) -> dict[TaskId, str]:
        """Returns every task that is processed now -> its member."""
        return {task: owner for task in sorted(self._running) if (owner := self.owner_of(task, now_ms)) is not None}

    def all_run(self, now_ms: int) -> bool:
        """Returns whether every task is processed now."""
        owners = {id(running.owner): running.owner for running in self._running.values()}
        return len(self._running) == len(self.tasks) and all(now_ms < owner.stops_by_ms for owner in owners.values())

    def history(self, now_ms: int) -> list[Ownership]:
        """Returns everything processed so far, by (task, start). What still runs is included as
        ending now.
        """
        going_on = [
            Ownership(
                task=task,
                member_id=running.owner.member_id,
                process=running.owner.name,
                incarnation=running.incarnation,
                token=running.token,
                start_ms=running.start_ms,
                end_ms=max(running.start_ms, min(now_ms, running.owner.stops_by_ms)),
            )
            for task, running in self._running.items()
        ]
        return sorted([*self.ownerships, *going_on], key=lambda ownership: (ownership.task, ownership.start_ms, ownership.end_ms))
