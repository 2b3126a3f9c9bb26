"""SQLite: one table of records in one file; the default of embedded logs.

WAL with synchronous=FULL: a committed transaction is on the disk, and a killed process leaves all
or nothing of its transaction. `id` counts the rows, so stored order is the table's own order and
the highest id is the number of records. A finished log is sealed (`equipoise.log.seal`).
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from equipoise.events.errors import DamagedError, InputError, StorageError
from equipoise.log import seal
from equipoise.log.rows import BASE_KIND, BASE_NUMBER, BASE_VERSION, BaseRow, DecisionRow, FactRow, Order, Row
from equipoise.log.storage import cannot_write, is_out_of_space, reason_of
from equipoise.log.stored import BrokenStoreError, MissingRowError, Mode, StoredLog, failed_write

APPLICATION_ID = 0x45515049  # "EQPI", in the file's header
SCHEMA_VERSION = 2
SQLITE_BEGIN = b"SQLite format 3\x00"
"""With which every SQLite file begins."""

_COLUMNS = '"group", partition, offset, append_ms, kind, version, payload, number, caused_by, "index", checksum'

_SCHEMA = (
    *seal.SCHEMA,
    """CREATE TABLE records (
    id INTEGER PRIMARY KEY,
    "group" TEXT NOT NULL, partition INTEGER NOT NULL, offset INTEGER, append_ms INTEGER,
    kind INTEGER NOT NULL, version INTEGER NOT NULL, payload BLOB NOT NULL,
    number INTEGER, caused_by INTEGER, "index" INTEGER, checksum INTEGER NOT NULL) STRICT""",
    "CREATE UNIQUE INDEX facts ON records (offset) WHERE offset IS NOT NULL",
    'CREATE UNIQUE INDEX decisions ON records ("group", number) WHERE number IS NOT NULL',
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)

_FACT = f"INSERT INTO records (id, {_COLUMNS}) VALUES (?, ?, 0, ?, ?, ?, ?, ?, NULL, NULL, NULL, ?)"
_DECISION = f"INSERT INTO records (id, {_COLUMNS}) VALUES (?, ?, 0, NULL, NULL, ?, ?, ?, ?, ?, ?, ?)"


_BASE = f"INSERT INTO records (id, {_COLUMNS}) VALUES (?, ?, 0, NULL, ?, ?, ?, ?, ?, ?, ?, ?)"

_COUNTS = """SELECT coalesce((SELECT max(id) FROM records), 0),
    (SELECT count(*) FROM records INDEXED BY facts WHERE offset IS NOT NULL),
    (SELECT count(*) FROM records INDEXED BY decisions WHERE number IS NOT NULL)"""

_FAILURES = (sqlite3.Error, UnicodeDecodeError)
"""UnicodeDecodeError, because SQLite quotes damaged names unchanged in its messages."""

_LOG = logging.getLogger(__name__)
_LEAST_ID = -(2**63)
"""Ids begin at 1. A damaged id may be anything and must not be skipped."""


@contextlib.contextmanager
def _failing() -> Iterator[None]:
    try:
        yield
    except _FAILURES as error:
        raise BrokenStoreError(reason_of(error)) from None


class OtherSchemaError(InputError):
    """A log of another build, in a schema that this build does not read."""


class SqliteLog(StoredLog):
    """A log in a SQLite file.

    `check_structure`: SQLite first checks its pages and indexes, and each reading checks the seal
    of a finished log. Both read the whole file.
    """

    def __init__(self, path: Path, mode: Mode, *, check_structure: bool = False) -> None:
        super().__init__(str(path), mode)
        if mode == "r" and not path.is_file():
            raise InputError(f"{path}: there is no such log; import or simulate one, or correct the path")
        if mode == "w":
            _remove(path)
        self._db = _connect(path, mode)
        self._seal = seal.Seal(self._db, path)
        self._checks_seal = check_structure and mode == "r"
        try:
            self._prepare(check_structure)
        except _FAILURES as error:
            self._close_files()
            if mode != "r" and isinstance(error, sqlite3.OperationalError):  # locked, full, read-only, ...
                raise cannot_write(path, error) from None
            if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_NOTADB:
                problem = "is not a SQLite file, as a log named .db is; name another file, or restore the log from a copy"
            else:
                problem = f"cannot be read: {reason_of(error)}; restore the log from a copy"
            raise DamagedError(0, f"{path} {problem}") from None
        except BaseException:
            self._close_files()
            raise

    def _prepare(self, check_structure: bool) -> None:
        application, version = self._one("PRAGMA application_id"), self._one("PRAGMA user_version")
        is_empty = application == 0 and not self._one("SELECT count(*) FROM sqlite_schema")
        if is_empty and self.mode != "r":  # new, or its creator was killed before it came this far
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("BEGIN IMMEDIATE")
            for statement in _SCHEMA:
                self._db.execute(statement)
            self._db.execute("COMMIT")
        elif (application, version) != (APPLICATION_ID, SCHEMA_VERSION):
            if self._one("SELECT count(*) FROM sqlite_schema WHERE name IN ('records', 'seal')") == 2 and self._seal.is_broken():
                raise DamagedError(0, f"{self.location}: the file's header differs from the seal; restore the log from a copy")
            if application != APPLICATION_ID:
                raise InputError(f"{self.location}: is a SQLite file, but not a log of equipoise; name another file")
            fix = "use the build that wrote it, or remove it and make the log again"
            raise OtherSchemaError(f"{self.location}: is a log of schema {version}, this build reads {SCHEMA_VERSION}; {fix}")
        self._db.execute("PRAGMA synchronous = FULL")
        if check_structure:
            found = self._one("PRAGMA integrity_check(1)")
            if found != "ok":
                raise DamagedError(0, f"{self.location}: {found!r:.200}; restore the log from a copy")
        self._next_id = self._last_id() + 1
        if self.mode != "r":
            with self._as_damage():
                self._order = self._last_order()

    def _one(self, query: str) -> object:
        row = self._db.execute(query).fetchone()
        return row[0] if row else None

    def _last_id(self) -> int:
        last = self._one("SELECT max(id) FROM records")
        return last if isinstance(last, int) else 0

    # -------------------------------------------------------------------------------------- reading

    def _rows(self, from_offset: int) -> Iterator[Row]:
        with _failing():
            # Rows appended during a reading are left to the next one. A table whose last page is
            # damaged can look complete and shorter, so the indexes, on other pages, are checked
            # too.
            last, facts, decisions = self._db.execute(_COUNTS).fetchone()
            if last != facts + decisions:
                raise BrokenStoreError(f"the table has {last} rows, its indexes have {facts + decisions}")
            due = self._first_id(from_offset)
            least = due if from_offset else _LEAST_ID
            for columns in self._db.execute(f"SELECT id, {_COLUMNS} FROM records WHERE id BETWEEN ? AND ? ORDER BY id", (least, last)):
                if columns[0] != due:
                    raise MissingRowError(f"row {due} of {last}")
                yield _row(columns)
                due += 1
            if due != last + 1:
                raise MissingRowError(f"row {due} of {last}")
            if self._checks_seal and self._seal.is_broken():
                problem = "all records are sound, but bytes outside them differ from the seal; restore the log from a copy"
                raise DamagedError(self._stored_position(), problem)

    def _first_id(self, from_offset: int) -> int:
        if from_offset == 0:
            return 1
        found = self._db.execute("SELECT id FROM records WHERE offset = ?", (from_offset,)).fetchone()
        return found[0] if found else self._last_id() + 1

    def _last_order(self) -> Order:
        position = self._stored_position()
        if position == 0:
            return Order()
        if self._first_id(position - 1) > self._last_id():  # nothing follows the base yet
            order = Order()
            for row in self._rows(0):
                order.take(row)
            return order
        order = Order(position - 1, self._log_id())
        for row in self._rows(position - 1):
            order.take(row)
        with _failing():
            numbers = self._db.execute('SELECT "group", max(number) FROM records WHERE number IS NOT NULL GROUP BY "group"')
            order.numbers, order.from_the_middle = dict(numbers), False
            for state in map(BaseRow.entry, self._bases()):
                order.begins_offset = state.begins_offset
                order.bases.add(state.group)
                order.numbers[state.group] = max(order.numbers[state.group], state.number)
        return order

    def _bases(self) -> list[BaseRow]:
        """The states that the log begins with."""
        found = self._db.execute(f"SELECT id, {_COLUMNS} FROM records WHERE number = ?", (BASE_NUMBER,)).fetchall()
        return [row for row in map(_row, found) if isinstance(row, BaseRow)]

    def _stored_position(self) -> int:
        with _failing():
            last = self._one("SELECT max(offset) FROM records WHERE offset IS NOT NULL")
            if last == 0:
                return next((row.entry().begins_offset for row in self._bases()), 1)
            return last + 1 if isinstance(last, int) else 0

    def _count(self) -> int:
        with _failing():
            return self._last_id()

    # ------------------------------------------------------------------------------------ appending

    def _store(self, row: Row) -> None:
        if isinstance(row, FactRow):
            columns = (self._next_id, row.group, row.offset, row.append_ms, row.kind, row.version, row.payload, row.checksum)
            self._write(_FACT, columns)
        elif isinstance(row, BaseRow):
            what = (BASE_KIND, BASE_VERSION, row.payload, BASE_NUMBER, row.offset, 0, row.checksum)
            self._write(_BASE, (self._next_id, row.group, row.append_ms, *what))
        else:
            about = (row.number, row.caused_by, row.index, row.checksum)
            self._write(_DECISION, (self._next_id, row.group, row.kind, row.version, row.payload, *about))
        self._next_id += 1

    def _write(self, statement: str, values: tuple[object, ...] = ()) -> None:
        try:
            self._db.execute(statement, values)
        except _FAILURES as error:
            raise failed_write(error) from None

    def _begin(self) -> None:
        self._write("BEGIN IMMEDIATE")
        if self._count() != self._next_id - 1:
            self._db.execute("ROLLBACK")
            raise InputError(f"{self.location}: another process has appended since this one opened it; a log has one writer, so close the other one")

    def _commit(self) -> None:
        self._write(seal.UNSEAL)
        self._write("COMMIT")

    def _roll_back(self) -> None:
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")
        self._next_id = self._last_id() + 1

    def _close(self) -> None:
        try:
            if self.mode == "w" and not self._failed:
                self._put_seal()
        finally:
            self._close_files()

    def _put_seal(self) -> None:
        try:
            problem = "" if self._seal.put() else "another process is using it"
        except (sqlite3.Error, OSError) as error:
            if is_out_of_space(error):
                raise StorageError(self.location, reason_of(error), "make room there; all records are there, some of them in its -wal") from None
            problem = str(error)
        if problem:
            _LOG.warning("%s: all records are there, but the log is left unsealed: %s", self.location, problem)

    def _close_files(self) -> None:
        self._db.close()
        self._seal.close()


def _row(columns: tuple[Any, ...]) -> Row:
    """Builds a row from its columns. Raises BrokenStoreError when columns are set that this kind of
    record does not have; `Order` checks the rest.
    """
    _, group, partition, offset, append_ms, kind, version, payload, number, caused_by, index, checksum = columns
    if partition != 0:
        raise BrokenStoreError(f"it is of partition {partition!r:.20}, and the file holds one, 0")
    if (number, caused_by, index) == (None, None, None):
        return FactRow(group, offset, append_ms, kind, version, payload, checksum)
    if (offset, kind, version, number, index) == (None, BASE_KIND, BASE_VERSION, BASE_NUMBER, 0):
        return BaseRow(group, caused_by, append_ms, payload, checksum)
    if (offset, append_ms) == (None, None):
        return DecisionRow(group, number, caused_by, index, kind, version, payload, checksum)
    raise BrokenStoreError("it is neither a fact nor a decision")


def _connect(path: Path, mode: Mode) -> sqlite3.Connection:
    name = f"file:{quote(str(path.absolute()))}"
    try:
        if mode != "r":
            return sqlite3.connect(f"{name}?mode=rwc", uri=True, isolation_level=None)
        # Not mode=ro: that one cannot clear away the -wal and -shm files it needs while it reads.
        # Of any thread, one at a time: `restore` reads rows where it sends them.
        connection = sqlite3.connect(f"{name}?mode=rw", uri=True, isolation_level=None, check_same_thread=False)
        try:
            connection.execute("PRAGMA query_only = ON")
            connection.execute("SELECT count(*) FROM sqlite_schema")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_ERROR:
                return connection  # its header asks for what SQLite does not know: damaged, as below
            connection.close()
            ahead = Path(f"{path}-wal")
            if ahead.exists() and ahead.stat().st_size:
                raise
            # A closed log on a read-only medium or a full disk: nothing writes there, so SQLite can
            # read the file alone.
            connection = sqlite3.connect(f"{name}?mode=ro&immutable=1", uri=True, isolation_level=None, check_same_thread=False)
        except _FAILURES:
            pass  # no database, or a damaged one: `_prepare` meets the same, and says so
        return connection
    except _FAILURES as error:
        raise cannot_write(path, error) from None


def _remove(path: Path) -> None:
    """Removes an old log, and nothing else, before a new one is made."""
    if path.exists() and path.stat().st_size > 0:
        with contextlib.suppress(OtherSchemaError):
            SqliteLog(path, "r").close()  # raises when it is something else
    try:
        for name in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
            name.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; correct the path or its permissions") from None


def is_sqlite_log(path: Path) -> bool:
    """Returns whether an SQLite file is a log. One that is being written has its mark beside it."""
    try:
        with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
            return bool(db.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID)
    except sqlite3.Error:
        return False
