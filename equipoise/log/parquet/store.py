"""One partition of an archive as a log that stores rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import Any

import attrs

from equipoise.events.errors import DamagedError, GapError, InputError, RepeatError
from equipoise.events.fields import INT64_MAX
from equipoise.events.records import Entry
from equipoise.log.parquet.archive_store import Lock, Store
from equipoise.log.parquet.archive_writing import Writer, appender
from equipoise.log.parquet.files import COLUMNS, Part, all_parts, batches, counted, from_row, last_numbers, part_of, rows_of_groups
from equipoise.log.parquet.manifests import FOLDER, Appender, Manifest, PartitionFiles, PartitionState, look, place_of
from equipoise.log.parquet.snapshot import commit, look_at, opened_of
from equipoise.log.rows import BASE_KIND, BASE_NUMBER, BASE_VERSION, BaseRow, DecisionRow, FactRow, Order, Row
from equipoise.log.stored import BrokenStoreError, MissingRowError, Mode, StoredLog, failed_write


class ArchivePartition(StoredLog):
    """One partition of an archive. `equipoise.log.parquet.files` describes its files.

    A reading of one group checks only the offsets of other groups' rows, so damage to one group's
    rows does not keep others from being read. `files`: its files, if they are known. `last_day`:
    files that are entirely after it are not read; None: all are.
    """

    def __init__(
        self, store: Store, partition: int, mode: Mode, location: str, files: PartitionFiles | None = None, last_day: str | None = None
    ) -> None:
        super().__init__(location, mode)
        self._last_day = last_day
        self._looks = files is None
        """Each reading looks again at what is there."""
        self.store = store
        self.partition: int = partition
        self._lock: Lock | None = None
        self._writer: Writer | None = None
        self._known_rows = 0
        """Rows after which `_order` is the order."""
        self._log: tuple[int, int | None] = 0, None
        """How many partitions the log has, and the offset of its next fact here; 0, None: unknown."""
        try:
            if mode != "r":
                refusal = f"{location}: another process appends to it; a log has one writer, so close the other one"
                self._lock = store.lock(appender(partition), refusal)
                store.sweep(appender(partition))
            if mode == "w":
                clear(store, partition)
            with self._as_damage():
                self._files = self._look() if files is None else files.until_day(last_day)
                if mode != "r":
                    self._order = self._last_order()
        except BaseException:
            self._close()
            raise

    def _look(self) -> PartitionFiles:
        """Returns what the partition holds now. Raises BrokenStoreError when it cannot be appended
        to.
        """
        files = look_at(self.store, self.partition)
        if self.mode != "r":
            if files.appender is Appender.REFUSE:
                raise problem_of(files)
            if files.appender is Appender.ADOPT:
                ahead = files.ahead
                manifest = self._committed(files, lambda newest: newest.adopted(ahead))
                files = look(self.partition, manifest.files, manifest)
            files = attrs.evolve(files, problem="")
        return files.until_day(self._last_day)

    # -------------------------------------------------------------------------------------- reading

    def _first_row(self, from_offset: int) -> int:
        """A row at or before the fact at `from_offset`, at the beginning of a file."""
        parts = self._files.parts
        return max((part.first_row for part in parts if part.first_offset <= from_offset and part.next_offset > part.first_offset), default=0)

    def _batches(self, from_offset: int) -> Iterator[Any]:
        """Batches of all rows from `_first_row` on. Raises what is wrong behind them."""
        if self.mode == "r" and self._looks:
            self._files = self._look()
        files = self._files
        yield from batches_between(files.parts, self._first_row(from_offset), files.next_row)
        if files.problem:
            raise problem_of(files)

    def _rows(self, from_offset: int) -> Iterator[Row]:
        reached = from_offset == 0
        for batch in self._batches(from_offset):
            for row in _rows_of(batch, self.partition):
                reached = reached or (isinstance(row, FactRow) and row.offset == from_offset)
                if reached:
                    yield row

    def _read(self, from_offset: int, group: str | None) -> Iterator[Entry]:
        if group is None:
            yield from super()._read(from_offset, None)
            return
        order = Order(from_offset)
        found = 0
        with self._as_damage(order):
            order.log_id = self._log_id() if from_offset else ""
            for entry in entries_of(self._rows_of_group(from_offset, group), order, self.partition):
                found += 1
                yield entry
        if from_offset and not found and from_offset > self.position():
            raise InputError(f"{self.location}: offset {from_offset} is past the end of the log (next offset {self.position()})")

    def _rows_of_group(self, from_offset: int, group: str) -> Iterator[Row]:
        offsets = Offsets(0 if not from_offset else None)
        for batch in self._batches(from_offset):
            sound, problem = offsets.check(batch)
            for row in _rows_of(_of_group(sound, group), self.partition):
                if not (isinstance(row, FactRow) and (row.offset < from_offset or row.belongs_to_no_group)):
                    yield row
            if problem is not None:
                raise problem

    def groups(self) -> dict[str, int]:
        """Returns group -> its number of records, facts and decisions, read from one column. Raises
        DamagedError.
        """
        counts, problems = self.readable_groups()
        if problems:
            raise DamagedError(-1, f"{self.location} cannot be read: {problems[0]}; restore the log from a copy")
        return counts

    def readable_groups(self) -> tuple[dict[str, int], list[str]]:
        """Returns `groups` of the readable files, and the problems of the others. Of files that say
        what they hold, only that is read.
        """
        counts: dict[str, int] = {}
        problems: list[str] = []
        row = 0
        for part in (*self._files.parts, *self._files.behind):
            skip, row = max(0, row - part.first_row), part.next_row
            try:
                found = rows_of_groups(part) if not skip else counted(from_row(batches(part, ("group",), 65_536), skip))
            except BrokenStoreError as error:
                problems.append(str(error))
            else:
                for group, rows in found.items():
                    counts[group] = counts.get(group, 0) + rows
        return dict(sorted(counts.items())), problems + [self._files.problem] * bool(self._files.problem)

    def _last_order(self) -> Order:
        self._known_rows = self._count()
        return self._order_after(self._stored_position())

    def _order_after(self, position: int) -> Order:
        if not position:
            return Order()
        begun = self._begun()
        if position == begun.position:
            return begun
        order = self._order = Order(position - 1, self._log_id())
        for row in self._rows(position - 1):
            order.take(row)
        order.begins_offset, order.bases = begun.begins_offset, begun.bases
        order.numbers = {**begun.numbers, **_numbers(self._files.parts)}
        order.from_the_middle = False
        return order

    def _begun(self) -> Order:
        """The order behind LogOpened and the states that the partition begins with."""
        order = Order()
        for row in self._rows(0):
            if isinstance(row, DecisionRow) or (isinstance(row, FactRow) and row.offset > 0):
                break
            order.take(row)
        return order

    def _stored_position(self) -> int:
        if self._writer is not None:
            return self._writer.next_offset
        return self._files.next_offset

    def _count(self) -> int:
        if self._writer is not None:
            return self._writer.next_row
        return self._files.next_row

    # ------------------------------------------------------------------------------------ appending

    def of_log(self, partitions: int, end_offset: int) -> None:
        """Notes, for the next commit, how many partitions the log has that is copied, and the
        offset of its next fact in this one.
        """
        self._log = partitions, end_offset

    def _begin(self) -> None:
        self._files = self._look()
        if self._count() != self._known_rows:  # in a store without locks another process archives the same log
            self._order = self._last_order()
        latest_ms = _latest_ms(self._files.parts)
        self._writer = Writer(self.store, self.partition, self._count(), self._stored_position(), latest_ms, numbers=self._order.numbers)

    def _store(self, row: Row) -> None:
        assert self._writer is not None, "rows are stored within a transaction"
        self._writer.add(row)

    def _commit(self) -> None:
        assert self._writer is not None, "a transaction has begun"
        names = self._writer.publish()
        self._known_rows = self._writer.next_row
        self._writer = None
        if names:
            new = [part for name in names if (part := part_of(self.store, name)) is not None]
            manifest = self._committed(self._files, lambda newest: self._appended(newest, new))
            self._files = look(self.partition, manifest.files, manifest)

    def _committed(self, files: PartitionFiles, change: Callable[[Manifest], Manifest | None]) -> Manifest:
        try:
            return commit(self.store, files, change)
        except OSError as error:
            raise failed_write(error) from None

    def _appended(self, newest: Manifest, new: Sequence[Part]) -> Manifest | None:
        """Returns the next manifest, with these files; None: another process has stored their rows
        meanwhile. Raises BrokenStoreError when it has stored others.
        """
        first, last = new[0].first_row, min(new[-1].next_row, newest.next_row)
        if first < last and list(_checksums(newest.files, first, last)) != list(_checksums(new, first, last)):
            named = {part.name for part in newest.files}
            for part in new:
                if part.name not in named:
                    self.store.remove(part.name)
            raise BrokenStoreError("another process has appended other records meanwhile; a log has one writer")
        if new[-1].next_row <= newest.next_row:
            return None
        changed = newest.appended(new)
        opened = opened_of(changed.files[0]) if not newest.partitions else None
        partitions, end_offset = self._log
        return attrs.evolve(
            changed,
            log_id=self._order.log_id,
            partitions=max(newest.partitions, partitions, 0 if opened is None else opened.partitions),
            end_offset=newest.end_offset if end_offset is None else end_offset,
        )

    def _roll_back(self) -> None:
        if self._writer is not None:
            self._writer.discard()
            self._writer = None
        self._files = self._look()

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.discard()
        if self._lock is not None:
            self._lock.release()


def problem_of(files: PartitionFiles) -> BrokenStoreError:
    """Returns the error for what is wrong with the files of a partition."""
    kind = MissingRowError if files.state in (PartitionState.HOLED, PartitionState.LACKING, PartitionState.ABSENT) else BrokenStoreError
    return kind(files.problem)


def batches_between(parts: Sequence[Part], row: int, last: int) -> Iterator[Any]:
    """Yields batches of the rows from `row` up to, but not including, `last`. Raises
    BrokenStoreError. Raises MissingRowError for rows that no file has.
    """
    for part in parts:
        if not part.first_row <= row < min(part.next_row, last):
            continue
        skip = row - part.first_row
        for batch in batches(part):
            taken = batch.slice(skip, max(0, last - row))
            skip = max(0, skip - batch.num_rows)
            row += taken.num_rows
            if taken.num_rows:
                yield taken
    if row < last:
        raise MissingRowError(f"row {row} of partition {parts[0].partition}" if parts else f"row {row}")


def _checksums(parts: Sequence[Part], row: int, last: int) -> Iterator[int]:
    """The checksums of these rows, which cover all that is in them."""
    for batch in batches_between(parts, row, last):
        yield from batch.column("checksum").to_pylist()


def clear(store: Store, partition: int | None = None) -> None:
    """Removes every row of an archive, or of a partition, and folders that become empty; leaves
    other files alone.
    """
    for part in all_parts(store):
        if partition in (None, part.partition):
            store.remove(part.name)
    for name in store.names(FOLDER):  # last: until then they tell that files are missing
        place = place_of(name)
        if place is not None and partition in (None, place[0]):
            store.remove(name)
    store.remove_empty_folders()


def _latest_ms(parts: Sequence[Part]) -> int:
    """The latest append time, or a later time of the last file's day."""
    latest = 0
    for part in parts[-1:]:
        for batch in batches(part, ("append_ms",), 65_536):
            latest = max(latest, *(each for each in batch.column(0).to_pylist() if each is not None), 0)
    return latest


