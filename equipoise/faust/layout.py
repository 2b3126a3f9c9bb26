"""The tasks of a Faust application. A task is one partition of all topics that have the same number
of partitions: what Faust's own assignor deals together, too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

import attrs

from equipoise.bridge.question import AskedPartition, AskedTask
from equipoise.events.tasks import TaskId

Ends = Mapping[tuple[str, int], int]
"""Changelog partition -> its end offset."""


@attrs.frozen(kw_only=True)
class TopicGroup:
    """Topics that are dealt together. `topics`: all but those of global tables. `changelogs`: those
    of them whose copies are on disks.
    """

    number: int
    partitions: int
    topics: tuple[str, ...]
    changelogs: tuple[str, ...]

    def task(self, partition: int) -> TaskId:
        return TaskId(self.number, partition)

    def partitions_in(self, assigned: Mapping[str, Iterable[int]]) -> set[int]:
        """The partitions of which a worker has all topics that it has any of, of `assigned`."""
        had = [set(assigned[topic]) for topic in self.topics if assigned.get(topic)]
        return set.intersection(*had) if had else set()


@attrs.frozen(kw_only=True)
class Layout:
    """`topic_groups`: topic -> its number in the metadata of Faust."""

    groups: tuple[TopicGroup, ...]
    topic_groups: Mapping[str, int]
    partition_counts: Mapping[str, int]

    def asked(self) -> tuple[AskedTask, ...]:
        found = []
        for group in self.groups:
            for partition in range(group.partitions):
                source = [AskedPartition(topic=topic, partition=partition) for topic in group.topics if topic not in group.changelogs]
                changelog = [AskedPartition(topic=topic, partition=partition) for topic in group.changelogs]
                found.append(AskedTask(id=group.task(partition), stateful=bool(group.changelogs), source=tuple(source), changelog=tuple(changelog)))
        return tuple(found)

    def lag(self, group: TopicGroup, partition: int, offsets: Mapping[str, Mapping[int, int]], ends: Ends) -> int | None:
        """Records that a copy lacks; None: there is none."""
        if not any(partition in offsets.get(topic, {}) for topic in group.changelogs):
            return None
        return sum(max(0, ends[topic, partition] - 1 - offsets.get(topic, {}).get(partition, -1)) for topic in group.changelogs)

    def records(self, group: TopicGroup, partition: int, ends: Ends) -> int:
        """Records that a worker without a copy lacks."""
        return sum(ends[topic, partition] for topic in group.changelogs)

    @property
    def changelog_partitions(self) -> list[tuple[str, int]]:
        return [(topic, partition) for group in self.groups for topic in group.changelogs for partition in range(group.partitions)]


def layout_of(
    topics: Collection[str], count_of: Callable[[str], int], *, global_changelogs: Collection[str], persistent_changelogs: Collection[str]
) -> Layout:
    """The tasks of an application whose workers all read `topics`. `count_of`: partitions of a
    topic; 0: there is no such topic, which is left out.
    """
    counts = {topic: count for topic in sorted(topics) if (count := count_of(topic))}
    sizes = {size: number for number, size in enumerate(sorted(set(counts.values())))}
    groups = []
    for size, number in sizes.items():
        own = tuple(topic for topic, count in counts.items() if count == size and topic not in global_changelogs)
        changelogs = tuple(topic for topic in own if topic in persistent_changelogs)
        if own:
            groups.append(TopicGroup(number=number, partitions=size, topics=own, changelogs=changelogs))
    return Layout(groups=tuple(groups), topic_groups={topic: sizes[count] for topic, count in counts.items()}, partition_counts=counts)
