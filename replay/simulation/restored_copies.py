"""The copies on one process's disk: the position of each, and when the next one changes state.

A process restores `records_per_s` in total. Tasks that wait to run come before copies. The copies
served share the speed evenly (`sequential`: one after the other). A copy that has caught up follows
its changelog `tailing_ms` behind.
"""

from __future__ import annotations

import attrs

from equipoise.events import fields
from equipoise.events.tasks import TaskId
from equipoise.replay.simulation.world import CopyRestore, SimulatedWorld

LEAST_WAIT_MS = 10
"""Least time between two looks at a restore. Near its end the changelog grows while it is read, and
each look would find a little left.
"""


@attrs.frozen(kw_only=True)
class RestoreModel:
    """Restore speed of a process."""

    records_per_s: int = attrs.field(default=50_000, validator=fields.integer(1))
    """Of all its copies together."""
    latency_ms: int = attrs.field(default=200, validator=fields.integer())
    """From the order to the first record: opening the store and finding the changelog."""
    sequential: bool = False
    """Restores one copy after the other instead of all at once."""
    tailing_ms: int = attrs.field(default=100, validator=fields.integer())
    """Delay of a caught-up copy behind its changelog."""


@attrs.define
class _CopyProgress:
    begun_ms: int
    target: int | None
    """End of the changelog, for a task that waits to run: nothing is written to it now. None: a
    copy that follows.
    """
    from_records: int
    caught_up: bool = False


class Disk:
    """State that survives a process: task -> changelog records in its store."""

    def __init__(self) -> None:
        self.positions: dict[TaskId, int] = {}


