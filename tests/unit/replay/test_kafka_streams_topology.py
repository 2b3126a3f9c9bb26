"""Matching of changelogs: partition counts decide, then the reported offset sums; otherwise the
matching stays open.
"""

from __future__ import annotations

from equipoise.events.tasks import TaskId
from equipoise.replay.importers.kafka_streams.endoffsets import EndOffsetStream
from equipoise.replay.importers.kafka_streams.source import EndOffsetSample
from equipoise.replay.importers.kafka_streams.topology import TopologyEvidence, TopologySeen, changelog_candidates, declare, match_changelogs


def test_changelogs_are_known_by_their_names() -> None:
    topics = {"app-s-changelog": 2, "app-mid-repartition": 2, "orders": 2, "other-s-changelog": 2}
    assert changelog_candidates("app", topics) == ["app-s-changelog"]


def test_partition_counts_decide() -> None:
    topics = {"app-a-changelog": 4, "app-b-changelog": 2, "app-c-changelog": 2}
    found = match_changelogs({0: 4, 1: 2, 2: 7}, {0, 1}, sorted(topics), topics, [])
    assert found.changelogs == {0: ("app-a-changelog",), 1: ("app-b-changelog", "app-c-changelog")}
    assert found.open_ == ()
    assert "the only stateful sub-topology with 2 tasks" in found.how[1]


def test_offset_sums_decide_between_equal_counts() -> None:
    """Sub-topology 0 has two stores (100 + 40 records), sub-topology 1 has one (900)."""
    topics = {"app-a-changelog": 2, "app-b-changelog": 2, "app-c-changelog": 2}
    ends = {"app-a-changelog": 100, "app-b-changelog": 900, "app-c-changelog": 40}
    evidence = [TopologyEvidence(TaskId(0, 0), 138, ends), TopologyEvidence(TaskId(1, 0), 880, ends)]
    found = match_changelogs({0: 2, 1: 2}, {0, 1}, sorted(topics), topics, evidence)
    assert found.changelogs == {0: ("app-a-changelog", "app-c-changelog"), 1: ("app-b-changelog",)}
    assert "fit this one best" in found.how[0]


def test_topology_ambiguous_changelogs_stay_unmatched() -> None:
    topics = {"app-a-changelog": 2, "app-b-changelog": 2}
    same = {"app-a-changelog": 50, "app-b-changelog": 50}
    tie = [TopologyEvidence(TaskId(0, 0), 50, same), TopologyEvidence(TaskId(1, 0), 50, same)]
    for evidence in ([], tie[:1], tie):
        found = match_changelogs({0: 2, 1: 2}, {0, 1}, sorted(topics), topics, evidence)
        assert found.open_ == (0, 1)
        assert found.changelogs == {}
    assert match_changelogs({0: 3}, {0}, [], {}, []).open_ == (0,)
    many = {f"app-{number:02}-changelog": 2 for number in range(20)}  # 2**20 ways: not tried
    assert match_changelogs({0: 2, 1: 2}, {0, 1}, sorted(many), many, tie).open_ == (0, 1)


def test_declare_unmatched_subtopology_has_no_changelogs() -> None:
    seen = TopologySeen(inputs={"t": 0, "u": 0}, partitions={0: 1}, stateful={0})
    counts = seen.task_counts({"t": 3, "u": 2})
    (part,) = declare(1, seen, counts, match_changelogs(counts, seen.stateful, [], {}, [])).subtopologies
    assert (part.partitions, part.stateful, part.source_topics, part.changelog_topics) == (3, True, ("t", "u"), ())


def test_end_offsets_between_samples() -> None:
    samples = [
        EndOffsetSample(1_000, {"a": [0, 10]}),
        EndOffsetSample(2_000, {"a": [100, 20], "b": [8]}),
        EndOffsetSample(2_100, {"a": [100, 30], "b": [8]}),
    ]
    stream = EndOffsetStream(samples, 1_000)
    assert stream.at(500) == {"a": [0, 10]}  # before the first sample
    assert [each.ms for each in stream.upto(1_250)] == [1_000]
    assert stream.at(1_250) == {"a": [25, 12], "b": [2]}
    # a-0 had no writes from 1100 on: 100 records in the 100 ms before that and the 750 ms after
    # now
    assert stream.at(1_250, {("a", 0): 1_100, ("a", 9): 0, ("c", 0): 0})["a"] == [11, 12]
    assert stream.at(1_250, {("a", 0): 0})["a"] == [0, 12]
    assert [each.ms for each in stream.upto(9_000)] == [2_000]  # 2100 is of the same second
    assert stream.at(9_000) == {"a": [100, 30], "b": [8]}
    assert stream.held == 2
