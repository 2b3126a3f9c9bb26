"""A worker opens a log while a broker does not know yet that its topics were made."""

from __future__ import annotations

from equipoise.log.kafka.log_opening import open_partitions, read_opening
from equipoise.log.kafka.log_topics import MUST_BE, Topics
from equipoise.testing.simulated.connection import SimulatedConnection
from equipoise.testing.simulated.kafka.cluster import Cluster
from equipoise.testing.simulated.virtual_loops import S_US
from tests.simulated.test_application_topics import simulate
from tests.support.cluster_faults import heal_broker, isolate_broker


def test_log_is_opened_whichever_broker_is_asked() -> None:
    async def test(cluster: Cluster, connection: SimulatedConnection) -> None:
        for number in range(8):
            topics = Topics(f"p{number}")
            isolate_broker(cluster, 1)
            cluster.scheduler.call_later(3 * S_US, heal_broker, cluster, 1)
            for what, settings in MUST_BE.items():
                cluster.create_topic(topics.name_of(what), 2, 1, settings)
            opened = await open_partitions(connection, topics)
            assert opened.partitions == 2
            assert await read_opening(connection, topics, timeout_s=60) == opened

    simulate(test)
