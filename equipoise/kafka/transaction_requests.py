"""Requests about transactions that aiokafka lacks (KIP-664)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aiokafka.protocol.types import CompactArray, Int16, Int32, Int64, Schema

from equipoise.kafka.declared_requests import COMPACT_TEXT, TAGS, declared, in_versions

_PRODUCER = (
    ("producer_id", Int64), ("producer_epoch", Int32), ("last_sequence", Int32), ("last_timestamp", Int64),
    ("coordinator_epoch", Int32), ("current_txn_start_offset", Int64), TAGS,
)  # fmt: skip # a table: one row a line


class DescribeProducers(
    in_versions(  # type: ignore[misc]  # aiokafka ships no types
        declared(
            61, 0,
            Schema(("topics", CompactArray(("name", COMPACT_TEXT), ("partition_indexes", CompactArray(Int32)), TAGS)), TAGS),
            Schema(("throttle_time_ms", Int32), ("topics", CompactArray(("name", COMPACT_TEXT), ("partitions", CompactArray(
                ("partition_index", Int32), ("error_code", Int16), ("error_message", COMPACT_TEXT),
                ("active_producers", CompactArray(*_PRODUCER)), TAGS)), TAGS)), TAGS),
            flexible=True,
        )
    )
):  # fmt: skip # a table: one row a line
    """The producers of a partition, which its leader knows (from Kafka 2.8 on)."""

    def __init__(self, topic: str, partition: int) -> None:
        self._topic, self._partition = topic, partition

    def build(self, request_struct_class: Any) -> Any:
        return request_struct_class([(self._topic, [self._partition], {})], {})


class ListTransactions(
    in_versions(  # type: ignore[misc]  # aiokafka ships no types
        declared(
            66, 0,
            Schema(("state_filters", CompactArray(COMPACT_TEXT)), ("producer_id_filters", CompactArray(Int64)), TAGS),
            Schema(("throttle_time_ms", Int32), ("error_code", Int16), ("unknown_state_filters", CompactArray(COMPACT_TEXT)),
                   ("transaction_states", CompactArray(
                       ("transactional_id", COMPACT_TEXT), ("producer_id", Int64), ("transaction_state", COMPACT_TEXT), TAGS)), TAGS),
            flexible=True,
        )
    )
):  # fmt: skip # a table: one row a line
    """The transactions of these producers that one coordinator shows the user (from Kafka 3.0 on)."""

    def __init__(self, producer_ids: Sequence[int]) -> None:
        self._producer_ids = producer_ids

    def build(self, request_struct_class: Any) -> Any:
        return request_struct_class([], list(self._producer_ids), {})
