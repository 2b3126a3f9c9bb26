"""The topics of a log: created with the right settings, refused with wrong ones, and opened once."""

from __future__ import annotations

import asyncio

import pytest

from equipoise.events.errors import InputError
from equipoise.events.facts import LogOpened
from equipoise.kafka.connection import Connection
from equipoise.kafka.started_clients import admin_client, writer
from equipoise.log.kafka.envelope import pack_fact
from equipoise.log.kafka.log_opening import NotThereError, first_record, open_partitions, read_opening
from equipoise.log.kafka.log_topics import MUST_BE, Topics
from equipoise.log.kafka.topic_making import ensure_topics, partition_count


@pytest.mark.smoke
async def test_log_is_opened_once_by_several_workers(bootstrap: str, prefix: str) -> None:
    connection, topics = Connection(bootstrap=bootstrap), Topics(prefix)
    with pytest.raises(NotThereError, match="start a worker"):
        await read_opening(connection, topics)
    await ensure_topics(connection, topics, partitions=2)
    first, second = await asyncio.gather(open_partitions(connection, topics), open_partitions(connection, topics))
    assert first == second == await read_opening(connection, topics)
    assert first.partitions == 2
    assert await partition_count(connection, topics.decisions) == 2
    await ensure_topics(connection, topics, partitions=5)  # an existing log stays as it is
    assert await open_partitions(connection, topics) == first


async def test_topics_with_wrong_settings_are_refused(bootstrap: str, prefix: str) -> None:
    from aiokafka.admin import NewTopic

    connection, topics = Connection(bootstrap=bootstrap), Topics(prefix)
    async with admin_client(connection) as admin:
        await admin.create_topics([NewTopic(topics.facts, 1, 1)])
    with pytest.raises(InputError, match=rf"{topics.facts} has message.timestamp.type=CreateTime .*, and holds no record: .* --delete"):
        await ensure_topics(connection, topics)
    async with writer(connection) as producer:
        await producer.send_and_wait(topics.facts, b"of somebody", partition=0)
    with pytest.raises(InputError, match=rf"topic {topics.facts} has message.timestamp.type=CreateTime and needs LogAppendTime: kafka-configs.sh"):
        await ensure_topics(connection, topics)


async def test_topic_that_takes_no_long_event_is_refused(bootstrap: str, prefix: str) -> None:
    connection, topics = Connection(bootstrap=bootstrap), Topics(prefix)
    await ensure_topics(connection, topics)
    async with admin_client(connection) as admin:
        (found,) = (await admin.topic_configs([topics.facts])).values()
        assert found["max.message.bytes"] == "1048588"
        await admin.set_topic_configs(topics.facts, {**MUST_BE["facts"], "max.message.bytes": "500000"})
    await open_partitions(connection, topics)
    with pytest.raises(InputError, match=r"has max.message.bytes=500000 and needs at least 1008200: kafka-configs.sh .* max.message.bytes=1008200"):
        await ensure_topics(connection, topics)


async def test_unreachable_broker_is_named() -> None:
    with pytest.raises(InputError, match=r"bootstrap: no broker answers at 127\.0\.0\.1:1"):
        await read_opening(Connection(bootstrap="127.0.0.1:1"), Topics("x"))


async def test_log_exists_once_every_partition_is_open(bootstrap: str, prefix: str) -> None:
    """A worker that was killed while opening a log has opened its last partitions. Members do not
    write yet, and the next worker continues with the same log id.
    """

    connection, topics = Connection(bootstrap=bootstrap), Topics(prefix)
    await ensure_topics(connection, topics, partitions=3)
    begun = LogOpened(log_id="begun", partitions=3)
    async with writer(connection) as producer:
        await producer.send_and_wait(topics.facts, pack_fact(begun), key=b"", partition=2)
    with pytest.raises(NotThereError):
        await read_opening(connection, topics)
    assert await open_partitions(connection, topics) == begun
    assert [await first_record(connection, topics, partition) for partition in range(3)] == [begun] * 3
    assert await read_opening(connection, topics) == begun
