"""Subscriptions and assignments that the seat and the members of its group exchange inside
JoinGroup and SyncGroup (`ConsumerProtocolSubscription.json`, `ConsumerProtocolAssignment.json` of
Apache Kafka).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

import attrs

from equipoise.events.errors import InputError
from equipoise.kafka.client import TOPIC_NAME
from equipoise.kafka.offsets_topic import consumer_protocol
from equipoise.kafka.offsets_topic.byte_reader import ByteReader, WireError
from equipoise.kafka.offsets_topic.consumer_protocol import NO_GENERATION

TopicPartition = tuple[str, int]
MOST_RACK_CHARS = 249


@attrs.frozen(kw_only=True)
class SeatSubscription:
    """What a member says when it joins. `owned`: partitions that it reads, as far as its client
    tells (version 1). `generation`: in which it got them; NO_GENERATION: not told (version 2).
    `rack`: its client.rack (version 3).
    """

    topics: tuple[str, ...]
    owned: frozenset[TopicPartition] = frozenset()
    generation: int = NO_GENERATION
    rack: str | None = None


def read_subscription(data: bytes) -> SeatSubscription:
    """Reads a subscription of any version; topics and racks that there cannot be are passed over.
    Raises InputError.
    """
    try:
        found = consumer_protocol.read_subscription(_reader(data, "subscription"), lenient=True)
    except WireError as error:
        raise InputError(error.problem) from None
    named = tuple(sorted({topic for topic in found.topics if TOPIC_NAME.fullmatch(topic)}))
    rack = found.rack if found.rack and len(found.rack) <= MOST_RACK_CHARS else None
    return SeatSubscription(topics=named, owned=_pairs(found.owned_partitions), generation=found.owned_generation, rack=rack)


def read_assignment(data: bytes) -> frozenset[TopicPartition]:
    """Reads what a member was assigned; empty bytes are nothing. Raises InputError."""
    try:
        return _pairs(consumer_protocol.read_assignment(_reader(data, "assignment"), lenient=True).partitions)
    except WireError as error:
        raise InputError(error.problem) from None


def _reader(data: bytes, what: str) -> ByteReader:
    return ByteReader(data, 0, what)


def _pairs(partitions: consumer_protocol.Partitions) -> frozenset[TopicPartition]:
    return frozenset((topic, partition) for topic, each in partitions.items() for partition in each)


def write_subscription(*, cooperative: bool) -> bytes:
    """A subscription to nothing, which owns nothing. Versions above 0 only where the protocol needs
    them, because old clients may lead the group and read it.
    """
    nothing = struct.pack(">ii", 0, 0)
    return struct.pack(">h", 1) + nothing + struct.pack(">i", 0) if cooperative else struct.pack(">h", 0) + nothing


def write_assignment(assigned: Mapping[str, list[int]]) -> bytes:
    """An assignment, version 0: topic -> partitions."""
    parts = [struct.pack(">hi", 0, len(assigned))]
    for topic, partitions in sorted(assigned.items()):
        name = topic.encode()
        parts.append(struct.pack(">h", len(name)) + name + struct.pack(f">i{len(partitions)}i", len(partitions), *sorted(partitions)))
    parts.append(struct.pack(">i", 0))
    return b"".join(parts)
