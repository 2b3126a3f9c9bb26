"""How far a group is behind: what is not known is not 0."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest
from click.testing import CliRunner

from equipoise.cli import cluster, main
from equipoise.kafka.offsets_topic import record_values
from equipoise.kafka.offsets_topic.form import write_value
from equipoise.kafka.offsets_topic.record_keys import RawRecord
from equipoise.kafka.offsets_topic.record_writing import key_of
from equipoise.replay.importers.groups.cluster_recording import open_recording
from equipoise.replay.importers.groups.lag import GroupLag, lags_of
from equipoise.replay.importers.groups.observed import ObservedGroups
from equipoise.replay.importers.groups.recorder import Recorder
from tests.json_schemas import check
from tests.observed_groups import BOTH

ENDS = {"orders": [10, 20, 30, 0]}
ORDERS = "00000000-0000-0000-0000-000000000001"


def test_partition_that_was_never_committed_has_no_lag() -> None:
    lags = lags_of(BOTH, {("g", "orders", 0): (5, 4), ("other", "orders", 1): (5, 4)}, ENDS, 100)
    assert [(each.partition, each.member, each.committed, each.lag) for each in lags] == [
        ("orders-1", "a-1", None, None),
        ("orders-2", "b-1", None, None),
        ("orders-0", "a-1", 4, 6),
        ("orders-3", "b-1", None, 0),
    ]
    assert GroupLag.of(lags) == GroupLag(records=6, never_committed=2)
    assert GroupLag.of(lags[:2]) == GroupLag(records=None, never_committed=2)
    assert GroupLag.of([]) == GroupLag(records=0, never_committed=0)


class Cluster:
    """A cluster in which one group reads by its topic's id and never commits."""

    def __init__(self) -> None:
        self.positions: dict[int, int] = {}
        self.asked: set[str] = set()

    async def poll(self) -> list[RawRecord]:
        owned = record_values.OwnedPartitions(topic_id=ORDERS, partitions=(0,))
        value = record_values.ConsumerGroupCurrentMemberAssignment(
            member_epoch=1, previous_member_epoch=0, state=0, assigned_partitions=(owned,), partitions_pending_revocation=()
        )
        return [RawRecord(0, 0, 1_000, key_of(8, "g", "a"), write_value(value))]

    async def names(self) -> dict[str, str]:
        return {ORDERS: "orders"}

    async def ends(self, topics: Iterable[str]) -> dict[str, list[int]]:
        self.asked = set(topics)
        return {}

    async def read_all(self) -> bool:
        return True


async def test_ends_of_topics_that_are_read_and_never_committed_are_recorded(tmp_path: Path) -> None:
    place = Cluster()
    with open_recording(str(tmp_path / "r.db"), write=True) as recording:
        recording.begin("cluster")
        await Recorder(place, recording).step()
    assert place.asked == {"orders"}


@pytest.mark.parametrize("commits", [{}, {("g", "orders", 0): (5, 4)}])
def test_command_counts_what_comes_to_partitions_that_are_never_committed(
    commits: dict[tuple[str, str, int], tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    observed = ObservedGroups()
    observed.groups["g"] = BOTH
    observed.commits = commits
    looks = iter([ENDS, {"orders": [10, 25, 37, 0]}])

    async def ends(topics: Iterable[str]) -> dict[str, list[int]]:
        assert set(topics) == {"orders"}
        return next(looks)

    monkeypatch.setattr(cluster, "_AGAIN_S", 0.01)
    monkeypatch.setattr(cluster, "_read_cluster", lambda place, remark: cluster._with_ends(observed, ends))
    for more in ((), ("--group", "g")):
        result = CliRunner().invoke(main, ["cluster", "kafka://127.0.0.1:1", *more, "--json"])
        document = json.loads(result.stdout)
        check("cluster", document)
        (row,) = document["groups"]
        if commits:
            assert (row["lag"], row["never_committed"], row["came"]) == (6, 2, None), "its topic is committed: one look at the ends is enough"
        else:
            assert (row["lag"], row["never_committed"], row["came"]["records"]) == (None, 3, 12)
        looks = iter([ENDS, {"orders": [10, 25, 37, 0]}])
    said = CliRunner().invoke(main, ["cluster", "kafka://127.0.0.1:1"]).stdout
    looks = iter([ENDS, {"orders": [10, 25, 37, 0]}])
    assert "never committed, in" in said
    assert ("12 records came in" in said) is (not commits)
