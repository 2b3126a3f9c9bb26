"""Spark reads and writes an archive in an object store under the path that `equipoise archive`
takes, on a real S3 API.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from click.testing import CliRunner
from pyarrow.fs import FileSystem, LocalFileSystem, copy_files

from bench.many_groups import ManyGroups, make
from equipoise.cli import main
from equipoise.log import open_log
from equipoise.log.parquet import objects
from equipoise.log.parquet.archive_stores import store_at
from equipoise.log.parquet.files import all_parts
from equipoise.log.parquet.log import next_offsets
from equipoise.replay.spark.groups import units_of
from equipoise.replay.spark.timeline import TABLES
from equipoise.replay.spark.verify import spark_verify, verify_group
from tests.object_store import BUCKET, ObjectStoreServer, serving
from tests.spark.leading import GROUPS, Leader, facts_of
from tests.spark.test_batch import collected
from tests.spark.test_killed import killed, under_way
from tests.spark.test_stream import run

pytestmark = pytest.mark.xdist_group("spark")


@pytest.fixture
def server() -> Iterator[ObjectStoreServer]:
    with serving() as running:
        yield running


@pytest.fixture
def bucket(spark: Any, server: ObjectStoreServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty bucket that this process and Spark's workers reach, as ``--conf
    spark.executorEnv.AWS_...`` makes it.
    """
    objects._file_system.cache_clear()  # another server had the same location
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
        monkeypatch.setitem(spark.sparkContext.environment, name, value)
    return f"s3://{BUCKET}"


@pytest.fixture
def fleet_in_bucket(fleet: Path, bucket: str) -> str:
    files, path = FileSystem.from_uri(f"{bucket}/fleet")
    copy_files(str(fleet), path, source_filesystem=LocalFileSystem(), destination_filesystem=files)
    return f"{bucket}/fleet"


@pytest.mark.smoke
def test_verdicts_over_a_bucket_are_those_of_the_folder(spark: Any, fleet: Path, fleet_in_bucket: str) -> None:
    rows = collected(spark_verify(spark, units_of([f"{fleet_in_bucket}/"])))
    assert [(row["group"], row["verdict"]) for row in rows] == [(f"g{at:03}", "identical") for at in range(4)]
    assert json.loads(json.dumps(rows).replace(fleet_in_bucket, str(fleet))) == [verify_group(unit) for unit in units_of([str(fleet)])]


@pytest.mark.slow
def test_what_if_and_timeline_over_a_bucket_are_those_of_the_folder(spark: Any, fleet: Path, fleet_in_bucket: str, tmp_path: Path) -> None:
    answers = [
        CliRunner().invoke(main, ["spark", "what-if", f"{place}/", "--sweep", "max_warmups=1,2", "--seeds", "1", "--json"], catch_exceptions=False)
        for place in (fleet_in_bucket, str(fleet))
    ]
    assert [answer.exit_code for answer in answers] == [0, 0]
    assert answers[0].stdout.replace(fleet_in_bucket, str(fleet)) == answers[1].stdout
    for place, folder in ((fleet_in_bucket, "ours"), (str(fleet), "theirs")):
        done = CliRunner().invoke(main, ["spark", "timeline", f"{place}/", "--to", str(tmp_path / folder)], catch_exceptions=False)
        assert done.exit_code == 0
    for table in TABLES:
        ours, theirs = (
            sorted(map(str, ds.dataset(sorted(map(str, (tmp_path / folder / table).glob("*.parquet")))).to_table().to_pylist()))
            for folder in ("ours", "theirs")
        )
        assert [row.replace(fleet_in_bucket, str(fleet)) for row in ours] == theirs, table


@pytest.mark.slow
def test_killed_archive_query_archives_everything_once(spark: Any, bootstrap: str, bucket: str, tmp_path: Path) -> None:
    """Killed when a trigger has appended part of its records."""
    leader = Leader(bootstrap, "to-a-bucket")
    leader.publish(facts_of(0, 80))
    source, archive, checkpoint = f"kafka://{bootstrap}/to-a-bucket", f"{bucket}/archive", tmp_path / "checkpoint"
    seen: dict[int, int] = {}

    def appended(trigger: int) -> bool:
        files = len(store_at(archive).names())
        return trigger > 0 and files > seen.setdefault(trigger, files)

    args = ["stream", source, "--to", f"{archive}/"]
    trigger = killed(args, checkpoint, tmp_path, appended)
    assert under_way(checkpoint) == trigger
    run(*args, "--checkpoint", str(checkpoint))
    run("stream", source, "--to", str(tmp_path / "never"), "--checkpoint", str(tmp_path / "calm"))
    assert next_offsets(archive) == next_offsets(str(tmp_path / "never"))
    with open_log(archive) as ours, open_log(tmp_path / "never") as theirs:
        for group in GROUPS:
            assert list(ours.read(group=group)) == list(theirs.read(group=group))
    for place in (archive, str(tmp_path / "never")):
        parts = all_parts(store_at(place))
        assert sum(part.rows for part in parts) == sum(max(each.next_row for each in parts if each.partition == at) for at in (0, 1)), place


def rows_in(location: str) -> list[dict[str, Any]]:
    files, path = FileSystem.from_uri(location)
    rows: list[dict[str, Any]] = ds.dataset(path, filesystem=files, format="parquet").to_table().to_pylist()
    return rows


@pytest.mark.slow
def test_results_in_a_bucket_are_the_former_or_the_new_ones(spark: Any, fleet: Path, bucket: str, server: ObjectStoreServer) -> None:
    place = f"{bucket}/rows"
    wanted = ["spark", "verify", str(fleet), "--to", place, "--json"]
    assert CliRunner().invoke(main, [*wanted, "--group", "g00[01]"]).exit_code == 0
    former = rows_in(place)
    assert [row["group"] for row in former] == ["g000", "g001"]
    with server.failing("PUT /bucket/rows/rows.parquet"):
        refused = CliRunner().invoke(main, wanted)
    assert refused.exit_code == 74, refused.output
    assert rows_in(place) == former
    assert CliRunner().invoke(main, wanted).exit_code == 0
    assert [row["group"] for row in rows_in(place)] == ["g000", "g001", "g002", "g003"]
    files, path = FileSystem.from_uri(f"{bucket}/others/mine.txt")
    with files.open_output_stream(path) as mine:
        mine.write(b"mine")
    other = CliRunner().invoke(main, ["spark", "verify", str(fleet), "--to", f"{bucket}/others"])
    assert other.exit_code == 2
    assert "holds something else than tables of equipoise, and stays as it is" in other.stderr


@pytest.mark.slow
def test_each_object_is_read_once_and_the_archive_listed_by_the_job_not_by_the_group(
    spark: Any, tmp_path: Path, bucket: str, server: ObjectStoreServer
) -> None:
    gets: list[int] = []
    for groups in (8, 40):
        make(ManyGroups(groups=groups, partitions=2, records=groups * 30), tmp_path / f"{groups}")
        files, path = FileSystem.from_uri(f"{bucket}/{groups}")
        copy_files(str(tmp_path / f"{groups}"), path, source_filesystem=LocalFileSystem(), destination_filesystem=files)
        server.requests()
        done = CliRunner().invoke(main, ["spark", "verify", f"{bucket}/{groups}/", "--json"], catch_exceptions=False)
        assert (done.exit_code, len(json.loads(done.stdout)["groups"])) == (0, groups)
        asked = server.requests()
        assert sum("list-type=2" in each for each in asked) <= 3, asked
        gets.append(sum(each.startswith("GET ") and ".parquet" in each for each in asked))
    assert gets[0] == gets[1], "requests grow with the groups"
