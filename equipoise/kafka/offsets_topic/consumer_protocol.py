"""What classic consumers and their leader say to each other (ConsumerProtocolSubscription and
ConsumerProtocolAssignment, versions 0 to 3): KIP-429 owned partitions, KIP-792 generation, KIP-881
rack. The user data belongs to the assignor; it is left to be read.

`lenient`: reads what a live client sends as Kafka's own clients do: of a later version the fields
that are known, whatever is behind them, and a topic that is named twice as one.

A subscription may end before the fields that its version added: kafka-go says version 1 and leaves
out what it owns. Brokers and Java's own leader read no such one.
"""

from __future__ import annotations

import attrs

from equipoise.kafka.offsets_topic.byte_reader import ByteReader

NEWEST_VERSION = 3
NO_GENERATION = -1

Partitions = dict[str, tuple[int, ...]]
"""topic -> partitions, in the order of the wire."""


@attrs.frozen(kw_only=True)
class Subscription:
    """`user_data` None: the consumer sent none. `owned_partitions`: from version 1 on.
    `owned_generation`: in which it got them (version 2), else NO_GENERATION. `is_cut`: it ends
    before a field of its version.
    """

    version: int
    topics: tuple[str, ...]
    user_data: ByteReader | None = attrs.field(eq=False, repr=False)
    owned_partitions: Partitions
    owned_generation: int
    rack: str | None
    is_cut: bool = False


@attrs.frozen(kw_only=True)
class Assignment:
    """What the leader gave a consumer."""

    version: int
    partitions: Partitions
    user_data: ByteReader | None = attrs.field(eq=False, repr=False)


def read_subscription(reader: ByteReader, *, lenient: bool = False) -> Subscription:
    """Raises WireError."""
    version = _version(reader, "subscription", lenient)
    topics = tuple(reader.array(2, "topics", lambda inner: inner.string("topic")))
    user = _user_data(reader, "subscription")
    is_cut = False

    def follows(since_version: int) -> bool:
        nonlocal is_cut
        is_cut |= version >= since_version and reader.position == reader.end
        return version >= since_version and not is_cut

    owned: Partitions = _partitions(reader, "owned partitions", lenient) if follows(1) else {}
    generation = reader.int32("generation of the owned partitions") if follows(2) else NO_GENERATION
    rack = reader.nullable_string("rack") if follows(3) else None
    if not lenient:
        reader.finish("the subscription")
    return Subscription(version=version, topics=topics, user_data=user, owned_partitions=owned, owned_generation=generation, rack=rack, is_cut=is_cut)


def read_assignment(reader: ByteReader, *, lenient: bool = False) -> Assignment:
    """Empty bytes are an assignment of nothing: so it is stored for who was given nothing. Raises
    WireError.
    """
    if reader.position == reader.end:
        return Assignment(version=NEWEST_VERSION, partitions={}, user_data=None)
    version = _version(reader, "assignment", lenient)
    partitions = _partitions(reader, "assignment", lenient)
    user = _user_data(reader, "assignment")
    if not lenient:
        reader.finish("the assignment")
    return Assignment(version=version, partitions=partitions, user_data=user)


def _version(reader: ByteReader, what: str, lenient: bool) -> int:
    version = reader.int16(f"version of the {what}")
    if version < 0 or (version > NEWEST_VERSION and not lenient):
        raise reader.error(f"{what} of consumer protocol version {version} is not known here (0-{NEWEST_VERSION} are)", reader.position - 2)
    return version


def _partitions(reader: ByteReader, what: str, lenient: bool) -> Partitions:
    found: Partitions = {}
    for topic, partitions in reader.array(
        6, f"topics of the {what}", lambda inner: (inner.string("topic"), tuple(inner.array(4, "partitions", lambda each: each.int32("partition"))))
    ):
        if topic in found and not lenient:
            raise reader.error(f"topic {topic!r} is in the {what} twice")
        if any(partition < 0 for partition in partitions):
            raise reader.error(f"a partition of {topic!r} in the {what} is negative")
        found[topic] = found.get(topic, ()) + partitions
    return found


def _user_data(reader: ByteReader, what: str) -> ByteReader | None:
    length = reader.int32(f"length of the user data of the {what}")
    return None if length == -1 else reader.nested(length, f"user data of the {what}")
