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
import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

import attrs
import msgpack

from equipoise.kafka.client import NO_EPOCH, ConsumedRecord, Consumer, Producer, TopicPartition, Unsent, acknowledged
from equipoise.kafka.known_ends import Standstill
from equipoise.member.copies.checks import SHRUNK_LOOKS
from equipoise.member.copies.fencing import ChangelogOwner, claim
from equipoise.member.copies.origin import ORIGIN_HEADER, Origin, read_origin
from equipoise.member.tasks.refusals import name_topic

_LOG = logging.getLogger(__name__)
_RETRY_S = 0.5
PARTITIONS = 6
"""Of the topic, for ever: all positions of a task are in the partition of its number modulo this.
"""
SETTINGS = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1", "segment.ms": "3600000", "segment.bytes": str(16 * 2**20)}
"""Of a topic that a member makes: the first must be so."""
IDLE_WAIT_MS = 500
FETCH_WAIT_MS = 10
"""How long a broker holds a fetch that finds nothing, while a task opens."""
ELSEWHERE = -1
MOST_NOTE_BYTES = 1_000
"""Brokers take 4096 by default (`offset.metadata.max.bytes`)."""
_NOTE_FORM = "equipoise 1"
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
    """The last record of a key that counts. `at`: its offset; ELSEWHERE: the topic may lack it.
    `replaced`: the last one of another origin before it; None: there was none.
    """

    position: Position
    origin: Origin
    at: int
    replaced: StoredPosition | None = None

    def is_after(self, other: StoredPosition) -> bool:
        """Returns whether this was written later, also where the topic has lost records since."""
        mine, theirs = self.origin, other.origin
        offsets = self.position.offset or 0, other.position.offset or 0
        if mine.same_writer(theirs):
            return (mine.token, offsets[0]) > (theirs.token, offsets[1])
        return mine > theirs


def pack_note(processor: str, position: Position, origin: Origin) -> str:
    """Returns the metadata of a position that is committed with the group's offsets: they tell it
    from offsets of another processor or consumer. "": they are too long for that.
    """
    written = dict(origin.headers)[ORIGIN_HEADER].decode()
    note = json.dumps([_NOTE_FORM, processor, position.topic_id, position.epoch, written], separators=(",", ":"))
    return note if len(note) <= MOST_NOTE_BYTES else ""


def read_note(processor: str, offset: int, note: str) -> StoredPosition | None:
    """Returns the position that was committed with this note; None: it is not one of this
    processor.
    """
    try:
        form, name, topic_id, epoch, written = json.loads(note)
    except (ValueError, TypeError):
        return None
    origin = read_origin([(ORIGIN_HEADER, str(written).encode())])
    if form != _NOTE_FORM or name != processor or origin is None:
        return None
    return StoredPosition(Position(offset, (), "", topic_id, epoch), origin, ELSEWHERE)


Key = tuple[str, str, int]
"""Processor, source topic and partition."""


