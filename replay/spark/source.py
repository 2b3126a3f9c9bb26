"""``spark.read.format("equipoise").load("archive/")``: an archive as a DataFrame, for batches and
streams, as a Python data source of Spark (4.0 on).

Option `view`: `facts` (the default) and `decisions` have an event as JSON, with its kind and member;
`records` has the rows as they are stored. With ``.schema("...")`` only the named columns are made.
With option `pushdown` ``true`` filters on `group`, `partition`, `date` and `offset` leave out files
without such rows; it needs Spark 4.1 and ``spark.sql.python.filterPushdown.enabled``. Option
`partitions`: tasks; default: the cores of the driver's machine.
"""

from __future__ import annotations

import datetime as dt
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import eq, ge, gt, le, lt
from typing import Any

import attrs
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

from equipoise.events import codec
from equipoise.events.errors import EquipoiseError, InputError
from equipoise.log.parquet.archive_stores import split_location, store_at
from equipoise.log.parquet.files import COLUMNS, Part, rows_of_groups
from equipoise.log.parquet.log import ArchiveLog
from equipoise.log.parquet.manifests import PartitionFiles
from equipoise.log.parquet.store import problem_of
from equipoise.log.stored import BrokenStoreError
from equipoise.replay.spark.groups import dealt
from equipoise.replay.spark.pieces import Piece

NAME = "equipoise"
_EVENT = "append_time timestamp, append_ms bigint, `date` date, kind string, member_id string, event string"
VIEWS: Mapping[str, str] = {
    "facts": f"`group` string, partition int, offset bigint, {_EVENT}",
    "decisions": f"`group` string, partition int, number bigint, caused_by bigint, `index` bigint, {_EVENT}",
    "records": "`row` bigint, `date` date, `group` string, partition int, offset bigint, append_ms bigint, kind int, version int, "
    "payload binary, number bigint, caused_by bigint, `index` bigint, checksum bigint",
}
"""View -> its columns. `append_time`, `append_ms`: of a fact, of a decision those of its fact, which
is `caused_by`. `date`: day (UTC) of the file that has it. `event`: JSON; null: this build cannot
read it. `row`: place in the partition, from 0.
"""
_COMPARED: Mapping[str, Callable[[Any, Any], bool]] = {
    "EqualTo": eq,
    "GreaterThan": gt,
    "GreaterThanOrEqual": ge,
    "LessThan": lt,
    "LessThanOrEqual": le,
}
"""Filters of Spark (4.1 on), by name: 4.0 has none."""


def register(spark: Any) -> None:
    """Makes the format known to a session."""
    spark.dataSource.register(ArchiveSource)


