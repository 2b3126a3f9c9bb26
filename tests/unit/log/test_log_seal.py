"""The seal of a finished SQLite log: it finds every flipped bit of the file, appending breaks it,
and a kill during sealing leaves the log whole.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from equipoise.events.errors import DamagedError, InputError, LogError
from equipoise.events.facts import LagReported, LogOpened, ProbingTick
from equipoise.events.records import Entry
from equipoise.log import open_log, seal
from equipoise.log.seal import UNSEALED, Seal
from equipoise.log.sqlite import SCHEMA_VERSION, SqliteLog
from tests.unit.log.logs_under_test import fill, read_all

ROOT = Path(__file__).parents[3]
PAGE = 4_096
PLACE = slice(2 * PAGE - 32, 2 * PAGE)
"""Where the seal is in a file that this SQLite made: the end of the first table's page."""
UNUSED_BIT = (PAGE + 200) * 8
"""In bytes of the seal's own page that hold nothing."""
STRIDE_BITS = 229
"""Of a whole file every so-manieth bit is flipped, as all would take minutes. A prime, so that each
bit of a byte has its turn.
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "group.db"


def checked(path: Path) -> list[Entry]:
    """Every record, read as `equipoise verify` reads them."""
    with open_log(path, check_structure=True) as log:
        return list(log.read())


def is_sealed(path: Path) -> bool:
    there = path.read_bytes()[PLACE]
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        assert database.execute("SELECT sha256 FROM seal").fetchall() == [(there,)]
    database.close()
    return there != UNSEALED


def by_hand(path: Path, statements: str) -> None:
    database = sqlite3.connect(path)
    database.executescript(statements)
    database.close()


def flip(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


# ------------------------------------------------------------------------------------ what it finds


def test_seal_flipped_bit_is_found(path: Path) -> None:
    """All bits of the header and of the seal itself, and a sample of the others."""
    written = fill(path)
    assert checked(path) == written
    sound = path.read_bytes()
    header, own = range(100 * 8), range(PLACE.start * 8, PLACE.stop * 8)
    outside = 0
    for bit in sorted({*header, *own, *range(0, len(sound) * 8, STRIDE_BITS)}):
        flip(path, bit)
        with pytest.raises(LogError, match="offset ") as caught:
            checked(path)
        assert "\n" not in str(caught.value)
        if "outside" in caught.value.problem:
            assert caught.value.offset == 6  # the next fact's: every record before it was read
            outside += 1
        for beside in path.parent.glob("group.db-*"):
            beside.unlink()
        path.write_bytes(sound)
    assert outside > 700
    assert checked(path) == written


def test_sealed_log_damaged_record_is_found_at_its_offset(path: Path) -> None:
    fill(path)
    sound = path.read_bytes()
    at = sound.index("é".encode())  # in the payload of offset 2
    path.write_bytes(sound[:at] + b"x" + sound[at + 1 :])
    with pytest.raises(DamagedError, match="offset 2: the record's bytes differ"):
        checked(path)


@pytest.mark.parametrize("change", [lambda sound: sound + b"\0", lambda sound: sound + bytes(PAGE), lambda sound: sound[:-PAGE] + bytes(PAGE)])
def test_seal_longer_file_or_empty_page_is_found(path: Path, change: type[bytes]) -> None:
    fill(path)
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(LogError, match="offset "):
        checked(path)


def test_seal_table_dropped_is_damage(path: Path) -> None:
    fill(path)
    by_hand(path, "DROP TABLE seal")
    with pytest.raises(DamagedError, match="offset 6: all records are sound"):
        checked(path)


def test_changed_header_is_damage_only_when_sealed(path: Path) -> None:
    fill(path)
    by_hand(path, "PRAGMA application_id = 7")
    with pytest.raises(DamagedError, match="header differs from the seal"):
        open_log(path)
    by_hand(path, seal.UNSEAL)
    with pytest.raises(InputError, match="not a log of equipoise"):
        open_log(path)


# -------------------------------------------------------------------------------- when there is one


def test_sealing_changes_its_own_bytes_and_no_others(path: Path) -> None:
    log = SqliteLog(path, "w")
    log.append_fact("", 0, LogOpened(log_id="a1"))
    log._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    before = path.read_bytes()
    assert before[PLACE] == UNSEALED
    log.close()
    after = path.read_bytes()
    assert is_sealed(path)
    assert after[: PLACE.start] + UNSEALED + after[PLACE.stop :] == before


def test_seal_empty_log_is_sealed(path: Path) -> None:
    open_log(path, "w").close()
    assert is_sealed(path)
    assert checked(path) == []
    flip(path, UNUSED_BIT)
    with pytest.raises(DamagedError, match="offset 0"):
        checked(path)


def test_equal_logs_are_equal_files(tmp_path: Path) -> None:
    fill(tmp_path / "one.db")
    fill(tmp_path / "two.db")
    assert (tmp_path / "one.db").read_bytes() == (tmp_path / "two.db").read_bytes()


def test_appending_breaks_the_seal(path: Path) -> None:
    written = fill(path)
    with open_log(path, "a") as log:
        written.append(log.append_fact("orders", 9_000, ProbingTick()))
        assert checked(path) == written  # in the write-ahead log alone
    assert not is_sealed(path)
    assert checked(path) == written
    with open_log(path, "a") as log:
        written.append(log.append_fact("orders", 9_000, ProbingTick()))
    assert checked(path) == written


def opened_to_append_and_failing(path: Path) -> None:
    with open_log(path, "a") as log, log.transaction():
        log.append_fact("orders", 9_000, ProbingTick())
        raise ZeroDivisionError


def test_seal_open_to_append_without_appending_keeps_the_seal(path: Path) -> None:
    written = fill(path)
    sound = path.read_bytes()
    open_log(path, "a").close()
    with pytest.raises(ZeroDivisionError):
        opened_to_append_and_failing(path)
    assert path.read_bytes() == sound
    assert checked(path) == written


def written_and_failing(path: Path) -> None:
    with open_log(path, "w") as log:
        log.append_fact("", 0, LogOpened(log_id="a1"))
        raise ZeroDivisionError


def test_seal_failed_write_is_not_sealed(path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        written_and_failing(path)
    assert not is_sealed(path)
    assert len(checked(path)) == 1


def test_reading_does_not_touch_the_file(path: Path) -> None:
    written = fill(path)
    before = path.read_bytes(), path.stat().st_mtime_ns
    for _ in range(2):
        assert checked(path) == written
        assert read_all(path) == written
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_seal_through_symlink_is_checked(path: Path) -> None:
    written = fill(path)
    link = path.parent / "link.db"
    link.symlink_to(path)
    assert checked(link) == written
    flip(path, UNUSED_BIT)
    with pytest.raises(DamagedError, match="offset 6"):
        checked(link)


def test_seal_with_reserved_page_bytes_is_checked(path: Path) -> None:
    """Some builds of SQLite reserve bytes for their own checksums; byte 20 of the header has the
    count.
    """
    spare = 12
    header = bytearray(PAGE)
    with contextlib.closing(sqlite3.connect(path)) as empty:
        empty.executescript("PRAGMA page_size = 4096; VACUUM")
    header[:100] = path.read_bytes()[:100]
    header[20] = spare
    header[100:108] = bytes([0x0D, 0, 0, 0, 0, *(PAGE - spare).to_bytes(2, "big"), 0])
    path.write_bytes(header)
    with SqliteLog(path, "a") as log:
        log.append_fact("", 0, LogOpened(log_id="a1"))
        assert log._seal.put()
    data = path.read_bytes()
    assert data[20] == spare
    assert UNSEALED not in data
    assert len(checked(path)) == 1
    flip(path, len(data) * 8 - 1)
    with pytest.raises(DamagedError, match="offset 1"):
        checked(path)


def test_open_to_write_replaces_other_schema(path: Path) -> None:
    fill(path)
    by_hand(path, f"PRAGMA user_version = {SCHEMA_VERSION - 1}; DROP TABLE seal")  # as it was in the first schema
    with pytest.raises(InputError, match="schema 1"):
        open_log(path)
    written = fill(path)
    assert checked(path) == written


# ------------------------------------------------------------------------------------ beside others


def test_seal_while_another_process_reads_is_skipped(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = SqliteLog(path, "w")
    log._db.execute("PRAGMA busy_timeout = 0")
    log.append_fact("", 0, LogOpened(log_id="a1"))
    for number in range(4):
        log.append_fact("g", number, ProbingTick())
    with open_log(path) as reader:
        reading = reader.read()
        first = next(reading)
        with caplog.at_level(logging.WARNING):
            log.close()
        assert "is left unsealed: another process is using it" in caplog.text
        assert [first, *reading] == checked(path)
    assert not is_sealed(path)
    assert len(checked(path)) == 5


def test_seal_append_during_read_is_no_damage(path: Path) -> None:
    written = fill(path)
    with open_log(path, check_structure=True) as reader:
        reading = reader.read()
        first = next(reading)
        with open_log(path, "a") as log:
            log.append_fact("orders", 9_000, ProbingTick())
        assert [first, *reading] == written


def test_seal_check_blocks_checkpoint(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check relies on an unchanging file; a writer tries a checkpoint in the middle of it."""
    fill(path)
    sound = path.read_bytes()
    said = []
    read = Seal._read

    def read_beside_a_writer(self: Seal) -> tuple[bytes, bytes]:
        with SqliteLog(path, "a") as log:
            log._db.execute("PRAGMA busy_timeout = 0")
            log.append_fact("orders", 9_000, ProbingTick())
            said.append(log._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0])
            said.append(path.read_bytes() == sound)
            return read(self)

    with open_log(path, check_structure=True) as log:
        monkeypatch.setattr(Seal, "_read", read_beside_a_writer)
        assert len(list(log.read())) == 10
    assert said == [1, True]  # busy; unchanged


