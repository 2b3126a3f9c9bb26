"""Results as tables of Delta Lake, written as ``--to delta:LOCATION``. Each table is replaced as
one version: its readers find the former rows or the new ones, whatever becomes of this process.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from equipoise.events.errors import InputError, StorageError
from equipoise.log.parquet.archive_stores import check_scheme, is_remote_location, store_at

SCHEME = "delta:"
_MISSING = "tables of Delta Lake need the extra: pip install 'equipoise[delta]'"
_MADE_BY = "equipoise"
"""Description of the tables that are replaced."""
_ROWS_A_BATCH = 65_536


def is_delta_location(location: str) -> bool:
    """Returns whether the location is of tables of Delta Lake: ``delta:s3://bucket/verified/``."""
    return location.startswith(SCHEME)


def check_delta_tables(option: str, location: str, names: frozenset[str]) -> None:
    """Raises InputError when tables must not be written there. `names`: each in its own folder;
    empty: the location is one table.
    """
    place = _place_of(option, location)
    for table in sorted(names) or [""]:
        uri = f"{place}/{table}" if table else place
        try:
            found = _table_at(uri)
        except _errors() as error:
            raise InputError(f"{option} {location}: {_reason(error)}; check the location, and credentials and endpoint in the environment") from None
        if found is not None and found.metadata().description != _MADE_BY:
            raise InputError(f"{option} {location}: holds a Delta table of something else, and stays as it is; name another one")
        if found is None and store_at(uri).names():
            raise InputError(f"{option} {location}: holds something else than tables of equipoise, and stays as it is; name another folder")


def write_delta_tables(option: str, location: str, part: Path, names: frozenset[str]) -> None:
    """Makes the tables in `part`, Parquet files of this machine, the newest versions of those at a
    location, one after the other. Raises StorageError; tables up to there are new.
    """
    check_delta_tables(option, location, names)
    for table in sorted(names) or [""]:
        uri = f"{_place_of(option, location)}/{table}".rstrip("/")
        try:
            _replace(uri, sorted((part / table).glob("*.parquet")))
        except _errors() as error:
            problem = "readers find the former rows of the tables that are not written; run it again when the store takes more"
            raise StorageError(f"{option} {location}", _reason(error), problem) from None


def _replace(uri: str, files: Sequence[Path]) -> None:
    import pyarrow as pa
    from deltalake import write_deltalake
    from pyarrow import parquet

    def batches() -> Any:
        for file in files:
            with parquet.ParquetFile(file) as opened:
                yield from opened.iter_batches(_ROWS_A_BATCH)

    reader = pa.RecordBatchReader.from_batches(parquet.read_schema(files[0]), batches())
    write_deltalake(uri, reader, mode="overwrite", schema_mode="overwrite", description=_MADE_BY, storage_options=_options(uri))


def _place_of(option: str, location: str) -> str:
    place = location.removeprefix(SCHEME).rstrip("/")
    if is_remote_location(place):
        return place
    check_scheme(place)
    path = Path(os.path.realpath(place))
    if not place or not path.parent.is_dir():
        raise InputError(f"{option} {location}: there is no such folder to make it in; make that, or correct the path")
    return str(path)


def _table_at(uri: str) -> Any | None:
    from deltalake import DeltaTable

    options = _options(uri)
    return DeltaTable(uri, storage_options=options) if DeltaTable.is_deltatable(uri, storage_options=options) else None


def _options(uri: str) -> dict[str, str] | None:
    """An endpoint without TLS, as of MinIO on this machine, must be allowed."""
    return {"allow_http": "true"} if "://" in uri and os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://") else None


def _errors() -> tuple[type[Exception], ...]:
    """Returns the errors that the library raises. Raises InputError when there is none."""
    try:
        from deltalake.exceptions import DeltaError
    except ImportError:
        raise InputError(_MISSING) from None
    return DeltaError, OSError


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
