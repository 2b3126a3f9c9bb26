"""Logs what happens to a member's tasks: one line for each decision that changes them, and one
when it is known how much there is to restore.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping

from equipoise.events.tasks import Lag, TaskId, ranges
from equipoise.replay.wording import counted

_LOG = logging.getLogger(__name__)
LAGS_WITHIN_S = 5.0
"""How long a line about copies waits until all lags are known."""
LEAST_RECORDS = 1_000
"""Fewer records to restore to run a task are not worth a line."""
IDLE_S = 10.0
"""After this time without an assignment the member says that it waits for one."""


class Story:
    """The lines of one member. Belongs to the thread "equipoise". `who`: their beginning."""

    def __init__(self, who: str, monotonic_s: Callable[[], float]) -> None:
        self._who, self._monotonic_s = who, monotonic_s
        self._runs: frozenset[TaskId] = frozenset()
        self._copies: frozenset[TaskId] = frozenset()
        self._unsaid: set[TaskId] = set()
        """Tasks to restore, of which the line was not written yet."""
        self._since_s: float | None = None
        """When the member joined, or when the last task to restore came."""
        self._is_assigned = False
        self._unread: dict[str, int] = {}
        """Partitions that no task reads, as the last line about each topic says."""
        self._is_blocked = False

    def waits(self, prefix: str) -> None:
        """There is no log yet whose topics begin with `prefix`."""
        _LOG.info("%s waits for a worker, which makes the log %s", self._who, prefix)

    def joined(self, incarnation: int) -> None:
        """The broker has appended the fact that the member joins."""
        self._since_s = self._monotonic_s()
        _LOG.info("%s joined, incarnation %d", self._who, incarnation)

    def assigned(self, runs: Collection[TaskId], copies: Collection[TaskId]) -> None:
        """A decision was applied: these tasks are granted, and these are copied here."""
        before_runs, before_copies = self._runs, self._copies
        self._runs, self._copies, self._is_assigned = frozenset(runs), frozenset(copies), True
        lines = {
            "runs": self._runs - before_runs,
            "gives up": before_runs - self._runs,
            "copies no longer": before_copies - self._copies - self._runs,
        }
        if any(lines.values()):
            _LOG.info("%s %s", self._who, "; ".join(f"{what} {ranges(tasks)}" for what, tasks in lines.items() if tasks))
        new = (self._copies - before_copies) | lines["runs"]
        self._unsaid = (self._unsaid | new) & (self._runs | self._copies)
        if new:
            self._since_s = self._monotonic_s()

    def unread(self, partitions: Mapping[str, int]) -> None:
        """Source topics with partitions that no task reads: how many. Writes what has changed."""
        for topic, count in partitions.items():
            if self._unread.get(topic) != count:
                what = f"{counted(count, 'partition')} of {topic} {'is' if count == 1 else 'are'} read by nobody"
                _LOG.warning("%s: %s: deploy with a higher topology_epoch", self._who, what)
        self._unread = dict(partitions)

    def blocked(self, why: str) -> None:
        """`why`: the application's loop does not run; "": it runs. Writes what has changed."""
        if bool(why) != self._is_blocked:
            self._is_blocked = bool(why)
            if why:
                _LOG.error("%s: %s; its tasks stay here and handle nothing", self._who, why)
            else:
                _LOG.warning("%s: its handlers and callbacks run again", self._who)

    def look(self, lags: Mapping[TaskId, Lag], restored: Collection[TaskId]) -> None:
        """Writes what has become known. `lags`: of copies and of tasks that open here. `restored`:
        granted tasks that have their state.
        """
        waited_s = 0.0 if self._since_s is None else self._monotonic_s() - self._since_s
        if self._unsaid:
            self._unsaid.difference_update(restored)
            waiting = [task for task in self._unsaid if not isinstance(lags.get(task), int) and (task in self._copies or task in lags)]
            if not waiting or waited_s > LAGS_WITHIN_S:
                self._say("copies %s (%s records left to restore)", self._unsaid & self._copies, lags)
                opening = {task for task in self._unsaid & self._runs if _known(lags.get(task)) >= LEAST_RECORDS}
                self._say("restores %s first (%s records)", opening, lags)
                self._unsaid = {task for task in self._unsaid if task in self._runs and task not in lags}
        if not self._is_assigned and self._since_s is not None and waited_s > IDLE_S:
            self._since_s = None
            _LOG.info("%s waits for tasks: no worker leads the group, or the others run all tasks", self._who)

    def _say(self, line: str, tasks: Collection[TaskId], lags: Mapping[TaskId, Lag]) -> None:
        if tasks:
            unknown = "" if all(isinstance(lags.get(task), int) for task in tasks) else "at least "
            records = sum(_known(lags.get(task)) for task in tasks)
            _LOG.info(f"%s {line}", self._who, ranges(tasks), f"{unknown}{records:,}")

    def ended(self, *, left: bool) -> None:
        """The incarnation has ended, and runs and copies nothing. `left`: the member has left."""
        self._runs = self._copies = frozenset()
        self._unsaid.clear()
        self._since_s, self._is_assigned = None, False
        if left:
            _LOG.info("%s left", self._who)


def _known(lag: Lag | None) -> int:
    return lag if isinstance(lag, int) else 0
