"""The positions of a group's tasks, in the compacted topic ``<group>-positions``
(docs/protocol.md#m6): which records count, and a reader that all tasks of a member share.

A record's key is msgpack ``[processor name, source topic, partition]``, its value ``[offset,
changelogs, transactional id, topic id, leader epoch]``, and its header names its origin. No
changelogs: the task continues at `offset`. Otherwise its positions are in these changelogs, and
`offset` counts if none of them has one; None: the task begins as a new one there.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

import attrs
import msgpack

from equipoise.kafka.client import NO_EPOCH, ConsumedRecord, Consumer, Producer, TopicPartition, Unsent, acknowledged
from equipoise.member.fencing import ChangelogOwner, claim
from equipoise.member.origin import Origin, read_origin

PARTITIONS = 6
"""Of the topic, for ever: all positions of a task are in the partition of its number modulo this.
"""
SETTINGS = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1", "segment.ms": "3600000", "segment.bytes": str(16 * 2**20)}
"""Of a topic that a member makes: the first must be so."""
IDLE_WAIT_MS = 500
FETCH_WAIT_MS = 10
"""How long a broker holds a fetch that finds nothing, while a task opens."""
_ALLOWED = re.compile(r"[A-Za-z0-9._-]{1,200}")


def positions_topic(group: str) -> str:
    """The topic of a group. Where Kafka does not allow the group's name, what replaces it ends with
    a hash.
    """
    if _ALLOWED.fullmatch(group):
        return f"{group}-positions"
    return f"{re.sub(r'[^A-Za-z0-9._-]', '_', group)[:180]}-{hashlib.sha256(group.encode()).hexdigest()[:16]}-positions"


def place_of(group: str, partition: int) -> TopicPartition:
    """Where the positions of a task are, by the number of its source partitions."""
    return TopicPartition(positions_topic(group), partition % PARTITIONS)


@attrs.frozen
class Position:
    """Where a task continues in one source partition. `transactional_id`: of its owner, which may
    have left a transaction open; "": none. `topic_id`: of the source; "": unknown. `epoch`: leader
    epoch in which the source had all before `offset` (KIP-320); NO_EPOCH: unknown.
    """

    offset: int | None
    changelogs: tuple[str, ...] = ()
    transactional_id: str = ""
    topic_id: str = ""
    epoch: int = NO_EPOCH


def position_record(processor: str, source: TopicPartition, position: Position, origin: Origin) -> Unsent:
    """The record that stores a position."""
    key: bytes = msgpack.packb([processor, source.topic, source.partition])
    value: bytes = msgpack.packb(attrs.astuple(position))
    return key, value, list(origin.headers), None


@attrs.define(eq=False)
class StoredPosition:
    """The last record of a key that counts. `at`: its offset. `replaced`: the last one of another
    origin before it; None: there was none.
    """

    position: Position
    origin: Origin
    at: int
    replaced: StoredPosition | None = None


class Positions:
    """A fold over the topic: of each key the last record whose origin is not below the one before.
    """

    def __init__(self) -> None:
        self._stored: dict[tuple[str, str, int], StoredPosition] = {}

    def take(self, record: ConsumedRecord) -> None:
        """The next record. Others than those of members are ignored; one without value removes."""
        try:
            processor, topic, partition = msgpack.unpackb(record.key or b"")
            key = (processor, topic, partition)
            hash(key)
        except (ValueError, TypeError, msgpack.UnpackException):
            return
        if record.value is None:
            self._stored.pop(key, None)
            return
        origin, known = read_origin(record.headers), self._stored.get(key)
        if origin is None or (known is not None and origin < known.origin):
            return
        try:
            offset, changelogs, transactional_id, *rest = msgpack.unpackb(record.value)
            position = Position(offset, tuple(changelogs), transactional_id, *rest[:2])
        except (ValueError, TypeError, msgpack.UnpackException):
            return
        replaced = known
        if known is not None and known.origin == origin:
            replaced = known.replaced
        if replaced is not None:
            replaced.replaced = None  # one is enough
        self._stored[key] = StoredPosition(position, origin, record.offset, replaced)

    def find(self, processor: str, source: TopicPartition) -> StoredPosition | None:
        """The position of a processor; None: none is stored."""
        return self._stored.get((processor, *source))

    def of_source(self, source: TopicPartition) -> list[StoredPosition]:
        """The positions of all processors in this source."""
        return [each for (_, topic, partition), each in sorted(self._stored.items()) if (topic, partition) == source]


def claim_positions(stored: Iterable[StoredPosition | None], grant: Origin) -> Origin:
    """The origin of the grant's records, above those that are stored."""
    return max(claim(None if each is None else ChangelogOwner(each.origin), grant) for each in stored)


