"""Writes what a task sends: outputs, changelog records and fences, in batches. Each record names
its origin.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from itertools import repeat

import attrs

from equipoise.events.errors import InputError
from equipoise.events.log.kafka.client import Producer, SentBatch, TopicPartition, Unsent, acknowledged, partition_of_key
from equipoise.events.tasks import TaskId
from equipoise.member.origin import Headers, Origin
from equipoise.member.records import Outputs


@attrs.frozen
class WrittenChanges:
    """Records that were appended to one changelog, from offset `first` to before `end`."""

    changes: Mapping[bytes, bytes | None]
    headers: Headers
    first: int
    end: int

    def behind(self, *, transactional: bool) -> int:
        """Offset of the next record. Kafka ends a transaction with a marker in each partition."""
        return self.end + transactional


class TaskWriter:
    """Writes for `task`, as long as it is open. `origin`: of its outputs. `origins`: changelog
    topic -> origin of its records there. `producer`: in each transaction the one that has begun it.
    """

    def __init__(self, producer: Producer, task: TaskId, origin: Origin) -> None:
        self.producer = producer
        self._task = task
        self.headers = list(origin.headers())
        """Of each output."""
        self._turn = task.partition
        """Rises with each call for outputs: the partition of those without a key."""
        self.origins: Mapping[str, Origin] = {}
        self._sent: list[SentBatch] = []
        """The batches of the last call and those before that are not acknowledged."""

    async def by_partition(self, outputs: Outputs) -> dict[TopicPartition, list[Unsent]]:
        """Takes the outputs, and returns them as `send_outputs` takes them. Raises InputError when
        the partition of an output does not exist, KafkaError.
        """
        counts, taken = outputs.partitions, outputs.take()
        for topic in dict.fromkeys([*(topic for topic, _, _ in taken.unplaced), *(topic for topic, _ in taken.placed)]):
            counts[topic] = len(await self.producer.partitions_for(topic))
        found = taken.placed
        for topic, partition, record in taken.unplaced:
            if partition is None:
                partition = self._turn % counts[topic] if record[0] is None else partition_of_key(record[0], counts[topic])
            found.setdefault((topic, partition), []).append(record)
        self._turn += 1
        for topic, partition in found:
            if not 0 <= partition < counts[topic]:
                raise InputError(f"send to {topic}: it has no partition {partition}, only 0 to {counts[topic] - 1}")
        return {TopicPartition(*place): records for place, records in found.items() if records}

    async def send_outputs(self, outputs: Mapping[TopicPartition, Sequence[Unsent]]) -> list[SentBatch]:
        """Queues all outputs. Raises KafkaError."""
        for topic in {place.topic for place in outputs}:
            await self.producer.partitions_for(topic)  # the producer may be a new one, which does not know the topic
        return self._note([batch for place, records in outputs.items() for batch in self.producer.send_batches(place, records)])

    async def append_changes(self, changes: Mapping[str, Mapping[bytes, bytes | None]]) -> dict[str, WrittenChanges]:
        """Appends changes to changelogs: topic -> key -> value, at least one. Returns when all are
        acknowledged.
        """
        sent: dict[str, list[SentBatch]] = {}
        for topic, records in changes.items():
            await self.producer.partitions_for(topic)
            headers = list(self.origins[topic].headers())
            place = TopicPartition(topic, self._task.partition)
            unsent = zip(records, records.values(), repeat(headers), repeat(None))
            sent[topic] = self._note(self.producer.send_batches(place, unsent))
        await acknowledged(batch for batches in sent.values() for batch in batches)
        return {topic: self._written(topic, changes[topic], batches) for topic, batches in sent.items()}

    def _note(self, sent: list[SentBatch]) -> list[SentBatch]:
        self._sent = [*(each for each in self._sent if not each.appended.done()), *sent]
        return sent

    async def settled(self, within_s: float) -> bool:
        """Whether everything sent is acknowledged, or has failed, in this time."""
        waiting = [each.appended for each in self._sent if not each.appended.done()]
        return not waiting or not (await asyncio.wait(waiting, timeout=within_s))[1]

    def _written(self, topic: str, changes: Mapping[bytes, bytes | None], batches: Sequence[SentBatch]) -> WrittenChanges:
        first, last = batches[0].appended.result().offset, batches[-1].appended.result().offset
        return WrittenChanges(changes, self.origins[topic].headers(), first, last + batches[-1].records)