def _numbers(parts: Sequence[Part]) -> dict[str, int]:
    """Group -> number of its last decision: as the last file says, or the last one that says it and
    the rows behind that.
    """
    numbers: dict[str, int] = {}
    rest: list[Part] = []
    for part in reversed(parts):
        saved = last_numbers(part)
        if saved is not None:
            numbers = saved
            break
        rest.append(part)
    for part in reversed(rest):
        for batch in batches(part, ("group", "number"), 65_536):
            for group, number in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True):
                if number is not None and number != BASE_NUMBER:
                    numbers[group] = number
    return numbers


def _rows_of(batch: Any, partition: int) -> Iterator[Row]:
    """Yields the rows of a batch. Raises BrokenStoreError when columns are set that this kind of
    record does not have; `Order` checks the rest.
    """
    return (row_of(values, partition) for values in zip(*(batch.column(name).to_pylist() for name in COLUMNS), strict=True))


def row_of(values: Sequence[Any], partition: int) -> Row:
    """Returns the row with these values of COLUMNS. Raises what `_rows_of` raises."""
    group, of, offset, append_ms, kind, version, payload, number, caused_by, index, checksum = values
    if of != partition:
        raise BrokenStoreError(f"a row of partition {of!r:.20} is in a file of partition {partition}")
    if number is None and caused_by is None and index is None:
        return FactRow(group, offset, append_ms, kind, version, payload, checksum)
    if (offset, kind, version, number, index) == (None, BASE_KIND, BASE_VERSION, BASE_NUMBER, 0):
        return BaseRow(group, caused_by, append_ms, payload, checksum)
    if offset is None and append_ms is None:
        return DecisionRow(group, number, caused_by, index, kind, version, payload, checksum)
    raise BrokenStoreError("a row is neither a fact nor a decision")