class PositionsReader:
    """Reads what tasks of a member ask for, each partition once. Belongs to the application's loop.
    `new_consumer`: of committed records.
    """

    def __init__(self, group: str, new_consumer: Callable[[], Consumer]) -> None:
        self._group = group
        self._new_consumer = new_consumer
        self._consumer: Consumer | None = None
        self._folds: dict[TopicPartition, Positions] = {}
        self._next: dict[TopicPartition, int] = {}
        self._lock = asyncio.Lock()

    async def read(self, partition: int, at_least: int = 0) -> Positions:
        """The positions of tasks with this partition, up to `at_least` (an offset), or to the
        present end. Waits for open transactions before that. Raises KafkaError.
        """
        place = place_of(self._group, partition)
        async with self._lock:
            try:
                return await self._read(place, at_least)
            except BaseException:
                await self._forget()
                raise

    async def _read(self, place: TopicPartition, at_least: int) -> Positions:
        if self._consumer is None:
            consumer = self._consumer = self._new_consumer()
            await consumer.start()
        consumer = self._consumer
        if place not in self._folds:
            self._folds[place] = Positions()
            consumer.assign(list(self._folds))
            consumer.pause(place)
            self._next[place] = (await consumer.beginning_offsets([place]))[place]
            consumer.seek(place, self._next[place])
        end = max(at_least, (await consumer.end_offsets([place]))[place])
        if self._next[place] < end:
            consumer.hold_fetches(FETCH_WAIT_MS)
            consumer.resume(place)
            while (position := await consumer.position(place)) < end:
                for record in (await consumer.getmany(place, timeout_ms=IDLE_WAIT_MS)).get(place, ()):
                    self._folds[place].take(record)
            self._next[place] = position
            consumer.pause(place)
            consumer.seek(place, position)
            consumer.hold_fetches(IDLE_WAIT_MS)
        return self._folds[place]

    async def _forget(self) -> None:
        consumer, self._consumer = self._consumer, None
        self._folds, self._next = {}, {}
        if consumer is not None:
            await consumer.stop()

    async def stop(self) -> None:
        """Disconnects."""
        await self._forget()


def continued(stored: Sequence[Mapping[TopicPartition, int]], source: TopicPartition, otherwise: int | None) -> int | None:
    """The lowest position of these changelogs; `otherwise` if none of them has one. One without is
    new, or was made again: either way it has nothing that the others lack.
    """
    return min((each[source] for each in stored if source in each), default=otherwise)


async def write_plainly(
    producer: Producer, place: TopicPartition, records: Mapping[tuple[str, TopicPartition], tuple[Position, Origin]], known: Positions
) -> None:
    """Appends positions that `known` does not have yet, outside of transactions."""
    new = [
        position_record(processor, source, position, claim_positions([stored], origin))
        for (processor, source), (position, origin) in sorted(records.items())
        if (stored := known.find(processor, source)) is None
        or stored.position.changelogs != position.changelogs
        or stored.position.topic_id != position.topic_id
    ]
    if new:
        await producer.partitions_for(place.topic)
        await acknowledged(producer.send_batches(place, new))
