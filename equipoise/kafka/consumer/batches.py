"""Decodes the record batches of one partition in an answer, with aiokafka's records."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from operator import attrgetter
from typing import Any

from aiokafka.errors import CorruptRecordException, KafkaError
from aiokafka.record.control_record import ABORT_MARKER, ControlRecord
from aiokafka.record.memory_records import MemoryRecords

from equipoise.kafka.client import NO_EPOCH, Record, Row, TopicPartition

_FIELDS = attrgetter("key", "value", "offset", "timestamp", "headers")
_RECORD_OFFSET = Record._fields.index("offset")
_ROW_OFFSET = 3
_BATCH = struct.Struct(">qiiB")
"""Of a batch: first offset, length of what is behind these two, leader epoch, form."""
_BEFORE_LENGTH = 12
_FIRST_FORM_WITH_EPOCHS = 2
Aborted = Sequence[tuple[int, int]]
"""Producer id and first offset of transactions that were aborted."""


class FetchedBatches:
    """The batches that one answer has of a partition, decoded as they are taken.

    `next_offset`: where to read on behind what was taken. Behind transaction markers, aborted
    records and what compaction has removed, too.
    """

    __slots__ = ("_aborted", "_aborting", "_batches", "_committed_only", "_index", "_records", "leader_epoch", "next_offset", "place", "size_bytes")

    def __init__(self, place: TopicPartition, data: bytes, position: int, aborted: Aborted | None, *, as_rows: bool) -> None:
        """`position`: records before it are skipped. `aborted`: those at which the batches have
        to be looked at; None: aborted records are wanted, too.
        """
        self.place = place
        self._batches = MemoryRecords(data)
        self._committed_only = aborted is not None
        self._aborted = sorted(aborted or (), key=lambda each: each[1], reverse=True)
        self._aborting: set[int] = set()
        """Producers whose transaction is one of the aborted ones."""
        self.next_offset = position
        self.size_bytes = len(data)
        self.leader_epoch = last_epoch(data)
        self._index = _ROW_OFFSET if as_rows else _RECORD_OFFSET
        self._records: Iterator[Any] = self._rows() if as_rows else self._named()

    @property
    def is_empty(self) -> bool:
        """Returns whether there is no whole batch left to decode."""
        return not self._batches.has_next()

    def take(self, most: int) -> tuple[list[Any], Exception | None]:
        """Returns the next records, so many at most, and what keeps those behind them from being
        decoded. Fewer than `most`: there are no more.
        """
        records: list[Any] = []
        error: Exception | None = None
        try:
            records.extend(islice(self._records, most))  # keeps those before an error
        except KafkaError as refused:
            error = refused
        except Exception as unreadable:  # noqa: BLE001  # whatever a codec says of bytes that are none of its own
            error = CorruptRecordException(f"{self.place}: {unreadable!r}")
        if records and (error is not None or len(records) == most):  # it has not come to the end of a batch
            self.next_offset = max(self.next_offset, records[-1][self._index] + 1)
        return records, error

    def _named(self) -> Iterator[Record]:
        (topic, partition), new = self.place, tuple.__new__
        last: list[tuple[str, bytes]] = []
        shared: tuple[tuple[str, bytes], ...] = ()
        for kind, fields in self._unpacked():
            for key, value, offset, timestamp_ms, headers in fields:
                if headers != last:  # those of one owner have the same ones: a tuple for all
                    last, shared = headers, tuple(headers)
                # As `Record(...)` does, without a call of its own.
                yield new(Record, (key, value, topic, partition, offset, timestamp_ms, shared, kind))

    def _rows(self) -> Iterator[Row]:
        """A plain tuple costs less than one with names. The loop is that of records once more,
        because a call for each record would cost what this saves.
        """
        last: list[tuple[str, bytes]] = []
        shared: tuple[tuple[str, bytes], ...] = ()
        for _, fields in self._unpacked():
            for key, value, offset, _, headers in fields:
                if headers != last:
                    last, shared = headers, tuple(headers)
                yield key, value, shared, offset

    def _unpacked(self) -> Iterator[tuple[int, Iterator[tuple[Any, ...]]]]:
        """Timestamp type and `_FIELDS` of the records of each batch. `next_offset` is the position
        behind the last batch that was unpacked.
        """
        batches = self._batches
        begin: int | None = self.next_offset  # which may be within the first batch
        while batches.has_next():
            batch = batches.next_batch()
            if not batch.validate_crc():
                raise CorruptRecordException(f"Invalid CRC - {self.place}")
            if self._holds_records(batch):
                fields: Iterator[tuple[Any, ...]] = map(_FIELDS, batch)
                if begin is not None:
                    fields, begin = _from(begin, fields), None
                yield getattr(batch, "timestamp_type", 0), fields  # former formats have it with each record
            self.next_offset = max(self.next_offset, batch.next_offset)  # compaction may have removed the last ones

    def _holds_records(self, batch: Any) -> bool:
        """False: transaction markers, or what an aborted transaction has written."""
        producer_id = batch.producer_id
        if self._committed_only and producer_id is not None:
            while self._aborted and self._aborted[-1][1] <= batch.base_offset:
                self._aborting.add(self._aborted.pop()[0])
            if batch.is_control_batch:
                marker = next(batch, None)  # compaction may have removed it from its batch
                if marker is not None and ControlRecord.parse(marker.key) == ABORT_MARKER:
                    self._aborting.discard(producer_id)
            elif batch.is_transactional and producer_id in self._aborting:
                return False
        return not batch.is_control_batch


def _from(begin: int, records: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    return (fields for fields in records if fields[2] >= begin)


def last_epoch(batches: bytes) -> int:
    """Leader epoch of the last whole batch of a fetch; NO_EPOCH: it has none."""
    at, epoch, end = 0, NO_EPOCH, len(batches)
    while at + _BATCH.size <= end:
        _, length, its_epoch, form = _BATCH.unpack_from(batches, at)
        at += _BEFORE_LENGTH + length
        if at <= end and form >= _FIRST_FORM_WITH_EPOCHS:
            epoch = its_epoch
    return epoch
