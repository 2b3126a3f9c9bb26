"""Logs: the stores of events, behind one protocol.

::

    with open_log("group.db", "a") as log:
        with log.transaction():
            record = log.append_fact("orders", append_ms, event)
            log.append_decisions(machine.step(record))
        for record in log.read():
            ...
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from os import PathLike, fspath
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self, runtime_checkable

from equipoise.events.errors import InputError
from equipoise.events.facts import Fact
from equipoise.events.records import DecisionRecord, Entry, FactRecord
from equipoise.log.jsonl import JsonLinesLog
from equipoise.log.parquet.archive_stores import check_scheme, is_remote_location
from equipoise.log.rows import Row
from equipoise.log.sqlite import SQLITE_BEGIN, SqliteLog, is_sqlite_log
from equipoise.log.stored import Mode

if TYPE_CHECKING:
    from equipoise.log.parquet.manifests import Extent

__all__ = ["Archive", "JsonLinesLog", "Log", "Mode", "PartitionedLog", "SqliteLog", "is_archive_location", "is_log", "open_log"]

_BEGIN_BYTES = 200


class Log(Protocol):
    """A log with one partition: each fact is followed by the decisions it caused.

    One writer at a time; any number of readers, each of which sees the log as it was when its
    reading began. Memory does not grow with the log.
    """

    location: str
    """Location, for messages."""

    def read(self, from_offset: int = 0, group: str | None = None) -> Iterator[Entry]:
        """Yields records in stored order, from the fact at `from_offset` on.

        With `group`: only records of that group, and LogOpened. Other records are checked but not
        decoded; in an archive only their presence is checked, so that damage to one group leaves
        the others readable.

        A fact with a correct checksum and an unsound payload is yielded as `Undecodable`
        (docs/protocol.md#l6). A record of a newer build is yielded as `UnreadRecord`, which ends
        the reading of its group only.

        Raises, with the offset and before any later record is yielded: GapError and RepeatError;
        DamagedError when bytes differ from what was written; UnknownKindError when the log itself
        is of a newer build. Raises InputError when `from_offset` is past the end.
        """
        ...

    def append_fact(self, group: str, append_ms: int, event: Fact) -> FactRecord:
        """Appends a fact at the next offset and returns its record. `append_ms`: wall time of the
        log in milliseconds.

        The first fact must be LogOpened, of group "". Outside `transaction` the fact is durable on
        return. Raises InputError when the log is not open for appending or the fact is not valid
        there, TooLargeError, StorageError when the storage is full.
        """
        ...

    def append_payload(self, group: str, append_ms: int, kind: int, version: int, payload: bytes) -> FactRecord:
        """Appends a payload that a sender declares to be a fact, sound or not. The event of the
        record is `Undecodable` if it is unsound.

        Raises InputError, StorageError, and UnknownKindError for a kind or version that this build
        does not know.
        """
        ...

    def append_decisions(self, decisions: Iterable[DecisionRecord]) -> None:
        """Appends decisions of the last fact, all or none. Raises GapError or RepeatError when a
        number does not follow the last one, InputError, StorageError.
        """
        ...

    def append_row(self, row: Row) -> bool:
        """Appends a row of another log unchanged, byte for byte, even if this build cannot read it.
        Returns False if the row is already there.

        Raises what reading the row would raise: it must follow the last one.
        """
        ...

    def transaction(self) -> AbstractContextManager[None]:
        """Appends within the block become durable together at its end, or not at all if an
        exception leaves it.

        Use it for many appends: the cost of durability is paid once. A nested transaction is part
        of the outer one.
        """
        ...

    def count(self) -> int:
        """Returns the number of records, facts and decisions, without decoding them."""
        ...

    def group_names(self) -> set[str]:
        """Returns the names of all groups that have records, without decoding them."""
        ...

    def position(self) -> int:
        """Returns the offset of the next fact."""
        ...

    def close(self) -> None:
        """Closes the files."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /) -> None: ...


@runtime_checkable
class PartitionedLog(Protocol):
    """A log that may have several partitions. Each partition counts its own offsets."""

    def read_beside(self, group: str) -> Iterator[Entry]:
        """Yields every record of the partition that holds `group`."""
        ...


@runtime_checkable
class Archive(Protocol):
    """A log whose partitions are read one by one, and which knows whether it has all of them."""

    def readings(self, group: str | None = None) -> Iterator[Iterator[Entry]]:
        """Yields a reading of each partition: a problem of one does not keep the others from being
        read. `group`: only its records, as of `Log.read`. A reading ends with what is wrong with the
        partition, and with what says that it may have more records.
        """
        ...

    def extent(self) -> Extent:
        """Returns up to where the readings of this log went, in how many of the partitions that they
        asked for.
        """
        ...


def open_log(location: str | PathLike[str], mode: Mode = "r", *, check_structure: bool = False) -> Log:
    """Opens the log at a location: ``group.db`` or ``sqlite:///group.db``
    (``sqlite:////absolute.db``), ``group.jsonl``, ``archive/`` or
    ``s3://bucket/archive/`` (a Parquet dataset), or ``kafka://host:port[/prefix]`` (read-only).

    `mode`: "r" reads; "w" makes a new log and replaces a log that is there, but nothing else; "a"
    appends, and makes the log if there is none. `check_structure`: the store first checks its own
    pages and indexes, and its seal at the end of each reading, if it has them.

    Raises InputError, with the fix, when the location is wrong; DamagedError when the log is not
    readable.
    """
    text = fspath(location)
    if mode not in ("r", "w", "a"):
        raise InputError(f'mode {mode!r}: use "r" to read, "w" for a new log, "a" to append')
    if text.startswith("kafka://"):
        from equipoise.log.kafka.log import READ_ONLY, KafkaLog

        if mode != "r":
            raise InputError(f"{text}: {READ_ONLY}")
        return KafkaLog(text)
    if text.startswith("sqlite:///"):
        return SqliteLog(Path(text.removeprefix("sqlite:///")), mode, check_structure=check_structure)
    if is_archive_location(text):
        from equipoise.log.parquet.log import ArchiveLog

        return ArchiveLog(text, mode)
    if "://" in text:
        check_scheme(text)
        parquet = "Parquet (archive/, s3://, gs://, abfs://, hdfs://)"
        forms = f"SQLite (group.db, sqlite:///group.db), JSON Lines (group.jsonl), {parquet} and kafka://host:port[/prefix]"
        raise InputError(f"{text}: this build reads {forms}")
    if text.endswith(".db"):
        return SqliteLog(Path(text), mode, check_structure=check_structure)
    if text.endswith(".jsonl"):
        return JsonLinesLog(Path(text), mode)
    host, _, port = text.partition(",")[0].partition("/")[0].rpartition(":")
    if host and port.isdecimal():
        raise InputError(f"{text}: for a log in Kafka write kafka://{text}")
    raise InputError(f"{text}: which form is this? Name it .db (SQLite) or .jsonl (JSON Lines), end it with / (Parquet), or write sqlite:///{text}")


def is_archive_location(location: str) -> bool:
    """Returns whether the location names an archive, which is a folder: ``archive/``,
    ``group.parquet``, ``archive/?partition=3``, an existing folder, or a place in an object store
    or in HDFS.
    """
    if is_remote_location(location):
        return True
    folder = location.partition("?partition=")[0]
    return "://" not in location and (folder.endswith(("/", ".parquet")) or Path(folder).is_dir())


def is_log(location: str) -> bool:
    """Returns whether a log of equipoise is at the location, by its scheme or its first bytes."""
    if "://" in location or location.endswith(".parquet"):
        return True
    path = Path(location)
    if path.is_dir():
        return any(path.glob("date=*"))
    try:
        with path.open("rb") as file:
            begin = file.read(_BEGIN_BYTES)
    except OSError:
        return False
    return is_sqlite_log(path) if begin.startswith(SQLITE_BEGIN) else b'"kind":"LogOpened"' in begin
