"""Decodes records of `__consumer_offsets`. Written from the public wire formats, for classic groups
led by Kafka Streams.

Formats (Apache Kafka's message definitions and KIPs):

- Records, commits, generations and the consumers' protocol are those of every classic group
  (`equipoise.kafka.offsets_topic`).
- Streams SubscriptionInfo: versions 1-11 (KIP-441: offset sums from 7 on; KIP-708: client tags in
  11).
- Streams AssignmentInfo: versions 1-11 (KIP-441: next rebalance from 7 on; named topologies from 10
  on).

All numbers are big-endian. Every read is bounded by its enclosing field and every count by the
bytes left, so truncated or mutated bytes end in a `WireError` with the record's offset and the byte
position, at a cost of at most their own length.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from equipoise.events.tasks import TaskId
from equipoise.kafka.offsets_topic.byte_reader import ByteReader, WireError
from equipoise.kafka.offsets_topic.classic import UNKNOWN_MS, ClassicMember, OffsetCommit, read_classic_group
from equipoise.kafka.offsets_topic.consumer_protocol import Partitions, read_assignment, read_subscription
from equipoise.kafka.offsets_topic.record_keys import read_commit
from equipoise.replay.wording import counted

__all__ = [
    "NEVER_MS",
    "RUNS_IT",
    "UNKNOWN_SUM",
    "GroupMetadata",
    "OffsetCommit",
    "StreamsAssignment",
    "StreamsSubscription",
    "WireError",
    "WireMember",
    "decode_record",
]

NEVER_MS = 2**63 - 1
"""`AssignmentInfo.next_rebalance_ms` when nothing is scheduled."""
DEFAULT_SESSION_MS = 45_000
"""``session.timeout.ms`` of a consumer that sets none."""
RUNS_IT = -2
"""Offset sum of a task that the member runs as active (Kafka Streams: `Task.LATEST_OFFSET`)."""
UNKNOWN_SUM = -3
"""Offset sum of a copy whose position is not known (`SubscriptionInfo.UNKNOWN_OFFSET_SUM`)."""


@attrs.frozen(kw_only=True)
class StreamsSubscription:
    """Contents of a consumer's subscription, with the Streams user data in it."""

    protocol_version: int
    topics: tuple[str, ...]
    owned_partitions: Partitions
    owned_generation: int
    rack: str | None
    version: int
    latest_supported_version: int
    process_id: str
    user_endpoint: str | None
    task_offset_sums: dict[TaskId, int]
    """task -> changelog offset sum, RUNS_IT or UNKNOWN_SUM. Before version 7 the wire has two lists
    only: RUNS_IT for the active tasks, UNKNOWN_SUM for the copies, as Kafka Streams reads them.
    """
    unique_field: int
    error_code: int
    tags: dict[str, str]


@attrs.frozen(kw_only=True)
class StreamsAssignment:
    """Contents of a consumer's assignment, with the Streams user data in it. `active[i]` reads the
    i-th of `input_partitions`.
    """

    protocol_version: int
    partitions: Partitions
    version: int
    commonly_supported_version: int
    active: tuple[TaskId, ...]
    standby: dict[TaskId, tuple[tuple[str, int], ...]]
    active_by_host: dict[str, tuple[tuple[str, int], ...]]
    standby_by_host: dict[str, tuple[tuple[str, int], ...]]
    error: int
    next_rebalance_ms: int

    def input_partitions(self) -> list[tuple[str, int]]:
        """All partitions in the order that pairs them with `active`: by topic, then partition, as
        Streams sorts them before pairing.
        """
        return sorted((topic, partition) for topic, partitions in self.partitions.items() for partition in partitions)


@attrs.frozen(kw_only=True)
class WireMember:
    """One consumer (a stream thread) in one generation."""

    member_id: str
    static_id: str | None
    client_id: str
    host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: StreamsSubscription
    assignment: StreamsAssignment


@attrs.frozen(kw_only=True)
class GroupMetadata:
    """One generation as the broker stored it. Without members: an empty group; `deleted`: the
    group's tombstone.
    """

    group: str
    record_version: int = -1
    protocol_type: str = ""
    generation: int = 0
    protocol: str | None = None
    leader: str | None = None
    state_timestamp: int = -1
    members: tuple[WireMember, ...] = ()
    deleted: bool = False


