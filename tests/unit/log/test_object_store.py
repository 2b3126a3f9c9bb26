"""An archive in an object store, on a real S3 API: what is written is read, nothing half-written is
ever seen, and what two writers have both written is there once.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from equipoise.cli import main
from equipoise.events.errors import DamagedError, GapError, InputError, StorageError
from equipoise.events.facts import LogOpened, ProbingTick
from equipoise.events.records import Entry, FactRecord
from equipoise.log import open_log
from equipoise.log.copying import copy_log
from equipoise.log.parquet import objects
from equipoise.log.parquet.archive_stores import store_at
from equipoise.log.parquet.compact import compact
from equipoise.log.parquet.files import all_parts
from equipoise.log.parquet.log import ArchiveLog, next_offsets
from equipoise.log.parquet.snapshot import look_at
from equipoise.log.sqlite import SqliteLog
from tests.object_store import BUCKET, ObjectStoreServer, serving
from tests.unit.log.logs_under_test import fill

ROOT = Path(__file__).parents[3]
OPENED = LogOpened(log_id="a1")


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectStoreServer]:
    with serving() as running:
        yield running


@pytest.fixture
def location(server: ObjectStoreServer, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/{uuid.uuid4().hex}/archive"


def ticks(location: str, *append_ms: int, group: str = "g") -> None:
    """Appends each tick in its own transaction, and so in its own file."""
    with open_log(location, "a") as log:
        if log.position() == 0:
            log.append_fact("", append_ms[0], OPENED)
        for at_ms in append_ms:
            log.append_fact(group, at_ms, ProbingTick())


def read_all(location: str) -> list[Entry]:
    with open_log(location) as log:
        return list(log.read())


def offsets(location: str) -> list[int]:
    return [each.offset for each in read_all(location) if isinstance(each, FactRecord)]


def names(location: str) -> list[str]:
    return store_at(location).names()


# ------------------------------------------------------------------------------- written and read


def test_archive_in_a_bucket_is_the_log_that_was_copied(location: str, tmp_path: Path) -> None:
    written = fill(tmp_path / "group.db")
    result = CliRunner().invoke(main, ["archive", str(tmp_path / "group.db"), "--to", f"{location}/"])
    assert (result.exit_code, result.output) == (0, f"6 facts and 4 decisions copied to {location}/, up to offset 6\n")
    assert read_all(location) == written
    with open_log(f"{location}/") as log:
        assert (log.count(), log.position()) == (10, 6)
        assert list(log.read(4)) == written[written.index(next(each for each in written if isinstance(each, FactRecord) and each.offset == 4)) :]
    shown = CliRunner().invoke(main, ["status", f"{location}/", "--group", "orders"])
    assert (shown.exit_code, "m1" in shown.output) == (0, True)


def test_partitions_are_read_together_and_apart(location: str) -> None:
    ticks(f"{location}?partition=0", 1, 2)
    ticks(f"{location}?partition=2", 3, group="h")
    with ArchiveLog(location, "r") as log:
        assert log.groups() == {"g": (0, 2), "h": (2, 1)}
        assert [each.group for each in log.read(group="h")] == ["", "h"]
    assert next_offsets(location) == {0: 3, 2: 2}
    with pytest.raises(InputError, match="has no partition 1"):
        open_log(f"{location}?partition=1")


def test_new_log_replaces_what_is_there(location: str) -> None:
    ticks(location, 1, 2)
    with open_log(location, "w") as log:
        log.append_fact("", 1, LogOpened(log_id="c3"))
    assert [each.event for each in read_all(location)] == [LogOpened(log_id="c3")]  # type: ignore[union-attr]


def test_next_offsets_before_the_first_run_is_nothing(location: str, tmp_path: Path) -> None:
    assert next_offsets(location) == {}
    assert next_offsets(str(tmp_path / "archive")) == {}


def test_next_offsets_missing_file_is_a_gap(location: str) -> None:
    ticks(location, 1, 2, 3)
    store_at(location).remove(all_parts(store_at(location))[1].name)
    with pytest.raises(GapError, match="row 1 of partition 0"):
        next_offsets(location)
    with pytest.raises(GapError, match="row 1 of partition 0"):
        read_all(location)


def test_resuming_reads_files_up_to_the_first_fact_and_the_last_one_only(location: str, server: ObjectStoreServer) -> None:
    ticks(location, *range(1, 9))
    objects._CACHE._files.clear()
    server.requests()
    ticks(location, 20)
    gets = {each for each in server.requests() if each.startswith("GET") and ".parquet" in each}
    opening, first, *_, last, _ = (part.name for part in all_parts(store_at(location)))
    assert {each.rpartition("/archive/")[2].rstrip("?") for each in gets} == {opening, first, last}


def test_reading_again_downloads_nothing_again(location: str, server: ObjectStoreServer) -> None:
    ticks(location, 1, 2, 3)
    before = read_all(location)
    server.requests()
    assert read_all(location) == before
    assert not [each for each in server.requests() if each.startswith("GET") and ".parquet" in each]


# ------------------------------------------------------------------------------------------ damage


def test_changed_object_is_damage(location: str) -> None:
    ticks(location, 1, 2)
    store, part = store_at(location), all_parts(store_at(location))[1]
    assert isinstance(store, objects.ObjectStore)
    store.upload(part.name, b"PAR1 something else")
    objects._CACHE._files.clear()
    with pytest.raises(DamagedError, match="differ from the checksum in its name"):
        read_all(location)


def test_empty_object_is_no_file(location: str) -> None:
    """Azure shows one while a file is written; an interrupt between opening and writing leaves one."""
    ticks(location, 1, 2)
    store = store_at(location)
    assert isinstance(store, objects.ObjectStore)
    last = all_parts(store)[-1]
    store.upload(last.name.replace("r000000000002-000000000003", "r000000000003-000000000009"), b"")
    assert offsets(location) == [0, 1, 2]
    ticks(location, 3)
    assert offsets(location) == [0, 1, 2, 3]


def test_refused_part_of_an_upload_leaves_the_archive_as_it_was(location: str, server: ObjectStoreServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a file of several parts, of which the second is refused."""
    ticks(location, 1)
    before = names(location)
    store = store_at(location)
    data = random.Random(1).randbytes(25 << 20)
    with server.failing("partNumber=2"), pytest.raises(StorageError, match=r"ACCESS_DENIED .*; what is there is whole"):
        store.upload("date=1970-01-01/large", data)  # type: ignore[attr-defined]
    assert names(location) == before
    store.upload("date=1970-01-01/large", data)  # type: ignore[attr-defined]
    assert names(location) == sorted([*before, "date=1970-01-01/large"])


