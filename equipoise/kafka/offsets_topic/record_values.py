"""Values of the records that groups of KIP-848 (consumers), KIP-1071 (Kafka Streams) and KIP-932
(share groups) write to `__consumer_offsets`: the schemas of Apache Kafka 4.3.1,
group-coordinator/src/main/resources/common/message. Names are Kafka's.
"""

# ruff: noqa: RUF009 - `wire` and `tagged` make fields of attrs, which the rule does not know
from __future__ import annotations

import attrs

from equipoise.kafka.offsets_topic.form import (
    data,
    int8,
    int16,
    int32,
    int64,
    many,
    nullable_part,
    nullable_text,
    part,
    tagged,
    text,
    uint16,
    uuid,
    wire,
)


@attrs.frozen(kw_only=True)
class ConsumerGroupMetadata:
    """The epoch of a group of KIP-848: it rises with each change that asks for another assignment."""

    epoch: int = wire(int32)
    metadata_hash: int = tagged(0, int64, default=0)


@attrs.frozen(kw_only=True)
class PartitionRacks:
    partition: int = wire(int32)
    racks: tuple[str, ...] = wire(many(text))


@attrs.frozen(kw_only=True)
class TopicMetadata:
    topic_id: str = wire(uuid)
    topic_name: str = wire(text)
    num_partitions: int = wire(int32)
    partition_metadata: tuple[PartitionRacks, ...] = wire(many(part(PartitionRacks), 6))


@attrs.frozen(kw_only=True)
class ConsumerGroupPartitionMetadata:
    """Topics that the group reads. Brokers from 4.1 on keep a hash instead (`metadata_hash`)."""

    topics: tuple[TopicMetadata, ...] = wire(many(part(TopicMetadata), 23))


@attrs.frozen(kw_only=True)
class ClassicProtocol:
    name: str = wire(text)
    metadata: bytes = wire(data)


@attrs.frozen(kw_only=True)
class ClassicMemberMetadata:
    session_timeout_ms: int = wire(int32)
    supported_protocols: tuple[ClassicProtocol, ...] = wire(many(part(ClassicProtocol), 3))


@attrs.frozen(kw_only=True)
class ConsumerGroupMemberMetadata:
    """`classic_member_metadata`: of a member that still speaks the classic protocol; else None."""

    instance_id: str | None = wire(nullable_text)
    rack_id: str | None = wire(nullable_text)
    client_id: str = wire(text)
    client_host: str = wire(text)
    subscribed_topic_names: tuple[str, ...] = wire(many(text))
    subscribed_topic_regex: str | None = wire(nullable_text)
    rebalance_timeout_ms: int = wire(int32)
    server_assignor: str | None = wire(nullable_text)
    classic_member_metadata: ClassicMemberMetadata | None = tagged(0, nullable_part(ClassicMemberMetadata), default=None)


@attrs.frozen(kw_only=True)
class TargetAssignmentMetadata:
    """The group epoch for which the target was computed, and when (0: not said)."""

    assignment_epoch: int = wire(int32)
    assignment_timestamp: int = tagged(0, int64, default=0)


@attrs.frozen(kw_only=True)
class TopicPartitions:
    topic_id: str = wire(uuid)
    partitions: tuple[int, ...] = wire(many(int32, 4))


@attrs.frozen(kw_only=True)
class OwnedPartitions(TopicPartitions):
    """`assignment_epochs`: of each partition, where the broker keeps them (KIP-1251); else ()."""

    assignment_epochs: tuple[int, ...] = tagged(0, many(int32, 4), default=())


@attrs.frozen(kw_only=True)
class ConsumerGroupTargetAssignmentMember:
    topic_partitions: tuple[TopicPartitions, ...] = wire(many(part(TopicPartitions), 18))


@attrs.frozen(kw_only=True)
class ConsumerGroupCurrentMemberAssignment:
    """What a member has. `state`: of `CONSUMER_STATES`."""

    member_epoch: int = wire(int32)
    previous_member_epoch: int = wire(int32)
    state: int = wire(int8)
    assigned_partitions: tuple[OwnedPartitions, ...] = wire(many(part(OwnedPartitions), 18))
    partitions_pending_revocation: tuple[OwnedPartitions, ...] = wire(many(part(OwnedPartitions), 18))


@attrs.frozen(kw_only=True)
class ConsumerGroupRegularExpression:
    """The topics that a subscription's pattern matches."""

    topics: tuple[str, ...] = wire(many(text))
    version: int = wire(int64)
    timestamp: int = wire(int64)


