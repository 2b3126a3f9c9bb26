"""The requests of a producer: aiokafka's classes of them, filled in here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from aiokafka.protocol.api import Request
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

from equipoise.kafka.aiokafka_structs import quick
from equipoise.kafka.client import TopicPartition
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


class AppendBatches(
    Request[ProduceRequest_v3 | ProduceRequest_v4 | ProduceRequest_v5 | ProduceRequest_v6 | ProduceRequest_v7]  # type: ignore[misc]
):
    """Batches as the core orders them, in the versions that have producer ids."""

    API_KEY = 0

    def __init__(self, order: ProduceBatches, options: ProducerOptions) -> None:
        self._order, self._options = order, options

    def build(self, request_struct_class: Any) -> Any:
        topics = _by_topic((each.place, each.place[1], each.data) for each in self._order.batches)
        return quick(request_struct_class)(self._options.transactional_id, _ALL_REPLICAS, self._options.timeout_ms, topics)


def request_of(order: SendOrder, options: ProducerOptions) -> Any:
    """Returns the request of an order."""
    of = options.transactional_id
    match order:
        case ProduceBatches():
            return AppendBatches(order, options)
        case FindCoordinator(kind, key):
            return FindCoordinatorRequest(key, int(kind))
        case InitProducerId():
            return InitProducerIdRequest(of, options.transaction_timeout_ms)
        case AddPartitions(_, producer, places):
            topics: dict[str, list[int]] = {}
            for topic, partition in places:
                topics.setdefault(topic, []).append(partition)
            return AddPartitionsToTxnRequest(of, *producer, list(topics.items()))
        case AddGroup(_, producer, group):
            return AddOffsetsToTxnRequest(of, *producer, group)
        case CommitInTransaction(_, producer, group, offsets):
            return TxnOffsetCommitRequest(of, group, *producer, _by_topic((place, place[1], at, "") for place, at in offsets.items()))
        case EndTransaction(_, producer, commits):
            return EndTxnRequest(of, *producer, commits)


def _by_topic(rows: Iterable[tuple[TopicPartition, *tuple[Any, ...]]]) -> list[tuple[str, list[tuple[Any, ...]]]]:
    topics: dict[str, list[tuple[Any, ...]]] = {}
    for place, *fields in rows:
        topics.setdefault(place[0], []).append(tuple(fields))
    return list(topics.items())
