"""Opens a log in Kafka, whose topics are there: writes the first record of each partition. Readers
learn here what that record says.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import cast

from equipoise.events.errors import EquipoiseError, InputError
from equipoise.events.facts import LogOpened
from equipoise.kafka.client import ConsumedRecord, TopicPartition, within
from equipoise.kafka.connection import Connection
from equipoise.kafka.known_ends import batches_before
from equipoise.kafka.started_clients import NOT_ALLOWED, NOT_SEEN, NotAllowedError, admin_client, reaching, reader, writer
from equipoise.log.kafka.bases_reading import opening_in_bases
from equipoise.log.kafka.bases_topic import archive_record, opening_record
from equipoise.log.kafka.envelope import pack_fact, read_fact
from equipoise.log.kafka.fact_checks import check_append_time
from equipoise.log.kafka.log_topics import MADE_AGAIN, NEW_LOG, Topics
from equipoise.log.kafka.topic_making import WAIT_S, described_topics, make_bases_topic, partition_count


class NotThereError(InputError):
    """The log's topics do not exist or are empty: no worker has made them yet."""


async def open_partitions(connection: Connection, topics: Topics, *, new_id: str | None = None) -> LogOpened:
    """Writes LogOpened at the beginning of each empty partition of the facts, and returns it.
    `new_id`: id of the log if this opens it; None: a random one.

    Writes the last partition first: once partition 0 is open, all are. Several workers may do this
    at once: the first record of the last partition names the log, and a second LogOpened in a
    partition has no group and is not folded.
    """
    opened = await first_record(connection, topics, 0)
    if opened is not None:
        return opened
    async with admin_client(connection) as admin:
        with reaching(connection):  # a broker may not know topics that another one has just made
            count = len((await described_topics(admin, [topics.facts]))[topics.facts]["partitions"])
    firsts = {partition: await first_record(connection, topics, partition) for partition in range(count)}
    opened = next((first for first in firsts.values() if first is not None), None)  # of a worker that is opening the log or was interrupted
    if opened is not None:
        count = opened.partitions
    async with writer(connection) as producer:
        for partition in reversed(range(count)):
            if firsts[partition] is None:
                event = opened or LogOpened(log_id=new_id or uuid.uuid4().hex, partitions=count)
                with reaching(connection):
                    await producer.send_and_wait(topics.facts, pack_fact(event), key=b"", partition=partition)
                    async with within(f"the first record of {topics.facts}/{partition}"):
                        while opened is None:  # a leader that has just begun does not know the end at once
                            opened = await first_record(connection, topics, partition)
    assert opened is not None, "every partition has been opened"
    return opened


async def read_opening(connection: Connection, topics: Topics, *, timeout_s: float = 0.0, waits: Callable[[], None] = lambda: None) -> LogOpened:
    """Returns the log's first record: its id and the number of partitions for groups
    (docs/protocol.md#l1).

    Waits up to `timeout_s` for a worker to open the log, or to make what was deleted of it, and
    calls `waits` once when it has to. Raises NotThereError when none does, NotAllowedError when this
    user may not see the facts: the log may be there.
    """
    clock = asyncio.get_running_loop().time
    end_s, waited = clock() + timeout_s, False
    while True:
        lacking, is_hidden = await _lacking(connection, topics)
        opened = None
        if topics.facts not in lacking:
            opened = await first_record(connection, topics, 0)
            if opened is not None and not lacking:
                return opened
        if clock() >= end_s:
            place = f"kafka://{connection.bootstrap}/{topics.prefix}"
            if opened is not None:
                raise NotThereError(f"{place}: {' and '.join(lacking)} {'is' if len(lacking) == 1 else 'are'} gone: {MADE_AGAIN}")
            if is_hidden:
                raise NotAllowedError(f"{place}: topic {topics.facts}: {NOT_SEEN}")
            if await _has_records(connection, topics.decisions):
                raise NotThereError(f"{place}: {topics.facts} is empty, and {topics.decisions} is not: facts are lost; {NEW_LOG}")
            raise NotThereError(f"{place}: there is no log; start a worker, which makes one")
        if not waited:
            waits()
            waited = True
        await asyncio.sleep(WAIT_S)


async def open_again(connection: Connection, topics: Topics, partition: int, opened: LogOpened) -> None:
    """Writes the first record into a partition whose facts and decisions the brokers have lost, all
    of them. Raises InputError when only its facts are gone, or when somebody was faster.
    """
    if await first_record(connection, topics, partition) is not None:
        return
    if await _has_records(connection, topics.decisions, [partition]):
        raise InputError(f"topic {topics.facts}/{partition} is empty, and {topics.decisions}/{partition} is not: facts are lost; {NEW_LOG}")
    async with writer(connection) as producer:
        with reaching(connection):
            await producer.send_and_wait(topics.facts, pack_fact(opened), key=b"", partition=partition)


