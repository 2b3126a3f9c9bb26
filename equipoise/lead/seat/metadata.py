"""What the brokers say of the topics that a group reads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import attrs

from equipoise.kafka.client import FIRST_ANSWER_S, Admin
from equipoise.kafka.connection import Connection
from equipoise.kafka.group_client import CLIENT_ID
from equipoise.kafka.metadata_requests import DescribeTopics


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
        self._connection = connection
        self._admin: Admin | None = None
        self._known: tuple[frozenset[str], float, SeatTopicMetadata] | None = None

    async def known(self, topics: Collection[str], most_s: float) -> SeatTopicMetadata:
        """Metadata of these topics that is at most `most_s` old: a generation waits for it. Raises
        KafkaError.
        """
        if self._known is not None:
            asked, at_s, found = self._known
            if asked == frozenset(topics) and self._monotonic_s() - at_s <= most_s:
                return found
        return await self.ask(topics)

    async def ask(self, topics: Collection[str]) -> SeatTopicMetadata:
        """Metadata of these topics, asked for now. Raises KafkaError."""
        if not topics:
            return SeatTopicMetadata(counts={}, racks={})
        if self._admin is None:
            admin = self._connection.clients.admin(client_id=CLIENT_ID)
            await admin.start(within_s=FIRST_ANSWER_S)
            self._admin = admin
        metadata, _ = await described_topics(self._admin, topics)
        if metadata.counts.keys() == set(topics):  # a topic that is missing may be there a moment later
            self._known = frozenset(topics), self._monotonic_s(), metadata
        return metadata

    async def close(self) -> None:
        if self._admin is not None:
            await self._admin.stop()
            self._admin = None


async def described_topics(admin: Admin, topics: Collection[str]) -> tuple[SeatTopicMetadata, dict[str, bytes]]:
    """Asks the brokers about these topics. Returns the ids of those that exist, too: topic -> id.
    Raises KafkaError.
    """
    answer = (await admin.ask(DescribeTopics(sorted(topics)))).to_object()
    rack_of = {each["node_id"]: each["rack"] for each in answer["brokers"]}
    found = {each["topic"]: each for each in answer["topics"] if not each["error_code"] and each["partitions"]}
    racks = {name: known for name, each in found.items() if (known := _replica_racks(each["partitions"], rack_of))}
    metadata = SeatTopicMetadata(counts={name: len(each["partitions"]) for name, each in found.items()}, racks=racks)
    return metadata, {name: each["topic_id"] for name, each in found.items() if "topic_id" in each}


def _replica_racks(partitions: Sequence[Mapping[str, Any]], rack_of: Mapping[int, str]) -> dict[int, tuple[str, ...]]:
    racks = {each["partition"]: tuple(sorted({rack_of[node] for node in each["replicas"] if rack_of.get(node)})) for each in partitions}
    return {partition: known for partition, known in sorted(racks.items()) if known}
