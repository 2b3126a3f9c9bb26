"""Reads archives on Spark: each file once, in columns, by one task, which deals its rows to the
buckets of groups that other tasks fold.

A row that all groups of a partition need, LogOpened, goes to each bucket with one of them. So does
what is wrong with the partition from some row on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, groupby
from operator import itemgetter
from typing import Any

import attrs

from equipoise.events.errors import DamagedError, GapError, InputError, LogError, RepeatError
from equipoise.events.records import Entry
from equipoise.log.parquet.archive_stores import split_location, store_at
from equipoise.log.parquet.files import COLUMNS, part_of
from equipoise.log.parquet.manifests import PartitionFiles
from equipoise.log.parquet.store import Offsets, batches_between, entries_of, problem_of, row_of
from equipoise.log.rows import Order, Row
from equipoise.log.stored import BrokenStoreError, MissingRowError, as_damage

SCHEMA = (
    "bucket int, place int, seq bigint, `group` string, partition int, offset bigint, append_ms bigint, kind int, version int, payload binary, "
    "number bigint, caused_by bigint, `index` bigint, checksum bigint"
)
"""Rows on their way: their bucket, the number of their partition among all of the job, their place
in it, and their columns in the archive. A row without a group is a problem: `payload` has it, and
no row of the partition from `seq` on is sound.
"""
BEFORE = -1
"""`seq` of what an earlier job has left of a group, in `payload`."""
_PROBLEMS: Mapping[str, type[Exception]] = {
    each.__name__: each for each in (BrokenStoreError, MissingRowError, DamagedError, GapError, RepeatError, InputError)
}


@attrs.frozen(kw_only=True)
class PiecePlace:
    """One partition of one archive. `location`: of the partition, for any process."""

    location: str
    partition: int
    files: PartitionFiles
    first_row: int = 0
    """Rows before are not read."""

    @property
    def next_row(self) -> int:
        """The row after its last one."""
        return self.files.next_row


@attrs.frozen(kw_only=True)
class Piece:
    """Rows of a partition that one file has: from `first_row` up to, but not including, `next_row`.
    `due`: offset of its first fact; None: unknown.
    """

    place: int
    location: str
    partition: int
    name: str
    first_row: int
    next_row: int
    due: int | None
    ends_offset: int
    problem: tuple[str, str] | None = None
    """What is wrong behind the partition's rows, in a piece without rows: kind of error, text."""

    def read(self) -> Iterator[tuple[int, Any]]:
        """Yields its rows: place of the first one in the partition, pyarrow.RecordBatch. Raises
        what is wrong with them, behind those that are sound. InputError when a worker of Spark does
        not see the archive, GapError when rows are missing.
        """
        if self.problem is not None:
            kind, text = self.problem
            raise _PROBLEMS[kind](text)
        store = store_at(split_location(self.location)[0])
        part = part_of(store, self.name)
        assert part is not None, "the name is of a file of an archive"
        row, offsets = self.first_row, Offsets(self.due)
        try:
            for batch in batches_between([part], self.first_row, self.next_row):
                sound, problem = offsets.check(batch)
                yield row, sound
                row += sound.num_rows
                if problem is not None:
                    raise problem
        except MissingRowError:
            if not store.exists():
                raise InputError(f"{store.location}: a worker of Spark does not see this archive; every worker must, under the same path") from None
            raise
        if offsets.due is not None and offsets.due < self.ends_offset:
            raise GapError(offsets.due, f"is missing; the next record has offset {self.ends_offset}. Restore the log from a copy")


def pieces_of(places: Sequence[PiecePlace]) -> list[Piece]:
    """Returns what there is to read, file by file."""
    found = []
    for number, place in enumerate(places):
        row, offset = place.first_row, 0
        for part in place.files.parts:
            if part.next_row <= place.first_row:
                offset = part.next_offset
                continue
            overlaps = part.first_row < row
            found.append(
                Piece(
                    place=number,
                    location=place.location,
                    partition=place.partition,
                    name=part.name,
                    first_row=row,
                    next_row=part.next_row,
                    due=None if overlaps else offset,
                    ends_offset=part.next_offset,
                )
            )
            row, offset = part.next_row, part.next_offset
        if place.files.problem:
            error = problem_of(place.files)
            found.append(
                Piece(
                    place=number,
                    location=place.location,
                    partition=place.partition,
                    name="",
                    first_row=max(row, place.next_row),
                    next_row=max(row, place.next_row),
                    due=None,
                    ends_offset=0,
                    problem=(type(error).__name__, str(error)),
                )
            )
    return found


@attrs.define
class Targets:
    """Where the rows of a partition go. `groups`: group -> its bucket. `every`: all buckets that
    have something of it, if only a file of which nobody knows whose it is.
    """

    groups: dict[str, int] = attrs.field(factory=dict)
    every: set[int] = attrs.field(factory=set)


