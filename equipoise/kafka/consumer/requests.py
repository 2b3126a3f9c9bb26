"""The requests of a consumer: aiokafka's classes of them, filled in here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from aiokafka.protocol.fetch import (
    FetchRequest_v4,
    FetchRequest_v5,
    FetchRequest_v6,
    FetchRequest_v7,
    FetchRequest_v8,
    FetchRequest_v9,
    FetchRequest_v10,
    FetchRequest_v11,
)
from aiokafka.protocol.offset import OffsetRequest_v2, OffsetRequest_v3
from aiokafka.protocol.types import Array, Int8, Int16, Int32, Int64, Schema

from equipoise.kafka.aiokafka_structs import quick
from equipoise.kafka.client import NO_EPOCH, LeaderEnd, TopicPartition
from equipoise.kafka.consumer.reading_orders import FetchOptions, FetchOrder
from equipoise.kafka.declared_requests import TEXT, by_topic, declared, in_versions

FIRST, END = -2, -1
"""In place of a time: the first offset of a partition, and its end."""
_MIN_BYTES = 1


class SessionFetch(
    in_versions(  # type: ignore[misc]  # aiokafka ships no types
        FetchRequest_v4, FetchRequest_v5, FetchRequest_v6, FetchRequest_v7, FetchRequest_v8, FetchRequest_v9, FetchRequest_v10, FetchRequest_v11
    )
):
    """A fetch as the core orders it. Brokers before Kafka 1.1 (version 7) have no sessions, and
    each order names everything.
    """

    def __init__(self, order: FetchOrder, options: FetchOptions) -> None:
        self._order, self._options = order, options

    def build(self, request_struct_class: Any) -> Any:
        order, options, version = self._order, self._options, request_struct_class.API_VERSION
        most, has_epoch, has_start = options.partition_bytes, version >= 9, version >= 5
        rows = []
        for (topic, partition), (offset, epoch) in order.named.items():
            fields = (partition, epoch, offset, -1, most) if has_epoch else (partition, offset, -1, most) if has_start else (partition, offset, most)
            rows.append((topic, fields))
        session = (order.session_id, order.session_epoch) if version >= 7 else ()
        dropped = (by_topic(order.dropped),) if version >= 7 else ()
        rack = (options.rack,) if version >= 11 else ()
        return quick(request_struct_class)(
            -1, order.wait_ms, _MIN_BYTES, options.answer_bytes, int(options.read_committed), *session, by_topic(rows), *dropped, *rack
        )


LIST_OFFSETS_V4 = declared(
    2,
    4,
    Schema(
        ("replica_id", Int32),
        ("isolation_level", Int8),
        ("topics", Array(("topic", TEXT), ("partitions", Array(("partition", Int32), ("current_leader_epoch", Int32), ("timestamp", Int64))))),
    ),
    Schema(
        ("throttle_time_ms", Int32),
        (
            "topics",
            Array(
                ("topic", TEXT),
                ("partitions", Array(("partition", Int32), ("error_code", Int16), ("timestamp", Int64), ("offset", Int64), ("leader_epoch", Int32))),
            ),
        ),
    ),
)
"""aiokafka's own has an epoch of eight bytes."""


class ListOffsetsRequest(in_versions(OffsetRequest_v2, OffsetRequest_v3, LIST_OFFSETS_V4)):  # type: ignore[misc]
    """The offsets of the first records from these times (ms) on, or FIRST, or END, from the
    partitions' leader. With the leaders' epochs (KIP-320), in the first version that has them.
    """

    def __init__(self, times: Mapping[TopicPartition, int], *, read_committed: bool) -> None:
        self._times, self._read_committed = times, read_committed

    def build(self, request_struct_class: Any) -> Any:
        epoch = (NO_EPOCH,) if request_struct_class.API_VERSION >= 4 else ()
        topics = by_topic((topic, (partition, *epoch, time)) for (topic, partition), time in self._times.items())
        return quick(request_struct_class)(-1, int(self._read_committed), topics)


def listed(answer: Any) -> Iterable[tuple[TopicPartition, int, LeaderEnd]]:
    """Partition, error code (0: none), and what was asked for, of an answer to
    `ListOffsetsRequest`.
    """
    for topic, partitions in answer.topics:
        for partition, code, _, offset, *epoch in partitions:
            yield TopicPartition(topic, partition), code, LeaderEnd(offset, epoch[0] if epoch else NO_EPOCH)


EPOCH_ENDS_V2 = declared(
    23,
    2,
    Schema(
        ("topics", Array(("topic", TEXT), ("partitions", Array(("partition", Int32), ("current_leader_epoch", Int32), ("leader_epoch", Int32))))),
    ),
    Schema(
        ("throttle_time_ms", Int32),
        (
            "topics",
            Array(
                ("topic", TEXT), ("partitions", Array(("error_code", Int16), ("partition", Int32), ("leader_epoch", Int32), ("end_offset", Int64)))
            ),
        ),
    ),
)


class EpochEndsRequest(in_versions(EPOCH_ENDS_V2)):  # type: ignore[misc]
    """Where leader epochs end (KIP-320), from the partitions' leader. aiokafka has no such request,
    so it is declared here, in the first version that has epochs.
    """

    def __init__(self, epochs: Mapping[TopicPartition, int]) -> None:
        self._epochs = epochs

    def build(self, request_struct_class: Any) -> Any:
        return request_struct_class(by_topic((topic, (partition, NO_EPOCH, epoch)) for (topic, partition), epoch in self._epochs.items()))


def epochs_ended(answer: Any) -> Iterable[tuple[TopicPartition, int, int]]:
    """Partition, error code (0: none) and end, of an answer to `EpochEndsRequest`."""
    for topic, partitions in answer.topics:
        for code, partition, _, end in partitions:
            yield TopicPartition(topic, partition), code, end
