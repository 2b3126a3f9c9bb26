"""The application as fast as these libraries go from Python: all that was fetched is counted at
once, read from RocksDB and written to it in one call each, and sent in ready batches. It restores
nothing, and fences nobody: no application, but what a member's data plane can be compared with.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from rocksdict import Options, Rdict, WriteBatch

from bench.peers.apps.given import Given, answer_to, counted, given

COMMIT_S = 0.1
AT_ONCE = 10_000
"""Records."""
BATCH_BYTES = 1000 * 1024


async def run(given: Given) -> None:
    """Until the process is killed."""
    consumer: Any = AIOKafkaConsumer(
        bootstrap_servers=given.bootstrap,
        group_id=given.name,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed" if given.exactly_once else "read_uncommitted",
    )
    producer: Any = AIOKafkaProducer(
        bootstrap_servers=given.bootstrap,
        enable_idempotence=True,
        transactional_id=given.name if given.exactly_once else None,
        max_batch_size=BATCH_BYTES,
    )
    await producer.start()
    await consumer.start()
    consumer.assign([TopicPartition(given.input, number) for number in range(given.tasks)])
    given.state.mkdir(parents=True, exist_ok=True)
    store = Rdict(str(given.state / "store"), Options(raw_mode=True))
    while True:
        end_s, positions = time.monotonic() + COMMIT_S, {}
        if given.exactly_once:
            await producer.begin_transaction()
        sent: list[Any] = []
        while (left_s := end_s - time.monotonic()) > 0:
            for place, records in (await consumer.getmany(timeout_ms=int(left_s * 1_000) + 1, max_records=AT_ONCE)).items():
                sent += await count_all(given, producer, store, records)
                positions[place] = records[-1].offset + 1
        await asyncio.gather(*sent)
        if given.exactly_once:
            if positions:
                await producer.send_offsets_to_transaction(positions, given.name)
            await producer.commit_transaction()
        elif positions:
            await consumer.commit(positions)


async def count_all(given: Given, producer: Any, store: Any, records: Sequence[Any]) -> list[Any]:
    """Counts records of one partition. Returns the futures of the batches that were sent."""
    partition = records[0].partition
    keys = list({record.key for record in records})
    counts = dict(zip(keys, store.get(keys), strict=True))
    answers = []
    for record in records:
        counts[record.key], number = counted(counts[record.key])
        answers.append((None, answer_to(partition, record.offset, given.instance, number)))
    written = WriteBatch(raw_mode=True)
    for key, value in counts.items():
        written.put(key, value)
    store.write(written)
    return await send_all(producer, given.output, partition, answers) + await send_all(producer, given.changelog, partition, list(counts.items()))


async def send_all(producer: Any, topic: str, partition: int, records: Sequence[tuple[bytes | None, bytes]]) -> list[Any]:
    """Sends keys and values in as few batches as possible. Returns their futures."""
    sent, batch = [], producer.create_batch()
    for key, value in records:
        if batch.append(key=key, value=value, timestamp=None) is None:
            sent.append(await producer.send_batch(batch, topic, partition=partition))
            batch = producer.create_batch()
            batch.append(key=key, value=value, timestamp=None)
    sent.append(await producer.send_batch(batch, topic, partition=partition))
    return sent


if __name__ == "__main__":
    sys.exit(asyncio.run(run(given())))
