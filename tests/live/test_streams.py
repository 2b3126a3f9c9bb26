"""The Kafka Streams application that other tests and the comparison with peers start: it counts, keeps its counts, and leaves when it is asked to."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.live.streams import StreamsApplication, changelog_of

PARTITIONS = 2


async def test_it_counts_and_goes_on_with_its_counts(bootstrap: str, prefix: str, tmp_path: Path) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
    from aiokafka.admin import AIOKafkaAdminClient, NewTopic

    into, out = f"{prefix}-in", f"{prefix}-out"
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    await admin.create_topics([NewTopic(topic, PARTITIONS, 1) for topic in (into, out)])
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap)
    consumer = AIOKafkaConsumer(out, bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    await producer.start()
    await consumer.start()
    try:
        for turn in range(2):
            for partition in range(PARTITIONS):
                await producer.send_and_wait(into, b"", key=b"k", partition=partition)
            with StreamsApplication(bootstrap, prefix, "i1", tmp_path, input=into, output=out) as application:
                said: set[str] = set()
                async with asyncio.timeout(60):
                    while len(said) < PARTITIONS:
                        said.add((await consumer.getone()).value.decode())
                assert said == {f"{partition} {turn} i1 {turn + 1}" for partition in range(PARTITIONS)}
                application.end("leave")
                await asyncio.to_thread(application.process.wait, 60)
                assert "closed" in application.said()
        assert changelog_of(prefix) in await admin.list_topics()
    finally:
        await consumer.stop()
        await producer.stop()
        await admin.close()
