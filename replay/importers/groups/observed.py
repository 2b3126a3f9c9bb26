"""Groups of every kind in one form, folded from the records that coordinators write.

A piece of *work* is what one member at a time does: a partition (``orders-3``), a task of Kafka
Streams (``0_3``), a connector or a task of Kafka Connect (``sink``, ``sink-0``).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping

import attrs

from equipoise.kafka.offsets_topic import record_values
from equipoise.kafka.offsets_topic.byte_reader import ByteReader, WireError
from equipoise.kafka.offsets_topic.classic import ClassicGroup, ClassicMember, OffsetCommit
from equipoise.kafka.offsets_topic.connect_protocol import CONNECTOR, Connectors, read_connect_assignment, read_worker_state
from equipoise.kafka.offsets_topic.consumer_protocol import read_assignment, read_subscription
from equipoise.kafka.offsets_topic.record_keys import GROUP_METADATA, GroupRecord, RawRecord, read_group_record
from equipoise.replay.importers.kafka_streams.offsets_records import NEVER_MS, STREAMS_PROTOCOL, streams_member

Work = frozenset[str]
NOTHING: Work = frozenset()


class GroupKind(enum.StrEnum):
    """What leads a group, and what its members are."""

    CLASSIC_CONSUMER = "classic consumer"
    CLASSIC_STREAMS = "classic streams"
    CONNECT = "connect"
    CONSUMER = "consumer"
    """KIP-848, ``group.protocol=consumer``."""
    STREAMS = "streams"
    """KIP-1071, ``group.protocol=streams``."""
    SHARE = "share"
    """KIP-932: its members share partitions, so it is named, and passed over."""
    OTHER = "other"
    """A classic group of another protocol type, whose bytes only its members read."""
    OFFSETS = "offsets only"
    """Nobody joins it: a classic group of protocol type "" with commits."""


@attrs.frozen(kw_only=True)
class ClusterMember:
    """A member as its coordinator stored it. `epoch`: of its assignment, -1 in a classic group.
    `state`: ``stable``, ``unrevoked`` (it has to give something up first), ``unreleased`` (it waits
    for what others have), or "" where nothing is said. `active`: what it may work on. `revoking`:
    what it has to give up. `target`: what it will have, None in a classic group. `problem`: why its
    bytes were not read, else "". `inputs`: task of Kafka Streams -> its partitions, in a classic
    group. `rejoin_ms`: when it was asked to join again, -1: it was not.
    """

    member_id: str
    instance_id: str | None = None
    client_id: str = ""
    host: str = ""
    rack: str | None = None
    process_id: str = ""
    rebalance_timeout_ms: int = -1
    session_timeout_ms: int = -1
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    epoch: int = -1
    state: str = ""
    active: Work = NOTHING
    standby: Work = NOTHING
    warmup: Work = NOTHING
    revoking: Work = NOTHING
    target: Work | None = None
    inputs: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict)
    rejoin_ms: int = -1
    problem: str = ""

    @property
    def is_seat(self) -> bool:
        """Returns whether it is a seat of equipoise, which reads nothing."""
        return self.client_id == SEAT


_ADOPTING = "equipoise-member"
"""What ids of members that hold an adopted group begin with (`equipoise.kafka.held_group`)."""
SEAT = "equipoise-lead"
"""Client id of the members by which equipoise leads groups of others."""
ALONE = "nobody reads"
"""State of a group that has seats of equipoise, and nobody who reads."""


@attrs.frozen(kw_only=True)
class ObservedGroup:
    """A group as its coordinator stored it. `epoch`: the generation of a classic group, else the
    group epoch. `assignment_epoch`: the epoch that the target was computed for; behind `epoch` it
    is still to be computed. `protocol`: assignor of a classic group. `sources`: of a KIP-1071
    group, sub-topology -> its source topics. `stateful`: its sub-topologies with changelogs.
    `under_way`: what a classic group's rebalance that is not over waits for: ``joining``: members;
    ``syncing``: its leader's assignment; "": there is none, or nobody asked. `awaited`: members of
    the last generation that are still in the group: some of them have not joined this one.
    """

    name: str
    kind: GroupKind
    epoch: int = 0
    assignment_epoch: int = 0
    protocol: str = ""
    leader: str | None = None
    members: Mapping[str, ClusterMember] = attrs.field(factory=dict)
    sources: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict)
    stateful: Work = NOTHING
    topology_epoch: int = -1
    under_way: str = ""
    awaited: tuple[str, ...] = ()

    @property
    def is_adopted(self) -> bool:
        """Returns whether members of equipoise hold it, which read in the place of its consumers
        (`equipoise migrate --to members`) and commit elsewhere.
        """
        return self.kind is GroupKind.OTHER and any(name.startswith(_ADOPTING) for name in self.members)

    @property
    def seats(self) -> dict[str, ClusterMember]:
        """The members by which equipoise leads the group, or stands by; they read nothing."""
        return {name: member for name, member in self.members.items() if member.is_seat}

    @property
    def readers(self) -> dict[str, ClusterMember]:
        """The members that are no seats."""
        return {name: member for name, member in self.members.items() if not member.is_seat}

    @property
    def state(self) -> str:
        """``empty``; `ALONE`; ``assigning``: the target is still to be computed; ``reconciling``: some
        member does not have its target yet; ``rebalancing``: a classic group, whose coordinator was
        asked; ``stable``. A classic group stores generations when they are complete, so of its
        stored state only ``empty`` and ``stable`` are seen.
        """
        if self.under_way:
            return "rebalancing"
        if not self.readers:
            return ALONE if self.members else "empty"
        if kind_is_classic(self.kind):
            return "stable"
        if self.assignment_epoch < self.epoch:
            return "assigning"
        behind = any(each.state not in ("stable", "") or each.epoch < self.assignment_epoch for each in self.members.values())
        return "reconciling" if behind else "stable"

    def partitions_of(self, work: str) -> tuple[str, ...]:
        """The partitions whose commits say that a piece of work goes on; (): Connect's say
        nothing.
        """
        if self.kind in (GroupKind.CLASSIC_CONSUMER, GroupKind.CONSUMER):
            return (work,)
        if self.kind is GroupKind.STREAMS:
            subtopology, _, partition = work.rpartition("_")
            return tuple(f"{topic}-{partition}" for topic in self.sources.get(subtopology, ()))
        return next((found for member in self.members.values() if (found := member.inputs.get(work))), ())

    @property
    def owners(self) -> dict[str, list[str]]:
        """Work -> the members that have it; more than one while it moves from one to another."""
        found: dict[str, list[str]] = {}
        for name, member in self.members.items():
            for work in member.active:
                found.setdefault(work, []).append(name)
        return found


class ObservedGroups:
    """All groups of a cluster. `names`: topic id -> topic; of an id that is not in it the id itself
    is used.
    """

    def __init__(self, names: Mapping[str, str] | None = None) -> None:
        self.groups: dict[str, ObservedGroup] = {}
        self.names: dict[str, str] = dict(names or {})
        self.commits: dict[tuple[str, str, int], tuple[int, int]] = {}
        """Group, topic and partition -> time (ms) and offset of its last commit."""
        self.unread: list[str] = []
        """Why records were passed over: each with its place."""
        self._targets: dict[str, dict[str, Work]] = {}

    def read(self, raw: RawRecord) -> ObservedGroup | None:
        """Reads one record and folds it. Returns what `apply` does; None for a commit."""
        try:
            record = read_group_record(raw.offset, raw.key, raw.value)
        except WireError as error:
            self.unread.append(f"partition {raw.partition}: {error}")
            return None
        if isinstance(record, OffsetCommit):
            place = record.group, record.topic, record.partition
            if record.committed is None:
                self.commits.pop(place, None)
            else:
                self.commits[place] = raw.timestamp_ms, record.committed
            return None
        return None if record is None else self.apply(record, raw.timestamp_ms)

    def apply(self, record: GroupRecord, at_ms: int = 0) -> ObservedGroup | None:
        """Folds one record, which was written at `at_ms`. Returns the group as it is now; None: it
        is gone, or the record says nothing about it.
        """
        kind = _kind_of(record)
        if kind is GroupKind.CONSUMER and isinstance(record.value, record_values.ConsumerGroupPartitionMetadata):
            self.names.update((topic.topic_id, topic.topic_name) for topic in record.value.topics)
            return None
        if record.deleted:
            return self._forget(record)
        before = self.groups.get(record.group)
        if isinstance(record.value, ClassicGroup):
            group = _classic(record.value, at_ms)
        else:
            group = before if before is not None and before.kind is kind else ObservedGroup(name=record.group, kind=kind)
            group = self._modern(group, record)
        if before is not None and before.kind is not group.kind:
            self._targets.pop(record.group, None)
        self.groups[record.group] = group
        return group

    def _forget(self, record: GroupRecord) -> ObservedGroup | None:
        """A tombstone: of the group, or of one member's part. One of a kind that the group no
        longer is comes from its move to another protocol.
        """
        group = self.groups.get(record.group)
        if group is None or _kind_of(record) is not (GroupKind.OTHER if kind_is_classic(group.kind) else group.kind):
            return group
        if record.kind in (GROUP_METADATA, 3, 11, 17):
            del self.groups[record.group]
            self._targets.pop(record.group, None)
            return None
        member = group.members.get(record.name or "")
        if record.kind in (7, 21):
            self._targets.get(record.group, {}).pop(record.name or "", None)
            if member is not None:
                group = _with(group, attrs.evolve(member, target=NOTHING))
        elif record.kind in (5, 19):
            group = attrs.evolve(group, members={name: each for name, each in group.members.items() if name != record.name})
        elif record.kind in (8, 22) and member is not None:
            group = _with(group, attrs.evolve(member, epoch=-1, state="", active=NOTHING, standby=NOTHING, warmup=NOTHING, revoking=NOTHING))
        self.groups[record.group] = group
        return group

    def _modern(self, group: ObservedGroup, record: GroupRecord) -> ObservedGroup:
        value, name = record.value, record.name or ""
        targets = self._targets.setdefault(record.group, {})
        member = group.members.get(name) or ClusterMember(member_id=name, target=targets.get(name, NOTHING))
        match value:
            case record_values.ConsumerGroupMetadata() | record_values.StreamsGroupMetadata():
                return attrs.evolve(group, epoch=value.epoch)
            case record_values.TargetAssignmentMetadata():
                return attrs.evolve(group, assignment_epoch=value.assignment_epoch)
            case record_values.StreamsGroupTopology():
                sources = {
                    each.subtopology_id: (*each.source_topics, *(topic.name for topic in each.repartition_source_topics))
                    for each in value.subtopologies
                }
                stateful = frozenset(each.subtopology_id for each in value.subtopologies if each.state_changelog_topics)
                return attrs.evolve(group, sources=sources, stateful=stateful, topology_epoch=value.epoch)
            case record_values.ConsumerGroupMemberMetadata():
                classic = value.classic_member_metadata
                member = attrs.evolve(
                    _described(member, value),
                    topics=value.subscribed_topic_names,
                    pattern=value.subscribed_topic_regex or None,
                    session_timeout_ms=-1 if classic is None else classic.session_timeout_ms,
                )
            case record_values.StreamsGroupMemberMetadata():
                member = attrs.evolve(_described(member, value), process_id=value.process_id)
            case record_values.ConsumerGroupTargetAssignmentMember():
                targets[name] = self._partitions(value.topic_partitions)
                if name not in group.members:
                    return group
                member = attrs.evolve(member, target=targets[name])
            case record_values.StreamsGroupTargetAssignmentMember():
                targets[name] = _tasks(value.active_tasks)
                if name not in group.members:
                    return group
                member = attrs.evolve(member, target=targets[name])
            case record_values.ConsumerGroupCurrentMemberAssignment():
                member = attrs.evolve(
                    member,
                    epoch=value.member_epoch,
                    state=record_values.CONSUMER_STATES.get(value.state, str(value.state)),
                    active=self._partitions(value.assigned_partitions) | self._partitions(value.partitions_pending_revocation),
                    revoking=self._partitions(value.partitions_pending_revocation),
                )
            case record_values.StreamsGroupCurrentMemberAssignment():
                revoking = _tasks(value.active_tasks_pending_revocation)
                member = attrs.evolve(
                    member,
                    epoch=value.member_epoch,
                    state=record_values.STREAMS_STATES.get(value.state, str(value.state)),
                    active=_tasks(value.active_tasks) | revoking,
                    standby=_tasks(value.standby_tasks) | _tasks(value.standby_tasks_pending_revocation),
                    warmup=_tasks(value.warmup_tasks) | _tasks(value.warmup_tasks_pending_revocation),
                    revoking=revoking,
                )
            case _:
                return group
        return _with(group, member)

    def _partitions(self, topics: Iterable[record_values.TopicPartitions]) -> Work:
        return frozenset(f"{self.names.get(each.topic_id, each.topic_id)}-{partition}" for each in topics for partition in each.partitions)


def kind_is_classic(kind: GroupKind) -> bool:
    """Returns whether members join and synchronise in generations, which their leader deals."""
    return kind not in (GroupKind.CONSUMER, GroupKind.STREAMS, GroupKind.SHARE)


def _kind_of(record: GroupRecord) -> GroupKind:
    """By the record's key; OTHER: any classic group."""
    if record.of_consumers:
        return GroupKind.CONSUMER
    if record.of_streams:
        return GroupKind.STREAMS
    return GroupKind.SHARE if record.of_share else GroupKind.OTHER


