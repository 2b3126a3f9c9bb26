"""A partition's records as a leader stores and sends them: batches of Kafka's format (version 2)."""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Sequence
from functools import partial
from itertools import groupby

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.util import calc_crc32c

from equipoise.testing.simulated.kafka.partition_log import PartitionLog, StoredRecord

_NO_CODEC = 0
_BASE, _LEADER_EPOCH, _CRC, _ATTRIBUTES, _LAST_DELTA, _MAX_TIME = 0, 12, 17, 21, 23, 35
"""Where fields of a batch begin. The checksum is of what is behind it."""
_APPEND_TIME, _TRANSACTIONAL, _CONTROL = 0x08, 0x10, 0x20
_MARKER_KEY, _MARKER_VALUE = struct.Struct(">HH"), struct.Struct(">Hi")
_ROOM = 2**30


def encoded(records: Sequence[StoredRecord], leader_epoch: int, last: int | None = None) -> bytes:
    """Returns what compaction has left of one batch, at least one record. `last`: offset of the
    last record that it had; None: as far as it is known.
    """
    first, batch = records[0], records[0].batch
    is_marker = batch.marker is not None
    base = batch.base if is_marker or batch.contents else first.offset
    builder = DefaultRecordBatchBuilder(2, _NO_CODEC, batch.transactional, batch.producer_id, batch.epoch, batch.sequence, _ROOM)
    for record in records:
        key, value = record.key, record.value
        if batch.marker is not None:
            key, value = _MARKER_KEY.pack(0, int(batch.marker)), _MARKER_VALUE.pack(0, 0)
        builder.append(record.offset - base, record.timestamp_ms, key, value, list(record.headers))
    end = base + max(1, len(batch.contents)) - 1 if last is None else last
    attributes = (_APPEND_TIME * first.timestamp_type) | (_TRANSACTIONAL * batch.transactional) | (_CONTROL * is_marker)
    return _patched(builder.build(), base, leader_epoch, attributes, end - base, first.timestamp_ms if first.timestamp_type else None)


def empty(base: int, last: int, leader_epoch: int) -> bytes:
    """Returns a batch of which compaction has left no record."""
    builder = DefaultRecordBatchBuilder(2, _NO_CODEC, 0, -1, -1, -1, _ROOM)
    return _patched(builder.build(), base, leader_epoch, 0, last - base, None)


def _patched(built: bytearray, base: int, leader_epoch: int, attributes: int, last_delta: int, max_time_ms: int | None) -> bytes:
    struct.pack_into(">q", built, _BASE, base)
    struct.pack_into(">i", built, _LEADER_EPOCH, leader_epoch)
    struct.pack_into(">hi", built, _ATTRIBUTES, attributes, last_delta)
    if max_time_ms is not None:
        struct.pack_into(">q", built, _MAX_TIME, max_time_ms)
    struct.pack_into(">I", built, _CRC, calc_crc32c(bytes(built[_ATTRIBUTES:])))
    return bytes(built)


def read_batches(log: PartitionLog, offset: int, bound: int, *, max_bytes: int, one: bool = True) -> bytes:
    """Returns whole batches from the one with `offset` to before `bound`. `one`: the first one even
    if it is larger than `max_bytes`.
    """
    records = log.records
    begin = bisect_left(records, offset, key=_offset)
    while 0 < begin < len(records) and records[begin - 1].batch is records[begin].batch:
        begin -= 1
    found: list[bytes] = []
    size, next_offset = 0, offset
    stop = bisect_left(records, bound, key=_offset)
    for _, each in groupby(records[begin:stop], _batch_of):
        present = list(each)
        data = present[0].batch.stored_of(len(present), partial(encoded, present, log.epoch_before(present[0].offset + 1)))
        if (found or not one) and size + len(data) > max_bytes:
            return b"".join(found)
        found.append(data)
        size += len(data)
        next_offset = present[-1].batch.base + max(1, len(present[-1].batch.contents))
    if next_offset < bound:  # a real broker compacts no last batch of a partition
        found.append(empty(next_offset, bound - 1, log.epoch_before(bound)))
    return b"".join(found)


def _offset(record: StoredRecord) -> int:
    return record.offset


def _batch_of(record: StoredRecord) -> int:
    return id(record.batch)
