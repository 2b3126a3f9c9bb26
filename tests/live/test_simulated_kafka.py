"""The simulated Kafka answers as a real broker does: the same random operations, answer for answer.
"""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from aiokafka import TopicPartition as TheirPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete

from equipoise.events.log.kafka.client import Clients, NewTopic, TopicPartition
from equipoise.events.log.kafka.connection import Connection
from tests.simulated.kafka.clients import SimulatedClients
from tests.simulated.kafka.cluster import Cluster
from tests.simulated.loops import S_US, Scheduler, VirtualLoop
from tests.simulated.script import Script

STEPS = 100
VIRTUAL_S = 36_000


class RealWorld:
    """A broker, of which only the topics of one prefix are touched."""

    def __init__(self, bootstrap: str, admin: AIOKafkaAdminClient) -> None:
        self.clients = Connection(bootstrap=bootstrap).clients
        self._admin = admin

    async def create(self, topic: NewTopic) -> None:
        while True:
            answer = await self._admin.create_topics([topic])
            if not answer.topic_errors[0][1]:
                break
            await asyncio.sleep(0.1)  # the former one is being deleted
        while topic.name not in await self._admin.list_topics():  # noqa: ASYNC110
            await asyncio.sleep(0.05)

    async def delete(self, topic: str) -> None:
        await self._admin.delete_topics([topic])
        while topic in await self._admin.list_topics():  # noqa: ASYNC110
            await asyncio.sleep(0.05)

    async def delete_records(self, place: TopicPartition, before: int) -> None:
        await self._admin.delete_records({TheirPartition(*place): RecordsToDelete(before)})


class SimulatedWorld:
    def __init__(self, cluster: Cluster) -> None:
        self.clients: Clients = SimulatedClients(cluster, "script")
        self._cluster = cluster

    async def create(self, topic: NewTopic) -> None:
        self._cluster.create_topic(topic.name, topic.num_partitions, topic.replication_factor, topic.topic_configs)

    async def delete(self, topic: str) -> None:
        self._cluster.delete_topic(topic)

    async def delete_records(self, place: TopicPartition, before: int) -> None:
        self._cluster.delete_records(place, before)


async def on_a_broker(bootstrap: str, prefix: str, seed: int) -> list[str]:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    script = Script(RealWorld(bootstrap, admin), seed, prefix)
    try:
        return await script.play(STEPS)
    except BaseException:
        print("\n".join(script.seen))
        raise
    finally:
        await admin.close()


def in_virtual_time(prefix: str, seed: int) -> list[str]:
    scheduler = Scheduler(seed)
    loop = VirtualLoop(scheduler, "script")
    script = Script(SimulatedWorld(Cluster(scheduler, Random(seed))), seed, prefix)
    task = loop.create_task(script.play(STEPS))
    try:
        scheduler.run(VIRTUAL_S * S_US, task.done)
        return task.result() if task.done() else [*script.seen, "it hangs"]
    finally:
        scheduler.dispose()


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=[pytest.mark.smoke] if seed == 0 else []) for seed in range(10)])
async def test_simulated_kafka_answers_as_a_broker_does(seed: int, bootstrap: str, prefix: str) -> None:
    simulated = await asyncio.to_thread(in_virtual_time, prefix, seed)
    assert simulated == await on_a_broker(bootstrap, prefix, seed)
