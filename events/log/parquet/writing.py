"""Writes files of an archive: collects rows into row groups and row groups into files. A file
becomes visible when it is complete on the disk.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from pathlib import Path
from typing import Any

from equipoise.events.log.parquet.files import COLUMNS, DAY_MS, crc32_of, day_of, part_path, pyarrow, schema
from equipoise.events.log.rows import BASE_KIND, BASE_NUMBER, BASE_VERSION, BaseRow, FactRow, Row
from equipoise.events.log.stored import BrokenStoreError, failed_write

MOST_FILE_ROWS = 1_000_000
"""Most rows of a file: some 50 MB of reports."""
_GROUP_ROWS = 32_768
_GROUP_BYTES = 8 << 20
"""A row group is closed at either limit. A reader holds one at a time."""
_LEVEL = 3  # zstd's own default
_MOST_ATTEMPTS = 10


def appender(partition: int) -> str:
    """Returns the word for the appender of a partition. Unpublished files are named
    ``.<word>.<something>``.
    """
    return f"p{partition:05}"


class Writer:
    """Writes the rows of one partition to files. `publish` makes them part of the archive,
    `discard` removes them.

    `hidden`: the word in the names of its unfinished files; default: that of the partition's
    appender.
    """

    def __init__(self, root: Path, partition: int, first_row: int, first_offset: int, latest_ms: int, *, hidden: str = "") -> None:
        self._hidden = hidden or appender(partition)
        self._root = root
        self._partition = partition
        self.next_row = first_row
        self.next_offset = first_offset
        self.latest_ms = latest_ms
        self._file: _OpenFile | None = None
        self._done: list[tuple[Path, Path]] = []
        self._columns: list[list[Any]] = [[] for _ in COLUMNS]
        self._bytes = 0

    def add(self, row: Row) -> None:
        """Adds a row. Raises BrokenStoreError."""
        if isinstance(row, FactRow):
            day_before, self.latest_ms = self.latest_ms // DAY_MS, max(self.latest_ms, row.append_ms)
            if self._file is not None and (self.latest_ms // DAY_MS != day_before or self.next_row - self._file.first_row >= MOST_FILE_ROWS):
                self._end_file()
            what = (row.kind, row.version, row.payload)
            values: tuple[Any, ...] = (row.group, self._partition, row.offset, row.append_ms, *what, None, None, None, row.checksum)
            next_offset = row.offset + 1
        elif isinstance(row, BaseRow):
            values = (
                row.group, self._partition, None, row.append_ms, BASE_KIND, BASE_VERSION, row.payload, BASE_NUMBER, row.offset, 0, row.checksum
            )  # fmt: skip
            next_offset = row.entry().begins_offset
        else:
            about = (row.number, row.caused_by, row.index, row.checksum)
            values = (row.group, self._partition, None, None, row.kind, row.version, row.payload, *about)
            next_offset = self.next_offset
        if self._file is None:
            self._file = _OpenFile(self._root, self._hidden, day_of(self.latest_ms), self.next_row, self.next_offset)
        for column, value in zip(self._columns, values, strict=True):
            column.append(value)
        self._bytes += len(row.payload)
        self.next_row += 1
        self.next_offset = next_offset
        if self._bytes >= _GROUP_BYTES or len(self._columns[0]) >= _GROUP_ROWS:
            self._end_group()

    def add_batch(self, batch: Any, day: str, next_offset: int) -> None:
        """Adds rows as a pyarrow.RecordBatch, for compaction: unchanged, for `day`, into one file.
        `next_offset`: of the fact behind the file that they come from.
        """
        if self._file is None:
            self._file = _OpenFile(self._root, self._hidden, day, self.next_row, self.next_offset)
        self.next_row += batch.num_rows
        self.next_offset = next_offset
        self._file.write(batch.cast(schema()))

    def publish(self) -> list[Path]:
        """Publishes the files in order, so that a writer that is killed leaves a shorter log, never
        a gap.
        """
        self._end_file()
        try:
            for part, path in self._done:
                os.replace(part, path)
                _make_lasting(path.parent)
        except OSError as error:
            raise failed_write(error) from None
        done, self._done = self._done, []
        return [path for _, path in done]

    def discard(self) -> None:
        """Removes everything unpublished, the last file first, so that no gap is visible."""
        if self._file is not None:
            self._file.discard()
            self._file = None
        for part, path in reversed(self._done):
            for name in (part, path):
                name.unlink(missing_ok=True)
            _remove_if_empty(part.parent)
        self._done = []

    def _end_group(self) -> None:
        if self._columns[0]:
            assert self._file is not None, "a file is open as long as rows wait for it"
            pa, _ = pyarrow()
            try:
                arrays = [pa.array(column, field.type) for column, field in zip(self._columns, schema(), strict=True)]
            except (ValueError, OverflowError, TypeError) as error:
                raise BrokenStoreError(str(error)) from None
            self._columns, self._bytes = [[] for _ in COLUMNS], 0
            self._file.write(pa.RecordBatch.from_arrays(arrays, schema=schema()))

    def _end_file(self) -> None:
        self._end_group()
        file = self._file
        if file is not None:
            rows, offsets = (file.first_row, self.next_row), (file.first_offset, self.next_offset)
            self._done.append((file.part, part_path(self._root, file.day, self._partition, rows, offsets, file.close())))
            self._file = None


class _OpenFile:
    """A file that readers do not see yet: its name begins with a dot."""

    def __init__(self, root: Path, hidden: str, day: str, first_row: int, first_offset: int) -> None:
        self.day, self.first_row, self.first_offset = day, first_row, first_offset
        folder = root / f"date={day}"
        self.part = folder / f".{hidden}.{uuid.uuid4().hex}"
        try:
            self._writer = self._open(folder)
        except OSError as error:
            self.part.unlink(missing_ok=True)
            _remove_if_empty(folder)
            raise failed_write(error) from None

    def _open(self, folder: Path) -> Any:
        _, parquet = pyarrow()
        for attempt in range(_MOST_ATTEMPTS):
            folder.mkdir(exist_ok=True)
            try:
                return parquet.ParquetWriter(
                    self.part, schema(), compression="zstd", compression_level=_LEVEL, use_dictionary=["group", "kind", "version", "partition"]
                )
            except FileNotFoundError:  # another partition's writer found the folder empty, and removed it
                if attempt == _MOST_ATTEMPTS - 1:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def write(self, batch: Any) -> None:
        try:
            self._writer.write_batch(batch, row_group_size=max(batch.num_rows, 1))
        except (OSError, ValueError) as error:
            raise failed_write(error) from None

    def close(self) -> int:
        """Returns the file's CRC-32, once its bytes are on the disk."""
        try:
            self._writer.close()
            with open(self.part, "rb") as file:
                os.fsync(file.fileno())
            return crc32_of(self.part)
        except OSError as error:
            raise failed_write(error) from None

    def discard(self) -> None:
        with contextlib.suppress(OSError):
            self._writer.close()
        self.part.unlink(missing_ok=True)
        _remove_if_empty(self.part.parent)


def _remove_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


def _make_lasting(folder: Path) -> None:
    for each in (folder, folder.parent):
        descriptor = os.open(each, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
