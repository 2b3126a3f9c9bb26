"""The files of an archive and the meaning of their names.

::

    archive/
      _equipoise.json         marks the archive, with its schema version
      date=2026-03-01/
        p00003.r000000000000-000000000200.o000000000000-000000000120.0a1b2c3d.parquet

`p`: the log's partition. `r`: the rows of the partition in the file, from the first up to, but not
including, the last. Rows are counted from 0 in stored order, so a missing file is detected, and so
is a file that a larger, merged one covers. `o`: offsets of its facts, in the same way. Then the
CRC-32 of the whole file, which detects any changed byte before the file is parsed.

`date`: day (UTC) of the latest append time up to the file's first fact. So the rows of a file are
of one day, as far as the log's clock moved forward. Readers of Parquet datasets ignore names that
begin with ``_`` or ``.``.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import zlib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import attrs

from equipoise.events.errors import InputError
from equipoise.events.log.storage import cannot_write
from equipoise.events.log.stored import BrokenStoreError, MissingRowError

MISSING = "a Parquet archive needs the extra: pip install 'equipoise[spark]'"
MARK = "_equipoise.json"
FORM = "equipoise archive"
SCHEMA_VERSION = 1
COLUMNS = ("group", "partition", "offset", "append_ms", "kind", "version", "payload", "number", "caused_by", "index", "checksum")
MOST_PARTITIONS = 100_000
DAY_MS = 86_400_000

_NAME = re.compile(r"p(\d{5})\.r(\d{12})-(\d{12})\.o(\d{12})-(\d{12})\.([0-9a-f]{8})\.parquet")
_HIDDEN = re.compile(r"\.\w+\.[0-9a-f]{32}")
_DATE = "date="
_CHUNK_BYTES = 1 << 20


@attrs.frozen(kw_only=True, order=False)
class Part:
    """One file. Rows and offsets are ``[first, next)``."""

    path: Path
    partition: int
    first_row: int
    next_row: int
    first_offset: int
    next_offset: int
    crc32: int

    @property
    def day(self) -> str:
        """``2026-03-01``."""
        return self.path.parent.name.removeprefix(_DATE)

    @property
    def rows(self) -> int:
        return self.next_row - self.first_row


def part_path(root: Path, day: str, partition: int, rows: tuple[int, int], offsets: tuple[int, int], crc32: int) -> Path:
    """Returns the path of a file with these contents."""
    name = f"p{partition:05}.r{rows[0]:012}-{rows[1]:012}.o{offsets[0]:012}-{offsets[1]:012}.{crc32:08x}.parquet"
    return root / f"{_DATE}{day}" / name


def day_of(append_ms: int) -> str:
    """Returns the day (UTC) of a time in milliseconds. Times after the year 9999 count as its last
    day.
    """
    least = min(append_ms, 253_402_300_799_000)
    return dt.datetime.fromtimestamp(least / 1_000, dt.UTC).strftime("%Y-%m-%d")


# ------------------------------------------------------------------------------------------ listing


def is_archive(root: Path) -> bool:
    return (root / MARK).is_file()


def make_archive(root: Path) -> None:
    """Marks `root` as an archive, and makes the folder if needed. Raises InputError when it is
    another folder with something in it.
    """
    try:
        root.mkdir(parents=False, exist_ok=True)
        if is_archive(root):
            return
        if any(not name.name.startswith(".") for name in root.iterdir()):
            raise InputError(f"{root}: is a folder with something else in it; name another one for the archive")
        part = root / f".{MARK}.{os.getpid()}"
        try:
            part.write_text(json.dumps({"form": FORM, "schema_version": SCHEMA_VERSION}) + "\n")
            os.replace(part, root / MARK)
        finally:
            part.unlink(missing_ok=True)
    except FileNotFoundError:
        raise InputError(f"{root}: there is no such folder; make it, or correct the path") from None
    except OSError as error:
        raise cannot_write(root, error) from None


def check_archive(root: Path) -> None:
    """Raises InputError unless `root` is an archive that this build reads."""
    try:
        mark = json.loads((root / MARK).read_text())
        version = mark["schema_version"]
        is_another = mark.get("form", FORM) != FORM
    except FileNotFoundError:
        found = "is a folder, but not an archive of equipoise" if root.is_dir() else "there is no such log"
        raise InputError(f"{root}: {found}; make one with `equipoise archive`, or correct the path") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise InputError(f"{root / MARK}: cannot be read; restore it from a copy") from None
    if is_another:
        raise InputError(f"{root}: is a folder, but not an archive of equipoise; make one with `equipoise archive`, or correct the path")
    if version != SCHEMA_VERSION:
        raise InputError(f"{root}: is an archive of schema {version}, this build reads {SCHEMA_VERSION}; use the build that wrote it")


def foreign_files(root: Path) -> list[str]:
    """Returns what is in the folder of an archive but not part of it, as relative paths in rising
    order. Hidden files of writers are part of it.
    """
    found = []
    for path in sorted(root.iterdir()):
        if path.is_dir() and path.name.startswith(_DATE):
            found += [f"{path.name}/{name}" for name in _names(path) if _NAME.fullmatch(name) is None and _HIDDEN.match(name) is None]
        elif path.name != MARK and not path.name.startswith((f".{MARK}.", ".lock-")):
            found.append(path.name)
    return found


def all_parts(root: Path) -> list[Part]:
    """Returns every file, including those that others cover, by partition and row. Of two with the
    same first row, the longer comes first.
    """
    found = []
    for folder in sorted(root.glob(f"{_DATE}*")):
        for name in _names(folder):
            match = _NAME.fullmatch(name)
            if match is not None:
                partition, first_row, next_row, first_offset, next_offset = (int(match[at]) for at in range(1, 6))
                found.append(
                    Part(
                        path=folder / name,
                        partition=partition,
                        first_row=first_row,
                        next_row=next_row,
                        first_offset=first_offset,
                        next_offset=next_offset,
                        crc32=int(match[6], 16),
                    )
                )
    return sorted(found, key=lambda part: (part.partition, part.first_row, -part.next_row, part.path.name))


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def covering(parts: list[Part]) -> list[Part]:
    """Returns the files of one partition that hold every row once, in order, without files that
    others cover. Raises MissingRowError.
    """
    chosen: list[Part] = []
    due = 0
    for part in parts:
        if part.next_row <= due:
            continue
        if part.first_row > due:
            raise MissingRowError(f"row {due} of partition {part.partition}; the next file has row {part.first_row}")
        chosen.append(part)
        due = part.next_row
    return chosen


def by_partition(parts: list[Part]) -> dict[int, list[Part]]:
    """Returns partition -> its files."""
    found: dict[int, list[Part]] = {}
    for part in parts:
        found.setdefault(part.partition, []).append(part)
    return found


# ----------------------------------------------------------------------------------------- contents


def pyarrow() -> tuple[Any, Any]:
    """Returns the modules pyarrow and pyarrow.parquet. Raises InputError with the command that
    installs them.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as parquet
    except ImportError:
        raise InputError(MISSING) from None
    return pa, parquet


