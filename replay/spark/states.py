"""The states that a verification leaves: of each group where it ended, from which the next run goes
on, and of large groups some before, at which they may be cut.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import attrs

from equipoise.events.errors import InputError
from equipoise.log.parquet.archive_stores import store_at
from equipoise.replay.spark.groups import Unit, left, unpacked
from equipoise.replay.spark.pieces import BEFORE
from equipoise.replay.spark.results import FILE, sorted_batches, write_table
from equipoise.replay.spark.verify import COLUMNS, failed, row_of
from equipoise.replay.verification import LogVerifier

CUT_RECORDS = 50_000
"""After so many records of a group, it leaves a state at which it may be cut."""
MOST_CUTS = 64
"""Of larger groups the states are further apart, so that there are not many more of them."""
CUTS_FILE = "cuts.parquet"
CUT_COLUMNS = (("location", "string"), ("group", "string"), ("row", "int64"), ("records", "int64"), ("saved", "binary"))
"""`saved`: the state of a group before a row of its partition. `records`: read by then."""
_CUTS_A_BATCH = 16
STATE_COLUMNS = (*COLUMNS, ("next_row", "int64"), ("saved", "binary"))
"""`next_row`: of the group's partition, the first row that was not read. `saved`: what a later run
goes on from; null: it begins at the start.
"""


class Former:
    """The states that the run before has left: a row for each group, as `STATE_COLUMNS`.
    `folder`: where these are, and its cuts.
    """

    def __init__(self, table: Any | None = None, folder: str = "") -> None:
        self._table, self._folder = table, folder
        keys = [] if table is None else zip(table.column("location").to_pylist(), table.column("group").to_pylist(), strict=True)
        self._places = {key: at for at, key in enumerate(keys)}

    @classmethod
    def read(cls, folder: str) -> Former:
        """Reads what is in `folder`, which may be in an object store; it may be empty. Raises
        InputError for states of another build.
        """
        from pyarrow import parquet

        store = store_at(folder)
        if FILE not in store.names():
            return cls()
        with store.open(FILE) as source:
            former = cls(parquet.read_table(source), folder)
        try:
            next((former.verifier(location, group) for location, group in former._places if former.next_row(location, group) is not None), None)
        except InputError as error:
            raise InputError(f"--states {folder}: {error}, in another folder") from None
        return former

    def _value(self, location: str, group: str, column: str) -> Any:
        at = self._places.get((location, group))
        return None if self._table is None or at is None else self._table.column(column)[at].as_py()

    def next_row(self, location: str, group: str) -> int | None:
        """The first row of the group's partition that was not read; None: it begins at the start."""
        at = self._places.get((location, group))
        if self._table is None or at is None or not self._table.column("saved")[at].is_valid:
            return None
        return int(self._table.column("next_row")[at].as_py())

    def begins(self) -> dict[str, int]:
        """Returns location -> the first row of the partition that some group has not read. A
        location of which no group goes on is not in it.
        """
        found: dict[str, int] = {}
        for location, group in self._places:
            row = self.next_row(location, group)
            if row is not None:
                found[location] = min(row, found.get(location, row))
        return found

    def locations(self) -> set[str]:
        """Returns the partitions of its groups."""
        return {location for location, _ in self._places}

    def saved(self, location: str, group: str) -> bytes | None:
        found: bytes | None = self._value(location, group, "saved")
        return found

    def verifier(self, location: str, group: str) -> LogVerifier:
        """The verification of a group that has a `next_row`."""
        saved = self.saved(location, group)
        assert saved is not None, "it has a next_row"
        return LogVerifier.restore(unpacked(saved)[1])

    def any_of(self, location: str) -> LogVerifier:
        """The verification of any group of a partition that has one with a `next_row`."""
        return next(self.verifier(*key) for key in self._places if key[0] == location and self.next_row(*key) is not None)

    def rows(self, found: Sequence[Unit]) -> Any:
        """The rows of these groups, as a pyarrow.Table of `schema`, up to the `next_row` of each."""
        import pyarrow as pa

        if self._table is None:
            return schema().empty_table()
        rows = self._table.take(pa.array([self._places[unit.location, unit.group] for unit in found], pa.int64()))
        at = rows.schema.get_field_index("next_row")
        rows = rows.set_column(at, rows.schema.field(at), pa.array([unit.next_row for unit in found], pa.int64()))
        for name, kind in _PIECE_COLUMNS:
            rows = rows.append_column(name, pa.array([{"piece": 0, "is_last": True, "cuts": []}.get(name)] * len(found), kind()))
        return rows.cast(schema())

    def cuts(self) -> Iterator[Any]:
        """Yields the states at which groups may be cut, as pyarrow.RecordBatch of CUT_COLUMNS."""
        from pyarrow import parquet

        store = store_at(self._folder) if self._folder else None
        if store is not None and CUTS_FILE in store.names():
            with store.open(CUTS_FILE) as source, parquet.ParquetFile(source) as file:
                yield from file.iter_batches(_CUTS_A_BATCH)


