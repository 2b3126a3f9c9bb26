"""How large the records of topics are, by what the brokers keep of them (DescribeLogDirs, KIP-113).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from aiokafka.protocol.types import Array, Boolean, Int16, Int32, Int64, Schema

from equipoise.kafka.client import TopicPartition
from equipoise.kafka.connection import Connection
from equipoise.kafka.declared_requests import TEXT, by_topic, declared, in_versions
from equipoise.kafka.started_clients import admin_client, reader


class DescribeLogDirs(
    in_versions(  # type: ignore[misc]  # aiokafka ships no types
        declared(
            35, 1,
            Schema(("topics", Array(("topic", TEXT), ("partitions", Array(Int32))))),
            Schema(("throttle_time_ms", Int32), ("log_dirs", Array(
                ("error_code", Int16), ("log_dir", TEXT),
                ("topics", Array(("topic", TEXT), ("partitions", Array(
                    ("partition", Int32), ("size_bytes", Int64), ("offset_lag", Int64), ("is_future", Boolean)))))))),
        )
    )
):  # fmt: skip
    """Bytes of the replicas of these partitions that a broker has. Without the right to describe
    the cluster the answer names none.
    """

    def __init__(self, partitions: Sequence[TopicPartition]) -> None:
        self._topics = by_topic((each.topic, each.partition) for each in partitions)

    def build(self, request_struct_class: Any) -> Any:
        return request_struct_class(self._topics)


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
