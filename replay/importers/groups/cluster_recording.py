"""A recording of all groups of a cluster: one SQLite file that grows by transactions, so a killed
recorder goes on where its last transaction ended, and has no record twice.

`__consumer_offsets` is compacted, so what a recorder did not keep is gone. Kept are each record
about a group as it was, of commits one for each partition and second, and end offsets at intervals.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import attrs
import msgpack

from equipoise.events.errors import InputError, StorageError
from equipoise.kafka.offsets_topic.record_keys import RawRecord

APPLICATION_ID = 0x45515243  # "EQRC", in the file's header
SCHEMA_VERSION = 1
_SCHEMA = (
    "CREATE TABLE clusters (cluster TEXT NOT NULL) STRICT",
    "CREATE TABLE positions (partition INTEGER PRIMARY KEY, next_offset INTEGER NOT NULL) STRICT",
    """CREATE TABLE records (
    id INTEGER PRIMARY KEY, "group" TEXT NOT NULL, at_ms INTEGER NOT NULL, partition INTEGER NOT NULL, offset INTEGER NOT NULL,
    key BLOB NOT NULL, value BLOB) STRICT""",
    'CREATE INDEX records_of_groups ON records ("group", id)',
    "CREATE TABLE commits (id INTEGER PRIMARY KEY, from_ms INTEGER NOT NULL, until_ms INTEGER NOT NULL, data BLOB NOT NULL) STRICT",
    "CREATE TABLE ends (at_ms INTEGER PRIMARY KEY, data BLOB NOT NULL) STRICT",
    "CREATE TABLE topics (topic_id TEXT PRIMARY KEY, topic TEXT NOT NULL) STRICT",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)


@attrs.frozen(kw_only=True)
class RecordedCommit:
    """A committed offset. `committed` None: the commit was deleted."""

    group: str
    topic: str
    partition: int
    at_ms: int
    committed: int | None


class ClusterRecording:
    """A recording in the file `path`. Opened with `open_recording`."""

    has_every_commit = True
    """At least one of each second."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._db = connection

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    # -- writing

    def begin(self, cluster: str) -> None:
        """Says which cluster is recorded. Raises InputError when it is another one than before."""
        known = self._db.execute("SELECT cluster FROM clusters").fetchone()
        if known is None:
            with self._transaction():
                self._db.execute("INSERT INTO clusters VALUES (?)", (cluster,))
        elif known[0] != cluster:
            raise InputError(f"{self.path}: is a recording of cluster {known[0]!r}, and this is {cluster!r}; name another file")

    def positions(self) -> dict[int, int]:
        """Partition of `__consumer_offsets` -> offset of the next record to read."""
        return dict(self._db.execute("SELECT partition, next_offset FROM positions"))

    def append(self, records: Iterable[tuple[str, RawRecord]], commits: list[RecordedCommit], positions: Mapping[int, int]) -> None:
        """Adds records with their groups, and commits, and moves the positions, in one transaction."""
        with self._transaction():
            self._db.executemany(
                'INSERT INTO records ("group", at_ms, partition, offset, key, value) VALUES (?, ?, ?, ?, ?, ?)',
                [(group, each.timestamp_ms, each.partition, each.offset, each.key, each.value) for group, each in records],
            )
            if commits:
                times = [each.at_ms for each in commits]
                rows = [(each.group, each.topic, each.partition, each.at_ms, each.committed) for each in commits]
                self._db.execute(
                    "INSERT INTO commits (from_ms, until_ms, data) VALUES (?, ?, ?)", (min(times), max(times), zlib.compress(msgpack.packb(rows), 1))
                )
            self._db.executemany("INSERT OR REPLACE INTO positions VALUES (?, ?)", positions.items())

    def add_ends(self, at_ms: int, ends: Mapping[str, list[int]]) -> None:
        """Adds a sample of end offsets: topic -> end of each partition."""
        with self._transaction():
            self._db.execute("INSERT OR REPLACE INTO ends VALUES (?, ?)", (at_ms, zlib.compress(msgpack.packb(dict(ends)), 1)))

    def add_topics(self, names: Mapping[str, str]) -> None:
        """Adds ids of topics: id -> topic. Those of deleted topics stay."""
        with self._transaction():
            self._db.executemany("INSERT OR REPLACE INTO topics VALUES (?, ?)", names.items())

    def delete_before(self, at_ms: int) -> None:
        """Deletes what is older, but for the newest record of each key, from which a group's state
        is folded.
        """
        with self._transaction():
            self._db.execute("DELETE FROM records WHERE at_ms < ? AND id NOT IN (SELECT max(id) FROM records GROUP BY key)", (at_ms,))
            self._db.execute("DELETE FROM commits WHERE until_ms < ?", (at_ms,))
            self._db.execute("DELETE FROM ends WHERE at_ms < ?", (at_ms,))

    # -- reading

    def cluster(self) -> str | None:
        """Id of the recorded cluster; None: nothing was recorded yet."""
        row = next(self._rows("SELECT cluster FROM clusters"), None)
        return None if row is None else str(row[0])

    def groups(self) -> list[str]:
        """Groups with records."""
        return [name for (name,) in self._rows('SELECT DISTINCT "group" FROM records ORDER BY "group"')]

    def records(self, group: str | None = None) -> Iterator[RawRecord]:
        """Records about one group or all, as they were recorded."""
        where, values = ("", ()) if group is None else (' WHERE "group" = ?', (group,))
        for partition, offset, at_ms, key, value in self._rows(
            f"SELECT partition, offset, at_ms, key, value FROM records{where} ORDER BY id", values
        ):
            yield RawRecord(partition, offset, at_ms, key, value)

    def records_by_group(self) -> Iterator[tuple[str, RawRecord]]:
        """Records with their groups: one group after the other, by name, each as recorded."""
        rows = self._rows('SELECT "group", partition, offset, at_ms, key, value FROM records ORDER BY "group", id')
        for group, partition, offset, at_ms, key, value in rows:
            yield group, RawRecord(partition, offset, at_ms, key, value)

    def commits(self, group: str | None = None, from_ms: int = 0, until_ms: int = 2**62) -> Iterator[RecordedCommit]:
        """Commits within a span of time, in the order in which they were recorded."""
        found: list[list[Any]]
        for (data,) in self._rows("SELECT data FROM commits WHERE until_ms >= ? AND from_ms <= ? ORDER BY id", (from_ms, until_ms)):
            found = self._unpacked(data)
            for name, topic, partition, at_ms, committed in found:
                if group in (None, name) and from_ms <= at_ms <= until_ms:
                    yield RecordedCommit(group=name, topic=topic, partition=partition, at_ms=at_ms, committed=committed)

    def ends(self, from_ms: int = 0, until_ms: int = 2**62) -> Iterator[tuple[int, dict[str, list[int]]]]:
        """Time of each sample, and topic -> end of each partition."""
        for at_ms, data in self._rows("SELECT at_ms, data FROM ends WHERE at_ms BETWEEN ? AND ? ORDER BY at_ms", (from_ms, until_ms)):
            yield at_ms, self._unpacked(data)

    def sampled_topics(self) -> set[str]:
        """Topics of the newest sample of end offsets."""
        row = next(self._rows("SELECT data FROM ends ORDER BY at_ms DESC LIMIT 1"), None)
        return set() if row is None else set(self._unpacked(row[0]))

    def topics(self) -> dict[str, str]:
        """Topic id -> topic."""
        return dict(self._rows("SELECT topic_id, topic FROM topics"))

    def _rows(self, query: str, values: Sequence[object] = ()) -> Iterator[Any]:
        """Rows of a query. Raises InputError for a file that is damaged."""
        try:
            yield from self._db.execute(query, values)
        except sqlite3.Error as error:
            raise self._damaged(error) from None

    def _unpacked(self, data: bytes) -> Any:
        try:
            return msgpack.unpackb(zlib.decompress(data))
        except (zlib.error, ValueError, TypeError, msgpack.UnpackException) as error:
            raise self._damaged(error) from None

    def _damaged(self, error: Exception) -> InputError:
        return InputError(f"{self.path}: the recording is damaged ({error}); restore it from a copy, or name another file")

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        try:
            with self._db:
                self._db.execute("BEGIN IMMEDIATE")
                yield
        except sqlite3.Error as error:
            raise StorageError(str(self.path), f"cannot be written: {error}", "free space there, and start again: it resumes") from None


