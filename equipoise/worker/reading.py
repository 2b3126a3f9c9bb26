"""How a partition is read from the outside: checkpoints, published decisions, facts, each by a consumer of our own that belongs to no group."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Hashable
from typing import Any

import attrs

from equipoise.worker.checkpoints import Found, Index, find
from events import codec
from events.decisions import Checkpointed
from events.errors import DamagedError, InputError, UnknownKindError
from events.facts import LogOpened
from events.log.kafka.connection import Connection
from events.log.kafka.envelope import StoredDecision, decision_record, fact_record, fact_row, pack_fact, stored_decision
from events.log.kafka.opening import check_append_time, reader
from events.log.kafka.topics import Topics
from events.records import Record
from statemachine.partition import Folded, PartitionLead, identity_of

_LOG = logging.getLogger(__name__)
_CHECKPOINTED = codec.kind_of(Checkpointed)


@attrs.frozen(kw_only=True)
class Begun:
    """A lead that stands at the first fact to read, and where it came from."""

    lead: PartitionLead
    found: Found


@attrs.frozen
class PartitionReading:
    """One partition of the log."""

    connection: Connection
    topics: Topics
    opened: LogOpened
    partition: int

    async def begin(self, *, folded: Folded = lambda record, decisions, machine: None, published: Callable[[int, int], None] | None = None) -> Begun:
        """A lead with the last checkpoints, which knows what is published. `published` is told (fact, offset) of each of those decisions.

        Checkpoints that this build cannot read are passed over all together: the fold from the log's start gives the same bytes (PROTOCOL L7).
        """
        async with contextlib.aclosing(self.records(self.topics.checkpoints, 0)) as records:
            found = find(self.opened.log_id, [(record.key, record.value) async for record in records])
        try:
            lead = self._restored(found, folded)
        except InputError as error:
            _LOG.warning("partition %d: its checkpoints are passed over, the log is folded from its start: %s", self.partition, error)
            found = Found(checkpoints={}, slots={}, index=Index())
            lead = self._restored(found, folded)
        async with contextlib.aclosing(self.records(self.topics.decisions, found.index.decisions_offset)) as records:
            async for record in records:
                place = f"{record.topic}/{record.partition}@{record.offset}"
                stored = stored_decision(record.key, record.value, place)
                if stored.log_id != self.opened.log_id:
                    raise DamagedError(stored.row.caused_by, f"its decision at {place} is of another log")
                lead.take_published(stored.row.group, stored.row.number, published_identity(stored))
                if published is not None:
                    published(stored.row.caused_by, record.offset)
        return Begun(lead=lead, found=found)

    def _restored(self, found: Found, folded: Folded) -> PartitionLead:
        opening = fact_record(fact_row(b"", pack_fact(self.opened), 0, 0))
        lead = PartitionLead(found.index.recovery_offset, opened=opening, folded=folded)
        for _, checkpoint in sorted(found.checkpoints.items()):
            lead.restore(checkpoint)
        return lead

    @contextlib.asynccontextmanager
    async def facts(self) -> AsyncIterator[FactReader]:
        """A reader of the facts, to be placed."""
        async with self._reader() as consumer:
            yield FactReader(consumer, self._place(self.topics.facts))

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
    """Of a version that this build writes it is the checksum, and nothing is decoded; else what it would be today."""
    row = stored.row
    if row.kind != _CHECKPOINTED and (row.kind not in codec.KINDS or row.version == codec.KINDS[row.kind][0]):
        return row.checksum
    return identity_of(decision_record(stored))


class FactReader:
    """Facts of one partition, in order, as they come."""

    def __init__(self, consumer: Any, place: Any) -> None:
        self._consumer = consumer
        self._place = place

    async def place(self, start: int) -> None:
        """Read on from `start`."""
        await _place_at(self._consumer, self._place, start)

    async def end(self) -> int:
        """Offset behind the last fact there is now."""
        return int((await self._consumer.end_offsets([self._place]))[self._place])

    async def batch(self) -> list[Any]:
        """The client's records of what comes next, some hundred at most; none, when for a second nothing did.

        Raises InputError for one whose time is not the broker's (PROTOCOL L2).
        """
        records: list[Any] = (await self._consumer.getmany(timeout_ms=1_000)).get(self._place, [])
        for record in records:
            check_append_time(record)
        return records

    async def until(self, end: int) -> AsyncGenerator[Any, None]:
        """What there is up to `end`, which was read before."""
        while await self._consumer.position(self._place) < end:
            for record in await self.batch():
                yield record


async def _place_at(consumer: Any, tp: Any, start: int, *, compacted: bool = False) -> int:
    """Gives the partition's end. Raises DamagedError when what is to be read is not there any more."""
    consumer.assign([tp])
    begin, end = (await consumer.beginning_offsets([tp]))[tp], (await consumer.end_offsets([tp]))[tp]
    if begin > start and not compacted:
        raise DamagedError(start, f"{tp.topic}/{tp.partition} begins at {begin}: what is needed to go on has gone by its retention")
    consumer.seek(tp, max(begin, start))
    return int(end)


def next_fact(lead: PartitionLead, key: bytes | None, value: bytes | None, offset: int, append_ms: int) -> Record | None:
    """The next fact, to be folded; None: this build cannot read it, and its group has been halted (PROTOCOL L6)."""
    row = fact_row(key, value, offset, append_ms)
    try:
        return fact_record(row)
    except UnknownKindError as error:
        lead.pass_over(row.group, offset, "event_unknown", error.problem)
        return None
