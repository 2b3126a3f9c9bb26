"""The files of an archive and the meaning of their names.

::

    archive/
      _equipoise.json         marks the archive, with its schema version
      _manifests/             what each partition holds (`equipoise.log.parquet.manifests`)
      date=2026-03-01/
        p00003.r000000000000-000000000200.o000000000000-000000000120.0a1b2c3d.parquet

`p`: the log's partition. `r`: the rows of the partition in the file, from the first up to, but not
including, the last. Rows are counted from 0 in stored order, so a file that is missing between two
others is detected, and so is a file that a larger, merged one covers. `o`: offsets of its facts, in
the same way. Then the CRC-32 of the whole file, which detects any changed byte before the file is
parsed.

`date`: day (UTC) of the latest append time up to the file's first fact. So the rows of a file are
of one day, as far as the log's clock moved forward. Readers of Parquet datasets ignore names that
begin with ``_`` or ``.``. The folder may be in an object store
(`equipoise.log.parquet.archive_stores`).
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import attrs

from equipoise.events.errors import InputError
from equipoise.log.parquet.archive_store import MISSING, Store
from equipoise.log.storage import cannot_write
from equipoise.log.stored import BrokenStoreError, MissingRowError

MARK = "_equipoise.json"
FORM = "equipoise archive"
SCHEMA_VERSION = 1
COLUMNS = ("group", "partition", "offset", "append_ms", "kind", "version", "payload", "number", "caused_by", "index", "checksum")
NUMBERS = "equipoise.numbers"
"""In the metadata of a file: JSON, group -> number of its last decision up to the end of the file.
Older files have none.
"""
GROUPS = "equipoise.groups"
"""In the metadata of a file: JSON, group -> number of its rows in the file. Older files have none.
"""
MOST_PARTITIONS = 100_000
DAY_MS = 86_400_000

_NAME = re.compile(r"p(\d{5})\.r(\d{12})-(\d{12})\.o(\d{12})-(\d{12})\.([0-9a-f]{8})\.parquet")
_HIDDEN = re.compile(r"\.\w+\.[0-9a-f]{32}")
_DATE = "date="


@attrs.frozen(kw_only=True, order=False)
class Part:
    """One file. `name`: relative to the archive. Rows and offsets are ``[first, next)``."""

    store: Store
    name: str
    partition: int
    first_row: int
    next_row: int
    first_offset: int
    next_offset: int
    crc32: int

    @property
    def day(self) -> str:
        """``2026-03-01``."""
        return self.name.partition("/")[0].removeprefix(_DATE)

    @property
    def file_name(self) -> str:
        """Its name in its folder, for messages."""
        return self.name.rpartition("/")[2]

    @property
    def rows(self) -> int:
        return self.next_row - self.first_row


def folder_of(day: str) -> str:
    """Returns the folder of a day's files."""
    return f"{_DATE}{day}"


def part_name(day: str, partition: int, rows: tuple[int, int], offsets: tuple[int, int], crc32: int) -> str:
    """Returns the name of a file with these contents."""
    name = f"p{partition:05}.r{rows[0]:012}-{rows[1]:012}.o{offsets[0]:012}-{offsets[1]:012}.{crc32:08x}.parquet"
    return f"{folder_of(day)}/{name}"


def day_of(append_ms: int) -> str:
    """Returns the day (UTC) of a time in milliseconds. Times after the year 9999 count as its last
    day.
    """
    least = min(append_ms, 253_402_300_799_000)
    return dt.datetime.fromtimestamp(least / 1_000, dt.UTC).strftime("%Y-%m-%d")


# ------------------------------------------------------------------------------------------ listing


def is_archive(store: Store) -> bool:
    return MARK in store.names()


def make_archive(store: Store) -> None:
    """Marks the place as an archive, and makes the folder if needed. Raises InputError when it is
    another folder with something in it.
    """
    store.create()
    names = store.names()
    if MARK in names:
        return
    if any(not name.startswith(".") for name in names):
        raise InputError(f"{store.location}: is a folder with something else in it; name another one for the archive")
    try:
        store.write_text(MARK, json.dumps({"form": FORM, "schema_version": SCHEMA_VERSION}) + "\n")
    except OSError as error:
        raise cannot_write(store.location, error) from None


def check_archive(store: Store) -> None:
    """Raises InputError unless `store` holds an archive that this build reads."""
    root = store.location
    try:
        mark = json.loads(store.read_text(MARK))
        version = mark["schema_version"]
        is_another = mark.get("form", FORM) != FORM
    except FileNotFoundError:
        found = "is a folder, but not an archive of equipoise" if store.exists() else "there is no such log"
        raise InputError(f"{root}: {found}; make one with `equipoise archive`, or correct the path") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise InputError(f"{root}/{MARK}: cannot be read; restore it from a copy") from None
    if is_another:
        raise InputError(f"{root}: is a folder, but not an archive of equipoise; make one with `equipoise archive`, or correct the path")
    if version != SCHEMA_VERSION:
        raise InputError(f"{root}: is an archive of schema {version}, this build reads {SCHEMA_VERSION}; use the build that wrote it")