@lru_cache(1)
def schema() -> Any:
    """Returns the columns of every file."""
    pa, _ = pyarrow()
    whole, small = pa.int64(), pa.int32()
    kinds = (pa.string(), small, whole, whole, small, small, pa.binary(), whole, whole, whole, whole)
    nullable = {"offset", "append_ms", "number", "caused_by", "index"}
    return pa.schema([pa.field(name, kind, name in nullable) for name, kind in zip(COLUMNS, kinds, strict=True)])


def crc32_of(path: Path) -> int:
    """Returns the CRC-32 of a file. Raises OSError."""
    found = 0
    with open(path, "rb", buffering=0) as file:
        while chunk := file.read(_CHUNK_BYTES):
            found = zlib.crc32(chunk, found)
    return found


@lru_cache(100_000)
def _is_whole(path: Path, crc32: int, size: int, changed_ns: int) -> bool:
    return crc32_of(path) == crc32


def batches(part: Part, columns: tuple[str, ...] = COLUMNS, batch_rows: int = 2_048) -> Iterator[Any]:
    """Yields the rows of a file as pyarrow.RecordBatch, in order. Memory does not grow with the
    file.

    Raises BrokenStoreError; FileNotFoundError, before anything is yielded, when a compaction
    removed the file meanwhile.
    """
    _, parquet = pyarrow()
    status = part.path.stat()
    if not _is_whole(part.path, part.crc32, status.st_size, status.st_mtime_ns):
        raise BrokenStoreError(f"the bytes of {part.path.name} differ from the checksum in its name")
    found = 0
    try:
        with parquet.ParquetFile(part.path, memory_map=False, pre_buffer=False, read_dictionary=["group"]) as file:
            missing = [name for name in COLUMNS if name not in file.schema_arrow.names]
            if missing:
                raise BrokenStoreError(f"{part.path.name} has no column {missing[0]}")
            for batch in file.iter_batches(batch_rows, columns=list(columns), use_threads=False):
                found += batch.num_rows
                yield batch
    except (OSError, ValueError, KeyError, NotImplementedError) as error:  # what pyarrow raises: ArrowInvalid is a ValueError
        if isinstance(error, FileNotFoundError):
            raise
        raise BrokenStoreError(f"{part.path.name}: {' '.join(str(error).split())[:200]}") from None
    if found != part.rows:
        raise BrokenStoreError(f"{part.path.name} has {found} rows; its name says {part.rows}")
