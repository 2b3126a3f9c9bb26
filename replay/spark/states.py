"""The states that a verification leaves: of each group where it ended, from which the next run goes
on.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs

from equipoise.events.errors import InputError
from equipoise.log.parquet.archive_stores import store_at
from equipoise.replay.spark.groups import Unit, left, unpacked
from equipoise.replay.spark.pieces import BEFORE
from equipoise.replay.spark.results import FILE, write_table
from equipoise.replay.spark.verify import COLUMNS, failed, row_of
from equipoise.replay.verification import LogVerifier

STATE_COLUMNS = (*COLUMNS, ("next_row", "int64"), ("saved", "binary"))
"""`next_row`: of the group's partition, the first row that was not read. `saved`: what a later run
goes on from; null: it begins at the start.
"""


class Former:
    """The states that the run before has left: a row for each group, as `STATE_COLUMNS`."""

    def __init__(self, table: Any | None = None) -> None:
        self._table = table
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
            former = cls(parquet.read_table(source))
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
        return rows.cast(schema())


def schema() -> Any:
    """Returns the pyarrow.Schema of what `verify_on` returns."""
    import pyarrow as pa

    return pa.schema(list(STATE_COLUMNS))


def state_row(bucket: int, place: int, group: str, saved: bytes) -> dict[str, Any]:
    """Returns the row that brings a state to the task that goes on from it."""
    return {"bucket": bucket, "place": place, "seq": BEFORE, "group": group, "payload": saved}


def verify_on(unit: Unit) -> dict[str, Any]:
    """Verifies one group from where its state is, and returns its row."""
    try:
        log, order = LogVerifier() if unit.saved is None else LogVerifier.restore(unit.saved), unit.order
        log.read(unit.entries())
        saved = left(order, log.save()) if order is not None and log.may_go_on else None
        return {"next_row": unit.next_row, "saved": saved, **row_of(unit, log.answer())}
    except Exception as error:  # noqa: BLE001 - as in `verify_group`
        return {**failed(unit, error), "next_row": 0, "saved": None}


@attrs.frozen(kw_only=True)
class VerifiedGroups:
    """The answer of a run. `rows`: DataFrame of `schema`, with one row for each group. `kept`: what
    Spark keeps of it; None: nothing.
    """

    rows: Any
    counts: dict[str, int]
    kept: Any | None

    def unpersist(self) -> None:
        """Lets go what Spark keeps of it."""
        if self.kept is not None:
            self.kept.unpersist()

    def write(self, folder: Path) -> None:
        """Writes what it leaves to `folder`, which it makes."""
        write_table(self.rows, ("group", "location"), folder)
