"""What Spark's tasks do with an archive, without Spark: the same rows as of one group at a time, to
the byte, however files are damaged.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from bench.many_groups import ManyGroups, copy, make
from equipoise.events.errors import GapError, InputError, RepeatError
from equipoise.log.parquet.archive_stores import store_at
from equipoise.log.parquet.archive_writing import Writer
from equipoise.log.parquet.files import all_parts
from equipoise.log.parquet.log import ArchiveLog
from equipoise.replay.spark.groups import _places_of, files_of, units_of
from equipoise.replay.spark.pieces import pieces_of
from equipoise.replay.spark.verify import verify_group
from tests.unit.replay.tasks_of_spark import on_tasks

GROUPS, PARTITIONS = 12, 2


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Several files in each partition, each with rows of every group."""
    folder = tmp_path_factory.mktemp("pieces")
    make(ManyGroups(groups=GROUPS, partitions=PARTITIONS, records=2_400), folder / "made")
    for partition in range(PARTITIONS):
        with ArchiveLog(f"{folder}/made?partition={partition}", "r") as source, ArchiveLog(f"{folder}/whole?partition={partition}", "w") as target:
            rows = [row for row, _ in source.part(partition).checked_rows()]
            for first in range(0, len(rows), 300):
                with target.transaction():
                    for row in rows[first : first + 300]:
                        target.append_row(row)
    return folder / "whole"


@pytest.fixture
def archive(whole: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole, tmp_path / "archive")
    return tmp_path / "archive"


def files_in(archive: Path, partition: int) -> list[Path]:
    return [archive / part.name for part in all_parts(store_at(archive)) if part.partition == partition]


def as_on_spark(*archives: Path, tasks: int = 3) -> list[dict[str, Any]]:
    return on_tasks(units_of([str(each) for each in archives]), verify_group, tasks=tasks)


def key(row: dict[str, Any]) -> tuple[str, str, str]:
    return row["location"], row["group"], row["problem"] or ""


def assert_as_alone(*archives: Path, tasks: int = 3) -> dict[str, str]:
    """Returns group -> verdict, of the last archive."""
    rows = as_on_spark(*archives, tasks=tasks)
    assert sorted(rows, key=key) == sorted((verify_group(unit) for unit in units_of([str(each) for each in archives])), key=key)
    return {row["group"]: row["verdict"] for row in rows if row["location"].startswith(str(archives[-1]))}


def test_rows_are_those_of_one_group_at_a_time(archive: Path) -> None:
    assert len(files_in(archive, 0)) > 3
    verdicts = assert_as_alone(archive)
    assert (len(verdicts), set(verdicts.values())) == (GROUPS, {"identical"})


def test_two_archives_and_one_that_is_named_twice(archive: Path, whole: Path) -> None:
    assert len(assert_as_alone(whole, archive, whole)) == GROUPS
    assert len(as_on_spark(whole, archive, whole)) == 2 * GROUPS


def flip(file: Path) -> None:
    changed = bytearray(file.read_bytes())
    changed[len(changed) // 3] ^= 1
    file.write_bytes(changed)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-20])


@pytest.mark.parametrize("damage", [flip, cut])
@pytest.mark.parametrize(("at", "tasks"), [((0,), 3), ((2,), 100), ((0, 3), 3), ((1, 2), 100)])
def test_damaged_files_stop_the_groups_of_their_partition(archive: Path, damage: Callable[[Path], None], at: tuple[int, ...], tasks: int) -> None:
    """With 100 tasks, each group, and each file of which nobody knows whose it is, has its own."""
    for each in at:
        damage(files_in(archive, 0)[each])
    verdicts = assert_as_alone(archive, tasks=tasks)
    stopped = {unit.group for unit in units_of([str(archive)]) if unit.location.endswith("=0")}
    assert {group for group, verdict in verdicts.items() if verdict != "identical"} == stopped
    assert ("" in stopped) == (damage is cut)


def test_file_that_has_other_facts_than_its_neighbours_leave_to_it_is_a_gap(archive: Path) -> None:
    piece = pieces_of(_places_of(units := units_of([str(archive)]), files_of(units)))[1]
    assert piece.due
    with pytest.raises(GapError, match=f"offset {piece.ends_offset}: is missing; the next record has offset {piece.ends_offset + 1}") as caught:
        list(attrs.evolve(piece, ends_offset=piece.ends_offset + 1).read())
    assert caught.value.offset == piece.ends_offset
    with pytest.raises(GapError, match=f"offset {piece.due - 1}: is missing; the next record has offset {piece.due}"):
        list(attrs.evolve(piece, due=piece.due - 1).read())
    with pytest.raises(RepeatError, match=f"offset {piece.due}: came again where offset {piece.due + 1} was due"):
        list(attrs.evolve(piece, due=piece.due + 1).read())


def test_files_that_overlap_are_read_once(archive: Path) -> None:
    """As two processes that archive the same log at once leave them."""
    with ArchiveLog(f"{archive}?partition=1", "r") as log:
        rows = [row for row, _ in log.part(1).checked_rows()]
    offset = max(row.offset for row in rows[:150] if hasattr(row, "offset")) + 1
    writer = Writer(store_at(archive), 1, 150, offset, 0)
    for row in rows[150:700]:
        writer.add(row)
    writer.publish()
    verdicts = assert_as_alone(archive)
    assert set(verdicts.values()) == {"identical"}


def test_archive_that_a_worker_does_not_see_is_said(archive: Path, tmp_path: Path) -> None:
    (piece, *_) = pieces_of(_places_of(units := units_of([str(archive)]), files_of(units)))
    archive.rename(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="a worker of Spark does not see this archive; every worker must, under the same path"):
        list(piece.read())


def test_copies_of_an_archive_verify_under_names_of_their_own(archive: Path) -> None:
    copy(archive, 2)
    with ArchiveLog(str(archive), "r") as log:
        groups = log.groups()
    assert len(groups) == 3 * GROUPS
    assert sorted({partition for partition, _ in groups.values()}) == list(range(3 * PARTITIONS))
    rows = as_on_spark(archive)
    assert [row["problem"] for row in rows] == [None] * (3 * GROUPS)
    assert {row["group"] for row in rows} == set(groups)
