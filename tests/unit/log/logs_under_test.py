"""Shared by the log tests: a small log of every kind of record, its rows, and files made of any
rows.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable
from pathlib import Path

from equipoise.events import codec
from equipoise.events.decisions import BalanceEvaluated, Decision, EventRejected, MemberAssigned
from equipoise.events.facts import Fact, GroupConfigured, LagReported, LogOpened, MemberJoined, ProbingTick
from equipoise.events.records import DecisionRecord, Entry
from equipoise.events.tasks import LagSentinel, TaskId
from equipoise.log import open_log
from equipoise.log.jsonl import JsonLinesLog, render
from equipoise.log.parquet.archive_stores import store_at
from equipoise.log.parquet.archive_writing import Writer
from equipoise.log.parquet.log import ArchiveLog
from equipoise.log.parquet.store import ArchivePartition
from equipoise.log.rows import BaseRow, DecisionRow, FactRow, Row
from equipoise.log.sqlite import SqliteLog
from equipoise.log.stored import StoredLog

FORMS = ("group.db", "group.jsonl", "group.parquet")

T = TaskId
FACTS: list[tuple[str, int, Fact]] = [
    ("", 1_000, LogOpened(log_id="a1")),
    ("orders", 1_001, GroupConfigured()),
    ("orders", 1_500, MemberJoined(member_id="m1", incarnation=1, join_nonce="é", tags={"zone": "a"})),
    ("clicks", 1_200, MemberJoined(member_id="m9", incarnation=4, join_nonce="n")),
    ("orders", 2_500, LagReported("m1", 1, 1, 1, (T(0, 0), T(0, 1)), (), {T(0, 2): 5, T(1, 0): LagSentinel.UNKNOWN})),
    ("orders", 3_500, ProbingTick()),
]
DECISIONS: dict[int, list[Decision]] = {
    2: [
        BalanceEvaluated(verdict="balanced", available_movements=0, planned_movements=0, imbalance_before=0, imbalance_after=0),
        MemberAssigned(member_id="m1", incarnation=1, assignment_epoch=1, active=(T(0, 0), T(0, 1)), tokens=(1, 2)),
    ],
    3: [EventRejected(kind=5, code="duplicate_join", member_id="m9", numbers=(-1,))],
    4: [EventRejected(kind=6, code="stale", member_id="m1")],
}


def fill(path: Path) -> list[Entry]:
    """Writes the small log and returns its entries."""
    written: list[Entry] = []
    numbers: dict[str, int] = {}
    with open_log(path, "w") as log:
        for group, append_ms, event in FACTS:
            with log.transaction():
                record = log.append_fact(group, append_ms, event)
                written.append(record)
                made = []
                for index, decision in enumerate(DECISIONS.get(record.offset, [])):
                    numbers[group] = numbers.get(group, 0) + 1
                    made.append(DecisionRecord("a1", group, numbers[group], record.offset, index, record.checksum, decision))
                log.append_decisions(made)
                written.extend(made)
    return written


def rows_of(path: Path) -> list[Row]:
    """Returns the rows of a log as stored."""
    log: StoredLog
    if path.suffix == ".parquet":
        log = ArchivePartition(store_at(path), 0, "r", str(path))
    else:
        log = SqliteLog(path, "r") if path.suffix == ".db" else JsonLinesLog(path, "r")
    with log:
        return list(log._rows(0))


def put(path: Path, rows: Iterable[Row]) -> None:
    """Makes `path` a log of exactly these rows, sound or not."""
    if path.suffix == ".parquet":
        ArchiveLog(str(path), "w").close()
        writer = Writer(store_at(path), 0, 0, 0, 0)
        for row in rows:
            writer.add(row)
        writer.publish()
        return
    path.unlink(missing_ok=True)
    if path.suffix == ".jsonl":
        path.write_bytes(b"".join(render(row) + b"\n" for row in rows))
        return
    SqliteLog(path, "w").close()
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        loosen(database)
        for at, row in enumerate(rows, 1):
            assert not isinstance(row, BaseRow)
            what = (row.kind, row.version, row.payload)
            values: tuple[object, ...]
            if isinstance(row, FactRow):
                values = (at, row.group, 0, row.offset, row.append_ms, *what, None, None, None, row.checksum)
            else:
                values = (at, row.group, 0, None, None, *what, row.number, row.caused_by, row.index, row.checksum)
            database.execute(f"INSERT INTO records VALUES ({','.join('?' * 12)})", values)
    database.close()


def loosen(database: sqlite3.Connection) -> None:
    """Makes the indexes accept anything; otherwise they, not the reader, would find some damage."""
    database.execute("DROP INDEX facts")
    database.execute("DROP INDEX decisions")
    database.execute("CREATE INDEX facts ON records (offset) WHERE offset IS NOT NULL")
    database.execute('CREATE INDEX decisions ON records ("group", number) WHERE number IS NOT NULL')


def fact_row(group: str, offset: int, kind: int, version: int, payload: bytes) -> FactRow:
    """A fact whose checksum holds, whatever it is."""
    return FactRow(group, offset, 5, kind, version, payload, codec.fact_checksum(group, offset, 5, kind, version, payload))


def decision_row(number: int, fact: FactRow, index: int, kind: int, version: int, payload: bytes) -> DecisionRow:
    """A decision of group "orders" whose checksum holds, whatever it is."""
    checksum = codec.decision_checksum("a1", "orders", number, fact.offset, index, fact.checksum, kind, version, payload)
    return DecisionRow("orders", number, fact.offset, index, kind, version, payload, checksum)


def read_all(path: Path) -> list[Entry]:
    """Returns every record of a log."""
    with open_log(path) as log:
        return list(log.read())