def _with(group: ObservedGroup, member: ClusterMember) -> ObservedGroup:
    return attrs.evolve(group, members={**group.members, member.member_id: member})


def _described(member: ClusterMember, value: record_values.ConsumerGroupMemberMetadata | record_values.StreamsGroupMemberMetadata) -> ClusterMember:
    return attrs.evolve(
        member,
        instance_id=value.instance_id,
        client_id=value.client_id,
        host=value.client_host,
        rack=value.rack_id or None,
        rebalance_timeout_ms=value.rebalance_timeout_ms,
    )


def _tasks(tasks: Iterable[record_values.TaskIds]) -> Work:
    return frozenset(f"{each.subtopology_id}_{partition}" for each in tasks for partition in each.partitions)


def _classic(read: ClassicGroup, at_ms: int) -> ObservedGroup:
    kind = classic_kind(read.protocol_type, read.protocol)
    return ObservedGroup(
        name=read.group,
        kind=kind,
        epoch=read.generation,
        assignment_epoch=read.generation,
        protocol=read.protocol or "",
        leader=read.leader,
        members={member.member_id: _classic_member(member, kind, at_ms) for member in read.members},
    )


def classic_kind(protocol_type: str, protocol: str | None) -> GroupKind:
    """Returns what a group of the classic protocol is."""
    if protocol_type == "consumer":
        return GroupKind.CLASSIC_STREAMS if protocol == STREAMS_PROTOCOL else GroupKind.CLASSIC_CONSUMER
    if protocol_type == "connect":
        return GroupKind.CONNECT
    return GroupKind.OTHER if protocol_type else GroupKind.OFFSETS


