"""Asks leaders in which epoch they lead, and where former epochs end (KIP-320). Each batch has the
epoch of the leader that has appended it. When an epoch ends before what was read of it, an unclean
election has lost the rest.

aiokafka sends requests without epochs, so they are declared here in its style, in the first
versions that have them.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from typing import Any, TypeVar

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import (
    IncompatibleBrokerVersion,
    KafkaError,
    KafkaTimeoutError,
    LeaderNotAvailableError,
    TopicAuthorizationFailedError,
    for_code,
)
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import Array, Int8, Int16, Int32, Int64, Schema, String

from equipoise.kafka.aiokafka_structs import quick
from equipoise.kafka.client import NO_EPOCH, LeaderEnd, TopicPartition

T = TypeVar("T")
_AGAIN_S = 0.1
_LATEST = -1
_TEXT = String("utf-8")
_BATCH = struct.Struct(">qiiB")
"""Of a batch: first offset, length of what is behind these two, leader epoch, form."""
_BEFORE_LENGTH = 12
_FIRST_FORM_WITH_EPOCHS = 2


class _ListedEnds(Response):  # type: ignore[misc]  # aiokafka ships no types
    API_KEY = 2
    API_VERSION = 4
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("topics", Array(("topic", _TEXT), ("partitions", Array(
            ("partition", Int32), ("error_code", Int16), ("timestamp", Int64), ("offset", Int64), ("leader_epoch", Int32))))),
    )  # fmt: skip


class _ListEndsStruct(RequestStruct):  # type: ignore[misc]
    API_KEY = 2
    API_VERSION = 4
    RESPONSE_TYPE = _ListedEnds
    SCHEMA = Schema(
        ("replica_id", Int32), ("isolation_level", Int8),
        ("topics", Array(("topic", _TEXT), ("partitions", Array(("partition", Int32), ("current_leader_epoch", Int32), ("timestamp", Int64))))),
    )  # fmt: skip


class _ListEnds(Request[_ListEndsStruct]):  # type: ignore[misc]
    API_KEY = 2

    def __init__(self, isolation_level: int, topics: list[tuple[str, list[int]]]) -> None:
        self._isolation_level, self._topics = isolation_level, topics

    def build(self, request_struct_class: Any) -> Any:
        topics = [(topic, [(partition, NO_EPOCH, _LATEST) for partition in partitions]) for topic, partitions in self._topics]
        return quick(request_struct_class)(-1, self._isolation_level, topics)


class _EpochEnds(Response):  # type: ignore[misc]
    API_KEY = 23
    API_VERSION = 2
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("topics", Array(("topic", _TEXT), ("partitions", Array(
            ("error_code", Int16), ("partition", Int32), ("leader_epoch", Int32), ("end_offset", Int64))))),
    )  # fmt: skip


class _AskEpochEndsStruct(RequestStruct):  # type: ignore[misc]
    API_KEY = 23
    API_VERSION = 2
    RESPONSE_TYPE = _EpochEnds
    SCHEMA = Schema(
        ("topics", Array(("topic", _TEXT), ("partitions", Array(("partition", Int32), ("current_leader_epoch", Int32), ("leader_epoch", Int32))))),
    )  # fmt: skip


class _AskEpochEnds(Request[_AskEpochEndsStruct]):  # type: ignore[misc]
    API_KEY = 23

    def __init__(self, epochs: Mapping[TopicPartition, int], topics: list[tuple[str, list[int]]]) -> None:
        self._epochs, self._topics = epochs, topics

    def build(self, request_struct_class: Any) -> Any:
        asked = [
            (topic, [(partition, NO_EPOCH, self._epochs[TopicPartition(topic, partition)]) for partition in partitions])
            for topic, partitions in self._topics
        ]
        return request_struct_class(asked)


async def leader_ends(
    client: AIOKafkaClient, partitions: Collection[TopicPartition], isolation_level: int, within_s: float
) -> dict[TopicPartition, LeaderEnd] | None:
    """See `client.Consumer`. `isolation_level`: as aiokafka has it. None: the brokers have no
    leader epochs.
    """

    async def ask() -> dict[TopicPartition, LeaderEnd]:
        answers = await _ask_leaders(client, partitions, lambda topics: _ListEnds(isolation_level, topics))
        found = {}
        for topic, (partition, code, _, offset, epoch) in answers:
            _raise(code, topic, partition)
            found[TopicPartition(topic, partition)] = LeaderEnd(offset, epoch)
        return found

    return await _answered(client, ask, within_s)


async def epoch_ends(client: AIOKafkaClient, epochs: Mapping[TopicPartition, int], within_s: float) -> dict[TopicPartition, int] | None:
    """See `client.Consumer`."""

    async def ask() -> dict[TopicPartition, int]:
        answers = await _ask_leaders(client, epochs, lambda topics: _AskEpochEnds(epochs, topics))
        found = {}
        for topic, (code, partition, _, end) in answers:
            _raise(code, topic, partition)
            found[TopicPartition(topic, partition)] = end
        return found

    return await _answered(client, ask, within_s)


def _raise(code: int, topic: str, partition: int) -> None:
    if code:
        raise for_code(code)(f"{topic}/{partition}")


async def _ask_leaders(
    client: AIOKafkaClient, partitions: Collection[TopicPartition], request: Callable[[list[tuple[str, list[int]]]], Any]
) -> Iterator[tuple[str, Any]]:
    """Topic and fields of the answer for each partition."""
    for topic in {each.topic for each in partitions}:
        client.add_topic(topic)
    await client._maybe_wait_metadata()
    by_leader: dict[int, dict[str, list[int]]] = {}
    for each in partitions:
        leader = client.cluster.leader_for_partition(each)
        if leader in (None, -1):
            if each.topic in client.cluster.unauthorized_topics:
                client.force_metadata_update()
                raise TopicAuthorizationFailedError(each.topic)
            raise LeaderNotAvailableError(f"{each.topic}/{each.partition}")
        by_leader.setdefault(leader, {}).setdefault(each.topic, []).append(each.partition)
    answers = await asyncio.gather(*(client.send(leader, request(list(topics.items()))) for leader, topics in by_leader.items()))
    return ((topic, fields) for answer in answers for topic, found in answer.topics for fields in found)


async def _answered(client: AIOKafkaClient, ask: Callable[[], Awaitable[T]], within_s: float) -> T | None:
    """Repeats what leaders that change answer, as aiokafka does when it asks for offsets. None:
    brokers do not know the request, as some that are not Apache Kafka's.
    """
    try:
        async with asyncio.timeout(within_s):
            while True:
                try:
                    return await ask()
                except (IncompatibleBrokerVersion, NotImplementedError):  # so aiokafka says that
                    return None
                except KafkaError as error:
                    if not error.retriable:
                        raise
                    if error.invalid_metadata:
                        client.force_metadata_update()
                    await asyncio.sleep(_AGAIN_S)
    except TimeoutError as error:
        late: Exception = KafkaTimeoutError(f"no answer within {within_s:.0f} s")
        raise late from error


def last_epoch(batches: bytes) -> int:
    """Leader epoch of the last whole batch of a fetch; NO_EPOCH: it has none."""
    at, epoch, end = 0, NO_EPOCH, len(batches)
    while at + _BATCH.size <= end:
        _, length, its_epoch, form = _BATCH.unpack_from(batches, at)
        at += _BEFORE_LENGTH + length
        if at <= end and form >= _FIRST_FORM_WITH_EPOCHS:
            epoch = its_epoch
    return epoch