def test_archive_store_refuses_writes_and_goes_on_later(location: str, server: ObjectStoreServer, tmp_path: Path) -> None:
    written = fill(tmp_path / "group.db")
    command = ["archive", str(tmp_path / "group.db"), "--to", f"{location}/"]
    with server.failing(".parquet"):
        result = CliRunner().invoke(main, command)
    assert result.exit_code == 74
    assert "holds what was copied so far; the same command resumes there" in result.stderr
    assert CliRunner().invoke(main, command).exit_code == 0
    assert read_all(location) == written


@pytest.mark.parametrize(
    ("place", "problem"),
    [
        ("s3://no-such-bucket/archive/", "NO_SUCH_BUCKET"),
        (f"s3://{BUCKET}/", "names no place in the bucket"),
        (f"s3://{BUCKET}/archive?region=eu-west-1", "come from the environment"),
    ],
)
def test_archive_wrong_location_says_what_is_wrong(place: str, problem: str, location: str, tmp_path: Path) -> None:
    fill(tmp_path / "group.db")
    result = CliRunner().invoke(main, ["archive", str(tmp_path / "group.db"), "--to", place])
    assert (result.exit_code, problem in result.stderr) == (2, True), result.stderr


def test_no_archive_there_is_said(location: str) -> None:
    with pytest.raises(InputError, match="there is no such log"):
        open_log(location)


def test_other_objects_under_the_prefix_are_left_alone(location: str) -> None:
    store_at(location).write_text("letter.txt", "dear")
    with pytest.raises(InputError, match="something else in it"):
        open_log(location, "w")
    assert names(location) == ["letter.txt"]


def test_commands_that_replace_a_log_name_the_way(location: str) -> None:
    result = CliRunner().invoke(main, ["import", "kafka-streams", "rolling", "--to", f"{location}/"])
    assert (result.exit_code, f"equipoise archive group.db --to {location}/" in result.stderr) == (2, True)


# ------------------------------------------------------------------------------------- compaction


def test_compact_merges_small_objects(location: str) -> None:
    ticks(location, *range(1, 8))
    before = read_all(location)
    result = CliRunner().invoke(main, ["archive", f"{location}/", "--compact"])
    assert result.output == "8 files -> 1: 8 records merged\n"
    assert read_all(location) == before
    ticks(location, 9)
    assert read_all(location)[:-1] == before


def test_archive_read_during_compaction_continues(location: str) -> None:
    ticks(location, *range(1, 12))
    with open_log(location) as log:
        expected = list(log.read())
        reading = log.read()
        got = [next(reading) for _ in range(4)]
        objects._CACHE._files.clear()
        compact(store_at(location))
        got += reading
    assert got == expected


