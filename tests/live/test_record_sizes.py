"""The size of the records of topics, from what a real broker keeps of them."""

from __future__ import annotations

import os

from equipoise.kafka.client import NewTopic
from equipoise.kafka.connection import Connection
from equipoise.kafka.record_sizes import mean_record_bytes
from equipoise.kafka.started_clients import admin_client, writer


async def test_mean_size_of_records_is_told_by_the_brokers(bootstrap: str, prefix: str) -> None:
    connection, topics = Connection(bootstrap=bootstrap), [f"{prefix}-a", f"{prefix}-b"]
    async with admin_client(connection) as admin:
        assert await admin.create_topics([NewTopic(name, 2, 1) for name in topics]) == {}
    assert await mean_record_bytes(connection, topics) is None, "nothing is in them"
    assert await mean_record_bytes(connection, [f"{prefix}-none"]) is None
    async with writer(connection) as producer:
        for number in range(200):
            await producer.send(topics[number % 2], os.urandom(1_000), partition=number // 2 % 2)
        await producer.flush()
    found = await mean_record_bytes(connection, topics)
    assert found is not None
    assert 1_000 < found < 1_200
