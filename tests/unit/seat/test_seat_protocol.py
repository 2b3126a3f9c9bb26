"""Subscriptions and assignments, beside those that real clients write and read."""

from __future__ import annotations

import struct

import pytest
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata

from equipoise.events.errors import InputError
from equipoise.kafka.embedded_protocol import read_assignment, read_subscription, write_assignment, write_subscription
from equipoise.kafka.offsets_topic.consumer_protocol import NO_GENERATION


def text(value: str) -> bytes:
    return struct.pack(">h", len(value.encode())) + value.encode()


OWNED = struct.pack(">i", 1) + text("in") + struct.pack(">iii", 2, 0, 3)
TOPICS = struct.pack(">i", 2) + text("in") + text("other") + struct.pack(">i", 3) + b"abc"


def test_read_subscription_of_aiokafka_has_its_topics() -> None:
    found = read_subscription(ConsumerProtocolMemberMetadata(0, ["other", "in"], b"x").encode())
    assert (found.topics, found.owned, found.generation, found.rack) == (("in", "other"), frozenset(), NO_GENERATION, None)


@pytest.mark.parametrize("behind", [b"", b"a field of a later version"])
def test_read_subscription_version_3_has_what_it_owns(behind: bytes) -> None:
    found = read_subscription(struct.pack(">h", 3) + TOPICS + OWNED + struct.pack(">i", 7) + text("rack-1") + behind)
    assert (found.topics, found.generation, found.rack) == (("in", "other"), 7, "rack-1")
    assert found.owned == {("in", 0), ("in", 3)}


def test_read_subscription_of_a_later_version_has_the_fields_that_are_known() -> None:
    found = read_subscription(struct.pack(">h", 9) + TOPICS + OWNED + struct.pack(">i", 7) + text("rack-1") + b"\xff\xff")
    assert (found.topics, found.generation, found.rack) == (("in", "other"), 7, "rack-1")


def test_partitions_of_a_topic_that_is_named_twice_are_read_together() -> None:
    twice = struct.pack(">i", 2) + text("in") + struct.pack(">ii", 1, 0) + text("in") + struct.pack(">ii", 1, 3)
    assert read_subscription(struct.pack(">h", 1) + TOPICS + twice).owned == {("in", 0), ("in", 3)}
    assert read_assignment(struct.pack(">h", 0) + twice + struct.pack(">i", 0)) == {("in", 0), ("in", 3)}


def test_read_subscription_version_1_has_no_generation() -> None:
    assert read_subscription(struct.pack(">h", 1) + TOPICS + OWNED).generation == NO_GENERATION


@pytest.mark.parametrize(
    ("version", "behind", "owned", "generation"),
    [
        (1, b"", set(), NO_GENERATION),
        (3, b"", set(), NO_GENERATION),
        (2, OWNED, {("in", 0), ("in", 3)}, NO_GENERATION),
        (3, OWNED + b"\0\0\0\7", {("in", 0), ("in", 3)}, 7),
    ],
)
def test_subscription_that_ends_before_the_fields_of_its_version_is_read(
    version: int, behind: bytes, owned: set[tuple[str, int]], generation: int
) -> None:
    """kafka-go says version 1 and leaves out what it owns: its members have to get partitions."""
    found = read_subscription(struct.pack(">h", version) + TOPICS + behind)
    assert (found.topics, set(found.owned), found.generation, found.rack) == (("in", "other"), owned, generation, None)


def test_subscription_that_ends_within_a_field_is_none() -> None:
    for cut in range(1, len(OWNED)):
        with pytest.raises(InputError):
            read_subscription(struct.pack(">h", 1) + TOPICS + OWNED[:-cut])


@pytest.mark.parametrize("data", [b"", b"\0", struct.pack(">hi", 0, 1) + b"\0\x09in", struct.pack(">hi", 0, 1) + b"\0\x01\xff"])
def test_read_subscription_refuses_what_is_none(data: bytes) -> None:
    with pytest.raises(InputError):
        read_subscription(data)


def test_write_assignment_is_what_aiokafka_reads() -> None:
    found = ConsumerProtocolMemberAssignment.decode(write_assignment({"other": [1], "in": [3, 0]}))
    assert [(topic, list(partitions)) for topic, partitions in found.assignment] == [("in", [0, 3]), ("other", [1])]


def test_read_assignment_reads_what_was_written_and_nothing_from_nothing() -> None:
    assert read_assignment(write_assignment({"in": [3, 0]})) == {("in", 0), ("in", 3)}
    assert read_assignment(b"") == frozenset()


@pytest.mark.parametrize("cooperative", [False, True])
def test_own_subscription_is_to_nothing(cooperative: bool) -> None:
    found = read_subscription(write_subscription(cooperative=cooperative))
    assert (found.topics, found.owned) == ((), frozenset())
    assert list(ConsumerProtocolMemberMetadata.decode(write_subscription(cooperative=cooperative)).subscription) == []
