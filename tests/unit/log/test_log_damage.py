"""Damage: one flipped bit anywhere in a log is found or changes no record; a broken store is
reported, never guessed at.
"""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from equipoise.events import codec
from equipoise.events.decisions import BalanceEvaluated
from equipoise.events.errors import DamagedError, InputError, LogError
from equipoise.events.facts import LagReported, LogOpened, MemberJoined
from equipoise.events.records import DecisionRecord, Entry
from equipoise.events.tasks import LagSentinel, TaskId
from equipoise.log import open_log
from equipoise.log.sqlite import SqliteLog
from tests.unit.log.logs_under_test import fill, loosen, read_all

FILE_STRIDE_BITS = 37
"""Of a whole SQLite file every so-manieth bit is flipped, as all would take minutes. A prime, so
that each bit of a byte has its turn.
"""


def small(path: Path) -> list[Entry]:
    """Writes a log of each sort of record, short enough to damage every bit, and returns its
    entries.
    """
    verdict = BalanceEvaluated(verdict="empty", available_movements=0, planned_movements=300, imbalance_before=0, imbalance_after=0)
    with open_log(path, "w") as log, log.transaction():
        opened = log.append_fact("", 1_000, LogOpened(log_id="a1"))
        joined = log.append_fact("g", 1_001, MemberJoined(member_id="é", incarnation=1, join_nonce="n", tags={"zone": "a"}))
        decision = DecisionRecord("a1", "g", 1, joined.offset, 0, joined.checksum, verdict)
        log.append_decisions([decision])
        unsound = log.append_payload("g", 1_002, codec.kind_of(LagReported), 1, b"\x91\x00")
        report = log.append_fact("g", 1_003, LagReported("é", 1, 1, 0, (TaskId(0, 1),), (), {TaskId(0, 2): 70_000, TaskId(1, 0): LagSentinel.ACTIVE}))
    return [opened, joined, decision, unsound, report]


def outcome(path: Path) -> list[Entry] | str:
    """Returns the records, or the one-line error. Any other exception is a crash."""
    try:
        return read_all(path)
    except (LogError, InputError) as error:
        return str(error).replace("\n", " two lines ")


def test_json_lines_every_flipped_bit_is_found(tmp_path: Path) -> None:
    path = tmp_path / "group.jsonl"
    written = small(path)
    sound = path.read_bytes()
    assert read_all(path) == written
    with open(path, "r+b", buffering=0) as file:
        for at, byte in enumerate(sound):
            for bit in range(8):
                file.seek(at)
                file.write(bytes([byte ^ 1 << bit]))
                assert "offset " in outcome(path), f"bit {bit} of byte {at}"
            file.seek(at)
            file.write(bytes([byte]))
    assert read_all(path) == written


def flips(value: object) -> list[tuple[str, object]]:
    """Every value that differs from `value` in one bit, with the SQL that puts it in place."""
    if isinstance(value, int):
        return [("?", (value ^ 1 << bit) - (2**64 if (value ^ 1 << bit) >= 2**63 else 0)) for bit in range(64)]
    data = value.encode() if isinstance(value, str) else value
    assert isinstance(data, bytes)
    changed = [data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :] for at in range(len(data)) for bit in range(8)]
    return [("CAST(? AS TEXT)" if isinstance(value, str) else "?", item) for item in changed]


def test_sqlite_every_flipped_bit_of_a_column_is_found(tmp_path: Path) -> None:
    path = tmp_path / "group.db"
    written = small(path)
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        loosen(database)
    database.close()
    with SqliteLog(path, "r") as log:
        log._db.execute("PRAGMA query_only = OFF")
        names = [row[1] for row in log._db.execute("PRAGMA table_info(records)")]
        rows = list(log._db.execute("SELECT * FROM records"))
        assert names[1:] == ["group", "partition", "offset", "append_ms", "kind", "version", "payload", "number", "caused_by", "index", "checksum"]
        tried = 0
        for row in rows:
            for name, value in zip(names, row, strict=True):
                for sql, flipped in flips(value) if value is not None else []:
                    log._db.execute("BEGIN")
                    log._db.execute(f'UPDATE OR REPLACE records SET "{name}" = {sql} WHERE id = ?', (flipped, row[0]))
                    with pytest.raises(LogError, match="offset "):
                        list(log.read())
                    log._db.execute("ROLLBACK")
                    tried += 1
        assert tried > 5 * 9 * 64
        assert list(log.read()) == written


