"""Brokers that ask clients to authenticate again (KIP-368), which aiokafka does not: they close its
connections.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest
from aiokafka.admin import NewTopic

from equipoise.kafka.client import TopicPartition
from equipoise.kafka.connection import Connection
from tests.live.kafka import admin_client
from tests.live.secured import secured_broker

pytestmark = pytest.mark.slow
AFTER_MS = 1_500
"""Longer than a broker holds a fetch: what waits behind one would never be heard."""
FOR_S = 6.0


async def test_clients_go_on_over_other_connections(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    place, written = TopicPartition("numbers", 0), 0
    settings = {"connections.max.reauth.ms": str(AFTER_MS), "allow.everyone.if.no.acl.found": "true"}
    with secured_broker(tmp_path, "u", **settings) as broker:
        connection = Connection(**broker.settings("u"))  # type: ignore[arg-type]
        async with admin_client(connection) as admin:
            await admin.create_topics([NewTopic("numbers", 1, 1)])
        producer = connection.clients.producer(transactional_id="t")
        consumer = connection.clients.consumer(read_committed=True, group="g")
        await producer.start()
        await consumer.start()
        consumer.assign([place])
        consumer.seek(place, 0)
        loop, found = asyncio.get_running_loop(), []
        end_s = loop.time() + FOR_S
        while loop.time() < end_s:
            await producer.begin_transaction()
            await producer.send_and_wait("numbers", b"%d" % written, partition=0)
            await producer.send_offsets_to_transaction({place: written + 1}, "g")
            await producer.commit_transaction()
            written += 1
            found += [each.value for each in (await consumer.getmany(timeout_ms=0)).get(place, ())]
            await asyncio.sleep(0.05)
        while more := (await consumer.getmany(timeout_ms=2_000)).get(place):
            found += [each.value for each in more]
        assert found == [b"%d" % number for number in range(written)]
        assert await consumer.committed(place) == written
        await producer.stop()
        await consumer.stop()
    assert written > 10
    assert len([each for each in caplog.records if "closed" in each.getMessage()]) >= 3, "nothing was closed"
