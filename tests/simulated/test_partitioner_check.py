"""Sources of one task whose producers choose partitions in different ways."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import pytest

from equipoise import Record, StringSerde, TaskContext
from equipoise.kafka.client import partition_of_key
from equipoise.replay.trouble import troubles
from equipoise.testing import Group

PARTITIONS = 3
Partitioner = Callable[[bytes], int]


def murmur2(key: bytes) -> int:
    return partition_of_key(key, PARTITIONS)


def crc32(key: bytes) -> int:
    return zlib.crc32(key) % PARTITIONS


def by_length(key: bytes) -> int:
    return (len(key) + key[-1]) % PARTITIONS


def handle(record: Record, context: TaskContext) -> None:
    context.state.put(record.key, record.value)


def logged(clicks: Partitioner, users: Partitioner, caplog: pytest.LogCaptureFixture, *, keys: int = 600) -> list[str]:
    text = StringSerde()
    with Group(handle, sources=["clicks", "users"], state="kept", partitions=PARTITIONS, key_serde=text, value_serde=text, state_serde=text) as group:
        for number in range(keys):
            key = f"user-{number}"
            for topic, partitioner in (("clicks", clicks), ("users", users)):
                group.send("v", key=key, topic=topic, partition=partitioner(key.encode()))
        group.join("m1", "m2")
        group.settle()
        group.advance(10)
        ((_, lead),) = group._worker.groups()
        shown = [each.text.partition(": ")[2] for each in troubles(lead.machine.state)]
        assert shown == [each for each in caplog.messages if each.startswith("sources ")][:1]
    return [each for each in caplog.messages if each.startswith("sources ")]


@pytest.mark.parametrize(("clicks", "named"), [(crc32, "librdkafka's default partitioner (CRC-32)"), (by_length, "neither murmur2 nor CRC-32")])
def test_sources_of_two_partitioners_are_named_once_by_each_member(clicks: Partitioner, named: str, caplog: pytest.LogCaptureFixture) -> None:
    lines = logged(clicks, murmur2, caplog)
    assert 1 <= len(lines) <= 2
    assert f"in different partitions, so they do not meet: clicks was written by {named}; " in lines[0]
    assert "users was written by Kafka's own partitioner (murmur2)" in lines[0]


@pytest.mark.parametrize("partitioner", [murmur2, crc32, by_length])
def test_sources_of_one_partitioner_are_not_named(partitioner: Partitioner, caplog: pytest.LogCaptureFixture) -> None:
    assert logged(partitioner, partitioner, caplog) == []


def test_few_keys_are_no_evidence(caplog: pytest.LogCaptureFixture) -> None:
    assert logged(crc32, murmur2, caplog, keys=20) == []