def entries_of(rows: Iterator[Row], order: Order, partition: int) -> Iterator[Entry]:
    """Yields the entries of one group of a partition. `rows`: its own and LogOpened, in order;
    those of other groups between them are there, and not checked.
    """
    for row in rows:
        if isinstance(row, FactRow):
            order.position = row.offset
        elif not order.started:
            continue  # of a fact before the first of `rows`
        order.take(row)
        yield order.entry(row, partition)


def _of_group(batch: Any, group: str) -> Any:
    """The rows of one group, and of none."""
    import pyarrow.compute as pc

    named = batch.column("group")  # a dictionary: `batches` reads it as one. A scalar made of a Python string would import pandas
    wanted = [named.dictionary[at] for at, name in enumerate(named.dictionary.to_pylist()) if name in (group, "")]
    if not wanted:
        return batch.slice(0, 0)
    return batch.filter(reduce(pc.or_, (pc.equal(named, each) for each in wanted)))


class Offsets:
    """Checks, batch by batch and without building rows, that each offset of a partition occurs once
    and in order. `due`: the first one; None: whichever comes first.
    """

    def __init__(self, due: int | None) -> None:
        self.due = due
        self._begins: int | None = None
        """First fact of a log that begins at a base, which follows LogOpened."""

    def check(self, batch: Any) -> tuple[Any, GapError | RepeatError | None]:
        """Returns the batch up to the first wrong offset, and the error there."""
        import numpy as np

        there = batch.column("offset").drop_null()
        if not len(there):
            return batch, None
        offsets = np.frombuffer(there.buffers()[1], np.int64, len(there), there.offset * 8)  # to_numpy() would import pandas, for its 60 MB
        if self.due is None:
            self.due = int(offsets[0])
        if self._begins is None and self.due <= 1:
            self._begins = _begins_in(batch)
        due_offsets = self.due + np.arange(len(offsets))
        if self._begins is not None and self.due <= 1:
            due_offsets[1 - self.due :] += self._begins - 1
        wrong = np.flatnonzero(offsets != due_offsets)
        if not len(wrong):
            self.due = min(int(offsets[-1]) + 1, INT64_MAX)
            return batch, None
        first = int(wrong[0])
        due, came = int(due_offsets[first]), int(offsets[first])
        at = [row for row, offset in enumerate(batch.column("offset").to_pylist()) if offset is not None]
        kept = batch.slice(0, at[first])
        if came > due:
            return kept, GapError(due, f"is missing; the next record has offset {came}. Restore the log from a copy")
        return kept, RepeatError(came, f"came again where offset {due} was due; restore the log from a copy")


def _begins_in(batch: Any) -> int | None:
    """First fact of the log whose states at a base are in the batch; None: there is none."""
    numbers = batch.column("number").to_pylist()
    if BASE_NUMBER not in numbers:
        return None
    row = next(_rows_of(batch.slice(numbers.index(BASE_NUMBER), 1), batch.column("partition")[0].as_py()))
    return row.entry().begins_offset if isinstance(row, BaseRow) else None
