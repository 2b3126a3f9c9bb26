"""Batches of records for one partition, encoded by aiokafka's builder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, pairwise
from typing import Any

import attrs
from aiokafka.errors import MessageSizeTooLargeError, UnsupportedCodecError
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from equipoise.kafka.client import TopicPartition, Unsent

_FORMAT = 2
_NO_CODEC = 0
_CODECS = {None: _NO_CODEC, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


class BatchEncoder:
    """Encodes records. `most_bytes`: of several records, before they are compressed. With a
    `codec` the batch is compressed only if that makes it smaller: a single small record grows by a
    fifth.
    """

    def __init__(self, most_bytes: int, *, codec: int, is_transactional: bool) -> None:
        self._builder = DefaultRecordBatchBuilder(_FORMAT, codec, int(is_transactional), -1, -1, 0, most_bytes)
        self._plain = DefaultRecordBatchBuilder(_FORMAT, _NO_CODEC, int(is_transactional), -1, -1, 0, most_bytes) if codec else None
        self.count = 0

    def fill(self, records: Iterable[Unsent], now_ms: int) -> Unsent | None:
        """Appends records until there are no more, or one does not fit: that one is returned."""
        append, number = self._builder.append, self.count
        for key, value, headers, given_ms in records:
            at_ms = now_ms if given_ms is None else given_ms
            if append(number, at_ms, key, value, headers) is None:
                self.count = number
                return key, value, headers, given_ms
            if self._plain is not None:
                self._plain.append(number, at_ms, key, value, headers)
            number += 1
        self.count = number
        return None

    @property
    def size_bytes(self) -> int:
        """Returns its size, before it is compressed."""
        size: int = self._builder.size()
        return size

    def encode(self, producer_id: int, epoch: int, sequence: int) -> bytes:
        """Returns the batch as it is sent. May be called once."""
        self._builder.set_producer_state(producer_id, epoch, sequence)
        built = self._builder.build()
        if self._plain is not None and self._plain.size() < len(built):
            self._plain.set_producer_state(producer_id, epoch, sequence)
            built = self._plain.build()
        return bytes(built)


@attrs.define(eq=False, slots=True)
class RecordBatch:
    """Records that are appended to `place` together or not at all. `created_ms`: of the core's
    clock. `is_whole`: it takes no more records. `sequence`, `data`: as it is sent, each time it is.
    `offset`, `error`: how it ended, or until then why it is sent again. `waiters`: what the host
    keeps with its records.
    """

    place: TopicPartition
    encoder: BatchEncoder | None
    created_ms: float
    is_whole: bool
    count: int = 0
    size_bytes: int = 0
    behind: RecordBatch | None = None
    """The next batch of the same call. Nothing behind a batch that failed is appended."""
    sequence: int = -1
    data: bytes = b""
    is_ended: bool = False
    offset: int = -1
    append_ms: int = -1
    """By the broker's clock; -1: the topic keeps its senders' times."""
    error: Exception | None = None
    waiters: list[Any] = attrs.field(factory=list)

    def encode(self, producer_id: int, epoch: int, sequence: int) -> None:
        """Fixes what is sent."""
        assert self.encoder is not None
        self.sequence, self.data = sequence, self.encoder.encode(producer_id, epoch, sequence)
        self.encoder = None


class BatchMaker:
    """Makes batches. `most_bytes`: of a request. Raises UnsupportedCodecError for a `compression`
    that Kafka does not have.
    """

    def __init__(self, most_bytes: int, compression: str | None, *, is_transactional: bool) -> None:
        if compression not in _CODECS:
            raise UnsupportedCodecError(f"compression_type: {compression!r}; choose gzip, snappy, lz4 or zstd")
        self._most_bytes, self._codec, self._is_transactional = most_bytes, _CODECS[compression], is_transactional

    def open(self, place: TopicPartition, batch_bytes: int, created_ms: float) -> RecordBatch:
        """Returns an empty batch, to which records can be appended."""
        return RecordBatch(place, self._encoder(batch_bytes), created_ms, is_whole=False)

    def whole(self, place: TopicPartition, records: Iterable[Unsent], batch_bytes: int, created_ms: float, wall_ms: int) -> list[RecordBatch]:
        """Returns the records in as few batches as possible. `wall_ms`: the time (ms since 1970) of
        those that have none. Raises MessageSizeTooLargeError.
        """
        batches = [self._closed(place, encoder, created_ms) for encoder in self._filled(records, batch_bytes, wall_ms)]
        for batch, behind in pairwise(batches):
            batch.behind = behind
        return batches

    def _filled(self, records: Iterable[Unsent], batch_bytes: int, wall_ms: int) -> Iterator[BatchEncoder]:
        rest = iter(records)
        unsent = next(rest, None)
        while unsent is not None:
            encoder = self._encoder(batch_bytes)
            unsent = encoder.fill(chain((unsent,), rest), wall_ms)
            yield encoder

    def _encoder(self, batch_bytes: int) -> BatchEncoder:
        return BatchEncoder(batch_bytes, codec=self._codec, is_transactional=self._is_transactional)

    def _closed(self, place: TopicPartition, encoder: BatchEncoder, created_ms: float) -> RecordBatch:
        size_bytes = encoder.size_bytes
        if size_bytes > self._most_bytes:
            raise MessageSizeTooLargeError(f"a record for {place[0]} is larger than {self._most_bytes} bytes")
        return RecordBatch(place, encoder, created_ms, is_whole=True, count=encoder.count, size_bytes=size_bytes)
