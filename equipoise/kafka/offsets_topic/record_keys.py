"""Keys of `__consumer_offsets`: which group a record is of, what kind, and its value."""

from __future__ import annotations

from typing import NamedTuple

import attrs

from equipoise.kafka.offsets_topic import record_values
from equipoise.kafka.offsets_topic.byte_reader import ByteReader
from equipoise.kafka.offsets_topic.classic import ClassicGroup, OffsetCommit, read_classic_group, read_offset_commit
from equipoise.kafka.offsets_topic.form import read_value

GROUP_METADATA = 2
_OFFSET_COMMITS = (0, 1)

VALUES: dict[int, type] = {
    3: record_values.ConsumerGroupMetadata,
    4: record_values.ConsumerGroupPartitionMetadata,
    5: record_values.ConsumerGroupMemberMetadata,
    6: record_values.TargetAssignmentMetadata,
    7: record_values.ConsumerGroupTargetAssignmentMember,
    8: record_values.ConsumerGroupCurrentMemberAssignment,
    16: record_values.ConsumerGroupRegularExpression,
    17: record_values.StreamsGroupMetadata,
    19: record_values.StreamsGroupMemberMetadata,
    20: record_values.TargetAssignmentMetadata,
    21: record_values.StreamsGroupTargetAssignmentMember,
    22: record_values.StreamsGroupCurrentMemberAssignment,
    23: record_values.StreamsGroupTopology,
}
"""Kind of the key (Kafka 4.3, CoordinatorRecordType) -> form of the value. Kinds 10 to 15 are of
share groups, whose values are not read.
"""
_OF_A_MEMBER = (5, 7, 8, 10, 13, 14, 16, 19, 21, 22)
"""Kinds whose key has a second text: a member's id, or a subscription's pattern (16)."""
_CONSUMER = (*range(3, 9), 16)
_SHARE = range(9, 16)
_STREAMS = range(17, 24)


class RawRecord(NamedTuple):
    """One record of `__consumer_offsets`. `value` None: a tombstone."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes
    value: bytes | None


@attrs.frozen(kw_only=True)
class GroupRecord:
    """A record about a group. `kind`: of its key. `name`: the member's id or the pattern where the
    key has one. `value` None: a tombstone, or a kind that is not read (`VALUES`).
    """

    kind: int
    group: str
    name: str | None = None
    value: object = None
    deleted: bool = False

    @property
    def of_consumers(self) -> bool:
        """Returns whether the group is one of KIP-848."""
        return self.kind in _CONSUMER

    @property
    def of_streams(self) -> bool:
        """Returns whether the group is one of KIP-1071."""
        return self.kind in _STREAMS

    @property
    def of_share(self) -> bool:
        """Returns whether the group is a share group (KIP-932)."""
        return self.kind in _SHARE


def read_group_record(offset: int, key: bytes, value: bytes | None) -> OffsetCommit | GroupRecord | None:
    """Reads a record of any group. Returns None for a kind that Kafka 4.3 does not have. Raises
    WireError.
    """
    reader = ByteReader(key, offset, "key")
    kind = reader.int16("kind of the key")
    if kind in _OFFSET_COMMITS:
        return read_commit(reader, value)
    if kind < 0:
        raise reader.error(f"kind {kind} is negative", 0)
    if kind > _STREAMS.stop - 1:
        return None
    group = reader.string("group")
    name = reader.string("member or pattern") if kind in _OF_A_MEMBER else None
    if value is None:
        return GroupRecord(kind=kind, group=group, name=name, deleted=True)
    content: object = None
    if kind == GROUP_METADATA:
        content = read_classic_group(group, ByteReader(value, offset, "value"))
    elif (form := VALUES.get(kind)) is not None:
        content = read_value(form, ByteReader(value, offset, "value"), form.__name__)
    return GroupRecord(kind=kind, group=group, name=name, value=content)


def read_commit(reader: ByteReader, value: bytes | None, only_group: str | None = None) -> OffsetCommit | None:
    """Reads a commit behind the kind of its key. Returns None for a group other than `only_group`,
    whose value is not read. Raises WireError.
    """
    group, topic, partition = reader.string("group"), reader.string("topic"), reader.int32("partition")
    if partition < 0:
        raise reader.error(f"partition {partition} is negative", reader.position - 4)
    reader.finish("the key of an offset commit")
    if only_group is not None and group != only_group:
        return None
    committed = None if value is None else read_offset_commit(ByteReader(value, reader.offset, "value"))
    return OffsetCommit(group=group, topic=topic, partition=partition, committed=committed)


__all__ = ["GROUP_METADATA", "VALUES", "ClassicGroup", "GroupRecord", "OffsetCommit", "RawRecord", "read_commit", "read_group_record"]
