"""`equipoise cluster` of groups in which equipoise has a seat."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from equipoise.cli import main
from equipoise.kafka.embedded_protocol import write_assignment, write_subscription
from equipoise.kafka.offsets_topic.record_keys import RawRecord
from equipoise.kafka.offsets_topic.record_writing import WrittenMember, classic_group_record
from equipoise.replay.importers.groups.cluster_recording import RecordedCommit, open_recording


def written(client: str, *partitions: int) -> WrittenMember:
    assigned = write_assignment({"orders": list(partitions)} if partitions else {})
    return WrittenMember(f"{client}-1", None, client, "/10.0.0.1", write_subscription(cooperative=False), assigned)


def recorded(path: Path) -> str:
    """Three groups: one at rest, one whose only member is the seat, and one with both."""
    groups = {"a-rests": [written("app", 0)], "z-alone": [written("equipoise-lead")], "both": [written("app", 0), written("equipoise-lead")]}
    with open_recording(str(path), write=True) as recording:
        recording.begin("c1")
        rows = [
            (group, RawRecord(0, number, 1_000, *classic_group_record(group, "consumer", 1, "range", 1_000, members)))
            for number, (group, members) in enumerate(groups.items())
        ]
        commits = [RecordedCommit(group=group, topic="orders", partition=0, at_ms=1_000, committed=100) for group in groups]
        recording.append(rows, commits, {0: 9})
        recording.add_ends(60_000, {"orders": [2_969]})
    return str(path)


def test_group_that_nobody_reads_comes_first_with_its_lag(tmp_path: Path) -> None:
    place = recorded(tmp_path / "cluster.db")
    rows = json.loads(CliRunner().invoke(main, ["cluster", place, "--json"]).stdout)["groups"]
    assert [(row["group"], row["state"], row["members"], row["seats"]) for row in rows] == [
        ("z-alone", "nobody reads", 0, 1),
        ("a-rests", "stable", 1, 0),
        ("both", "stable", 1, 1),
    ]
    assert rows[0]["lag"] == 2_869


def test_seat_is_shown_beside_the_members_and_counted_with_none(tmp_path: Path) -> None:
    place = recorded(tmp_path / "cluster.db")
    alone = CliRunner().invoke(main, ["cluster", place, "--group", "z-alone"]).stdout
    assert "nobody reads: the group has 1 seat of equipoise, and no other member" in alone
    assert "could lead it" not in alone
    assert "0 members" in alone
    both = CliRunner().invoke(main, ["cluster", place, "--group", "both"]).stdout
    assert "1 member\n" in both
    assert "has no work" not in both
    (seat,) = [line for line in both.splitlines() if line.startswith("equipoise-lead")]
    assert " seat " in seat
