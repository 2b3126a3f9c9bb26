"""Divides a recording by group. What it stores for all groups together, commits and end offsets, is
read once for all of them, and not once per group.

Groups of Kafka Connect and those in which its sinks read stay together, because a history of the
first has the others'.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

import attrs
import msgpack

from equipoise.kafka.offsets_topic.byte_reader import WireError
from equipoise.kafka.offsets_topic.classic import ClassicGroup
from equipoise.kafka.offsets_topic.record_keys import GroupRecord, RawRecord, read_group_record
from equipoise.replay.importers.groups.cluster_recording import ClusterRecording, RecordedCommit
from equipoise.replay.importers.groups.observed import GroupKind, classic_kind

PROBLEM, HEAD, RECORDS, COMMITS, ENDS = range(5)
"""What a row has, in the order in which a unit is read. PROBLEM: why the recording cannot be read,
of readers that say so in a row.
"""
NO_UNIT = ""
"""Comes before all units: of the recording as a whole."""
_ROWS_AT_ONCE = 256
"""Records or commits of a row: Spark gives a task 10,000 rows at once."""
_SAMPLES_AT_ONCE = 32
_CONNECT = "connect"
"""The unit of the groups of Kafka Connect and its sinks."""
SINKS = "connect-"
"""What the groups of Kafka Connect's sinks begin with, unless a configuration names another."""


@attrs.frozen
class HeldRecording:
    """Holds what a recording has of the groups that go together."""

    cluster: str
    names: dict[str, str]
    of_groups: dict[str, list[RawRecord]] = attrs.field(factory=dict)
    committed: dict[str, list[RecordedCommit]] = attrs.field(factory=dict)
    sampled: list[tuple[int, dict[str, list[int]]]] = attrs.field(factory=list)

    has_every_commit = True

    def groups(self) -> list[str]:
        return sorted(self.of_groups)

    def records(self, group: str | None = None) -> Iterator[RawRecord]:
        for name in self.groups() if group is None else [group]:
            yield from self.of_groups.get(name, ())

    def commits(self, group: str | None = None) -> Iterator[RecordedCommit]:
        for name in sorted(self.committed) if group is None else [group]:
            yield from self.committed.get(name, ())

    def ends(self) -> Iterator[tuple[int, dict[str, list[int]]]]:
        yield from self.sampled

    def topics(self) -> dict[str, str]:
        return self.names


class DividedRow(NamedTuple):
    """One row on its way, without its bucket and place."""

    unit: str
    part: int
    seq: int
    payload: bytes


def rows_of(recording: ClusterRecording, patterns: Sequence[str] = ()) -> Iterator[DividedRow]:
    """Yields what a recording has of the groups that fit the patterns, of each unit its HEAD first;
    without a unit, how many groups that is.
    """
    unit_of, chosen = _units(recording, patterns)
    units: dict[str, list[str]] = {}
    for group, unit in unit_of.items():
        units.setdefault(unit, []).append(group)
    cluster, names = recording.cluster() or "", recording.topics()
    yield DividedRow(NO_UNIT, HEAD, 0, str(len(chosen)).encode())
    for unit, groups in units.items():
        yield DividedRow(unit, HEAD, 0, msgpack.packb([cluster, names, [group for group in groups if group in chosen]]))
    for group, records in groupby(recording.records_by_group(), itemgetter(0)):
        if group in unit_of:
            rows = [tuple(raw) for _, raw in records]
            for seq in range(0, len(rows), _ROWS_AT_ONCE):
                yield DividedRow(unit_of[group], RECORDS, seq, msgpack.packb([group, rows[seq : seq + _ROWS_AT_ONCE]]))
    topics: dict[str, set[str]] = {unit: set() for unit in units}
    waiting = _RowsOfUnits(COMMITS)
    for commit in recording.commits():
        unit_name = unit_of.get(commit.group)
        if unit_name is not None:
            topics[unit_name].add(commit.topic)
            yield from waiting.add(unit_name, (commit.group, commit.topic, commit.partition, commit.at_ms, commit.committed), _ROWS_AT_ONCE)
    yield from waiting.rest()
    waiting = _RowsOfUnits(ENDS)
    for at_ms, ends in recording.ends():
        for unit, theirs in topics.items():
            yield from waiting.add(unit, (at_ms, {topic: ends[topic] for topic in sorted(theirs & ends.keys())}), _SAMPLES_AT_ONCE)
    yield from waiting.rest()


