"""Reads the topic of bases: all of it, the newest base, or the first record of a log."""

from __future__ import annotations

from collections.abc import AsyncIterator

from equipoise.kafka.client import ConsumedRecord, TopicPartition
from equipoise.kafka.connection import Connection
from equipoise.kafka.known_ends import batches_before, looks_back
from equipoise.kafka.started_clients import reaching, reader
from equipoise.log.kafka.bases_topic import Base, Bases, opening_row
from equipoise.log.kafka.log_topics import (
    Topics,
)
from equipoise.log.kafka.topic_making import partition_count
from equipoise.log.rows import FactRow

_FIRST_LOOK_BACK = 300
"""Last records of the bases' topic that are searched first for a base."""


async def opening_in_bases(connection: Connection, topics: Topics, partition: int) -> FactRow | None:
    """Returns LogOpened as the first fact of a partition, which is at the beginning of the topic of
    bases; None: it is not there.
    """
    async for record in _records_of_bases(connection, topics, partition, 0):
        row = opening_row(record.key, record.value)
        if row is not None:
            return row
    return None


async def read_bases(connection: Connection, topics: Topics, partition: int, bases: Bases, start: int = 0) -> int:
    """Gives `bases` the records of its topic from offset `start` to the present end, and returns
    the offset behind the last one. A log without the topic has none. Raises KafkaError.
    """
    async for record in _records_of_bases(connection, topics, partition, start):
        bases.take(record.key, record.value)
        start = record.offset + 1
    return start


async def newest_base(connection: Connection, topics: Topics, log_id: str, partition: int) -> Base | None:
    """Returns the newest base that is stored; None: there is none. Searches from the end, so it
    does not read all states. Raises KafkaError, InputError.
    """
    if not await partition_count(connection, topics.bases, must_be_seen=True):
        return None
    tp = TopicPartition(topics.bases, partition)
    async with reader(connection) as consumer:
        consumer.assign([tp])
        begin, end = (await consumer.beginning_offsets([tp]))[tp], (await consumer.end_offsets([tp]))[tp]
        for start in looks_back(begin, end, _FIRST_LOOK_BACK):
            bases = Bases(log_id, keep_states=False)
            consumer.seek(tp, start)
            async for batch in batches_before(consumer, tp, end):
                for record in batch:
                    bases.take(record.key, record.value)
            if bases.stored:
                return bases.stored[-1]
    return None


async def _records_of_bases(connection: Connection, topics: Topics, partition: int, start: int) -> AsyncIterator[ConsumedRecord]:
    if not await partition_count(connection, topics.bases):
        return
    tp = TopicPartition(topics.bases, partition)
    async with reader(connection, max_poll_records=1_000) as consumer:
        consumer.assign([tp])
        with reaching(connection):
            begin, end = (await consumer.beginning_offsets([tp]))[tp], (await consumer.end_offsets([tp]))[tp]
            consumer.seek(tp, max(begin, start))
            async for batch in batches_before(consumer, tp, end):
                for record in batch:
                    yield record