class Positions:
    """A fold over the topic: of each key the last record whose origin is not below the one before.
    `known`: what this member knows from elsewhere, see `find_known`.
    """

    def __init__(self, known: Mapping[Key, StoredPosition] | None = None) -> None:
        self._stored: dict[Key, StoredPosition] = {}
        self._known = {} if known is None else known

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

    def find_known(self, processor: str, source: TopicPartition) -> StoredPosition | None:
        """The last position of a processor that this member has committed, or has read before the
        topic lost records; None: there is none.
        """
        return self._known.get((processor, *source))

    def stored(self) -> Iterable[tuple[Key, StoredPosition]]:
        """Returns all that are stored."""
        return self._stored.items()

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
        self._ids: dict[TopicPartition, str] = {}
        """Partition -> id of the topic that was folded (KIP-516); "": the brokers have none."""
        self._epochs: dict[TopicPartition, int] = {}
        """Partition -> leader epoch of the last record that was folded (KIP-320)."""
        self._known: dict[Key, StoredPosition] = {}
        """What the topic may have lost: what tasks of this member have committed, and what was read
        of a former topic.
        """
        self._lock = asyncio.Lock()

    def keep(self, processor: str, committed: Mapping[TopicPartition, StoredPosition]) -> None:
        """A task of this member has committed these positions: the topic may lose them."""
        self._known.update(((processor, *source), each) for source, each in committed.items())

    async def read(self, partition: int, at_least: int = 0) -> Positions:
        """The positions of tasks with this partition, up to `at_least` (an offset), or to the
        present end. Waits for open transactions before that. A topic that was made again, or has
        lost records, is read from its beginning. Raises KafkaError.
        """
        place = place_of(self._group, partition)
        async with self._lock:
            try:
                return await self._read(place, at_least)
            except BaseException as error:
                name_topic(error, place.topic, "Read")
                await self._disconnect()
                raise

    async def _read(self, place: TopicPartition, at_least: int) -> Positions:
        if self._consumer is None:
            consumer = self._consumer = self._new_consumer()
            await consumer.start()
            self._assign(consumer)
        consumer = self._consumer
        ids = await consumer.topic_ids((place.topic,), place)
        topic_id = ids[0] if ids else ""
        begin = (await consumer.beginning_offsets([place]))[place]
        end = (await consumer.end_offsets([place]))[place]
        why = await self._why_anew(consumer, place, topic_id, begin) if place in self._folds else ""
        if why:
            _LOG.error("positions %s/%d: %s: reading them again, from offset %d on", *place, why, begin)
            end = (await consumer.end_offsets([place]))[place]
        if why or place not in self._folds:
            for key, each in self._folds[place].stored() if why else ():
                if key not in self._known or each.is_after(self._known[key]):
                    self._known[key] = each
            self._folds[place], self._next[place], self._ids[place] = Positions(self._known), begin, topic_id
            self._epochs.pop(place, None)
            self._assign(consumer)
        end = max(at_least, end)
        if self._next[place] < end:
            consumer.hold_fetches(FETCH_WAIT_MS)
            consumer.resume(place)
            looks, standstill = 0, Standstill(f"positions of {place.topic}/{place.partition} before offset {end}", asyncio.get_running_loop().time)
            while (position := await consumer.position(place)) < end:
                standstill.look(position)
                records = (await consumer.getmany(place, timeout_ms=IDLE_WAIT_MS)).get(place, ())
                for record in records:
                    self._folds[place].take(record)
                highwater = consumer.highwater(place)
                looks = 0 if records or highwater is None or highwater >= end else looks + 1
                if looks >= SHRUNK_LOOKS:
                    raise _lost(place, end, highwater)
            self._next[place], self._epochs[place] = position, consumer.fetched_epoch(place)
            consumer.pause(place)
            consumer.seek(place, position)
            consumer.hold_fetches(IDLE_WAIT_MS)
        return self._folds[place]

    def _assign(self, consumer: Consumer) -> None:
        if self._folds:
            consumer.assign(list(self._folds))
        for place, position in self._next.items():
            consumer.pause(place)
            consumer.seek(place, position)

    async def _why_anew(self, consumer: Consumer, place: TopicPartition, topic_id: str, begin: int) -> str:
        """Returns why what was folded is not what the topic had before the present records; "": it
        is. A fold that knows more than is left, because records before its position were deleted,
        is one.
        """
        former, position = self._ids[place], self._next[place]
        if topic_id and former and topic_id != former:
            return f"the topic was deleted and made again (its id was {former}, and is {topic_id})"
        if begin > position:
            return f"its records {position} to {begin - 1} were deleted before they were read"
        epoch, why = self._epochs.get(place, NO_EPOCH), ""
        for look in range(SHRUNK_LOOKS):
            if look:
                await asyncio.sleep(_RETRY_S)
            end = (await consumer.end_offsets([place]))[place]
            why = f"it now ends at {end}, and was read up to {position}" if end < position else ""
            if not why and epoch != NO_EPOCH:
                end = (await consumer.epoch_ends({place: epoch}) or {place: position})[place]
                why = f"records may have been lost by an unclean election (leader epoch {epoch} ends at {end})" if end < position else ""
            if not why:
                break
        return why

    async def _disconnect(self) -> None:
        """Keeps what was folded: that may be more than the topic has now."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await consumer.stop()

    async def stop(self) -> None:
        """Disconnects."""
        await self._disconnect()


def _lost(place: TopicPartition, end: int, highwater: int | None) -> Exception:
    from aiokafka.errors import KafkaError

    error: Exception = KafkaError(f"positions {place.topic}/{place.partition} had records before offset {end}, and now end at {highwater}")
    return error


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
