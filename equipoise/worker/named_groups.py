"""Chooses the groups that the metrics name, where a worker leads more than they may name."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain, islice

from equipoise.worker.group_readings import GroupCondition

KEPT_S = 15 * 60.0
"""A group that was not at rest is named for so long before others at rest: as long as the longest
time for which an alert on a group that moves is pending.
"""
HELD_S = 120.0
"""The counter of a group that is named again shows for so long what it was before: two scrapes, at
the longest usual interval. Prometheus sees no rise in a series that begins with it.
"""
_RANKS = {condition: rank for rank, condition in enumerate(GroupCondition)}


class NamedGroups:
    """The choice of one worker. Times are monotonic, in seconds."""

    def __init__(self) -> None:
        self._named: frozenset[str] = frozenset()
        self._kept_until_s: dict[str, float] = {}
        """Groups that were not at rest lately."""
        self._held: dict[str, tuple[float, float]] = {}
        """Group -> what its counter shows, and until when."""

    def choose(self, conditions: Mapping[str, GroupCondition], most: int, now_s: float, former: Mapping[str, float]) -> frozenset[str]:
        """Returns the groups to name, at most `most`: the most urgent first, then those that were
        so lately, then those named the last time, then by name. `former`: what the counter of each
        group was then; groups that were not there are absent.
        """
        kept = {group: until_s for group, until_s in self._kept_until_s.items() if until_s > now_s and group in conditions}
        kept.update((group, now_s + KEPT_S) for group, condition in conditions.items() if condition is not GroupCondition.AT_REST)
        self._kept_until_s = kept
        named = frozenset(conditions)
        if len(named) > most:
            by_rank: list[list[str]] = [[] for _ in range(2 * len(_RANKS) + 2)]
            for group in sorted(conditions):
                rank = _RANKS[conditions[group]] if group in kept else len(_RANKS)
                by_rank[2 * rank + (group not in self._named)].append(group)
            named = frozenset(islice(chain.from_iterable(by_rank), most))
        for group in named - self._named:
            if group in former:
                self._held[group] = former[group], now_s + HELD_S
        self._held = {group: held for group, held in self._held.items() if held[1] > now_s and group in named}
        self._named = named
        return named

    def shown(self, group: str, count: float) -> float:
        """Returns what the group's counter shows now. `count`: its value."""
        held = self._held.get(group)
        return count if held is None else held[0]
