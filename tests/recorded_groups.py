"""Recordings of groups, made from the runs that ship with equipoise, or written by hand."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

from equipoise.kafka.offsets_topic.record_keys import RawRecord, read_group_record
from equipoise.kafka.offsets_topic.record_writing import WrittenMember, classic_group_record
from equipoise.replay.importers.groups.cluster_recording import RecordedCommit, open_recording
from equipoise.replay.importers.groups.dump import Dump
from equipoise.replay.importers.kafka_streams import StreamsSource, shipped_runs


def record_runs(path: Path, runs: Mapping[str, str], cluster: str = "c1") -> Path:
    """`runs`: name of a group -> run. Each has topics of its own."""
    with open_recording(str(path), write=True) as recording:
        recording.begin(cluster)
        samples: dict[int, dict[str, list[int]]] = {}
        for group, run in runs.items():
            dump = Dump(StreamsSource(shipped_runs()[run]))
            commits = [
                RecordedCommit(group=group, topic=f"{group}-{each.topic}", partition=each.partition, at_ms=each.at_ms, committed=each.committed)
                for each in dump.commits()
            ]
            recording.append([(group, _renamed(each, group)) for each in dump.records()], commits, {})
            for at_ms, ends in dump.ends():
                samples.setdefault(at_ms, {}).update({f"{group}-{topic}": each for topic, each in ends.items()})
        for at_ms, ends in samples.items():
            recording.add_ends(at_ms, ends)
    return path


def _renamed(raw: RawRecord, group: str) -> RawRecord:
    """The record, of a group with another name: the name is in the key alone."""
    found = read_group_record(raw.offset, raw.key, raw.value)
    assert found is not None
    old, new = _text(found.group), _text(group)
    place = raw.key.index(old)
    return raw._replace(key=raw.key[:place] + new + raw.key[place + len(old) :])


def connect_recording(path: Path) -> tuple[Path, str]:
    """Two workers of Kafka Connect with a sink of two tasks; one is gone after a minute, and what
    it read stands still for 40 s. Returns the name of the workers' group, too.
    """
    workers, sink, topic = "workers", "connect-copy", "orders"
    with open_recording(str(path), write=True) as recording:
        recording.begin("c1")
        for generation, at_ms, alive in ((1, 1_000, ("w0", "w1")), (2, 60_000, ("w0",))):
            records: list[tuple[str, RawRecord]] = []
            for group, kind in ((workers, "connect"), (sink, "consumer")):
                members = []
                for number, name in enumerate(alive):
                    tasks = [number] if len(alive) > 1 else [0, 1]
                    client = name if group == workers else f"connector-consumer-copy-{number}"
                    joined, given = (_joined(name), _work(tasks)) if group == workers else (b"", _partitions(topic, tasks))
                    members.append(
                        WrittenMember(member_id=name, instance_id=None, client_id=client, host="/h", subscription=joined, assignment=given)
                    )
                key, value = classic_group_record(group, kind, generation, "default" if kind == "connect" else "range", at_ms, members)
                records.append((group, RawRecord(3, 2 * generation + len(records), at_ms, key, value)))
            recording.append(records, [], {})
        for at_ms in range(2_000, 130_000, 1_000):
            here = [0] if 60_000 <= at_ms < 100_000 else [0, 1]
            recording.append([], [RecordedCommit(group=sink, topic=topic, partition=each, at_ms=at_ms, committed=at_ms) for each in here], {})
            recording.add_ends(at_ms, {topic: [at_ms + 500, at_ms + 500]})
    return path, workers


def _text(text: str) -> bytes:
    return struct.pack(">h", len(text.encode())) + text.encode()


def _joined(worker: str) -> bytes:
    return struct.pack(">h", 0) + _text(f"http://{worker}/") + struct.pack(">q", 1)


def _work(tasks: list[int]) -> bytes:
    """What a worker is to run of the connector `copy`, of version 0."""
    head = struct.pack(">hh", 0, 0) + _text("w0") + _text("http://w0/") + struct.pack(">q", 1)
    return head + struct.pack(">i", 1) + _text("copy") + struct.pack(f">i{len(tasks)}i", len(tasks), *tasks)


def _partitions(topic: str, partitions: list[int]) -> bytes:
    """An assignment of a consumer."""
    return struct.pack(">hi", 0, 1) + _text(topic) + struct.pack(f">i{len(partitions)}i", len(partitions), *partitions) + struct.pack(">i", -1)
