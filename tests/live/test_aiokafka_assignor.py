"""`lag_aware` in ordinary consumer groups of aiokafka, on a real broker: who is assigned what, and
that everything is read once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.admin import NewTopic

from equipoise.aiokafka import LagAwareAssignor, LagFetcher
from equipoise.kafka.connection import Connection
from equipoise.kafka.started_clients import admin_client, writer

SOON_S = 30.0


async def make_topics(bootstrap: str, records: Mapping[str, list[int]]) -> None:
    """Topics with so many records in each partition."""
    async with admin_client(Connection(bootstrap=bootstrap)) as admin:
        await admin.create_topics([NewTopic(topic, len(counts), 1) for topic, counts in records.items()])
    await write(bootstrap, records)


async def write(bootstrap: str, records: Mapping[str, list[int]]) -> None:
    async with writer(Connection(bootstrap=bootstrap)) as producer:
        for topic, counts in records.items():
            for partition, count in enumerate(counts):
                for number in range(count):
                    await producer.send(topic, f"{topic}-{partition}-{number}".encode(), partition=partition)


@contextlib.asynccontextmanager
async def member(
    bootstrap: str, group: str, *topics: str, cross_topic: bool = False, lags_from: str | None = None, timeout_s: float = 10.0
) -> AsyncIterator[AIOKafkaConsumer]:
    """A consumer of the group that begins at the beginning and commits on request.
    `lags_from`: another address for lags.
    """
    strategy = LagAwareAssignor(
        group_id=group, connection=lags_from or bootstrap, auto_offset_reset="earliest", cross_topic=cross_topic, timeout_s=timeout_s
    )
    consumer = AIOKafkaConsumer(
        *topics,
        group_id=group,
        bootstrap_servers=bootstrap,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        heartbeat_interval_ms=200,
        metadata_max_age_ms=1_000,
        partition_assignment_strategy=[strategy],
    )
    await consumer.start()
    try:
        yield consumer
    finally:
        await consumer.stop()


def names(consumer: AIOKafkaConsumer) -> set[str]:
    return {f"{at.topic}-{at.partition}" for at in consumer.assignment()}


async def shared(expected: int, *consumers: AIOKafkaConsumer, most: int | None = None) -> list[set[str]]:
    """What each has, once all `expected` partitions are shared out and no consumer has more than
    `most`.
    """
    end = asyncio.get_running_loop().time() + SOON_S
    while True:
        assigned = [names(consumer) for consumer in consumers]
        count = sum(map(len, assigned))
        if count == expected == len(set().union(*assigned)) and all(len(one) <= (most or expected) for one in assigned):
            return assigned
        assert asyncio.get_running_loop().time() < end, f"not shared out: {assigned}"
        await asyncio.sleep(0.1)


async def read(consumer: AIOKafkaConsumer, count: int) -> list[str]:
    """So many records, and their offsets committed."""
    values: list[str] = []
    end = asyncio.get_running_loop().time() + SOON_S
    while len(values) < count:
        assert asyncio.get_running_loop().time() < end, f"{len(values)} of {count} records came"
        for batch in (await consumer.getmany(timeout_ms=500)).values():
            values.extend(record.value.decode() for record in batch)
    await consumer.commit({tp: await consumer.position(tp) for tp in consumer.assignment()})
    return values


@pytest.mark.smoke
async def test_two_consumers_share_a_topic_by_count_and_then_by_lag(bootstrap: str, prefix: str) -> None:
    topic = f"{prefix}-orders"
    await make_topics(bootstrap, {topic: [100, 60, 50]})
    fetcher = LagFetcher(group_id=prefix, connection=bootstrap, auto_offset_reset="earliest")
    partitions = [(topic, number) for number in range(3)]
    assert await fetcher.fetch(partitions) == {(topic, 0): 100, (topic, 1): 60, (topic, 2): 50}
    latest = LagFetcher(group_id=prefix, connection=bootstrap)
    assert await latest.fetch(partitions) == dict.fromkeys(partitions, 0), "nothing committed: a reader of the latest begins at the end"
    async with member(bootstrap, prefix, topic) as first:
        await shared(3, first)
        async with member(bootstrap, prefix, topic) as second:
            assigned = await shared(3, first, second, most=2)
            assert sorted(map(sorted, assigned)) == [[f"{topic}-0"], [f"{topic}-1", f"{topic}-2"]], "100 records here, 110 there"
            by_count = {len(names(consumer)): consumer for consumer in (first, second)}
            one, two = await asyncio.gather(read(by_count[1], 100), read(by_count[2], 110))
            assert len({*one, *two}) == 210, "every record once"
    assert await fetcher.fetch(partitions) == dict.fromkeys(partitions, 0), "all was read and committed"


async def test_rebalance_uses_the_lags_of_its_time(bootstrap: str, prefix: str) -> None:
    topic = f"{prefix}-orders"
    await make_topics(bootstrap, {topic: [5, 5, 5, 5]})
    async with member(bootstrap, prefix, topic) as first:
        await read(first, 20)
        await write(bootstrap, {topic: [0, 300, 200, 10]})
        async with member(bootstrap, prefix, topic) as second:
            assigned = await shared(4, first, second, most=2)
            assert sorted(map(sorted, assigned)) == [[f"{topic}-0", f"{topic}-1"], [f"{topic}-2", f"{topic}-3"]], "300 records here, 210 there"


async def test_joining_consumer_takes_no_more_than_its_share(bootstrap: str, prefix: str) -> None:
    topic = f"{prefix}-idle"
    await make_topics(bootstrap, {topic: [0] * 9})
    async with member(bootstrap, prefix, topic) as first, member(bootstrap, prefix, topic) as second:
        before = await shared(9, first, second, most=5)
        async with member(bootstrap, prefix, topic) as third:
            after = await shared(9, first, second, third, most=3)
            assert all(now <= had for now, had in zip(after, before, strict=False)), "without lag no staying consumer gains a partition"
        again = await shared(9, first, second, most=5)
        assert all(now >= had for now, had in zip(again, after, strict=False))


async def test_consumers_with_different_subscriptions_get_their_topics_only(bootstrap: str, prefix: str) -> None:
    both, own = f"{prefix}-both", f"{prefix}-own"
    await make_topics(bootstrap, {both: [9, 8], own: [1, 1]})
    async with member(bootstrap, prefix, both) as first, member(bootstrap, prefix, both, own) as second:
        assigned = await shared(4, first, second, most=3)
        assert {name for name in assigned[0] if name.startswith(own)} == set()
        assert [len([name for name in one if name.startswith(both)]) for one in assigned] == [1, 1]


@pytest.mark.parametrize(("cross_topic", "counts"), [(False, [0, 4]), (True, [2, 2])])
async def test_cross_topic_assignment_shares_small_topics(bootstrap: str, prefix: str, cross_topic: bool, counts: list[int]) -> None:
    topics = [f"{prefix}-{number}" for number in range(4)]
    await make_topics(bootstrap, {topic: [10 * number] for number, topic in enumerate(topics)})
    async with member(bootstrap, prefix, *topics, cross_topic=cross_topic) as first:
        await shared(4, first)
        async with member(bootstrap, prefix, *topics, cross_topic=cross_topic) as second:
            await read_until_both_have_joined(first, second)
            assert sorted(map(len, await shared(4, first, second, most=max(counts)))) == counts


async def read_until_both_have_joined(first: AIOKafkaConsumer, second: AIOKafkaConsumer) -> None:
    """Only the generation of the group distinguishes a consumer without partitions from one that
    has not joined yet.
    """
    end = asyncio.get_running_loop().time() + SOON_S
    while first._coordinator.generation != second._coordinator.generation or first._coordinator.generation < 2:
        assert asyncio.get_running_loop().time() < end
        await asyncio.sleep(0.1)


async def test_unknown_lags_are_logged_and_counts_are_balanced(bootstrap: str, prefix: str, caplog: pytest.LogCaptureFixture) -> None:
    topic = f"{prefix}-orders"
    await make_topics(bootstrap, {topic: [100, 60, 50, 1]})
    with caplog.at_level(logging.WARNING):
        async with (
            member(bootstrap, prefix, topic, lags_from="127.0.0.1:1", timeout_s=1.0) as first,
            member(bootstrap, prefix, topic, lags_from="127.0.0.1:1", timeout_s=1.0) as second,
        ):
            assert [len(one) for one in await shared(4, first, second, most=2)] == [2, 2]
    assert f"group {prefix}: cannot fetch lags" in caplog.text
    assert "dealing by count alone" in caplog.text
    assert await LagFetcher(group_id=prefix, connection=bootstrap).fetch([]) == {}
    missing = LagFetcher(group_id=prefix, connection=bootstrap, timeout_s=2.0)
    assert missing.fetch_now([(f"{prefix}-nowhere", 0)]) is None
