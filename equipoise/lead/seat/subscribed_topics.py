"""Which partitions are one task, and which subscription is which topology.

A topic is a sub-topology, and each of its partitions a task. With the protocol `range`, topics of
equally many partitions and the same subscribers are one sub-topology: equal partition numbers go to
one member together, as applications that join such topics rely on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs

from equipoise.assignors.common.task_names import co_partitioned
from equipoise.events.facts import Subtopology, TopologyDeclared
from equipoise.events.tasks import TaskId
from equipoise.kafka.embedded_protocol import TopicPartition

CO_PARTITIONED = frozenset({"range"})
"""Protocols whose users rely on equal partition numbers being together."""


@attrs.frozen(kw_only=True)
class Arrangement:
    """The topics of one generation as tasks.

    `declared`: topologies that the group does not have yet, in the order of their epochs.
    `epochs`: subscription -> epoch of its topology.
    """

    declared: tuple[TopologyDeclared, ...]
    epochs: Mapping[tuple[str, ...], int]
    topology: TopologyDeclared | None

    def tasks(self, places: Iterable[TopicPartition]) -> tuple[TaskId, ...]:
        """The tasks of partitions, in rising order. Of several topics that go together, all of a
        task's partitions must be there.
        """
        held: dict[TaskId, int] = {}
        parts = {topic: part for part in (() if self.topology is None else self.topology.subtopologies) for topic in part.source_topics}
        for topic, partition in places:
            part = parts.get(topic)
            if part is not None and 0 <= partition < part.partitions:
                task = TaskId(part.subtopology, partition)
                held[task] = held.get(task, 0) + 1
        sizes = {part.subtopology: len(part.source_topics) for part in parts.values()}
        return tuple(sorted(task for task, found in held.items() if found == sizes[task.subtopology]))

    def partitions(self, tasks: Iterable[TaskId]) -> dict[str, list[int]]:
        """Topic -> its partitions of these tasks."""
        parts = {part.subtopology: part for part in (() if self.topology is None else self.topology.subtopologies)}
        found: dict[str, list[int]] = {}
        for task in tasks:
            for topic in parts[task.subtopology].source_topics if task.subtopology in parts else ():
                found.setdefault(topic, []).append(task.partition)
        return found


def arrange(subscriptions: Iterable[tuple[str, ...]], counts: Mapping[str, int], protocol: str, known: Mapping[int, TopologyDeclared]) -> Arrangement:
    """Topics and subscriptions of a generation. `counts`: topic -> its number of partitions; topics
    that do not exist are absent. `known`: topologies that the group remembers, by epoch; what is
    declared there is not declared again, and topics keep their numbers.
    """
    wanted = sorted({tuple(topic for topic in topics if topic in counts) for topics in subscriptions} - {()})
    if not wanted:
        return Arrangement(declared=(), epochs={}, topology=known[max(known)] if known else None)
    classes = _classes(wanted, counts, protocol)
    numbers = _numbers(classes, known)
    parts = sorted(
        (Subtopology(subtopology=numbers[topics], partitions=counts[topics[0]], stateful=False, source_topics=topics) for topics in classes),
        key=lambda part: part.subtopology,
    )
    of_subscription = {topics: tuple(part for part in parts if part.source_topics[0] in topics) for topics in wanted}
    epochs = {declared.subtopologies: epoch for epoch, declared in sorted(known.items())}
    newest = max(known, default=0)
    declared: list[TopologyDeclared] = []
    everything = tuple(parts)
    for part in sorted(set(of_subscription.values()) - {everything}, key=lambda each: [one.subtopology for one in each]):
        if part not in epochs:
            newest += 1
            epochs[part] = newest
            declared.append(TopologyDeclared(epoch=newest, subtopologies=part))
    if declared or everything not in epochs or epochs[everything] != newest:
        newest += 1
        epochs[everything] = newest
        declared.append(TopologyDeclared(epoch=newest, subtopologies=everything))
    topology = declared[-1] if declared else known[epochs[everything]]
    return Arrangement(declared=tuple(declared), epochs={topics: epochs[each] for topics, each in of_subscription.items()}, topology=topology)


def _classes(wanted: Iterable[tuple[str, ...]], counts: Mapping[str, int], protocol: str) -> list[tuple[str, ...]]:
    """Topics that go together, each class in rising order."""
    if protocol in CO_PARTITIONED:
        return co_partitioned(wanted, counts)
    return [(topic,) for topic in sorted({topic for topics in wanted for topic in topics})]


def _numbers(classes: Iterable[tuple[str, ...]], known: Mapping[int, TopologyDeclared]) -> dict[tuple[str, ...], int]:
    """Number of each class: the one that it has, or had last, or else a new one. A number never
    stands for other topics.
    """
    had = {part.source_topics: part.subtopology for _, declared in sorted(known.items()) for part in declared.subtopologies}
    fresh = max(had.values(), default=-1)
    numbers: dict[tuple[str, ...], int] = {}
    for topics in classes:
        if topics in had:
            numbers[topics] = had[topics]
        else:
            fresh += 1
            numbers[topics] = fresh
    return numbers
