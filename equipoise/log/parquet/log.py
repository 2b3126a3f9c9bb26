"""An archive as a log: ``archive/[?partition=N]``, a Parquet dataset
(`equipoise.log.parquet.files`) that any other reader of Parquet can read, in a folder or in
an object store (``s3://bucket/archive/``).

It may hold several partitions of one log, as Kafka does. They are read one after the other; a group
is in one of them. Appends go to the named partition; default: partition 0.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Self

from equipoise.events.errors import GapError, InputError, LogError
from equipoise.events.facts import Fact, LogOpened
from equipoise.events.records import DecisionRecord, Entry, FactRecord
from equipoise.log.parquet.archive_store import Store
from equipoise.log.parquet.archive_stores import split_location, store_at
from equipoise.log.parquet.files import (
    MOST_PARTITIONS,
    Part,
    all_parts,
    by_partition,
    check_archive,
    covering,
    is_archive,
    make_archive,
    pyarrow,
)
from equipoise.log.parquet.store import ArchivePartition
from equipoise.log.rows import Row
from equipoise.log.stored import MissingRowError, Mode


class ArchiveLog:
    """An archive as a log. See the module; `equipoise.log.Log` documents the methods."""

    def __init__(self, location: str, mode: Mode) -> None:
        pyarrow()
        self.location = location
        place, self._named = split_location(location)
        self.store = store_at(place)
        self.mode = mode
        self._appended: ArchivePartition | None = None
        self._groups: dict[str, tuple[int, int]] | None = None
        self._closed = False
        if mode == "r":
            check_archive(self.store)
            self._partition_of_one()
            return
        if is_archive(self.store):
            check_archive(self.store)
            if mode == "w" and self._named is None:
                clear(self.store)
        make_archive(self.store)
        self._appended = self.part(self._named or 0, mode)

    def part(self, partition: int, mode: Mode = "r", parts: Sequence[Part] | None = None, last_day: str | None = None) -> ArchivePartition:
        """Opens one of its partitions. `parts`, `last_day`: see `ArchivePartition`. Raises
        InputError for a partition beyond the most that an archive has.
        """
        if partition >= MOST_PARTITIONS:
            raise InputError(f"{self.location}: partition {partition}; an archive has at most {MOST_PARTITIONS}")
        location = self.location if self._named is not None else f"{self.location}?partition={partition}"
        return ArchivePartition(self.store, partition, mode, location, parts, last_day)

    @property
    def absolute_location(self) -> str:
        """Its location without a partition, for processes in other folders."""
        return self.store.absolute

    def partitions(self) -> list[int]:
        """Returns the partitions to read, in rising order."""
        self._must_be_open()
        there = sorted(by_partition(all_parts(self.store)))
        return [each for each in there if self._named in (None, each)]

    def files(self) -> dict[int, list[Part]]:
        """Returns partition -> the files that hold each of its rows once, in order. Lists the
        archive once. Raises GapError when one is missing.
        """
        self._must_be_open()
        parts = by_partition(all_parts(self.store))
        try:
            return {partition: covering(each) for partition, each in sorted(parts.items()) if self._named in (None, partition)}
        except MissingRowError as error:
            raise GapError(-1, f"{self.location}: {error}; restore the archive from a copy") from None

    def _partition_of_one(self) -> None:
        if self._named is not None and self.partitions() != [self._named]:
            raise InputError(f"{self.location}: has no partition {self._named}; name another one, or none to read all")

    def groups(self) -> dict[str, tuple[int, int]]:
        """Returns group -> (its partition, its number of records), in the order of names. Raises
        LogError for a group in two partitions.
        """
        self._must_be_open()
        if self._groups is None:
            found = [(group, partition, count) for partition in self.partitions() for group, count in self.part(partition).groups().items()]
            self._groups = {}
            for group, partition, count in sorted(found):
                if group in self._groups:
                    where = f"partitions {self._groups[group][0]} and {partition}"
                    raise LogError(-1, f"{self.location}: group {group!r} is in {where}; a group has one, so make the archive again")
                self._groups[group] = partition, count
        return self._groups

    # -------------------------------------------------------------------------------------- reading

    def read(self, from_offset: int = 0, group: str | None = None) -> Iterator[Entry]:
        """Yields records in order, from the fact at `from_offset` on. See
        `equipoise.log.Log.read`. Raises InputError for an offset in an archive of several
        partitions.
        """
        self._must_be_open()
        if self._appended is not None:
            return self._appended.read(from_offset, group)
        partitions = self.partitions() if group is None else self._of_group(group)
        if len(partitions) == 1:
            return self.part(partitions[0]).read(from_offset, group)
        if from_offset:
            raise InputError(f"{self.location}: offsets count in each of its {len(partitions)} partitions; name one with ?partition=N, or a group")
        return self._read_all(partitions, group)

    def _read_all(self, partitions: list[int], group: str | None) -> Iterator[Entry]:
        """Yields LogOpened once, although every partition begins with it."""
        log_id = ""
        for partition in partitions:
            for record in self.part(partition).read(0, group):
                if isinstance(record, FactRecord) and isinstance(record.event, LogOpened):
                    if log_id and record.event.log_id != log_id:
                        raise LogError(0, f"{self.location}: partition {partition} is of log {record.event.log_id!r}, others are of {log_id!r}")
                    if log_id:
                        continue
                    log_id = record.event.log_id
                yield record

    def read_beside(self, group: str) -> Iterator[Entry]:
        """Yields every record of the partition that holds `group`, so that offsets are those of one
        partition.
        """
        self._must_be_open()
        partitions = self._of_group(group)
        return self.part(partitions[0]).read() if len(partitions) == 1 else self._read_all(partitions, None)

    def _of_group(self, group: str) -> list[int]:
        """The partition of a group; for an unknown group all partitions, so that a reader can name
        the groups that exist.
        """
        partitions = self.partitions()
        if len(partitions) == 1:
            return partitions
        found = self.groups().get(group)
        return partitions if found is None else [found[0]]

    def count(self) -> int:
        """Returns the number of records, facts and decisions, without decoding them."""
        self._must_be_open()
        if self._appended is not None:
            return self._appended.count()
        return sum(self.part(partition).count() for partition in self.partitions())

    def group_names(self) -> set[str]:
        """Returns the names of all groups that have records."""
        return set(self.groups())

    def position(self) -> int:
        """Returns the offset of the next fact. Raises InputError for an archive of several
        partitions.
        """
        self._must_be_open()
        if self._appended is not None:
            return self._appended.position()
        partitions = self.partitions()
        if len(partitions) > 1:
            has = f"{self.location}: each of its {len(partitions)} partitions has its own offsets"
            raise InputError(f"{has}; name one with ?partition=N, or an archive (a folder, as archive/) as the target, which takes all")
        return self.part(partitions[0] if partitions else 0).position()

    # ------------------------------------------------------------------------------------ appending

    def append_fact(self, group: str, append_ms: int, event: Fact) -> FactRecord:
        """See `equipoise.log.Log.append_fact`."""
        return self._to_append().append_fact(group, append_ms, event)

    def append_payload(self, group: str, append_ms: int, kind: int, version: int, payload: bytes) -> FactRecord:
        """See `equipoise.log.Log.append_payload`."""
        return self._to_append().append_payload(group, append_ms, kind, version, payload)

    def append_decisions(self, decisions: Iterable[DecisionRecord]) -> None:
        """See `equipoise.log.Log.append_decisions`."""
        self._to_append().append_decisions(decisions)

    def append_row(self, row: Row) -> bool:
        """See `equipoise.log.Log.append_row`."""
        return self._to_append().append_row(row)

    def transaction(self) -> contextlib.AbstractContextManager[None]:
        """See `equipoise.log.Log.transaction`. Each transaction makes one file, so append
        many records in one.
        """
        return self._to_append().transaction()

    def _to_append(self) -> ArchivePartition:
        self._must_be_open()
        if self._appended is None:
            raise InputError(f'{self.location}: is open for reading; open it with mode "a" to append')
        return self._appended

    # -------------------------------------------------------------------------------------- closing

    def close(self) -> None:
        """Closes the files. A second close does nothing."""
        if not self._closed:
            self._closed = True
            if self._appended is not None:
                self._appended.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _must_be_open(self) -> None:
        if self._closed:
            raise InputError(f"{self.location}: is closed; open it again")


def clear(store: Store) -> None:
    """Removes every row of an archive and folders that become empty; leaves other files alone."""
    for part in all_parts(store):
        store.remove(part.name)
    store.remove_empty_folders()


def next_offsets(location: str) -> dict[int, int]:
    """Returns partition -> offset of the next fact to archive: everything before it is stored, and
    will stay. Reads names only. An archive that is not there yet has nothing.

    Raises InputError when another thing is there, GapError when a file is missing.
    """
    store = store_at(split_location(location)[0])
    if not store.exists():
        return {}
    check_archive(store)
    try:
        return {partition: covering(parts)[-1].next_offset for partition, parts in sorted(by_partition(all_parts(store)).items())}
    except MissingRowError as error:
        raise GapError(-1, f"{location}: {error}; restore the archive from a copy") from None