class Restorer:
    """Advances the positions of one disk."""

    def __init__(self, model: RestoreModel, world: SimulatedWorld, member_id: str, disk: Disk, ready_lag_records: int = 0) -> None:
        self.model = model
        self.disk = disk
        self.restored_anything = False
        self._world = world
        self._member_id = member_id
        self.ready_lag_records = ready_lag_records
        """A copy counts as ready at this lag or below."""
        self._copies: dict[TaskId, _CopyProgress] = {}
        self._updated_ms = 0
        self._carry = 0
        """Thousandths of a record left over from the last look."""

    def open(self, task: TaskId, now_ms: int) -> None:
        """Restores the copy of `task`, which is granted here, to the changelog's present end."""
        copy = self._copies.get(task)
        if copy is not None and copy.target is not None:
            return
        begun_ms = now_ms if copy is None else copy.begun_ms  # a copy that is promoted has its store open already
        self.advance(now_ms)
        self.leave(task, now_ms)
        position = self.disk.positions.setdefault(task, 0)
        self._copies[task] = _CopyProgress(begun_ms, max(position, self._world.end_offset(task, now_ms)), position)

    def opening(self) -> list[TaskId]:
        return sorted(task for task, copy in self._copies.items() if copy.target is not None)

    def following(self) -> list[TaskId]:
        return sorted(task for task, copy in self._copies.items() if copy.target is None)

    def follow(self, task: TaskId, now_ms: int) -> None:
        """Keeps a copy of `task`."""
        copy = self._copies.get(task)
        if copy is not None and copy.target is None:
            return
        self.advance(now_ms)
        self.leave(task, now_ms)
        self._copies[task] = _CopyProgress(now_ms, None, self.disk.positions.setdefault(task, 0))

    def leave(self, task: TaskId, now_ms: int) -> None:
        """Stops restoring the copy of `task`; it stays on disk. Called also when the task begins to
        run and writes the changelog itself.
        """
        copy = self._copies.get(task)
        if copy is None:
            return
        self.advance(now_ms)
        self.disk.positions[task] = self.position(task, now_ms)
        del self._copies[task]
        if not copy.caught_up:
            self._note(task, copy, now_ms)

    def wrote(self, task: TaskId, now_ms: int) -> None:
        """The task ran until now: everything it wrote is in its store."""
        self.disk.positions[task] = self._world.end_offset(task, now_ms)

    def lag(self, task: TaskId, now_ms: int) -> int:
        """Returns the records that the copy is behind. Call `advance` first."""
        copy = self._copies.get(task)
        if copy is not None and copy.target is not None:
            return copy.target - self.disk.positions[task]
        return max(0, self._world.end_offset(task, now_ms) - self.position(task, now_ms))

    def advance(self, now_ms: int) -> None:
        """Moves all positions up to now. Call it before anything changes, so that the set of copies
        served has not changed since the last call.
        """
        elapsed_ms = now_ms - self._updated_ms
        served = self._served(self._updated_ms) if elapsed_ms > 0 else []
        self._updated_ms = now_ms
        if not served:
            self._carry = 0
            return
        budget, self._carry = divmod(self.model.records_per_s * elapsed_ms + self._carry, 1_000)
        share, odd = divmod(budget, len(served))
        for index, task in enumerate(served):
            copy = self._copies[task]
            position = self.disk.positions[task]
            goal = copy.target if copy.target is not None else self._world.end_offset(task, now_ms)
            read = min(max(0, goal - position), budget if self.model.sequential else share + (index < odd))
            budget -= read
            self.disk.positions[task] = position + read
            self.restored_anything = self.restored_anything or read > 0
            if copy.target is None and position + read >= self._world.end_offset(task, now_ms - self.model.tailing_ms):
                copy.caught_up = True
                self._note(task, copy, now_ms)

    def sleep_until(self, now_ms: int) -> None:
        """The process was stopped since the last `advance`: it read nothing, and following copies
        are behind now.
        """
        for task, copy in self._copies.items():
            if copy.caught_up:
                self.disk.positions[task] = self.position(task, self._updated_ms)
                copy.caught_up = False
                copy.from_records = self.disk.positions[task]
        self._updated_ms = now_ms

    def next_look_ms(self, now_ms: int) -> int | None:
        """Returns the time at which a copy will have begun, become ready or been restored. None: no
        restore is under way.
        """
        looks = [copy.begun_ms + self.model.latency_ms for copy in self._copies.values() if copy.begun_ms + self.model.latency_ms > now_ms]
        served = self._served(now_ms)
        if served:
            rate = self.model.records_per_s if self.model.sequential else max(1, self.model.records_per_s // len(served))
            for task in served[:1] if self.model.sequential else served:
                left = self.lag(task, now_ms)
                if self._copies[task].target is None and left > self.ready_lag_records:
                    left -= self.ready_lag_records
                looks.append(now_ms + max(LEAST_WAIT_MS, -(-left * 1_000 // rate)))
        return min(looks) if looks else None

    def _served(self, now_ms: int) -> list[TaskId]:
        begun = [task for task, copy in self._copies.items() if copy.begun_ms + self.model.latency_ms <= now_ms and not copy.caught_up]
        opening = [task for task in begun if self._copies[task].target is not None and self._copies[task].target != self.disk.positions[task]]
        served = opening or [task for task in begun if self._copies[task].target is None]
        return sorted(served, key=lambda task: (self._copies[task].begun_ms, task)) if self.model.sequential else sorted(served)

    def position(self, task: TaskId, now_ms: int) -> int:
        """Records in the copy. `advance` first."""
        copy = self._copies.get(task)
        if copy is not None and copy.caught_up:
            return max(self.disk.positions[task], self._world.end_offset(task, now_ms - self.model.tailing_ms))
        return self.disk.positions.get(task, 0)

    def _note(self, task: TaskId, copy: _CopyProgress, now_ms: int) -> None:
        records = self.disk.positions[task] - copy.from_records
        if records > 0:
            self._world.restores.append(
                CopyRestore(at_ms=now_ms, task=task, member_id=self._member_id, records=records, to_run=copy.target is not None)
            )
