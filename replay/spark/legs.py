"""`verify` of a long archive in legs. The states are written after each, so that a killed run goes
on from there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from equipoise.log.parquet.files import Part, rows_of_groups
from equipoise.log.parquet.manifests import PartitionFiles
from equipoise.log.stored import BrokenStoreError
from equipoise.replay.spark.groups import Files, Unit, strict_files_of
from equipoise.replay.spark.incremental import IncrementalPlan, plan_of
from equipoise.replay.spark.states import Former

ROWS_A_CORE = 2_500_000
"""A leg's rows for each core: some minutes. Each costs one job of Spark, and writing all states."""
Place = tuple[str, str]
"""(location, group)."""


@attrs.frozen
class Leg:
    """A part of a run. `units`: with the records in `files`, which are those of the legs before,
    too.
    """

    units: list[Unit]
    files: Files
    is_last: bool = False


@attrs.define
class Legs:
    """A run over `units`. `former`: the states that it goes on from: those of the run before, then
    of its last leg, which the caller sets. `most_rows`: of one leg, where files allow it.
    """

    units: Sequence[Unit]
    former: Former
    most_rows: int
    is_last: bool = attrs.field(default=False, init=False)
    """Whether the leg whose work `plans` has yielded last is the last one."""
    rows: int = attrs.field(default=0, init=False)
    rows_read: int = attrs.field(default=0, init=False)
    """Of all partitions: how many there are, and how many are read at the end of that leg."""
    _read: set[Place] = attrs.field(factory=set, init=False)
    _went_on: set[Place] = attrs.field(factory=set, init=False)

    def plans(self) -> Iterator[IncrementalPlan]:
        """Yields the work of each leg. Raises what `plan_of` raises.

        A group that could not be verified to the end of a leg begins at the start again, so it
        waits for the last one.
        """
        first, files = self.former, strict_files_of(self.units)
        self.rows = _rows_of(files)
        for leg in _legs(self.units, files, first, self.most_rows):
            plan = plan_of([unit for unit in leg.units if leg.is_last or not self._waits(unit)], self.former, files=leg.files)
            if not plan.folded and not leg.is_last:
                continue
            places = {(unit.location, unit.group) for unit in plan.folded if unit.group}
            self._read |= places
            self._went_on |= {place for place in places if first.next_row(*place) is not None}
            self.is_last, self.rows_read = leg.is_last, _rows_of(leg.files)
            yield plan

    def _waits(self, unit: Unit) -> bool:
        place = (unit.location, unit.group)
        return place in self._read and self.former.next_row(*place) is None

    def counts(self) -> dict[str, int]:
        """Returns what `IncrementalPlan.counts` returns, of all legs so far, and `pieces`: how many
        groups were read.
        """
        unchanged = len({(unit.location, unit.group) for unit in self.units if unit.group} - self._read)
        read, went_on = len(self._read), len(self._went_on)
        return {"went_on": went_on, "began": read - went_on, "unchanged": unchanged, "pieces": read}


def _legs(units: Sequence[Unit], files: Files, former: Former, most_rows: int) -> Iterator[Leg]:
    """Every partition gets the same share of its new files in each leg, so that each leg has work
    for all cores.
    """
    begins = former.begins()
    passed = {location: _Passed(begins.get(location, 0), each) for location, each in files.items()}
    count = max(1, -(-sum(each.new_rows for each in passed.values()) // most_rows))
    for number in range(1, count):
        for each in passed.values():
            each.go(each.begin + each.new_rows * number // count)
        found = []
        for unit in units:
            rows = passed[unit.location].rows.get(unit.group, 0)
            if files[unit.location].problem:
                continue  # what is wrong is of the last leg
            if rows or former.next_row(unit.location, unit.group) is not None:
                found.append(attrs.evolve(unit, records=rows))
        yield Leg(found, {location: attrs.evolve(each.files, parts=tuple(each.parts), problem="") for location, each in passed.items()})
    yield Leg(list(units), files, is_last=True)


def _rows_of(files: Files) -> int:
    return sum(each.next_row for each in files.values())


@attrs.define
class _Passed:
    """The files of a partition that the legs so far have. `begin`: rows before it were read by the
    run before. `rows`: group -> how many it has in these files.
    """

    begin: int
    files: PartitionFiles
    parts: list[Part] = attrs.field(factory=list, init=False)
    rows: dict[str, int] = attrs.field(factory=dict, init=False)

    @property
    def new_rows(self) -> int:
        return max(0, self.files.next_row - self.begin)

    def go(self, row: int) -> None:
        """Goes on to the last file that ends at or before a row. A file that cannot be read, and
        those behind it, are of the last leg.
        """
        for part in self.files.parts[len(self.parts) :]:
            if part.next_row > max(row, self.begin):
                return
            try:
                found = rows_of_groups(part)
            except BrokenStoreError:
                if part.next_row > self.begin:
                    return
                found = {}  # it was read before
            self.parts.append(part)
            for group, rows in found.items():
                self.rows[group] = self.rows.get(group, 0) + rows
