"""Tables of many groups: one row of Spark has a group's rows of all tables, which are taken apart
and written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from equipoise.replay.spark.results import kept, write_table

Columns = tuple[tuple[str, str], ...]
"""Names and pyarrow's types."""


def tables_schema(groups: Columns, tables: Mapping[str, Columns]) -> Any:
    """Returns the pyarrow schema of a group's rows: its row in `groups`, and for each table a list
    of rows.
    """
    import pyarrow as pa

    kinds = {"string": pa.string(), "int64": pa.int64(), "bool": pa.bool_()}

    def struct(columns: Columns) -> Any:
        return pa.struct([(name, kinds[kind]) for name, kind in columns])

    return pa.schema([("groups", struct(groups)), *((table, pa.list_(struct(columns))) for table, columns in tables.items())])


class SparkTables(Mapping[str, Any]):
    """Table -> DataFrame: `groups`, and others whose key is `group`, `location` and `seq`, which
    counts a group's rows from 0. They are computed once, when the first is read, and kept on Spark's
    disks until `close`, or the end of a `with` block.
    """

    def __init__(self, rows: Any, tables: Mapping[str, Columns]) -> None:
        self._rows = kept(rows)
        self._tables = _taken_apart(self._rows, tables)

    def __getitem__(self, table: str) -> Any:
        return self._tables[table]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tables)

    def __len__(self) -> int:
        return len(self._tables)

    def close(self) -> None:
        """Lets go what Spark keeps of them. A second call does nothing."""
        self._rows.unpersist()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _taken_apart(rows: Any, tables: Mapping[str, Columns]) -> dict[str, Any]:
    from pyspark.sql import functions as f

    found = {"groups": rows.select("groups.*")}
    for table, columns in tables.items():
        exploded = rows.select("groups.group", "groups.location", f.posexplode(table).alias("seq", "row"))
        of_row = [f.col(f"row.{name}").alias(name) for name, _ in columns]
        found[table] = exploded.select("group", "location", f.col("seq").cast("bigint").alias("seq"), *of_row)
    return found


def costs_by_group(tables: Mapping[str, Any], summed: Sequence[str]) -> list[dict[str, Any]]:
    """Returns the table `costs`, summed over days: a row for each group, location and cause, in their
    order.
    """
    by = ("group", "location", "cause")
    from pyspark.sql import functions as f

    sums = [f.sum(name).cast("bigint").alias(name) for name in summed]
    rows = tables["costs"].groupBy(*by).agg(*sums, f.max("longest_ms").alias("longest_ms")).collect()
    return sorted((row.asDict() for row in rows), key=lambda row: [row[name] for name in by])


def write_tables(tables: Mapping[str, Any], folder: Path) -> dict[str, int]:
    """Makes `folder`, and writes ``<table>/rows.parquet`` in it, sorted by its key. Returns table ->
    number of its rows.
    """
    folder.mkdir()
    key = ("group", "location", "seq")
    return {name: write_table(table, key[:2] if name == "groups" else key, folder / name) for name, table in tables.items()}
