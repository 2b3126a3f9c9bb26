"""Rebalances of groups that are only watched are counted as they come, as the incident of the whole
recording has them.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from equipoise.cli.watched_metrics import WatchedCollector
from equipoise.kafka.offsets_topic.record_keys import RawRecord
from equipoise.replay.importers.groups.cluster_recording import ClusterRecording, RecordedCommit, open_recording
from equipoise.replay.incident import history_of, incidents
from equipoise.replay.incident.watched_groups import SETTLED_MS, WatchedGroups
from tests.recorded_groups import record_runs

GROUP = "orders"
STEP_MS = 30_000


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterRecording]:
    path = record_runs(tmp_path_factory.mktemp("recorded") / "cluster.db", {GROUP: "scale-out"})
    with open_recording(str(path)) as opened:
        yield opened


def stream(recording: ClusterRecording) -> list[tuple[int, Any]]:
    """Everything that was recorded, by time."""
    records: list[tuple[int, Any]] = [(raw.timestamp_ms, raw) for raw in recording.records(GROUP)]
    records += [(each.at_ms, each) for each in recording.commits(GROUP)]
    records += [(at_ms, (at_ms, ends)) for at_ms, ends in recording.ends()]
    return sorted(records, key=lambda each: each[0])


def watched_from(recording: ClusterRecording, tmp_path: Path, begin_ms: int) -> WatchedGroups:
    with open_recording(str(tmp_path / "empty.db"), write=True) as empty:
        watched = WatchedGroups(empty, begin_ms)
    end_ms = begin_ms
    for _, of_step in itertools.groupby(stream(recording), lambda each: each[0] // STEP_MS):
        step = list(of_step)
        end_ms = step[-1][0]
        found = [each for _, each in step]
        watched.take([(GROUP, each) for each in found if isinstance(each, RawRecord)], [each for each in found if isinstance(each, RecordedCommit)])
        for each in found:
            if isinstance(each, tuple) and not isinstance(each, RawRecord):
                watched.take_ends(*each)
        watched.count(end_ms, recording.topics())
    watched.count(end_ms + 2 * SETTLED_MS, recording.topics())
    return watched


def test_rebalances_are_counted_once_by_the_cause_that_the_incident_has(recording: ClusterRecording, tmp_path: Path) -> None:
    begin_ms = stream(recording)[0][0] - 1
    watched = watched_from(recording, tmp_path, begin_ms)
    found = incidents(history_of(recording, GROUP))
    causes = Counter((GROUP, each.cause.name.lower()) for incident in found for each in incident.chain)
    assert causes.total() > 10
    assert {key: count for key, count in watched.rebalances.items() if count} == dict(causes)
    cost_s = sum(incident.unavailable_ms for incident in found) / 1_000
    assert sum(watched.unavailable_s.values()) == pytest.approx(cost_s, rel=0.1)


def test_what_was_recorded_before_is_not_counted(recording: ClusterRecording) -> None:
    """It explains what comes: the recorder was started again."""
    end_ms = stream(recording)[-1][0]
    watched = WatchedGroups(recording, end_ms)
    watched.count(end_ms + 2 * SETTLED_MS, recording.topics())
    assert not any(watched.rebalances.values())
    assert watched.counted_to_ms == end_ms + SETTLED_MS


def test_counts_are_served_with_the_time_to_which_they_go(recording: ClusterRecording, tmp_path: Path) -> None:
    watched = WatchedGroups(recording, 60_000)
    watched.rebalances["g", "expired"] += 2
    watched.unavailable_s["g", "expired"] += 3
    registry = CollectorRegistry()
    registry.register(WatchedCollector(watched))
    text = generate_latest(registry).decode()
    assert 'equipoise_rebalances_total{cause="expired",group="g"} 2.0' in text
    assert 'equipoise_rebalance_unavailable_partition_seconds_total{cause="expired",group="g"} 3.0' in text
    assert "equipoise_rebalances_counted_to_timestamp_seconds 60.0" in text
