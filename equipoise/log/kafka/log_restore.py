"""Restores a log into new topics of Kafka from an archive, byte for byte: each fact at its former
offset and with its former append time, and its decisions.

While it is restored, the topic of facts takes the sender's time (CreateTime), so workers refuse the
log; each fact has the header `RESTORED`, by which readers know its time for that of a broker. When
everything is there and was read back, the topic takes the broker's time only, and the log can be
led.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice, zip_longest
from typing import cast

import attrs

from equipoise.events.errors import InputError, LogError
from equipoise.events.facts import LogOpened
from equipoise.events.records import BaseState, FactRecord
from equipoise.kafka.client import NewTopic, SentBatch, TopicPartition, Unsent, acknowledged
from equipoise.kafka.connection import Connection
from equipoise.kafka.started_clients import admin_client, reaching, reader, writer
from equipoise.log.kafka.envelope import StoredDecision, decision_value, fact_value
from equipoise.log.kafka.fact_checks import RESTORED
from equipoise.log.kafka.log import KafkaLog, Place
from equipoise.log.kafka.log_loop import LogLoop
from equipoise.log.kafka.log_topics import Topics
from equipoise.log.kafka.topic_making import check_topics, described_topics, make_topics, new_topics
from equipoise.log.rows import DecisionRow, FactRow
from equipoise.log.stored import StoredLog

_ROWS_A_BATCH = 5_000
_BATCH_BYTES = 1_000_000
_TIME = "message.timestamp.type"
_TURNS, _TURN_S = 100, 0.1
"""How often, and after how long each time, to look whether a broker knows a topic's new setting."""


@attrs.frozen(kw_only=True)
class Restored:
    """The result of one run. `facts`, `decisions`: of the whole log, read back."""

    partitions: int
    facts: int
    decisions: int
    written: int
    """Records that this run has written; a run before it may have written others."""


def restore(
    sources: Mapping[int, StoredLog], location: str, *, replication: int = 0, advance: Callable[[int], None] = lambda records: None
) -> Restored:
    """Writes the log of which `sources` has all partitions into new topics at `location`, and reads
    it back. Goes on where a run that was killed ended. `replication`: as of `ensure_topics`.

    Raises InputError when the topics exist and are not of an unfinished restore of this log;
    LogError when the archive cannot be read, or when what was read back differs.
    """
    place = Place.parse(location)
    if place.partition is not None:
        raise InputError(f"{location}: a log is restored with all its partitions; leave out ?partition={place.partition}")
    opened = _opening(sources)
    loop = LogLoop()
    try:
        made = loop.run(_make_topics(place.connection, place.topics, opened.partitions, replication))
        written = 0
        for partition in range(opened.partitions):
            written += loop.run(_write(place.connection, place.topics, partition, stored_rows(sources[partition]), advance))
        facts, decisions = _read_back(sources, location)
        loop.run(_take_brokers_time(place.connection, place.topics, made))
    finally:
        loop.close()
    return Restored(partitions=opened.partitions, facts=facts, decisions=decisions, written=written)


def _opening(sources: Mapping[int, StoredLog]) -> LogOpened:
    """Returns what opened the log. Raises InputError unless every partition of it is there."""
    first = next((record for source in sources.values() for record in source.read()), None)
    if not isinstance(first, FactRecord) or not isinstance(first.event, LogOpened):
        raise InputError("the archive holds no fact of the log; name another one")
    missing = set(range(first.event.partitions)) ^ set(sources)
    if missing or any(source.partition not in (None, partition) for partition, source in sources.items()):
        has = f"the log has {first.event.partitions} partitions, and this is not all of it: see partition {min(missing, default=0)}"
        raise InputError(f"{has}; name an archive of all partitions, as `equipoise archive kafka://... --to archive/` makes it")
    for partition, source in sources.items():
        state = next((entry for entry in islice(source.read(), 1, 2) if isinstance(entry, BaseState)), None)
        if state is not None:
            begins = f"partition {partition} of the archive begins at the base at offset {state.begins_offset}"
            raise InputError(f"{begins}, and a log is restored from its first record; name an archive that has it")
    return first.event


def stored_rows(source: StoredLog) -> Iterator[FactRow | StoredDecision]:
    """Yields the rows of a log as those of a log in Kafka."""
    for row, order in source.checked_rows():
        yield row if isinstance(row, FactRow) else StoredDecision(cast(DecisionRow, row), order.log_id, order.fact_checksum)  # it has no base


