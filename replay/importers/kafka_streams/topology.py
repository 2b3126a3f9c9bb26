"""The tasks of a Kafka Streams group, learnt from its assignments, because nothing on the wire
declares them.

Certain: the input partitions of a task (an assignment pairs them). Inferred: which sub-topologies
keep state (some task of theirs was reported or kept as a copy), and which changelog topic belongs
to which (by partition counts, and where several fit, by the reported offset sums).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import attrs

from equipoise.events.errors import InputError
from equipoise.events.facts import Subtopology, TopologyDeclared
from equipoise.events.tasks import TaskId
from equipoise.replay.importers.kafka_streams.offsets_records import StreamsAssignment, StreamsSubscription
from equipoise.replay.wording import counted

MOST_MATCHINGS = 5_000
"""Most ways to pair changelogs with sub-topologies that are tried. With more, the matching stays
open.
"""


class TopologyEvidence(NamedTuple):
    """A reported offset sum, with the end offsets of the task's partition in every candidate
    changelog at that time.
    """

    task: TaskId
    offset_sum: int
    ends: Mapping[str, int]


@attrs.define
class TopologySeen:
    """The topology as assignments and subscriptions show it, fed one generation at a time."""

    inputs: dict[str, int] = attrs.field(factory=dict)
    """source topic -> sub-topology"""
    partitions: dict[int, int] = attrs.field(factory=dict)
    """sub-topology -> tasks seen so far"""
    stateful: set[int] = attrs.field(factory=set)

    def _pair(self, task: TaskId, topic: str, partition: int, offset: int) -> None:
        if partition != task.partition:
            problem = f"task {task} reads partition {partition} of {topic!r}; only tasks that read their own partition can be imported"
            raise InputError(f"record at offset {offset}: {problem}")
        if self.inputs.setdefault(topic, task.subtopology) != task.subtopology:
            problem = f"topic {topic!r} is read by sub-topologies {self.inputs[topic]} and {task.subtopology}; only one may read it"
            raise InputError(f"record at offset {offset}: {problem}")
        self.partitions[task.subtopology] = max(self.partitions.get(task.subtopology, 0), task.partition + 1)

    def see(self, subscription: StreamsSubscription, assignment: StreamsAssignment, offset: int) -> None:
        """Learns from one consumer of one generation. Raises InputError when its tasks are not
        paired with partitions as Kafka Streams pairs them.
        """
        for task, (topic, partition) in zip(assignment.active, assignment.input_partitions(), strict=True):
            self._pair(task, topic, partition, offset)
        for task, inputs in assignment.standby.items():
            self.stateful.add(task.subtopology)
            for topic, partition in inputs:
                self._pair(task, topic, partition, offset)
        for task in subscription.task_offset_sums:
            self.stateful.add(task.subtopology)

    def task_counts(self, topic_partitions: Mapping[str, int]) -> dict[int, int]:
        """Returns sub-topology -> number of tasks: the most partitions of its source topics in
        `topic_partitions`.
        """
        counts = dict(self.partitions)
        for topic, subtopology in self.inputs.items():
            counts[subtopology] = max(counts[subtopology], topic_partitions.get(topic, 0))
        return counts


@attrs.frozen(kw_only=True)
class Matching:
    """Changelogs of the sub-topologies. `how`: sub-topology -> the evidence. `open_`:
    sub-topologies for which no changelog fits, or several do.
    """

    changelogs: Mapping[int, tuple[str, ...]]
    how: Mapping[int, str]
    open_: tuple[int, ...]


def changelog_candidates(group: str, topic_partitions: Mapping[str, int]) -> list[str]:
    """Returns the topics named like Kafka Streams' changelogs, ``<application
    id>-<store>-changelog``, in rising order.
    """
    return sorted(topic for topic in topic_partitions if topic.startswith(f"{group}-") and topic.endswith("-changelog"))


def match_changelogs(
    task_counts: Mapping[int, int],
    stateful: Iterable[int],
    candidates: Sequence[str],
    topic_partitions: Mapping[str, int],
    evidence: Sequence[TopologyEvidence],
) -> Matching:
    """Pairs changelog topics with stateful sub-topologies.

    A changelog has as many partitions as its sub-topology has tasks. Where that leaves a choice,
    every pairing is scored by the reported offset sums, which approach the end offsets of the right
    topics from below: the pairing with the smallest mean distance wins if it is unique.
    """
    wanted = sorted(set(stateful))
    changelogs: dict[int, tuple[str, ...]] = {}
    how: dict[int, str] = {}
    still_open: list[int] = []
    for count in sorted({task_counts.get(subtopology, 0) for subtopology in wanted}):
        owners = [subtopology for subtopology in wanted if task_counts.get(subtopology, 0) == count]
        topics = [topic for topic in candidates if topic_partitions[topic] == count]
        if not topics:
            still_open += owners
        elif len(owners) == 1:
            changelogs[owners[0]] = tuple(topics)
            how[owners[0]] = f"the only stateful sub-topology with {counted(count, 'task')}; as many partitions: {', '.join(topics)}"
        else:
            chosen = _best_matching(owners, topics, evidence)
            if chosen is None:
                still_open += owners
            else:
                for owner in owners:
                    changelogs[owner] = tuple(topic for topic, whose in zip(topics, chosen, strict=True) if whose == owner)
                    how[owner] = f"{len(owners)} stateful sub-topologies have {count} tasks; the reported offset sums fit this one best"
    return Matching(changelogs=changelogs, how=how, open_=tuple(sorted(still_open)))


def _best_matching(owners: Sequence[int], topics: Sequence[str], evidence: Sequence[TopologyEvidence]) -> tuple[int, ...] | None:
    """Returns topic -> owner, in the order of `topics`; None when there are too many pairings, no
    evidence, or two pairings fit equally well.
    """
    usable = [item for item in evidence if item.task.subtopology in owners]
    if len(owners) ** len(topics) > MOST_MATCHINGS or {item.task.subtopology for item in usable} != set(owners):
        return None
    scored = []
    for way in itertools.product(owners, repeat=len(topics)):
        if set(way) == set(owners):
            distance = 0
            for item in usable:
                end = sum(item.ends.get(topic, 0) for topic, owner in zip(topics, way, strict=True) if owner == item.task.subtopology)
                distance += abs(end - item.offset_sum)
            scored.append((distance, way))
    scored.sort()
    if not scored or (len(scored) > 1 and scored[0][0] == scored[1][0]):
        return None
    return scored[0][1]


def declare(epoch: int, seen: TopologySeen, task_counts: Mapping[int, int], matching: Matching) -> TopologyDeclared:
    """Returns the TopologyDeclared fact. A stateful sub-topology without a known changelog stays
    stateful, with no changelog topics.
    """
    return TopologyDeclared(
        epoch=epoch,
        subtopologies=tuple(
            Subtopology(
                subtopology=subtopology,
                partitions=task_counts[subtopology],
                stateful=subtopology in seen.stateful,
                source_topics=tuple(sorted(topic for topic, whose in seen.inputs.items() if whose == subtopology)),
                changelog_topics=matching.changelogs.get(subtopology, ()),
            )
            for subtopology in sorted(task_counts)
        ),
    )