def decode_record(offset: int, key: bytes, value: bytes | None, only_group: str | None = None) -> OffsetCommit | GroupMetadata | None:
    """Decodes one record of `__consumer_offsets`. Returns None for a record of another group than
    `only_group` (its value is not read) and for a kind that classic groups do not write (consumer,
    share and streams groups have others).

    Raises WireError when the bytes do not follow the documented form or are of an unknown version,
    or the group is not led by Kafka Streams; the text says which.
    """
    reader = ByteReader(key, offset, "key")
    kind = reader.int16("kind of the key")
    if kind in (0, 1):
        return read_commit(reader, value, only_group)
    if kind == 2:
        group = reader.string("group")
        reader.finish("the key of a group's metadata")
        if only_group is not None and group != only_group:
            return None
        if value is None:
            return GroupMetadata(group=group, deleted=True)
        return _group_metadata(group, ByteReader(value, offset, "value"))
    if kind < 0:
        raise reader.error(f"kind {kind} is negative", 0)
    return None


READABLE = "equipoise reads groups of Kafka Streams that use the classic protocol (group.protocol=classic)"
"""What an error says about groups of other kinds."""

_KINDS = (
    (range(3, 9), "a consumer group of the protocol KIP-848 (group.protocol=consumer)"),
    (range(9, 16), "a share group (KIP-932)"),
    (range(16, 17), "a consumer group of the protocol KIP-848 (group.protocol=consumer)"),
    (range(17, 24), "a Kafka Streams group of the protocol KIP-1071 (group.protocol=streams)"),
)
"""Key kinds of `__consumer_offsets` (Kafka 4.3, CoordinatorRecordType) by the groups that write
them.
"""


def other_kind(key: bytes, group: str) -> str | None:
    """Returns what kind of group `group` is, when this key of `__consumer_offsets` shows that it is
    not a classic one; else None.
    """
    if len(key) < 4:
        return None
    kind, length = int.from_bytes(key[:2], "big"), int.from_bytes(key[2:4], "big")
    words = next((words for kinds, words in _KINDS if kind in kinds), None)
    return words if key[4 : 4 + length] == group.encode() else None


def _check_is_streams(reader: ByteReader, group: str, protocol_type: str, protocol: str | None) -> None:
    """Raises WireError for a classic group that is not of Kafka Streams. `protocol`: the name of
    its assignor; None while it has no members.
    """
    if protocol is None or (protocol_type, protocol) == ("consumer", STREAMS_PROTOCOL):
        return
    words = {"consumer": f"a group of plain consumers (assignor {protocol!r})", "connect": "a group of Kafka Connect workers"}
    what = words.get(protocol_type, f"a group of protocol type {protocol_type!r}")
    raise WireError(reader.offset, "value", 2, f"group {group!r} is {what}", READABLE)


STREAMS_PROTOCOL = "stream"
"""Name of Kafka Streams' assignor in the group's metadata (`StreamsPartitionAssignor.name`)."""


def _group_metadata(group: str, reader: ByteReader) -> GroupMetadata:
    read = read_classic_group(group, reader)
    _check_is_streams(reader, group, read.protocol_type, read.protocol)
    return GroupMetadata(
        group=group,
        record_version=read.record_version,
        protocol_type=read.protocol_type,
        generation=read.generation,
        protocol=read.protocol,
        leader=read.leader,
        state_timestamp=read.state_timestamp,
        members=tuple(streams_member(each) for each in read.members),
    )


def streams_member(member: ClassicMember) -> WireMember:
    """One thread of Kafka Streams, from what it joined with and was given. Raises WireError."""
    return WireMember(
        member_id=member.member_id,
        static_id=member.static_id,
        client_id=member.client_id,
        host=member.host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        session_timeout_ms=DEFAULT_SESSION_MS if member.session_timeout_ms == UNKNOWN_MS else member.session_timeout_ms,
        subscription=_subscription(member.subscription),
        assignment=_assignment(member.assignment),
    )


def _streams_data(reader: ByteReader, user_data: ByteReader | None, what: str) -> ByteReader:
    if user_data is None:
        raise reader.error(f"the {what} has no user data: its consumer is no Kafka Streams thread")
    return user_data


def _subscription(reader: ByteReader) -> StreamsSubscription:
    read = read_subscription(reader)
    user = _streams_data(reader, read.user_data, "subscription")
    return _subscription_info(user, read.version, read.topics, read.owned_partitions, read.owned_generation, read.rack)


