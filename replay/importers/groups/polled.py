"""A cluster whose `__consumer_offsets` may not be read: its groups are described again and again,
and what has changed is written as their coordinator would have.

Lost are: what comes and goes between two looks; of groups of the classic protocol generations (they
are counted), session and rebalance timeouts; and share groups.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from equipoise.events.errors import InputError
from equipoise.kafka.client import Admin, TopicPartition
from equipoise.kafka.connection import Connection
from equipoise.kafka.consumer.group_offsets import offsets_request, read_offsets
from equipoise.kafka.consumer_groups import groups_of
from equipoise.kafka.described_groups import read_streams_groups, records_of_consumers, records_of_streams, topics_of
from equipoise.kafka.group_requests import ConsumerGroupDescribe, DescribeGroups, StreamsGroupDescribe
from equipoise.kafka.offsets_topic.byte_reader import WireError
from equipoise.kafka.offsets_topic.record_keys import GroupRecord, RawRecord, read_group_record
from equipoise.kafka.offsets_topic.record_writing import WrittenMember, classic_group_record, commit_record, group_key
from equipoise.kafka.started_clients import admin_client, reaching
from equipoise.replay.importers.groups.cluster_reading import ClusterReader
from equipoise.replay.importers.groups.cluster_recording import ClusterRecording
from equipoise.replay.importers.groups.observed import ObservedGroups
from equipoise.replay.importers.groups.under_way import UnderWay, under_way_of
from equipoise.replay.wording import counted

LOST = (
    "the records of __consumer_offsets may not be read, so groups are polled: lost are rebalances between two looks, "
    "generations and timeouts of the classic protocol, and share groups"
)
_SETTLED = ("Stable", "Empty")
_LONG_S = 10.0
_DEAD = "Dead"
_OTHER_PROTOCOL = (35, 69)
"""UNSUPPORTED_VERSION and GROUP_ID_NOT_FOUND."""
_DENIED = (29, 30)
"""TOPIC_AUTHORIZATION_FAILED and GROUP_AUTHORIZATION_FAILED."""
_MOST_AT_ONCE = 100
"""Groups in one request, and requests for commits under way."""


class PolledCluster:
    """The same for a `Recorder` as a `ClusterReader`. `poll_s`: from one look to the next.
    `recording`: what was recorded before, so that a restart records no change. `wanted`: whether a
    group is of interest. `say`: tells which groups are not described, and why.
    """

    positions: Mapping[int, int] = MappingProxyType({})
    """Nothing is read by position."""

    def __init__(
        self,
        connection: Connection,
        reader: ClusterReader,
        *,
        poll_s: float,
        recording: ClusterRecording,
        wanted: Callable[[str], bool] = lambda group: True,
        say: Callable[[str], None] = lambda text: None,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._say = say
        self._denied: set[str] = set()
        self._names: dict[str, str] = {}
        """Topic id -> topic, of what was described."""
        self._connection = connection
        self._reader = reader
        self._poll_s = poll_s
        self._wanted = wanted
        self._now_ms = now_ms
        self._next_s = 0.0
        self._seen: dict[str, tuple[Any, ...]] = {}
        """Group -> what was last written of it."""
        self._written: dict[str, dict[bytes, bytes]] = {}
        """Group of KIP-848 or KIP-1071 -> its records, key -> value, as they were last written."""
        self._protocols: dict[str, type[ConsumerGroupDescribe | StreamsGroupDescribe]] = {}
        """Of these, what describes them."""
        known = ObservedGroups()
        for raw in recording.records():
            known.read(raw)
            self._note(raw)
        self._known = known.groups
        self._generations = {name: group.epoch for name, group in known.groups.items()}
        self.under_way: dict[str, UnderWay] = {}
        """Group -> its rebalance that is not over; nothing is recorded of it before."""
        self._waits_since: dict[str, tuple[float, bool]] = {}
        """Group that rebalances -> since when (monotonic, s), and whether that was said."""
        self._committed = {(each.group, each.topic, each.partition): each.committed for each in recording.commits()}

    async def poll(self) -> list[RawRecord]:
        """Returns what has changed since the last look; [] until it is time for the next. Raises
        InputError when the brokers cannot be asked.
        """
        left_s = self._next_s - time.monotonic()
        if left_s > 0:
            await asyncio.sleep(min(left_s, 0.2))
            return []
        self._next_s = time.monotonic() + self._poll_s
        async with admin_client(self._connection) as admin:
            with reaching(self._connection):
                nodes = {each.name: node for node in admin.nodes() for each in await groups_of(admin, node, typed=False) if self._wanted(each.name)}
                groups = sorted(nodes)
                found = self._gone(groups)
                for begin in range(0, len(groups), _MOST_AT_ONCE):
                    found += await self._look(admin, {name: nodes[name] for name in groups[begin : begin + _MOST_AT_ONCE]})
        return found

    async def read_all(self) -> bool:
        """Returns whether everything was looked at once."""
        return self._next_s > 0

    async def names(self) -> dict[str, str]:
        """Topic id -> topic."""
        return await self._reader.names() | self._names

    async def ends(self, topics: Iterable[str]) -> dict[str, list[int]]:
        """Topic -> end offset of each of its partitions, now."""
        return await self._reader.ends(topics)

    def _note(self, raw: RawRecord) -> None:
        """A record that was recorded before."""
        with contextlib.suppress(WireError):
            record = read_group_record(raw.offset, raw.key, raw.value)
            if isinstance(record, GroupRecord) and (record.of_consumers or record.of_streams):
                written = self._written.setdefault(record.group, {})
                if raw.value is None:
                    written.pop(raw.key, None)
                else:
                    written[raw.key] = raw.value

    def _gone(self, groups: list[str]) -> list[RawRecord]:
        gone = self._seen.keys() - set(groups)
        for name in gone:
            del self._seen[name]
        modern = sorted(name for name, written in self._written.items() if written and self._wanted(name) and name not in groups)
        return [self._raw(group_key(name), None) for name in sorted(gone)] + [raw for name in modern for raw in self._changes(name, {})]

    async def _look(self, admin: Admin, nodes: Mapping[str, int]) -> list[RawRecord]:
        """`nodes`: group -> its coordinator."""
        found: list[RawRecord] = []
        unknown: list[str] = []
        classic = [name for name in nodes if name not in self._protocols]
        for error, name, state, protocol_type, protocol, members, *_ in await self._ask(admin, nodes, DescribeGroups, classic):
            if state == _DEAD and error in (0, *_OTHER_PROTOCOL):
                unknown.append(name)
            self._note_under_way(name, None if error else under_way_of((error, name, state, protocol_type, protocol, members)))
            if error or state not in _SETTLED:
                continue
            described = (protocol_type, protocol, tuple(sorted(members)))
            if self._seen.get(name) != described:
                self._seen[name] = described
                before = self._known.pop(name, None)
                if before is None or before.members.keys() != {each[0] for each in members}:
                    self._generations[name] = self._generations.get(name, 0) + 1
                written = [WrittenMember(*each) for each in described[2]]
                found.append(self._raw(*classic_group_record(name, protocol_type, self._generations[name], protocol, self._now_ms(), written)))
        found += await self._look_at_modern(admin, nodes, unknown)
        reading = (admin.ask(offsets_request(name, None), node) for name, node in nodes.items())
        for name, answer in zip(nodes, await asyncio.gather(*reading), strict=True):
            for place, offset in _offsets(name, answer).items():
                key = (name, place.topic, place.partition)
                if self._committed.get(key) != offset:
                    self._committed[key] = offset
                    found.append(self._raw(*commit_record(*key, self._now_ms(), offset)))
        return found

    async def _look_at_modern(self, admin: Admin, nodes: Mapping[str, int], unknown: list[str]) -> list[RawRecord]:
        """Groups of KIP-848 and KIP-1071. `unknown`: not of the classic protocol, and not yet seen."""
        found: list[RawRecord] = []
        for kind in (ConsumerGroupDescribe, StreamsGroupDescribe):
            asked = [name for name in nodes if self._protocols.get(name) is kind] + unknown
            for error, name, records in _described(kind, await self._ask(admin, nodes, kind, asked)):
                if error in _DENIED:
                    self._tell_denied(name)
                if not error:
                    self._protocols[name] = kind
                    self._seen.pop(name, None)  # it was of the classic protocol, and may be again
                elif error not in _OTHER_PROTOCOL or self._protocols.pop(name, None) is not kind:
                    continue
                found += self._changes(name, records)
            unknown = [name for name in unknown if name not in self._protocols]
        return found

    def _note_under_way(self, group: str, found: UnderWay | None) -> None:
        """Keeps a rebalance that is not over, and says once when one lasts long."""
        if found is None:
            self.under_way.pop(group, None)
            self._waits_since.pop(group, None)
            return
        self.under_way[group] = found
        since_s, is_said = self._waits_since.setdefault(group, (time.monotonic(), False))
        if not is_said and time.monotonic() - since_s >= _LONG_S:
            self._waits_since[group] = since_s, True
            members = counted(sum(not each.is_seat for each in found.members.values()), "member")
            self._say(f"group {group} rebalances for {_LONG_S:.0f} s and longer, with {members}: it is recorded when that is over")

    def _tell_denied(self, group: str) -> None:
        if group not in self._denied:
            self._denied.add(group)
            self._say(f"group {group} is not described: it needs DESCRIBE on the group and on its topics, those that Kafka Streams makes included")

    async def _ask(self, admin: Admin, nodes: Mapping[str, int], kind: Callable[..., Any], groups: list[str]) -> list[Any]:
        """The groups as their coordinators describe them; []: the brokers are older than these
        groups. Raises InputError when they are too old for any.
        """
        from aiokafka.errors import IncompatibleBrokerVersion

        by_node: dict[int, list[str]] = {}
        for name in groups:
            by_node.setdefault(nodes[name], []).append(name)
        try:
            answers = await asyncio.gather(*(admin.ask(kind(*names), node) for node, names in sorted(by_node.items())))
        except (IncompatibleBrokerVersion, NotImplementedError):
            if kind is DescribeGroups:
                raise InputError("the brokers do not name static members; Kafka 2.4 or later is needed") from None
            return []
        if kind is StreamsGroupDescribe:
            return [each for answer in answers for each in read_streams_groups(answer.body)]
        if kind is ConsumerGroupDescribe:
            described = [each for answer in answers for each in answer.to_object()["groups"]]
            self._names |= {topic_id: topic for each in described for topic_id, topic in topics_of(each).items()}
            return described
        return [each for answer in answers for each in answer.groups]

    def _changes(self, group: str, records: Mapping[bytes, bytes]) -> list[RawRecord]:
        """Returns what to write of a group whose records are these now; what is not in them is
        deleted.
        """
        before = self._written.get(group, {})
        self._written[group] = dict(records)
        gone = [self._raw(key, None) for key in sorted(before.keys() - records.keys(), reverse=True)]
        return [self._raw(key, value) for key, value in records.items() if before.get(key) != value] + gone

    def _raw(self, key: bytes, value: bytes | None) -> RawRecord:
        return RawRecord(0, 0, self._now_ms(), key, value)


def _offsets(group: str, answer: Any) -> Mapping[TopicPartition, int]:
    """Returns what a group has committed; {}: the user may not see it, or its coordinator moves."""
    from aiokafka.errors import KafkaError

    try:
        return read_offsets(group, answer)
    except KafkaError:
        return {}


def _described(kind: type, groups: Iterable[Any]) -> Iterator[tuple[int, str, dict[bytes, bytes]]]:
    """Error, name and records of each group."""
    for each in groups:
        if kind is StreamsGroupDescribe:
            yield each.error_code, each.group, {} if each.error_code else records_of_streams(each)
        else:
            yield each["error_code"], each["group"], {} if each["error_code"] else records_of_consumers(each)
