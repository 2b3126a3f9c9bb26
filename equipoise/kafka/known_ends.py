"""Reads partitions up to ends that are known before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence

from equipoise.kafka.client import LATEST_S, ConsumedRecord, Consumer, TopicPartition, late


class Standstill:
    """Ends a loop that gets no further. `what`: it waits for. `now_s`: of the loop's clock."""

    def __init__(self, what: str, now_s: Callable[[], float], most_s: float = LATEST_S) -> None:
        self._what, self._now_s, self._most_s = what, now_s, most_s
        self._seen: object = None
        self._until_s = now_s() + most_s

    def look(self, seen: object) -> None:
        """Raises KafkaTimeoutError when it was called with an equal `seen` for `most_s`."""
        now_s = self._now_s()
        if seen != self._seen:
            self._seen, self._until_s = seen, now_s + self._most_s
        elif now_s >= self._until_s:
            raise late(f"{self._what}, from {seen} on", self._most_s)


async def batches_before(consumer: Consumer, place: TopicPartition, end: int, *, wait_ms: int = 1_000) -> AsyncGenerator[Sequence[ConsumedRecord]]:
    """Yields the records of a partition from the consumer's position to before `end`. Raises
    KafkaTimeoutError when none comes for LATEST_S: no broker answers, or they have lost the end.
    """
    standstill = Standstill(f"records of {place.topic}/{place.partition} before offset {end}", asyncio.get_running_loop().time)
    while (position := await consumer.position(place)) < end:
        standstill.look(position)
        records = (await consumer.getmany(place, timeout_ms=wait_ms)).get(place, ())
        if records and records[-1].offset >= end:
            records = [each for each in records if each.offset < end]
        if records:
            yield records


def looks_back(begin: int, end: int, first: int) -> Iterator[int]:
    """Yields where to begin to read, so that the last of what is wanted is found soon: `first`
    offsets before `end`, then eight times as many before that, down to `begin`.
    """
    start = end
    while start > begin:
        start, first = max(begin, end - first), first * 8
        yield start
