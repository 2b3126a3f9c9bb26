"""Keeps what brokers forget: copies a cluster's groups, commits and end offsets into a recording,
as they come.
"""

from __future__ import annotations

import fnmatch
import re
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import attrs

from equipoise.kafka.offsets_topic.byte_reader import WireError
from equipoise.kafka.offsets_topic.classic import OffsetCommit
from equipoise.kafka.offsets_topic.record_keys import RawRecord, read_group_record
from equipoise.replay.importers.groups.cluster_recording import ClusterRecording, RecordedCommit
from equipoise.replay.importers.groups.lag import read_topics
from equipoise.replay.importers.groups.observed import ObservedGroups

_TRANSACTION_S = 1.0
_MOST_HELD = 50_000
"""Records in memory before they are written, whatever the time."""
_TOPICS_EVERY_S = 60.0
_OFFSET_COMMITS = (b"\x00\x00", b"\x00\x01")


@attrs.define
class Recorded:
    """What a recorder has written since it began. `unread`: records of `__consumer_offsets` whose
    key is not Kafka's.
    """

    records: int = 0
    commits: int = 0
    samples: int = 0
    unread: int = 0
    newest_ms: int = 0


class ReadableCluster(Protocol):
    """`equipoise.replay.importers.groups.cluster_reading.ClusterReader`, or one that polls."""

    @property
    def positions(self) -> Mapping[int, int]: ...
    async def poll(self) -> list[RawRecord]: ...
    async def read_all(self) -> bool: ...
    async def names(self) -> dict[str, str]: ...
    async def ends(self, topics: Iterable[str]) -> dict[str, list[int]]: ...


class RecordWatcher(Protocol):
    """Gets what a recorder writes."""

    def take(self, records: Iterable[tuple[str, RawRecord]], commits: Iterable[RecordedCommit]) -> None: ...
    def take_ends(self, at_ms: int, ends: dict[str, list[int]]) -> None: ...


class Recorder:
    """`patterns`: of the groups to record, as ``orders-*``; none: all of them. `sample_s`: between
    two samples of end offsets. `keep_ms`: how long records are kept, None: for ever.
    """

    def __init__(
        self,
        reader: ReadableCluster,
        recording: ClusterRecording,
        *,
        patterns: Iterable[str] = (),
        sample_s: float = 10.0,
        keep_ms: int | None = None,
        done: Recorded | None = None,
        watcher: RecordWatcher | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._reader = reader
        self._recording, self._watcher = recording, watcher
        self._patterns = [re.compile(fnmatch.translate(each)) for each in patterns]
        self._sample_s = sample_s
        self._keep_ms = keep_ms
        self._monotonic, self._now_ms = monotonic, now_ms
        self._records: list[tuple[str, RawRecord]] = []
        self._commits: dict[tuple[str, str, int], RecordedCommit] = {}
        """The newest of each partition since the last transaction."""
        self._wanted: dict[str, bool] = {}
        self._topics = recording.sampled_topics()
        """Those with commits, and changelogs, whose end offsets are sampled, beside those that
        members read.
        """
        self._observed = ObservedGroups()
        self._groups = set(recording.groups())
        self._written_s = self._sampled_s = self._listed_s = -1e9
        self.done = done or Recorded()

    async def step(self) -> None:
        """Reads what is there, and writes when it is time. Raises InputError when brokers are away:
        the next step goes on.
        """
        for record in await self._reader.poll():
            self._take(record)
        now_s = self._monotonic()
        if now_s - self._written_s >= _TRANSACTION_S or len(self._records) + len(self._commits) >= _MOST_HELD:
            self.write()
            self._written_s = now_s
        if now_s - self._listed_s >= _TOPICS_EVERY_S:
            names = await self._reader.names()
            self._recording.add_topics(names)
            self._observed.names.update(names)
            self._topics.update(topic for topic in names.values() if self._is_changelog(topic))
            self._listed_s = now_s
        if now_s - self._sampled_s >= self._sample_s:
            at_ms, ends = self._now_ms(), await self._reader.ends(self._topics | self._read_topics())
            self._recording.add_ends(at_ms, ends)
            if self._watcher is not None:
                self._watcher.take_ends(at_ms, ends)
            self.done.samples += 1
            self._sampled_s = now_s
            if self._keep_ms is not None:
                self._recording.delete_before(self._now_ms() - self._keep_ms)

    async def has_read_all(self) -> bool:
        """Returns whether everything is read that was there when reading began."""
        return await self._reader.read_all()

    def write(self) -> None:
        """Writes what was read."""
        if self._records or self._commits:
            self._recording.append(self._records, list(self._commits.values()), self._reader.positions)
            if self._watcher is not None:
                self._watcher.take(self._records, self._commits.values())
            self.done.records += len(self._records)
            self.done.commits += len(self._commits)
            self._records.clear()
            self._commits.clear()

    def _take(self, record: RawRecord) -> None:
        self.done.newest_ms = max(self.done.newest_ms, record.timestamp_ms)
        if record.key[:2] not in _OFFSET_COMMITS:
            group = _group_of(record.key)
            if group is None:
                self.done.unread += 1
            elif self.is_wanted(group):
                self._records.append((group, record))
                self._observed.read(record)
                if group not in self._groups:
                    self._groups.add(group)
                    self._listed_s = -1e9
            return
        try:
            commit = read_group_record(record.offset, record.key, record.value)
        except WireError:
            self.done.unread += 1
            return
        if isinstance(commit, OffsetCommit) and self.is_wanted(commit.group):
            self._topics.add(commit.topic)
            self._commits[commit.group, commit.topic, commit.partition] = RecordedCommit(
                group=commit.group, topic=commit.topic, partition=commit.partition, at_ms=record.timestamp_ms, committed=commit.committed
            )

    def _read_topics(self) -> set[str]:
        """Returns topics that members have, whether they commit or not. One may have been assigned
        before its name was known.
        """
        names = self._observed.names
        self._observed.unread.clear()
        return {names.get(topic, topic) for group in self._observed.groups.values() for topic in read_topics(group)}

    def _is_changelog(self, topic: str) -> bool:
        """Returns whether a topic is a changelog of a recorded application of Kafka Streams, which
        names it ``<application id>-<store>-changelog``.
        """
        return topic.endswith("-changelog") and any(topic.startswith(f"{group}-") for group in self._groups)

    def is_wanted(self, group: str) -> bool:
        """Returns whether a group is to be recorded."""
        if not self._patterns:
            return True
        known = self._wanted.get(group)
        if known is None:
            known = self._wanted[group] = any(each.match(group) for each in self._patterns)
        return known


def _group_of(key: bytes) -> str | None:
    """The group of a record's key, whose kind need not be known; None: it is no key of Kafka's."""
    length = int.from_bytes(key[2:4], "big", signed=True)
    if length < 0 or len(key) < 4 + length:
        return None
    try:
        return key[4 : 4 + length].decode()
    except UnicodeDecodeError:
        return None
