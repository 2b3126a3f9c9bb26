"""Writes files of an archive: collects rows into row groups and row groups into files. A file
becomes visible when it is complete.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Any

from equipoise.log.parquet.archive_store import Staged, Store
from equipoise.log.parquet.files import COLUMNS, DAY_MS, GROUPS, NUMBERS, count_groups, day_of, folder_of, part_name, pyarrow, schema
from equipoise.log.rows import BASE_KIND, BASE_NUMBER, BASE_VERSION, BaseRow, FactRow, Row
from equipoise.log.stored import BrokenStoreError, failed_write

MOST_FILE_ROWS = 1_000_000
"""Most rows of a file: some 50 MB of reports."""
_MOST_FILE_BYTES = 256 << 20
"""Most bytes of events in a file, before compression."""
_GROUP_ROWS = 32_768
_GROUP_BYTES = 8 << 20
"""A row group is closed at either limit. A reader holds one at a time."""
_LEVEL = 3  # zstd's own default


def appender(partition: int) -> str:
    """Returns the word for the appender of a partition. Unpublished files are named
    ``.<word>.<something>``.
    """
    return f"p{partition:05}"


class Writer:
    """Writes the rows of one partition to files. `publish` makes them part of the archive,
    `discard` removes them.

    `hidden`: the word in the names of its unfinished files; default: that of the partition's
    appender. `numbers`: group -> number of its last decision so far, which each file repeats, so
    that an appender reads the last file only; None: unknown.
    """

    def __init__(
        self,
        store: Store,
        partition: int,
        first_row: int,
        first_offset: int,
        latest_ms: int,
        *,
        hidden: str = "",
        numbers: Mapping[str, int] | None = None,
    ) -> None:
        self._hidden = hidden or appender(partition)
        self._store = store
        self._partition = partition
        self.next_row = first_row
        self.next_offset = first_offset
        self.latest_ms = latest_ms
        self._file: _OpenFile | None = None
        self._done: list[tuple[Staged, str]] = []
        self._columns: list[list[Any]] = [[] for _ in COLUMNS]
        self._bytes = 0
        self._file_bytes = 0
        self._numbers = None if numbers is None else dict(numbers)
        self._counts: dict[str, int] = {}
        """Group -> number of its rows in the open file."""

    def add(self, row: Row) -> None:
        """Adds a row. Raises BrokenStoreError."""
        if isinstance(row, FactRow):
            day_before, self.latest_ms = self.latest_ms // DAY_MS, max(self.latest_ms, row.append_ms)
            if self._file is not None and (self.latest_ms // DAY_MS != day_before or self._is_full(self._file)):
                self._end_file()
            what = (row.kind, row.version, row.payload)
            values: tuple[Any, ...] = (row.group, self._partition, row.offset, row.append_ms, *what, None, None, None, row.checksum)
            next_offset = row.offset + 1
        elif isinstance(row, BaseRow):
            values = (row.group, self._partition, None, row.append_ms, BASE_KIND, BASE_VERSION, row.payload, BASE_NUMBER, row.offset, 0, row.checksum)
            state = row.entry()
            next_offset = state.begins_offset
            if self._numbers is not None:
                self._numbers[row.group] = state.number
        else:
            about = (row.number, row.caused_by, row.index, row.checksum)
            values = (row.group, self._partition, None, None, row.kind, row.version, row.payload, *about)
            next_offset = self.next_offset
            if self._numbers is not None:
                self._numbers[row.group] = row.number
        if self._file is None:
            self._file = _OpenFile(self._store, self._hidden, day_of(self.latest_ms), self.next_row, self.next_offset)
        for column, value in zip(self._columns, values, strict=True):
            column.append(value)
        if row.group:
            self._counts[row.group] = self._counts.get(row.group, 0) + 1
        self._bytes += len(row.payload)
        self._file_bytes += len(row.payload)
        self.next_row += 1
        self.next_offset = next_offset
        if self._bytes >= _GROUP_BYTES or len(self._columns[0]) >= _GROUP_ROWS:
            self._end_group()

    def add_batch(self, batch: Any, day: str, next_offset: int) -> None:
        """Adds rows as a pyarrow.RecordBatch, for compaction: unchanged, for `day`, into one file.
        `next_offset`: of the fact behind the file that they come from.
        """
        if self._file is None:
            self._file = _OpenFile(self._store, self._hidden, day, self.next_row, self.next_offset)
        self.next_row += batch.num_rows
        self.next_offset = next_offset
        count_groups(batch, self._counts)
        self._file.write(batch.cast(schema()))

    def publish(self) -> list[str]:
        """Publishes the files in order, and returns their names. A writer that is killed or fails
        meanwhile leaves a shorter log, never a gap.
        """
        self._end_file()
        names = []
        while self._done:
            staged, name = self._done[0]
            try:
                staged.publish(name)
            except OSError as error:
                raise failed_write(error) from None
            names.append(name)
            del self._done[0]
        return names

    def discard(self) -> None:
        """Removes everything unpublished."""
        if self._file is not None:
            self._file.discard()
            self._file = None
        for staged, _ in self._done:
            staged.discard()
        self._done = []

    def _is_full(self, file: _OpenFile) -> bool:
        return self.next_row - file.first_row >= MOST_FILE_ROWS or self._file_bytes >= _MOST_FILE_BYTES

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
            crc32 = file.close(self._numbers, self._counts)
            self._counts = {}
            self._done.append((file.staged, part_name(file.day, self._partition, rows, offsets, crc32)))
            self._file, self._file_bytes = None, 0


class _OpenFile:
    """A file that is being written."""

    def __init__(self, store: Store, hidden: str, day: str, first_row: int, first_offset: int) -> None:
        self.day, self.first_row, self.first_offset = day, first_row, first_offset
        _, parquet = pyarrow()
        try:
            self.staged = store.stage(folder_of(day), hidden)
        except OSError as error:
            raise failed_write(error) from None
        try:
            self._writer = parquet.ParquetWriter(
                self.staged.file, schema(), compression="zstd", compression_level=_LEVEL, use_dictionary=["group", "kind", "version", "partition"]
            )
        except OSError as error:
            self.staged.discard()
            raise failed_write(error) from None

    def write(self, batch: Any) -> None:
        try:
            self._writer.write_batch(batch, row_group_size=max(batch.num_rows, 1))
        except (OSError, ValueError) as error:
            raise failed_write(error) from None

    def close(self, numbers: Mapping[str, int] | None, counts: Mapping[str, int]) -> int:
        """Returns the file's CRC-32."""
        try:
            for key, each in ((NUMBERS, numbers), (GROUPS, counts)):
                if each is not None:
                    self._writer.add_key_value_metadata({key: json.dumps(each, ensure_ascii=False, sort_keys=True, separators=(",", ":"))})
            self._writer.close()
            return self.staged.finish()
        except OSError as error:
            raise failed_write(error) from None

    def discard(self) -> None:
        with contextlib.suppress(OSError):
            self._writer.close()
        self.staged.discard()
