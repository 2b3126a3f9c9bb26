"""Tells how far a group is behind, by its commits and the ends of partitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs

from equipoise.replay.importers.groups.observed import ObservedGroup
from equipoise.replay.numbers import lag_of

Committed = Mapping[tuple[str, str, int], tuple[int, int]]
"""Group, topic and partition -> time (ms) and offset of its last commit."""


@attrs.frozen(kw_only=True)
class PartitionLag:
    """A partition that a group has committed, or that one of its members has. `member`: who has it,
    None: nobody. `committed` None: never. `end`: its end offset, None: it is not there any more.
    `silent_ms`: time since the last commit of one that is behind, else 0.
    """

    partition: str
    member: str | None
    committed: int | None
    end: int | None
    silent_ms: int

    @property
    def lag(self) -> int | None:
        """Records after the last commit; None: not known, because it was never committed, though it
        has records, or is not there any more.
        """
        return 0 if self.end == 0 else lag_of(self.committed, self.end)


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
        silent_ms = max(0, now_ms - at_ms) if is_behind else 0
        found.append(PartitionLag(partition=partition, member=owners.pop(partition, None), committed=committed, end=end, silent_ms=silent_ms))
    for partition, member in owners.items():
        topic, _, number_text = partition.rpartition("-")
        known, number = ends.get(topic, []), int(number_text)
        end = known[number] if number < len(known) else None
        found.append(PartitionLag(partition=partition, member=member, committed=None, end=end, silent_ms=0))
    return sorted(found, key=lambda each: (each.lag is not None, -(each.lag or 0), each.partition))


@attrs.frozen(kw_only=True)
class GroupLag:
    """The lag of a group. `records`: of the partitions with commits, None: there are records and no
    commit. `never_committed`: partitions with records that members have, and never committed.
    """

    records: int | None
    never_committed: int

    @classmethod
    def of(cls, lags: Iterable[PartitionLag]) -> GroupLag:
        """Returns the sum over the partitions of a group; 0 without partitions."""
        every = list(lags)
        never = sum(each.committed is None and each.lag is None and each.end is not None for each in every)
        known = [each.lag or 0 for each in every if each.committed is not None]
        return cls(records=None if never and not known else sum(known), never_committed=never)


def read_topics(group: ObservedGroup) -> set[str]:
    """Returns the topics of the partitions that members of a group have."""
    return {partition.rpartition("-")[0] for work in group.owners for partition in group.partitions_of(work)}