@attrs.frozen(kw_only=True)
class KeyValue:
    key: str = wire(text)
    value: str = wire(text)


@attrs.frozen(kw_only=True)
class StreamsGroupMetadata:
    epoch: int = wire(int32)
    metadata_hash: int = wire(int64)
    validated_topology_epoch: int = tagged(0, int32, default=-1)
    last_assignment_configs: tuple[KeyValue, ...] = tagged(1, many(part(KeyValue), 3), default=())


@attrs.frozen(kw_only=True)
class Endpoint:
    host: str = wire(text)
    port: int = wire(uint16)


@attrs.frozen(kw_only=True)
class StreamsGroupMemberMetadata:
    instance_id: str | None = wire(nullable_text)
    rack_id: str | None = wire(nullable_text)
    client_id: str = wire(text)
    client_host: str = wire(text)
    rebalance_timeout_ms: int = wire(int32)
    topology_epoch: int = wire(int32)
    process_id: str = wire(text)
    user_endpoint: Endpoint | None = wire(nullable_part(Endpoint))
    client_tags: tuple[KeyValue, ...] = wire(many(part(KeyValue), 3))


@attrs.frozen(kw_only=True)
class TaskIds:
    subtopology_id: str = wire(text)
    partitions: tuple[int, ...] = wire(many(int32, 4))


@attrs.frozen(kw_only=True)
class OwnedTaskIds(TaskIds):
    """`assignment_epochs`: as of partitions."""

    assignment_epochs: tuple[int, ...] = tagged(0, many(int32, 4), default=())


@attrs.frozen(kw_only=True)
class StreamsGroupTargetAssignmentMember:
    active_tasks: tuple[TaskIds, ...] = wire(many(part(TaskIds), 3))
    standby_tasks: tuple[TaskIds, ...] = wire(many(part(TaskIds), 3))
    warmup_tasks: tuple[TaskIds, ...] = wire(many(part(TaskIds), 3))


Owned = tuple[OwnedTaskIds, ...]
_owned = many(part(OwnedTaskIds), 3)


@attrs.frozen(kw_only=True)
class StreamsGroupCurrentMemberAssignment:
    """What a member has. `state`: of `STREAMS_STATES`."""

    member_epoch: int = wire(int32)
    previous_member_epoch: int = wire(int32)
    state: int = wire(int8)
    active_tasks: Owned = wire(_owned)
    standby_tasks: Owned = wire(_owned)
    warmup_tasks: Owned = wire(_owned)
    active_tasks_pending_revocation: Owned = wire(_owned)
    standby_tasks_pending_revocation: Owned = wire(_owned)
    warmup_tasks_pending_revocation: Owned = wire(_owned)


@attrs.frozen(kw_only=True)
class TopicInfo:
    name: str = wire(text)
    partitions: int = wire(int32)
    replication_factor: int = wire(int16)
    topic_configs: tuple[KeyValue, ...] = wire(many(part(KeyValue), 3))


@attrs.frozen(kw_only=True)
class CopartitionGroup:
    """Indexes into the topics of the sub-topology."""

    source_topics: tuple[int, ...] = wire(many(int16, 2))
    source_topic_regex: tuple[int, ...] = wire(many(int16, 2))
    repartition_source_topics: tuple[int, ...] = wire(many(int16, 2))


@attrs.frozen(kw_only=True)
class StreamsSubtopology:
    subtopology_id: str = wire(text)
    source_topics: tuple[str, ...] = wire(many(text))
    source_topic_regex: tuple[str, ...] = wire(many(text))
    state_changelog_topics: tuple[TopicInfo, ...] = wire(many(part(TopicInfo), 9))
    repartition_sink_topics: tuple[str, ...] = wire(many(text))
    repartition_source_topics: tuple[TopicInfo, ...] = wire(many(part(TopicInfo), 9))
    copartition_groups: tuple[CopartitionGroup, ...] = wire(many(part(CopartitionGroup), 4))


@attrs.frozen(kw_only=True)
class StreamsGroupTopology:
    epoch: int = wire(int32)
    subtopologies: tuple[StreamsSubtopology, ...] = wire(many(part(StreamsSubtopology), 8))


CONSUMER_STATES = {0: "stable", 1: "unrevoked", 2: "unreleased"}
"""`MemberState` of org.apache.kafka.coordinator.group.modern."""
STREAMS_STATES = {1: "stable", 2: "unrevoked", 3: "unreleased"}
"""`MemberState` of org.apache.kafka.coordinator.group.streams: one more each."""
