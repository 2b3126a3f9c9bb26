"""Groups of KIP-848 and KIP-1071 as brokers describe them (ConsumerGroupDescribe 0 and 1,
StreamsGroupDescribe 0), and the records that their coordinator has of them.
"""

# ruff: noqa: RUF009 - `wire` makes fields of attrs, which the rule does not know
from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

import attrs

from equipoise.kafka.offsets_topic import record_values
from equipoise.kafka.offsets_topic.byte_reader import ByteReader
from equipoise.kafka.offsets_topic.form import (
    int8,
    int16,
    int32,
    int64,
    many,
    nullable_many,
    nullable_part,
    nullable_text,
    part,
    read_fields,
    text,
    wire,
    write_value,
)
from equipoise.kafka.offsets_topic.record_writing import key_of

Tasks = record_values.StreamsGroupTargetAssignmentMember
_STABLE, _UNREVOKED, _UNRELEASED = 0, 1, 2
"""`CONSUMER_STATES`; those of `STREAMS_STATES` are one more each."""
_UNKNOWN = 0


@attrs.frozen(kw_only=True)
class DescribedTaskOffset:
    subtopology_id: str = wire(text)
    partition: int = wire(int32)
    offset: int = wire(int64)


@attrs.frozen(kw_only=True)
class DescribedSubtopology:
    subtopology_id: str = wire(text)
    source_topics: tuple[str, ...] = wire(many(text))
    repartition_sink_topics: tuple[str, ...] = wire(many(text))
    state_changelog_topics: tuple[record_values.TopicInfo, ...] = wire(many(part(record_values.TopicInfo), 9))
    repartition_source_topics: tuple[record_values.TopicInfo, ...] = wire(many(part(record_values.TopicInfo), 9))


@attrs.frozen(kw_only=True)
class DescribedTopology:
    epoch: int = wire(int32)
    subtopologies: tuple[DescribedSubtopology, ...] = wire(nullable_many(part(DescribedSubtopology), 5))


@attrs.frozen(kw_only=True)
class DescribedStreamsMember:
    member_id: str = wire(text)
    member_epoch: int = wire(int32)
    instance_id: str | None = wire(nullable_text)
    rack_id: str | None = wire(nullable_text)
    client_id: str = wire(text)
    client_host: str = wire(text)
    topology_epoch: int = wire(int32)
    process_id: str = wire(text)
    user_endpoint: record_values.Endpoint | None = wire(nullable_part(record_values.Endpoint))
    client_tags: tuple[record_values.KeyValue, ...] = wire(many(part(record_values.KeyValue), 3))
    task_offsets: tuple[DescribedTaskOffset, ...] = wire(many(part(DescribedTaskOffset), 13))
    task_end_offsets: tuple[DescribedTaskOffset, ...] = wire(many(part(DescribedTaskOffset), 13))
    assignment: Tasks = wire(part(Tasks))
    target_assignment: Tasks = wire(part(Tasks))
    is_classic: int = wire(int8)


@attrs.frozen(kw_only=True)
class DescribedStreamsGroup:
    error_code: int = wire(int16)
    error_message: str | None = wire(nullable_text)
    group: str = wire(text)
    state: str = wire(text)
    group_epoch: int = wire(int32)
    assignment_epoch: int = wire(int32)
    topology: DescribedTopology | None = wire(nullable_part(DescribedTopology))
    members: tuple[DescribedStreamsMember, ...] = wire(many(part(DescribedStreamsMember), 20))
    authorized_operations: int = wire(int32)


@attrs.frozen(kw_only=True)
class DescribedStreamsGroups:
    throttle_time_ms: int = wire(int32)
    groups: tuple[DescribedStreamsGroup, ...] = wire(many(part(DescribedStreamsGroup), 20))


def read_streams_groups(body: bytes) -> tuple[DescribedStreamsGroup, ...]:
    """Reads the answer to StreamsGroupDescribe. Raises WireError."""
    return read_fields(DescribedStreamsGroups, ByteReader(body, -1, "answer")).groups