async def _make_topics(connection: Connection, topics: Topics, partitions: int, replication: int) -> NewTopic:
    """Makes what is missing. Returns the topic of the facts as a worker would have made it."""
    async with admin_client(connection) as admin:
        with reaching(connection):
            wanted = {topic.name: topic for topic in await new_topics(admin, topics, partitions, replication)}
            facts = wanted[topics.facts]
            made = {**wanted, topics.facts: attrs.evolve(facts, topic_configs={**facts.topic_configs, _TIME: "CreateTime"})}
            there = [each["topic"] for each in await admin.describe_topics([*wanted, topics.bases]) if not each["error_code"]]
            if topics.facts in there and (await admin.topic_configs([topics.facts]))[topics.facts][_TIME] != "CreateTime":
                raise InputError(f"topic {topics.facts} exists and may be led; restore to another prefix, or delete all topics of this one")
            if topics.facts not in there and there:
                raise InputError(f"topic {there[0]} exists, and {topics.facts} does not; delete it, or restore to another prefix")
            await make_topics(admin, [made[topics.facts]])  # first, so that no worker leads in between
            await make_topics(admin, list(made.values()))
            for each in (await described_topics(admin, [topics.facts, topics.decisions])).values():
                if len(each["partitions"]) != partitions:
                    has = f"topic {each['topic']} has {len(each['partitions'])} partitions, and the log {partitions}"
                    raise InputError(f"{has}; delete the topics of {topics.prefix} and run it again")
    return facts


async def _write(
    connection: Connection, topics: Topics, partition: int, rows: Iterable[FactRow | StoredDecision], advance: Callable[[int], None]
) -> int:
    """Writes what is missing behind what is there, in order. Returns the number of records written."""
    places = TopicPartition(topics.facts, partition), TopicPartition(topics.decisions, partition)
    async with reader(connection) as consumer:
        with reaching(connection):
            ends = await consumer.end_offsets(places)
    passed = dict.fromkeys(places, 0)
    rows, written = iter(rows), 0
    async with writer(connection, max_batch_size=_BATCH_BYTES) as producer:
        with reaching(connection):
            for place in places:
                await producer.partitions_for(place.topic)
            while batch := list(islice(rows, _ROWS_A_BATCH)):
                unsent: dict[TopicPartition, list[Unsent]] = {place: [] for place in places}
                for row in batch:
                    place = places[0] if isinstance(row, FactRow) else places[1]
                    passed[place] += 1
                    if passed[place] > ends[place]:
                        unsent[place].append(_unsent(row))
                sent: list[SentBatch] = []
                for place, records in unsent.items():
                    sent += producer.send_batches(place, records)
                    written += len(records)
                await acknowledged(sent)
                advance(len(batch))
    more = next((place for place in places if ends[place] > passed[place]), None)
    if more is not None:
        raise InputError(f"topic {more.topic}/{partition} holds {ends[more]} records, and the archive {passed[more]}; restore to another prefix")
    return written


def _unsent(row: FactRow | StoredDecision) -> Unsent:
    if isinstance(row, FactRow):
        return *fact_value(row), [(RESTORED, b"")], row.append_ms
    return *decision_value(row), [], None


def _read_back(sources: Mapping[int, StoredLog], location: str) -> tuple[int, int]:
    """Compares every row in Kafka with the archive. Returns the numbers of facts and decisions.
    Raises LogError at the first difference.
    """
    counts = {FactRow: 0, StoredDecision: 0}
    with KafkaLog(location) as log:
        for partition, source in sorted(sources.items()):
            for theirs, ours in zip_longest(stored_rows(source), log.rows(partition)):
                if theirs != ours:
                    at = next(each.row.caused_by if isinstance(each, StoredDecision) else each.offset for each in (theirs, ours) if each is not None)
                    raise LogError(at, f"partition {partition} of {location} differs from the archive here; delete its topics and run it again")
                counts[type(ours)] += 1
    return counts[FactRow], counts[StoredDecision]


async def _take_brokers_time(connection: Connection, topics: Topics, facts: NewTopic) -> None:
    """Lets workers lead the log."""
    async with admin_client(connection) as admin:
        with reaching(connection):
            await admin.set_topic_configs(facts.name, facts.topic_configs)
            for _ in range(_TURNS):  # a broker learns of it from the controller, after the answer
                if (await admin.topic_configs([facts.name]))[facts.name][_TIME] == facts.topic_configs[_TIME]:
                    break
                await asyncio.sleep(_TURN_S)
            await check_topics(admin, topics)
