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

from equipoise.kafka.aiokafka_structs import quick
from equipoise.kafka.declared_requests import by_topic, in_versions
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
    in_versions(ProduceRequest_v3, ProduceRequest_v4, ProduceRequest_v5, ProduceRequest_v6, ProduceRequest_v7)  # type: ignore[misc]
):
    """Batches as the core orders them, in the versions that have producer ids."""

    def __init__(self, order: ProduceBatches, options: ProducerOptions) -> None:
        self._order, self._options = order, options

    def build(self, request_struct_class: Any) -> Any:
        topics = by_topic((each.place[0], (each.place[1], each.data)) for each in self._order.batches)
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
            return AddPartitionsToTxnRequest(of, *producer, by_topic(places))
        case AddGroup(_, producer, group):
            return AddOffsetsToTxnRequest(of, *producer, group)
        case CommitInTransaction(_, producer, group, offsets, notes):
            topics = by_topic((place[0], (place[1], at, notes.get(place, ""))) for place, at in offsets.items())
            return TxnOffsetCommitRequest(of, group, *producer, topics)
        case EndTransaction(_, producer, commits):
            return EndTxnRequest(of, *producer, commits)
