"""Metadata: requests that make no topic, and what a client knows of a partition.

By default brokers make a topic when a client asks for it by name (`auto.create.topics.enable`),
with their own settings and number of partitions. aiokafka's clients allow that with each request
and have no option against it.
"""

from __future__ import annotations

from typing import Any

from aiokafka.client import AIOKafkaClient
from aiokafka.cluster import ClusterMetadata
from aiokafka.protocol.metadata import MetadataRequest


def forbid_topic_creation(client: AIOKafkaClient) -> None:
    """From here on no request of `client` makes a topic. A topic that does not exist is unknown to
    it, as on brokers without automatic creation.
    """
    connect = client._get_conn

    async def connection(*place: Any, **options: Any) -> Any:
        found = await connect(*place, **options)
        if found is not None and "send" not in vars(found):  # connections are kept, and found again
            send = found.send

            def send_without_creation(request: Any, *expects: Any, **options: Any) -> Any:
                if isinstance(request, MetadataRequest):
                    request._allow_auto_topic_creation = False
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
