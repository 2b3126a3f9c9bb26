"""Merges many small files of an archive into few large ones, while others read and append.

The name of a merged file says which rows it covers, so a reader that meets both takes each row
once. If a compaction is killed in between, the next run removes the covered files. Rows keep their
order and bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import attrs

from equipoise.events.errors import DamagedError, StorageError
from equipoise.events.log.parquet.files import Part, all_parts, batches, by_partition, check_archive, covering
from equipoise.events.log.parquet.writing import MOST_FILE_ROWS, Writer
from equipoise.events.log.storage import FileLock
from equipoise.events.log.stored import BrokenStoreError, FullStoreError

_HIDDEN = "compaction"
"""The word in the names of its unpublished files."""


@attrs.frozen(kw_only=True)
class Compacted:
    """The result of one run. `before`, `after`: numbers of files."""

    partitions: int
    before: int
    after: int
    merged_rows: int


def compact(root: Path, *, most_rows: int = MOST_FILE_ROWS, advance: Callable[[int], None] = lambda partitions: None) -> Compacted:
    """Merges consecutive files of the same partition and day up to `most_rows` rows each, and
    removes files that others cover.

    Raises InputError when `root` is not an archive or another process compacts it; DamagedError
    when a partition cannot be read, which then stays unchanged.
    """
    check_archive(root)
    lock = FileLock(root / ".lock-compaction", f"{root}: another process compacts it; let it end")
    try:
        for path in root.glob(f"date=*/.{_HIDDEN}.*"):  # what a killed compaction left
            path.unlink(missing_ok=True)
        parts = by_partition(all_parts(root))
        merged_rows = 0
        for partition in sorted(parts):
            try:
                merged_rows += _compact_partition(root, parts[partition], most_rows)
            except FullStoreError as error:
                raise StorageError(str(root), str(error), "make room there and run it again: it goes on from here, and nothing is lost") from None
            except BrokenStoreError as error:
                raise DamagedError(-1, f"partition {partition} of {root} cannot be read: {error}; restore it from a copy") from None
            advance(1)
        return Compacted(partitions=len(parts), before=sum(map(len, parts.values())), after=len(all_parts(root)), merged_rows=merged_rows)
    finally:
        lock.release()


def _compact_partition(root: Path, parts: list[Part], most_rows: int) -> int:
    kept = covering(parts)
    for part in parts:
        if part not in kept:
            part.path.unlink(missing_ok=True)
    merged_rows = 0
    for run in _runs(kept, most_rows):
        if len(run) > 1:
            _merge(root, run)
            merged_rows += sum(part.rows for part in run)
    return merged_rows


def _runs(parts: list[Part], most_rows: int) -> list[list[Part]]:
    """Groups consecutive files of one day with at most `most_rows` rows in all."""
    runs: list[list[Part]] = []
    rows = 0
    for part in parts:
        if runs and runs[-1][-1].day == part.day and rows + part.rows <= most_rows and runs[-1][-1].next_row == part.first_row:
            runs[-1].append(part)
            rows += part.rows
        else:
            runs.append([part])
            rows = part.rows
    return runs


def _merge(root: Path, run: list[Part]) -> None:
    """Replaces several files by one, which is there before they are removed."""
    first = run[0]
    writer = Writer(root, first.partition, first.first_row, first.first_offset, 0, hidden=_HIDDEN)
    try:
        for part in run:
            for batch in batches(part, batch_rows=32_768):
                writer.add_batch(batch, part.day, part.next_offset)
        merged = writer.publish()
    except BaseException:
        writer.discard()
        raise
    for part in run:
        if part.path not in merged:
            part.path.unlink(missing_ok=True)
