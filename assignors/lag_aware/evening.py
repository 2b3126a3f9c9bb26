"""Evens out the total counts of members with different subscriptions, by single partitions of which
some members have one more than others.

A topic stays even when a partition goes from a member with more of it to one with fewer. So a
member that has much in total can pass a partition on, over others if need be, to one that has
little: along the shortest such path, until none leads to a member with less by two. Then no even
deal has evener totals (counts of that kind have no other optimum than the best one).

Before: A reads all of nine topics of one partition, B three of them, D seven; A has 1, B 1, D 7.
After: 3, 3, 3.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from equipoise.assignors.lag_aware.dealt_topics import Topic
from equipoise.events.java_order import text_key
from equipoise.events.tasks import TaskId

MOST_STEPS = 2_000_000
"""Members looked at in one search for paths, about 2 s of work."""


class Evening:
    """Owners of the partitions of even topics, changed in place. `rank`: of every subscriber, equal
    for members that nothing tells apart but their names.
    """

    def __init__(self, topics: Sequence[Topic], owner: Mapping[TaskId, str], rank: Mapping[str, int]) -> None:
        self.owner = {task: owner[task] for topic in topics for task in topic.lags}
        self.counts = dict.fromkeys(rank, 0)
        """Member -> the number of its partitions."""
        for name in self.owner.values():
            self.counts[name] += 1
        self._lags = {task: lag for topic in topics for task, lag in topic.lags.items()}
        self._rank = rank
        self._changes: dict[str, list[tuple[int, int]]] = {name: [] for name in self.counts}
        """Member -> what it passed on and got, so that names decide between equals alone."""
        self._topics = topics
        self._topic_of: dict[TaskId, int] = {}
        self._more: dict[str, dict[int, list[TaskId]]] = {name: {} for name in self.counts}
        """Member -> topics of which it has one more than others -> its partitions of them."""
        self._fewer: list[set[str]] = []
        """Topic -> members that have one partition less of it than others."""
        self._steps = 0
        for place, topic in enumerate(topics):
            counts, (lower, upper) = topic.counts(self.owner), topic.shares
            self._fewer.append({name for name, count in counts.items() if count == lower < upper})
            for task in topic.lags:
                self._topic_of[task] = place
                if counts[self.owner[task]] == upper > lower:
                    self._more[self.owner[task]].setdefault(place, []).append(task)

    def _order(self, name: str) -> tuple[int, list[tuple[int, int]], bytes]:
        return self._rank[name], self._changes[name], text_key(name)

    def path(self) -> list[tuple[TaskId, str]]:
        """The shortest path from a member with most to one with less by two, as (partition, its
        next owner); empty: there is none.
        """
        least = min(self.counts.values(), default=0)
        for start in sorted(self.counts, key=lambda name: (-self.counts[name], self._order(name))):
            if self.counts[start] < least + 2:
                break
            before: dict[str, tuple[str, TaskId]] = {}
            queue, seen = deque([start]), {start}
            while queue and self._steps < MOST_STEPS:
                giver = queue.popleft()
                for place, tasks in sorted(self._more[giver].items()):
                    self._steps += len(self._fewer[place])
                    for taker in sorted(self._fewer[place] - seen, key=lambda name: (self.counts[name], self._order(name))):
                        seen.add(taker)
                        before[taker] = giver, min(tasks, key=lambda task: (self._lags[task], task))
                        if self.counts[taker] <= self.counts[start] - 2:
                            return self._back(taker, start, before)
                        queue.append(taker)
        return []

    def _back(self, end: str, start: str, before: Mapping[str, tuple[str, TaskId]]) -> list[tuple[TaskId, str]]:
        steps: list[tuple[TaskId, str]] = []
        while end != start:
            giver, task = before[end]
            steps.append((task, end))
            end = giver
        return steps

    def even_out(self) -> None:
        """Passes partitions on until no path is left."""
        while path := self.path():
            for task, taker in path:
                giver, place = self.owner[task], self._topic_of[task]
                self.counts[giver] -= 1
                self.counts[taker] += 1
                self.owner[task] = taker
                self._changes[giver] = sorted([*self._changes[giver], (-1 - place, self._lags[task])])
                self._changes[taker] = sorted([*self._changes[taker], (place, self._lags[task])])
                del self._more[giver][place]
                self._fewer[place].add(giver)
                self._fewer[place].discard(taker)
                self._more[taker][place] = [each for each in self._topics[place].lags if self.owner[each] == taker]
