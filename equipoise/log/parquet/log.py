"""An archive as a log: ``archive/[?partition=N]``, a Parquet dataset
(`equipoise.log.parquet.files`) that any other reader of Parquet can read, in a folder or in
an object store (``s3://bucket/archive/``).

It may hold several partitions of one log, as Kafka does. They are read one after the other; a group
is in one of them. Appends go to the named partition; default: partition 0.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from types import TracebackType
from typing import Self

from equipoise.events.errors import DamagedError, GapError, InputError, LogError
from equipoise.events.facts import Fact, LogOpened
from equipoise.events.records import DecisionRecord, Entry, FactRecord
from equipoise.log.parquet.archive_stores import split_location, store_at
from equipoise.log.parquet.files import MOST_PARTITIONS, check_archive, is_archive, make_archive, pyarrow
from equipoise.log.parquet.manifests import Appender, Extent, PartitionFiles, PartitionState, extent_of
from equipoise.log.parquet.snapshot import snapshot
from equipoise.log.parquet.store import ArchivePartition, clear
from equipoise.log.rows import Row
from equipoise.log.stored import Mode


class ArchiveLog:
    """An archive as a log. See the module; `equipoise.log.Log` documents the methods."""

    def __init__(self, location: str, mode: Mode) -> None:
        pyarrow()
        self.location = location
        place, self._named = split_location(location)
        self.store = store_at(place)
        self.mode = mode
        self._appended: ArchivePartition | None = None
        self._read: dict[int, PartitionFiles] = {}
        """What was to be read so far."""
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

    def part(self, partition: int, mode: Mode = "r", files: PartitionFiles | None = None, last_day: str | None = None) -> ArchivePartition:
        """Opens one of its partitions. `files`, `last_day`: see `ArchivePartition`; None: those that
        are there now. Raises InputError for a partition beyond the most that an archive has.
        """
        if partition >= MOST_PARTITIONS:
            raise InputError(f"{self.location}: partition {partition}; an archive has at most {MOST_PARTITIONS}")
        location = self.location if self._named is not None else f"{self.location}?partition={partition}"
        if mode == "r" and files is None:
            files = self.files().get(partition) or PartitionFiles(partition=partition, state=PartitionState.EMPTY)
        return ArchivePartition(self.store, partition, mode, location, files, last_day)

    @property
    def absolute_location(self) -> str:
        """Its location without a partition, for processes in other folders."""
        return self.store.absolute

    def partitions(self) -> list[int]:
        """Returns the partitions to read, in rising order: those that are there, and those of which
        nothing is there though the log has them.
        """
        return sorted(self.files())

    def files(self) -> dict[int, PartitionFiles]:
        """Returns partition -> its files as they are now. Lists the archive once."""
        self._must_be_open()
        there = snapshot(self.store).partitions
        return {partition: files for partition, files in there.items() if self._named in (None, partition)}

    def extent(self) -> Extent:
        """Returns up to where the readings of this log went, in how many of the partitions that they
        asked for.
        """
        return extent_of(self._read, 0)

    def _partition_of_one(self) -> None:
        if self._named is not None and not any(files.parts for files in self.files().values()):
            raise InputError(f"{self.location}: has no partition {self._named}; name another one, or none to read all")

    def groups(self) -> dict[str, tuple[int, int]]:
        """Returns group -> (its partition, its number of records), in the order of names. Raises
        DamagedError, LogError for a group in two partitions.
        """
        groups, problems = self._readable_groups(self.files())
        if problems:
            raise DamagedError(-1, f"{self.location} cannot be read: {problems[0]}; restore the log from a copy")
        return groups

    def _readable_groups(self, files: Mapping[int, PartitionFiles]) -> tuple[dict[str, tuple[int, int]], list[str]]:
        """`groups` of the files that can be read, and the problems of the others."""
        found: list[tuple[str, int, int]] = []
        problems: list[str] = []
        for partition, each in files.items():
            counts, its_problems = self.part(partition, files=each).readable_groups()
            found += [(group, partition, count) for group, count in counts.items()]
            problems += its_problems
        groups: dict[str, tuple[int, int]] = {}
        for group, partition, count in sorted(found):
            if group in groups:
                where = f"partitions {groups[group][0]} and {partition}"
                raise LogError(-1, f"{self.location}: group {group!r} is in {where}; a group has one, so make the archive again")
            groups[group] = partition, count
        return groups, problems

    # -------------------------------------------------------------------------------------- reading

    def read(self, from_offset: int = 0, group: str | None = None) -> Iterator[Entry]:
        """Yields records in order, from the fact at `from_offset` on. See
        `equipoise.log.Log.read`. Raises InputError for an offset in an archive of several
        partitions.
        """
        self._must_be_open()
        if self._appended is not None:
            return self._appended.read(from_offset, group)
        files = self.files() if group is None else self._of_group(group)
        self._read |= files
        if len(files) == 1:
            return next(iter(self._parts(files))).read(from_offset, group)
        if from_offset:
            raise InputError(f"{self.location}: offsets count in each of its {len(files)} partitions; name one with ?partition=N, or a group")
        return chain.from_iterable(self._readings(files, group))

    def readings(self, group: str | None = None) -> Iterator[Iterator[Entry]]:
        """See `equipoise.log.Archive.readings`."""
        files = self.files() if group is None else self._of_group(group)
        self._read |= files
        return self._readings({partition: each.strict() for partition, each in files.items()}, group)

    def _parts(self, files: Mapping[int, PartitionFiles]) -> Iterator[ArchivePartition]:
        return (self.part(partition, files=each) for partition, each in files.items())

    def _readings(self, files: Mapping[int, PartitionFiles], group: str | None) -> Iterator[Iterator[Entry]]:
        """LogOpened is yielded once, although every partition begins with it."""
        log_id = ""

        def checked(part: ArchivePartition) -> Iterator[Entry]:
            nonlocal log_id
            for record in part.read(0, group):
                if isinstance(record, FactRecord) and isinstance(record.event, LogOpened):
                    if log_id and record.event.log_id != log_id:
                        raise LogError(0, f"{self.location}: partition {part.partition} is of log {record.event.log_id!r}, others are of {log_id!r}")
                    if log_id:
                        continue
                    log_id = record.event.log_id
                yield record

        return map(checked, self._parts(files))

    def read_beside(self, group: str) -> Iterator[Entry]:
        """Yields every record of the partition that holds `group`, so that offsets are those of one
        partition.
        """
        self._must_be_open()
        files = self._of_group(group)
        return next(iter(self._parts(files))).read() if len(files) == 1 else chain.from_iterable(self._readings(files, None))

    def _of_group(self, group: str) -> dict[int, PartitionFiles]:
        """The partition of a group; for an unknown group all partitions, so that a reader can name
        the groups that exist.
        """
        files = self.files()
        if len(files) == 1:
            return files
        found = self._readable_groups(files)[0].get(group)
        return files if found is None else {found[0]: files[found[0]]}

    def count(self) -> int:
        """Returns the number of records, facts and decisions, without decoding them."""
        self._must_be_open()
        if self._appended is not None:
            return self._appended.count()
        return sum(files.next_row for files in self.files().values())

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
        files = self.files()
        if len(files) > 1:
            has = f"{self.location}: each of its {len(files)} partitions has its own offsets"
            raise InputError(f"{has}; name one with ?partition=N, or an archive (a folder, as archive/) as the target, which takes all")
        return next(iter(files.values())).next_offset if files else 0

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

    def of_log(self, partitions: int, end_offset: int) -> None:
        """See `ArchivePartition.of_log`."""
        self._to_append().of_log(partitions, end_offset)

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


def next_offsets(location: str) -> dict[int, int]:
    """Returns partition -> offset of the next fact to archive: everything before it is stored, and
    will stay. Reads names and manifests only. An archive that is not there yet has nothing.

    Raises InputError when another thing is there, GapError when a file is missing.
    """
    store = store_at(split_location(location)[0])
    if not store.exists():
        return {}
    check_archive(store)
    files = snapshot(store).partitions
    problem = next((each.problem for each in files.values() if each.appender is Appender.REFUSE), "")
    if problem:
        raise GapError(-1, f"{location}: {problem}; restore the archive from a copy")
    return {partition: each.next_offset for partition, each in files.items() if each.parts}
