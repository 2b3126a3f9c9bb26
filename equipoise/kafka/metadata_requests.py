"""Asks for metadata, and makes no topic by that; for settings, and for the sizes of partitions.
aiokafka asks in a version without topic ids (KIP-516) and without the operations that the user is
allowed (KIP-430).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aiokafka.errors import NodeNotReadyError, TopicAuthorizationFailedError, UnknownTopicOrPartitionError, for_code
from aiokafka.protocol.admin import DescribeConfigsRequest
from aiokafka.protocol.api import RequestStruct
from aiokafka.protocol.metadata import MetadataRequest_v5
from aiokafka.protocol.types import Array, Boolean, CompactArray, Int16, Int32, Int64, Schema

from equipoise.kafka.broker_wire import Wire
from equipoise.kafka.client import TopicPartition
from equipoise.kafka.declared_requests import COMPACT_TEXT, TAGS, TEXT, Uuid, by_topic, declared, in_versions
from equipoise.kafka.group_coordinators import ask_any

TOPIC = 2
"""Type of a resource that has settings."""
NOT_TOLD = -(2**31)
"""In place of operations: the broker does not say."""
_NO_ID = bytes(16)
METADATA_V11 = declared(
    3, 11,
    Schema(
        ("topics", CompactArray(("topic_id", Uuid), ("topic", COMPACT_TEXT), TAGS)),
        ("allow_auto_topic_creation", Boolean), ("include_topic_authorized_operations", Boolean), TAGS,
    ),
    Schema(
        ("throttle_time_ms", Int32),
        ("brokers", CompactArray(("node_id", Int32), ("host", COMPACT_TEXT), ("port", Int32), ("rack", COMPACT_TEXT), TAGS)),
        ("cluster_id", COMPACT_TEXT),
        ("controller_id", Int32),
        ("topics", CompactArray(
            ("error_code", Int16), ("topic", COMPACT_TEXT), ("topic_id", Uuid), ("is_internal", Boolean),
            ("partitions", CompactArray(
                ("error_code", Int16), ("partition", Int32), ("leader", Int32), ("leader_epoch", Int32), ("replicas", CompactArray(Int32)),
                ("isr", CompactArray(Int32)), ("offline_replicas", CompactArray(Int32)), TAGS)),
            ("operations", Int32), TAGS)),
        TAGS,
    ),
    flexible=True,
)  # fmt: skip # a table: one row a line
"""From Kafka 2.8 on."""


class DescribeTopics(in_versions(MetadataRequest_v5, METADATA_V11)):  # type: ignore[misc]
    """Metadata of `topics` (None: of all), and of all brokers. `operations`: with what the user may
    do. Brokers before Kafka 2.8 tell neither that nor ids.
    """

    def __init__(self, topics: Sequence[str] | None, *, operations: bool = False) -> None:
        self._topics, self._operations = topics, operations

    def build(self, request_struct_class: Any) -> Any:
        if request_struct_class is MetadataRequest_v5:
            return MetadataRequest_v5(None if self._topics is None else list(self._topics), False)
        topics: list[Any] | None = None if self._topics is None else [(_NO_ID, topic, {}) for topic in self._topics]
        return request_struct_class(topics, False, self._operations, {})


def request_bytes(request: RequestStruct) -> bytes:
    """A request as it is sent, without its length."""
    return bytes(request.build_request_header(0, "equipoise").encode() + request.encode())


def topic_ids_request(topics: Sequence[str]) -> bytes:
    """Asks a broker for the ids of `topics`. The answer contains each as 16 bytes."""
    return request_bytes(DescribeTopics(topics).build(METADATA_V11))


async def topic_ids(wire: Wire, topics: Sequence[str], leads: TopicPartition) -> tuple[str, ...] | None:
    """Returns the ids of `topics`, in the same order, from the leader of the partition `leads`.
    None: the brokers have no topic ids. Raises KafkaError when a topic does not exist or the leader
    does not answer. Raises TopicAuthorizationFailedError without the right to describe one.
    """
    leader = wire.leader_of(leads)
    if leader is None:
        await wire.know((leads.topic,))
        wire.refresh()
        await wire.know((leads.topic,))
        leader = wire.leader_of(leads)
        if leader is None:
            if wire.is_hidden(leads.topic):
                raise TopicAuthorizationFailedError(leads.topic)
            kind = NodeNotReadyError if wire.partitions(leads.topic) else UnknownTopicOrPartitionError
            raise kind(f"{leads.topic}/{leads.partition} has no leader")
    described = (await wire.send(leader[0], DescribeTopics(topics))).to_object()["topics"]
    for each in described:
        if each["error_code"]:
            wire.refresh()
            raise for_code(each["error_code"])(each["topic"])
    found = {each["topic"]: each.get("topic_id", _NO_ID) for each in described}
    ids = tuple(found[topic] for topic in topics)
    return None if _NO_ID in ids else tuple(each.hex() for each in ids)


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
):  # fmt: skip # a table: one row a line
    """Bytes of the replicas of these partitions that a broker has (KIP-113). Without the right to
    describe the cluster the answer names none.
    """

    def __init__(self, partitions: Sequence[TopicPartition]) -> None:
        self._topics = by_topic((each.topic, each.partition) for each in partitions)

    def build(self, request_struct_class: Any) -> Any:
        return request_struct_class(self._topics)


async def topic_configs(wire: Wire, topics: Sequence[str]) -> dict[str, dict[str, str]]:
    """See `client.Admin`."""
    found = {}
    for code, _, _, topic, entries in (await ask_any(wire, DescribeConfigsRequest([(TOPIC, topic, None) for topic in topics]))).resources:
        if code:
            raise for_code(code)(f"the settings of topic {topic} cannot be read")
        found[topic] = {entry[0]: entry[1] for entry in entries}
    return found
