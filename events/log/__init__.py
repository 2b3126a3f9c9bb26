"""Logs: where events are kept, behind one protocol.

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
from typing import Protocol, Self, runtime_checkable

from equipoise.events.errors import InputError
from equipoise.events.facts import Fact
from equipoise.events.log.jsonl import JsonLinesLog
from equipoise.events.log.rows import Row
from equipoise.events.log.sqlite import SqliteLog
from equipoise.events.log.stored import Mode
from equipoise.events.records import DecisionRecord, Entry, Record

__all__ = ["JsonLinesLog", "Log", "Mode", "PartitionedLog", "SqliteLog", "is_archive_location", "open_log"]


class Log(Protocol):
    """A complete log: each fact, the decisions it caused, the next fact, ... in one partition.

    One writer at a time; any number of readers, which see what was there when their reading began.
    Memory does not grow with the log.
    """

    location: str
    """Where it is, for messages."""

    def read(self, from_offset: int = 0, group: str | None = None) -> Iterator[Entry]:
        """Records in stored order, from the fact `from_offset` on.

        With `group`: the records of that group, and LogOpened. The others are checked all the same,
        but not decoded; of those in an archive only that each is there, so that damage to one group
        leaves the others readable.

        A fact whose payload is unsound, though its checksum holds, comes as `Undecodable` (PROTOCOL
        L6).

        What a newer build wrote comes as `UnreadRecord`: the group's readers end there, those of
        other groups go on.

        Raises, each with the offset and before anything behind that is given out: GapError,
        RepeatError; DamagedError for bytes that are not what was written; UnknownKindError where
        the log itself is of a newer build. InputError when `from_offset` is beyond the end.
        """
        ...

    def append_fact(self, group: str, append_ms: int, event: Fact) -> Record:
        """Append a fact at the next offset and return its record. `append_ms`: the log's own wall
        time, in milliseconds.

        The first one must be LogOpened, of group "". Outside `transaction` it is lasting on return.

        Raises InputError, TooLargeError.
        """
        ...

    def append_payload(self, group: str, append_ms: int, kind: int, version: int, payload: bytes) -> Record:
        """Append bytes that a sender calls a fact, whether they are sound or not; the record's
        event is `Undecodable` when they are not.

        Raises InputError, and UnknownKindError for a kind or version that this build does not know.
        """
        ...

    def append_decisions(self, decisions: Iterable[DecisionRecord]) -> None:
        """Append decisions of the last fact, all or none. Raises GapError or RepeatError when they
        do not follow on; InputError.
        """
        ...

    def append_row(self, row: Row) -> bool:
        """Append a row of another log as it is, byte for byte, whether this build can read it or
        not; returns whether it was not there already.

        Raises what reading such a row raises: it must follow on.
        """
        ...

    def transaction(self) -> AbstractContextManager[None]:
        """What is appended within becomes lasting together, at the end, or not at all when an
        exception leaves it.

        It is also the way to append much: the cost of making it lasting is paid once. One within
        another is part of the outer one.
        """
        ...

    def count(self) -> int:
        """How many records there are, facts and decisions, without decoding them."""
        ...

    def position(self) -> int:
        """The offset that the next fact gets."""
        ...

    def close(self) -> None:
        """Let go of the files."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /) -> None: ...


@runtime_checkable
class PartitionedLog(Protocol):
    """What a log that may have several partitions has besides: offsets count in each of them."""

    def read_beside(self, group: str) -> Iterator[Entry]:
        """Everything in the partition that holds `group`."""
        ...


def open_log(location: str | PathLike[str], mode: Mode = "r", *, check_structure: bool = False) -> Log:
    """Open the log at `location`: ``group.db`` or ``sqlite:///group.db``
    (``sqlite:////absolute.db``), ``group.jsonl``, ``archive/`` (a Parquet dataset),
    ``kafka://host:port[/prefix]`` (to read).

    `mode`: "r" to read; "w" for a new one, in place of a log that is there (anything else there is
    left alone); "a" to go on with one, or begin it. `check_structure`: have the store check its own
    pages and indexes first, and its seal at the end of each reading, where it has them.

    Raises InputError with the fix; DamagedError when it is no readable log.
    """
    text = fspath(location)
    if mode not in ("r", "w", "a"):
        raise InputError(f'mode {mode!r}: use "r" to read, "w" for a new log, "a" to append')
    if text.startswith("kafka://"):
        from equipoise.events.log.kafka.log import READ_ONLY, KafkaLog

        if mode != "r":
            raise InputError(f"{text}: {READ_ONLY}")
        return KafkaLog(text)
    if text.startswith("sqlite:///"):
        return SqliteLog(Path(text.removeprefix("sqlite:///")), mode, check_structure=check_structure)
    if is_archive_location(text):
        from equipoise.events.log.parquet.log import ArchiveLog

        return ArchiveLog(text, mode)
    if "://" in text:
        forms = "SQLite (group.db, sqlite:///group.db), JSON Lines (group.jsonl), Parquet (archive/) and kafka://host:port[/prefix]"
        raise InputError(f"{text}: this build reads {forms}")
    if text.endswith(".db"):
        return SqliteLog(Path(text), mode, check_structure=check_structure)
    if text.endswith(".jsonl"):
        return JsonLinesLog(Path(text), mode)
    raise InputError(f"{text}: which form is this? Name it .db (SQLite) or .jsonl (JSON Lines), end it with / (Parquet), or write sqlite:///{text}")


def is_archive_location(location: str) -> bool:
    """Whether it names a folder, which an archive is: ``archive/``, ``group.parquet``,
    ``archive/?partition=3``, or one that is there.
    """
    folder = location.partition("?partition=")[0]
    return "://" not in location and (folder.endswith(("/", ".parquet")) or Path(folder).is_dir())
