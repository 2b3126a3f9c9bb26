"""What groups of the classic protocol write: commits, and their generations.

Formats (Apache Kafka's message definitions): OffsetCommitValue and GroupMetadataValue, versions 0
to 4 (4 is flexible: compact strings, tagged fields). What members and their leader say to each
other is theirs: `ClassicMember.subscription` and `assignment` are read by protocol
(`equipoise.kafka.offsets_topic.consumer_protocol`, `connect_protocol`, and for Kafka
Streams `equipoise.replay.importers.kafka_streams.offsets_records`).
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from equipoise.kafka.offsets_topic.byte_reader import ByteReader

UNKNOWN_MS = -1
"""A timeout that is not known: no coordinator writes it."""


@attrs.frozen(kw_only=True)
class OffsetCommit:
    """One committed offset. `committed` None: the commit was deleted."""

    group: str
    topic: str
    partition: int
    committed: int | None


@attrs.frozen(kw_only=True)
class ClassicMember:
    """One member of one generation. `subscription`, `assignment`: readers of the bytes that it
    joined with and was given; empty where there are none. Timeouts may be UNKNOWN_MS.
    """

    member_id: str
    static_id: str | None
    client_id: str
    host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: ByteReader = attrs.field(eq=False, repr=False)
    assignment: ByteReader = attrs.field(eq=False, repr=False)


@attrs.frozen(kw_only=True)
class ClassicGroup:
    """One generation as the broker stored it. `protocol` None: the group is empty. `protocol_type`:
    ``consumer``, ``connect`` or another one; empty for a group that only commits.
    """

    group: str
    record_version: int
    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_timestamp: int
    members: tuple[ClassicMember, ...]


def read_offset_commit(reader: ByteReader) -> int:
    """The committed offset. Raises WireError."""
    version = reader.int16("version of the offset commit")
    if not 0 <= version <= 4:
        raise reader.error(f"offset commits of version {version} are not known here (0-4 are)", 0)
    committed = reader.int64("committed offset")
    if version >= 3:
        reader.int32("leader epoch")
    if version >= 4:
        reader.compact_string("metadata")
    else:
        reader.string("metadata")
    reader.int64("commit timestamp")
    if version == 1:
        reader.int64("expire timestamp")
    if version >= 4:
        reader.tagged_fields()
    reader.finish("the offset commit")
    return committed


def read_classic_group(group: str, reader: ByteReader) -> ClassicGroup:
    """A generation, with its members' bytes still to be read. Raises WireError."""
    version = reader.int16("version of the group's metadata")
    if not 0 <= version <= 4:
        raise reader.error(f"group metadata of version {version} is not known here (0-4 are)", 0)
    flexible = version >= 4
    string: Callable[[str], str | None] = reader.compact_string if flexible else reader.nullable_string
    protocol_type = _present(reader, string("protocol type"), "protocol type")
    generation = reader.int32("generation")
    protocol, leader = string("protocol"), string("leader")
    state_timestamp = reader.int64("state timestamp") if version >= 2 else -1
    length = reader.uvarint("number of members") - 1 if flexible else reader.int32("number of members")
    members = [_member(reader, version) for _ in range(reader.count(length, 6 if flexible else 18, "members"))]
    if flexible:
        reader.tagged_fields()
    reader.finish("the group's metadata")
    if generation < 0:
        raise reader.error(f"generation {generation} is negative", 2)
    seen: set[str] = set()
    for member in members:
        if member.member_id in seen:
            raise reader.error(f"member {member.member_id!r} is in generation {generation} twice")
        seen.add(member.member_id)
    return ClassicGroup(
        group=group,
        record_version=version,
        protocol_type=protocol_type,
        generation=generation,
        protocol=protocol,
        leader=leader,
        state_timestamp=state_timestamp,
        members=tuple(members),
    )


def _present(reader: ByteReader, text: str | None, what: str) -> str:
    if text is None:
        raise reader.error(f"{what} is null")
    return text


def _member(reader: ByteReader, version: int) -> ClassicMember:
    flexible = version >= 4
    string: Callable[[str], str | None] = reader.compact_string if flexible else reader.nullable_string
    member_id = _present(reader, string("member id"), "member id")
    static_id = string("static member id") if version >= 3 else None
    client_id = _present(reader, string("client id"), "client id")
    host = _present(reader, string("client host"), "client host")
    rebalance_timeout_ms = reader.int32("rebalance timeout") if version >= 1 else -1
    session_timeout_ms = reader.int32("session timeout")
    if session_timeout_ms <= 0 and session_timeout_ms != UNKNOWN_MS:
        raise reader.error(f"session timeout {session_timeout_ms} ms is not positive", reader.position - 4)

    def length(what: str) -> int:
        return reader.uvarint(f"length of {what}") - 1 if flexible else reader.int32(f"length of {what}")

    subscription = reader.nested(length("subscription"), "subscription")
    assignment = reader.nested(length("assignment"), "assignment")
    if flexible:
        reader.tagged_fields()
    return ClassicMember(
        member_id=member_id,
        static_id=static_id,
        client_id=client_id,
        host=host,
        rebalance_timeout_ms=rebalance_timeout_ms,
        session_timeout_ms=session_timeout_ms,
        subscription=subscription,
        assignment=assignment,
    )
