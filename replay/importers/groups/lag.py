"""How far a group is behind, from its commits and the ends of partitions."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from equipoise.replay.importers.groups.observed import ObservedGroup

Committed = Mapping[tuple[str, str, int], tuple[int, int]]
"""Group, topic and partition -> time (ms) and offset of its last commit."""


@attrs.frozen(kw_only=True)
class PartitionLag:
    """A partition that a group has committed. `member`: who has it, None: nobody. `end`: its end
    offset, None: it is not there any more. `silent_ms`: time since the last commit of one that is
    behind, else 0.
    """

    partition: str
    member: str | None
    committed: int
    end: int | None
    silent_ms: int

    @property
    def lag(self) -> int:
        """Records after the last commit; 0 where the end is not known."""
        return 0 if self.end is None else max(0, self.end - self.committed)


def lags_of(group: ObservedGroup, commits: Committed, ends: Mapping[str, list[int]], now_ms: int) -> list[PartitionLag]:
    """Returns the partitions of a group, those furthest behind first. `ends`: topic -> end of each
    partition.
    """
    owners = {partition: who[0] for work, who in group.owners.items() for partition in group.partitions_of(work)}
    found = []
    for (name, topic, number), (at_ms, committed) in commits.items():
        if name != group.name:
            continue
        partition, known = f"{topic}-{number}", ends.get(topic, [])
        end = known[number] if number < len(known) else None
        is_behind = end is not None and end > committed
        found.append(
            PartitionLag(
                partition=partition, member=owners.get(partition), committed=committed, end=end, silent_ms=max(0, now_ms - at_ms) if is_behind else 0
            )
        )
    return sorted(found, key=lambda each: (-each.lag, each.partition))
