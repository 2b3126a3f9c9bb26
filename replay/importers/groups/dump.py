"""A recorded run (a folder, see `equipoise.replay.importers.kafka_streams.source`) read like a
recording.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Protocol, Self

from equipoise.kafka.offsets_topic.classic import OffsetCommit
from equipoise.kafka.offsets_topic.record_keys import GroupRecord, RawRecord, read_group_record
from equipoise.replay.importers.groups.cluster_recording import RecordedCommit
from equipoise.replay.importers.kafka_streams.source import StreamsSource


class ReadableRecording(Protocol):
    """What is read of a recording; `Recording` of the module `recording` documents its
    methods.
    """

    @property
    def has_every_commit(self) -> bool: ...
    def groups(self) -> list[str]: ...
    def records(self, group: str | None = None) -> Iterator[RawRecord]: ...
    def commits(self, group: str | None = None) -> Iterator[RecordedCommit]: ...
    def ends(self) -> Iterator[tuple[int, dict[str, list[int]]]]: ...
    def topics(self) -> dict[str, str]: ...


class Dump:
    """The folder of a recorded run. Raises WireError for a record that is damaged."""

    has_every_commit = False
    """A run may be shortened to a few commits, as those that ship with equipoise."""

    def __init__(self, source: StreamsSource) -> None:
        self.source = source

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...

    def groups(self) -> list[str]:
        return sorted({found.group for _, found in self._read() if isinstance(found, GroupRecord)})

    def records(self, group: str | None = None) -> Iterator[RawRecord]:
        for raw, found in self._read():
            if isinstance(found, GroupRecord) and group in (None, found.group):
                yield raw

    def commits(self, group: str | None = None) -> Iterator[RecordedCommit]:
        for raw, found in self._read():
            if isinstance(found, OffsetCommit) and group in (None, found.group):
                yield RecordedCommit(
                    group=found.group, topic=found.topic, partition=found.partition, at_ms=raw.timestamp_ms, committed=found.committed
                )

    def ends(self) -> Iterator[tuple[int, dict[str, list[int]]]]:
        yield from self.source.end_offsets()

    def topics(self) -> dict[str, str]:
        return {}

    def _read(self) -> Iterator[tuple[RawRecord, OffsetCommit | GroupRecord | None]]:
        for raw in self.source.records():
            yield raw, read_group_record(raw.offset, raw.key, raw.value)
