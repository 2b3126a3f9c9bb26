"""`verify` that goes on where the run before ended: it reads the rows that came since, and the
states of the groups that the run before has left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from equipoise.events import codec
from equipoise.events.errors import InputError
from equipoise.events.log.parquet.files import Part, rows_of_groups
from equipoise.events.log.parquet.log import ArchiveLog
from equipoise.events.log.parquet.stores import split_location, store_at
from equipoise.events.log.stored import BrokenStoreError
from equipoise.replay.spark.groups import Numbers, Unit, left, over_groups, unpacked
from equipoise.replay.spark.pieces import BEFORE, Targets
from equipoise.replay.spark.pieces import schema as of_rows
from equipoise.replay.spark.results import FILE
from equipoise.replay.spark.verify import COLUMNS, failed, row_of
from equipoise.replay.verification import LogVerifier

STATE_COLUMNS = (*COLUMNS, ("next_row", "int64"), ("saved", "binary"))
"""`next_row`: of the group's partition, the first row that was not read. `saved`: what a later run
goes on from; null: it begins at the start.
"""


class Former:
    """What the run before has left: a row for each group, as `STATE_COLUMNS`."""

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
        """The first row of the group's partition that was not read; None: it begins at the start.
        """
        at = self._places.get((location, group))
        if self._table is None or at is None or not self._table.column("saved")[at].is_valid:
            return None
        return int(self._table.column("next_row")[at].as_py())

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
        """The rows of these groups, as a pyarrow.Table, up to the `next_row` of each."""
        import pyarrow as pa

        if self._table is None:
            return pa.schema(list(STATE_COLUMNS)).empty_table()
        rows = self._table.take(pa.array([self._places[unit.location, unit.group] for unit in found], pa.int64()))
        at = rows.schema.get_field_index("next_row")
        return rows.set_column(at, rows.schema.field(at), pa.array([unit.next_row for unit in found], pa.int64()))


@attrs.frozen
class IncrementalPlan:
    """What a run has to do. `folded`: groups with rows that were not read; `unchanged`: those
    without, up to the end of their partitions.
    """

    former: Former
    folded: list[Unit]
    unchanged: list[Unit]

    def counts(self) -> dict[str, int]:
        """Returns how many groups go on, begin at the start, and have nothing new."""
        going_on = sum(self.former.next_row(unit.location, unit.group) is not None for unit in self.folded)
        return {"went_on": going_on, "began": len(self.folded) - going_on, "unchanged": len(self.unchanged)}

    def begun(self, numbers: Numbers, targets: Sequence[Targets]) -> Any:
        """The states of groups that go on, and LogOpened for those that are new there."""
        import pyarrow as pa

        rows: list[dict[str, Any]] = []
        opened: dict[int, Mapping[str, Any]] = {}
        for unit in self.folded:
            place = numbers[unit.location]
            saved = self.former.saved(unit.location, unit.group)
            if unit.first_row and saved is not None:
                rows.append({"bucket": targets[place].groups[unit.group], "place": place, "seq": BEFORE, "group": unit.group, "payload": saved})
                if place not in opened:
                    opened[place] = _opened_row(self.former.verifier(unit.location, unit.group))
            elif unit.first_row and place not in opened:
                opened[place] = _opened_row(self.former.any_of(unit.location))
        partitions = {place: split_location(location)[1] for location, place in numbers.items()}
        for place, row in opened.items():
            heads = {"place": place, "seq": 0, "partition": partitions[place]}
            rows += [{**row, **heads, "bucket": bucket} for bucket in sorted(targets[place].every)]
        return pa.Table.from_pylist(rows, schema=of_rows())


def plan_of(units: Sequence[Unit], former: Former) -> IncrementalPlan:
    """Finds the groups with new rows, from what files say that they hold. Raises InputError for an
    archive that has fewer rows than were read of it.
    """
    plan = IncrementalPlan(former, [], [])
    archives: dict[str, dict[int, list[Part]]] = {}
    by_location: dict[str, list[Unit]] = {}
    for unit in units:
        by_location.setdefault(unit.location, []).append(unit)
    for location, found in by_location.items():
        archive, partition = split_location(location)
        assert partition is not None, "a unit names its partition"
        if archive not in archives:
            with ArchiveLog(archive, "r") as log:
                archives[archive] = log.files()
        _plan_partition(plan, location, archives[archive].get(partition, []), found)
    return plan


def _plan_partition(plan: IncrementalPlan, location: str, parts: Sequence[Part], found: Sequence[Unit]) -> None:
    known = {unit.group: plan.former.next_row(location, unit.group) for unit in found}
    rows = [row for row in known.values() if row is not None]
    end = parts[-1].next_row if parts else 0
    if max(rows, default=0) > end:
        problem = f"has {end:,} rows, and {max(rows):,} were verified: it is another archive"
        raise InputError(f"{location}: {problem}; name other --states to begin at the start")
    new = _Rows()
    for part in parts if rows else ():
        if part.next_row > min(rows):
            new.take(part)
    for unit in found:
        row = known[unit.group]
        if row is None:
            began = new.began(unit) if rows else 0
            plan.folded.append(attrs.evolve(unit, first_row=began))
        elif new.last.get(unit.group, 0) > row or new.unknown > row:
            plan.folded.append(attrs.evolve(unit, first_row=row))
        else:
            plan.unchanged.append(attrs.evolve(unit, next_row=end))


@attrs.define
class _Rows:
    """Where groups have rows in the files that may be new."""

    first: dict[str, int] = attrs.field(factory=dict)
    """Group -> first row of the first file that has some of it."""
    last: dict[str, int] = attrs.field(factory=dict)
    """Group -> the row after the last file that has some of it."""
    counts: dict[str, int] = attrs.field(factory=dict)
    unknown: int = 0
    """The row after the last file of which nobody knows whose it is."""

    def take(self, part: Part) -> None:
        try:
            found = rows_of_groups(part)
        except BrokenStoreError:
            self.unknown = part.next_row
            return
        for group, rows in found.items():
            self.first.setdefault(group, part.first_row)
            self.last[group] = part.next_row
            self.counts[group] = self.counts.get(group, 0) + rows

    def began(self, unit: Unit) -> int:
        """The row at which to begin with a group that nothing is known of: it may be new."""
        return self.first[unit.group] if self.counts.get(unit.group) == unit.records else 0


def verify_on(unit: Unit) -> dict[str, Any]:
    """Verifies one group from where its state is, and returns its row."""
    try:
        log = LogVerifier() if unit.saved is None else LogVerifier.restore(unit.saved)
        log.read(unit.entries())
        saved = left(unit.order, log.save()) if unit.order is not None and log.may_go_on else None
        return {**row_of(unit, log.answer()), "next_row": unit.next_row, "saved": saved}
    except Exception as error:  # noqa: BLE001 - as in `verify_group`
        return {**failed(unit, error), "next_row": 0, "saved": None}


def spark_verify_on(spark: Any, plan: IncrementalPlan) -> Any:
    """Returns a DataFrame with one row for each unit of the plan, as `STATE_COLUMNS`."""
    import pyarrow as pa

    schema = pa.schema(list(STATE_COLUMNS))
    unchanged = spark.createDataFrame(plan.former.rows(plan.unchanged).cast(schema)) if plan.unchanged else None
    if not plan.folded:
        return unchanged
    rows = over_groups(spark, plan.folded, verify_on, schema, begun=plan.begun)
    return rows if unchanged is None else rows.union(unchanged)


def _opened_row(log: LogVerifier) -> Mapping[str, Any]:
    opened = log.opened
    assert opened is not None, "a group is verified from LogOpened on"
    encoded = codec.encode(opened.event)
    return {
        "group": "", "offset": opened.offset, "append_ms": opened.append_ms, "kind": encoded.kind, "version": encoded.version,
        "payload": encoded.payload, "checksum": opened.checksum,
    }  # fmt: skip
