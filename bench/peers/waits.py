"""Availability of an application as seen from outside: how long its inputs wait for an answer.

A task is a partition of the input. Each input record is answered by one output record, or by
several when it was processed again; the first counts. The *wait* of an input is the time from its
append to the append of its first answer, both by the broker's clock. A skipped input waits until
the first answer to a later input, and also counts as unanswered. A task is *unavailable* while one
of its inputs waits whose whole wait exceeds STILL_MS; the time counts in full, from the append of
the oldest such input to its answer. So a task without an owner for 10 s is unavailable for 10 s,
plus the time to work off the backlog; a task that answers after 0.9 s is not unavailable. The
recorded runs of Kafka Streams were measured with the same threshold, also in full.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

STILL_MS = 1_000


@attrs.frozen
class Answer:
    """At `at_ms`, `instance` answered a record that was processed for the first time."""

    at_ms: int
    instance: str


@attrs.define
class TaskWaits:
    """One task: `asked_ms[i]` is when its input with offset i was appended, `answers[i]` its first
    answer, None: not yet.
    """

    asked_ms: list[int] = attrs.field(factory=list)
    answers: list[Answer | None] = attrs.field(factory=list)
    owners: list[Answer] = attrs.field(factory=list)
    """Changes of the answering instance, including the first answer."""
    repeated_ms: list[int] = attrs.field(factory=list)
    """Times of repeated answers."""
    next_open: int = 0
    """Offset after the last answered input; older inputs without an answer were skipped."""

    def asked(self, offset: int, at_ms: int) -> None:
        """An input may arrive after its answer, because they are in two topics."""
        self._reach(offset)
        self.asked_ms[offset] = at_ms

    def answered(self, offset: int, answer: Answer) -> None:
        self._reach(offset)
        if not self.owners or self.owners[-1].instance != answer.instance:
            self.owners.append(answer)
        if self.answers[offset] is not None:
            self.repeated_ms.append(answer.at_ms)
            return
        self.answers[offset] = answer
        self.next_open = max(self.next_open, offset + 1)

    def _reach(self, offset: int) -> None:
        while len(self.asked_ms) <= offset:
            self.asked_ms.append(0)
            self.answers.append(None)

    @property
    def owner(self) -> str | None:
        """The instance that answered last; None: no answer yet."""
        return self.owners[-1].instance if self.owners else None

    def open_for_ms(self, now_ms: int) -> int:
        """Wait so far of the oldest open input; 0: no open input."""
        return now_ms - self.asked_ms[self.next_open] if self.next_open < len(self.asked_ms) else 0

    def unanswered(self, begin_ms: int, end_ms: int) -> int:
        """Number of inputs appended between the two times without an answer."""
        return sum(answer is None and begin_ms <= asked_ms < end_ms for asked_ms, answer in zip(self.asked_ms, self.answers, strict=True))

    def waits(self, begin_ms: int, end_ms: int) -> list[tuple[int, int]]:
        """(append, answer) of every input that waited between the two times, by offset; for an open
        input (append, `end_ms`).
        """
        found: list[tuple[int, int]] = []
        until_ms = end_ms
        for asked_ms, answer in zip(reversed(self.asked_ms), reversed(self.answers), strict=True):
            if answer is not None:
                until_ms = min(answer.at_ms, until_ms)
            if until_ms <= begin_ms:
                break
            if asked_ms < end_ms:
                found.append((asked_ms, until_ms))
        return found[::-1]

    def still(self, begin_ms: int, end_ms: int) -> list[tuple[int, int]]:
        """Periods of unavailability between the two times, as disjoint (from, to) in order."""
        found: list[tuple[int, int]] = []
        for asked_ms, until_ms in self.waits(begin_ms, end_ms):
            if until_ms - asked_ms <= STILL_MS:
                continue
            start_ms, stop_ms = max(asked_ms, begin_ms), min(until_ms, end_ms)
            if found and start_ms <= found[-1][1]:
                found[-1] = (found[-1][0], max(found[-1][1], stop_ms))
            elif start_ms < stop_ms:
                found.append((start_ms, stop_ms))
        return found

    def owners_between(self, begin_ms: int, end_ms: int) -> list[str]:
        """Answering instances between the two times, in order of change, starting with the one
        before.
        """
        before = [each for each in self.owners if each.at_ms < begin_ms][-1:]
        return [each.instance for each in (*before, *(each for each in self.owners if begin_ms <= each.at_ms < end_ms))]


@attrs.frozen(kw_only=True)
class Cost:
    """The cost of one action. Times in milliseconds."""

    lasts_ms: int
    """Time from the action to the last change; with `settled` False, until the cut-off, so the
    other values are lower bounds.
    """
    settled: bool
    unavailable_ms: int
    """Sum over all tasks."""
    tasks_still: int
    """Number of tasks that were unavailable."""
    longest_still_ms: int
    moves: int
    """Changes of owner, including intermediate ones."""
    moved_wait_ms: int | None
    """The longest wait of an input of a task that moved; None: none moved."""
    moved_wait_median_ms: int | None
    """The median over those tasks of each one's longest wait."""
    untouched_wait_ms: int | None
    """The longest wait of an input of a task that did not move, at an instance that was neither
    started nor stopped; None: no such task.
    """
    repeated: int
    """Records that were processed again."""
    unanswered: int
    """Inputs of this period that were never answered."""


def cost_of(tasks: Sequence[TaskWaits], begin_ms: int, end_ms: int, *, touched: frozenset[str], settled: bool) -> Cost:
    """`touched`: instances that were started or stopped by the action."""
    still = [task.still(begin_ms, end_ms) for task in tasks]
    longest = [max((until - asked for asked, until in task.waits(begin_ms, end_ms)), default=0) for task in tasks]
    owners = [task.owners_between(begin_ms, end_ms) for task in tasks]
    moved = sorted(wait for wait, names in zip(longest, owners, strict=True) if len(names) > 1)
    untouched = [wait for wait, names in zip(longest, owners, strict=True) if len(names) == 1 and names[0] not in touched]
    return Cost(
        lasts_ms=end_ms - begin_ms,
        settled=settled,
        unavailable_ms=sum(stop - start for each in still for start, stop in each),
        tasks_still=sum(1 for each in still if each),
        longest_still_ms=max((stop - start for each in still for start, stop in each), default=0),
        moves=sum(len(names) - 1 for names in owners if names),
        moved_wait_ms=moved[-1] if moved else None,
        moved_wait_median_ms=moved[len(moved) // 2] if moved else None,
        untouched_wait_ms=max(untouched, default=None),
        repeated=sum(1 for task in tasks for at_ms in task.repeated_ms if begin_ms <= at_ms < end_ms),
        unanswered=sum(task.unanswered(begin_ms, end_ms) for task in tasks),
    )
