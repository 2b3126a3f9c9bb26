"""One group of a recording, read as the importer of Kafka Streams reads a recorded run."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from equipoise.kafka.offsets_topic.record_keys import RawRecord
from equipoise.kafka.offsets_topic.record_writing import commit_record
from equipoise.replay.importers.groups.cluster_recording import ClusterRecording, RecordedCommit
from equipoise.replay.importers.groups.dump import Dump
from equipoise.replay.importers.kafka_streams.source import HeldSource, StreamsSource


def source_of(recording: ClusterRecording | Dump, group: str) -> StreamsSource:
    """Returns what the importer reads of a group."""
    return recording.source if isinstance(recording, Dump) else recorded_source(recording, group)


def recorded_source(recording: ClusterRecording, group: str) -> HeldSource:
    """Reads a group's records, commits and end offsets into memory. A recording keeps what a commit
    says and not its bytes, so those are written again; of two records of one time, the commit comes
    first.
    """
    source = HeldSource(f"group {group} of {recording.path}")
    commits = (_commit(each) for each in sorted(recording.commits(group), key=lambda each: each.at_ms))
    source.held = list(heapq.merge(commits, _in_time(recording.records(group)), key=lambda raw: raw.timestamp_ms))
    source.samples = dict(recording.ends())
    return source


def _in_time(records: Iterator[RawRecord]) -> Iterator[RawRecord]:
    """The records; one whose time is before the last one's (another broker's clock) gets its time."""
    last_ms = 0
    for raw in records:
        last_ms = max(last_ms, raw.timestamp_ms)
        yield raw if raw.timestamp_ms == last_ms else RawRecord(raw.partition, raw.offset, last_ms, raw.key, raw.value)


def _commit(commit: RecordedCommit) -> RawRecord:
    return RawRecord(0, 0, commit.at_ms, *commit_record(commit.group, commit.topic, commit.partition, commit.at_ms, commit.committed))