def _assignment(reader: ByteReader) -> StreamsAssignment:
    read = read_assignment(reader)
    return _assignment_info(_streams_data(reader, read.user_data, "assignment"), read.version, read.partitions)


# -- Kafka Streams' user data
# --------------------------------------------------------------------------------------------------

NEWEST_STREAMS_VERSION = 11
OFFSET_SUMS_SINCE = 7
NAMED_TOPOLOGIES_SINCE = 10


def _streams_version(reader: ByteReader, what: str) -> int:
    version = reader.int32(f"version of the {what}")
    if not 1 <= version <= NEWEST_STREAMS_VERSION:
        problem = f"{what} of Kafka Streams protocol version {version} is not known here (1-{NEWEST_STREAMS_VERSION} are)"
        raise reader.error(problem, reader.position - 4)
    return version


def _task(reader: ByteReader) -> TaskId:
    start = reader.position
    subtopology, partition = reader.int32("sub-topology of a task"), reader.int32("partition of a task")
    if not (0 <= subtopology <= 999_999_999 and 0 <= partition < 1_000_000):
        raise reader.error(f"{subtopology}_{partition} is not a task id", start)
    return TaskId(subtopology, partition)


def _no_topology_name(reader: ByteReader, name: object) -> None:
    if name:
        raise reader.error("the task belongs to a named topology, which is not supported here")


def _assigned_task(reader: ByteReader, version: int) -> TaskId:
    task = _task(reader)
    if version >= NAMED_TOPOLOGIES_SINCE:
        characters = reader.int32("length of a topology name")
        if characters:
            reader.raw(reader.count(characters, 2, "characters of a topology name") * 2, "topology name")
            _no_topology_name(reader, characters)
    return task


def _offset_sums(reader: ByteReader, version: int) -> list[tuple[TaskId, int]]:
    if version < OFFSET_SUMS_SINCE:
        ran = reader.array(8, "previous tasks", _task)
        copies = reader.array(8, "standby tasks", _task)
        return [(task, RUNS_IT) for task in ran] + [(task, UNKNOWN_SUM) for task in copies]

    def flat(inner: ByteReader) -> list[tuple[TaskId, int]]:
        task, amount = _task(inner), inner.int64("offset sum")
        _no_topology_name(inner, inner.nullable_string("topology name"))
        return [(task, amount)]

    def grouped(inner: ByteReader) -> list[tuple[TaskId, int]]:
        subtopology = inner.int32("sub-topology")
        if not 0 <= subtopology <= 999_999_999:
            raise inner.error(f"{subtopology} is not a sub-topology", inner.position - 4)

        def one(each: ByteReader) -> tuple[TaskId, int]:
            partition = each.int32("partition of a task")
            if not 0 <= partition < 1_000_000:
                raise each.error(f"{partition} is not a task's partition", each.position - 4)
            return TaskId(subtopology, partition), each.int64("offset sum")

        return inner.array(12, "offset sums of a sub-topology", one)

    if version >= NAMED_TOPOLOGIES_SINCE:
        return [pair for pairs in reader.array(18, "offset sums", flat) for pair in pairs]
    return [pair for pairs in reader.array(8, "offset sums", grouped) for pair in pairs]


def _sized_text(reader: ByteReader, what: str) -> str:
    return reader.text(reader.int32(f"length of a {what}"), what)


