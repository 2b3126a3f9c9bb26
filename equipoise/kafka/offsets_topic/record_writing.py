"""Writes records of groups as their coordinator would, for what was learned in another way.

Formats (Apache Kafka's message definitions): OffsetCommitKey 1 and OffsetCommitValue 3,
GroupMetadataKey 2 and GroupMetadataValue 3; of KIP-848 and KIP-1071 those of `values`.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from equipoise.kafka.offsets_topic.classic import UNKNOWN_MS

_NO_EPOCH = -1


@attrs.frozen
class WrittenMember:
    """A member of a classic group. `subscription`, `assignment`: bytes of its protocol."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    subscription: bytes
    assignment: bytes
    rebalance_timeout_ms: int = UNKNOWN_MS
    session_timeout_ms: int = UNKNOWN_MS


def commit_record(group: str, topic: str, partition: int, at_ms: int, committed: int | None) -> tuple[bytes, bytes | None]:
    """Key and value of a commit. `committed` None: it was deleted."""
    key = _int(1, 2) + _text(group) + _text(topic) + _int(partition, 4)
    return key, None if committed is None else _int(3, 2) + _int(committed, 8) + _int(_NO_EPOCH, 4) + _text("") + _int(at_ms, 8)


def classic_group_record(
    group: str, protocol_type: str, generation: int, protocol: str, at_ms: int, members: Iterable[WrittenMember]
) -> tuple[bytes, bytes]:
    """Key and value of a generation. Leader and timeouts are written as unknown."""
    written = [_member(each) for each in members]
    head = _int(3, 2) + _text(protocol_type) + _int(generation, 4) + (_text(protocol) if written else _NULL) + _NULL + _int(at_ms, 8)
    return group_key(group), head + _int(len(written), 4) + b"".join(written)


def _member(member: WrittenMember) -> bytes:
    names = _text(member.member_id) + _nullable(member.instance_id) + _text(member.client_id) + _text(member.host)
    return names + _int(member.rebalance_timeout_ms, 4) + _int(member.session_timeout_ms, 4) + _bytes(member.subscription) + _bytes(member.assignment)


def group_key(group: str) -> bytes:
    """Key of a classic group's generations; without a value: the group was deleted."""
    return _int(2, 2) + _text(group)


def key_of(kind: int, group: str, name: str | None = None) -> bytes:
    """Key of a record of KIP-848 or KIP-1071. `name`: the member's id, where the kind has one."""
    return _int(kind, 2) + _text(group) + (b"" if name is None else _text(name))


def _int(number: int, length_bytes: int) -> bytes:
    return number.to_bytes(length_bytes, "big", signed=True)


_NULL = _int(-1, 2)


def _text(text: str) -> bytes:
    data = text.encode()
    return _int(len(data), 2) + data


def _nullable(text: str | None) -> bytes:
    return _NULL if text is None else _text(text)


def _bytes(data: bytes) -> bytes:
    return _int(len(data), 4) + data
