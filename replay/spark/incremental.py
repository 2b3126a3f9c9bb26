"""`verify` that goes on where the run before ended: it reads the rows that came since, and the
states of the groups that the run before has left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from equipoise.events import codec
from equipoise.events.errors import InputError
from equipoise.log.parquet.archive_stores import split_location
from equipoise.log.parquet.files import Part, rows_of_groups
from equipoise.log.parquet.manifests import PartitionFiles, PartitionState
from equipoise.log.stored import BrokenStoreError
from equipoise.replay.spark.groups import Files, Numbers, Unit, over_groups, strict_files_of
from equipoise.replay.spark.pieces import Targets
from equipoise.replay.spark.pieces import schema as of_rows
from equipoise.replay.spark.results import kept
from equipoise.replay.spark.states import Former, VerifiedGroups, schema, state_row, verify_on
from equipoise.replay.verification import LogVerifier


@attrs.frozen
class IncrementalPlan:
    """The work of a run. `files`: those of the groups' partitions. `folded`: groups with rows that
    were not read; `unchanged`: those without, up to the end of these files.
    """

    former: Former
    files: Files
    folded: list[Unit]
    unchanged: list[Unit]

    def counts(self) -> dict[str, int]:
        """Returns how many groups go on, begin at the start, and have nothing new."""
        groups = [unit for unit in self.folded if unit.group]
        going_on = sum(self.former.next_row(unit.location, unit.group) is not None for unit in groups)
        return {"went_on": going_on, "began": len(groups) - going_on, "unchanged": len(self.unchanged)}

    def begun(self, numbers: Numbers, targets: Sequence[Targets]) -> Any:
        """The states of groups that go on, and LogOpened for those that are new there."""
        import pyarrow as pa

        rows: list[dict[str, Any]] = []
        opened: dict[int, Mapping[str, Any]] = {}
        for unit in self.folded:
            place = numbers[unit.location]
            saved = self.former.saved(unit.location, unit.group)
            if unit.first_row and saved is not None:
                rows.append(state_row(targets[place].groups[unit.group], place, unit.group, saved))
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
    plan = IncrementalPlan(former, strict_files_of(units), [], [])
    by_location: dict[str, list[Unit]] = {}
    for unit in units:
        by_location.setdefault(unit.location, []).append(unit)
    for location, found in by_location.items():
        _plan_partition(plan, location, plan.files[location], found)
    return plan


def lost_partitions(units: Sequence[Unit], former: Former) -> list[Unit]:
    """Returns the partitions of which groups were verified, and of which nothing is there."""
    archives = {split_location(unit.location)[0] for unit in units}
    found = []
    for location in sorted(former.locations() - {unit.location for unit in units}):
        archive, partition = split_location(location)
        if archive in archives and partition is not None:
            problem = f"partition {partition} is not there, and was verified by a former run; restore it from a copy"
            files = PartitionFiles(partition=partition, state=PartitionState.ABSENT, doubt=problem)
            found.append(Unit(location=location, group="", records=0, problem=problem, files=files))
    return found


def _plan_partition(plan: IncrementalPlan, location: str, files: PartitionFiles, found: Sequence[Unit]) -> None:
    known = {unit.group: plan.former.next_row(location, unit.group) for unit in found}
    rows = [row for row in known.values() if row is not None]
    end = files.next_row
    if max(rows, default=0) > end and not files.problem:
        problem = f"has {end:,} rows, and {max(rows):,} were verified: it is another archive"
        raise InputError(f"{location}: {problem}; name other --states to begin at the start")
    new = _Rows()
    for part in files.parts if rows else ():
        if part.next_row > min(rows):
            new.take(part)
    for unit in found:
        row = known[unit.group]
        if row is None:
            began = new.began(unit) if rows else 0
            plan.folded.append(attrs.evolve(unit, first_row=began))
        elif new.last.get(unit.group, 0) > row or new.unknown > row or files.problem:
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


def spark_verify_on(spark: Any, plan: IncrementalPlan) -> VerifiedGroups:
    """Verifies each unit of the plan."""
    folded = kept(over_groups(spark, plan.folded, verify_on, schema(), plan.files, plan.begun)) if plan.folded else None
    former = spark.createDataFrame(plan.former.rows(plan.unchanged)) if plan.unchanged else None
    rows = former if folded is None else folded if former is None else folded.union(former)
    return VerifiedGroups(rows=rows, counts=plan.counts(), kept=folded)


def _opened_row(log: LogVerifier) -> Mapping[str, Any]:
    opened = log.opened
    assert opened is not None, "a group is verified from LogOpened on"
    encoded = codec.encode(opened.event)
    return {
        "group": "",
        "offset": opened.offset,
        "append_ms": opened.append_ms,
        "kind": encoded.kind,
        "version": encoded.version,
        "payload": encoded.payload,
        "checksum": opened.checksum,
    }
