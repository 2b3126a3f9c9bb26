"""The environment of an application: its topics, its initial state, a steady input, and an observer
that records every answer with its time and instance.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator
from typing import Any

import attrs

from bench.peers.waits import Answer, TaskWaits
from equipoise.kafka.client import TopicPartition, Unsent, acknowledged
from equipoise.kafka.connection import Connection
from equipoise.kafka.started_clients import admin_client, reader, writer

VALUE_BYTES = 152
"""Of a value of the state, as in the recorded runs: 8 bytes of count, the rest as it was loaded."""
COUNT_BYTES = 8
KEY_BYTES = 9
BATCH_BYTES = 512 * 1024
RECORDS_AT_ONCE = 20_000
CHANGELOG = {"cleanup.policy": "compact", "segment.bytes": "104857600"}
BROKER_TIME = {"message.timestamp.type": "LogAppendTime"}


def key_of(partition: int, number: int) -> bytes:
    """Returns a key: the same in all applications, of constant length."""
    return b"%02d%07d" % (partition, number)


@attrs.frozen(kw_only=True)
class Load:
    """The load, identical for every application."""

    tasks: int
    state_mb: int
    per_s: float
    """Records per second and task."""

    @property
    def keys(self) -> int:
        """Per task; keys and values of all tasks together are the state."""
        return max(1, self.state_mb * 1_000_000 // (VALUE_BYTES + KEY_BYTES) // self.tasks)


async def make_topics(connection: Connection, load: Load, *, input: str, output: str, changelog: str) -> None:
    """Creates the three topics of an application."""
    from aiokafka.admin import NewTopic

    settings = {input: BROKER_TIME, output: BROKER_TIME, changelog: CHANGELOG}
    async with admin_client(connection) as admin:
        await admin.create_topics([NewTopic(name, load.tasks, 1, topic_configs=each) for name, each in settings.items()])


async def load_state(connection: Connection, load: Load, changelog: str) -> int:
    """Writes each key once to the changelog, with a count of 0: the state of an
    application that ran before. Returns the number of records.
    """

    noise = random.Random(1).randbytes(1 << 16)

    def record(partition: int, number: int) -> Unsent:
        start = number * 31 % (len(noise) - VALUE_BYTES)
        return key_of(partition, number), bytes(COUNT_BYTES) + noise[start : start + VALUE_BYTES - COUNT_BYTES], [], None

    async with writer(connection, max_batch_size=BATCH_BYTES, request_timeout_ms=60_000) as producer:
        await producer.partitions_for(changelog)
        for partition in range(load.tasks):
            for first in range(0, load.keys, RECORDS_AT_ONCE):
                numbers = range(first, min(load.keys, first + RECORDS_AT_ONCE))
                await acknowledged(producer.send_batches(TopicPartition(changelog, partition), (record(partition, number) for number in numbers)))
    return load.keys * load.tasks


@attrs.define
class Outside:
    """The observations so far. `tasks[p]` is partition p."""

    tasks: list[TaskWaits]
    instances: set[str] = attrs.field(factory=set)
    """Instances that have answered."""
    behind_ms: int = 0
    """Delay of the feeder behind its rate."""

    def owners(self) -> dict[str, int]:
        """Instance -> number of tasks that it answered last."""
        counts: dict[str, int] = {}
        for task in self.tasks:
            if task.owner is not None:
                counts[task.owner] = counts.get(task.owner, 0) + 1
        return counts

    def last_move_ms(self) -> int:
        return max((task.owners[-1].at_ms for task in self.tasks if task.owners), default=0)

    def longest_open_ms(self, now_ms: int) -> int:
        """Longest wait of an open input."""
        return max(task.open_for_ms(now_ms) for task in self.tasks)

    def answered_all_once(self) -> bool:
        return all(task.owners for task in self.tasks)


@contextlib.asynccontextmanager
async def feeding(connection: Connection, load: Load, *, input: str, output: str) -> AsyncIterator[Outside]:
    """Feeds and observes until the block ends."""
    outside = Outside(tasks=[TaskWaits() for _ in range(load.tasks)])
    reading = reader(connection, auto_offset_reset="earliest", fetch_max_wait_ms=20)
    async with reading as consumer, writer(connection) as producer:
        partitions = [TopicPartition(topic, partition) for topic in (input, output) for partition in range(load.tasks)]
        consumer.assign(partitions)
        for partition in partitions:
            consumer.seek(partition, 0)
        jobs = [asyncio.ensure_future(_feed(producer, load, input, outside)), asyncio.ensure_future(_watch(consumer, input, outside))]
        try:
            yield outside
            for job in jobs:
                if job.done():
                    job.result()
        finally:
            for job in jobs:
                job.cancel()
            await asyncio.gather(*jobs, return_exceptions=True)


async def _feed(producer: Any, load: Load, topic: str, outside: Outside) -> None:
    """Sends each task's records at even intervals, tasks in turn."""
    begun_s, number, apart_s = time.monotonic(), 0, 1 / (load.per_s * load.tasks)
    sent: Any = None
    while True:
        turn, partition = divmod(number, load.tasks)
        sent = await producer.send(topic, b"", key=key_of(partition, turn * 7_919 % load.keys), partition=partition)
        number += 1
        ahead_s = begun_s + number * apart_s - time.monotonic()
        outside.behind_ms = int(max(0.0, -ahead_s) * 1_000)
        if ahead_s > 0:
            await asyncio.sleep(ahead_s)
        if sent.done():
            sent.result()


async def _watch(consumer: Any, input: str, outside: Outside) -> None:
    while True:
        for tp, records in (await consumer.getmany(timeout_ms=1_000)).items():
            for record in records:
                if tp.topic == input:
                    outside.tasks[tp.partition].asked(record.offset, record.timestamp_ms)
                    continue
                partition, offset, instance, _ = record.value.decode().split(" ")
                outside.instances.add(instance)
                outside.tasks[int(partition)].answered(int(offset), Answer(record.timestamp_ms, instance))
