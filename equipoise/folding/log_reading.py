"""Reads one partition of a log: checkpoints, published decisions and facts, each with a consumer
that belongs to no consumer group.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Hashable, Sequence
from typing import cast

import attrs

from equipoise.events import codec
from equipoise.events.decisions import Checkpointed, EventRejected
from equipoise.events.errors import DamagedError, EquipoiseError, InputError, UnknownEventError, UnknownKindError, UnsoundError
from equipoise.events.facts import LogOpened
from equipoise.events.records import DecisionRecord, FactRecord
from equipoise.folding.checkpoints import FoundCheckpoints, Index, find
from equipoise.folding.lost_ends import FactsLook, PublishedNumbers, end_of
from equipoise.kafka.client import NO_EPOCH, ConsumedRecord, Consumer, TopicPartition
from equipoise.kafka.connection import Connection
from equipoise.kafka.known_ends import Standstill, batches_before
from equipoise.kafka.started_clients import reader
from equipoise.log.kafka.bases_reading import read_bases
from equipoise.log.kafka.bases_topic import Bases, beginning
from equipoise.log.kafka.envelope import (
    NoRecord,
    StoredDecision,
    decision_record,
    group_of,
    no_record_row,
    pack_fact,
    published,
    read_fact,
)
from equipoise.log.kafka.fact_checks import APPEND_TIME, check_append_time, fill_holes
from equipoise.log.kafka.log_topics import NEW_LOG, Topics
from equipoise.statemachine.group_lead import StoredCheckpoint
from equipoise.statemachine.partition import Folded, PartitionLead
from equipoise.statemachine.published import UnreadIdentity, identity_of
from equipoise.statemachine.rejections import refused_fact
from equipoise.statemachine.snapshots import is_read

_LOG = logging.getLogger(__name__)
_CHECKPOINTED = codec.kind_of(Checkpointed)
FORMER_DECISIONS = 3_000
"""The last published decisions, of which `former` looks for those on the facts that it reads."""
_EVENT_REJECTED = codec.kind_of(EventRejected)


@attrs.frozen(kw_only=True)
class StartedLead:
    """A lead before its first fact, and the checkpoints it was restored from. `published_to`:
    offset up to which the published decisions were read.
    """

    lead: PartitionLead
    found: FoundCheckpoints
    published_to: int


@attrs.frozen
class PartitionReading:
    """Reads one partition of the log that `opened` names."""

    connection: Connection
    topics: Topics
    opened: LogOpened
    partition: int

    async def begin(
        self, *, answers: bool, folded: Folded = lambda record, decisions, machine: None, mark: Callable[[int, int], None] = lambda fact, offset: None
    ) -> StartedLead:
        """A lead restored from the last checkpoints, with the published decisions read. `answers`,
        `folded`: as for `PartitionLead`. `mark` is called with (offset of the fact, offset of the
        decision) for each published decision.

        When there is none that this build can read, records that it needs were deleted, or the
        brokers have lost what it was made of, the newest base takes their place, or the log's
        start: the fold gives the same bytes (docs/protocol.md#l7, docs/protocol.md#l10). Halts a
        group of which facts are lost that something was decided on. Raises DamagedError when
        records are missing or belong to another log, KafkaError.
        """
        async with contextlib.aclosing(self.records(self.topics.checkpoints, 0)) as records:
            found = find(self.opened.log_id, [(record.key, record.value) async for record in records])
        begins = await self._begins()
        facts = FactsLook(self._reader, self._place(self.topics.facts), begins[0])
        lead, why = None, ""
        if found.index.recovery_offset >= begins[0] and found.index.decisions_offset >= begins[1]:
            try:
                lead = self._restored(found, answers, folded)
            except InputError as error:
                why = str(error)
            else:
                published_to, numbers, why = await self._compared(lead, found, facts, mark)
        if lead is None or why:
            if why:
                _LOG.warning("partition %d: ignoring its checkpoints, beginning at a base or at the log's start: %s", self.partition, why)
            found = await self._from_base(*begins, found.slots)
            lead = self._restored(found, answers, folded)
            published_to, numbers, why = await self._compared(lead, found, facts, mark)
            if why:
                raise DamagedError(found.index.position, f"{why}, and the newest base knows them; {NEW_LOG}")
        await facts.halt(lead, numbers)
        return StartedLead(lead=lead, found=found, published_to=published_to)

    async def _compared(
        self, lead: PartitionLead, found: FoundCheckpoints, facts: FactsLook, mark: Callable[[int, int], None]
    ) -> tuple[int, PublishedNumbers, str]:
        """Reads the published decisions from `found` on. Returns the offset behind the last one,
        their numbers, and which records the brokers have lost that `found` was made of; "": none.
        """
        start, numbers = found.index.decisions_offset, PublishedNumbers()
        why = await facts.lost(lead)
        if why:
            return start, numbers, why
        end = await end_of(self._reader, self._place(self.topics.decisions), [start - 1])
        published_to = await self.read_published(lead, start, mark, numbers)
        return published_to, numbers, numbers.lost(found, end)

    async def _begins(self) -> tuple[int, int]:
        """First offsets of facts and decisions."""
        facts, decisions = self._place(self.topics.facts), self._place(self.topics.decisions)
        async with self._reader() as consumer:
            begins = await consumer.beginning_offsets([facts, decisions])
        return begins[facts], begins[decisions]

    async def _from_base(self, facts_begin: int, decisions_begin: int, slots: dict[str, int]) -> FoundCheckpoints:
        """The states of the newest base that this build reads; none where the log begins with its
        first record and has no base. Raises DamagedError.
        """
        bases = Bases(self.opened.log_id)
        await read_bases(self.connection, self.topics, self.partition, bases)
        base = bases.last(facts_begin, decisions_begin, reads=is_read)
        if base is None:
            if not facts_begin and not decisions_begin:
                return FoundCheckpoints(checkpoints={}, slots={}, index=Index())
            there = beginning(bases, facts_begin, decisions_begin, f"{self.topics.facts}/{self.partition}")
            forms = ", ".join(str(form) for form in sorted({place[2] for place in there.groups.values()}))
            problem = f"every base from here on has states in a form ({forms}) that this build does not read; upgrade it"
            raise DamagedError(there.facts_offset, problem)
        _LOG.info("partition %d: beginning at the base at offset %d", self.partition, base.position)
        states = {group: bases.state(group, place) for group, place in base.groups.items()}
        checkpoints = {
            group: StoredCheckpoint(group=group, offset=offset, number=number, state=cast(bytes, states[group]))
            for group, (offset, number, _, _) in base.groups.items()
        }
        index = Index(position=base.position, recovery_offset=base.facts_offset, decisions_offset=base.decisions_offset)
        return FoundCheckpoints(checkpoints=checkpoints, slots=slots, index=index)

    async def read_published(
        self, lead: PartitionLead, start: int, mark: Callable[[int, int], None] = lambda fact, offset: None, numbers: PublishedNumbers | None = None
    ) -> int:
        """Gives the lead the decisions published from offset `start` on, and returns the offset
        behind the last one. `mark`: as for `begin`. `numbers`: gets each. Raises
        DamagedError, KafkaError.
        """
        async with contextlib.aclosing(self.records(self.topics.decisions, start)) as records:
            async for record in records:
                start = record.offset + 1
                stored = published(record)
                if stored is None:
                    continue
                if stored.log_id != self.opened.log_id:
                    place = f"{record.topic}/{record.partition}@{record.offset}"
                    raise DamagedError(stored.row.caused_by, f"its decision at {place} is of another log; {NEW_LOG}")
                lead.take_published(stored.row.group, stored.row.number, published_identity(stored), published_refusal(stored))
                mark(stored.row.caused_by, record.offset)
                if numbers is not None:
                    numbers.note(stored)
        return start

    async def former(self, start: int, end: int) -> AsyncGenerator[tuple[FactRecord, list[DecisionRecord]], None]:
        """The facts from offset `start` to `end`, as far as they are still there and can be read,
        each with the decisions that were published on it. Raises KafkaError.
        """
        facts_begin, decisions_begin = await self._begins()
        place = self._place(self.topics.decisions)
        async with self._reader() as consumer:
            decisions_end = (await consumer.end_offsets([place]))[place]
        decided: dict[tuple[str, int], list[DecisionRecord]] = {}
        async with contextlib.aclosing(self.records(self.topics.decisions, max(decisions_begin, decisions_end - FORMER_DECISIONS))) as records:
            async for record in records:
                stored = published(record)
                if stored is not None and stored.log_id == self.opened.log_id and start <= stored.row.caused_by < end:
                    with contextlib.suppress(EquipoiseError):
                        decided.setdefault((stored.row.group, stored.row.caused_by), []).append(decision_record(stored))
        async with contextlib.aclosing(self.records(self.topics.facts, max(start, facts_begin))) as records:
            async for record in records:
                if record.offset >= end:
                    break
                with contextlib.suppress(EquipoiseError):
                    fact = read_fact(record.key, record.value, record.offset, record.timestamp_ms)
                    yield fact, decided.get((fact.group, fact.offset), [])

    def _restored(self, found: FoundCheckpoints, answers: bool, folded: Folded) -> PartitionLead:
        opening = read_fact(b"", pack_fact(self.opened), 0, 0)
        lead = PartitionLead(found.index.recovery_offset, opened=opening, answers=answers, folded=folded)
        for _, checkpoint in sorted(found.checkpoints.items()):
            lead.restore(checkpoint)
        return lead

    @contextlib.asynccontextmanager
    async def facts(self) -> AsyncIterator[FactReader]:
        """A reader of the facts. Call its `place` first."""
        async with self._reader() as consumer:
            yield FactReader(self.connection, consumer, self._place(self.topics.facts))

    async def records(self, topic: str, start: int) -> AsyncGenerator[ConsumedRecord, None]:
        """The records of the topic's partition, from `start` to its end at the time of the call."""
        tp = self._place(topic)
        async with self._reader() as consumer:
            end = await _place_at(consumer, tp, start, compacted=topic == self.topics.checkpoints)
            async for batch in batches_before(consumer, tp, end, wait_ms=200):
                for record in batch:
                    yield record

    def _reader(self) -> contextlib.AbstractAsyncContextManager[Consumer]:
        return reader(self.connection, max_poll_records=1_000, fetch_max_wait_ms=50)

    def _place(self, topic: str) -> TopicPartition:
        return TopicPartition(topic, self.partition)


def published_identity(stored: StoredDecision) -> Hashable:
    """The identity by which a published decision is compared with the recomputed one. For a version
    that this build writes: the stored checksum, without decoding. For an older version: the
    checksum of what this build would write.

    A decision that this build cannot read has an identity of its own, which differs from every
    recomputed one: when it is compared, its group halts, and no other.
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
    """The fact that a published rejection refuses, see
    `equipoise.statemachine.rejections.refused_fact`; None: it refuses none.
    """
    row = stored.row
    if row.kind != _EVENT_REJECTED:
        return None
    try:
        return refused_fact(codec.decode_decision(row.kind, row.version, row.payload), row.caused_by)
    except (UnknownEventError, UnsoundError):
        return None  # `published_identity` halts the group when it is compared


class FactReader:
    """Reads the facts of one partition, in order."""

    def __init__(self, connection: Connection, consumer: Consumer, place: TopicPartition) -> None:
        self._connection = connection
        self._consumer = consumer
        self._place = place
        self._due = 0
        self._epoch = NO_EPOCH
        """Leader epoch of what was read last (KIP-320)."""

    async def place(self, start: int) -> None:
        """Moves to offset `start`. Raises DamagedError when that record was deleted."""
        await _place_at(self._consumer, self._place, start)
        self._due, self._epoch = start, NO_EPOCH

    async def position(self) -> int:
        """Offset up to which `batch` has returned everything. It may be more than one behind the
        last record, where a transaction has ended.
        """
        return await self._consumer.position(self._place)

    async def topic_ids(self, topics: Topics) -> tuple[str, ...] | None:
        """The present ids of the log's topics; None: the brokers give topics no ids. Raises
        KafkaError.
        """
        return await topics.ids(self._consumer, self._place.partition)

    async def end(self, topic: str = "") -> int:
        """Offset behind the present last fact, or behind the last record of the same partition of
        `topic`. Raises KafkaError.
        """
        place = TopicPartition(topic, self._place.partition) if topic else self._place
        return (await self._consumer.end_offsets([place]))[place]

    async def batch(self) -> Sequence[ConsumedRecord | NoRecord]:
        """The next records of the client, a thousand at most, with a `NoRecord` for each offset
        that has none; empty when nothing came for a second.

        Raises InputError when a record's time is not the broker's (docs/protocol.md#l2), GapError
        when the client has skipped a record. Raises DamagedError when records were deleted before
        they were read.
        """
        from aiokafka.errors import OffsetOutOfRangeError

        try:
            records = (await self._consumer.getmany(timeout_ms=1_000)).get(self._place, ())
        except OffsetOutOfRangeError:
            raise DamagedError(self._due, "was deleted before it was read here, or the brokers have lost it; beginning again") from None
        for record in records:
            if record.timestamp_type != APPEND_TIME:
                check_append_time(record)
        if not records:
            return records
        epoch = self._consumer.fetched_epoch(self._place)
        if NO_EPOCH != self._epoch < epoch:
            end = (await self._consumer.epoch_ends({self._place: self._epoch}) or {self._place: self._due})[self._place]
            if end < self._due:
                raise DamagedError(max(0, end), "and what follows are others than were read here: the brokers have lost facts; beginning again")
        self._epoch = epoch
        due, self._due = self._due, records[-1].offset + 1
        return records if self._due == due + len(records) else await fill_holes(self._connection, due, records)

    async def until(self, end: int) -> AsyncGenerator[ConsumedRecord | NoRecord, None]:
        """The records up to offset `end`, which `end()` has returned before."""
        standstill = Standstill(f"facts of {self._place.topic}/{self._place.partition} before offset {end}", asyncio.get_running_loop().time)
        while (position := await self.position()) < end:
            standstill.look(position)
            for record in await self.batch():
                yield record


async def _place_at(consumer: Consumer, tp: TopicPartition, start: int, *, compacted: bool = False) -> int:
    """Seeks, and returns the partition's end. Raises DamagedError when `start` was deleted."""
    consumer.assign([tp])
    begin, end = (await consumer.beginning_offsets([tp]))[tp], (await consumer.end_offsets([tp]))[tp]
    if begin > start and not compacted:
        raise DamagedError(start, f"{tp.topic}/{tp.partition} begins at {begin}: required records were deleted; {NEW_LOG}")
    consumer.seek(tp, max(begin, start))
    return end


def next_fact(lead: PartitionLead, found: ConsumedRecord | NoRecord) -> FactRecord | None:
    """The record to fold next. None: this build cannot read it, and `lead` has halted its group
    (docs/protocol.md#l6). `found`: from a `FactReader`.
    """
    if isinstance(found, NoRecord):
        return no_record_row(found).record()
    try:
        return read_fact(found.key, found.value, found.offset, found.timestamp_ms)
    except UnknownKindError as error:
        lead.pass_over(group_of(found.key) or "", found.offset, "event_unknown", error.problem)
        return None
