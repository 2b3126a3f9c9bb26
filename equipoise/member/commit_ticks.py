"""Lets tasks commit together, in ticks, so that their commits share requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import ceil, inf

LONGEST_S = 0.1
"""A commit that takes longer, because one broker does not answer, holds up no later tick."""


class CommitTicks:
    """The ticks of some tasks. Belongs to the application's loop.

    A tick begins when the former one is over. Unless a commit is due, it also waits until the
    former one was over for as long as that took, and at most for `interval_s`.

    `parts` 1: a tick is for all tasks that wait. More: it is for those whose commit is due, or for
    that part of all, which have not committed for the longest time, because records of others wait
    while many tasks commit. Then ticks are that part of `interval_s` apart at least, and a task has
    one in half of `interval_s`.
    """

    def __init__(self, monotonic_s: Callable[[], float], interval_s: float, *, parts: int = 1) -> None:
        self._monotonic_s = monotonic_s
        self._interval_s, self._parts = interval_s, parts
        self._waiting: dict[CommitTurn, bool] = {}
        """Turn -> whether its commit is due."""
        self._is_due = False
        """Whether a commit of `_waiting` is due."""
        self._committing: set[CommitTurn] = set()
        """Turns of the present tick that are not over."""
        self._began_s = self._rest_until_s = 0.0
        self._next: asyncio.TimerHandle | None = None
        self._waits_until_s = -inf
        """What the next tick waits for: some turn of `_waiting` may have one from then on."""

    def want(self, turn: CommitTurn, *, is_due: bool) -> None:
        """The task commits in one of the next ticks that begin when it has no commit under way. If
        `is_due`, in the next one.
        """
        self._waiting[turn] = is_due
        if self._next is None or is_due > self._is_due or self._from_s(turn) < self._waits_until_s:
            self._is_due |= is_due
            self._plan()

    def withdraw(self, turn: CommitTurn) -> None:
        """The task does not want to commit any more."""
        self._waiting.pop(turn, None)

    def end(self, turn: CommitTurn) -> None:
        """The task has no commit under way any more."""
        turn.over_s = now_s = self._monotonic_s()
        if turn in self._committing:
            self._committing.remove(turn)
            if not self._committing:
                least_s = 0.0 if self._parts == 1 else self._interval_s / self._parts
                self._rest_until_s = now_s + min(max(now_s - self._began_s, least_s), self._interval_s)
        self._plan()

    def _from_s(self, turn: CommitTurn) -> float:
        """Returns when a tick may be for this turn, although its commit is not due."""
        return -inf if self._parts == 1 else turn.over_s + self._interval_s / 2

    def _plan(self) -> None:
        if self._next is not None:
            self._next.cancel()
            self._next = None
        self._waits_until_s = -inf
        begin_s = 0.0 if self._is_due else self._rest_until_s
        if self._committing:
            begin_s = max(begin_s, self._began_s + LONGEST_S)
        elif not self._is_due:
            self._waits_until_s = min((self._from_s(turn) for turn in self._waiting if not turn.is_committing), default=inf)
            begin_s = max(begin_s, self._waits_until_s)
        if self._waiting and begin_s < inf:  # otherwise the end of a commit plans it
            self._next = asyncio.get_running_loop().call_later(max(0.0, begin_s - self._monotonic_s()), self._begin)

    def _begin(self) -> None:
        self._next, self._is_due = None, False
        self._began_s = now_s = self._monotonic_s()
        turns = [turn for turn in self._waiting if not turn.is_committing]
        if self._parts > 1:
            due = [turn for turn in turns if self._waiting[turn]]
            ready = sorted((turn for turn in turns if self._from_s(turn) <= now_s), key=lambda turn: turn.over_s)
            turns = due or ready[: ceil(len(self._waiting) / self._parts)]
        self._committing = set(turns)
        for turn in turns:
            del self._waiting[turn]
            turn.come()
        self._plan()  # for the others, should no commit of these end


class CommitTurn:
    """The turns of one task. `wake` is called when one has come."""

    def __init__(self, ticks: CommitTicks, wake: Callable[[], None]) -> None:
        self._ticks = ticks
        self._wake = wake
        self._has_come = asyncio.Event()
        self.is_committing = False
        self.over_s = -inf
        """When its last commit was over."""

    @property
    def has_come(self) -> bool:
        """Returns whether the task may begin a commit. Others wait until that is over, or `leave`.
        """
        return self._has_come.is_set()

    def come(self) -> None:
        """The task may begin a commit."""
        self._has_come.set()
        self._wake()

    def want(self) -> None:
        """The task has something to commit and nothing else to do."""
        if not self.has_come:
            self._ticks.want(self, is_due=False)

    def withdraw(self) -> None:
        """The task has something else to do, unless its turn has come."""
        if not self.has_come:
            self._ticks.withdraw(self)

    async def wait(self) -> None:
        """Returns when the task may begin a commit, which is due."""
        if not self.has_come:
            self._ticks.want(self, is_due=True)
            await self._has_come.wait()

    def begin(self) -> None:
        """The commit begins."""
        self._has_come.clear()
        self.is_committing = True

    def end(self) -> None:
        """The commit is over."""
        self.is_committing = False
        self._ticks.end(self)

    def leave(self) -> None:
        """The task commits nothing."""
        self._has_come.clear()
        self._ticks.withdraw(self)
        self.end()
