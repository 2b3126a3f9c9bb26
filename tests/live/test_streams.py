"""The Kafka Streams application that other tests and the comparison with peers start: it counts,
keeps its counts, and leaves when it is asked to.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from equipoise.kafka.connection import Connection
from tests.live.kafka import admin_client, reader, topic_names, writer
from tests.live.streams import StreamsApplication, changelog_of

PARTITIONS = 2


@pytest.mark.smoke
async def test_streams_application_keeps_its_counts_over_a_restart(bootstrap: str, prefix: str, tmp_path: Path) -> None:
    from aiokafka import TopicPartition
    from aiokafka.admin import NewTopic

    into, out = f"{prefix}-in", f"{prefix}-out"
    connection = Connection(bootstrap=bootstrap)
    async with admin_client(connection) as admin, writer(connection) as producer, reader(connection, auto_offset_reset="earliest") as consumer:
        await admin.create_topics([NewTopic(topic, PARTITIONS, 1) for topic in (into, out)])
        consumer.assign([TopicPartition(out, partition) for partition in range(PARTITIONS)])
        for turn in range(2):
            for partition in range(PARTITIONS):
                await producer.send_and_wait(into, b"", key=b"k", partition=partition)
            with StreamsApplication(bootstrap, prefix, "i1", tmp_path, input=into, output=out) as application:
                said: set[str] = set()
                async with asyncio.timeout(60):
                    while len(said) < PARTITIONS:
                        found = await consumer.getmany(timeout_ms=500)
                        said |= {(record.value or b"").decode() for records in found.values() for record in records}
                assert said == {f"{partition} {turn} i1 {turn + 1}" for partition in range(PARTITIONS)}
                application.end("leave")
                await asyncio.to_thread(application.process.wait, 60)
                assert "closed" in application.said()
        assert changelog_of(prefix) in await topic_names(admin)
