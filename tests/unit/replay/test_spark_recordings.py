"""What Spark's tasks do with recordings, without Spark: the same incidents as `equipoise incident`
finds, group by group, however a recording ends.
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyarrow import fs

from equipoise.cli import main
from equipoise.events.errors import InputError
from equipoise.replay.importers.groups.cluster_recording import open_recording
from equipoise.replay.incident import history_of, incidents
from equipoise.replay.spans import ALWAYS, Span
from equipoise.replay.spark.incident import TABLES, by_cause, check_every_group, explained, read_recording
from equipoise.replay.spark.recordings import recordings_in
from equipoise.replay.spark.results import MissingRowsError
from tests.object_store import BUCKET, serving
from tests.recorded_groups import connect_recording, record_runs

RUNS = {"orders": "scale-out", "payments": "rolling"}
BUCKETS = 5


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record_runs(tmp_path_factory.mktemp("recordings") / "cluster.db", RUNS)


def on_tasks(locations: Sequence[Path | str], patterns: Sequence[str] = (), span: Span = ALWAYS) -> list[dict[str, Any]]:
    """The rows as Spark's tasks make them: dealt, sorted within each bucket, and explained."""
    rows = [row for place, each in enumerate(locations) for batch in read_recording(str(each), place, patterns, BUCKETS) for row in batch.to_pylist()]
    found = []
    for bucket in range(BUCKETS):
        mine = sorted((row for row in rows if row["bucket"] == bucket), key=lambda row: (row["place"], row["unit"].encode(), row["part"], row["seq"]))
        batches = [pa.RecordBatch.from_pylist(mine[at : at + 3]) for at in range(0, len(mine), 3)]
        found += list(explained(iter(batches), [str(each) for each in locations], span))
    return found


