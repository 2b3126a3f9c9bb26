"""What the brokers say of the topics that a group reads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import attrs

from equipoise.kafka.aiokafka_metadata import replica_racks
from equipoise.kafka.connection import Connection
from equipoise.kafka.consumer_groups import connected
from equipoise.seat.group_client import CLIENT_ID


@attrs.frozen(kw_only=True)
class SeatTopicMetadata:
    """`counts`: topic -> number of partitions; topics that do not exist are absent. `racks`: topic
    -> partition -> racks of its replicas, where brokers have racks.
    """

    counts: Mapping[str, int]
    racks: Mapping[str, Mapping[int, tuple[str, ...]]]


class MetadataClient:
    """Asks for metadata. Connects with the first request. `monotonic_s`: a clock."""

    def __init__(self, connection: Connection, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._options = connection.options() | {"client_id": CLIENT_ID}
        self._client: Any = None
        self._known: tuple[frozenset[str], float, SeatTopicMetadata] | None = None

    async def known(self, topics: Collection[str], most_s: float) -> SeatTopicMetadata:
        """Metadata of these topics that is at most `most_s` old: a generation waits for it. Raises
        KafkaError or OSError.
        """
        if self._known is not None:
            asked, at_s, found = self._known
            if asked == frozenset(topics) and self._monotonic_s() - at_s <= most_s:
                return found
        return await self.ask(topics)

    async def ask(self, topics: Collection[str]) -> SeatTopicMetadata:
        """Metadata of these topics, asked for now. Raises KafkaError or OSError."""
        if not topics:
            return SeatTopicMetadata(counts={}, racks={})
        if self._client is None:
            self._client = await connected(self._options)
        await self._client.set_topics(sorted(topics))
        await self._client.force_metadata_update()
        cluster = self._client.cluster
        found = {topic: cluster.partitions_for_topic(topic) for topic in sorted(topics)}
        racks = {topic: known for topic in sorted(topics) if (known := replica_racks(cluster, topic))}
        metadata = SeatTopicMetadata(counts={topic: len(partitions) for topic, partitions in found.items() if partitions}, racks=racks)
        if metadata.counts.keys() == set(topics):  # a topic that is missing may be there a moment later
            self._known = frozenset(topics), self._monotonic_s(), metadata
        return metadata

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()
            self._client = None
