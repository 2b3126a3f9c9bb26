"""How a partition is read from the outside: checkpoints, published decisions, facts, each by a
consumer of our own that belongs to no group.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Hashable
from typing import Any

import attrs

from equipoise.events import codec
from equipoise.events.decisions import Checkpointed, EventRejected
from equipoise.events.errors import DamagedError, InputError, UnknownEventError, UnknownKindError, UnsoundError
from equipoise.events.facts import LogOpened
from equipoise.events.log.kafka.connection import Connection
from equipoise.events.log.kafka.envelope import NoRecord, StoredDecision, fact_record, fact_row, no_record_row, pack_fact, published
from equipoise.events.log.kafka.identity import log_topic_ids
from equipoise.events.log.kafka.opening import check_append_time, fill_holes, reader
from equipoise.events.log.kafka.topics import Topics
from equipoise.events.records import DecisionRecord, Record
from equipoise.statemachine.partition import Folded, PartitionLead, UnreadIdentity, identity_of
from equipoise.statemachine.rejections import refused_fact
from equipoise.worker.checkpoints import FoundCheckpoints, Index, find

_LOG = logging.getLogger(__name__)
_CHECKPOINTED = codec.kind_of(Checkpointed)
_EVENT_REJECTED = codec.kind_of(EventRejected)


@attrs.frozen(kw_only=True)
class StartedLead:
    """A lead that stands at the first fact to read, and where it came from."""

    lead: PartitionLead
    found: FoundCheckpoints
    published_to: int
    """The decisions were read up to this offset."""


@attrs.frozen
class PartitionReading:
    """One partition of the log."""

    connection: Connection
    topics: Topics
    opened: LogOpened
    partition: int

    async def begin(
        self, *, answers: bool, folded: Folded = lambda record, decisions, machine: None, mark: Callable[[int, int], None] = lambda fact, offset: None
    ) -> StartedLead:
        """A lead with the last checkpoints, which knows what is published. `answers`: as for
        PartitionLead. `mark` is called with (fact, offset) of each published decision.

        Checkpoints that this build cannot read are passed over all together: the fold from the
        log's start gives the same bytes (PROTOCOL L7).
        """
        async with contextlib.aclosing(self.records(self.topics.checkpoints, 0)) as records:
            found = find(self.opened.log_id, [(record.key, record.value) async for record in records])
        try:
            lead = self._restored(found, answers, folded)
        except InputError as error:
            _LOG.warning("partition %d: its checkpoints are passed over, the log is folded from its start: %s", self.partition, error)
            found = FoundCheckpoints(checkpoints={}, slots={}, index=Index())
            lead = self._restored(found, answers, folded)
        published_to = await self.read_published(lead, found.index.decisions_offset, mark)
        return StartedLead(lead=lead, found=found, published_to=published_to)

    async def read_published(self, lead: PartitionLead, start: int, mark: Callable[[int, int], None] = lambda fact, offset: None) -> int:
        """Tells the lead what is published from `start` on, and returns the offset behind it.
        `mark`: as for `begin`.
        """
        async with contextlib.aclosing(self.records(self.topics.decisions, start)) as records:
            async for record in records:
                start = record.offset + 1
                stored = published(record)
                if stored is None:
                    continue
                if stored.log_id != self.opened.log_id:
                    place = f"{record.topic}/{record.partition}@{record.offset}"
                    raise DamagedError(stored.row.caused_by, f"its decision at {place} is of another log")
                lead.take_published(stored.row.group, stored.row.number, published_identity(stored), published_refusal(stored))
                mark(stored.row.caused_by, record.offset)
        return start

    def _restored(self, found: FoundCheckpoints, answers: bool, folded: Folded) -> PartitionLead:
        opening = fact_record(fact_row(b"", pack_fact(self.opened), 0, 0))
        lead = PartitionLead(found.index.recovery_offset, opened=opening, answers=answers, folded=folded)
        for _, checkpoint in sorted(found.checkpoints.items()):
            lead.restore(checkpoint)
        return lead

    @contextlib.asynccontextmanager
    async def facts(self) -> AsyncIterator[FactReader]:
        """A reader of the facts, to be placed."""
        async with self._reader() as consumer:
            yield FactReader(self.connection, consumer, self._place(self.topics.facts))

    async def records(self, topic: str, start: int) -> AsyncGenerator[Any, None]:
        """All that is in the topic's partition, from `start` to the end that was found first."""
        tp = self._place(topic)
        async with self._reader() as consumer:
            end = await _place_at(consumer, tp, start, compacted=topic == self.topics.checkpoints)
            position = start
            while position < end:
                for batch in (await consumer.getmany(timeout_ms=200)).values():
                    for record in batch:
                        if record.offset < end:
                            yield record
                position = await consumer.position(tp)

    def _reader(self) -> contextlib.AbstractAsyncContextManager[Any]:
        return reader(self.connection, max_poll_records=1_000, fetch_max_wait_ms=50)

    def _place(self, topic: str) -> Any:
        from aiokafka import TopicPartition

        return TopicPartition(topic, self.partition)


