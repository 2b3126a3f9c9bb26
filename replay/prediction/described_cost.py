"""The cost of a change by what a coordinator describes, look by look: who has which partition or
task, and whether the group is at rest. Live groups and simulated ones are counted by the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar

from equipoise.replay.numbers import counted_ms, is_move

Place = TypeVar("Place")
"""A partition or a task."""


class DescribedCost(Generic[Place]):
    """Begins at `began_ms`, of any clock. `weights`: for how many places one counts, where not 1.
    A place that nobody has counts from when somebody has had it.
    """

    def __init__(self, began_ms: int, weights: Mapping[Place, int] | None = None) -> None:
        self._began_ms, self._weights = began_ms, weights or {}
        self._last: dict[Place, str] = {}
        """Who had it last."""
        self._since_ms: dict[Place, int] = {}
        """Since when nobody has it."""
        self._unavailable_ms, self._moves = 0, 0
        self._rest_since_ms: int | None = None

    def look(self, has: Mapping[Place, str], now_ms: int, *, is_at_rest: bool) -> None:
        """Takes what a description shows."""
        for place, who in has.items():
            weight = self._weights.get(place, 1)
            self._moves += weight * (is_move(self._last.get(place), who))
            self._unavailable_ms += weight * counted_ms(now_ms - self._since_ms.pop(place, now_ms))
        self._last.update(has)
        for place in self._last.keys() - has.keys():
            self._since_ms.setdefault(place, now_ms)
        if not is_at_rest or self._since_ms:
            self._rest_since_ms = None
        elif self._rest_since_ms is None:
            self._rest_since_ms = now_ms

    def rested_ms(self, now_ms: int) -> int:
        """Returns for how long the group has been at rest."""
        return 0 if self._rest_since_ms is None else now_ms - self._rest_since_ms

    def costs(self, now_ms: int) -> dict[str, int]:
        """Returns what it has cost until now, by `equipoise.events.facts.JUDGED_METRICS`."""
        standing_ms = sum(self._weights.get(place, 1) * counted_ms(now_ms - since_ms) for place, since_ms in self._since_ms.items())
        return {
            "unavailable_task_ms": self._unavailable_ms + standing_ms,
            "moves": self._moves,
            "rest_ms": (now_ms if self._rest_since_ms is None else self._rest_since_ms) - self._began_ms,
        }
