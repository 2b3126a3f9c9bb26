"""Counts the records that a member's tasks have processed and not committed."""

from __future__ import annotations

import asyncio
import contextlib

MOST_OF_MEMBER = 800_000
"""Uncommitted records of all tasks of a member, about: each takes some 300 bytes."""
LONGEST_WAIT_S = 1.0
"""Commits that take longer, because one broker does not answer, hold up other tasks no longer."""


class Uncommitted:
    """The counts of all tasks of one member, `most` together. Belongs to the application's loop.

    Tasks that have much to do progress side by side, and would all commit at once. Instead, when
    two thirds of `most` are in no commit yet, the task with the most of them commits, of those
    whose former commit is over: so commits follow one another, and with commits of the same size
    half as many records wait. With `most`, other tasks wait for the end of a commit.
    """

    def __init__(self, most: int) -> None:
        self._most, self._most_waiting = most, most * 2 // 3
        self._waiting: dict[object, int] = {}
        """Task -> its records that are in no commit."""
        self._committing: dict[asyncio.Future[None], tuple[object, int]] = {}
        """Commit that is under way -> its task, and how many records are in it."""
        self._all_waiting = self._in_commits = 0
        self._commit_over = asyncio.Event()

    def most_of_task(self, tasks: int) -> int:
        """Returns how many records one of so many tasks commits at most: twice its share, because
        on average a task is half-way to its commit.
        """
        return 2 * self._most_waiting // tasks

    def note(self, task: object, records: int) -> None:
        """So many records of the task are in no commit."""
        self._all_waiting += records - self._waiting.pop(task, 0)
        if records:
            self._waiting[task] = records

    def begin(self, task: object, committing: asyncio.Future[None]) -> None:
        """The task's records are in this commit from now on. It may be called again for more."""
        records = self._waiting.get(task, 0)
        self.note(task, 0)
        if committing.done():
            return
        if committing not in self._committing:
            committing.add_done_callback(self._end)
        self._committing[committing] = task, records + self._committing.get(committing, (task, 0))[1]
        self._in_commits += records

    def _end(self, committing: asyncio.Future[None]) -> None:
        self._in_commits -= self._committing.pop(committing)[1]
        self._commit_over.set()

    def is_next(self, task: object) -> bool:
        """Returns whether the task has to commit now."""
        if self._all_waiting < self._most_waiting:
            return False
        busy = {each for each, _ in self._committing.values()}
        free = {each: records for each, records in self._waiting.items() if each not in busy}
        return task in free and (free[task] >= max(free.values()) or (self.is_full and not busy))

    @property
    def is_full(self) -> bool:
        """Returns whether tasks may process no more for now."""
        return self._all_waiting + self._in_commits >= self._most

    async def until_not_full(self) -> None:
        """Returns when tasks may process more, or after LONGEST_WAIT_S."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LONGEST_WAIT_S):
                while self.is_full and self._committing:
                    self._commit_over.clear()
                    await self._commit_over.wait()
