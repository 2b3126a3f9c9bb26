"""What brokers do by default, and tests of others switch off or never meet: they make topics that a
client asks for, and topics are compressed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from operator import attrgetter, itemgetter
from typing import Any

import pytest
from aiokafka.errors import KafkaError

from equipoise.kafka.client import NewTopic, TopicPartition
from equipoise.kafka.connection import Connection
from equipoise.kafka.started_clients import admin_client, reader, writer
from equipoise.lead.seat.metadata import MetadataClient
from equipoise.log.kafka.log_opening import NotThereError, read_opening
from equipoise.log.kafka.log_topics import Topics
from equipoise.log.kafka.topic_making import described_topics, partition_count


async def _is_there(connection: Connection, topic: str) -> bool:
    await asyncio.sleep(0.3)  # a topic is made after the answer to whoever asks
    return await partition_count(connection, topic) > 0


@pytest.mark.smoke
async def test_no_client_makes_a_topic_by_asking_for_it(bootstrap: str, prefix: str) -> None:
    connection = Connection(bootstrap=bootstrap)
    with pytest.raises(NotThereError):
        await read_opening(connection, Topics(prefix))
    async with reader(connection) as consumer:
        consumer.assign([TopicPartition(f"{prefix}.consumer", 0)])
        with pytest.raises((KafkaError, TimeoutError)):
            await asyncio.wait_for(consumer.end_offsets([TopicPartition(f"{prefix}.consumer", 0)]), 2.0)
    async with writer(connection, request_timeout_ms=1_000) as producer:
        with pytest.raises((KafkaError, TimeoutError)):
            await asyncio.wait_for(producer.partitions_for(f"{prefix}.producer"), 2.0)
    seat = MetadataClient(connection, time.monotonic)
    try:
        assert not (await seat.ask([f"{prefix}.seat"])).counts
    finally:
        await seat.close()
    for topic in (f"{prefix}.facts", f"{prefix}.decisions", f"{prefix}.consumer", f"{prefix}.producer", f"{prefix}.seat"):
        assert not await _is_there(connection, topic), topic
    from aiokafka import AIOKafkaConsumer

    async with AIOKafkaConsumer(f"{prefix}.made", **connection.options()):  # the brokers do make topics
        assert await _is_there(connection, f"{prefix}.made")


@pytest.mark.smoke
@pytest.mark.parametrize("as_rows", [False, True])
async def test_topics_of_every_compression_are_read(bootstrap: str, prefix: str, as_rows: bool) -> None:
    connection = Connection(bootstrap=bootstrap)
    codecs = ("uncompressed", "gzip", "snappy", "lz4", "zstd")
    places = [TopicPartition(f"{prefix}.{codec}", 0) for codec in codecs]
    async with admin_client(connection) as admin:
        await admin.create_topics([NewTopic(tp.topic, 1, 1, {"compression.type": codec}) for tp, codec in zip(places, codecs, strict=True)])
        await described_topics(admin, [tp.topic for tp in places])
    async with writer(connection) as producer:
        for tp in places:
            for number in range(100):
                await producer.send(tp.topic, b"%d" % number, key=b"k" * 50, partition=0)
    value_of: Callable[[Any], bytes] = itemgetter(1) if as_rows else attrgetter("value")
    found: dict[str, list[bytes]] = {tp.topic: [] for tp in places}
    async with reader(connection, as_rows=as_rows) as consumer:
        consumer.assign(places)
        for tp in places:
            consumer.seek(tp, 0)
        async with asyncio.timeout(20):
            while any(len(each) < 100 for each in found.values()):
                for tp, records in (await consumer.getmany(*places, timeout_ms=500)).items():
                    found[tp.topic] += map(value_of, records)
    assert all(each == [b"%d" % number for number in range(100)] for each in found.values())
