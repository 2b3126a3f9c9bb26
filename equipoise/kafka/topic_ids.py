"""Asks brokers for the ids of topics (KIP-516).

aiokafka asks for metadata in a version without topic ids and without the operations that the user
is allowed (KIP-430), so the request is declared here in its style.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Sequence
from io import BytesIO
from typing import Any

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import NodeNotReadyError, TopicAuthorizationFailedError, UnknownTopicOrPartitionError, for_code
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import Boolean, CompactArray, CompactString, Int16, Int32, Schema, TaggedFields

from equipoise.kafka.client import TopicPartition

_NO_ID = uuid.UUID(int=0)


class _Uuid:
    @classmethod
    def encode(cls, value: uuid.UUID) -> bytes:
        return value.bytes

    @classmethod
    def decode(cls, data: BytesIO) -> uuid.UUID:
        return uuid.UUID(bytes=data.read(16))

    @classmethod
    def repr(cls, value: uuid.UUID) -> str:
        return str(value)


_TEXT, _TAGS = CompactString("utf-8"), ("tags", TaggedFields)


class _DescribedTopics(Response):  # type: ignore[misc]  # aiokafka ships no types
    API_KEY = 3
    API_VERSION = 11
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("brokers", CompactArray(("node_id", Int32), ("host", _TEXT), ("port", Int32), ("rack", _TEXT), _TAGS)),
        ("cluster_id", _TEXT),
        ("controller_id", Int32),
        ("topics", CompactArray(
            ("error_code", Int16), ("name", _TEXT), ("topic_id", _Uuid), ("is_internal", Boolean),
            ("partitions", CompactArray(
                ("error_code", Int16), ("partition", Int32), ("leader", Int32), ("leader_epoch", Int32), ("replicas", CompactArray(Int32)),
                ("isr", CompactArray(Int32)), ("offline_replicas", CompactArray(Int32)), _TAGS)),
            ("authorized_operations", Int32), _TAGS)),
        _TAGS,
    )  # fmt: skip


class _DescribeTopicsStruct(RequestStruct):  # type: ignore[misc]
    API_KEY = 3
    API_VERSION = 11
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = _DescribedTopics
    SCHEMA = Schema(
        ("topics", CompactArray(("topic_id", _Uuid), ("name", _TEXT), _TAGS)),
        ("allow_auto_topic_creation", Boolean), ("include_topic_authorized_operations", Boolean), _TAGS,
    )  # fmt: skip


class DescribeTopics(Request[_DescribeTopicsStruct]):  # type: ignore[misc]
    """Metadata of `topics`, and of all brokers. `operations`: with what the user may do."""

    API_KEY = 3

    def __init__(self, topics: Sequence[str], *, operations: bool = False) -> None:
        self._topics, self._operations = topics, operations

    def build(self, request_struct_class: Any) -> Any:
        return request_struct_class([(_NO_ID, topic, {}) for topic in self._topics], False, self._operations, {})


def request_bytes(request: RequestStruct) -> bytes:
    """A request as it is sent, without its length."""
    return bytes(request.build_request_header(0, "equipoise").encode() + request.encode())


def topic_ids_request(topics: Sequence[str]) -> bytes:
    """Asks a broker for the ids of `topics`. The answer contains each as 16 bytes."""
    return request_bytes(DescribeTopics(topics).build(_DescribeTopicsStruct))


async def topic_ids(
    client: AIOKafkaClient, topics: Sequence[str], leads: TopicPartition, send: Callable[[int, Any], Awaitable[Any]]
) -> tuple[str, ...] | None:  # fmt: skip
    """Returns the ids of `topics`, in the same order, from the leader of the partition `leads`.
    `send`: sends a request to a broker. None: the brokers have no topic ids. Raises KafkaError when
    a topic does not exist or the leader does not answer. Raises TopicAuthorizationFailedError
    without the right to describe one.
    """
    node_id = client.cluster.leader_for_partition(leads)
    if node_id in (None, -1):
        client.add_topic(leads.topic)
        await client.force_metadata_update()
        node_id = client.cluster.leader_for_partition(leads)
        if node_id in (None, -1):
            if leads.topic in client.cluster.unauthorized_topics:
                raise TopicAuthorizationFailedError(leads.topic)
            there = client.cluster.partitions_for_topic(leads.topic)
            raise (NodeNotReadyError if there else UnknownTopicOrPartitionError)(f"{leads.topic}/{leads.partition} has no leader")
    try:
        answer = await send(node_id, DescribeTopics(topics))
    except NotImplementedError:  # aiokafka: the broker has no version of the request that is declared here
        return None
    found = {}
    for code, name, topic_id, *_ in answer.topics:
        if code:
            client.force_metadata_update()
            raise for_code(code)(name)
        found[name] = topic_id
    ids = tuple(found[topic] for topic in topics)
    return None if _NO_ID in ids else tuple(each.hex for each in ids)
