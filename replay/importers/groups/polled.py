"""A cluster whose `__consumer_offsets` may not be read: its groups are described again and again,
and what has changed is written as their coordinator would have.

Lost are: what comes and goes between two looks, generations (they are counted), session and
rebalance timeouts, and all groups that are not of the classic protocol, which
DescribeGroups does not describe.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from equipoise.events.log.kafka.connection import Connection
from equipoise.events.log.kafka.group_requests import DescribeGroups
from equipoise.events.log.kafka.opening import admin_client, reaching
from equipoise.replay.importers.groups.cluster import ClusterReader
from equipoise.replay.importers.groups.observed import ObservedGroups
from equipoise.replay.importers.groups.recording import Recording
from equipoise.replay.importers.offsets_topic.records import RawRecord
from equipoise.replay.importers.offsets_topic.writing import WrittenMember, classic_group_record, commit_record, group_key

LOST = (
    "the records of __consumer_offsets may not be read, so groups are polled: lost are rebalances between two looks, generations, "
    "timeouts, and groups of KIP-848, KIP-1071 and KIP-932"
)
_SETTLED = ("Stable", "Empty")
_DEAD = "Dead"
_MOVED = (15, 16)
"""Kafka's errors COORDINATOR_NOT_AVAILABLE and NOT_COORDINATOR."""
_MOST_AT_ONCE = 100
"""Groups in one request, and requests for commits under way."""


class PolledCluster:
    """The same for a `Recorder` as a `ClusterReader`. `poll_s`: from one look to the next.
    `recording`: what was recorded before, so that a restart records no change. `wanted`: whether a
    group is of interest.
    """

    positions: Mapping[int, int] = MappingProxyType({})
    """Nothing is read by position."""

    def __init__(
        self,
        connection: Connection,
        reader: ClusterReader,
        *,
        poll_s: float,
        recording: Recording,
        wanted: Callable[[str], bool] = lambda group: True,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._connection = connection
        self._reader = reader
        self._poll_s = poll_s
        self._wanted = wanted
        self._now_ms = now_ms
        self._next_s = 0.0
        self._seen: dict[str, tuple[Any, ...]] = {}
        """Group -> what was last written of it."""
        known = ObservedGroups()
        for raw in recording.records():
            known.read(raw)
        self._known = known.groups
        self._generations = {name: group.epoch for name, group in known.groups.items()}
        self._coordinators: dict[str, int] = {}
        self._committed = {(each.group, each.topic, each.partition): each.committed for each in recording.commits()}

    async def poll(self) -> list[RawRecord]:
        """What has changed since the last look; [] until it is time for the next. Raises InputError
        when the brokers cannot be asked.
        """
        left_s = self._next_s - time.monotonic()
        if left_s > 0:
            await asyncio.sleep(min(left_s, 0.2))
            return []
        self._next_s = time.monotonic() + self._poll_s
        async with admin_client(self._connection) as client:
            admin: Any = client  # aiokafka's, with all its methods
            with reaching(self._connection):
                groups = sorted(name for name, _ in await admin.list_consumer_groups() if self._wanted(name))
                found = self._gone(groups)
                for begin in range(0, len(groups), _MOST_AT_ONCE):
                    found += await self._look(admin, groups[begin : begin + _MOST_AT_ONCE])
        return found

    async def read_all(self) -> bool:
        """Whether everything was looked at once."""
        return self._next_s > 0

    async def names(self) -> dict[str, str]:
        """Topic id -> topic."""
        return await self._reader.names()

    async def ends(self, topics: Iterable[str]) -> dict[str, list[int]]:
        """Topic -> end offset of each of its partitions, now."""
        return await self._reader.ends(topics)

    def _gone(self, groups: list[str]) -> list[RawRecord]:
        gone = self._seen.keys() - set(groups)
        for name in gone:
            del self._seen[name]
        return [self._raw(group_key(name), None) for name in sorted(gone)]

    async def _look(self, admin: Any, groups: list[str]) -> list[RawRecord]:
        found: list[RawRecord] = []
        nodes = {name: await self._coordinator(admin, name) for name in groups}
        asked = [DescribeGroups(*(name for name in groups if nodes[name] == node)) for node in sorted(set(nodes.values()))]
        answers = await asyncio.gather(*(admin._send_request(each, node) for each, node in zip(asked, sorted(set(nodes.values())), strict=True)))
        for error, name, state, protocol_type, protocol, members, *_ in (each for answer in answers for each in answer.groups):
            if error in _MOVED:
                self._coordinators.pop(name, None)
            if error or state == _DEAD or state not in _SETTLED:
                continue
            described = (protocol_type, protocol, tuple(sorted(members)))
            if self._seen.get(name) != described:
                self._seen[name] = described
                before = self._known.pop(name, None)
                if before is None or before.members.keys() != {each[0] for each in members}:
                    self._generations[name] = self._generations.get(name, 0) + 1
                written = [WrittenMember(*each) for each in described[2]]
                found.append(self._raw(*classic_group_record(name, protocol_type, self._generations[name], protocol, self._now_ms(), written)))
        reading = (admin.list_consumer_group_offsets(name, group_coordinator_id=nodes[name]) for name in groups)
        for name, commits in zip(groups, await asyncio.gather(*reading), strict=True):
            for place, committed in commits.items():
                key = (name, place.topic, place.partition)
                if self._committed.get(key) != committed.offset:
                    self._committed[key] = committed.offset
                    found.append(self._raw(*commit_record(*key, self._now_ms(), committed.offset)))
        return found

    async def _coordinator(self, admin: Any, group: str) -> int:
        if group not in self._coordinators:
            self._coordinators[group] = await admin.find_coordinator(group)
        return self._coordinators[group]

    def _raw(self, key: bytes, value: bytes | None) -> RawRecord:
        return RawRecord(0, 0, self._now_ms(), key, value)
