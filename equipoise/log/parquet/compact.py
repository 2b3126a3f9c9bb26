"""Merges many small files of an archive into few large ones, while others read and append.

A merged file is part of the archive when a manifest names it, in place of the files whose rows it
has. Those stay for a day, so that readers that have begun read to their end. Rows keep their order
and bytes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

import attrs

from equipoise.events.errors import DamagedError, StorageError
from equipoise.log.parquet.archive_store import Store
from equipoise.log.parquet.archive_writing import MOST_FILE_ROWS, Writer
from equipoise.log.parquet.files import Part, all_parts, batches, by_partition, check_archive, from_row, last_numbers, part_of
from equipoise.log.parquet.manifests import Compactor, Manifest, PartitionFiles
from equipoise.log.parquet.snapshot import commit, snapshot
from equipoise.log.stored import BrokenStoreError, FullStoreError

_HIDDEN = "compaction"
"""The word in the names of its unpublished files."""


@attrs.frozen(kw_only=True)
class Compacted:
    """The result of one run. `before`, `after`: numbers of files that readers read."""

    partitions: int
    before: int
    after: int
    merged_rows: int


def compact(
    store: Store, *, most_rows: int = MOST_FILE_ROWS, now_ms: int | None = None, advance: Callable[[int], None] = lambda partitions: None
) -> Compacted:
    """Merges consecutive files of the same partition and day up to `most_rows` rows each. The former
    files stay for a day, for readers that have begun; a later run removes them. `now_ms`: the time;
    None: that of this machine.

    Raises InputError when `store` is not an archive or another process compacts it; DamagedError
    when a partition cannot be read, which then stays unchanged. Raises StorageError when the store
    cannot be written.
    """
    check_archive(store)
    at_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    lock = store.lock(_HIDDEN, f"{store.location}: another process compacts it; let it end")
    try:
        store.sweep(_HIDDEN)
        before = snapshot(store).partitions
        merged_rows = after = 0
        for partition, files in before.items():
            try:
                done, left = _compact_partition(store, files, most_rows, at_ms)
            except FullStoreError as error:
                fix = "free disk space and run the command again: it resumes here, and no record is lost"
                raise StorageError(store.location, str(error), fix) from None
            except BrokenStoreError as error:
                raise DamagedError(-1, f"partition {partition} of {store.location} cannot be read: {error}; restore it from a copy") from None
            merged_rows, after = merged_rows + done, after + left
            advance(1)
        return Compacted(partitions=len(before), before=sum(len(each.parts) for each in before.values()), after=after, merged_rows=merged_rows)
    finally:
        if lock is not None:
            lock.release()


def _compact_partition(store: Store, files: PartitionFiles, most_rows: int, now_ms: int) -> tuple[int, int]:
    """Returns how many rows were merged, and how many files the partition has now."""
    if files.compactor is Compactor.REFUSE:
        raise BrokenStoreError(files.problem)
    if files.compactor is Compactor.NOTHING:
        return 0, 0
    merged_rows = 0
    manifest = files.manifest
    for run in _runs(files.parts, most_rows):
        if len(run) > 1:
            merged = _merge(store, run)
            manifest = commit(store, attrs.evolve(files, manifest=manifest), partial(_replaced, run=run, by=merged, now_ms=now_ms))
            merged_rows += sum(part.rows for part in run)
    return merged_rows, len(_tidy(store, attrs.evolve(files, manifest=manifest), now_ms).files)


def _replaced(newest: Manifest, run: Sequence[Part], by: Sequence[Part], now_ms: int) -> Manifest | None:
    return newest.replaced(run, by, now_ms)


def _tidy(store: Store, files: PartitionFiles, now_ms: int) -> Manifest:
    """Removes the files that no reader needs since a day, and notes those that it meets first."""
    there = by_partition(all_parts(store)).get(files.partition, [])

    def tidied(newest: Manifest) -> Manifest | None:
        changed, gone = newest.tidied(there, now_ms)
        for name in gone:
            store.remove(name)
        return None if changed.unused == newest.unused and newest.number else changed

    return commit(store, files, tidied)


def _runs(parts: Sequence[Part], most_rows: int) -> list[list[Part]]:
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


def _merge(store: Store, run: list[Part]) -> list[Part]:
    """Writes one file with the rows of several, and returns it."""
    first = run[0]
    writer = Writer(store, first.partition, first.first_row, first.first_offset, 0, hidden=_HIDDEN, numbers=last_numbers(run[-1]))
    try:
        for part in run:
            for batch in from_row(batches(part, batch_rows=32_768), max(0, writer.next_row - part.first_row)):
                writer.add_batch(batch, part.day, part.next_offset)
        return [merged for name in writer.publish() if (merged := part_of(store, name)) is not None]
    except BaseException:
        writer.discard()
        raise
