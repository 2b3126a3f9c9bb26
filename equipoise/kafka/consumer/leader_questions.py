"""Asks the leaders of partitions: for first offsets, for ends, where leader epochs end (KIP-320),
and to delete records. Each batch has the epoch of the leader that has appended it. When an epoch
ends before what was read of it, an unclean election has lost the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeVar

from aiokafka.errors import (
    IncompatibleBrokerVersion,
    KafkaError,
    KafkaTimeoutError,
    LeaderNotAvailableError,
    TopicAuthorizationFailedError,
    for_code,
)
from aiokafka.protocol.admin import DeleteRecordsRequest

from equipoise.kafka.broker_wire import Wire
from equipoise.kafka.client import LeaderEnd, TopicPartition
from equipoise.kafka.consumer.requests import EpochEndsRequest, ListOffsetsRequest, epochs_ended, listed
from equipoise.kafka.declared_requests import by_topic

T = TypeVar("T")
AGAIN_S = 0.1
MORE = 1.5
"""Times the timeout of a request: when one broker was silent for that long, another one is asked."""
SILENT_S = 10.0
"""A leader that has not answered for so long is asked again, or another one that leads by then."""
MakeRequest = Callable[[Collection[TopicPartition]], Any]
Answers = Iterable[tuple[TopicPartition, int, T]]
"""Partition, error code (0: none), and what was asked for."""


async def offsets(wire: Wire, times: Mapping[TopicPartition, int], within_s: float, *, read_committed: bool) -> dict[TopicPartition, LeaderEnd]:
    """Returns the offsets of the first records from these times (ms) on, -1: there are none; or
    with FIRST or END the first offsets or ends; with the leaders' epochs. Raises KafkaError.
    """

    def request(asked: Collection[TopicPartition]) -> Any:
        return ListOffsetsRequest({place: times[place] for place in asked}, read_committed=read_committed)

    return await _answered(wire, times, request, listed, within_s)


async def epoch_ends(wire: Wire, epochs: Mapping[TopicPartition, int], within_s: float) -> dict[TopicPartition, int] | None:
    """See `client.Consumer`. Raises KafkaError."""

    def request(asked: Collection[TopicPartition]) -> Any:
        return EpochEndsRequest({place: epochs[place] for place in asked})

    try:
        return await _answered(wire, epochs, request, epochs_ended, within_s)
    except (IncompatibleBrokerVersion, NotImplementedError):  # so aiokafka says that a broker does not know the request
        return None


async def delete_records(wire: Wire, before: Mapping[TopicPartition, int], within_s: float) -> None:
    """Has leaders delete the records before these offsets; -1: all. Raises KafkaError."""

    def request(asked: Collection[TopicPartition]) -> Any:
        topics = by_topic((place[0], (place[1], before[place])) for place in asked)
        return DeleteRecordsRequest(topics, int(within_s * 1_000))

    def read(answer: Any) -> Answers[int]:
        for topic, partitions, *_ in answer.topics:
            for partition, begin, code, *_ in partitions:
                yield TopicPartition(topic, partition), code, begin

    await _answered(wire, before, request, read, within_s)


async def _answered(
    wire: Wire, places: Collection[TopicPartition], request: MakeRequest, read: Callable[[Any], Answers[T]], within_s: float
) -> dict[TopicPartition, T]:
    """Repeats what leaders that change answer. `within_s`: the timeout of a request."""
    silent: set[int] = set()
    why = f"no broker has named the leaders of {', '.join(sorted({place[0] for place in places}))}"
    try:
        async with asyncio.timeout(MORE * within_s):
            while True:
                try:
                    return await _asked(wire, places, request, read, silent)
                except KafkaError as error:
                    if not isinstance(error, LeaderNotAvailableError):
                        why = f"{type(error).__name__} {error}"
                    if not error.retriable or isinstance(error, IncompatibleBrokerVersion):
                        raise
                    if error.invalid_metadata:
                        wire.refresh()
                    await asyncio.sleep(AGAIN_S)
    except TimeoutError as error:
        who = f"no answer of broker {', '.join(map(str, sorted(silent)))}" if silent else why
        late: Exception = KafkaTimeoutError(f"{who}, for {MORE * within_s:.0f} s")
        raise late from error


async def _asked(
    wire: Wire, places: Collection[TopicPartition], request: MakeRequest, read: Callable[[Any], Answers[T]], silent: set[int]
) -> dict[TopicPartition, T]:
    """`silent` gets the brokers that are asked and have not answered."""

    async def asked_of(leader: int, asked: Collection[TopicPartition]) -> Any:
        silent.add(leader)
        try:
            async with asyncio.timeout(SILENT_S):
                answer = await wire.send(leader, request(asked))
        except TimeoutError:
            raise LeaderNotAvailableError(f"broker {leader} is silent") from None
        silent.discard(leader)
        return answer

    silent.clear()
    await wire.know({place[0] for place in places})
    by_leader: dict[int, list[TopicPartition]] = {}
    for place in places:
        leader = wire.leader_of(place)
        if leader is None:
            if wire.is_hidden(place[0]):
                wire.refresh()
                raise TopicAuthorizationFailedError(place[0])
            raise LeaderNotAvailableError(f"{place[0]}/{place[1]}")
        by_leader.setdefault(leader[0], []).append(place)
    sent = [asked_of(leader, asked) for leader, asked in by_leader.items()]
    answers = [await sent[0]] if len(sent) == 1 else await asyncio.gather(*sent)
    found: dict[TopicPartition, T] = {}
    for answer in answers:
        for place, code, value in read(answer):
            if code:
                raise for_code(code)(f"{place.topic}/{place.partition}")
            found[place] = value
    return found