def foreign_files(store: Store) -> list[str]:
    """Returns what is in the folder of an archive but not part of it, as relative paths in rising
    order. Hidden files of writers are part of it.
    """
    return [name for name in store.names() if not _is_part_of_it(name)]


def _is_part_of_it(name: str) -> bool:
    folder, _, file = name.rpartition("/")
    if folder.startswith(_DATE):
        return _NAME.fullmatch(file) is not None or _HIDDEN.match(file) is not None
    return name == MARK or name.startswith((f".{MARK}.", ".lock-", "_manifests/"))


def all_parts(store: Store) -> list[Part]:
    """Returns every file, including those that others cover, by partition and row. Of two with the
    same first row, the longer comes first.
    """
    found = [part for name in store.names() if (part := part_of(store, name)) is not None]
    return sorted(found, key=lambda part: (part.partition, part.first_row, -part.next_row, part.name))


def part_of(store: Store, name: str) -> Part | None:
    """Returns the file of this name; None: it is none of an archive's."""
    folder, _, file = name.rpartition("/")
    match = _NAME.fullmatch(file)
    if match is None or not folder.startswith(_DATE) or "/" in folder:
        return None
    partition, first_row, next_row, first_offset, next_offset = (int(match[at]) for at in range(1, 6))
    return Part(
        store=store,
        name=name,
        partition=partition,
        first_row=first_row,
        next_row=next_row,
        first_offset=first_offset,
        next_offset=next_offset,
        crc32=int(match[6], 16),
    )


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


def batches(part: Part, columns: tuple[str, ...] = COLUMNS, batch_rows: int = 2_048) -> Iterator[Any]:
    """Yields the rows of a file as pyarrow.RecordBatch, in order. Memory does not grow with the
    file.

    Raises BrokenStoreError; MissingRowError, before anything is yielded, when the file is not there
    any more.
    """
    _, parquet = pyarrow()
    source = _source(part)
    found = 0
    with _as_broken(part), parquet.ParquetFile(source, memory_map=False, pre_buffer=False, read_dictionary=["group"]) as file:
        missing = [name for name in COLUMNS if name not in file.schema_arrow.names]
        if missing:
            raise BrokenStoreError(f"{part.file_name} has no column {missing[0]}")
        for batch in file.iter_batches(batch_rows, columns=list(columns), use_threads=False):
            found += batch.num_rows
            yield batch
    if found != part.rows:
        raise BrokenStoreError(f"{part.file_name} has {found} rows; its name says {part.rows}")


def _source(part: Part) -> Any:
    try:
        return part.store.fetch(part.name, part.crc32)
    except FileNotFoundError:
        raise MissingRowError(f"row {part.first_row} of partition {part.partition}: {part.file_name} is not there any more") from None


@contextlib.contextmanager
def _as_broken(part: Part) -> Iterator[None]:
    """Turns what pyarrow raises into BrokenStoreError, but FileNotFoundError."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (OSError, ValueError, KeyError, NotImplementedError) as error:  # ArrowInvalid is a ValueError
        raise BrokenStoreError(f"{part.file_name}: {' '.join(str(error).split())[:200]}") from None


def from_row(batches: Iterator[Any], skip: int) -> Iterator[Any]:
    """Yields the batches without their first `skip` rows, which another file has too."""
    for batch in batches:
        if skip < batch.num_rows:
            yield batch.slice(skip)
        skip = max(0, skip - batch.num_rows)


def last_numbers(part: Part) -> dict[str, int] | None:
    """Returns group -> number of its last decision up to the end of a file; None: the file does not
    say. Raises what `batches` raises.
    """
    return _saved(part, NUMBERS, _source(part))


def rows_of_groups(part: Part) -> dict[str, int]:
    """Returns group -> how many rows of a file are its own. Raises what `batches` raises. What the
    file says of itself is believed before its bytes are checked: a reading checks them.
    """
    counts = None
    with contextlib.suppress(BrokenStoreError, FileNotFoundError), part.store.open(part.name) as source:  # said below, with its reason
        counts = _saved(part, GROUPS, source)
    return counted(batches(part, ("group",), 65_536)) if counts is None else counts


def count_groups(batch: Any, counts: dict[str, int]) -> None:
    """Adds the rows of a batch to `counts`, by group."""
    pa, _ = pyarrow()
    for each in pa.chunked_array([batch.column("group")]).value_counts().to_pylist():
        if each["values"]:
            counts[each["values"]] = counts.get(each["values"], 0) + each["counts"]


def counted(found: Iterator[Any]) -> dict[str, int]:
    """Returns group -> number of its rows in these batches."""
    counts: dict[str, int] = {}
    for batch in found:
        count_groups(batch, counts)
    return counts


def _saved(part: Part, key: str, source: Any) -> dict[str, int] | None:
    """Returns what the metadata of a file has under `key`. Only the end of `source` is read."""
    _, parquet = pyarrow()
    with _as_broken(part), parquet.ParquetFile(source, memory_map=False, pre_buffer=False) as file:
        saved = (file.metadata.metadata or {}).get(key.encode())
        return None if saved is None else {str(group): int(number) for group, number in json.loads(saved).items()}
