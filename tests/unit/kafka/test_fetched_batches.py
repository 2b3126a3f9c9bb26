"""Record batches as brokers send them are decoded, with every codec, whole or damaged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder
from aiokafka.record.util import calc_crc32c

from equipoise.kafka.client import NO_EPOCH, Record, TopicPartition
from equipoise.kafka.consumer.batches import FetchedBatches, last_epoch
from equipoise.testing.simulated.kafka.partition_log import Batch, PartitionLog
from equipoise.testing.simulated.kafka.stored_batches import empty, encoded, read_batches

PLACE = TopicPartition("in", 3)
NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)


def log_of(*batches: Batch, append_ms: int | None = None) -> PartitionLog:
    log = PartitionLog(*PLACE)
    for batch in batches:
        log.append(batch, append_ms)
    return log


def batch(*values: bytes, producer_id: int = -1, transactional: bool = False, marker: bool | None = None) -> Batch:
    return Batch(producer_id, 0, -1, transactional, [(b"k", value, (("h", b"x"),), 7) for value in values], marker=marker)


def compressed(codec: int, *values: bytes) -> bytes:
    builder = DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, 2**20)
    for offset, value in enumerate(values):
        builder.append(offset, 7, b"k", value, [])
    return bytes(builder.build())


def fetched(data: bytes, position: int = 0, aborted: Sequence[tuple[int, int]] | None = None, *, as_rows: bool = True) -> FetchedBatches:
    return FetchedBatches(PLACE, data, position, aborted, as_rows=as_rows)


def offsets(rows: Sequence[Any]) -> list[int]:
    return [row[3] for row in rows]


def test_records_hold_what_was_written() -> None:
    log = log_of(batch(b"a", b"b"))
    data = read_batches(log, 0, 2, max_bytes=1_000)
    records, error = fetched(data, as_rows=False).take(10)
    assert error is None
    assert records == [Record(b"k", value, "in", 3, offset, 7, (("h", b"x"),), 0) for offset, value in enumerate((b"a", b"b"))]
    assert records[0].headers is records[1].headers, "a tuple for all"
    assert fetched(data).take(10)[0] == [(b"k", b"a", (("h", b"x"),), 0), (b"k", b"b", (("h", b"x"),), 1)]


def test_time_of_the_broker_is_that_of_each_record() -> None:
    data = read_batches(log_of(batch(b"a", b"b"), append_ms=99), 0, 2, max_bytes=1_000)
    records, _ = fetched(data, as_rows=False).take(10)
    assert [(record.timestamp_ms, record.timestamp_type) for record in records] == [(99, 1), (99, 1)]


@pytest.mark.parametrize("codec", [NONE, GZIP, SNAPPY, LZ4, ZSTD])
def test_every_codec_is_read(codec: int) -> None:
    values = [b"%d" % number * 20 for number in range(50)]
    records, error = fetched(compressed(codec, *values)).take(100)
    assert error is None
    assert [value for _, value, _, _ in records] == values


@pytest.mark.parametrize("magic", [0, 1])
def test_former_formats_are_read(magic: int) -> None:
    builder = LegacyRecordBatchBuilder(magic, NONE, 2**20)
    for offset in range(4):
        builder.append(offset, 7, b"k", b"%d" % offset)
    found = fetched(bytes(builder.build()), 1, aborted=())
    assert offsets(found.take(10)[0]) == [1, 2, 3]
    assert (found.next_offset, found.leader_epoch) == (4, NO_EPOCH)


def test_reading_goes_on_within_a_batch() -> None:
    log = log_of(batch(b"a", b"b", b"c"), batch(b"d", b"e"))
    found = fetched(read_batches(log, 1, 5, max_bytes=1_000), 1)
    seen = [(offsets(found.take(most)[0]), found.next_offset) for most in (0, 1, 2, 5)]
    assert seen == [([], 1), ([1], 2), ([2, 3], 4), ([4], 5)]


def test_aborted_records_and_markers_are_passed_over() -> None:
    log = log_of(
        batch(b"a", producer_id=1, transactional=True),
        batch(b"b", producer_id=2, transactional=True),
        batch(b"c"),
        batch(producer_id=1, transactional=True, marker=False),
        batch(b"d", producer_id=1, transactional=True),
        batch(producer_id=1, transactional=True, marker=True),
        batch(producer_id=2, transactional=True, marker=True),
    )
    log.raise_high_watermark(log.end)
    data = read_batches(log, 0, log.end, max_bytes=1_000)
    found = fetched(data, 0, log.aborted(0, log.end))
    assert [value for _, value, _, _ in found.take(10)[0]] == [b"b", b"c", b"d"]
    assert found.next_offset == log.end == 7
    assert [value for _, value, _, _ in fetched(data).take(10)[0]] == [b"a", b"b", b"c", b"d"]


def test_marker_that_compaction_has_removed_from_its_batch_ends_nothing() -> None:
    """Kafka keeps an empty batch of a producer that may come again; aiokafka says it is no answer."""
    control = bytearray(empty(0, 0, 0))
    control[22] |= 0x30
    control[17:21] = calc_crc32c(bytes(control[21:])).to_bytes(4, "big")
    log = log_of(batch(b"a"), batch(b"b"))
    found = fetched(bytes(control) + read_batches(log, 1, 2, max_bytes=1_000), 0, aborted=())
    assert (offsets(found.take(10)[0]), found.next_offset) == ([1], 2)


def test_holes_of_compaction_are_passed_over() -> None:
    log = log_of(batch(b"a", b"b", b"c"), batch(b"d"), batch(b"e"))
    del log.records[4], log.records[1:3]
    log._offsets = [each.offset for each in log.records]
    found = fetched(read_batches(log, 0, 5, max_bytes=1_000))
    assert (offsets(found.take(10)[0]), found.next_offset) == ([0, 3], 5)


def test_records_before_a_damaged_batch_come_and_then_the_error() -> None:
    log = log_of(batch(b"a", b"b"), batch(b"c"), batch(b"d"))
    data = bytearray(read_batches(log, 0, 4, max_bytes=1_000))
    data[-1] ^= 1
    found = fetched(bytes(data))
    records, error = found.take(10)
    assert (offsets(records), found.next_offset) == ([0, 1, 2], 3)
    assert isinstance(error, CorruptRecordException)


def test_what_is_no_compressed_data_is_said_to_be_damaged() -> None:
    data = bytearray(compressed(GZIP, b"a" * 100))
    data[61:65] = b"none"
    data[17:21] = calc_crc32c(bytes(data[21:])).to_bytes(4, "big")
    records, error = fetched(bytes(data)).take(10)
    assert records == []
    assert isinstance(error, CorruptRecordException)


def test_batch_that_is_cut_off_is_left_to_the_next_fetch() -> None:
    log = log_of(batch(b"a"), batch(b"b"))
    data = read_batches(log, 0, 2, max_bytes=1_000)
    found = fetched(data[:-1])
    assert not found.is_empty
    assert (offsets(found.take(10)[0]), found.next_offset) == ([0], 1)
    assert fetched(data[:20]).is_empty


def test_epoch_is_that_of_the_last_whole_batch() -> None:
    log = log_of(batch(b"a"))
    first, second = encoded(log.records, 4), encoded(log.records, 5)
    assert last_epoch(first + second) == 5
    assert last_epoch(first + second[:-1]) == 4
    assert last_epoch(b"") == NO_EPOCH
