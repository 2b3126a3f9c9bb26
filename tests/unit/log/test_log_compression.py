"""What is written to the log is compressed where that makes it smaller."""

from __future__ import annotations

import gzip

import pytest

from equipoise.events.facts import LagReported, MemberUnchanged
from equipoise.events.tasks import TaskId
from equipoise.kafka.aiokafka_producer import DeployedProducer
from equipoise.kafka.client import LOG_COMPRESSION
from equipoise.log.kafka.envelope import pack_fact

aiokafka_records = pytest.importorskip("aiokafka.record.memory_records")
UNCHANGED = pack_fact(MemberUnchanged(member_id="m12", incarnation=1_795_149_198_066_000, report=3))
REPORT = pack_fact(LagReported("m12", 1_795_149_198_066_000, 3, 1, lags={TaskId(0, number): 100 for number in range(100)}))
HEAD_BYTES = 61


async def built(*values: bytes, compression: str | None = LOG_COMPRESSION) -> bytes:
    """A batch as it is sent."""
    producer = DeployedProducer(bootstrap_servers="127.0.0.1:1", enable_idempotence=True, compression_type=compression)
    try:
        batch = producer.create_batch()
        for value in values:
            assert batch.append(timestamp=1_700_000_000_000, key=b"group-017", value=value) is not None
        batch._set_producer_state(7, 2, 5)
        return bytes(batch._build())
    finally:
        await producer.abandon()


def read(batch: bytes) -> list[bytes]:
    records = aiokafka_records.MemoryRecords(batch)
    found = records.next_batch()
    assert found.validate_crc()
    assert (found.producer_id, found.producer_epoch, found.base_sequence) == (7, 2, 5)
    return [record.value for record in found]


async def test_heartbeat_alone_is_not_compressed():
    batch = await built(UNCHANGED)
    assert (len(UNCHANGED), len(batch), batch[22] & 7) == (18, 95, 0)
    assert batch == await built(UNCHANGED, compression=None)
    assert read(batch) == [UNCHANGED]


@pytest.mark.parametrize("values", [(REPORT,), (UNCHANGED,) * 20], ids=["a report", "heartbeats together"])
async def test_what_becomes_smaller_is_compressed(values: tuple[bytes, ...]):
    batch, plain = await built(*values), await built(*values, compression=None)
    assert (batch[22] & 7, len(gzip.decompress(batch[HEAD_BYTES:]))) == (1, len(plain) - HEAD_BYTES)
    assert len(batch) < len(plain) * 0.7
    assert read(batch) == list(values)
