"""One partition's records, and the rules by which a leader appends and returns them."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import attrs
from aiokafka.errors import InvalidProducerEpoch, OutOfOrderSequenceNumber

from equipoise.kafka.client import Headers

RECORD_OVERHEAD = 8
"""About what a record adds to its key, value and headers."""
KEPT_BATCHES = 5
"""Batches of a producer that a leader recognises when they come again."""
_SEQUENCES = 2**31


@attrs.define(eq=False, slots=True)
class StoredRecord:
    """A record in a partition, as consumers return it. `batch`: with which it came."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    batch: Batch

    @property
    def size(self) -> int:
        return RECORD_OVERHEAD + size_of(self.key, self.value, self.headers)


def size_of(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Bytes of a record's contents with their lengths, as in a batch."""
    size = _field(key) + _field(value) + 1
    for name, content in headers:
        size += _field(name.encode()) + _field(content)
    return size


def _field(content: bytes | None) -> int:
    if content is None:
        return 1
    length = len(content)
    return length + (1 if length < 64 else 2 if length < 8_192 else 3 if length < 1_048_576 else 4)


@attrs.define(eq=False, slots=True)
class Batch:
    """Records that a producer sends at once to one partition. `sequence`: of the first. `marker`:
    True and False end a transaction (commit, abort); None: it holds records.
    """

    producer_id: int
    epoch: int
    sequence: int
    transactional: bool
    contents: Sequence[tuple[bytes | None, bytes | None, Headers, int]] = ()
    """Key, value, headers, time of creation (ms)."""
    size: int = 0
    marker: bool | None = None
    base: int = -1
    """Offset of its first record, when it is appended."""
    appended_us: int = 0
    _stored: tuple[int, bytes] = (-1, b"")

    def stored_of(self, count: int, encode: Callable[[], bytes]) -> bytes:
        """Returns it as it is sent while `count` of its records are left. It is encoded once."""
        if self._stored[0] != count:
            self._stored = count, encode()
        return self._stored[1]

    @property
    def last_sequence(self) -> int:
        return (self.sequence + len(self.contents) - 1) % _SEQUENCES


@attrs.define(eq=False, slots=True)
class _KnownProducer:
    epoch: int
    batches: deque[tuple[int, int, int]] = attrs.field(factory=lambda: deque(maxlen=KEPT_BATCHES))
    """First and last sequence, first offset."""
    last: Batch | None = None


class LeaderEpochs(NamedTuple):
    """The leader epochs that a leader knows, each with the offset that it began at, and the end of
    its log.
    """

    begun: Sequence[tuple[int, int]]
    log_end: int

    def end(self, epoch: int) -> int:
        """Where this epoch ends, as Kafka's `LeaderEpochFileCache.endOffsetFor`; -1: it is later
        than all.
        """
        later = [(each, begin) for each, begin in self.begun if each > epoch]
        if later:
            return later[0][1]
        return self.log_end if self.begun[-1][0] == epoch else -1


class PartitionLog:
    """The records from `start` to before `end`; consumers see those below `high_watermark`.

    `committed`: highest offset that was ever a high watermark: records before it are on all in-sync
    replicas. A new leader may take a moment to know it.
    """

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.start = 0
        self.compacted_below = 0
        self.end = 0
        self.high_watermark = 0
        self.committed = 0
        self.records: list[StoredRecord] = []
        """Markers are among them."""
        self._epochs: list[tuple[int, int]] = [(0, 0)]
        """Leader epochs in order, each with the offset that it began at."""
        self._offsets: list[int] = []
        self._producers: dict[int, _KnownProducer] = {}
        self._open: dict[int, list[int]] = {}
        """Producer id -> records of its open transaction."""
        self._decided: set[int] = set()
        """Records of committed transactions whose markers were compacted away."""
        self._verifying: dict[int, tuple[int, int]] = {}
        """Producer id -> epoch and lowest sequence number of what the coordinator was asked for."""
        self._aborted: set[int] = set()
        self._aborted_transactions: list[tuple[int, int, int]] = []
        """Producer id, first offset and offset of the marker of each."""
        self._ended: list[tuple[int, int]] = []
        """Transactions whose marker is not below the high watermark yet: first offset, offset of
        the marker.
        """

    @property
    def last_stable_offset(self) -> int:
        """Consumers with read_committed see the records below it."""
        stable = self.high_watermark
        for offsets in self._open.values():
            if offsets[0] < stable:
                stable = offsets[0]
        for first, marker in self._ended:
            if marker >= self.high_watermark and first < stable:
                stable = first
        if stable < self.start:  # its first records are deleted; Kafka takes the batch that the partition begins with
            return min(self.high_watermark, self.records[0].batch.base if self.records else self.start)
        return stable

    # Leader epochs

    @property
    def epochs(self) -> LeaderEpochs:
        """The present leader epochs."""
        return LeaderEpochs(tuple(self._epochs), self.end)

    def begin_epoch(self, epoch: int) -> None:
        """A leader leads in this epoch from here on."""
        self._epochs.append((epoch, self.end))

    def epoch_before(self, offset: int) -> int:
        """The leader epoch of the record before `offset`, or of the first one."""
        return self._epochs[max(0, bisect_left([begin for _, begin in self._epochs], offset) - 1)][0]

    def has_open_transaction(self, producer_id: int) -> bool:
        return producer_id in self._open

    @property
    def open_transactions(self) -> int:
        return len(self._open)

    def verifying(self, batch: Batch) -> None:
        """Notes that the leader asks whether the batch belongs to a transaction."""
        epoch, lowest = self._verifying.get(batch.producer_id, (batch.epoch, batch.sequence))
        if batch.epoch > epoch or (batch.epoch == epoch and batch.sequence < lowest):
            epoch, lowest = batch.epoch, batch.sequence
        self._verifying[batch.producer_id] = epoch, lowest

    def check(self, batch: Batch) -> int | type[Exception] | None:
        """Returns what keeps a batch from being appended: the offset at which it was appended
        before, or an error.
        """
        known = self._producers.get(batch.producer_id)
        batches = known.batches if known is not None and known.epoch == batch.epoch else ()
        for first, last, offset in batches:
            if first == batch.sequence and last == batch.last_sequence:
                return offset
        if known is not None and batch.epoch < known.epoch:
            return InvalidProducerEpoch
        if batch.producer_id in self._verifying and batch.sequence > self._verifying[batch.producer_id][1]:
            return OutOfOrderSequenceNumber  # an earlier one was refused
        expected = (batches[-1][1] + 1) % _SEQUENCES if batches else 0
        return OutOfOrderSequenceNumber if known is not None and batch.sequence != expected else None

    def append(self, batch: Batch, append_ms: int | None) -> int:
        """Appends a batch and returns its first offset. `append_ms`: None: the producer's times."""
        base = batch.base = self.end
        if batch.marker is not None:
            self._add(StoredRecord(self.topic, self.partition, base, append_ms or 0, 1, None, None, (), batch))
        for index, (key, value, headers, created_ms) in enumerate(batch.contents):
            timestamp = created_ms if append_ms is None else append_ms
            self._add(StoredRecord(self.topic, self.partition, base + index, timestamp, int(append_ms is not None), key, value, headers, batch))
        return base

    def _add(self, record: StoredRecord) -> None:
        self.records.append(record)
        self._offsets.append(record.offset)
        self.end = record.offset + 1
        batch = record.batch
        if batch.producer_id < 0:
            return
        if batch.transactional:
            self._verifying.pop(batch.producer_id, None)
        known = self._producers.get(batch.producer_id)
        if known is None or known.epoch != batch.epoch:
            known = self._producers[batch.producer_id] = _KnownProducer(batch.epoch)
        if batch.marker is not None:
            offsets = self._open.pop(batch.producer_id, None)
            if offsets is not None:
                self._ended.append((offsets[0], record.offset))
                if not batch.marker:
                    self._aborted.update(offsets)
                    self._aborted_transactions.append((batch.producer_id, offsets[0], record.offset))
            return
        if batch.transactional and record.offset not in self._decided:
            self._open.setdefault(batch.producer_id, []).append(record.offset)
        if known.last is not batch:
            known.last = batch
            known.batches.append((batch.sequence, batch.last_sequence, record.offset))

    def raise_high_watermark(self, offset: int) -> bool:
        """Returns whether it has risen."""
        if offset <= self.high_watermark:
            return False
        self.high_watermark = offset
        self.committed = max(self.committed, offset)
        if self._ended:
            self._ended = [(first, marker) for first, marker in self._ended if marker >= offset]
        return True

    def read(self, offset: int, bound: int, *, committed: bool, max_bytes: int, one: bool = True) -> tuple[list[StoredRecord], int]:
        """The records from `offset` to before `bound` and where to read on. `committed`: without
        aborted ones. `one`: even if it is larger.
        """
        found: list[StoredRecord] = []
        size = 0
        records, aborted = self.records, self._aborted
        for index in range(bisect_left(self._offsets, offset), len(records)):
            record = records[index]
            if record.offset >= bound:
                break
            if record.batch.marker is not None or (committed and record.offset in aborted):
                continue
            size += record.size
            if (found or not one) and size > max_bytes:
                return found, record.offset
            found.append(record)
        return found, max(offset, bound)

    def aborted(self, offset: int, bound: int) -> list[tuple[int, int]]:
        """Producer id and first offset of the transactions that were aborted, as far as they have
        records from `offset` to before `bound`.
        """
        return [(producer_id, first) for producer_id, first, marker in self._aborted_transactions if first < bound and marker >= offset]

    # Records that go

    def delete_before(self, offset: int) -> None:
        """Retention, or a request to delete records."""
        self.start = max(self.start, offset)
        gone = bisect_left(self._offsets, self.start)
        del self.records[:gone], self._offsets[:gone]

    def compact(self, below: int, deletions_from_ms: int = 0) -> None:
        """Removes records below an offset that have a later one with their key there, and those
        without value that are older than `deletions_from_ms`.
        """
        self.compacted_below = max(self.compacted_below, below)
        last = {
            record.key: record.offset
            for record in self.records
            if record.offset < below and record.batch.marker is None and record.offset not in self._aborted
        }
        ended = {producer_id: marker for producer_id, _, marker in self._aborted_transactions if marker < below}

        def is_kept(each: StoredRecord) -> bool:
            if each.offset >= below:
                return True
            is_gone = each.offset in self._aborted and each.offset < ended.get(each.batch.producer_id, 0)
            is_gone = is_gone or (each.value is None and each.timestamp_ms < deletions_from_ms)
            return each.batch.marker is None and not is_gone and last.get(each.key, each.offset) == each.offset

        undecided: dict[int, list[int]] = {}
        for each in self.records[: bisect_left(self._offsets, below)]:
            if each.batch.marker is not None:
                self._decided.update(undecided.pop(each.batch.producer_id, ()))
            elif each.batch.transactional:
                undecided.setdefault(each.batch.producer_id, []).append(each.offset)
        self.records = [each for each in self.records if is_kept(each)]
        self._offsets = [each.offset for each in self.records]
        self._aborted_transactions = [each for each in self._aborted_transactions if each[2] >= below]

    def truncate(self, end: int) -> None:
        """Removes the records from `end` on: a new leader has not got them. Batches go as a whole."""
        if end >= self.end:
            return
        keep = bisect_left(self._offsets, end)
        while 0 < keep < len(self.records) and self.records[keep - 1].batch is self.records[keep].batch:
            keep -= 1
            end = self._offsets[keep]
        records = self.records[:keep]
        self.records, self._offsets, self._producers, self._open, self._aborted, self._ended = [], [], {}, {}, set(), []
        self._aborted_transactions = []
        for record in records:
            self._add(record)
        self.end = end
        self._epochs = [self._epochs[0], *(each for each in self._epochs[1:] if each[1] < end)]
        self.start = min(self.start, end)
        self.compacted_below = min(self.compacted_below, end)
        self.high_watermark = min(self.high_watermark, end)
        self.committed = min(self.committed, end)
