"""Writes what a task sends: outputs, changelog records and fences, in batches. Each record names
its origin.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import chain, groupby, islice, repeat

import attrs

from equipoise.events.errors import InputError
from equipoise.events.tasks import TaskId
from equipoise.kafka.client import Producer, SentBatch, TopicPartition, Unsent, acknowledged, partition_of_key
from equipoise.member.copies.fencing import RESERVED_PREFIX
from equipoise.member.copies.origin import Headers, Origin
from equipoise.member.tasks.refusals import blame_record, name_topic
from equipoise.member.tasks.sent_records import Outputs
from equipoise.member.tasks.sizes import Owns, RecordSizes


def _none(first: int, end: int | None) -> bool:
    return False


def _all(first: int, end: int | None) -> bool:
    return True


def _are_own(changes: Mapping[bytes, bytes | None], first: int, end: int | None) -> bool:
    """With those of its handler, a task writes offsets and fences to its changelogs."""
    return all(key.startswith(RESERVED_PREFIX) for key in islice(changes, first, end))


def _has_time(record: Unsent) -> bool:
    return record[3] is not None


@attrs.frozen
class WrittenChanges:
    """So many records that were appended to one changelog, from offset `first` to before `end`. If
    these are further apart, another process has written between them.
    """

    records: int
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

    def __init__(self, producer: Producer, task: TaskId, origin: Origin, sizes: RecordSizes) -> None:
        self.producer = producer
        self.sizes = sizes
        self._task = task
        self.headers = list(origin.headers)
        """Of each output."""
        self._turn = task.partition
        """Rises with each call for outputs: the partition of those without a key."""
        self.origins: Mapping[str, Origin] = {}
        self._asked: set[str] = set()
        """Topics of outputs, whose partitions the producer knows."""
        self._sent: list[SentBatch] = []
        """The batches of the last call, and those before that were not acknowledged then."""

    async def by_partition(self, outputs: Outputs) -> dict[TopicPartition, list[Unsent]]:
        """Takes the outputs, and returns them as `send_outputs` takes them. Raises InputError when
        the partition of an output does not exist, KafkaError.
        """
        counts, taken = outputs.partitions, outputs.take()
        for topic in dict.fromkeys([*(topic for topic, _, _ in taken.unplaced), *(topic for topic, _ in taken.placed)]):
            counts[topic] = await self._ask(topic)
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

    def use(self, producer: Producer) -> None:
        """Writes with this producer from now on."""
        if producer is not self.producer:
            self.producer, self._asked = producer, set()

    async def _ask(self, topic: str) -> int:
        partitions = await partitions_of(self.producer, topic)
        self._asked.add(topic)
        return partitions

    async def send_outputs(self, outputs: Mapping[TopicPartition, Sequence[Unsent]], *, is_own: bool = False) -> list[SentBatch]:
        """Queues all outputs. `is_own`: they are the member's own records. Raises KafkaError."""
        for topic in {place.topic for place in outputs}:
            await self._ask(topic)  # the producer may be a new one, which does not know the topic
        return self.queue_outputs(outputs, is_own=is_own)

    def queue_outputs(self, outputs: Mapping[TopicPartition, Sequence[Unsent]], *, is_own: bool = False) -> list[SentBatch]:
        """Queues all outputs, of topics that the producer knows; `is_own` as for `send_outputs`.
        Raises KafkaError.
        """
        self._forget_acknowledged()
        return [batch for place, records in outputs.items() for batch in self._send(place, records, _all if is_own else _none)]

    def send_at_once(self, outputs: Outputs) -> list[SentBatch]:
        """Takes the outputs and queues them, if all are for partitions of topics that it has sent
        to before with the same producer. Else it takes none. Leaves what the producer refuses, and
        what is behind it: `send_outputs` raises why.
        """
        from aiokafka.errors import KafkaError

        counts, placed, sent = outputs.partitions, outputs.placed, list[SentBatch]()
        if outputs.unplaced or not all(topic in self._asked and 0 <= partition < counts[topic] for topic, partition in placed):
            return sent
        self._forget_acknowledged()
        for place in list(placed):
            try:
                sent += self._send(TopicPartition(*place), placed[place], _none)
            except KafkaError:
                break
            del placed[place]
        return sent

    async def append_changes(self, changes: Mapping[str, Mapping[bytes, bytes | None]], *, is_own: bool = False) -> dict[str, WrittenChanges]:
        """Appends changes to changelogs: topic -> key -> value, at least one. Returns when all are
        acknowledged. `is_own` as for `send_outputs`.
        """
        for topic in changes:
            await partitions_of(self.producer, topic)
        sent = self.queue_changes(changes, is_own=is_own)
        await acknowledged(chain.from_iterable(sent.values()))
        return self.written(sent)

    def queue_changes(self, changes: Mapping[str, Mapping[bytes, bytes | None]], *, is_own: bool = False) -> dict[str, list[SentBatch]]:
        """Queues changes to changelogs that the producer knows: topic -> key -> value, at least
        one. Returns topic -> batches. `is_own` as for `send_outputs`. Raises KafkaError.
        """
        self._forget_acknowledged()
        return {topic: self._send_changes(topic, records, is_own=is_own) for topic, records in changes.items()}

    def _send_changes(self, topic: str, records: Mapping[bytes, bytes | None], *, is_own: bool) -> list[SentBatch]:
        headers, place = list(self.origins[topic].headers), TopicPartition(topic, self._task.partition)
        owns = _all if is_own else partial(_are_own, records)
        return self._send(place, zip(records, records.values(), repeat(headers), repeat(None)), owns)

    def written(self, sent: Mapping[str, Sequence[SentBatch]]) -> dict[str, WrittenChanges]:
        """Returns what was appended to each changelog by these batches, which are acknowledged."""
        return {topic: _written(self.origins[topic].headers, batches) for topic, batches in sent.items()}

    def _forget_acknowledged(self) -> None:
        self._sent = [each for each in self._sent if not each.appended.done()]

    def _send(self, place: TopicPartition, records: Iterable[Unsent], owns: Owns) -> list[SentBatch]:
        if place.topic in self.sizes.times_apart:
            return [batch for _, run in groupby(records, _has_time) for batch in self._send_run(place, list(run), owns)]
        return self._send_run(place, records, owns)

    def _send_run(self, place: TopicPartition, records: Iterable[Unsent], owns: Owns) -> list[SentBatch]:
        from aiokafka.errors import KafkaError

        times = set(map(_has_time, records)) if isinstance(records, Sequence) else {False}  # changes have the clock's
        try:
            sent = self.producer.send_batches(place, records, self.sizes.of(place.topic))
        except KafkaError as error:
            name_topic(error, place.topic, "Write")
            if not owns(0, None):
                blame_record(error)
            raise
        self.sizes.note(place.topic, sent, owns, has_clock=False in times, has_times=True in times)
        self._sent += sent
        return sent

    async def settled(self, within_s: float) -> bool:
        """Returns whether everything sent is acknowledged, or has failed, in this time."""
        waiting = [each.appended for each in self._sent if not each.appended.done()]
        return not waiting or not (await asyncio.wait(waiting, timeout=within_s))[1]


async def partitions_of(producer: Producer, topic: str) -> int:
    """Number of partitions of `topic`. Raises KafkaError, which has the topic."""
    from aiokafka.errors import KafkaError

    try:
        return len(await producer.partitions_for(topic))
    except KafkaError as error:
        name_topic(error, topic, "Write")
        raise


def _written(headers: Headers, batches: Sequence[SentBatch]) -> WrittenChanges:
    first, last = batches[0].appended.result().offset, batches[-1].appended.result().offset
    return WrittenChanges(sum(each.records for each in batches), headers, first, last + batches[-1].records)