def published_identity(stored: StoredDecision) -> Hashable:
    """Of a version that this build writes it is the checksum, and nothing is decoded; else the
    checksum of what this build would write in its place.

    What this build cannot read has an identity that no decision of its own has: if it has to be
    compared, its group halts, and no other.
    """
    row = stored.row
    encoded = row.kind, row.version, row.payload
    as_written = row.kind in codec.KINDS and row.version == codec.KINDS[row.kind][0] and not codec.has_appended_fields(*encoded)
    if as_written and row.kind != _CHECKPOINTED:
        return row.checksum
    try:
        decision = codec.decode_decision(*encoded)
    except (UnknownEventError, UnsoundError) as error:
        return UnreadIdentity(str(error), row.checksum)
    return identity_of(DecisionRecord(stored.log_id, row.group, row.number, row.caused_by, row.index, stored.fact_checksum, decision))


def published_refusal(stored: StoredDecision) -> int | None:
    """See `equipoise.statemachine.rejections.refused_fact`. Nothing is decoded but rejections."""
    row = stored.row
    if row.kind != _EVENT_REJECTED:
        return None
    try:
        return refused_fact(codec.decode_decision(row.kind, row.version, row.payload), row.caused_by)
    except (UnknownEventError, UnsoundError):
        return None  # its identity says so, and halts the group where it is compared


class FactReader:
    """Facts of one partition, in order, as they come."""

    def __init__(self, connection: Connection, consumer: Any, place: Any) -> None:
        self._connection = connection
        self._consumer = consumer
        self._place = place
        self._due = 0

    async def place(self, start: int) -> None:
        """Read on from `start`."""
        await _place_at(self._consumer, self._place, start)
        self._due = start

    async def position(self) -> int:
        """Offset up to which everything was given out by `batch`; it may be behind the last record
        that was, where a transaction has ended.
        """
        return int(await self._consumer.position(self._place))

    async def topic_ids(self, topics: Topics) -> tuple[str, ...] | None:
        """The ids of the log's topics now. Raises KafkaError."""
        return await log_topic_ids(self._consumer, topics, self._place.partition)

    async def end(self) -> int:
        """Offset behind the last fact there is now."""
        return int((await self._consumer.end_offsets([self._place]))[self._place])

    async def batch(self) -> list[Any]:
        """The client's records of what comes next, some hundred at most, and a NoRecord for each
        offset without one; none, when for a second nothing came.

        Raises InputError for a record whose time is not the broker's (PROTOCOL L2), GapError for
        one that the client has left out.
        """
        records: list[Any] = (await self._consumer.getmany(timeout_ms=1_000)).get(self._place, [])
        for record in records:
            check_append_time(record)
        if records:
            if records[-1].offset != self._due + len(records) - 1:
                records = await fill_holes(self._connection, self._due, records)
            self._due = records[-1].offset + 1
        return records

    async def until(self, end: int) -> AsyncGenerator[Any, None]:
        """What there is up to `end`, which was read before."""
        while await self.position() < end:
            for record in await self.batch():
                yield record


async def _place_at(consumer: Any, tp: Any, start: int, *, compacted: bool = False) -> int:
    """Gives the partition's end. Raises DamagedError when what is to be read is not there any more.
    """
    consumer.assign([tp])
    begin, end = (await consumer.beginning_offsets([tp]))[tp], (await consumer.end_offsets([tp]))[tp]
    if begin > start and not compacted:
        raise DamagedError(start, f"{tp.topic}/{tp.partition} begins at {begin}: what is needed to go on has gone by its retention")
    consumer.seek(tp, max(begin, start))
    return int(end)


def next_fact(lead: PartitionLead, found: Any) -> Record | None:
    """The next fact, to be folded; None: this build cannot read it, and its group has been halted
    (PROTOCOL L6). `found`: what a FactReader gave.
    """
    is_none = isinstance(found, NoRecord)
    row = no_record_row(found) if is_none else fact_row(found.key, found.value, found.offset, found.timestamp)
    try:
        return fact_record(row)
    except UnknownKindError as error:
        lead.pass_over(row.group, row.offset, "event_unknown", error.problem)
        return None