def schema() -> Any:
    """Returns the pyarrow.Schema of what `verify_on` returns."""
    import pyarrow as pa

    return pa.schema([*STATE_COLUMNS, *((name, kind()) for name, kind in _PIECE_COLUMNS)])


def _cuts_kind() -> Any:
    import pyarrow as pa

    return pa.list_(pa.struct([(name, pa.binary() if kind == "binary" else pa.int64()) for name, kind in CUT_COLUMNS[2:]]))


_PIECE_COLUMNS: tuple[tuple[str, Callable[[], Any]], ...] = (
    ("piece", lambda: "int64"),
    ("is_last", lambda: "bool"),
    ("began", lambda: "string"),
    ("ended", lambda: "string"),
    ("cuts", _cuts_kind),
)
"""`began`, `ended`: hashes of the states at which a piece begins and ends; `ended` is null when it
could not be read or compared up to there. `cuts`: states within it.
"""


def state_row(bucket: int, place: int, group: str, saved: bytes) -> dict[str, Any]:
    """Returns the row that brings a state to the task that goes on from it."""
    return {"bucket": bucket, "place": place, "seq": BEFORE, "group": group, "payload": saved}


def verify_on(unit: Unit) -> dict[str, Any]:
    """Verifies one group, or a piece of it, from where its state is, and returns its row."""
    row: dict[str, Any] = {"next_row": unit.next_row, "saved": None, "piece": unit.piece, "is_last": unit.until_row is None}
    row |= {"began": None, "ended": None, "cuts": []}
    try:
        log, order = LogVerifier() if unit.saved is None else LogVerifier.restore(unit.saved), unit.order
        if unit.saved is not None and order is not None:
            row["began"] = _hash(left(order, log.save()))
        row["cuts"] = _read(unit, log)
        if order is not None and log.may_go_on:
            row["saved"] = left(order, log.save())
            row["ended"] = _hash(row["saved"])
        return {**row, **row_of(unit, log.answer())}
    except Exception as error:  # noqa: BLE001 - as in `verify_group`
        return {**row, **failed(unit, error), "next_row": 0, "saved": None, "ended": None}


def _hash(saved: bytes) -> str:
    return hashlib.sha256(saved).hexdigest()


def _read(unit: Unit, log: LogVerifier) -> list[dict[str, Any]]:
    """Reads the log to its end. Returns states within, at multiples of `cut_every` records: at the
    same ones whenever it is read.
    """
    cuts: list[dict[str, Any]] = []
    entries = unit.entries()
    while unit.cut_every:
        due = log.records + unit.cut_every - log.records % unit.cut_every
        log.read(islice(entries, due - log.records))
        if log.records < due:
            break
        if log.may_go_on and unit.order is not None and unit.passed is not None and unit.passed.next_row:
            cuts.append({"row": unit.passed.next_row, "records": due, "saved": left(unit.order, log.save())})
    else:
        log.read(entries)
    if cuts and cuts[-1]["records"] == log.records:
        cuts.pop()  # nothing came behind it
    return cuts


def distance(records: int, least: int = CUT_RECORDS) -> int:
    """Returns after how many records each a group of so many leaves states."""
    while records > MOST_CUTS * least:
        least *= 2
    return least


@attrs.frozen(kw_only=True)
class VerifiedGroups:
    """The answer of a run. `rows`: DataFrame of `schema`, with one row for each group. `cuts`:
    DataFrame whose column `cuts` has all states that it has left. `keeps`: which of the former ones
    stay: of location, group and row. `frames`: what Spark keeps of it.
    """

    rows: Any
    cuts: Any
    keeps: Callable[[str, str, int], bool]
    counts: dict[str, Any]
    frames: list[Any]

    def unpersist(self) -> None:
        """Lets go what Spark keeps of it."""
        for frame in self.frames:
            frame.unpersist()

    def write(self, former: Former, folder: Path) -> None:
        """Writes what it leaves to `folder`, which it makes."""
        import pyarrow as pa
        from pyarrow.parquet import ParquetWriter

        write_table(self.rows.select(*(name for name, _ in STATE_COLUMNS)), ("group", "location"), folder)
        there = self.cuts.where("size(cuts) > 0")
        new = there.selectExpr("location", "`group`", "inline(cuts)") if there.limit(1).count() else None
        kinds = pa.schema(list(CUT_COLUMNS))
        with ParquetWriter(folder / CUTS_FILE, kinds) as file:
            for batch in former.cuts():
                places = zip(*(batch.column(name).to_pylist() for name in ("location", "group", "row")), strict=True)
                file.write_batch(batch.filter(pa.array([self.keeps(*place) for place in places], pa.bool_())).cast(kinds))
            for batch in () if new is None else sorted_batches(new, ("group", "location", "row")):
                file.write_batch(batch.cast(kinds))
