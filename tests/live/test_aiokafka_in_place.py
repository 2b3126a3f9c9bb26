"""A consumer group of aiokafka under load, changed from a stock strategy to one of equipoise and
back, one consumer at a time: each record is read once.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.admin import NewTopic
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

from equipoise.aiokafka import BalancedAssignor, LoadBalancedAssignor, LoadFetcher
from equipoise.kafka.connection import Connection
from tests.live.kafka import admin_client, writer
from tests.live.test_restorer import until

PARTITIONS = 12
PER_SECOND = 200
Place = tuple[int, int]


class Reader:
    """A consumer that counts what it reads, and commits when it stops or the group rebalances."""

    def __init__(self, bootstrap: str, topic: str, strategy: Any, read: Counter[Place], **options: Any) -> None:
        self._consumer = AIOKafkaConsumer(
            topic,
            group_id=topic,
            bootstrap_servers=bootstrap,
            auto_offset_reset="earliest",
            heartbeat_interval_ms=200,
            partition_assignment_strategy=[strategy],
            **options,
        )
        self._read = read
        self._stopped = False
        self._reading: asyncio.Task[None]

    async def start(self) -> Reader:
        await self._consumer.start()
        self._reading = asyncio.ensure_future(self._go_on())
        return self

    async def _go_on(self) -> None:
        while not self._stopped:
            for records in (await self._consumer.getmany(timeout_ms=100)).values():
                self._read.update((record.partition, record.offset) for record in records)

    @property
    def has(self) -> set[int]:
        return {place.partition for place in self._consumer.assignment()}

    async def stop(self) -> None:
        self._stopped = True
        await self._reading
        await self._consumer.stop()


async def until_shared(*readers: Reader) -> list[set[int]]:
    """Until each partition has one reader, and all have equally many."""

    def shared() -> bool:
        has = [each.has for each in readers]
        return all(len(one) == PARTITIONS // len(readers) for one in has) and len(set().union(*has)) == PARTITIONS

    await until(shared)
    return [each.has for each in readers]


@pytest.mark.smoke
async def test_upgrade_and_back_under_load_reads_each_record_once(bootstrap: str, prefix: str) -> None:
    async with admin_client(Connection(bootstrap=bootstrap)) as admin:
        await admin.create_topics([NewTopic(prefix, PARTITIONS, 1)])
    read: Counter[Place] = Counter()
    sent: list[Place] = []
    done = asyncio.Event()

    async def load() -> None:
        async with writer(Connection(bootstrap=bootstrap)) as producer:
            while not done.is_set():
                appended = [await producer.send(prefix, b"x", partition=partition) for partition in range(PARTITIONS)]
                sent.extend((each.partition, each.offset) for each in await asyncio.gather(*appended))
                await asyncio.sleep(PARTITIONS / PER_SECOND)

    def stock() -> Any:
        return RoundRobinPartitionAssignor

    def ours() -> Any:
        return BalancedAssignor.in_place_of("roundrobin")()

    loading = asyncio.ensure_future(load())
    readers = [await Reader(bootstrap, prefix, stock(), read).start() for _ in range(3)]
    try:
        await until_shared(*readers)
        for strategy in (ours, stock):
            for number in range(3):
                await readers[number].stop()
                readers[number] = await Reader(bootstrap, prefix, strategy(), read).start()
                await until_shared(*readers)
            if strategy is ours:
                had = await until_shared(*readers)
                fourth = await Reader(bootstrap, prefix, ours(), read).start()
                kept = await until_shared(*readers, fourth)
                assert all(now < before for now, before in zip(kept, had, strict=False)), "each gives one up, and gets none"
                await fourth.stop()
                back = await until_shared(*readers)
                assert all(now > before for now, before in zip(back, kept, strict=False)), "and gets one"
        done.set()
        await loading
        await until(lambda: len(read) == len(sent))
    finally:
        done.set()
        await asyncio.gather(loading, *(each.stop() for each in readers))
    assert read == Counter(sent), "each once"


async def test_loads_are_what_was_written_of_late_and_what_is_left_to_read(bootstrap: str, prefix: str) -> None:
    async with admin_client(Connection(bootstrap=bootstrap)) as admin:
        await admin.create_topics([NewTopic(prefix, 3, 1)])
    async with writer(Connection(bootstrap=bootstrap)) as producer:
        for partition, count in enumerate((30, 10, 0)):
            for _ in range(count):
                await producer.send_and_wait(prefix, b"x", partition=partition)
    places = [(prefix, number) for number in range(3)]
    fetcher = LoadFetcher(group_id=prefix, connection=bootstrap, auto_offset_reset="earliest", timeout_s=10.0)
    assert await fetcher.fetch(places) == {(prefix, 0): 60, (prefix, 1): 20, (prefix, 2): 0}, "nothing was read"
    await asyncio.sleep(0.2)
    past = LoadFetcher(group_id=prefix, connection=bootstrap, window_s=0.1, timeout_s=10.0)
    assert await past.fetch(places) == dict.fromkeys(places, 0), "nothing of late, and a reader of the latest is behind nothing"
    assert await fetcher.fetch([]) == {}
    strategies = [LoadBalancedAssignor(group_id=prefix, connection=bootstrap, auto_offset_reset="earliest", timeout_s=10.0) for _ in range(2)]
    read: Counter[Place] = Counter()
    readers = [await Reader(bootstrap, prefix, each, read, enable_auto_commit=False).start() for each in strategies]
    try:
        await until(lambda: sorted(each.has for each in readers) in ([{0}, {1, 2}], [{1, 2}, {0}]))
    finally:
        await asyncio.gather(*(each.stop() for each in readers))
