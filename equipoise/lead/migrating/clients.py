"""Clients of a classic consumer group, as far as their coordinator knows them."""

from __future__ import annotations

import re
from collections.abc import Sequence

import attrs

from equipoise.kafka.embedded_protocol import TopicPartition
from equipoise.kafka.offsets_topic import consumer_protocol
from equipoise.kafka.offsets_topic.byte_reader import ByteReader, WireError

UNKNOWN = "unknown"
_VERSION = r"(?:-(?P<version>\d+(?:\.\w+)*))?"
_DEFAULT_IDS = (
    (re.compile(rf"aiokafka{_VERSION}"), "aiokafka"),
    (re.compile(rf"kafka-python{_VERSION}"), "kafka-python"),
    (re.compile(r"rdkafka"), "librdkafka"),
    (re.compile(r"consumer-.+-\d+"), "Java"),
    (re.compile(r"sarama"), "sarama"),
    (re.compile(r"kgo"), "franz-go"),
    (re.compile(r"kafkajs"), "KafkaJS"),
    (re.compile(r".+@.+ \(github\.com/segmentio/kafka-go\)"), "kafka-go"),
    (re.compile(rf"faust{_VERSION}"), "Faust"),
)
"""Client ids of those who set none, and the library that makes them."""


@attrs.frozen(kw_only=True)
class ClassicClient:
    """A member as DescribeGroups shows it. `library`: UNKNOWN where neither its id nor its bytes
    tell. `version`: of the library, "" where it does not say. `protocol_version`: of its
    subscription. `sends`: bytes of user data in its subscription. `given`: those in its assignment,
    which its group's leader wrote. `held`: what it is assigned. `problem`: why its bytes are not
    read; "": they are.
    """

    member_id: str
    client_id: str
    host: str
    instance_id: str | None
    library: str
    version: str = ""
    protocol_version: int = -1
    topics: tuple[str, ...] = ()
    sends: int = 0
    given: int = 0
    held: frozenset[TopicPartition] = frozenset()
    problem: str = ""

    @property
    def named(self) -> str:
        """Its library with its version, for people."""
        return f"{self.library} {self.version}".strip()


def read_client(member_id: str, client_id: str, host: str, instance_id: str | None, subscription: bytes, assignment: bytes) -> ClassicClient:
    """A member of a group at rest. Bytes that are not those of a consumer are its `problem`."""
    library, version = library_of(client_id)
    whole = ClassicClient(member_id=member_id, client_id=client_id, host=host, instance_id=instance_id, library=library, version=version)
    try:
        said = consumer_protocol.read_subscription(ByteReader(subscription, 0, "subscription"), lenient=True)
        has = consumer_protocol.read_assignment(ByteReader(assignment, 0, "assignment"), lenient=True)
    except WireError as error:
        return attrs.evolve(whole, problem=error.problem)
    return attrs.evolve(
        whole,
        protocol_version=said.version,
        topics=tuple(sorted(said.topics)),
        sends=_length(said.user_data),
        given=_length(has.user_data),
        held=frozenset((topic, partition) for topic, of in has.partitions.items() for partition in of),
        problem=f"it ends before what a subscription of version {said.version} has" if said.is_cut else "",
    )


def library_of(client_id: str) -> tuple[str, str]:
    """The library that makes such a client id by default, and its version."""
    for pattern, library in _DEFAULT_IDS:
        found = pattern.fullmatch(client_id)
        if found is not None:
            return library, found.groupdict().get("version") or ""
    return UNKNOWN, ""


def _length(data: ByteReader | None) -> int:
    return 0 if data is None else data.end - data.position


def libraries_said(clients: Sequence[ClassicClient]) -> str:
    """Clients by library, as ``2 librdkafka, 1 Java``."""
    counts: dict[str, int] = {}
    for each in clients:
        counts[each.named] = counts.get(each.named, 0) + 1
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items(), key=lambda each: (-each[1], each[0])))
