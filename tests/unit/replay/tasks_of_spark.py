"""What the tasks of a job over groups do, without Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from equipoise.replay.spark.groups import Before, Files, Unit, Work, _places_of, dealt, ends_of, folded, strict_files_of, targets_of
from equipoise.replay.spark.pieces import PieceScan, pieces_of


def on_tasks(units: Sequence[Unit], work: Work, *, tasks: int = 3, begun: Before | None = None, files: Files | None = None) -> list[dict[str, Any]]:
    """What `over_groups` returns with so many tasks. A sort stands for Spark's shuffle."""
    places = _places_of(units, strict_files_of(units) if files is None else files)
    buckets = dealt(units, tasks)
    numbers, targets = targets_of(buckets, places)
    reading = dealt(pieces_of(places), tasks, size=lambda piece: piece.next_row - piece.first_row)
    read = list(PieceScan(reading, targets).read(iter([pa.RecordBatch.from_pydict({"id": list(range(len(reading)))})])))
    before = [] if begun is None else begun(numbers, targets).to_batches()
    by_bucket: Iterator[Any] = iter(_sorted(pa.Table.from_batches([*read, *before])).to_batches(max_chunksize=100))
    return list(folded(by_bucket, buckets, numbers, ends_of(numbers, places), work))


def _sorted(rows: Any) -> Any:
    """As Spark sorts: without a group comes first."""
    order = [(row["bucket"], row["place"], row["group"] is not None, row["group"] or "", row["seq"]) for row in rows.to_pylist()]
    return rows.take(sorted(range(len(order)), key=order.__getitem__))
