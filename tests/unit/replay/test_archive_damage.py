"""Whatever is done to an archive, no way of verifying it says "identical" where a record is missing,
and what is damaged costs its partition and nothing else.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from bench.many_groups import _Group
from equipoise.events.errors import EquipoiseError
from equipoise.events.facts import LogOpened, ProbingTick
from equipoise.log import open_log
from equipoise.log.parquet import manifests, snapshot
from equipoise.log.parquet.archive_stores import FolderStore, store_at
from equipoise.log.parquet.files import all_parts
from equipoise.log.parquet.log import ArchiveLog
from equipoise.replay.spark.groups import units_of
from equipoise.replay.spark.incremental import lost_partitions, plan_of
from equipoise.replay.spark.results import write_rows
from equipoise.replay.spark.states import STATE_COLUMNS, Former, verify_on
from equipoise.replay.spark.verify import verify_group
from equipoise.replay.verification import verify_log
from tests.unit.replay.tasks_of_spark import on_tasks

DAY_MS = 86_400_000
DAYS = (("a", "b"), ("a", "b"), ("a", "c"))
"""Groups that speak on each day, in both partitions. Each day is a file; one group is in the last
alone.
"""
FACTS = 12
"""Of each group on each day."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return of_three_days(tmp_path_factory.mktemp("damage") / "archive")


def of_three_days(archive: Path) -> Path:
    """Makes an archive of two partitions, with a file for each day."""
    for partition in (0, 1):
        groups = {name: _Group(f"{name}{partition}") for name in "abc"}
        with ArchiveLog(f"{archive}?partition={partition}", "a") as log:
            for day, names in enumerate(DAYS):
                with log.transaction():
                    if not day:
                        opened = log.append_fact("", 1, LogOpened(log_id="damage", partitions=2))
                        for group in groups.values():
                            group.machine.step(opened)
                    for at in range(FACTS):
                        for group in (groups[name] for name in names):
                            record = log.append_fact(group.name, 1 + day * DAY_MS + at * 1_000, group.fact())
                            log.append_decisions(group.machine.step(record))
    return archive


@pytest.fixture(scope="module")
def records(whole: Path) -> dict[str, int]:
    """Group -> its records, with LogOpened."""
    return {row["group"]: row["records"] for row in on_tasks(units_of([str(whole)]), verify_group)}


