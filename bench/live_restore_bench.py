"""Speed of restoring a task from its changelog into `rocksdict`, relative to only reading that
changelog; and how closely limits are kept.

Records have 150 bytes, each key occurs once. The peer reads with aiokafka's own consumer, the floor
with the restorer's; both with the restorer's settings and batch size. The three alternate; the
median of each counts.
"""

from __future__ import annotations

import asyncio
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition

from bench.live import Row, broker
from equipoise.events.tasks import TaskId
from equipoise.hosting.runtime import collect_seldom
from equipoise.kafka.connection import Connection
from equipoise.kafka.started_clients import admin_client, reader, writer
from equipoise.member.copies.directory import StateDirectory
from equipoise.member.copies.origin import Origin
from equipoise.member.copies.restorer import FETCH_BYTES, FETCH_WAIT_MS, MOST_RECORDS, ChangelogRestorer
from equipoise.member.copies.stores import RocksStore
from equipoise.member.copies.throttle import Throttle

RECORDS = 600_000
KEY_BYTES, VALUE_BYTES = 16, 134
TURNS = 5
TASK = TaskId(0, 0)
LIMITS = ({"records_per_s": 50_000.0}, {"bytes_per_s": 10_000_000.0}, {"records_per_s": 5_000.0})
LIMITED_S = 4.0
GOAL_BESIDE_AIOKAFKA, GOAL_BESIDE_OURS, GOAL_LIMIT = 0.8, 0.4, 0.1
FETCHING = {"max_partition_fetch_bytes": FETCH_BYTES, "fetch_max_wait_ms": FETCH_WAIT_MS}


async def fill(connection: Connection, topic: str, records: int) -> None:
    """Writes a changelog of one partition."""
    from aiokafka.admin import NewTopic

    async with admin_client(connection) as admin:
        await admin.create_topics([NewTopic(topic, 1, 1)])
    async with writer(connection, max_batch_size=2**19) as producer:
        filling = bytes(range(VALUE_BYTES - 8))
        headers = [*Origin(1, "f" * 32, "restored", str(TASK), 17).headers]  # as members write them
        for number in range(records):
            key = b"%0*d" % (KEY_BYTES, number * 7_919 % records)
            sent = await producer.send(topic, number.to_bytes(8) + filling, key=key, partition=0, headers=headers)
        await sent


async def read_alone(connection: Connection, topic: str) -> float:
    """Seconds with the restorer's consumer."""
    async with reader(connection, read_committed=True, as_rows=True, **FETCHING) as consumer:
        return await _read_all(consumer, topic)


async def read_by_aiokafka(connection: Connection, topic: str) -> float:
    """Seconds with aiokafka's own consumer."""
    consumer = AIOKafkaConsumer(**connection.options(), enable_auto_commit=False, isolation_level="read_committed", **FETCHING)
    await consumer.start()
    try:
        return await _read_all(consumer, topic)
    finally:
        await consumer.stop()


async def _read_all(consumer: Any, topic: str) -> float:
    place = TopicPartition(topic, 0)
    consumer.assign([place])
    end = (await consumer.end_offsets([place]))[place]
    consumer.seek(place, 0)
    begun_s, read = time.perf_counter(), 0
    while read < end:
        read += len((await consumer.getmany(place, timeout_ms=500, max_records=MOST_RECORDS)).get(place, ()))
    return time.perf_counter() - begun_s


async def restore(connection: Connection, topic: str, **limits: Any) -> float:
    """Seconds until the task's restored stores are handed over."""
    folder = Path(tempfile.mkdtemp(prefix="equipoise-restore-"))
    try:
        with StateDirectory(folder, "g", "m") as directory:
            failed: list[BaseException] = []
            restorer = ChangelogRestorer(
                connection,
                {TASK: (topic,)},
                RocksStore,
                directory,
                throttle=Throttle(**limits),
                ends_every_s=3.0,
                progressed=lambda: None,
                failed=failed.append,
                now_ms=lambda: time.time_ns() // 1_000_000,
            )
            await restorer.start()
            try:
                begun_s = time.perf_counter()
                await restorer.restore(TASK)
                await restorer.open(TASK, {})
                took_s = time.perf_counter() - begun_s
                restorer.put_back(TASK)
            finally:
                await restorer.stop()
            assert not failed, failed
            return took_s
    finally:
        shutil.rmtree(folder)


async def measured(connection: Connection) -> list[Row]:
    """Measures all rows."""
    await fill(connection, "whole", RECORDS)
    await read_alone(connection, "whole")
    reading, by_aiokafka, restoring = [], [], []
    for _ in range(TURNS):
        reading.append(await read_alone(connection, "whole"))
        by_aiokafka.append(await read_by_aiokafka(connection, "whole"))
        restoring.append(await restore(connection, "whole"))
    restored_s = statistics.median(restoring)
    rows = []
    for which, times, goal in (
        ("aiokafka's consumer", by_aiokafka, GOAL_BESIDE_AIOKAFKA),
        ("the restorer's consumer", reading, GOAL_BESIDE_OURS),
    ):
        read_s = statistics.median(times)
        speeds = f"{RECORDS / restored_s:,.0f} over {RECORDS / read_s:,.0f} records/s; goal: at least {goal}"
        rows.append((f"restoring 150-byte records into rocksdict / only reading them with {which}, records/s", read_s / restored_s, speeds))
    for limit in LIMITS:
        ((name, value),) = limit.items()
        per_record = KEY_BYTES + VALUE_BYTES if name == "bytes_per_s" else 1
        records = round(value * LIMITED_S / per_record)
        topic = f"limited-{name}-{records}"
        await fill(connection, topic, records)
        took_s = await restore(connection, topic, **limit)
        rows.append((f"restoring at {name}={value:,.0f} / that limit", records * per_record / took_s / value, f"{took_s:.2f} s; goal: 0.9 to 1.1"))
    return rows


def run() -> list[Row]:
    """Rows for `python -m bench`."""
    collect_seldom()  # as `Member.run` does
    with broker() as bootstrap:
        return asyncio.run(measured(Connection(bootstrap=bootstrap)))