def records_of_consumers(group: Mapping[str, Any]) -> dict[bytes, bytes]:
    """The records, key -> value, of a group as ConsumerGroupDescribe shows it."""
    name, found = group["group"], {key_of(3, group["group"]): write_value(record_values.ConsumerGroupMetadata(epoch=group["group_epoch"]))}
    found[key_of(6, name)] = write_value(record_values.TargetAssignmentMetadata(assignment_epoch=group["assignment_epoch"]))
    for each in group["members"]:
        member, has, target = each["member_id"], _partitions(each["assignment"]), _partitions(each["target_assignment"])
        described = record_values.ConsumerGroupMemberMetadata(
            instance_id=each["instance_id"],
            rack_id=each["rack_id"],
            client_id=each["client_id"],
            client_host=each["client_host"],
            subscribed_topic_names=tuple(each["subscribed_topic_names"]),
            subscribed_topic_regex=each["subscribed_topic_regex"],
            rebalance_timeout_ms=_UNKNOWN,
            server_assignor=group["assignor"] or None,
        )
        owned = tuple(record_values.OwnedPartitions(topic_id=topic, partitions=numbers) for topic, numbers in has.items())
        current = record_values.ConsumerGroupCurrentMemberAssignment(
            member_epoch=each["member_epoch"],
            previous_member_epoch=each["member_epoch"],
            state=_state(_pairs(has.items()), _pairs(target.items())),
            assigned_partitions=owned,
            partitions_pending_revocation=(),
        )
        wanted = tuple(record_values.TopicPartitions(topic_id=topic, partitions=numbers) for topic, numbers in target.items())
        found[key_of(5, name, member)] = write_value(described)
        found[key_of(7, name, member)] = write_value(record_values.ConsumerGroupTargetAssignmentMember(topic_partitions=wanted))
        found[key_of(8, name, member)] = write_value(current)
    return found


def topics_of(group: Mapping[str, Any]) -> dict[str, str]:
    """Topic id -> topic, of a group as ConsumerGroupDescribe shows it."""
    assignments = [each[name] for each in group["members"] for name in ("assignment", "target_assignment")]
    return {str(UUID(bytes=each["topic_id"])): each["topic_name"] for found in assignments for each in found["topic_partitions"]}


def records_of_streams(group: DescribedStreamsGroup) -> dict[bytes, bytes]:
    """The same of a group as StreamsGroupDescribe shows it."""
    name = group.group
    found = {key_of(17, name): write_value(record_values.StreamsGroupMetadata(epoch=group.group_epoch, metadata_hash=_UNKNOWN))}
    found[key_of(20, name)] = write_value(record_values.TargetAssignmentMetadata(assignment_epoch=group.assignment_epoch))
    if group.topology is not None:
        parts = tuple(
            record_values.StreamsSubtopology(
                subtopology_id=each.subtopology_id,
                source_topics=each.source_topics,
                source_topic_regex=(),
                state_changelog_topics=each.state_changelog_topics,
                repartition_sink_topics=each.repartition_sink_topics,
                repartition_source_topics=each.repartition_source_topics,
                copartition_groups=(),
            )
            for each in group.topology.subtopologies
        )
        found[key_of(23, name)] = write_value(record_values.StreamsGroupTopology(epoch=group.topology.epoch, subtopologies=parts))
    for each in group.members:
        described = record_values.StreamsGroupMemberMetadata(
            instance_id=each.instance_id,
            rack_id=each.rack_id,
            client_id=each.client_id,
            client_host=each.client_host,
            rebalance_timeout_ms=_UNKNOWN,
            topology_epoch=each.topology_epoch,
            process_id=each.process_id,
            user_endpoint=each.user_endpoint,
            client_tags=each.client_tags,
        )
        has, target = each.assignment, each.target_assignment
        current = record_values.StreamsGroupCurrentMemberAssignment(
            member_epoch=each.member_epoch,
            previous_member_epoch=each.member_epoch,
            state=1 + _state(_tasks(has), _tasks(target)),
            active_tasks=_owned(has.active_tasks),
            standby_tasks=_owned(has.standby_tasks),
            warmup_tasks=_owned(has.warmup_tasks),
            active_tasks_pending_revocation=(),
            standby_tasks_pending_revocation=(),
            warmup_tasks_pending_revocation=(),
        )
        found[key_of(19, name, each.member_id)] = write_value(described)
        found[key_of(21, name, each.member_id)] = write_value(target)
        found[key_of(22, name, each.member_id)] = write_value(current)
    return found


def _partitions(assignment: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Topic id -> partitions, in order."""
    found = {str(UUID(bytes=each["topic_id"])): tuple(sorted(each["partitions"])) for each in assignment["topic_partitions"]}
    return dict(sorted(found.items()))


def _owned(tasks: Iterable[record_values.TaskIds]) -> tuple[record_values.OwnedTaskIds, ...]:
    return tuple(record_values.OwnedTaskIds(subtopology_id=each.subtopology_id, partitions=each.partitions) for each in tasks)


def _tasks(assignment: Tasks) -> set[tuple[str, int]]:
    return _pairs((each.subtopology_id, each.partitions) for each in assignment.active_tasks)


def _pairs(parts: Iterable[tuple[str, Iterable[int]]]) -> set[tuple[str, int]]:
    return {(name, number) for name, numbers in parts for number in numbers}


def _state(has: set[tuple[str, int]], target: set[tuple[str, int]]) -> int:
    """Returns what a member waits for, by what it has and will have: brokers do not describe it."""
    if has - target:
        return _UNREVOKED
    return _UNRELEASED if target - has else _STABLE
