"""Merges many small files of an archive into few large ones, while others read and append.

The name of a merged file says which rows it covers, so a reader that meets both takes each row
once. If a compaction is killed in between, the next run removes the covered files. Rows keep their
order and bytes.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from equipoise.events.errors import DamagedError, InputError, StorageError
from equipoise.log.parquet.archive_store import Store
from equipoise.log.parquet.archive_writing import MOST_FILE_ROWS, Writer
from equipoise.log.parquet.files import Part, all_parts, batches, by_partition, check_archive, covering, from_row, last_numbers
from equipoise.log.stored import BrokenStoreError, FullStoreError

_HIDDEN = "compaction"
"""The word in the names of its unpublished files."""


@attrs.frozen(kw_only=True)
class Compacted:
    """The result of one run. `before`, `after`: numbers of files."""

    partitions: int
    before: int
    after: int
    merged_rows: int


def compact(store: Store, *, most_rows: int = MOST_FILE_ROWS, advance: Callable[[int], None] = lambda partitions: None) -> Compacted:
    """Merges consecutive files of the same partition and day up to `most_rows` rows each, and
    removes files that others cover.

    Raises InputError when `store` is not an archive or another process compacts it; DamagedError
    when a partition cannot be read, which then stays unchanged. Raises StorageError when the store
    cannot be written.
    """
    check_archive(store)
    another = f"{store.location}: another process compacts it; let it end"
    lock = store.lock(_HIDDEN, another)
    try:
        store.sweep(_HIDDEN)
        parts = by_partition(all_parts(store))
        merged_rows = 0
        for partition in sorted(parts):
            try:
                merged_rows += _compact_partition(store, parts[partition], most_rows)
            except FileNotFoundError:
                raise InputError(another) from None
            except FullStoreError as error:
                fix = "free disk space and run the command again: it resumes here, and no record is lost"
                raise StorageError(store.location, str(error), fix) from None
            except BrokenStoreError as error:
                raise DamagedError(-1, f"partition {partition} of {store.location} cannot be read: {error}; restore it from a copy") from None
            advance(1)
        return Compacted(partitions=len(parts), before=sum(map(len, parts.values())), after=len(all_parts(store)), merged_rows=merged_rows)
    finally:
        if lock is not None:
            lock.release()


def _compact_partition(store: Store, parts: list[Part], most_rows: int) -> int:
    kept = covering(parts)
    for part in parts:
        if part not in kept:
            store.remove(part.name)
    merged_rows = 0
    for run in _runs(kept, most_rows):
        if len(run) > 1:
            _merge(store, run)
            merged_rows += sum(part.rows for part in run)
    return merged_rows


def _runs(parts: list[Part], most_rows: int) -> list[list[Part]]:
    """Groups consecutive files of one day with at most `most_rows` rows in all."""
    runs: list[list[Part]] = []
    rows = 0
    for part in parts:
        if runs and runs[-1][-1].day == part.day and rows + part.rows <= most_rows:
            runs[-1].append(part)
            rows += part.rows
        else:
            runs.append([part])
            rows = part.rows
    return runs


def _merge(store: Store, run: list[Part]) -> None:
    """Replaces several files by one, which is there before they are removed."""
    first = run[0]
    writer = Writer(store, first.partition, first.first_row, first.first_offset, 0, hidden=_HIDDEN, numbers=last_numbers(run[-1]))
    try:
        for part in run:
            for batch in from_row(batches(part, batch_rows=32_768), writer.next_row - part.first_row):
                writer.add_batch(batch, part.day, part.next_offset)
        merged = writer.publish()
    except BaseException:
        writer.discard()
        raise
    for part in run:
        if part.name not in merged:
            store.remove(part.name)