def _subscription_info(
    reader: ByteReader, protocol_version: int, topics: tuple[str, ...], owned: Partitions, generation: int, rack: str | None
) -> StreamsSubscription:
    version = _streams_version(reader, "SubscriptionInfo")
    latest = reader.int32("latest supported version") if version >= 3 else -1
    process_id = reader.uuid("process id")
    early = _offset_sums(reader, version) if version < OFFSET_SUMS_SINCE else []
    endpoint: str | None = None
    if version >= 2:
        endpoint = reader.text(reader.int32("length of the user endpoint"), "user endpoint") or None
    sums: dict[TaskId, int] = {}
    for task, amount in early or (_offset_sums(reader, version) if version >= OFFSET_SUMS_SINCE else []):
        if task in sums:
            raise reader.error(f"task {task} has two offset sums")
        if amount < 0 and amount not in (RUNS_IT, UNKNOWN_SUM):
            raise reader.error(f"offset sum {amount} of task {task} is neither a number of records nor a known sentinel ({RUNS_IT}, {UNKNOWN_SUM})")
        sums[task] = amount
    unique_field = reader.int8("unique field") if version >= 8 else 0
    error_code = reader.int32("error code") if version >= 9 else 0
    tags: dict[str, str] = {}
    if version >= 11:
        for name, content in reader.array(8, "client tags", lambda inner: (_sized_text(inner, "tag"), _sized_text(inner, "tag's value"))):
            if name in tags:
                raise reader.error(f"client tag {name!r} is given twice")
            tags[name] = content
    reader.finish("the SubscriptionInfo")
    return StreamsSubscription(
        protocol_version=protocol_version,
        topics=topics,
        owned_partitions=owned,
        owned_generation=generation,
        rack=rack,
        version=version,
        latest_supported_version=latest,
        process_id=process_id,
        user_endpoint=endpoint,
        task_offset_sums=sums,
        unique_field=unique_field,
        error_code=error_code,
        tags=tags,
    )


def _topic_partitions(reader: ByteReader) -> tuple[tuple[str, int], ...]:
    return tuple(reader.array(6, "partitions", lambda inner: (inner.utf("topic"), inner.int32("partition"))))


def _host(reader: ByteReader) -> str:
    return f"{reader.utf('host')}:{reader.int32('port')}"


def _by_host(reader: ByteReader, partitions: Callable[[ByteReader], tuple[tuple[str, int], ...]]) -> dict[str, tuple[tuple[str, int], ...]]:
    return dict(reader.array(10, "hosts", lambda inner: (_host(inner), partitions(inner))))


def _assignment_info(reader: ByteReader, protocol_version: int, partitions: Partitions) -> StreamsAssignment:
    version = _streams_version(reader, "AssignmentInfo")
    common = reader.int32("commonly supported version") if version >= 3 else -1
    task_bytes = 12 if version >= NAMED_TOPOLOGIES_SINCE else 8
    active = tuple(reader.array(task_bytes, "active tasks", lambda inner: _assigned_task(inner, version)))
    standby: dict[TaskId, tuple[tuple[str, int], ...]] = {}
    for task, inputs in reader.array(task_bytes + 4, "standby tasks", lambda inner: (_assigned_task(inner, version), _topic_partitions(inner))):
        if task in standby:
            raise reader.error(f"standby task {task} is given twice")
        standby[task] = inputs
    active_by_host: dict[str, tuple[tuple[str, int], ...]] = {}
    standby_by_host: dict[str, tuple[tuple[str, int], ...]] = {}
    if version >= 5:  # topics by number from here on
        names = dict(reader.array(6, "topic names", lambda inner: (inner.int32("number of a topic"), inner.utf("topic"))))

        def numbered(inner: ByteReader) -> tuple[str, int]:
            number = inner.int32("number of a topic")
            if number not in names:
                raise inner.error(f"topic number {number} is not in the list of topic names", inner.position - 4)
            return names[number], inner.int32("partition")

        def numbered_partitions(inner: ByteReader) -> tuple[tuple[str, int], ...]:
            return tuple(inner.array(8, "partitions of a host", numbered))

        active_by_host = _by_host(reader, numbered_partitions)
        if version >= 6:
            standby_by_host = _by_host(reader, numbered_partitions)
    elif version >= 2:
        active_by_host = _by_host(reader, _topic_partitions)
    error = reader.int32("error code") if version >= 4 else 0
    next_rebalance_ms = reader.int64("next rebalance") if version >= 7 else NEVER_MS
    if next_rebalance_ms < 0:
        raise reader.error(f"next rebalance at {next_rebalance_ms} ms is negative", reader.position - 8)
    reader.finish("the AssignmentInfo")
    assignment = StreamsAssignment(
        protocol_version=protocol_version,
        partitions=partitions,
        version=version,
        commonly_supported_version=common,
        active=active,
        standby=standby,
        active_by_host=active_by_host,
        standby_by_host=standby_by_host,
        error=error,
        next_rebalance_ms=next_rebalance_ms,
    )
    if len(active) != len(assignment.input_partitions()):
        raise reader.error(
            f"{counted(len(active), 'active task')} for {counted(len(assignment.input_partitions()), 'input partition')}; there is one for each"
        )
    return assignment
