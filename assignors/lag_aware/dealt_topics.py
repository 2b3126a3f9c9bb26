"""A topic that is dealt: its partitions, and who subscribes to it."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from equipoise.assignors.common.indexed_problem import Pool
from equipoise.events.tasks import TaskId


@attrs.frozen
class Topic:
    """A topic's partitions by decreasing lag and then by partition, and its subscribers, at least
    one.
    """

    lags: Mapping[TaskId, int]
    pool: Pool

    @property
    def shares(self) -> tuple[int, int]:
        """Fewest and most partitions of a member when the topic is even."""
        return len(self.lags) // len(self.pool.members), -(-len(self.lags) // len(self.pool.members))

    def counts(self, owner: Mapping[TaskId, str]) -> dict[str, int]:
        """Subscriber -> number of its partitions."""
        counts = dict.fromkeys(self.pool.members, 0)
        for task in self.lags:
            if owner.get(task) in counts:
                counts[owner[task]] += 1
        return counts

    def is_even(self, owner: Mapping[TaskId, str]) -> bool:
        """Returns whether every partition has a subscriber as owner, and counts differ by at most
        one.
        """
        lower, upper = self.shares
        counts = self.counts(owner)
        return sum(counts.values()) == len(self.lags) and all(lower <= count <= upper for count in counts.values())
