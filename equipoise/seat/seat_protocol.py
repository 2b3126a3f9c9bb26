"""The protocol inside JoinGroup and SyncGroup that Kafka's consumers share: subscriptions
(versions 0 to 3) and assignments (`ConsumerProtocolSubscription.json`,
`ConsumerProtocolAssignment.json` of Apache Kafka).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping

import attrs

from equipoise.events.errors import InputError

TopicPartition = tuple[str, int]
NO_GENERATION = -1
MOST_RACK_CHARS = 249
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
"""Names that a topic of Kafka can have (`Topic.validate`)."""


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


class _ProtocolReader:
    """Reads values of Kafka's protocol from the front of `data`."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def _take(self, size: int) -> bytes:
        if size < 0 or self._at + size > len(self._data):
            raise InputError("it ends within a field")
        self._at += size
        return self._data[self._at - size : self._at]

    def int16(self) -> int:
        return int(struct.unpack(">h", self._take(2))[0])

    def int32(self) -> int:
        return int(struct.unpack(">i", self._take(4))[0])

    def text(self) -> str | None:
        length = self.int16()
        try:
            return None if length < 0 else self._take(length).decode()
        except UnicodeDecodeError as error:
            raise InputError(f"a text is not UTF-8: {error}") from None

    def name(self) -> str:
        return self.text() or ""

    def skip_bytes(self) -> None:
        length = self.int32()
        self._take(max(0, length))

    def partitions(self) -> frozenset[TopicPartition]:
        found: set[TopicPartition] = set()
        for _ in range(max(0, self.int32())):
            topic = self.name()
            found.update((topic, self.int32()) for _ in range(max(0, self.int32())))
        return frozenset(found)


def read_subscription(data: bytes) -> SeatSubscription:
    """Reads a subscription of any version; fields behind those of version 3 are passed over, and so
    are topics and racks that there cannot be. Raises InputError.
    """
    reader = _ProtocolReader(data)
    version = reader.int16()
    topics = tuple(reader.name() for _ in range(max(0, reader.int32())))
    reader.skip_bytes()
    owned: frozenset[TopicPartition] = frozenset()
    generation, rack = NO_GENERATION, None
    if version >= 1:
        owned = reader.partitions()
    if version >= 2:
        generation = reader.int32()
    if version >= 3:
        rack = reader.text() or None
    if rack is not None and len(rack) > MOST_RACK_CHARS:
        rack = None
    named = tuple(sorted({topic for topic in topics if _TOPIC.fullmatch(topic)}))
    return SeatSubscription(topics=named, owned=owned, generation=generation, rack=rack)


def read_assignment(data: bytes) -> frozenset[TopicPartition]:
    """Reads what a member was assigned; empty bytes are nothing. Raises InputError."""
    if not data:
        return frozenset()
    reader = _ProtocolReader(data)
    reader.int16()
    return reader.partitions()


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
