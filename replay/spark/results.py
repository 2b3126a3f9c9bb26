"""Writes what Spark has computed to files of the driver. Executors write nothing: their folders may
be on other machines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from equipoise.events.errors import EquipoiseError
from equipoise.replay.spark.groups import Unit, parallelism
from equipoise.replay.wording import counted

FILE = "rows.parquet"


class MissingRowsError(EquipoiseError):
    """Spark has returned fewer rows than there are groups, or more."""


def check_complete(groups: Sequence[str], units: Sequence[Unit]) -> None:
    """Raises MissingRowsError unless there is a row for each group. `groups`: those of the rows; a
    row without one says what is wrong with a partition.
    """
    rows, expected = sum(map(bool, groups)), sum(bool(unit.group) for unit in units)
    if rows != expected:
        text = f"Spark has returned {counted(rows, 'row')} for {counted(expected, 'group')}"
        raise MissingRowsError(f"{text}, and nothing was written: please report this defect")


def kept(frame: Any) -> Any:
    """The DataFrame, computed once, when it is first read, and kept on Spark's disks. The caller
    lets it go with `unpersist`.
    """
    from pyspark import StorageLevel

    return frame.persist(StorageLevel.DISK_ONLY)


def write_table(frame: Any, by: Sequence[str], folder: Path) -> int:
    """Writes the rows of a DataFrame, in the order of these columns, as one Parquet file in
    `folder`, which it makes. Returns how many there are.
    """
    from pyarrow.parquet import ParquetWriter

    folder.mkdir()
    rows = 0
    with ParquetWriter(folder / FILE, frame.limit(0).toArrow().schema) as file:
        for batch in sorted_batches(frame, by):
            file.write_batch(batch)
            rows += batch.num_rows
    return rows


def write_rows(rows: Sequence[Mapping[str, Any]], columns: Sequence[tuple[str, str]], folder: Path) -> None:
    """Writes rows of the driver as one Parquet file in `folder`, which it makes. `columns`: names
    and pyarrow's types.
    """
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    folder.mkdir()
    schema = pa.schema(list(columns))
    with ParquetWriter(folder / FILE, schema) as file:
        file.write_table(pa.Table.from_pylist(list(rows), schema=schema))


def sorted_batches(frame: Any, by: Sequence[str]) -> Iterator[Any]:
    """Yields the rows of a DataFrame in the order of these columns, as pyarrow.RecordBatch. At most
    a part of them is in memory: as much as a task of Spark holds.
    """
    import pyarrow as pa

    def packed(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, batch.schema) as stream:
                stream.write_batch(batch)
            yield pa.RecordBatch.from_arrays([pa.array([sink.getvalue().to_pybytes()], pa.binary())], ["rows"])

    in_order = frame.repartitionByRange(parallelism(frame.sparkSession), *by).sortWithinPartitions(*by)
    for row in in_order.mapInArrow(packed, "rows binary").toLocalIterator():
        yield from pa.ipc.open_stream(row.rows)
