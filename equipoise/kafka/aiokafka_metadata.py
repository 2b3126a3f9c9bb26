"""Metadata: requests that make no topic, and what a client knows of a partition.

By default brokers make a topic when a client asks for it by name (`auto.create.topics.enable`),
with their own settings and number of partitions. aiokafka's clients allow that with each request
and have no option against it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from aiokafka.client import AIOKafkaClient
from aiokafka.cluster import ClusterMetadata
from aiokafka.protocol.metadata import MetadataRequest

from equipoise.kafka.admin.broker_choice import SILENT_S
from equipoise.kafka.client import NO_ANSWER

_LOG = logging.getLogger("aiokafka")
CONNECTED_S = 10.0
"""How long a connection may take, as Kafka's `socket.connection.setup.timeout.ms`. The client makes
one after the other.
"""


def restrain(client: AIOKafkaClient) -> None:
    """From here on no request of `client` makes a topic: one that does not exist is unknown to it,
    as on brokers without automatic creation. One silent broker holds up neither what others know
    nor connections to them.
    """
    connect = client._get_conn

    async def connection(node: Any, **options: Any) -> Any:
        try:
            async with asyncio.timeout(CONNECTED_S):
                found = await connect(node, **options)
        except TimeoutError:
            _LOG.error("Unable connect to node with id %s: %s", node, f"{NO_ANSWER} {CONNECTED_S:.0f} s")  # as the client itself
            client.force_metadata_update()
            return None
        if found is not None and "send" not in vars(found):  # connections are kept, and found again
            send = found.send

            def send_without_creation(request: Any, *expects: Any, **options: Any) -> Any:
                if isinstance(request, MetadataRequest):
                    request._allow_auto_topic_creation = False
                    if len(client.cluster.brokers()) > 1:
                        return asyncio.wait_for(send(request, *expects, **options), SILENT_S)
                return send(request, *expects, **options)

            found.send = send_without_creation
        return found

    client._get_conn = connection


def replica_racks(cluster: ClusterMetadata, topic: str) -> dict[int, tuple[str, ...]]:
    """Returns partition -> racks of its replicas, in order. Without those of which no rack is
    known.
    """
    rack_of = {broker.nodeId: broker.rack for broker in cluster.brokers()}
    found = {}
    for partition, described in sorted(cluster._partitions.get(topic, {}).items()):  # aiokafka gives replicas no other way
        racks = {str(rack_of[node]) for node in described.replicas if rack_of.get(node)}
        if racks:
            found[partition] = tuple(sorted(racks))
    return found