class ArchiveSource(DataSource):
    """The data source. Its options are in `equipoise.replay.spark.source`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        """Raises InputError for a view that does not exist."""
        return VIEWS[_view(self.options)]

    def reader(self, schema: Any) -> ArchiveReader:
        kind = FilteringReader if self.options.get("pushdown") == "true" else ArchiveReader
        return kind(dict(self.options), schema)

    def streamReader(self, schema: Any) -> ArchiveStreamReader:  # noqa: N802 - Spark's name
        return ArchiveStreamReader(dict(self.options), schema)


def _view(options: Mapping[str, str]) -> str:
    view = options.get("view", "facts")
    if view not in VIEWS:
        raise InputError(f"view {view}: there is none; name one of {', '.join(VIEWS)}")
    return view


@attrs.frozen
class Pieces(InputPartition):
    """The rows of files that one task reads."""

    pieces: Sequence[Piece]


class _ArchiveReading:
    """Options, schema and filters of a reading, which tasks get, too."""

    def __init__(self, options: Mapping[str, str], schema: Any) -> None:
        self.view = _view(options)
        if "path" not in options:
            raise InputError('name the archive: spark.read.format("equipoise").load("archive/")')
        self.location = options["path"]
        self.columns = [field.name for field in schema.fields]
        tasks = options.get("partitions", str(os.cpu_count() or 1))
        if not tasks.isdecimal() or not int(tasks):
            raise InputError(f"partitions: {tasks!r} is no number of tasks; write 1 or more")
        self.tasks = int(tasks)
        self.filters: list[tuple[str, Callable[[Any, Any], bool], Any]] = []

    def files(self) -> dict[int, PartitionFiles]:
        """Returns the files of each partition. Raises BrokenStoreError when some are missing, or
        nothing of a partition is there: rows that are not read are never passed over in silence.
        """
        with ArchiveLog(self.location, "r") as log:
            found = log.files()
        for files in found.values():
            if files.strict().problem:
                raise problem_of(files.strict())
        return found

    def fits(self, column: str, value: Any) -> bool:
        return all(compare(value, wanted) for name, compare, wanted in self.filters if name == column)

    def dealt(self, rows: Iterable[tuple[PartitionFiles, int, int]]) -> list[Pieces]:
        """Deals rows of partitions, from one up to another, to tasks."""
        archive = split_location(self.location)[0]
        place = store_at(archive).absolute
        found = [
            _piece(f"{place}?partition={files.partition}", part, max(first, part.first_row), min(last, part.next_row))
            for files, first, last in rows
            for part in files.parts
            if first < part.next_row and part.first_row < last and self._may_have(part)
        ]
        return [Pieces(each) for each in dealt(found, self.tasks, size=lambda piece: piece.next_row - piece.first_row)] or [Pieces([])]

    def _may_have(self, part: Part) -> bool:
        """Returns whether a file may have rows that are asked for: by its name, then its footer."""
        if not (self.fits("partition", part.partition) and self.fits("date", dt.date.fromisoformat(part.day))):
            return False
        if part.first_offset < part.next_offset and not self._has_offset(part):
            return False
        groups = [wanted for name, _, wanted in self.filters if name == "group"]
        if not groups:
            return True
        try:
            there = rows_of_groups(part)
        except BrokenStoreError:
            return True  # reading it says what is wrong
        return all(group in there for group in groups)

    def _has_offset(self, part: Part) -> bool:
        """Returns whether some offset of a file fits: its first, its last, or the one that is asked
        for.
        """
        asked = [wanted for name, _, wanted in self.filters if name == "offset" and part.first_offset <= wanted < part.next_offset]
        near = [each + by for each in asked for by in (-1, 0, 1)]
        return any(self.fits("offset", each) for each in (part.first_offset, part.next_offset - 1, *near))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yields pyarrow.RecordBatch with `columns`, in Spark's types to the letter."""
        import pyarrow as pa

        assert isinstance(partition, Pieces), "Spark gives back what `partitions` has returned"
        for piece in partition.pieces:
            day = dt.date.fromisoformat(piece.name.partition("/")[0].removeprefix("date="))
            append_ms: int | None = None
            for first, batch in piece.read():
                rows = []
                for at, values in enumerate(zip(*(batch.column(name).to_pylist() for name in COLUMNS), strict=True), first):
                    row = dict(zip(COLUMNS, values, strict=True), row=at, date=day)
                    append_ms = row["append_ms"] if row["offset"] is not None else append_ms
                    if self._is_asked_for(row):
                        rows.append(row if self.view == "records" else self._with_event(row, append_ms))
                if rows:
                    yield pa.RecordBatch.from_pylist(rows, schema=pa.schema([(name, _kind(self.view, name)) for name in self.columns]))

    def _is_asked_for(self, row: Mapping[str, Any]) -> bool:
        is_fact = row["offset"] is not None
        if self.view != "records" and (is_fact != (self.view == "facts") or (not is_fact and row["kind"] < codec.FIRST_DECISION_KIND)):
            return False
        return self.fits("group", row["group"]) and (not is_fact or self.fits("offset", row["offset"]))

    def _with_event(self, row: dict[str, Any], append_ms: int | None) -> dict[str, Any]:
        time = None if append_ms is None else dt.datetime.fromtimestamp(append_ms / 1_000, dt.UTC)
        found = {**row, "append_ms": append_ms, "append_time": time, "kind": codec.kind_name(row["kind"]), "member_id": None, "event": None}
        if {"event", "member_id"} & set(self.columns):
            try:
                event = codec.decode(row["kind"], row["version"], row["payload"])
            except EquipoiseError:
                return found
            found["member_id"] = getattr(event, "member_id", None)
            found["event"] = json.dumps(codec.to_json(event)["event"], ensure_ascii=False) if "event" in self.columns else None
        return found


def _piece(location: str, part: Part, first: int, last: int) -> Piece:
    return Piece(place=0, location=location, partition=part.partition, name=part.name, first_row=first, next_row=last, due=None, ends_offset=0)


def _kind(view: str, column: str) -> Any:
    import pyarrow as pa

    kinds = dict(each.replace("`", "").split() for each in VIEWS[view].split(", "))
    of_spark = {"bigint": pa.int64(), "int": pa.int32(), "string": pa.string(), "binary": pa.binary(), "date": pa.date32()}
    return of_spark.get(kinds[column], pa.timestamp("us", "UTC"))


class ArchiveReader(_ArchiveReading, DataSourceReader):
    """A reading of what is there now."""

    def partitions(self) -> Sequence[Pieces]:
        return self.dealt((files, 0, files.next_row) for files in self.files().values())


class FilteringReader(ArchiveReader):
    """A reading that takes filters. Spark refuses one where its setting is off."""

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:  # noqa: N802 - Spark's name
        """Takes the filters by which files can be left out. Spark applies all but these."""
        for each in filters:
            name = each.attribute[0] if len(getattr(each, "attribute", ())) == 1 else ""
            compare = _COMPARED.get(type(each).__name__)
            is_ours = (name == "group" and compare is eq) or (name in ("partition", "date") and compare is not None)
            if is_ours or (name == "offset" and self.view == "facts" and compare is not None):
                assert compare is not None, "it was just looked at"
                self.filters.append((name, compare, each.value))
            else:
                yield each


class ArchiveStreamReader(_ArchiveReading, DataSourceStreamReader):
    """A reading that goes on: its place is the next row of each partition, which a compaction does
    not change.
    """

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {}

    def latestOffset(self) -> dict[str, int]:  # type: ignore[override]  # noqa: N802 - Spark's name; 4.2 can ask for less than all
        return {str(partition): files.next_row for partition, files in self.files().items()}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[Pieces]:
        files = self.files()
        return self.dealt((files[int(each)], start.get(each, 0), last) for each, last in end.items())

    def commit(self, end: dict[str, int]) -> None:
        """Nothing: an archive keeps what was read."""
