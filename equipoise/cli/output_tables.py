"""Folders of Parquet tables that commands write: on this machine, in an object store, in HDFS, or
as tables of Delta Lake. A command replaces only tables of equipoise.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from equipoise.cli.delta_tables import check_delta_tables, is_delta_location, write_delta_tables
from equipoise.cli.output import check_apart, put_in_place, staging_folder
from equipoise.events.errors import InputError
from equipoise.log.parquet.archive_stores import check_scheme, is_remote_location, remote_store
from equipoise.log.parquet.files import MARK
from equipoise.log.storage import cannot_write

if TYPE_CHECKING:
    from equipoise.log.parquet.objects import ObjectStore

TABLES = "equipoise tables"
"""`form` in the mark of a folder of tables."""


def check_tables(option: str, folder: str | Path, names: frozenset[str] = frozenset()) -> None:
    """Raises InputError when tables must not be written to `folder`, which may be in an object
    store or in HDFS: it holds something else than tables, or cannot be made.

    `names`: names of the tables, each in its own subfolder; empty: the folder holds one table.
    """
    if is_delta_location(str(folder)):
        check_delta_tables(option, str(folder), names)
    elif is_remote_location(str(folder)):
        _remote_tables(option, str(folder), names)
    else:
        check_scheme(folder)
        _local_tables(option, Path(folder), names)


def _remote_tables(option: str, location: str, names: frozenset[str]) -> ObjectStore:
    store = remote_store(location)
    there = store.names()
    _must_be_tables(option, location, there, lambda: store.read_text(MARK), {name.partition("/")[0] if names else name for name in there}, names)
    return store


def _must_be_tables(
    option: str, folder: str | Path, there: Sequence[str], mark: Callable[[], str], tops: Iterable[str], names: frozenset[str]
) -> None:
    if not there:
        return
    try:
        ours = json.loads(mark()).get("form") == TABLES
    except (FileNotFoundError, ValueError, AttributeError):
        ours = False
    others = [name for name in sorted(tops) if name != MARK and not (name in names if names else _is_of_table(name))]
    if not ours or others:
        what = f"{others[0]} among it" if ours else "and stays as it is"
        raise InputError(f"{option} {folder}: holds something else than tables of equipoise, {what}; name another folder")


def _local_tables(option: str, folder: Path, names: frozenset[str]) -> Path:
    try:
        place = Path(os.path.realpath(folder))
        check_apart(option, folder, place)
        if not place.exists():
            if not place.parent.is_dir():
                raise InputError(f"{option} {folder}: there is no such folder to make it in; make that, or correct the path")
            return place
        if not place.is_dir():
            raise InputError(f"{option} {folder}: is a file; name a folder")
        there = sorted(each.name for each in place.iterdir())
        _must_be_tables(option, folder, there, (place / MARK).read_text, there, names)
    except OSError as error:
        raise cannot_write(f"{option} {folder}", error) from None
    return place


def _is_of_table(name: str) -> bool:
    return name == "_SUCCESS" or name.endswith((".parquet", ".crc"))


@contextlib.contextmanager
def new_tables(option: str, folder: str | Path, names: frozenset[str] = frozenset()) -> Iterator[Path]:
    """Yields a folder of this machine to write tables into, which replaces `folder` at the end of
    the block. `check_tables` describes which folders may be replaced. In an object store and in
    HDFS each file is replaced as a whole, one after the other, then the files that are no more are
    removed. In Delta Lake each table gets a new version.
    """
    if is_delta_location(str(folder)):
        with tempfile.TemporaryDirectory(prefix="equipoise-") as temporary:
            part = Path(temporary) / "tables"
            yield part
            write_delta_tables(option, str(folder), part, names)
        return
    if is_remote_location(str(folder)):
        store = _remote_tables(option, str(folder), names)
        with tempfile.TemporaryDirectory(prefix="equipoise-") as temporary:
            part = Path(temporary) / "tables"
            yield part
            _upload(store, part)
        return
    folder = Path(folder)
    place = _local_tables(option, folder, names)
    with staging_folder(f"{option} {folder}", place) as staging:
        part = staging / place.name
        yield part
        try:
            (part / MARK).write_text(json.dumps({"form": TABLES}) + "\n")
        except OSError as error:
            raise cannot_write(f"{option} {folder}", error) from None
        put_in_place(f"{option} {folder}", part, place, staging)


def _upload(store: ObjectStore, part: Path) -> None:
    new = sorted(str(path.relative_to(part)) for path in part.rglob("*") if path.is_file())
    former = [name for name in store.names() if name not in new and name != MARK]
    store.write_text(MARK, json.dumps({"form": TABLES}) + "\n")
    store.upload_files(part, new)
    for name in former:
        store.remove(name)