@attrs.define
class _RowsOfUnits:
    """Rows of each unit that wait for more of them."""

    part: int
    of_units: dict[str, list[Any]] = attrs.field(factory=dict)
    seq: int = 0

    def add(self, unit: str, row: Any, most: int) -> Iterator[DividedRow]:
        rows = self.of_units.setdefault(unit, [])
        rows.append(row)
        if len(rows) >= most:
            yield self._packed(unit)

    def rest(self) -> Iterator[DividedRow]:
        for unit in list(self.of_units):
            yield self._packed(unit)

    def _packed(self, unit: str) -> DividedRow:
        self.seq += 1
        return DividedRow(unit, self.part, self.seq, msgpack.packb(self.of_units.pop(unit)))


def _units(recording: ClusterRecording, patterns: Sequence[str]) -> tuple[dict[str, str], frozenset[str]]:
    """Group -> the unit that it is of, its own name or that of Kafka Connect; and those to explain."""
    connect: set[str] = set()
    groups: dict[str, None] = {}
    for group, raw in recording.records_by_group():
        groups[group] = None
        if group not in connect and _is_of_connect(raw):
            connect.add(group)
    together = connect | {group for group in groups if connect and group.startswith(SINKS)}
    chosen = frozenset(group for group in groups if not patterns or any(fnmatchcase(group, pattern) for pattern in patterns))
    unit_of = {group: _CONNECT if group in together else f"group {group}" for group in groups}
    return {group: unit for group, unit in unit_of.items() if group in chosen or (group in together and chosen & connect)}, chosen


def _is_of_connect(raw: RawRecord) -> bool:
    try:
        record = read_group_record(raw.offset, raw.key, raw.value)
    except WireError:
        return False
    value = record.value if isinstance(record, GroupRecord) else None
    return isinstance(value, ClassicGroup) and classic_kind(value.protocol_type, value.protocol) is GroupKind.CONNECT


def held(rows: Iterator[tuple[int, bytes]]) -> tuple[HeldRecording, list[str]]:
    """Returns what the rows of a unit (part, payload), in order, say, and its groups."""
    _, head = next(rows)
    cluster, names, groups = msgpack.unpackb(head)
    recording = HeldRecording(cluster, names)
    for part, payload in rows:
        said = msgpack.unpackb(payload)
        if part == RECORDS:
            group, records = said
            recording.of_groups.setdefault(group, []).extend(RawRecord(*each) for each in records)
        elif part == COMMITS:
            for group, topic, partition, at_ms, committed in said:
                each = RecordedCommit(group=group, topic=topic, partition=partition, at_ms=at_ms, committed=committed)
                recording.committed.setdefault(group, []).append(each)
        else:
            recording.sampled.extend((at_ms, ends) for at_ms, ends in said)
    return recording, groups


def histories_apart(recording: ClusterRecording, patterns: Sequence[str] = ()) -> Iterator[tuple[HeldRecording, str]]:
    """Yields each group that fits the patterns with what its history is read from. One unit at a
    time is in memory; the others wait in a temporary file.
    """
    waiting: dict[str, list[tuple[int, int, int]]] = {}
    with tempfile.TemporaryFile(prefix="equipoise-") as file:
        for row in rows_of(recording, patterns):
            if row.unit != NO_UNIT:
                waiting.setdefault(row.unit, []).append((row.part, file.tell(), len(row.payload)))
                file.write(row.payload)

        def read(places: list[tuple[int, int, int]]) -> Iterator[tuple[int, bytes]]:
            for part, at, length in places:
                file.seek(at)
                yield part, file.read(length)

        for places in waiting.values():
            mine, groups = held(read(places))
            for group in groups:
                yield mine, group