# ----------------------------------------------------------------------- writers that meet or die


def copied(source: Path, target: str, rows_a_transaction: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("equipoise.log.copying._ROWS_A_TRANSACTION", rows_a_transaction)
    with SqliteLog(source, "r") as log, ArchiveLog(target, "a") as archive:
        copy_log(log, archive)


def test_two_writers_of_one_log_leave_each_record_once(location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = fill(tmp_path / "group.db")
    other = f"{location}-2"
    copied(tmp_path / "group.db", location, 3, monkeypatch)
    copied(tmp_path / "group.db", other, 4, monkeypatch)
    ours, theirs = store_at(location), store_at(other)
    assert isinstance(ours, objects.ObjectStore)
    for name in theirs.names():
        if name not in ours.names():
            with theirs._files.open_input_stream(theirs._path(name)) as stream:  # type: ignore[attr-defined]
                ours.upload(name, stream.read())
    parts = all_parts(ours)
    assert any(one.next_row > two.first_row > one.first_row for one, two in pairwise(parts)), "they overlap"
    assert read_all(location) == written
    with ArchiveLog(location, "r") as log:
        assert {group: count for group, (_, count) in log.groups().items()} == {"orders": 7, "clicks": 2}
    compact(ours, now_ms=5)
    assert (len(look_at(ours, 0).parts), read_all(location)) == (1, written)
    compact(ours, now_ms=5 + 86_400_000)
    assert (len(all_parts(ours)), read_all(location)) == (1, written)


COPIER = """
import sys
from equipoise.log import copying
copying._ROWS_A_TRANSACTION = 40
from equipoise.__main__ import run
sys.argv = ["equipoise", "archive", sys.argv[1], "--to", sys.argv[2]]
run()
"""


@pytest.fixture(scope="module")
def long_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("long") / "group.db"
    with open_log(path, "w") as log, log.transaction():
        log.append_fact("", 1, OPENED)
        for at in range(1, 400):
            log.append_fact(f"g{at % 7}", at, ProbingTick())
    return path


def started(source: Path, target: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", COPIER, str(source), f"{target}/"]
    return subprocess.Popen(command, cwd=ROOT, env=dict(os.environ), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def test_archive_killed_again_and_again_misses_and_repeats_nothing(location: str, long_log: Path) -> None:
    expected = read_all(str(long_log))
    seeds = random.Random(7)
    kills = seen = 0
    while True:
        process = started(long_log, location)
        grows_to = seen + seeds.randint(2, 3)  # files, so that each run gets somewhere
        while process.poll() is None and len(names(location)) < grows_to:
            time.sleep(0.005)
        time.sleep(seeds.random() * 0.02)
        process.kill()
        ended = process.wait()
        seen = len(names(location))
        if seen > 1:
            read = read_all(location)
            assert read == expected[: len(read)], "what is there is the log's beginning, at any moment"
        if ended == 0:
            break
        kills += 1
    assert kills >= 3
    assert read_all(location) == expected
    parts = all_parts(store_at(location))
    assert sum(part.rows for part in parts) == len(expected), "no row is stored twice"


def test_two_archivers_at_once_agree(location: str, long_log: Path) -> None:
    expected = read_all(str(long_log))
    both = [started(long_log, location) for _ in range(2)]
    assert [process.wait(60) for process in both] == [0, 0]
    assert read_all(location) == expected


def test_kill_in_the_middle_of_an_upload_leaves_nothing_to_see(location: str, server: ObjectStoreServer) -> None:
    ticks(location, 1)
    before = names(location)
    code = (
        "import sys, random\nfrom equipoise.log.parquet.archive_stores import store_at\n"
        f"store_at({location!r}).upload('date=1970-01-01/large', random.Random(1).randbytes(25 << 20))\n"
    )
    server.requests()
    with server.failing("partNumber=3", after_s=20):
        process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, env=dict(os.environ))
        seen: list[str] = []
        while not any("partNumber=3" in each for each in seen):
            seen += server.requests()
        process.kill()
        assert process.wait() == -9
    assert names(location) == before
    assert offsets(location) == [0, 1]


def test_file_cache_keeps_to_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "_MOST_CACHED_BYTES", 10)
    cache = objects._Cache()
    files: list[Any] = [bytes(6), bytes(3), bytes(6), bytes(20)]
    places = [objects._Place("s3://b/a", str(at)) for at in range(len(files))]
    for place, file in zip(places[:3], files[:3], strict=True):
        cache.put(place, file)
    assert [cache.get(place) is not None for place in places[:3]] == [False, True, True]
    threads = [threading.Thread(target=cache.put, args=(places[3], files[3])) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [cache.get(place) is not None for place in places] == [False, False, False, True]
