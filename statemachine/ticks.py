"""Which groups of a partition get a tick next (docs/protocol.md#l3, #l11)."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Protocol

EARLIER = 4
"""A tick at which no deadline is due may come earlier by so much of `max_step_ms`: a quarter."""
RESTING_TICKS = 20
"""Ticks that groups at rest get each second, all of a partition together."""
_BUDGET_MS = 1_000


class Ticked(Protocol):
    """A group whose tick is planned."""

    name: str
    tick_under_way: bool

    @property
    def tick_at_ms(self) -> int | None: ...

    @property
    def tick_from_ms(self) -> int: ...

    @property
    def rests(self) -> bool: ...


class TickQueue:
    """Heaps of planned ticks. Costs time for groups that were planned since the last look, and for
    those that are due; not for those at rest.

    `group`: finds a group by its name; None: it is not led any more.
    """

    def __init__(self, group: Callable[[str], Ticked | None], resting_ticks: int = RESTING_TICKS) -> None:
        self._working = _Planned(group, rests=False)
        self._resting = _Planned(group, rests=True)
        self._resting_ticks = resting_ticks
        self._budget_from_ms: int | None = None
        self._budget = 0

    def plan(self, group: Ticked) -> None:
        """Takes the group's next tick as it is planned now."""
        (self._resting if group.rests else self._working).push(group)

    def due(self, now_ms: int) -> list[str]:
        """Groups that need a tick now, each once until its tick was folded; and, if one does, those
        that will soon, because a record in a batch takes a quarter of the bytes. Of groups at rest
        so many as may have one, those that waited longest first.
        """
        due = self._working.take(now_ms)
        if self._budget_from_ms is None or now_ms - self._budget_from_ms >= _BUDGET_MS:
            self._budget_from_ms, self._budget = now_ms, self._resting_ticks
        resting = self._resting.take(now_ms, self._budget)
        self._budget -= len(resting)
        return due + resting


class _Planned:
    """The ticks of groups that all rest, or all do not."""

    def __init__(self, group: Callable[[str], Ticked | None], *, rests: bool) -> None:
        self._group = group
        self._rests = rests
        self._at: list[tuple[int, str]] = []
        """When ticks are due, and of which groups; out of date where a group says another time."""
        self._from: list[tuple[int, str]] = []
        """The same, of when they may be sent with others."""

    def push(self, group: Ticked) -> None:
        if group.tick_at_ms is not None:
            heapq.heappush(self._at, (group.tick_at_ms, group.name))
            heapq.heappush(self._from, (group.tick_from_ms, group.name))

    def take(self, now_ms: int, most: int | None = None) -> list[str]:
        if self._first(self._at, lambda group: group.tick_at_ms, now_ms) is None:
            return []
        taken: list[str] = []
        while len(taken) != most and (group := self._first(self._from, lambda group: group.tick_from_ms, now_ms)) is not None:
            group.tick_under_way = True
            taken.append(group.name)
        return taken

    def _first(self, heap: list[tuple[int, str]], time_of: Callable[[Ticked], int | None], now_ms: int) -> Ticked | None:
        """The first group of a heap whose time has come. Removes what is out of date before it."""
        while heap and heap[0][0] <= now_ms:
            at_ms, name = heap[0]
            group = self._group(name)
            if group is not None and self._is_planned(group) and time_of(group) == at_ms:
                return group
            heapq.heappop(heap)
        return None

    def _is_planned(self, group: Ticked) -> bool:
        return group.tick_at_ms is not None and not group.tick_under_way and group.rests is self._rests
