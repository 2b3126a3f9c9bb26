"""Marks in the topic of decisions: from where on the decisions of later facts are."""

from __future__ import annotations

from collections import deque

MARK_EVERY = 500
"""Decisions between two marks."""


class DecisionMarks:
    """Remembers where decisions are, for the index of checkpoints: a worker that takes the
    partition over reads the decisions from there on. `answered_to`: offset of the last fact that a
    published decision answers; -1: none was read.
    """

    def __init__(self) -> None:
        self.answered_to = -1
        self._marks: deque[tuple[int, int]] = deque()
        """(offset of a fact, offset of the first decision that it or a later fact caused), rising.
        """
        self._unmarked = MARK_EVERY

    def published(self, caused_by: int, offset: int) -> None:
        """Notes a published decision. One in MARK_EVERY becomes a mark."""
        self.answered_to = max(self.answered_to, caused_by)
        self._unmarked += 1
        if self._unmarked >= MARK_EVERY and self._is_later(caused_by):
            self._marks.append((caused_by, offset))
            self._unmarked = 0

    def reached(self, position: int, decisions_offset: int) -> None:
        """Notes that the decisions of facts from `position` on will be at `decisions_offset` or
        behind it.
        """
        if self._is_later(position - 1):
            self._marks.append((position - 1, decisions_offset))

    def start_for(self, recovery_offset: int) -> int:
        """Returns the offset in the topic of decisions from which a reader finds all decisions of
        facts from `recovery_offset` on, and forgets earlier marks.
        """
        while len(self._marks) > 1 and self._marks[1][0] < recovery_offset:
            self._marks.popleft()
        return self._marks[0][1] if self._marks and self._marks[0][0] < recovery_offset else 0

    def _is_later(self, fact: int) -> bool:
        return not self._marks or fact > self._marks[-1][0]
