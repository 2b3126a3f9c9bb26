"""The identity of topics: the ids that Kafka gives them (KIP-516). A topic that was deleted and
made again has another id.

aiokafka asks for metadata in a version without topic ids, so the request is declared here in its
style.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from functools import cache
from io import BytesIO
from typing import Any

from equipoise.events.log.kafka.topics import Topics

_NO_ID = uuid.UUID(int=0)


async def topic_ids(consumer: Any, topics: Sequence[str], leads: Any) -> tuple[str, ...] | None:
    """Returns the ids of `topics`, in the same order, from the leader of the partition `leads` (a
    TopicPartition). None: the brokers have no topic ids.

    `consumer`: a started AIOKafkaConsumer. Raises KafkaError when a topic does not exist or the
    leader does not answer.
    """
    from aiokafka.errors import NodeNotReadyError, UnknownTopicOrPartitionError, for_code

    client = consumer._client
    node_id = client.cluster.leader_for_partition(leads)
    if node_id in (None, -1):
        client.add_topic(leads.topic)
        await client.force_metadata_update()
        node_id = client.cluster.leader_for_partition(leads)
        if node_id in (None, -1):
            there = client.cluster.partitions_for_topic(leads.topic)
            raise (NodeNotReadyError if there else UnknownTopicOrPartitionError)(f"{leads.topic}/{leads.partition} has no leader")
    try:
        answer = await client.send(node_id, _request_class()(topics))
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


async def log_topic_ids(consumer: Any, topics: Topics, partition: int = 0) -> tuple[str, ...] | None:
    """Returns the ids of a log's topics for facts, decisions and checkpoints, from the leader of
    `partition` of the facts. Raises KafkaError.
    """
    from aiokafka import TopicPartition

    return await topic_ids(consumer, (topics.facts, topics.decisions, topics.checkpoints), TopicPartition(topics.facts, partition))


@cache
def _request_class() -> Any:
    """Declared on first use, because aiokafka is an extra."""
    from aiokafka.protocol.api import Request, RequestStruct, Response
    from aiokafka.protocol.types import Boolean, CompactArray, CompactString, Int16, Int32, Schema, TaggedFields

    class Uuid:
        @classmethod
        def encode(cls, value: uuid.UUID) -> bytes:
            return value.bytes

        @classmethod
        def decode(cls, data: BytesIO) -> uuid.UUID:
            return uuid.UUID(bytes=data.read(16))

        @classmethod
        def repr(cls, value: uuid.UUID) -> str:
            return str(value)

    text, tags = CompactString("utf-8"), ("tags", TaggedFields)

    class TopicIdsResponse(Response):  # type: ignore[misc]  # aiokafka ships no types
        API_KEY = 3
        API_VERSION = 11
        SCHEMA = Schema(
            ("throttle_time_ms", Int32),
            ("brokers", CompactArray(("node_id", Int32), ("host", text), ("port", Int32), ("rack", text), tags)),
            ("cluster_id", text),
            ("controller_id", Int32),
            ("topics", CompactArray(
                ("error_code", Int16), ("name", text), ("topic_id", Uuid), ("is_internal", Boolean),
                ("partitions", CompactArray(
                    ("error_code", Int16), ("partition", Int32), ("leader", Int32), ("leader_epoch", Int32), ("replicas", CompactArray(Int32)),
                    ("isr", CompactArray(Int32)), ("offline_replicas", CompactArray(Int32)), tags)),
                ("authorized_operations", Int32), tags)),
            tags,
        )  # fmt: skip

    class TopicIdsStruct(RequestStruct):  # type: ignore[misc]
        API_KEY = 3
        API_VERSION = 11
        FLEXIBLE_VERSION = True
        RESPONSE_TYPE = TopicIdsResponse
        SCHEMA = Schema(
            ("topics", CompactArray(("topic_id", Uuid), ("name", text), tags)),
            ("allow_auto_topic_creation", Boolean), ("include_topic_authorized_operations", Boolean), tags,
        )  # fmt: skip

    class TopicIdsRequest(Request[TopicIdsStruct]):  # type: ignore[misc]
        API_KEY = 3

        def __init__(self, topics: Sequence[str]) -> None:
            self._topics = topics

        def build(self, request_struct_class: Any) -> Any:
            return request_struct_class([(_NO_ID, topic, {}) for topic in self._topics], False, False, {})

    return TopicIdsRequest
