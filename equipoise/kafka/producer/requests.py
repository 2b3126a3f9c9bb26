"""The requests of a producer: aiokafka's classes of them, filled in here."""

from __future__ import annotations

from typing import Any

from aiokafka.protocol.coordination import FindCoordinatorRequest
from aiokafka.protocol.produce import (
    ProduceRequest_v3,
    ProduceRequest_v4,
    ProduceRequest_v5,
    ProduceRequest_v6,
    ProduceRequest_v7,
)
from aiokafka.protocol.transaction import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)
from aiokafka.protocol.types import CompactArray, CompactBytes, Int16, Int32, Int64, Schema

from equipoise.kafka.aiokafka_structs import quick
from equipoise.kafka.declared_requests import COMPACT_TEXT, TAGS, Uuid, by_topic, declared, in_versions
from equipoise.kafka.producer.sending_orders import (
    AddGroup,
    AddPartitions,
    CommitInTransaction,
    EndTransaction,
    FindCoordinator,
    InitProducerId,
    ProduceBatches,
    ProducerOptions,
    SendOrder,
)

_ALL_REPLICAS = -1


_WITH_PRODUCER_IDS = (ProduceRequest_v3, ProduceRequest_v4, ProduceRequest_v5, ProduceRequest_v6, ProduceRequest_v7)
PRODUCE_V13 = declared(
    0, 13,
    Schema(
        ("transactional_id", COMPACT_TEXT), ("acks", Int16), ("timeout_ms", Int32),
        ("topics", CompactArray(
            ("topic_id", Uuid), ("partitions", CompactArray(("partition", Int32), ("records", CompactBytes), TAGS)), TAGS)),
        TAGS,
    ),
    Schema(
        ("topics", CompactArray(
            ("topic_id", Uuid),
            ("partitions", CompactArray(
                ("partition", Int32), ("error_code", Int16), ("offset", Int64), ("timestamp", Int64), ("log_start_offset", Int64),
                ("record_errors", CompactArray(("index", Int32), ("message", COMPACT_TEXT), TAGS)), ("message", COMPACT_TEXT), TAGS)),
            TAGS)),
        ("throttle_time_ms", Int32), TAGS,
    ),
    flexible=True,
)  # fmt: skip # a table: one row a line
"""From Kafka 4.1 on: names topics by their ids (KIP-516)."""


class AppendBatches(in_versions(*_WITH_PRODUCER_IDS)):  # type: ignore[misc]
    """Batches as the core orders them, in the versions that have producer ids."""

    def __init__(self, order: ProduceBatches, options: ProducerOptions) -> None:
        self._order, self._options = order, options

    def build(self, request_struct_class: Any) -> Any:
        topics = by_topic((each.place[0], (each.place[1], each.data)) for each in self._order.batches)
        return quick(request_struct_class)(self._options.transactional_id, _ALL_REPLICAS, self._options.timeout_ms, topics)


class AppendBatchesById(in_versions(*_WITH_PRODUCER_IDS, PRODUCE_V13)):  # type: ignore[misc]
    """The same, to topics whose ids are given. Older brokers know them by name."""

    def __init__(self, order: ProduceBatches, options: ProducerOptions) -> None:
        self._order, self._options = order, options

    def build(self, request_struct_class: Any) -> Any:
        if request_struct_class is not PRODUCE_V13:
            return AppendBatches(self._order, self._options).build(request_struct_class)
        topics = by_topic((each.place[0], (each.place[1], bytes(each.data), {})) for each in self._order.batches)
        ids = self._options.topic_ids
        named: list[Any] = [(ids[topic], partitions, {}) for topic, partitions in topics]
        return PRODUCE_V13(self._options.transactional_id, _ALL_REPLICAS, self._options.timeout_ms, named, {})


def request_of(order: SendOrder, options: ProducerOptions) -> Any:
    """Returns the request of an order."""
    of = options.transactional_id
    match order:
        case ProduceBatches():
            return AppendBatchesById(order, options) if order.by_id else AppendBatches(order, options)
        case FindCoordinator(kind, key):
            return FindCoordinatorRequest(key, int(kind))
        case InitProducerId():
            return InitProducerIdRequest(of, options.transaction_timeout_ms)
        case AddPartitions(_, producer, places):
            return AddPartitionsToTxnRequest(of, *producer, by_topic(places))
        case AddGroup(_, producer, group):
            return AddOffsetsToTxnRequest(of, *producer, group)
        case CommitInTransaction(_, producer, group, offsets, notes):
            topics = by_topic((place[0], (place[1], at, notes.get(place, ""))) for place, at in offsets.items())
            return TxnOffsetCommitRequest(of, group, *producer, topics)
        case EndTransaction(_, producer, commits):
            return EndTxnRequest(of, *producer, commits)