@attrs.frozen
class PieceScan:
    """What the tasks that read have to know. `pieces`: task -> what it reads. `targets`: of each
    partition.
    """

    pieces: Sequence[Sequence[Piece]]
    targets: Sequence[Targets]

    def read(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yields the rows of the tasks whose numbers are in `batches`."""
        for batch in batches:
            for task in batch.column(0).to_pylist():
                for piece in self.pieces[task]:
                    yield from self._dealt(piece)

    def _dealt(self, piece: Piece) -> Iterator[Any]:
        targets = self.targets[piece.place]
        row = piece.first_row
        try:
            for row, batch in piece.read():
                yield from _rows(piece.place, row, batch, targets)
                row += batch.num_rows
        except (BrokenStoreError, LogError, InputError) as error:
            if isinstance(error, InputError) and is_first_attempt():
                raise  # a store that did not answer may, when Spark tries again
            offset = error.offset if isinstance(error, LogError) else None
            text = error.problem if isinstance(error, LogError) else str(error)
            yield _for_all(piece.place, row, {"payload": json.dumps([type(error).__name__, offset, text]).encode()}, targets)


def is_first_attempt() -> bool:
    """Returns whether Spark runs a task for the first time."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return context is not None and context.attemptNumber() == 0


def _rows(place: int, first: int, batch: Any, targets: Targets) -> Iterator[Any]:
    """The rows of groups that have a bucket; LogOpened for every bucket."""
    import numpy as np
    import pyarrow as pa

    if not batch.num_rows:
        return
    if first == 0:
        yield _for_all(place, 0, {name: batch.column(name)[0].as_py() for name in COLUMNS}, targets)
    named = batch.column("group")
    names = named.dictionary.to_pylist()
    of_names = np.array([targets.groups.get(name, -1) for name in names], np.int32)
    indices = np.frombuffer(named.indices.buffers()[1], np.int32, len(named), named.indices.offset * 4)  # to_numpy() would import pandas
    bucket = of_names[indices]
    wanted = np.flatnonzero(bucket >= 0)
    if not len(wanted):
        return
    rows = batch.take(pa.array(wanted))
    heads = [pa.array(bucket[wanted]), pa.array(np.full(len(wanted), place, np.int32)), pa.array(first + wanted)]
    columns = [rows.column(name).dictionary_decode() if name == "group" else rows.column(name) for name in COLUMNS]
    yield pa.RecordBatch.from_arrays([*heads, *columns], schema=schema())


def _for_all(place: int, seq: int, values: Mapping[str, Any], targets: Targets) -> Any:
    """The row once for each bucket with something of the partition."""
    import pyarrow as pa

    row = {**dict.fromkeys(COLUMNS), **values, "seq": seq}
    return pa.RecordBatch.from_pylist([{**row, "bucket": bucket, "place": place} for bucket in sorted(targets.every)], schema=schema())


def groups_in(batches: Iterator[Any]) -> Iterator[tuple[int, int, str | None, Iterator[tuple[Any, ...]]]]:
    """Yields bucket, place, group and rows (place in the partition, then COLUMNS) of sorted rows."""
    rows = chain.from_iterable(zip(*(column.to_pylist() for column in batch.columns), strict=True) for batch in batches)
    for (bucket, place, group), found in groupby(rows, key=itemgetter(0, 1, 3)):
        yield bucket, place, group, (each[2:] for each in found)


@attrs.frozen
class Begin:
    """What all groups of a partition share. `first`: its first row; None: it cannot be read.
    `problem`: the first row that is not sound, and what `problem_of` raises; None: all are.
    """

    first: tuple[Any, ...] | None = None
    problem: tuple[int, bytes] | None = None

    def entries(self, rows: Iterator[tuple[Any, ...]], partition: int, order: Order) -> Iterator[Entry]:
        """Yields the entries of a group as a reading of it alone does. `order`: where it begins."""
        with as_damage(lambda: order):
            yield from entries_of(self._sound(rows, partition), order, partition)

    def _sound(self, rows: Iterator[tuple[Any, ...]], partition: int) -> Iterator[Row]:
        if self.first is not None:
            rows = chain((self.first,), rows)
        for seq, *values in rows:
            if self.problem is not None and seq >= self.problem[0]:
                break
            yield row_of(values, partition)
        if self.problem is not None:
            kind, offset, text = json.loads(self.problem[1])
            raise _PROBLEMS[kind](*([] if offset is None else [offset]), text)


def schema() -> Any:
    """Returns SCHEMA as a pyarrow.Schema."""
    import pyarrow as pa

    from equipoise.log.parquet.files import schema as of_archive

    heads = [("bucket", pa.int32()), ("place", pa.int32()), ("seq", pa.int64())]
    return pa.schema([*heads, *(pa.field(each.name, each.type) for each in of_archive())])
