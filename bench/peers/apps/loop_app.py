"""The application as a plain aiokafka loop, record by record: one consumer to which all partitions
are assigned, one producer, counts in a dict that nothing keeps. Commits each second, or each 100 ms
in a transaction.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from bench.peers.apps.given import Given, answer_to, counted, given

COMMIT_S, TRANSACTION_S = 1.0, 0.1


async def run(given: Given) -> None:
    """Until the process is killed."""
    consumer: Any = AIOKafkaConsumer(
        bootstrap_servers=given.bootstrap,
        group_id=given.name,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed" if given.exactly_once else "read_uncommitted",
    )
    transactional_id = given.name if given.exactly_once else None
    producer: Any = AIOKafkaProducer(bootstrap_servers=given.bootstrap, enable_idempotence=True, transactional_id=transactional_id)
    await producer.start()
    await consumer.start()
    consumer.assign([TopicPartition(given.input, number) for number in range(given.tasks)])
    counts: dict[tuple[int, bytes], bytes] = {}
    while True:
        end_s, positions, sent = time.monotonic() + (TRANSACTION_S if given.exactly_once else COMMIT_S), {}, None
        if given.exactly_once:
            await producer.begin_transaction()
        while (left_s := end_s - time.monotonic()) > 0:
            for place, records in (await consumer.getmany(timeout_ms=int(left_s * 1_000) + 1, max_records=1_000)).items():
                for record in records:
                    if given.handler_ms:
                        await asyncio.sleep(given.handler_ms / 1_000)
                    key = record.partition, record.key
                    counts[key], number = counted(counts.get(key))
                    answer = answer_to(record.partition, record.offset, given.instance, number)
                    sent = await producer.send(given.output, answer, partition=record.partition)
                positions[place] = records[-1].offset + 1
        if given.exactly_once:
            if positions:
                await producer.send_offsets_to_transaction(positions, given.name)
            await producer.commit_transaction()
        elif sent is not None:
            await producer.flush()
            await consumer.commit(positions)


if __name__ == "__main__":
    sys.exit(asyncio.run(run(given())))