def test_values_of_another_type_are_damage(tmp_path: Path) -> None:
    path = tmp_path / "group.db"
    small(path)
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        columns = "id INTEGER PRIMARY KEY, 'group', partition, offset, append_ms, kind, version, payload, number, caused_by, 'index', checksum"
        plain = f"CREATE TABLE records ({columns})"
        database.executescript(f"ALTER TABLE records RENAME TO strict; {plain}; INSERT INTO records SELECT * FROM strict")
        loosen(database)
    database.close()
    with SqliteLog(path, "r") as log:
        log._db.execute("PRAGMA query_only = OFF")
        assert len(list(log.read())) == 5
        names = [row[1] for row in log._db.execute("PRAGMA table_info(records)")][1:]
        for row in range(1, 6):
            for name in names:
                for value in (None, 1.5, "x", b"x", 7):
                    before = log._db.execute(f'SELECT "{name}" FROM records WHERE id = ?', (row,)).fetchone()[0]
                    log._db.execute("BEGIN")
                    log._db.execute(f'UPDATE records SET "{name}" = ? WHERE id = ?', (value, row))
                    if value.__class__ is before.__class__ and value == before:
                        assert len(list(log.read())) == 5
                    else:
                        with pytest.raises(LogError, match="offset "):
                            list(log.read())
                    log._db.execute("ROLLBACK")


@pytest.mark.slow
def test_sqlite_flipped_file_bit_is_found_or_harmless(tmp_path: Path) -> None:
    path = tmp_path / "group.db"
    written = small(path)
    sound = path.read_bytes()
    found = 0
    for at in range(0, len(sound) * 8, FILE_STRIDE_BITS):
        changed = bytearray(sound)
        changed[at // 8] ^= 1 << at % 8
        path.write_bytes(changed)
        read = outcome(path)
        assert read == written or isinstance(read, str), f"bit {at % 8} of byte {at // 8}"
        found += isinstance(read, str)
        for beside in tmp_path.glob("group.db-*"):
            beside.unlink()
    assert found > 0


@pytest.mark.parametrize("keep", [0.1, 0.5, 0.9])
def test_sqlite_truncated_file_is_damaged(tmp_path: Path, keep: float) -> None:
    path = tmp_path / "group.db"
    with open_log(path, "w") as log, log.transaction():
        log.append_fact("", 0, LogOpened(log_id="a1"))
        for number in range(2_000):
            log.append_fact("g", number, LagReported("m", 1, number, 0))
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * keep) // 4096 * 4096])
    with pytest.raises(DamagedError, match="offset "):
        read_all(path)


def test_sqlite_damaged_page_error_has_offset_after_records_read(tmp_path: Path) -> None:
    path = tmp_path / "group.db"
    with open_log(path, "w") as log, log.transaction():
        log.append_fact("", 0, LogOpened(log_id="a1"))
        for number in range(2_000):
            log.append_fact("g", number, LagReported("m", 1, number, 0))
    data = bytearray(path.read_bytes())
    middle = next(at for at in range(len(data) // 2 // 4096 * 4096, len(data), 4096) if data[at] == 0x0D)  # a leaf of the table, not of an index
    data[middle : middle + 4096] = bytes(4096)
    path.write_bytes(data)
    read: list[Entry] = []
    with open_log(path) as log, pytest.raises(DamagedError) as caught:
        read.extend(log.read())
    assert 0 < len(read) < 2_001
    assert caught.value.offset == len(read)


def test_check_structure_finds_index_damage(tmp_path: Path) -> None:
    path = tmp_path / "group.db"
    written = fill(path)
    with open_log(path, check_structure=True) as log:
        assert list(log.read()) == written
    data = bytearray(path.read_bytes())
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        root = database.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'facts'").fetchone()[0]
    database.close()
    at = (root - 1) * 4096 + 4_095  # within the last key of the index: the row it leads to
    data[at] ^= 1
    path.write_bytes(data)
    assert read_all(path) == written  # where a key leads is not asked by a reading from the start
    with pytest.raises(DamagedError, match="restore the log from a copy"):
        open_log(path, check_structure=True)