# ------------------------------------------------------------------------------------------ kill -9

WRITER = """
import os, signal, sys
from equipoise.events.facts import LagReported, LogOpened
from equipoise.log import open_log

log = open_log(sys.argv[1], "w")
with log.transaction():
    log.append_fact("", 0, LogOpened(log_id="a1"))
    for number in range(200):
        log.append_fact("g", number, LagReported("m", 1, number, 0))
left = int(sys.argv[2])

def count(statement):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)

log._db.set_trace_callback(count)
log.close()
"""


def test_seal_killed_at_any_step_keeps_log_whole_and_appendable(path: Path) -> None:
    """Kills the writer at its first, second, ... statement of closing, until none is left."""
    sealed = []
    for step in range(1, 20):
        done = subprocess.run([sys.executable, "-c", WRITER, str(path), str(step)], cwd=ROOT, check=False)
        for _ in range(2):  # the first one to come by brings home what the writer left in its write-ahead log
            assert len(checked(path)) == 201
        sealed.append(is_sealed(path))
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL
        with open_log(path, "a") as log:
            log.append_fact("g", 1, LagReported("m", 1, 201, 0))
        assert len(checked(path)) == 202
    assert sealed == sorted(sealed)  # unsealed up to the step that makes it so
    assert not sealed[0]
    assert sealed[-1]
    assert 5 <= len(sealed) < 19
