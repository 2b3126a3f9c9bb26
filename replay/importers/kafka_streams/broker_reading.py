"""Reads a running Kafka Streams group from its broker without disturbing it: its partition of
`__consumer_offsets`, and end offsets. It joins no group, and commits and writes nothing.

Two things differ from a recording:

- `__consumer_offsets` is compacted. Of the group's past it has everything since its active segment
  began (Kafka: 100 MB or 7 days), and before that what compaction left.
- No end offsets were sampled. The end of a partition at a past time is requested by time: the
  offset of its first record from then on. This goes by the records' timestamps. Kafka Streams gives
  changelog records those of their input, so while a group works through a backlog its changelogs
  seem to have grown when the input was written.
"""

from __future__ import annotations

import contextlib
from types import TracebackType
from typing import Any, Self

from equipoise.events.errors import InputError
from equipoise.events.java_order import text_hash
from equipoise.kafka.client import TopicPartition
from equipoise.kafka.connection import Connection, connection_to
from equipoise.kafka.known_ends import batches_before
from equipoise.kafka.offsets_topic.record_keys import RawRecord
from equipoise.kafka.started_clients import admin_client, reaching, reader
from equipoise.log.kafka.topic_making import partition_count
from equipoise.replay.importers.kafka_streams.offsets_records import READABLE, GroupMetadata, decode_record, other_kind
from equipoise.replay.importers.kafka_streams.scan import processes
from equipoise.replay.importers.kafka_streams.source import HeldSource
from equipoise.replay.importers.kafka_streams.topology import changelog_candidates

SCHEME = "kafka://"
OFFSETS_TOPIC = "__consumer_offsets"
MOST_SAMPLES = 1_000
"""Most past moments for which end offsets are requested, besides those of generations: one request
each.
"""


def connection_of(location: str) -> Connection:
    """Parses ``kafka://host:port[,host:port]``. Raises InputError for any other text."""
    address = location.removeprefix(SCHEME).rstrip("/")
    if not address or "/" in address or "@" in address or "?" in address:
        raise InputError(f"{location}: write kafka://host:port[,host:port]; the environment holds users and passwords")
    return connection_to(address)


def offsets_partition(group: str, partitions: int) -> int:
    """Returns the partition of `__consumer_offsets` that holds a group: Java's
    ``abs(group.hashCode()) % partitions``, with 0 for the one int that has no absolute value.
    """
    code = text_hash(group)
    signed = code - 2**32 if code >= 2**31 else code
    return 0 if signed == -(2**31) else abs(signed) % partitions


class StreamsGroup:
    """One group on one broker. `source` holds what was read so far, for `import_history`."""

    def __init__(self, location: str, group: str, *, every_ms: int = 10_000) -> None:
        self.group = group
        self.source = HeldSource(location)
        self._connection = connection_of(location)
        self._every_ms = every_ms
        self._stack = contextlib.AsyncExitStack()
        self._consumer: Any = None
        self._place: Any = None
        self._position = -1
        self._sampled_ms = -1
        self._topics: dict[str, int] = {}

    async def __aenter__(self) -> Self:
        self._consumer = await self._stack.enter_async_context(reader(self._connection, fetch_max_wait_ms=100))
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._stack.aclose()

    async def catch_up(self) -> int:
        """Reads to the end and returns the number of new generations. Raises InputError for a group
        that is not led by Kafka Streams with the classic protocol.
        """
        if self._place is None:
            count = await partition_count(self._connection, OFFSETS_TOPIC)
            if not count:
                return 0  # the broker never had a consumer group
            self._place = TopicPartition(OFFSETS_TOPIC, offsets_partition(self.group, count))
            self._consumer.assign([self._place])
        with reaching(self._connection):
            new = await self._read(self._place)
        if new:
            await self._know_topics(new)
            with reaching(self._connection):
                await self._sample([at_ms for at_ms, _ in new])
        return len(new)

    async def _read(self, place: Any) -> list[tuple[int, GroupMetadata]]:
        if self._position < 0:
            self._position = (await self._consumer.beginning_offsets([place]))[place]
        end = (await self._consumer.end_offsets([place]))[place]
        self._consumer.seek(place, self._position)
        found: list[tuple[int, GroupMetadata]] = []
        async for batch in batches_before(self._consumer, place, end):
            for record in batch:
                event = decode_record(record.offset, record.key, record.value, self.group) if record.key is not None else None
                kind = None if record.key is None or record.value is None else other_kind(record.key, self.group)
                if kind is not None:
                    raise InputError(f"--group: {self.group!r} is {kind}; {READABLE}")
                if event is not None and record.key is not None:
                    self.source.held.append(RawRecord(place.partition, record.offset, record.timestamp_ms, record.key, record.value))
                if isinstance(event, GroupMetadata):
                    found.append((record.timestamp_ms, event))
        self._position = await self._consumer.position(place)
        return found

    async def _know_topics(self, new: list[tuple[int, GroupMetadata]]) -> None:
        """Finds changelogs by their names and sources by assignments; topics may be created while
        the group runs.
        """
        wanted = {topic for _, event in new for consumers in processes(event).values() for each in consumers for topic in each.assignment.partitions}
        async with admin_client(self._connection) as admin:
            with reaching(self._connection):
                there = [each["topic"] for each in await admin.describe_topics(None)]
                wanted.update(changelog_candidates(self.group, dict.fromkeys(there, 0)))
                unknown = sorted(wanted.intersection(there).difference(self._topics))
                for described in await admin.describe_topics(unknown) if unknown else ():
                    if not described["error_code"]:
                        self._topics[described["topic"]] = len(described["partitions"])

    async def _sample(self, moments_ms: list[int]) -> None:
        """Requests end offsets at each generation, and at even steps from the last sample to the
        newest generation.
        """
        first_ms = min(moments_ms) if self._sampled_ms < 0 else self._sampled_ms
        step_ms = max(self._every_ms, (max(moments_ms) - first_ms) // MOST_SAMPLES)
        for ms in sorted({*moments_ms, *range(first_ms, max(moments_ms), step_ms)}):
            self.source.samples[ms] = await self._ends_at(ms)
        self._sampled_ms = max(moments_ms)

    async def _ends_at(self, ms: int) -> dict[str, list[int]]:
        places = [TopicPartition(topic, partition) for topic, count in sorted(self._topics.items()) for partition in range(count)]
        if not places:
            return {}
        now = await self._consumer.end_offsets(places)
        then: dict[Any, Any] = await self._consumer.offsets_for_times(dict.fromkeys(places, ms))
        ends: dict[str, list[int]] = {}
        for place in places:
            ends.setdefault(place.topic, []).append(now[place] if then[place] is None else then[place])
        return ends
