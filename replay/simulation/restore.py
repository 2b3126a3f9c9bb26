"""The copies of one process: how far each has got, and when the next one gets somewhere.

A process restores `records_per_s` in all. Tasks it is to run come before copies. The served ones
share the speed evenly (`sequential`: one after the other). A copy that has caught up follows its
changelog `tailing_ms` behind.
"""

from __future__ import annotations

import attrs

from equipoise.events import fields
from equipoise.events.tasks import TaskId
from equipoise.replay.simulation.world import CopyRestore, SimulatedWorld

LEAST_WAIT_MS = 10
"""Two looks at a restore are at least this far apart: near its end the changelog grows while it is
read, and each look would find a little left.
"""


@attrs.frozen(kw_only=True)
class RestoreModel:
    """What a process can restore."""

    records_per_s: int = attrs.field(default=50_000, validator=fields.integer(1))
    """Of all its copies together."""
    latency_ms: int = attrs.field(default=200, validator=fields.integer())
    """From the order to the first record: the store is opened, the changelog found."""
    sequential: bool = False
    """One copy after the other instead of all at once."""
    tailing_ms: int = attrs.field(default=100, validator=fields.integer())
    """How far behind a copy is that has caught up."""


@attrs.define
class _CopyProgress:
    begun_ms: int
    target: int | None
    """Where the changelog ends for a task that is to run: nobody writes to it now. None: a copy
    that follows.
    """
    from_records: int
    caught_up: bool = False


class Disk:
    """What survives a process: task -> records of its changelog that are in the store."""

    def __init__(self) -> None:
        self.positions: dict[TaskId, int] = {}


class Restorer:
    """Moves the positions of one disk forward."""

    def __init__(self, model: RestoreModel, world: SimulatedWorld, member_id: str, disk: Disk, ready_lag_records: int = 0) -> None:
        self.model = model
        self.disk = disk
        self.restored_anything = False
        self._world = world
        self._member_id = member_id
        self.ready_lag_records = ready_lag_records
        """A copy is worth a look when it is no further behind."""
        self._copies: dict[TaskId, _CopyProgress] = {}
        self._updated_ms = 0
        self._carry = 0
        """Thousandths of a record that the last look left over."""

    def open(self, task: TaskId, now_ms: int) -> None:
        """`task` is to run here: its copy is restored to the changelog's end of now."""
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
        """Its copy stays on disk, and is kept up no more; or it runs now, and writes the changelog
        itself.
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
        """It ran until now: everything it wrote is in its store."""
        self.disk.positions[task] = self._world.end_offset(task, now_ms)

    def lag(self, task: TaskId, now_ms: int) -> int:
        """Records the copy is behind. `advance` first."""
        copy = self._copies.get(task)
        if copy is not None and copy.target is not None:
            return copy.target - self.disk.positions[task]
        return max(0, self._world.end_offset(task, now_ms) - self.position(task, now_ms))

    def advance(self, now_ms: int) -> None:
        """All positions up to now. To be called before anything changes, so that who is served has
        not changed since the last call.
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
        """The process was stopped since the last `advance`: nothing was read, and what followed is
        behind now.
        """
        for task, copy in self._copies.items():
            if copy.caught_up:
                self.disk.positions[task] = self.position(task, self._updated_ms)
                copy.caught_up = False
                copy.from_records = self.disk.positions[task]
        self._updated_ms = now_ms

    def next_look_ms(self, now_ms: int) -> int | None:
        """When a copy will have got somewhere: begun, ready or restored. None: nothing is being
        restored.
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
