"""Offsets that a consumer group has committed, for a consumer that is none of its members."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Any

from aiokafka import errors
from aiokafka.protocol.commit import OffsetCommitRequest, OffsetFetchRequest

from equipoise.kafka.broker_wire import Wire
from equipoise.kafka.client import TopicPartition

_AGAIN_S = 0.1
_NO_GENERATION, _NO_MEMBER = -1, ""
_NOT_COORDINATOR = {15, 16}
"""COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR"""
_REBALANCED = {22, 25, 27}
"""ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, REBALANCE_IN_PROGRESS: the group has members by now."""
_UNKNOWN_TOPIC, _GROUP_DENIED = 3, 30


async def committed(wire: Wire, group: str, places: Collection[TopicPartition]) -> dict[TopicPartition, int]:
    """Returns the offsets of those partitions for which there is one. Repeats what may pass. Raises
    KafkaError.
    """
    while True:
        try:
            answer = await wire.send_to_group(group, OffsetFetchRequest(group, list(_by_topic(dict.fromkeys(places, ())).items())))
            found = {}
            _check(wire, group, getattr(answer, "error_code", 0), "")  # of the group; brokers before Kafka 0.11 name it with each partition
            for topic, partitions in answer.topics:
                for partition, offset, _, code in partitions:
                    if code != _UNKNOWN_TOPIC:
                        _check(wire, group, code, topic)
                        if offset >= 0:
                            found[TopicPartition(topic, partition)] = offset
        except errors.KafkaError as error:
            await _again(error)
        else:
            return found


async def commit(wire: Wire, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Commits offsets. Repeats what may pass. Raises KafkaError."""
    topics = _by_topic({place: (offset, "") for place, offset in offsets.items()})
    request = OffsetCommitRequest(group, _NO_GENERATION, _NO_MEMBER, OffsetCommitRequest.DEFAULT_RETENTION_TIME, list(topics.items()))
    while True:
        try:
            answer = await wire.send_to_group(group, request)
            for topic, partitions in answer.topics:
                for _, code in partitions:
                    _check(wire, group, code, topic)
        except errors.KafkaError as error:
            await _again(error)
        else:
            return


def _check(wire: Wire, group: str, code: int, topic: str) -> None:
    if code in _NOT_COORDINATOR:
        wire.forget_group(group)
    if code in _REBALANCED:
        raise errors.CommitFailedError(f"group {group} has members")
    if code:
        raise errors.for_code(code)(group if code == _GROUP_DENIED else topic)


async def _again(error: errors.KafkaError) -> None:
    """Raises it unless it may pass."""
    if not error.retriable:
        raise error
    await asyncio.sleep(_AGAIN_S)


def _by_topic(places: Mapping[TopicPartition, tuple[Any, ...]]) -> dict[str, list[Any]]:
    """In OffsetFetch a partition is a number, in OffsetCommit it comes with what is committed."""
    topics: dict[str, list[Any]] = {}
    for (topic, partition), fields in places.items():
        topics.setdefault(topic, []).append((partition, *fields) if fields else partition)
    return topics
