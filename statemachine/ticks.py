"""Which groups of a partition get a tick next (docs/protocol.md#l3, #l11)."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import NamedTuple, Protocol

EARLIER = 4
"""A tick at which no deadline is due may come earlier by so much of `max_step_ms`: a quarter."""
RESTING_TICKS = 20
"""Ticks that groups at rest get each second, all of a partition together."""
_BUDGET_MS = 1_000


class PlannedTick(NamedTuple):
    """The next tick of a group, on the host's clock."""

    at_ms: int
    """When it is due."""
    from_ms: int
    """From when on it may be sent with those of other groups."""
    rests: bool
    """Whether the group is at rest."""


class Ticked(Protocol):
    """A group that gets ticks."""

    name: str
    tick_under_way: bool

    @property
    def planned(self) -> PlannedTick | None: ...


class TickQueue:
    """Heaps of planned ticks. Costs time for groups that were planned since the last look, and for
    those that are due; not for those at rest.

    `group`: finds a group by its name; None: it is not led any more.
    """

    def __init__(self, group: Callable[[str], Ticked | None], resting_ticks: int = RESTING_TICKS) -> None:
        self._working = _Planned(group, rests=False)
        self._resting = _Planned(group, rests=True)
        self._resting_ticks = resting_ticks
        self._budget: tuple[int, int] | None = None
        """Since when, and how many ticks are left; None: nobody has looked yet."""

    def plan(self, group: Ticked) -> None:
        """Takes the group's next tick as it is planned now."""
        planned = group.planned
        if planned is not None:
            (self._resting if planned.rests else self._working).push(group.name, planned)

    def due(self, now_ms: int) -> list[str]:
        """Groups that need a tick now, each once until its tick was folded; and, if one does, those
        that will soon, because a record in a batch takes a quarter of the bytes. Of groups at rest
        so many as may have one, those that waited longest first.
        """
        due = self._working.take(now_ms)
        from_ms, left = self._budget or (now_ms, self._resting_ticks)
        if now_ms - from_ms >= _BUDGET_MS:
            from_ms, left = now_ms, self._resting_ticks
        resting = self._resting.take(now_ms, left)
        self._budget = from_ms, left - len(resting)
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

    def push(self, name: str, planned: PlannedTick) -> None:
        heapq.heappush(self._at, (planned.at_ms, name))
        heapq.heappush(self._from, (planned.from_ms, name))

    def take(self, now_ms: int, most: int | None = None) -> list[str]:
        if self._first(self._at, lambda planned: planned.at_ms, now_ms) is None:
            return []
        taken: list[str] = []
        while len(taken) != most and (group := self._first(self._from, lambda planned: planned.from_ms, now_ms)) is not None:
            group.tick_under_way = True
            taken.append(group.name)
        return taken

    def _first(self, heap: list[tuple[int, str]], time_of: Callable[[PlannedTick], int], now_ms: int) -> Ticked | None:
        """The first group of a heap whose time has come. Removes what is out of date before it."""
        while heap and heap[0][0] <= now_ms:
            at_ms, name = heap[0]
            group = self._group(name)
            planned = None if group is None or group.tick_under_way else group.planned
            if planned is not None and planned.rests is self._rests and time_of(planned) == at_ms:
                return group
            heapq.heappop(heap)
        return None
