"""Offsets that a consumer group has committed, for a client that is none of its members."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, TypeVar

from aiokafka import errors
from aiokafka.protocol.commit import OffsetCommitRequest, OffsetFetchRequest

from equipoise.kafka.client import LATEST_S, TopicPartition
from equipoise.kafka.declared_requests import by_topic
from equipoise.kafka.group_coordinators import GroupCoordinators

T = TypeVar("T")
NO_GENERATION, NO_MEMBER = -1, ""
_AGAIN_S = 0.1
_REBALANCED = {22, 25, 27}
"""ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, REBALANCE_IN_PROGRESS: the group has members by now."""
_UNKNOWN_TOPIC, _GROUP_DENIED = 3, 30


def offsets_request(group: str, places: Collection[TopicPartition] | None) -> Any:
    """Asks the group's coordinator for committed offsets. `places` None: for all that it has."""
    return OffsetFetchRequest(group, None if places is None else by_topic(sorted(set(places))))


def read_offsets(group: str, answer: Any) -> dict[TopicPartition, int]:
    """Returns the committed offsets, of those partitions that have one. Raises KafkaError."""
    return {place: offset for place, (offset, _) in read_notes(group, answer).items()}


def read_notes(group: str, answer: Any) -> dict[TopicPartition, tuple[int, str]]:
    """Returns the committed offsets and their metadata. Raises KafkaError."""
    found = {}
    _check(group, getattr(answer, "error_code", 0), "")  # of the group; brokers before Kafka 0.11 name it with each partition
    for topic, partitions in answer.topics:
        for partition, offset, note, code in partitions:
            if code != _UNKNOWN_TOPIC:
                _check(group, code, topic)
                if offset >= 0:
                    found[TopicPartition(topic, partition)] = offset, note or ""
    return found


def commit_request(
    group: str, offsets: Mapping[TopicPartition, int] | Mapping[tuple[str, int], int], generation: int = NO_GENERATION, member_id: str = NO_MEMBER
) -> Any:
    """Asks the group's coordinator to commit offsets."""
    topics = by_topic((topic, (partition, offset, "")) for (topic, partition), offset in sorted(offsets.items()))
    return OffsetCommitRequest(group, generation, member_id, OffsetCommitRequest.DEFAULT_RETENTION_TIME, topics)


def read_commit(group: str, answer: Any) -> None:
    """Raises KafkaError when offsets are not committed."""
    for topic, partitions in answer.topics:
        for _, code in partitions:
            _check(group, code, topic)


async def committed(groups: GroupCoordinators, group: str, places: Collection[TopicPartition] | None) -> dict[TopicPartition, int]:
    """Returns the offsets of those partitions for which there is one; of all with `places` None.
    Asks once. Raises KafkaError.
    """
    return await groups.send(group, offsets_request(group, places), lambda answer: read_offsets(group, answer))


async def committed_notes(groups: GroupCoordinators, group: str, places: Collection[TopicPartition]) -> dict[TopicPartition, tuple[int, str]]:
    """Returns what `committed` does, and the metadata of the offsets. Raises KafkaError."""
    return await groups.send(group, offsets_request(group, places), lambda answer: read_notes(group, answer))


async def commit(groups: GroupCoordinators, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Commits offsets. Asks once. Raises KafkaError."""
    await groups.send(group, commit_request(group, offsets), lambda answer: read_commit(group, answer))


async def until_answered(ask: Callable[[], Awaitable[T]]) -> T:
    """Repeats `ask` while it fails for a reason that may pass, for LATEST_S. Raises the last
    KafkaError.
    """
    now_s = asyncio.get_running_loop().time
    until_s = now_s() + LATEST_S
    while True:
        try:
            return await ask()
        except errors.KafkaError as error:
            if not error.retriable or now_s() >= until_s:
                raise
        await asyncio.sleep(_AGAIN_S)


def _check(group: str, code: int, topic: str) -> None:
    if code in _REBALANCED:
        raise errors.CommitFailedError(f"group {group} has members")
    if code:
        raise errors.for_code(code)(group if code == _GROUP_DENIED else topic)
