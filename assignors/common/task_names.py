"""Partitions of topics as tasks, as in consumer groups: each topic becomes a sub-topology. Topics are
numbered in the order in which kafka-lag-based-assignor takes them: that of a `HashMap` filled from
the members, in the order of another one, and the topics of each. So the tasks of members come out
in the order in which that assignor lists them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs

from equipoise.events.fields import MOST_TASK_NUMBER
from equipoise.events.java_order import text_key, text_order
from equipoise.events.tasks import TaskId


@attrs.frozen
class TaskNames:
    """Names of tasks as read and written; a task without an entry has its text form."""

    texts: Mapping[TaskId, str] = attrs.field(factory=dict)
    topics: Mapping[str, int] = attrs.field(factory=dict)
    """Topic -> its sub-topology."""

    def text(self, task: TaskId) -> str:
        return self.texts.get(task) or str(task)

    def subscription(self, topics: Iterable[str]) -> dict[int, int]:
        """`MemberSpec.subtopologies` of a subscriber of these topics: all partitions of each."""
        return {self.topics[topic]: MOST_TASK_NUMBER + 1 for topic in topics}


@attrs.frozen(kw_only=True)
class TopicTask:
    """A partition of a topic. `lag` None: not known. `racks`, `weight`: see `Partition`."""

    id: str
    topic: str
    partition: int
    lag: int | None = None
    racks: tuple[str, ...] = ()
    weight: int = 1


def name_topics(tasks: Iterable[TopicTask], subscriptions: Mapping[str, Iterable[str] | None]) -> TaskNames:
    """Numbers the topics. `subscriptions`: member -> its topics; None: all topics that have
    partitions. Topics without subscribers come last.
    """
    found = list(tasks)
    there = sorted({task.topic for task in found}, key=text_key)
    met: list[str] = []
    for member in text_order(sorted(subscriptions, key=text_key)):
        topics = subscriptions[member]
        met.extend(there if topics is None else sorted(topics, key=text_key))
    numbers = {topic: number for number, topic in enumerate(dict.fromkeys((*text_order(met), *there)))}
    return TaskNames({TaskId(numbers[task.topic], task.partition): task.id for task in found}, numbers)


def co_partitioned(subscriptions: Iterable[Iterable[str]], counts: Mapping[str, int]) -> list[tuple[str, ...]]:
    """Classes of topics with equally many partitions and the same subscribers, each in rising
    order: equal partition numbers of a class go to one member, as applications that join topics by
    the protocol `range` rely on. `counts`: topic -> its number of partitions.
    """
    wanted = [frozenset(topics) for topics in subscriptions]
    classes: dict[tuple[int, tuple[bool, ...]], list[str]] = {}
    for topic in sorted(frozenset().union(*wanted)):
        classes.setdefault((counts[topic], tuple(topic in each for each in wanted)), []).append(topic)
    return sorted(map(tuple, classes.values()))