def of_groups(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {row["groups"]["group"]: row for row in rows if row["groups"]["group"]}


def test_each_group_has_the_incidents_that_it_has_alone(cluster: Path) -> None:
    rows = on_tasks([cluster])
    heads = check_every_group([row["groups"] for row in rows])
    assert sorted(head["group"] for head in heads) == sorted(RUNS)
    assert {head["cluster"] for head in heads} == {"c1"}
    with open_recording(str(cluster)) as recording:
        for group, row in of_groups(rows).items():
            alone = incidents(history_of(recording, group))
            assert alone
            assert [(each["begin_ms"], each["cause"], each["unavailable_ms"]) for each in row["incidents"]] == [
                (each.begin_ms, each.cause.name.lower(), each.unavailable_ms) for each in alone
            ]
            assert row["groups"]["incidents"] == len(alone)
            assert row["groups"]["unavailable_ms"] == sum(each.unavailable_ms for each in alone) > 0
            for name in ("unavailable_ms", "rebalancing_ms", "moves"):
                assert sum(each[name] for each in row["costs"]) == row["groups"][name]
            assert {len(each) for each in row["costs"]} == {len(TABLES["costs"])}


def test_patterns_choose_groups_and_a_span_cuts_what_is_told(cluster: Path) -> None:
    rows = on_tasks([cluster], ["pay*"])
    assert [head["group"] for head in check_every_group([row["groups"] for row in rows])] == ["payments"]
    told = of_groups(rows)["payments"]["incidents"]
    cut = Span(from_ms=told[2]["begin_ms"], until_ms=told[2]["end_ms"])
    assert told[2] in of_groups(on_tasks([cluster], ["pay*"], cut))["payments"]["incidents"]
    assert len(of_groups(on_tasks([cluster], ["pay*"], cut))["payments"]["incidents"]) < len(told)
    assert check_every_group([row["groups"] for row in on_tasks([cluster], ["nothing-*"])]) == []


def test_one_name_in_two_clusters_is_two_groups(cluster: Path, tmp_path: Path) -> None:
    other = record_runs(tmp_path / "other.db", {"orders": "rolling"}, "c2")
    rows = on_tasks([cluster, other])
    heads = check_every_group([row["groups"] for row in rows])
    assert sorted((head["group"], head["cluster"]) for head in heads) == [("orders", "c1"), ("orders", "c2"), ("payments", "c1")]
    costs = [{"group": row["groups"]["group"], "location": row["groups"]["location"], **each} for row in rows for each in row["costs"]]
    causes = by_cause(costs)
    assert sum(each["unavailable_ms"] for each in causes) == sum(head["unavailable_ms"] for head in heads)
    worst = causes[0]
    mine = [each for each in costs if each["cause"] == worst["cause"]]
    assert worst["unavailable_ms"] == max(each["unavailable_ms"] for each in causes) > 0
    assert worst["groups"] == len({(each["group"], each["location"]) for each in mine}) > 1
    assert (worst["worst_group"], worst["worst_location"]) in {(each["group"], each["location"]) for each in mine}


def test_a_group_of_kafka_connect_has_what_its_sinks_read(tmp_path: Path) -> None:
    path, connect = connect_recording(tmp_path / "connect.db")
    with open_recording(str(path)) as recording:
        alone = history_of(recording, connect)
        names = recording.groups()
    assert alone.sinks, "the recording has a sink"
    for patterns in ((), (connect,)):
        rows = of_groups(on_tasks([path], patterns))
        assert sorted(rows) == (sorted(names) if not patterns else [connect])
        assert [each["begin_ms"] for each in rows[connect]["incidents"]] == [each.begin_ms for each in incidents(alone)]
        assert rows[connect]["groups"]["to_ms"] == max(commits[-1][0] for commits in alone.commits.values())


def test_a_damaged_recording_says_so_and_tells_nothing_half(cluster: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.db"
    shutil.copy(cluster, damaged)
    with contextlib.closing(sqlite3.connect(damaged)) as database, database:
        database.execute("UPDATE ends SET data = x'00' WHERE at_ms = (SELECT max(at_ms) FROM ends)")
    rows = on_tasks([damaged, cluster])
    heads = check_every_group([row["groups"] for row in rows])
    assert [head["location"] for head in heads if head["problem"]] == [str(damaged)]
    assert sorted(head["group"] for head in heads if head["problem"] is None) == sorted(RUNS)
    assert {head["location"] for head in heads if head["group"]} == {str(cluster)}


def test_incident_names_a_damaged_recording(cluster: Path, tmp_path: Path) -> None:
    for number, (statement, group) in enumerate((("UPDATE commits SET data = x'00'", "orders"), ("UPDATE ends SET data = x'c1'", "payments"))):
        damaged = tmp_path / f"damaged{number}.db"
        shutil.copy(cluster, damaged)
        with contextlib.closing(sqlite3.connect(damaged)) as database, database:
            database.execute(statement)
        for words in (["--all"], ["--group", group]):
            result = CliRunner().invoke(main, ["incident", str(damaged), *words])
            assert (result.exit_code, f"{damaged}: the recording is damaged" in result.output) == (2, True), result.output
    whole = cluster.read_bytes()
    (tmp_path / "cut.db").write_bytes(whole[: len(whole) // 3])
    result = CliRunner().invoke(main, ["incident", str(tmp_path / "cut.db"), "--all"])
    assert (result.exit_code, "damaged" in result.output) == (2, True), result.output


def test_a_group_that_is_missing_among_the_rows_is_noticed(cluster: Path) -> None:
    heads = [row["groups"] for row in on_tasks([cluster])]
    with pytest.raises(MissingRowsError, match="1 row for 2 groups"):
        check_every_group([head for head in heads if head["group"] != "orders"])


def test_recordings_in_an_object_store_are_read_as_files_are(cluster: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        store = fs.S3FileSystem(
            endpoint_override=server.url, access_key=server.environment["AWS_ACCESS_KEY_ID"], secret_key=server.environment["AWS_SECRET_ACCESS_KEY"]
        )
        for name in ("eu.db", "notes.txt"):
            with store.open_output_stream(f"{BUCKET}/recordings/{name}") as target:
                target.write(cluster.read_bytes())
        found = recordings_in([f"s3://{BUCKET}/recordings/"])
        assert found == [f"s3://{BUCKET}/recordings/eu.db"] == recordings_in(found)
        theirs = of_groups(on_tasks(found))
        missing = on_tasks([f"s3://{BUCKET}/recordings/none.db"])
    ours = of_groups(on_tasks([cluster]))
    assert [{**row["groups"], "location": ""} for row in theirs.values()] == [{**row["groups"], "location": ""} for row in ours.values()]
    assert "there is no such recording" in missing[0]["groups"]["problem"]


def test_recording_in_a_folder_that_cannot_be_written_is_read_and_no_file_is_made(
    cluster: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a read-only mount. Whoever runs the tests may write everywhere."""
    copy = tmp_path / "cluster.db"
    shutil.copy(cluster, copy)
    before = copy.read_bytes()
    monkeypatch.setattr("os.access", lambda path, mode: False)
    assert [row["groups"]["problem"] for row in of_groups(on_tasks([copy])).values()] == [None, None]
    assert [each.name for each in tmp_path.iterdir()] == ["cluster.db"]
    assert copy.read_bytes() == before


def test_recordings_are_named_or_found_in_a_folder(cluster: Path, tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    shutil.copy(cluster, tmp_path / "more" / "eu.db")
    shutil.copy(cluster, tmp_path / "more" / "us.recording")
    (tmp_path / "more" / "notes.txt").write_text("of a colleague")
    found = recordings_in([str(tmp_path / "more"), str(cluster), str(cluster)])
    assert [Path(each).name for each in found] == ["eu.db", "us.recording", "cluster.db"]
    for wrong, words in (("kafka://b:9092", "is a broker"), (str(tmp_path / "none.db"), "no such recording"), (str(tmp_path), "holds no recording")):
        with pytest.raises(InputError, match=words):
            recordings_in([wrong])
