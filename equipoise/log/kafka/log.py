"""A log in Kafka, read like any other: ``kafka://host:port[,host:port][/prefix][?partition=N]``.

Facts and decisions are in two topics. A reading merges them into the order of an embedded log: each
fact, then its decisions. It differs from an embedded log in these points:

- A decision may occur twice, after a takeover. Both copies are yielded, so that `verify` can
  compare them.
- Decisions of a group that was halted for a while may come far behind their facts.
- Partitions are read one after the other, each from its LogOpened. A group is in one of them.
- Records without a group are not yielded.
- Only its worker and its members write to it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from types import TracebackType
from typing import Never, Self, TypeVar
from urllib.parse import parse_qs, unquote, urlsplit

import attrs

from equipoise.events.errors import DamagedError, GapError, InputError
from equipoise.events.facts import Fact
from equipoise.events.records import DecisionRecord, Entry, FactRecord
from equipoise.kafka.client import ConsumedRecord, Consumer, TopicPartition, late
from equipoise.kafka.connection import MISSING, Connection, connection_to
from equipoise.kafka.started_clients import reaching, reader
from equipoise.log.kafka.bases_reading import read_bases
from equipoise.log.kafka.bases_topic import Bases, BaseStart, beginning
from equipoise.log.kafka.envelope import (
    NoRecord,
    StoredDecision,
    fact_row,
    no_record_row,
    partition_of,
    published,
)
from equipoise.log.kafka.fact_checks import check_append_time, fill_holes
from equipoise.log.kafka.log_loop import LogLoop
from equipoise.log.kafka.log_opening import declare_archive, make_bases, read_opening
from equipoise.log.kafka.log_topics import DEFAULT_PREFIX, Topics
from equipoise.log.rows import BaseRow, FactRow, Order, Row, entry_of, is_count

T = TypeVar("T")
SCHEME = "kafka://"
_MOST_A_FETCH = 5_000
_MARK_EVERY = 1_000
_MOST_STARTS = 3
_FETCH_S = 10.0
_MOST_EMPTY = 12
"""Fetches without a record, one after the other, until the reading ends."""
"""Attempts to begin at a base before a worker deletes it."""


@attrs.frozen
class Place:
    """The parts of a location."""

    connection: Connection
    topics: Topics
    partition: int | None

    @classmethod
    def parse(cls, location: str) -> Place:
        """Parses a location. Raises InputError."""
        parts = urlsplit(location)
        query = parse_qs(parts.query, keep_blank_values=True)
        path = unquote(parts.path.strip("/"))
        if not parts.netloc or "@" in parts.netloc or parts.fragment or set(query) - {"partition"}:
            raise InputError(f"{location}: write kafka://host:port[,host:port][/prefix][?partition=N]; users and passwords come from the environment")
        partition = query.get("partition", [""])[-1]
        if partition and not (partition.isascii() and partition.isdigit()):
            raise InputError(f"{location}: partition={partition} is not the number of a partition")
        return cls(connection_to(parts.netloc), Topics(path or DEFAULT_PREFIX), int(partition) if partition else None)


@attrs.frozen
class _Start:
    """Where a reading begins. `rows`: LogOpened and the states of a base; empty: there are none.
    `numbers`: group -> number of its last decision by then.
    """

    facts: Iterator[ConsumedRecord | NoRecord]
    decisions: Iterator[StoredDecision]
    facts_offset: int = 0
    rows: tuple[FactRow | BaseRow, ...] = ()
    numbers: dict[str, int] = attrs.field(factory=dict)


class KafkaLog:
    """A log in Kafka. See the module; `equipoise.log.Log` documents the methods."""

    def __init__(self, location: str, place: Place | None = None) -> None:
        """`place`: the parsed location with connection settings that are in neither the location
        nor the environment.
        """
        self.location = location
        self._place = place or Place.parse(location)
        with reaching(self._place.connection):
            pass  # without the extra, say so before anything is begun
        self._loop = LogLoop()
        self._closed = False
        self._has_bases = False
        """The topic of bases is known to be there."""
        self._marks: dict[int, list[tuple[int, int]]] = {}
        """Partition -> (fact, offset of a decision it caused), rising: where to begin to read
        decisions, from earlier readings.
        """
        try:
            self.opened = self._loop.run(read_opening(self._place.connection, self._place.topics))
            if self._place.partition is not None and self._place.partition >= self.opened.partitions:
                raise InputError(f"{location}: groups are spread over partitions 0 to {self.opened.partitions - 1}")
        except BaseException:
            self.close()
            raise

    @property
    def connection(self) -> Connection:
        """The way to its brokers."""
        return self._place.connection

    @property
    def topics(self) -> Topics:
        """Its topics."""
        return self._place.topics

    # -------------------------------------------------------------------------------------- reading

    def read(self, from_offset: int = 0, group: str | None = None) -> Iterator[Entry]:
        """Yields records in order, from the fact at `from_offset` on. See
        `equipoise.log.Log.read`. Raises InputError for an offset of a log with several
        partitions.
        """
        self._must_be_open()
        if not is_count(from_offset):
            raise InputError(f"{self.location}: {from_offset!r} is not an offset; offsets are whole numbers from 0")
        partitions = self._partitions(group)
        if from_offset and len(partitions) > 1:
            raise InputError(f"{self.location}: offsets count in each of its {len(partitions)} partitions; name one with ?partition=N, or a group")
        return self._read(partitions, from_offset, group)

    def read_partition(self, partition: int, from_offset: int, group: str | None = None) -> Iterator[Entry]:
        """Yields the records of one partition from the fact at `from_offset` on, and with `group`
        only that group's.
        """
        self._must_be_open()
        return self._read([partition], from_offset, group)

    def begins(self, partition: int) -> int:
        """Returns the offset of the first fact that is still there."""
        self._must_be_open()
        return self._loop.run(self._begin(self._place.topics.facts, partition))

    def read_beside(self, group: str) -> Iterator[Entry]:
        """Yields every record of the partition that holds `group`, so that offsets are those of one
        partition.
        """
        self._must_be_open()
        return self._read(self._partitions(group), 0, None)

    def _read(self, partitions: list[int], from_offset: int, group: str | None) -> Iterator[Entry]:
        """Yields LogOpened once, although every partition begins with it."""
        for partition in partitions:
            for row in self.rows(partition, from_offset, group):
                if isinstance(row, BaseRow):
                    yield row.entry()
                elif isinstance(row, StoredDecision):
                    if group is None or row.row.group == group:
                        yield entry_of(row.row, row.log_id, row.fact_checksum, partition)
                elif (row.group == "" and row.offset == 0 and partition == partitions[0]) or (row.group and group in (None, row.group)):
                    yield entry_of(row, "", 0, partition)

    def rows(self, partition: int, from_offset: int = 0, group: str | None = None) -> Iterator[FactRow | StoredDecision | BaseRow]:
        """Yields the facts and decisions of a partition that are there now, merged, also those
        without a group. From offset 0 on, a log that begins at a base yields LogOpened and the
        states at the base first, with `group` only that group's.

        Raises GapError, RepeatError, DamagedError. Raises InputError for an offset beyond the end.
        """
        topics = self._place.topics
        # The decisions' end first: every decision before it was caused by a fact before the facts'
        # end that is asked for after it.
        ends = {topic: self._loop.run(self._end(topic, partition)) for topic in (topics.decisions, topics.facts)}
        if from_offset > ends[topics.facts]:
            raise InputError(f"{self.location}: offset {from_offset} is past the end of the log (next offset {ends[topics.facts]})")
        with contextlib.ExitStack() as stack:
            start = None if from_offset else self._at_base(stack, partition, ends, group)
            if start is None:
                start = _Start(
                    stack.enter_context(contextlib.closing(self._records(topics.facts, partition, from_offset, ends[topics.facts]))),
                    stack.enter_context(contextlib.closing(self._decisions(partition, from_offset, ends[topics.decisions]))),
                )
            else:
                from_offset = start.facts_offset
            yield from start.rows
            order = Order(from_offset, self.opened.log_id)
            numbers = dict(start.numbers)
            decisions = start.decisions
            head = next(decisions, None)
            for fact in start.facts:
                row = _fact(fact)
                order.take(row)
                yield row
                while head is not None and head.row.caused_by <= row.offset:
                    if head.row.number > start.numbers.get(head.row.group, 0):
                        self._check_number(numbers, head, 0 if start.rows else from_offset)
                        yield head
                    head = next(decisions, None)
            if head is not None:
                raise GapError(order.position, f"is missing: decision {head.row.number} was caused by offset {head.row.caused_by}")

    def _at_base(self, stack: contextlib.ExitStack, partition: int, ends: dict[str, int], group: str | None) -> _Start | None:
        """Begins at the oldest base; None: the log begins with its first record. Fetches the first
        records before it returns, because a worker may delete them at the same time.
        """
        topics = self._place.topics
        for attempt in range(1, _MOST_STARTS + 1):
            begin, decisions_begin = (self._loop.run(self._begin(topic, partition)) for topic in (topics.facts, topics.decisions))
            if not begin and not decisions_begin:
                return None
            bases = self.bases(partition)
            base = beginning(bases, begin, decisions_begin, f"{topics.facts}/{partition}")
            assert bases.opened is not None, "checked with the base"
            facts = stack.enter_context(contextlib.closing(self._records(topics.facts, partition, base.facts_offset, ends[topics.facts])))
            decided = self._records_from(base.decisions_offset, partition, base.facts_offset, ends[topics.decisions])
            decisions = stack.enter_context(contextlib.closing(decided))
            try:
                firsts = next(facts, None), next(decisions, None)
            except GapError:
                if attempt == _MOST_STARTS:
                    raise
                continue
            return _Start(
                chain(() if firsts[0] is None else (firsts[0],), facts),
                chain(() if firsts[1] is None else (firsts[1],), decisions),
                facts_offset=base.facts_offset,
                rows=(bases.opened, *bases.rows(base, None if group is None else {group})),
                numbers={name: place[1] for name, place in base.groups.items()},
            )
        raise AssertionError("the last attempt returns or raises")

    def late_decisions(self, partition: int, from_offset: int) -> list[StoredDecision]:
        """The decisions of facts from `from_offset` on that come behind decisions of later facts,
        each once: of groups that had halted, or that two workers led at once.
        """
        latest = -1
        numbers: dict[str, int] = {}
        late: list[StoredDecision] = []
        begin = self._loop.run(self._begin(self._place.topics.facts, partition))
        end = self._loop.run(self._end(self._place.topics.decisions, partition))
        for stored in self._decisions(partition, max(begin, from_offset), end):
            row = stored.row
            if row.number > numbers.get(row.group, 0):
                numbers[row.group] = row.number
                if row.caused_by < latest:
                    late.append(stored)
                latest = max(latest, row.caused_by)
        return late

    def _check_number(self, numbers: dict[str, int], stored: StoredDecision, from_offset: int) -> None:
        """Checks that numbers are dense. A lower number is a second copy (docs/protocol.md#l4)."""
        row = stored.row
        if stored.log_id != self.opened.log_id:
            raise DamagedError(row.caused_by, f"its decision {row.number} is of log {stored.log_id!r:.80}, and this is {self.opened.log_id!r}")
        last = numbers.get(row.group, row.number - 1 if from_offset else 0)
        if row.number > last + 1:
            raise GapError(row.caused_by, f"decision {last + 1} of group {row.group!r} is missing; number {row.number} came")
        numbers[row.group] = max(last, row.number)

    def _decisions(self, partition: int, from_offset: int, end: int) -> Generator[StoredDecision, None, None]:
        """Decisions that were caused by the fact at `from_offset` or later facts."""
        marks = self._marks.setdefault(partition, [(-1, self._loop.run(self._begin(self._place.topics.decisions, partition)))])
        start = next(offset for caused_by, offset in reversed(marks) if caused_by < from_offset)
        yield from self._records_from(start, partition, from_offset, end, pass_deleted=True)

    def _records_from(
        self, start: int, partition: int, from_offset: int, end: int, *, pass_deleted: bool = False
    ) -> Generator[StoredDecision, None, None]:
        """The same, from the offset `start` of the decisions on."""
        marks = self._marks.setdefault(partition, [(-1, start)])
        for record in self._records(self._place.topics.decisions, partition, start, end, pass_deleted=pass_deleted):
            stored = published(record)
            if stored is None:
                continue
            if record.offset >= marks[-1][1] + _MARK_EVERY and stored.row.caused_by > marks[-1][0]:
                marks.append((stored.row.caused_by, record.offset))
            if stored.row.caused_by >= from_offset:
                yield stored

    def _records(
        self, topic: str, partition: int, start: int, end: int, *, pass_deleted: bool = False
    ) -> Generator[ConsumedRecord | NoRecord, None, None]:
        """The client's records [start, end) of one partition. `pass_deleted`: `start` is before
        what is wanted, so records that were deleted there do not matter; else they are a GapError.
        """
        if start >= end:
            return
        with self._loop.within(reader(self._place.connection, max_poll_records=_MOST_A_FETCH, fetch_max_wait_ms=100)) as consumer:
            with reaching(self._place.connection):
                begin = self._loop.run(_seek(consumer, topic, partition, start))
            if begin > start and not pass_deleted:
                raise GapError(start, f"topic {topic}/{partition} begins at offset {begin}: earlier records were deleted; read the archive")
            position, empty = max(begin, start), 0
            while position < end:
                with reaching(self._place.connection):
                    try:
                        found, next_position = self._loop.run(_some(consumer, TopicPartition(topic, partition)))
                    except GapError:
                        begin = self._loop.run(_seek(consumer, topic, partition, position))
                        if not pass_deleted or begin <= position:
                            raise
                        position = begin
                        continue
                    empty = 0 if next_position > position else empty + 1
                    if empty >= _MOST_EMPTY:
                        raise late(f"records of {topic}/{partition} from offset {position} on; it ended at {end}", empty * _FETCH_S)
                batch: Sequence[ConsumedRecord | NoRecord] = found
                if found and topic == self._place.topics.facts:
                    batch = self._loop.run(fill_holes(self._place.connection, position, found))
                for record in batch:
                    if record.offset >= end:
                        return
                    yield record
                position = next_position

    def base_start(self, partition: int) -> BaseStart | None:
        """Where a reading of the partition begins now; None: at its first record. Raises
        DamagedError when records were deleted behind every base.
        """
        self._must_be_open()
        topics = self._place.topics
        begin, decisions_begin = (self._loop.run(self._begin(topic, partition)) for topic in (topics.facts, topics.decisions))
        if not begin and not decisions_begin:
            return None
        bases = self.bases(partition)
        base = beginning(bases, begin, decisions_begin, f"{topics.facts}/{partition}")
        assert bases.opened is not None, "checked with the base"
        return BaseStart(bases.opened, tuple(bases.rows(base)), base.facts_offset, base.decisions_offset)

    def bases(self, partition: int, *, keep_states: bool = True) -> Bases:
        """Returns the bases of a partition. `keep_states`: see `Bases`."""
        bases = Bases(self.opened.log_id, keep_states=keep_states)
        self._loop.run(read_bases(self._place.connection, self._place.topics, partition, bases))
        return bases

    def declare_archive(self, name: str, positions: Mapping[int, int | None], at_ms: int) -> None:
        """Says that the archive `name` has the facts before these positions, by partition, so that
        workers delete no others; None: that it is no longer an archive. Raises InputError.
        """
        self._must_be_open()
        if not self._has_bases:
            self._loop.run(make_bases(self._place.connection, self._place.topics, positions))
            self._has_bases = True
        self._loop.run(declare_archive(self._place.connection, self._place.topics, self.opened.log_id, positions, name, at_ms))

    async def _begin(self, topic: str, partition: int) -> int:
        tp = TopicPartition(topic, partition)
        async with reader(self._place.connection) as consumer:
            with reaching(self._place.connection):
                return int((await consumer.beginning_offsets([tp]))[tp])

    async def _end(self, topic: str, partition: int) -> int:
        tp = TopicPartition(topic, partition)
        async with reader(self._place.connection) as consumer:
            with reaching(self._place.connection):
                return int((await consumer.end_offsets([tp]))[tp])

    def _partitions(self, group: str | None) -> list[int]:
        if self._place.partition is not None:
            return [self._place.partition]
        return list(range(self.opened.partitions)) if group is None else [partition_of(group, self.opened.partitions)]

    def count(self) -> int:
        """Returns the number of records, facts and decisions, without decoding them."""
        self._must_be_open()
        topics = self._place.topics
        places = [(topic, partition) for topic in (topics.facts, topics.decisions) for partition in self._partitions(None)]
        return sum(self._loop.run(self._end(*place)) - self._loop.run(self._begin(*place)) for place in places)

    def group_names(self) -> set[str]:
        """Returns the names of all groups that have facts, without decoding them."""
        self._must_be_open()
        rows = (row for partition in self._partitions(None) for row in self.rows(partition) if not isinstance(row, StoredDecision))
        return {row.group for row in rows} - {""}

    def position(self) -> int:
        """Returns the offset of the next fact."""
        self._must_be_open()
        return self._loop.run(self._end(self._place.topics.facts, self.only_partition()))

    def partitions(self) -> list[int]:
        """The partitions to read: the named one, or all."""
        return self._partitions(None)

    def location_of(self, partition: int) -> str:
        """Returns the location of one partition."""
        return f"{self.location.partition('?')[0]}?partition={partition}"

    def only_partition(self) -> int:
        """Returns the only partition of this log. Raises InputError when it has several and none is
        named.
        """
        partitions = self._partitions(None)
        if len(partitions) > 1:
            has = f"{self.location}: each of its {len(partitions)} partitions has its own offsets"
            raise InputError(f"{has}; name one with ?partition=N, or an archive (a folder, as archive/) as the target, which takes all")
        return partitions[0]

    # ------------------------------------------------------------------------------------ appending

    def append_fact(self, group: str, append_ms: int, event: Fact) -> FactRecord:
        """Raises InputError: the log is read-only."""
        self._refuse()

    def append_payload(self, group: str, append_ms: int, kind: int, version: int, payload: bytes) -> FactRecord:
        """Raises InputError: the log is read-only."""
        self._refuse()

    def append_decisions(self, decisions: Iterable[DecisionRecord]) -> None:
        """Raises InputError: the log is read-only."""
        self._refuse()

    def append_row(self, row: Row) -> bool:
        """Raises InputError: the log is read-only."""
        self._refuse()

    def transaction(self) -> contextlib.AbstractContextManager[None]:
        """Raises InputError: the log is read-only."""
        self._refuse()

    def _refuse(self) -> Never:
        raise InputError(f"{self.location}: {READ_ONLY}")

    # -------------------------------------------------------------------------------------- closing

    def close(self) -> None:
        """Closes the connection. A second close does nothing."""
        if not self._closed:
            self._closed = True
            self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _must_be_open(self) -> None:
        if self._closed:
            raise InputError(f"{self.location}: is closed; open it again")


READ_ONLY = "a log in Kafka is written by its worker and its members; write to a file, as group.db"
__all__ = ["MISSING", "READ_ONLY", "SCHEME", "KafkaLog", "LogLoop", "Place"]


def _fact(record: ConsumedRecord | NoRecord) -> FactRow:
    if isinstance(record, NoRecord):
        return no_record_row(record)
    try:
        check_append_time(record)
    except InputError as error:
        raise DamagedError(record.offset, str(error)) from None
    return fact_row(record.key, record.value, record.offset, record.timestamp_ms)


async def _seek(consumer: Consumer, topic: str, partition: int, start: int) -> int:
    """Positions the consumer. Returns the first offset of the partition."""
    tp = TopicPartition(topic, partition)
    consumer.assign([tp])
    begin = int((await consumer.beginning_offsets([tp]))[tp])
    consumer.seek(tp, max(begin, start))
    return begin


async def _some(consumer: Consumer, tp: TopicPartition) -> tuple[Sequence[ConsumedRecord], int]:
    """The next records of its only partition, and the next position: a transaction may have ended
    after the last record.
    """
    from aiokafka.errors import OffsetOutOfRangeError

    try:
        records = (await consumer.getmany(tp, timeout_ms=int(_FETCH_S * 1_000))).get(tp, [])
    except OffsetOutOfRangeError:
        problem = f"topic {tp.topic}/{tp.partition} no longer has it: it was deleted while the log was read. Read it again, or the archive"
        raise GapError(int(await consumer.position(tp)), problem) from None
    return records, int(await consumer.position(tp))