def _classic_member(member: ClassicMember, kind: GroupKind, at_ms: int) -> ClusterMember:
    plain = ClusterMember(
        member_id=member.member_id,
        instance_id=member.static_id,
        client_id=member.client_id,
        host=member.host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        session_timeout_ms=member.session_timeout_ms,
    )
    try:
        return _read(plain, member, kind, at_ms)
    except WireError as error:  # the bytes are the application's: one that writes its own does not hide the group
        return attrs.evolve(plain, problem=error.problem)


def _read(plain: ClusterMember, member: ClassicMember, kind: GroupKind, at_ms: int) -> ClusterMember:
    if kind is GroupKind.CLASSIC_STREAMS:
        streams = streams_member(member)
        inputs: dict[str, tuple[str, ...]] = {}
        for task, (topic, partition) in zip(streams.assignment.active, streams.assignment.input_partitions(), strict=True):
            inputs[str(task)] = (*inputs.get(str(task), ()), f"{topic}-{partition}")
        return attrs.evolve(
            plain,
            inputs=inputs,
            rejoin_ms=-1 if streams.assignment.next_rebalance_ms == NEVER_MS else streams.assignment.next_rebalance_ms,
            topics=streams.subscription.topics,
            process_id=streams.subscription.process_id,
            rack=streams.subscription.rack,
            active=frozenset(map(str, streams.assignment.active)),
            standby=frozenset(map(str, streams.assignment.standby)),
        )
    if kind is GroupKind.CLASSIC_CONSUMER:
        subscription, assignment = read_subscription(_again(member.subscription)), read_assignment(_again(member.assignment))
        active = frozenset(f"{topic}-{partition}" for topic, partitions in assignment.partitions.items() for partition in partitions)
        return attrs.evolve(plain, topics=subscription.topics, rack=subscription.rack, active=active)
    if kind is GroupKind.CONNECT:
        owned, given = read_worker_state(_again(member.subscription)), read_connect_assignment(_again(member.assignment))
        active = (_connectors(owned.owns) if given.version else NOTHING) - _connectors(given.revoked) | _connectors(given.assigned)
        rejoin_ms = at_ms + given.delay_ms if given.delay_ms else -1
        return attrs.evolve(plain, active=active, revoking=_connectors(given.revoked), rejoin_ms=rejoin_ms)
    return plain


def _again(reader: ByteReader) -> ByteReader:
    """A reader of the same bytes, which reading does not move."""
    return ByteReader(reader.data, reader.offset, reader.part, reader.position, reader.end)


def _connectors(connectors: Connectors) -> Work:
    return frozenset(name if task == CONNECTOR else f"{name}-{task}" for name, tasks in connectors.items() for task in tasks)
