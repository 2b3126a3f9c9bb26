"""Reads `__consumer_offsets` of a cluster without disturbing it: it joins no group, and commits and
writes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from equipoise.kafka.client import ConsumedRecord, TopicPartition
from equipoise.kafka.connection import Connection
from equipoise.kafka.known_ends import Standstill
from equipoise.kafka.offsets_topic.record_keys import RawRecord
from equipoise.kafka.started_clients import admin_client, reaching, reader
from equipoise.log.kafka.topic_making import partition_count

OFFSETS_TOPIC = "__consumer_offsets"
_INTERNAL = "__"
_MOST_A_FETCH = 5_000
_WAIT_MS = 200
_TURNS = 3


class ClusterReader:
    """`positions`: partition of the topic -> offset of the next record to read; what is missing is
    read from its beginning.
    """

    def __init__(self, connection: Connection, positions: Mapping[int, int] | None = None) -> None:
        self._connection = connection
        self._stack = contextlib.AsyncExitStack()
        self._consumer: Any = None
        self._ends: dict[TopicPartition, int] = {}
        self._began_at: dict[int, int] = dict(positions or {})
        self.positions: dict[int, int] = {}
        self.lost: dict[int, tuple[int, int]] = {}
        """Partition -> place where reading should have gone on, and where it did: compaction and
        retention had taken what was there.
        """

    async def __aenter__(self) -> Self:
        self._consumer = await self._stack.enter_async_context(reader(self._connection, max_poll_records=_MOST_A_FETCH, fetch_max_wait_ms=_WAIT_MS))
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._stack.aclose()

    async def _assign(self) -> bool:
        """False: the cluster has no such topic, so it never had a group. Raises NotAllowedError."""
        count = await partition_count(self._connection, OFFSETS_TOPIC, must_be_seen=True)
        if not count:
            return False
        places = [TopicPartition(OFFSETS_TOPIC, partition) for partition in range(count)]
        with reaching(self._connection):
            self._consumer.assign(places)
            begins = await self._consumer.beginning_offsets(places)
            self._ends = await self._consumer.end_offsets(places)
        self._standstill = Standstill(f"records of {OFFSETS_TOPIC}", asyncio.get_running_loop().time)
        for place in places:
            due, begin = self._began_at.get(place.partition), begins[place]
            if due is not None and due < begin:
                self.lost[place.partition] = due, begin
            self.positions[place.partition] = max(begin, due or 0)
            self._consumer.seek(place, self.positions[place.partition])
        return True

    async def poll(self) -> list[RawRecord]:
        """The next records, in the order of each partition; [] when there are none within 0.2 s.
        Raises InputError when the brokers cannot be asked; of its kinds, NotAllowedError when this
        user may not read the topic.
        """
        if not self.positions and not await self._assign():
            return []
        found: list[RawRecord] = []
        with reaching(self._connection):
            batches: dict[TopicPartition, list[ConsumedRecord]] = await self._consumer.getmany(timeout_ms=_WAIT_MS)
            for place, records in batches.items():
                found += [
                    RawRecord(place.partition, each.offset, each.timestamp_ms, each.key, each.value) for each in records if each.key is not None
                ]
                self.positions[place.partition] = await self._consumer.position(place)
        return found

    async def read_all(self) -> bool:
        """Returns whether everything is read that was there when reading began. Records that
        compaction left out at the end count as read once a poll is behind them. Raises InputError
        when no more come for LATEST_S.
        """
        if not self.positions:
            return True
        with reaching(self._connection):
            positions = [await self._consumer.position(place) for place in self._ends]
            self._standstill.look(positions)
            return all(position >= end for position, end in zip(positions, self._ends.values(), strict=True))

    async def topics(self) -> list[str]:
        """Topics of the cluster, without those that brokers keep for themselves."""
        async with admin_client(self._connection) as admin:
            with reaching(self._connection):
                return sorted(each["topic"] for each in await admin.describe_topics(None) if not each["topic"].startswith(_INTERNAL))

    async def names(self) -> dict[str, str]:
        """Topic id -> topic, as `uuid.UUID` writes ids; {} where brokers have no ids."""
        from aiokafka.errors import UnknownTopicOrPartitionError

        if not self.positions:
            return {}
        for _ in range(_TURNS):  # a topic may be deleted between two requests
            topics = await self.topics()
            with reaching(self._connection), contextlib.suppress(UnknownTopicOrPartitionError):
                ids = await self._consumer.topic_ids(topics, TopicPartition(OFFSETS_TOPIC, 0)) if topics else ()
                return {} if ids is None else {str(uuid.UUID(hex=found)): topic for found, topic in zip(ids, topics, strict=True)}
        return {}

    async def ends(self, topics: Iterable[str]) -> dict[str, list[int]]:
        """Topic -> end offset of each of its partitions, now; those that are not there are left
        out.
        """
        wanted = sorted(topics)
        if not wanted:
            return {}
        async with admin_client(self._connection) as admin:
            with reaching(self._connection):
                described = await admin.describe_topics(wanted)
        counts = {each["topic"]: len(each["partitions"]) for each in described if not each["error_code"]}
        places = [TopicPartition(topic, partition) for topic, count in sorted(counts.items()) for partition in range(count)]
        if not places:
            return {}
        with reaching(self._connection):
            found = await self._consumer.end_offsets(places)
        ends: dict[str, list[int]] = {}
        for place in places:
            ends.setdefault(place.topic, []).append(found[place])
        return ends