def open_recording(location: str, *, write: bool = False) -> ClusterRecording:
    """Opens a recording; with `write` makes one where there is none. Raises InputError for a file
    that is none. Raises StorageError when it cannot be written.
    """
    path = Path(location)
    if write and not path.absolute().parent.is_dir():
        raise InputError(f"--to {location}: there is no such folder; make it, or name another file")
    is_new = not path.exists() or not path.stat().st_size
    if is_new and not write:
        raise InputError(f"{location}: there is no such recording; make one with equipoise record kafka://host:port --to {location}")
    if path.is_dir():
        raise InputError(f"{location}: is a folder, and no recording of groups; name a file")
    if not is_new and not is_recording(path):  # before SQLite touches it
        raise InputError(f"{location}: is no recording of groups; name a file that equipoise record wrote")
    with contextlib.ExitStack() as opened:
        try:
            connection = opened.enter_context(contextlib.closing(_connected(path, write=write)))
            if is_new:  # before the write-ahead log, so that the file itself has the header from the beginning
                with connection:
                    connection.execute("BEGIN IMMEDIATE")
                    for statement in _SCHEMA:
                        connection.execute(statement)
            if write:
                connection.execute("PRAGMA journal_mode = WAL")
            version = connection.execute("PRAGMA user_version").fetchone()[0]
        except sqlite3.Error as error:
            if is_new:
                raise StorageError(location, f"the recording cannot be made: {error}", "free space there, or name another file") from None
            fix = "restore it from a copy, or name another file"
            if not os.access(path.absolute().parent, os.W_OK):
                fix = f"its folder is read-only: copy it, and {path.name}-wal if that is there, to another one"
            raise InputError(f"{location}: the recording cannot be opened: {error}; {fix}") from None
        if version != SCHEMA_VERSION:
            raise InputError(f"{location}: is a recording of form {version}, and this build reads {SCHEMA_VERSION}; use the build that wrote it")
        opened.pop_all()  # it stays open
    return ClusterRecording(path, connection)


def _connected(path: Path, *, write: bool) -> sqlite3.Connection:
    """A reader makes files beside a recording, unless it is promised that nobody writes it: where
    no file can be made and none is left of a writer.
    """
    wal = path.with_name(f"{path.name}-wal")
    if not write and not os.access(path.absolute().parent, os.W_OK) and not (wal.exists() and wal.stat().st_size):
        return sqlite3.connect(f"{path.absolute().as_uri()}?immutable=1", uri=True, isolation_level=None)
    return sqlite3.connect(path, isolation_level=None)


def is_database(path: Path) -> bool:
    """Returns whether a file is one of SQLite, by its first bytes, or empty."""
    try:
        with path.open("rb") as file:
            begin = file.read(16)
    except OSError:
        return True
    return begin == b"SQLite format 3\x00"


def is_recording(path: Path) -> bool:
    """Returns whether a file is a recording, by the application id in the header of an SQLite file,
    at byte 68.
    """
    try:
        with path.open("rb") as file:
            header = file.read(72)
    except OSError:
        return False
    return header[68:] == APPLICATION_ID.to_bytes(4, "big")
