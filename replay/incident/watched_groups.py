"""Counts the rebalances of groups that are only watched, by cause, and what they cost, as a recorder
gets them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from operator import attrgetter

from equipoise.kafka.offsets_topic.record_keys import RawRecord
from equipoise.replay.importers.groups.cluster_recording import ClusterRecording, RecordedCommit
from equipoise.replay.incident.coordinator_history import read_history
from equipoise.replay.incident.incidents import incidents

KEPT_MS = 900_000
"""So much of the past explains what comes."""
SETTLED_MS = 60_000
"""What came later is counted the next time: what follows from it may still come."""


class WatchedGroups:
    """`recording`: what was recorded before, which is not counted. `from_ms`: counting begins."""

    def __init__(self, recording: ClusterRecording, from_ms: int) -> None:
        self.counted_to_ms = from_ms
        self.rebalances: Counter[tuple[str, str]] = Counter()
        """Group and cause, as ``expired`` -> how many rebalances there were."""
        self.unavailable_s: Counter[tuple[str, str]] = Counter()
        """Group and cause -> partition-seconds in which work stood still, when that is over."""
        self._records: dict[str, list[RawRecord]] = {}
        self._commits: dict[str, list[RecordedCommit]] = {}
        self._ends: list[tuple[int, dict[str, list[int]]]] = []
        for group, raw in recording.records_by_group():
            self._records.setdefault(group, []).append(raw)
        self.take((), recording.commits(from_ms=from_ms - KEPT_MS))
        self._ends += recording.ends(from_ms - KEPT_MS)

    def take(self, records: Iterable[tuple[str, RawRecord]], commits: Iterable[RecordedCommit]) -> None:
        """Takes what was recorded now."""
        for group, raw in records:
            self._records.setdefault(group, []).append(raw)
        for commit in commits:
            self._commits.setdefault(commit.group, []).append(commit)

    def take_ends(self, at_ms: int, ends: dict[str, list[int]]) -> None:
        self._ends.append((at_ms, ends))

    def count(self, now_ms: int, topics: Mapping[str, str]) -> None:
        """Counts what was over a while ago. `topics`: topic id -> topic."""
        after_ms, until_ms = self.counted_to_ms, now_ms - SETTLED_MS
        if until_ms <= after_ms:
            return
        for group, records in self._records.items():
            history = read_history(group, records, self._commits.get(group, ()), self._ends, topics)
            for each in incidents(history, after_ms) if history.states else ():
                for rebalance in each.chain:
                    self.rebalances[group, rebalance.cause.name.lower()] += after_ms < rebalance.end_ms <= until_ms
                cost_ms = sum(gap.unavailable_ms for gap in each.gaps if after_ms < gap.until_ms <= until_ms)
                self.unavailable_s[group, each.cause.name.lower()] += cost_ms / 1_000  # type: ignore[assignment]  # a counter of floats
        self.counted_to_ms = until_ms
        self._forget(until_ms - KEPT_MS)

    def _forget(self, before_ms: int) -> None:
        """Forgets what is older, but for the newest of each key and partition, and of the samples."""
        for group, records in self._records.items():
            newest = {raw.key: raw for raw in records if raw.timestamp_ms < before_ms}
            self._records[group] = [*sorted(newest.values(), key=attrgetter("offset")), *(raw for raw in records if raw.timestamp_ms >= before_ms)]
        for group, commits in self._commits.items():
            last = {(each.topic, each.partition): each for each in commits if each.at_ms < before_ms}
            self._commits[group] = [*last.values(), *(each for each in commits if each.at_ms >= before_ms)]
        self._ends = [*[each for each in self._ends if each[0] < before_ms][-1:], *(each for each in self._ends if each[0] >= before_ms)]
