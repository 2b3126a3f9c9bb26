"""The Parquet archive: file names, small files merged beside readers and writers, and damage
confined to its partition.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import attrs
import pyarrow.dataset as ds
import pytest
from click.testing import CliRunner

from equipoise.cli import main
from equipoise.events import codec
from equipoise.events.errors import DamagedError, GapError, InputError, LogError
from equipoise.events.facts import LogOpened, MemberJoined, ProbingTick
from equipoise.events.records import DecisionRecord, Entry, FactRecord
from equipoise.log import open_log
from equipoise.log.copying import copy_log
from equipoise.log.jsonl import JsonLinesLog
from equipoise.log.parquet.archive_stores import FolderStore, store_at
from equipoise.log.parquet.compact import compact
from equipoise.log.parquet.files import COLUMNS, all_parts, part_name
from equipoise.log.parquet.log import ArchiveLog
from equipoise.log.parquet.snapshot import look_at
from equipoise.log.rows import BaseRow, FactRow
from equipoise.log.sqlite import SqliteLog
from tests.unit.log.logs_under_test import fill, put, read_all, rows_of

OLD = Path(__file__).parents[2] / "data" / "archive"
DAY_MS = 86_400_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "archive.parquet"


def ticks(location: str, *append_ms: int, group: str = "g") -> None:
    """Appends each tick in its own transaction, and so in its own file."""
    with open_log(location, "a") as log:
        if log.position() == 0:
            log.append_fact("", append_ms[0], LogOpened(log_id="a1"))
        for at_ms in append_ms:
            log.append_fact(group, at_ms, ProbingTick())


def names(path: Path) -> list[str]:
    return [part.name for part in all_parts(store_at(path))]


# --------------------------------------------------------------------------------------------- form


def test_archive_read_as_plain_parquet_has_a_row_per_record(path: Path) -> None:
    written = fill(path)
    table = ds.dataset(path, partitioning="hive").to_table()
    assert tuple(table.column_names) == (*COLUMNS, "date")
    rows = sorted(table.to_pylist(), key=lambda row: (row["offset"] if row["number"] is None else row["caused_by"], row["number"] or -1))
    assert [row["offset"] for row in rows if row["number"] is None] == [0, 1, 2, 3, 4, 5]
    assert [(row["group"], row["caused_by"], row["index"]) for row in rows if row["offset"] is None] == [
        (each.group, each.caused_by, each.index) for each in written if isinstance(each, DecisionRecord)
    ]
    for row, stored in zip(rows, rows_of(path), strict=True):
        assert not isinstance(stored, BaseRow)
        assert (row["kind"], row["version"], row["payload"], row["checksum"]) == (stored.kind, stored.version, stored.payload, stored.checksum)


def test_archive_files_hold_one_day_when_the_clock_went_back(path: Path) -> None:
    with open_log(path, "w") as log, log.transaction():
        log.append_fact("", 5, LogOpened(log_id="a1"))
        for at_ms in (6, DAY_MS, DAY_MS + 1, 7, 3 * DAY_MS):
            log.append_fact("g", at_ms, ProbingTick())
    assert [(part.day, part.first_offset, part.next_offset) for part in all_parts(store_at(path))] == [
        ("1970-01-01", 0, 2),
        ("1970-01-02", 2, 5),
        ("1970-01-04", 5, 6),
    ]
    assert [record.append_ms for record in read_all(path) if isinstance(record, FactRecord)] == [5, 6, DAY_MS, DAY_MS + 1, 7, 3 * DAY_MS]


def test_archive_writer_killed_leftovers_are_invisible_and_removed_by_next(path: Path) -> None:
    ticks(str(path), 1, 2)
    code = (
        "import os, sys\nfrom equipoise.events.facts import ProbingTick\nfrom equipoise.log import open_log\n"
        f"log = open_log({str(path)!r}, 'a')\n"
        "with log.transaction():\n"
        "    for at in range(40_000):\n        log.append_fact('g', 5, ProbingTick())\n"
        "    os._exit(9)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 9
    assert list(path.glob("date=*/.p*"))
    with open_log(path) as log:
        assert log.count() == 3
    ticks(str(path), 9)
    assert not list(path.glob("date=*/.p*"))
    assert [record.append_ms for record in read_all(path) if isinstance(record, FactRecord)] == [1, 1, 2, 9]


def test_open_archive_foreign_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(InputError, match="something else in it"):
        open_log(tmp_path, "w")
    assert [each.name for each in tmp_path.iterdir()] == ["letter.txt"]


def test_open_archive_other_schema_is_refused(path: Path) -> None:
    fill(path)
    (path / "_equipoise.json").write_text('{"schema_version": 99}')
    for mode in ("r", "a", "w"):
        with pytest.raises(InputError, match="schema 99, this build reads 1"):
            open_log(path, mode)


def test_archive_without_pyarrow_error_names_the_install_command(path: Path) -> None:
    fill(path)
    code = (
        "import sys\nsys.modules['pyarrow'] = None\nfrom equipoise.events.errors import InputError\nfrom equipoise.log import open_log\n"
        f"try:\n    open_log({str(path)!r})\nexcept InputError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "a Parquet archive needs the extra: pip install 'equipoise[spark]'\n"


def test_read_group_needs_no_pandas(path: Path) -> None:
    """pandas takes 60 MB in each process that verifies; pyarrow imports it for scalars of Python
    values and for to_numpy().
    """
    ticks(str(path), 1, 2, 3)
    ticks(str(path), 4, group="h")
    code = (
        "import sys\nfrom equipoise.log.parquet.log import ArchiveLog\n"
        f"with ArchiveLog({str(path)!r}, 'r') as log:\n    print(len(list(log.read())), len(list(log.read(group='h'))), 'pandas' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "5 2 False\n"


# --------------------------------------------------------------------------------------- partitions


@pytest.fixture
def parted(path: Path) -> Path:
    """Partition 0 with group g, partition 2 with groups h and i."""
    ticks(f"{path}?partition=0", 1, 2)
    ticks(f"{path}?partition=2", 3, 4, group="h")
    ticks(f"{path}?partition=2", 5, group="i")
    return path


def test_partitions_are_read_one_after_the_other_with_one_opening(parted: Path) -> None:
    with ArchiveLog(str(parted), "r") as log:
        assert log.groups() == {"g": (0, 2), "h": (2, 2), "i": (2, 1)}
        assert log.count() == 7
        assert [(record.group, record.offset) for record in log.read() if isinstance(record, FactRecord)] == [
            ("", 0),
            ("g", 1),
            ("g", 2),
            ("h", 1),
            ("h", 2),
            ("i", 3),
        ]
        assert [record.group for record in log.read(group="i")] == ["", "i"]
        assert [record.group for record in log.read_beside("i")] == ["", "h", "h", "i"]
        assert [record.group for record in log.read(3, "i")] == ["i"]
        with pytest.raises(InputError, match="offsets count in each of its 2 partitions"):
            log.read(1)
        with pytest.raises(InputError, match="has its own offsets"):
            log.position()
    with open_log(f"{parted}?partition=2") as log:
        assert (log.position(), log.count()) == (4, 4)
    with pytest.raises(InputError, match="has no partition 1"):
        open_log(f"{parted}?partition=1")


def test_partitions_of_different_logs_are_not_one_log(path: Path) -> None:
    ticks(f"{path}?partition=0", 1)
    with open_log(f"{path}?partition=1", "a") as log:
        log.append_fact("", 1, LogOpened(log_id="b2"))
    with pytest.raises(LogError, match="partition 1 is of log 'b2', others are of 'a1'"):
        read_all(path)


def test_new_partition_keeps_the_others(parted: Path) -> None:
    with open_log(f"{parted}?partition=2", "w") as log:
        log.append_fact("", 1, LogOpened(log_id="a1"))
    assert [record.group for record in read_all(parted)] == ["", "g", "g"]
    with open_log(parted, "w") as log:
        log.append_fact("", 1, LogOpened(log_id="c3"))
    assert len(read_all(parted)) == 1


# ------------------------------------------------------------------------------------------- damage


def test_damage_to_one_group_leaves_the_others_readable(path: Path) -> None:
    fill(path)
    rows = rows_of(path)
    assert isinstance(rows[5], FactRow)
    put(path, [*rows[:5], attrs.evolve(rows[5], append_ms=7), *rows[6:]])
    with open_log(path) as log:
        assert len(list(log.read(group="orders"))) == 8
        with pytest.raises(DamagedError, match="offset 3"):
            list(log.read(group="clicks"))
        with pytest.raises(DamagedError, match="offset 3"):
            list(log.read())


@pytest.mark.parametrize("group", ["orders", "clicks", "nobody"])
def test_read_group_missing_offset_is_a_gap(path: Path, group: str) -> None:
    fill(path)
    rows = rows_of(path)
    put(path, [*rows[:5], *rows[7:]])
    read: list[Entry] = []
    with open_log(path) as log, pytest.raises(GapError) as caught:
        read.extend(log.read(group=group))
    assert caught.value.offset == 3
    assert len(read) == {"orders": 5, "clicks": 1, "nobody": 1}[group]


def test_read_missing_file_is_a_gap(path: Path) -> None:
    ticks(str(path), 1, 2, 3)
    (path / all_parts(store_at(path))[1].name).unlink()
    with pytest.raises(GapError, match="row 1 of partition 0"), open_log(path) as log:
        list(log.read())


def test_part_file_flipped_bit_is_damage(path: Path) -> None:
    fill(path)
    part = path / all_parts(store_at(path))[2].name
    sound = part.read_bytes()
    for at in range(0, len(sound) * 8, 61):
        changed = bytearray(sound)
        changed[at // 8] ^= 1 << at % 8
        part.write_bytes(changed)
        with pytest.raises(DamagedError, match="offset 2"):
            read_all(path)
    part.write_bytes(sound[:-9])
    with pytest.raises(DamagedError, match="differ from the checksum in its name"):
        read_all(path)


# --------------------------------------------------------------------------------------- compaction


def test_compact_merges_small_files_by_day(path: Path) -> None:
    ticks(str(path), 1, 2, DAY_MS, DAY_MS + 1, 3 * DAY_MS)
    before = read_all(path)
    done = compact(store_at(path))
    assert (done.before, done.after, done.merged_rows) == (6, 3, 5)
    assert [(part.day, part.first_row, part.next_row) for part in look_at(store_at(path), 0).parts] == [
        ("1970-01-01", 0, 3),
        ("1970-01-02", 3, 5),
        ("1970-01-04", 5, 6),
    ]
    assert read_all(path) == before
    with open_log(path) as log:
        assert list(log.read(4)) == before[4:]
    ticks(str(path), 3 * DAY_MS)
    assert read_all(path)[:-1] == before
    assert compact(store_at(path), most_rows=1).merged_rows == 0


def test_compact_files_keep_the_requested_size(path: Path) -> None:
    ticks(str(path), *range(1, 8))
    compact(store_at(path), most_rows=3)
    assert [part.rows for part in look_at(store_at(path), 0).parts] == [3, 3, 2]


def test_compaction_that_fails_before_its_commit_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks(str(path), 1, 2, 3)
    before = read_all(path)
    store = FolderStore(path)
    with monkeypatch.context() as patched:
        patched.setattr("equipoise.log.parquet.compact.commit", failing)
        with pytest.raises(OSError, match="killed"):
            compact(store, now_ms=5)
    assert (len(all_parts(store)), read_all(path)) == (5, before)
    done = compact(store, now_ms=5)
    assert (done.before, done.after, done.merged_rows) == (4, 1, 4)
    assert (len(all_parts(store)), read_all(path)) == (5, before)


def failing(*_: object) -> None:
    raise OSError("killed")


def test_compaction_keeps_former_files_for_a_day(path: Path) -> None:
    ticks(str(path), 1, 2, 3)
    before = read_all(path)
    compact(store_at(path), now_ms=DAY_MS)
    with open_log(path) as log:
        reading = log.read()
        assert next(reading) == before[0]
        for now_ms, files in ((DAY_MS, 5), (2 * DAY_MS - 1, 5), (2 * DAY_MS, 1)):
            assert (compact(store_at(path), now_ms=now_ms).after, len(names(path))) == (1, files)
        assert [before[0], *reading] == read_all(path) == before


def test_archive_read_during_compaction_continues(path: Path) -> None:
    ticks(str(path), *range(1, 30))
    with open_log(path) as log:
        expected = list(log.read())
        reading = log.read()
        got = [next(reading) for _ in range(11)]
        ticks(str(path), 50)
        compact(store_at(path))
        got += reading
    assert got == expected


def test_compact_damaged_partition_is_refused(path: Path) -> None:
    ticks(str(path), 1, 2)
    part = all_parts(store_at(path))[1]
    (path / part.name).rename(path / part_name(part.day, 0, (1, 2), (1, 2), 0))
    before = names(path)
    with pytest.raises(DamagedError, match="partition 0"):
        compact(store_at(path))
    assert names(path) == before


# ------------------------------------------------------------------------------------------ copying


@pytest.mark.parametrize("form", ["group.db", "group.jsonl"])
def test_archive_from_any_prefix_copies_the_rest(form: str, tmp_path: Path, path: Path) -> None:
    written = fill(tmp_path / form)
    for kept in range(len(written) + 1):
        put(path, rows_of(tmp_path / form)[:kept])
        source = SqliteLog(tmp_path / form, "r") if form.endswith("db") else JsonLinesLog(tmp_path / form, "r")
        with source, ArchiveLog(str(path), "a") as target:
            copied = copy_log(source, target)
        assert copied.facts + copied.decisions == len(written) - kept
        assert read_all(path) == written
    result = CliRunner().invoke(main, ["archive", str(tmp_path / form), "--to", f"{path}/"])
    assert result.output == f"0 facts and 0 decisions copied to {path}/, up to offset 6\n"


def test_archive_another_log_is_refused(tmp_path: Path, path: Path) -> None:
    fill(tmp_path / "group.db")
    with open_log(path, "w") as log:
        log.append_fact("", 0, LogOpened(log_id="b2"))
    result = CliRunner().invoke(main, ["archive", str(tmp_path / "group.db"), "--to", f"{path}/"])
    assert result.exit_code == 2
    assert "holds log 'b2'" in result.stderr


# ---------------------------------------------------------------------------------------- old bytes


def test_archive_of_past_versions_is_upcast() -> None:
    """The files were written when MemberJoined had versions 1 and 2; do not rewrite them."""
    with open_log(OLD) as log:
        joins = [record.event for record in log.read() if isinstance(record, FactRecord) and isinstance(record.event, MemberJoined)]
    assert {row.version for row in rows_of_old() if row.kind == codec.kind_of(MemberJoined)} == {1, 2, 3}
    assert joins == [
        MemberJoined(member_id="m1", incarnation=1, join_nonce="a"),
        MemberJoined(member_id="m2", incarnation=2, join_nonce="b", tags={"zone": "a"}),
        MemberJoined(member_id="m3", incarnation=3, join_nonce="c", eager=True),
    ]
    with open_log(OLD) as log:
        assert (log.count(), log.position()) == (17, 8)
        assert sum(isinstance(record, DecisionRecord) for record in log.read(group="orders")) == 9


def rows_of_old() -> list:
    log = ArchiveLog(str(OLD), "r").part(0)
    return list(log._rows(0))
