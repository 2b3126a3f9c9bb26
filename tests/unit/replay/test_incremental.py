"""`spark verify --states`, without Spark: whatever was read before, the rows are those of a run
over everything.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgpack
import pyarrow as pa
import pytest

from bench.many_groups import ManyGroups, make
from equipoise.events.errors import InputError
from equipoise.events.facts import ProbingTick
from equipoise.log.parquet.archive_stores import store_at
from equipoise.log.parquet.compact import compact
from equipoise.log.parquet.files import all_parts
from equipoise.log.parquet.log import ArchiveLog
from equipoise.log.rows import Row
from equipoise.replay.spark.groups import Unit, left, units_of, unpacked
from equipoise.replay.spark.incremental import IncrementalPlan, plan_of
from equipoise.replay.spark.results import FILE, write_rows
from equipoise.replay.spark.states import STATE_COLUMNS, Former, verify_on
from equipoise.replay.spark.verify import COLUMNS, verify_group
from tests.unit.replay.tasks_of_spark import on_tasks
from tests.unit.replay.test_pieces import cut, flip

GROUPS, PARTITIONS = 7, 2


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[list[Row]]:
    folder = tmp_path_factory.mktemp("incremental") / "made"
    make(ManyGroups(groups=GROUPS, partitions=PARTITIONS, records=1_400), folder)
    found = []
    for partition in range(PARTITIONS):
        with ArchiveLog(f"{folder}?partition={partition}", "r") as log:
            found.append([row for row, _ in log.part(partition).checked_rows()])
    return found


class Archive:
    """An archive that grows, and what a run has left."""

    def __init__(self, folder: Path, rows: list[list[Row]]) -> None:
        self.folder, self._rows, self._ends = folder / "archive", rows, [0] * PARTITIONS
        self.states = folder / "states"

    def grow(self, to: float, *, only: int | None = None) -> None:
        """Up to this share of the rows, in a file more for each partition."""
        for partition, rows in enumerate(self._rows):
            end = int(len(rows) * to)
            if only in (None, partition) and end > self._ends[partition]:
                with ArchiveLog(f"{self.folder}?partition={partition}", "a") as log, log.transaction():
                    for row in rows[self._ends[partition] : end]:
                        log.append_row(row)
                self._ends[partition] = end

    def verify(self, *, tasks: int = 3) -> tuple[int, ...]:
        """Verifies what is there, and compares with a run over everything. Returns how many groups
        go on, are verified from their start, and have nothing new.
        """
        units = units_of([str(self.folder)])
        plan = plan_of(units, Former.read(str(self.states)))
        self._must_be_those_of_a_whole_run(self._fold(plan, tasks), units)
        return tuple(plan.counts().values())

    def _fold(self, plan: IncrementalPlan, tasks: int) -> list[dict[str, Any]]:
        found = on_tasks(plan.folded, verify_on, tasks=tasks, begun=plan.begun, files=plan.files) if plan.folded else []
        found += plan.former.rows(plan.unchanged).to_pylist()
        shutil.rmtree(self.states, ignore_errors=True)
        write_rows([{name: row[name] for name, _ in STATE_COLUMNS} for row in found], STATE_COLUMNS, self.states)
        return found

    def _must_be_those_of_a_whole_run(self, found: list[dict[str, Any]], units: Sequence[Unit]) -> None:
        names = [name for name, _ in COLUMNS]
        answers = sorted(({name: row[name] for name in names} for row in found), key=lambda row: (row["location"], row["group"]))
        assert answers == sorted((verify_group(unit) for unit in units), key=lambda row: (row["location"], row["group"]))

    def left(self) -> dict[str, dict[str, Any]]:
        return {row["group"]: row for row in pa.parquet.read_table(self.states / FILE).to_pylist()}


@pytest.fixture
def archive(tmp_path: Path, rows: list[list[Row]]) -> Archive:
    return Archive(tmp_path, rows)


@pytest.mark.parametrize("tasks", [1, 3, 100])
def test_each_run_reads_what_came_since(archive: Archive, tasks: int) -> None:
    archive.grow(0.31)
    assert archive.verify(tasks=tasks) == (0, GROUPS, 0)
    assert archive.verify(tasks=tasks) == (0, 0, GROUPS)
    archive.grow(0.6)
    assert archive.verify(tasks=tasks) == (GROUPS, 0, 0)
    archive.grow(1.0, only=1)
    going_on, began, unchanged = archive.verify(tasks=tasks)
    assert (began, going_on + unchanged) == (0, GROUPS)
    assert 0 < going_on < GROUPS
    archive.grow(1.0)
    assert archive.verify(tasks=tasks) == (unchanged, 0, going_on)


@pytest.mark.parametrize("parts", [(0.01, 0.02, 0.03, 0.05, 0.08), (0.005, 0.5, 1.0), (0.2003, 0.2017, 0.9)])
def test_runs_may_end_anywhere(archive: Archive, parts: tuple[float, ...]) -> None:
    """Between a fact and its decisions, and before the first fact of a group."""
    for part in parts:
        archive.grow(part)
        archive.verify()


def test_every_row_may_be_the_last_of_a_run(tmp_path: Path, rows: list[list[Row]]) -> None:
    count = len(rows[0])
    for end in range(2, 44, 3):
        archive = Archive(tmp_path / str(end), rows)
        (tmp_path / str(end)).mkdir()
        archive.grow(end / count + 1e-9)
        archive.verify()
        archive.grow(0.2)
        archive.verify()


def test_files_may_be_merged_between_two_runs(archive: Archive) -> None:
    archive.grow(0.3)
    archive.verify()
    archive.grow(0.5)
    archive.grow(0.7)
    before = {part.name for part in all_parts(store_at(archive.folder))}
    compact(store_at(archive.folder))
    assert before != {part.name for part in all_parts(store_at(archive.folder))}
    assert archive.verify() == (GROUPS, 0, 0)


def test_group_that_is_new_is_read_from_its_first_file_on(archive: Archive) -> None:
    archive.grow(0.5)
    archive.verify()
    with ArchiveLog(f"{archive.folder}?partition=1", "a") as log, log.transaction():
        log.append_fact("a new one", 10**9, ProbingTick())
    (unit,) = (unit for unit in plan_of(units_of([str(archive.folder)]), Former.read(str(archive.states))).folded)
    assert unit.group == "a new one"
    assert unit.first_row == max(part.first_row for part in all_parts(store_at(archive.folder)) if part.partition == 1) > 0
    assert archive.verify() == (0, 1, GROUPS)


def test_group_that_cannot_be_verified_begins_at_the_start(archive: Archive) -> None:
    archive.grow(0.3)
    archive.verify()
    archive.grow(0.6)
    file = next(archive.folder / part.name for part in all_parts(store_at(archive.folder)) if part.partition == 0 and part.first_row)
    sound = file.read_bytes()
    changed = bytearray(sound)
    changed[len(changed) // 3] ^= 1
    file.write_bytes(changed)
    stopped = {unit.group for unit in units_of([str(archive.folder)]) if unit.location.endswith("=0")}
    archive.verify()
    assert {group for group, row in archive.left().items() if row["saved"] is None} == stopped
    file.write_bytes(sound)
    assert archive.verify() == (0, len(stopped), GROUPS - len(stopped))
    assert all(row["saved"] is not None for row in archive.left().values())


def test_another_archive_in_its_place_is_told(archive: Archive, rows: list[list[Row]]) -> None:
    archive.grow(0.6)
    archive.verify()
    shutil.rmtree(archive.folder)
    other = Archive(archive.folder.parent, rows)
    other.grow(0.3)
    with pytest.raises(InputError, match="were verified: it is another archive; name other --states to begin at the start"):
        other.verify()


def test_states_of_another_build_are_told(archive: Archive) -> None:
    archive.grow(0.3)
    archive.verify()
    found = list(archive.left().values())
    order, saved = unpacked(found[0]["saved"])
    found[0]["saved"] = left(order, msgpack.packb([99, *msgpack.unpackb(saved)[1:]]))
    shutil.rmtree(archive.states)
    write_rows(found, STATE_COLUMNS, archive.states)
    with pytest.raises(InputError, match="the saved verification has form 99, this build reads 1; start it again, in another folder"):
        Former.read(str(archive.states))


@pytest.mark.parametrize("damage", [cut, flip])
def test_file_that_is_damaged_after_it_was_verified_is_not_read_again(archive: Archive, damage: Callable[[Path], None]) -> None:
    archive.grow(0.5)
    archive.verify()
    archive.grow(1.0)
    damage(next(archive.folder / part.name for part in all_parts(store_at(archive.folder)) if part.partition == 0 and not part.first_row))
    plan = plan_of([unit for unit in units_of([str(archive.folder)]) if unit.group], Former.read(str(archive.states)))
    assert {row["verdict"] for row in archive._fold(plan, 3)} == {"identical"}