@pytest.fixture
def archive(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(snapshot, "_WAITS_S", ())
    shutil.copytree(whole, tmp_path / "archive")
    return tmp_path / "archive"


def file_of(archive: Path, day: int, partition: int = 0) -> Path:
    return archive / [part.name for part in all_parts(store_at(archive)) if part.partition == partition][day]


def manifests_of(archive: Path, partition: int = 0) -> list[Path]:
    return sorted((archive / manifests.FOLDER).glob(f"p{partition:05}.*"))


# ------------------------------------------------------------------------------------ what is done

Damage = Callable[[Path], None]


def missing(file: Path) -> None:
    file.unlink()


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def empty(file: Path) -> None:
    file.write_bytes(b"")


def flipped(file: Path) -> None:
    changed = bytearray(file.read_bytes())
    changed[len(changed) // 3] ^= 1
    file.write_bytes(changed)


def flipped_footer(file: Path) -> None:
    changed = bytearray(file.read_bytes())
    changed[-40] ^= 1
    file.write_bytes(changed)


def foreign(file: Path) -> None:
    """What another partition has in its place."""
    file.write_bytes(
        Path(str(file).replace("p00000", "p00001")).read_bytes() if file.suffix == ".json" else file_of(file.parents[1], 0, 1).read_bytes()
    )


def old(file: Path) -> None:
    """What was there before."""
    before = manifests_of(file.parents[1])[-2] if file.suffix == ".json" else file_of(file.parents[1], (_day(file) - 1) % 3)
    file.write_bytes(before.read_bytes())


def _day(file: Path) -> int:
    return [file_of(file.parents[1], day) for day in range(3)].index(file)


def cells() -> Iterator[Any]:
    for day in range(3):
        for damage in (missing, cut, empty, flipped, flipped_footer, foreign, old):
            yield pytest.param(lambda archive, day=day, damage=damage: damage(file_of(archive, day)), id=f"file {day} {damage.__name__}")
    for damage in (missing, cut, empty, flipped, foreign, old):
        yield pytest.param(lambda archive, damage=damage: damage(manifests_of(archive)[-1]), id=f"manifest {damage.__name__}")
    yield pytest.param(_remove_files, id="files of the partition missing")
    yield pytest.param(_remove_partition, id="partition missing")
    yield pytest.param(_of_another_log, id="manifest of another archive")


def _remove_files(archive: Path) -> None:
    for file in [*archive.glob("date=*/p00000.*")]:
        file.unlink()


def _remove_partition(archive: Path) -> None:
    for file in [*archive.rglob("p00000.*")]:
        file.unlink()


def _of_another_log(archive: Path) -> None:
    """With the same number."""
    other = archive.parent / "other"
    with ArchiveLog(str(other), "a") as log:
        log.append_fact("", 1, LogOpened(log_id="other", partitions=2))
        for at_ms in (2, 3):
            log.append_fact("a0", at_ms, ProbingTick())
    shutil.copy(manifests_of(other)[-1], manifests_of(archive)[-1])


# ------------------------------------------------------------------------------------------ verified


@attrs.frozen
class Answer:
    """`groups`: group -> (verdict, records); of a partition that is named itself, group ""."""

    verdict: str
    groups: dict[str, tuple[str, int]]


def plain(archive: Path) -> Answer:
    with open_log(archive) as log:
        found = verify_log(log)
    return Answer(
        found.verdict.value, {each.group: (each.verdict.value, each.facts + each.compared + each.not_compared + 1) for each in found.groups}
    )


def spark(archive: Path) -> Answer:
    return _of_rows(on_tasks(units_of([str(archive)]), verify_group))


def with_states(archive: Path) -> Answer:
    """After a run over the whole archive."""
    states = archive.parent / "states"
    units = units_of([str(archive)])
    former = Former.read(str(states)) if states.exists() else Former()
    plan = plan_of([*units, *lost_partitions(units, former)], former)
    rows = on_tasks(plan.folded, verify_on, begun=plan.begun, files=plan.files) if plan.folded else []
    rows += plan.former.rows(plan.unchanged).to_pylist()
    shutil.rmtree(states, ignore_errors=True)
    write_rows([{name: row[name] for name, _ in STATE_COLUMNS} for row in rows], STATE_COLUMNS, states)
    return _of_rows(rows)


def _of_rows(rows: list[dict[str, Any]]) -> Answer:
    verdicts = [row["verdict"] for row in rows]
    worst = next((each for each in ("divergence", "cannot verify") if each in verdicts), "identical")
    of_its_own = [row for row in rows if row["location"][-1] == (row["group"] or row["location"])[-1]]  # not what a foreign file claims to have
    return Answer(worst, {row["group"]: (row["verdict"], row["records"]) for row in of_its_own})


def must_be_honest(answer: Answer, records: dict[str, int]) -> None:
    """The other partition's groups are verified, and of this one none that lacks a record."""
    assert answer.verdict == "cannot verify"
    must_lack_nothing(answer, records)


def must_lack_nothing(answer: Answer, records: dict[str, int]) -> None:
    assert {group: answer.groups.get(group) for group in records if group.endswith("1")} == {
        group: ("identical", count) for group, count in records.items() if group.endswith("1")
    }
    for group, (verdict, count) in answer.groups.items():
        assert verdict != "identical" or count == records[group], group
        assert verdict != "divergence", group


@pytest.mark.parametrize("damage", [*cells()])
def test_damage_is_named_and_costs_its_partition_alone(archive: Path, records: dict[str, int], damage: Damage) -> None:
    assert with_states(archive).verdict == "identical"
    damage(archive)
    for way in (plain, spark):
        must_be_honest(way(archive), records)
    for _ in range(2):  # files that were verified before are not read again
        must_lack_nothing(with_states(archive), records)


@pytest.mark.parametrize("damage", [*cells()])
def test_appender_refuses_what_is_damaged_or_goes_on_behind_all_of_it(archive: Path, records: dict[str, int], damage: Damage) -> None:
    damage(archive)
    try:
        with ArchiveLog(f"{archive}?partition=0", "a") as log:
            if not log.position():
                return  # nothing is there of it, and what is copied begins at the start
            log.append_fact("a0", 9 * DAY_MS, ProbingTick())
    except EquipoiseError:
        must_be_honest(plain(archive), records)
        return
    answer = plain(archive)
    if answer.verdict == "identical":
        assert answer.groups == {group: ("identical", count + (group == "a0")) for group, count in records.items()}
    else:
        must_be_honest(answer, records)


def test_whole_archive_is_identical_in_every_way(archive: Path, records: dict[str, int]) -> None:
    whole = Answer("identical", {group: ("identical", count) for group, count in records.items()})
    assert [way(archive) for way in (plain, spark, with_states, with_states)] == [whole] * 4
    manifests_of(archive)[0].unlink()
    assert plain(archive) == whole, "an old manifest"


@pytest.mark.parametrize("day", [0, 1, 2])
def test_without_manifests_a_hole_is_named_and_a_lost_end_is_not_proven(archive: Path, records: dict[str, int], day: int) -> None:
    shutil.rmtree(archive / manifests.FOLDER)
    file_of(archive, day).unlink()
    if day < 2:
        for way in (plain, spark):
            must_be_honest(way(archive), records)
        return
    with open_log(archive) as log:
        found = verify_log(log)
    assert found.extent is not None
    assert [each.manifest for each in found.extent.read] == [None, None]


def test_without_manifests_a_partition_that_the_log_has_is_named(archive: Path, records: dict[str, int]) -> None:
    shutil.rmtree(archive / manifests.FOLDER)
    _remove_partition(archive)
    for way in (plain, spark):
        must_be_honest(way(archive), records)


def test_states_know_a_partition_that_nothing_else_names(archive: Path, records: dict[str, int]) -> None:
    """An archive without manifests of a log whose first record does not say how many there are."""
    with_states(archive)
    former = Former.read(str(archive.parent / "states"))
    units = [unit for unit in units_of([str(archive)]) if unit.location.endswith("=1")]
    (lost,) = lost_partitions(units, former)
    assert lost.location == f"{FolderStore(archive).absolute}?partition=0"
    assert lost.problem == "partition 0 is not there, and was verified by a former run; restore it from a copy"
