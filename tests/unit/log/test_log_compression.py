"""What is written to the log is compressed where that makes it smaller."""

from __future__ import annotations

import gzip

import pytest

from equipoise.events.facts import LagReported, MemberUnchanged
from equipoise.events.tasks import TaskId
from equipoise.kafka.client import LOG_COMPRESSION, TopicPartition, Unsent
from equipoise.log.kafka.envelope import pack_fact

aiokafka_records = pytest.importorskip("aiokafka.record.memory_records")
UNCHANGED = pack_fact(MemberUnchanged(member_id="m12", incarnation=1_795_149_198_066_000, report=3))
REPORT = pack_fact(LagReported("m12", 1_795_149_198_066_000, 3, 1, lags={TaskId(0, number): 100 for number in range(100)}))
HEAD_BYTES = 61


def built(*values: bytes, compression: str | None = LOG_COMPRESSION) -> bytes:
    """A batch as it is sent."""
    from equipoise.kafka.producer.record_batches import BatchMaker

    maker = BatchMaker(2**20, compression, is_transactional=False)
    records: list[Unsent] = [(b"group-017", value, [], 1_700_000_000_000) for value in values]
    [batch] = maker.whole(TopicPartition("facts", 0), records, 16_384, 0.0, 0)
    batch.encode(7, 2, 5)
    return batch.data


def read(batch: bytes) -> list[bytes]:
    records = aiokafka_records.MemoryRecords(batch)
    found = records.next_batch()
    assert found.validate_crc()
    assert (found.producer_id, found.producer_epoch, found.base_sequence) == (7, 2, 5)
    return [record.value for record in found]


def test_heartbeat_alone_is_not_compressed():
    batch = built(UNCHANGED)
    assert (len(UNCHANGED), len(batch), batch[22] & 7) == (18, 95, 0)
    assert batch == built(UNCHANGED, compression=None)
    assert read(batch) == [UNCHANGED]


@pytest.mark.parametrize("values", [(REPORT,), (UNCHANGED,) * 20], ids=["a report", "heartbeats together"])
def test_what_becomes_smaller_is_compressed(values: tuple[bytes, ...]):
    batch, plain = built(*values), built(*values, compression=None)
    assert (batch[22] & 7, len(gzip.decompress(batch[HEAD_BYTES:]))) == (1, len(plain) - HEAD_BYTES)
    assert len(batch) < len(plain) * 0.7
    assert read(batch) == list(values)
