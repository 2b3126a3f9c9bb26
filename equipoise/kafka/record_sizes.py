"""The size of the records of topics, by what the brokers keep of them."""

from __future__ import annotations

from collections.abc import Collection

from equipoise.kafka.client import TopicPartition
from equipoise.kafka.connection import Connection
from equipoise.kafka.metadata_requests import DescribeLogDirs
from equipoise.kafka.started_clients import admin_client, reader


async def mean_record_bytes(connection: Connection, topics: Collection[str]) -> float | None:
    """Returns the bytes on disk of the topics' partitions, divided by the offsets that they span;
    None: the brokers do not say, or nothing is in them. Raises InputError, KafkaError, OSError.
    """
    async with admin_client(connection) as admin, reader(connection) as consumer:
        partitions = [
            TopicPartition(described["topic"], each["partition"])
            for described in await admin.describe_topics(sorted(topics))
            for each in described["partitions"]
        ]
        sizes: dict[TopicPartition, int] = {}
        for node in admin.nodes():
            for place in (await admin.ask(DescribeLogDirs(partitions), node)).to_object()["log_dirs"]:
                for held in place["topics"]:
                    for each in held["partitions"]:
                        of = TopicPartition(held["topic"], each["partition"])
                        sizes[of] = max(sizes.get(of, 0), each["size_bytes"])
        known = sorted(sizes)
        begins, ends = await consumer.beginning_offsets(known), await consumer.end_offsets(known)
    records = sum(ends[each] - begins[each] for each in known)
    return sum(sizes.values()) / records if records else None
