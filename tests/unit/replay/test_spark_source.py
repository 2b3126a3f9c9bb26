"""The format `equipoise` of Spark, without Spark: which files a reading opens, and what it yields."""

from __future__ import annotations

import datetime as dt
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, LessThan

from equipoise.events.errors import InputError
from equipoise.events.records import DecisionRecord, FactRecord
from equipoise.log import open_log
from equipoise.log.parquet.archive_stores import FolderStore
from equipoise.log.parquet.compact import compact
from equipoise.log.parquet.files import all_parts
from equipoise.log.stored import BrokenStoreError
from equipoise.replay.spark.source import VIEWS, ArchiveReader, ArchiveStreamReader, FilteringReader
from tests.unit.replay.test_archive_damage import DAY_MS, file_of, of_three_days


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return of_three_days(tmp_path_factory.mktemp("source") / "archive")


@pytest.fixture
def archive(whole: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole, tmp_path / "archive")
    return tmp_path / "archive"


class Columns:
    """What a reader asks of a schema, without a JVM that parses one."""

    def __init__(self, names: list[str]) -> None:
        self.fields = [type("Field", (), {"name": name}) for name in names]


def columns(view: str) -> list[str]:
    return [each.split()[0].strip("`") for each in VIEWS[view].split(", ")]


def reader(path: Path, *filters: Filter, view: str = "facts", names: list[str] | None = None, **options: str) -> ArchiveReader:
    found = FilteringReader({"path": str(path), "view": view, **options}, Columns(names or columns(view)))
    assert list(found.pushFilters(list(filters))) == []
    return found


def rows(found: ArchiveReader) -> list[dict[str, Any]]:
    return [row for part in found.partitions() for batch in found.read(part) for row in batch.to_pylist()]


def files(found: ArchiveReader) -> list[str]:
    return sorted(piece.name for part in found.partitions() for piece in part.pieces)


def test_views_have_each_record_once(whole: Path) -> None:
    with open_log(whole) as log:
        records = list(log.read())
    facts = [each for each in records if isinstance(each, FactRecord)]
    decisions = [each for each in records if isinstance(each, DecisionRecord)]
    found = sorted(rows(reader(whole)), key=lambda row: (row["partition"], row["offset"]))
    assert [(row["group"], row["offset"], row["append_ms"]) for row in found if row["offset"]] == [
        (each.group, each.offset, each.append_ms) for each in facts if each.offset
    ]
    assert {row["kind"] for row in found} == {type(each.event).__name__ for each in facts}
    joined = next(row for row in found if row["kind"] == "MemberJoined")
    assert joined["append_time"] == dt.datetime.fromtimestamp(joined["append_ms"] / 1_000, dt.UTC)
    assert joined["member_id"] == json.loads(joined["event"])["member_id"]
    decided = rows(reader(whole, view="decisions"))
    assert sorted((row["group"], row["number"], row["caused_by"]) for row in decided) == sorted((e.group, e.number, e.caused_by) for e in decisions)
    of_facts = {(row["partition"], row["offset"]): row["append_ms"] for row in found}
    assert all(row["append_ms"] == of_facts[row["partition"], row["caused_by"]] for row in decided)
    assert len(rows(reader(whole, view="records"))) == len(found) + len(decided)


def test_filters_leave_files_out(whole: Path) -> None:
    everything = [part.name for part in all_parts(FolderStore(whole))]
    assert files(reader(whole)) == sorted(everything)
    day = dt.date(1970, 1, 2)
    assert {name[:15] for name in files(reader(whole, EqualTo(("date",), day)))} == {"date=1970-01-02"}
    assert files(reader(whole, EqualTo(("group",), "c1"))) == [everything[5]]
    assert {row["group"] for row in rows(reader(whole, EqualTo(("group",), "c1")))} == {"c1"}
    first = reader(whole, EqualTo(("partition",), 0), LessThan(("offset",), 3))
    assert (files(first), [row["offset"] for row in rows(first)]) == ([everything[0]], [0, 1, 2])
    last = reader(whole, EqualTo(("partition",), 0), GreaterThanOrEqual(("offset",), 70))
    assert (files(last), [row["offset"] for row in rows(last)]) == ([everything[2]], [70, 71, 72])
    assert files(reader(whole, GreaterThan(("offset",), 10_000))) == []
    assert list(reader(whole).pushFilters([EqualTo(("kind",), "MemberJoined")])) != [], "Spark applies what is not taken"


def test_tasks_are_as_many_as_asked_for_and_columns_those_of_the_schema(whole: Path) -> None:
    assert len(reader(whole, partitions="4").partitions()) == 4
    assert {*rows(reader(whole, names=["offset"]))[0]} == {"offset"}


def test_lost_file_or_partition_ends_a_reading(archive: Path) -> None:
    file_of(archive, 2).unlink()
    with pytest.raises(BrokenStoreError, match="which manifest 3 names, is not there"):
        reader(archive).partitions()


def test_stream_goes_on_behind_its_place_also_after_a_compaction(archive: Path) -> None:
    stream = ArchiveStreamReader({"path": str(archive), "view": "records"}, Columns(columns("records")))
    end = stream.latestOffset()
    half = {each: row // 2 for each, row in end.items()}
    first = [row for part in stream.partitions(stream.initialOffset(), half) for batch in stream.read(part) for row in batch.to_pylist()]
    compact(FolderStore(archive), now_ms=DAY_MS)
    second = [row for part in stream.partitions(half, end) for batch in stream.read(part) for row in batch.to_pylist()]
    assert sorted((row["partition"], row["row"]) for row in first + second) == [
        (partition, row) for partition in (0, 1) for row in range(end[str(partition)])
    ]


def test_wrong_options_are_told(whole: Path) -> None:
    with pytest.raises(InputError, match="view nothing: there is none; name one of facts, decisions, records"):
        reader(whole, view="nothing", names=["group"])
    with pytest.raises(InputError, match="name the archive"):
        ArchiveReader({}, Columns(["group"]))


@pytest.mark.parametrize("tasks", ["0", "many", "-1"])
def test_number_of_tasks_is_checked(whole: Path, tasks: str) -> None:
    with pytest.raises(InputError, match="write 1 or more"):
        reader(whole, partitions=tasks)