async def _lacking(connection: Connection, topics: Topics) -> tuple[list[str], bool]:
    """Returns the topics of the log that are not there, and whether this user may not see whether
    the facts are.
    """
    from aiokafka.errors import UnknownTopicOrPartitionError

    names = [topics.facts, topics.decisions, topics.checkpoints]
    async with admin_client(connection) as admin:
        with reaching(connection):
            codes = {each["topic"]: each["error_code"] for each in await admin.describe_topics(names)}
    lacking = [name for name in names if codes[name] and (name == topics.facts or codes[name] == UnknownTopicOrPartitionError.errno)]
    return lacking, codes[topics.facts] == NOT_ALLOWED


async def _has_records(connection: Connection, topic: str, partitions: Iterable[int] | None = None) -> bool:
    numbers = range(await partition_count(connection, topic)) if partitions is None else partitions
    places = [TopicPartition(topic, number) for number in numbers]
    if not places:
        return False
    async with reader(connection) as consumer:
        with reaching(connection):
            return any((await consumer.end_offsets(places)).values())


async def first_record(connection: Connection, topics: Topics, partition: int) -> LogOpened | None:
    """Returns LogOpened of one partition; None while it is empty. When its first records were
    deleted, LogOpened is in the topic of bases. Raises InputError when the first record is
    something else, or its time is not the broker's.
    """
    from aiokafka.errors import OffsetOutOfRangeError

    tp = TopicPartition(topics.facts, partition)
    async with reader(connection) as consumer:
        consumer.assign([tp])
        with reaching(connection):
            begin = (await consumer.beginning_offsets([tp]))[tp]
            end = (await consumer.end_offsets([tp]))[tp]
            if begin >= end and begin == 0:
                return None
            if begin > 0:
                await partition_count(connection, topics.bases, must_be_seen=True)
                row = await opening_in_bases(connection, topics, partition)
                if row is None:
                    gone = f"topic {topics.facts}/{partition} begins at offset {begin}, and no base has its first record"
                    raise InputError(f"{gone}: keep its records with retention.ms=-1, and {NEW_LOG}")
                return cast(LogOpened, row.record().event)
            consumer.seek(tp, 0)
            found: list[ConsumedRecord] = []
            try:
                async for batch in batches_before(consumer, tp, 1):
                    found += batch
            except OffsetOutOfRangeError:  # a worker has deleted it meanwhile
                return await first_record(connection, topics, partition)
    event = None
    for first in found:
        check_append_time(first)
        with contextlib.suppress(EquipoiseError):
            event = read_fact(first.key, first.value, first.offset, first.timestamp_ms).event
    if not isinstance(event, LogOpened):
        raise InputError(
            f"topic {topics.facts}/{partition} does not begin with LogOpened, so it is not a log of equipoise; use another prefix. If the topics of "
            f"{topics.prefix} were deleted while members ran, delete them again: a member was faster than the worker, and has stopped by now"
        )
    return event


async def open_bases(connection: Connection, topics: Topics, partition: int) -> None:
    """Writes LogOpened into a partition of the topic of bases, unless it is there. Raises
    InputError, KafkaError. Raises NotThereError when the partition of facts is empty.
    """
    opened = await first_record(connection, topics, partition)
    if opened is None:
        raise NotThereError(f"topic {topics.facts}/{partition} is empty")
    if await opening_in_bases(connection, topics, partition) is not None:
        return
    tp = TopicPartition(topics.facts, partition)
    async with reader(connection) as consumer:
        consumer.assign([tp])
        consumer.seek(tp, 0)
        async for batch in batches_before(consumer, tp, 1):
            key, value = opening_record(batch[0].timestamp_ms, opened)
            async with writer(connection) as producer:
                await producer.send_and_wait(topics.bases, value, key=key, partition=partition)


async def make_bases(connection: Connection, topics: Topics, partitions: Iterable[int]) -> None:
    """Makes the topic of bases, and opens these partitions of it, unless it is there. Looks at no
    other topic than that of facts, because who declares an archive may not see all of them. Raises
    InputError.
    """
    async with admin_client(connection) as admin:
        with reaching(connection):
            await make_bases_topic(admin, topics)
    with reaching(connection):
        for partition in partitions:
            await open_bases(connection, topics, partition)


async def declare_archive(connection: Connection, topics: Topics, log_id: str, positions: Mapping[int, int | None], name: str, at_ms: int) -> None:
    """Says that the archive `name` has the facts before these positions, by partition; None: that
    there is no such archive any longer. The topic of bases is there. Raises InputError.
    """
    with reaching(connection):
        async with writer(connection) as producer:
            for partition, position in positions.items():
                key, value = archive_record(log_id, name, position or 0, at_ms)
                await producer.send_and_wait(topics.bases, None if position is None else value, key=key, partition=partition)
