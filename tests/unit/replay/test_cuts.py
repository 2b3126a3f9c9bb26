"""`spark verify --states --again`, without Spark: however large groups are cut, the rows are those
of a run that cuts none, and a stored state that is wrong is named.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
import pytest
from pyarrow import parquet

from bench.many_groups import ManyGroups, make
from equipoise.events.decisions import EventRejected
from equipoise.events.records import DecisionRecord, Entry
from equipoise.log import open_log
from equipoise.log.parquet.log import ArchiveLog
from equipoise.log.rows import FactRow, Row
from equipoise.replay.spark.cuts import Ends, PiecesPlan, WrongState, chained, pieces_plan
from equipoise.replay.spark.groups import left, units_of, unpacked
from equipoise.replay.spark.results import write_rows
from equipoise.replay.spark.states import CUT_COLUMNS, CUTS_FILE, MOST_CUTS, STATE_COLUMNS, Former, distance, verify_on
from equipoise.replay.spark.verify import COLUMNS, verify_group
from tests.unit.replay.lived import lived, write
from tests.unit.replay.tasks_of_spark import on_tasks
from tests.unit.replay.test_pieces import cut as cut_short
from tests.unit.replay.test_pieces import files_in, flip

ROWS_A_FILE = 60


def in_files(location: Path, rows: list[Row]) -> None:
    with ArchiveLog(f"{location}?partition=0", "w") as log:
        for first in range(0, len(rows), ROWS_A_FILE):
            with log.transaction():
                for row in rows[first : first + ROWS_A_FILE]:
                    log.append_row(row)


def rows_in(location: Path) -> list[Row]:
    with ArchiveLog(str(location), "r") as log:
        return [row for row, _ in log.part(0).checked_rows()]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A partition that three groups share, and one of a group with rounds, crashes and warm-ups."""
    folder = tmp_path_factory.mktemp("cuts")
    make(ManyGroups(groups=3, partitions=1, records=500), folder / "made")
    in_files(folder / "shared", rows_in(folder / "made"))
    with open_log(f"{folder}/one/", "w") as log, log.transaction():
        write(log, lived()[:400])
    in_files(folder / "lived", rows_in(folder / "one"))
    return {name: folder / name for name in ("shared", "lived")}


class States:
    """What a run over an archive has left."""

    def __init__(self, archive: Path, folder: Path, every: int) -> None:
        self.archive, self.folder, self._every = archive, folder, every
        units = [attrs.evolve(unit, cut_every=every) for unit in units_of([str(archive)])]
        self._write(on_tasks(units, verify_on))

    def _write(self, rows: list[dict[str, Any]]) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        write_rows([{name: row[name] for name, _ in STATE_COLUMNS} for row in rows], STATE_COLUMNS, self.folder)
        self.put([{"location": row["location"], "group": row["group"], **cut} for row in rows for cut in row["cuts"]])

    def put(self, cuts: list[dict[str, Any]]) -> None:
        parquet.write_table(pa.Table.from_pylist(cuts, schema=pa.schema(list(CUT_COLUMNS))), self.folder / CUTS_FILE)

    def cuts(self) -> list[dict[str, Any]]:
        return [cut for batch in Former.read(str(self.folder)).cuts() for cut in batch.to_pylist()]

    def plan(self, tasks: int = 10**9) -> PiecesPlan:
        return pieces_plan(units_of([str(self.archive)]), Former.read(str(self.folder)), tasks, self._every)

    def verify_again(self, *, tasks: int = 5) -> tuple[int, list[WrongState]]:
        """Verifies as many pieces as there can be, and compares with a run that cuts none. Returns
        how many groups were not answered by their pieces, and the stored states that are wrong.
        """
        plan = self.plan()
        found = {(row["location"], row["group"], row["piece"]): row for row in on_tasks(plan.units, verify_on, tasks=tasks, begun=plan.begun)}
        assert len(found) == len(plan.units)
        of = {unit: found[unit.location, unit.group, unit.piece] for unit in plan.units}
        chain = chained(plan, lambda unit: Ends(of[unit]["began"], of[unit]["ended"]), lambda unit: of[unit]["saved"])
        rest = on_tasks(chain.rest.units, verify_on, begun=chain.rest.begun) if chain.rest.units else []
        answers = [row for row in of.values() if row["is_last"] and (row["location"], row["group"]) not in chain.reached] + rest
        alone = sorted((verify_group(unit) for unit in units_of([str(self.archive)])), key=_place)
        assert sorted(({name: row[name] for name, _ in COLUMNS} for row in answers), key=_place) == alone
        return len(rest), chain.wrong


def _place(row: dict[str, Any]) -> tuple[str, str, str]:
    return row["location"], row["group"], row["problem"] or ""


@pytest.fixture
def copied(made: dict[str, Path], tmp_path: Path) -> Callable[[str], Path]:
    def copy(name: str) -> Path:
        shutil.copytree(made[name], tmp_path / name)
        return tmp_path / name

    return copy


@pytest.mark.parametrize("name", ["shared", "lived"])
def test_group_may_be_cut_before_each_of_its_records(made: dict[str, Path], tmp_path: Path, name: str) -> None:
    """In an open round, between a fact and its decisions, where files end and where they do not."""
    states = States(made[name], tmp_path / "states", 1)
    units = units_of([str(made[name])])
    assert len(states.cuts()) == sum(unit.records - 1 for unit in units)
    assert len(states.plan().units) == len(units) + len(states.cuts())
    assert states.verify_again() == (0, [])


@pytest.mark.parametrize(("name", "every"), [("shared", 7), ("lived", 31)])
@pytest.mark.parametrize("tasks", [1, 100])
def test_pieces_may_share_a_task(made: dict[str, Path], tmp_path: Path, name: str, every: int, tasks: int) -> None:
    states = States(made[name], tmp_path / "states", every)
    assert len(states.cuts()) > 10
    assert states.verify_again(tasks=tasks) == (0, [])


@pytest.mark.parametrize("damage", [flip, cut_short])
@pytest.mark.parametrize("at", [0, 1, 4, -1])
def test_damage_before_or_behind_a_cut_is_told_as_without_it(
    copied: Callable[[str], Path], tmp_path: Path, damage: Callable[[Path], None], at: int
) -> None:
    archive = copied("shared")
    states = States(archive, tmp_path / "states", 20)
    damage(files_in(archive, 0)[at])
    unread, wrong = states.verify_again()
    assert wrong == []
    assert unread == (0 if at == -1 else 3)


def test_missing_file_behind_a_cut_is_told_as_without_it(copied: Callable[[str], Path], tmp_path: Path) -> None:
    archive = copied("lived")
    states = States(archive, tmp_path / "states", 20)
    files_in(archive, 0)[-1].unlink()
    assert states.verify_again()[1] == []


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_wrong_decision_is_told_as_without_a_cut(copied: Callable[[str], Path], tmp_path: Path, share: float) -> None:
    """With all evidence, though a cut is behind each record of it."""
    archive = copied("lived")
    states = States(archive, tmp_path / "states", 1)
    shutil.rmtree(archive)
    number = int(share * sum(isinstance(entry, DecisionRecord) for entry in lived()[:400]))
    with open_log(f"{archive}/", "w") as log, log.transaction():
        write(log, [_spoilt(entry, number) for entry in lived()[:400]])
    unread, wrong = states.verify_again()
    assert unread == 1
    assert wrong == []


def _spoilt(entry: Entry, number: int) -> Entry:
    if isinstance(entry, DecisionRecord) and entry.number == number:
        return attrs.evolve(entry, decision=EventRejected(kind=12, code="spoilt"))
    return entry


def test_stored_state_that_lies_is_named_and_believed_by_nobody(made: dict[str, Path], tmp_path: Path) -> None:
    states = States(made["lived"], tmp_path / "states", 20)
    cuts = states.cuts()
    lie = {**cuts[4], "saved": cuts[7]["saved"]}
    states.put([*cuts[:4], lie, *cuts[5:]])
    last = [row.offset for row in rows_in(made["lived"])[: lie["row"]] if isinstance(row, FactRow)][-1]
    assert states.verify_again() == (1, [WrongState(lie["location"], lie["group"], lie["row"], last + 1)])


def test_state_with_another_count_or_order_lies(made: dict[str, Path], tmp_path: Path) -> None:
    states = States(made["shared"], tmp_path / "states", 20)
    cuts = states.cuts()
    order, saved = unpacked(cuts[2]["saved"])
    order.numbers = {group: number + 1 for group, number in order.numbers.items()}
    states.put([*cuts[:2], {**cuts[2], "saved": left(order, saved)}, *cuts[3:]])
    (wrong,) = states.verify_again()[1]
    assert (wrong.group, wrong.row) == (cuts[2]["group"], cuts[2]["row"])


@pytest.mark.parametrize("change", [lambda saved: saved[:-9], lambda saved: b"\x90", lambda saved: saved[:40] + b"\xff" + saved[41:]])
def test_state_that_cannot_be_read_is_wrong(made: dict[str, Path], tmp_path: Path, change: Callable[[bytes], bytes]) -> None:
    states = States(made["lived"], tmp_path / "states", 20)
    cuts = states.cuts()
    states.put([*cuts[:4], {**cuts[4], "saved": change(cuts[4]["saved"])}, *cuts[5:]])
    unread, wrong = states.verify_again()
    assert (unread, [each.row for each in wrong]) == (1, [cuts[4]["row"]])


def test_groups_are_cut_as_far_as_tasks_need_it(made: dict[str, Path], tmp_path: Path) -> None:
    states = States(made["shared"], tmp_path / "states", 10)
    units = units_of([str(made["shared"])])
    assert states.plan(tasks=2).cut == {}
    pieces = states.plan(tasks=12).cut
    total = sum(unit.records for unit in units)
    assert {len(each) for each in pieces.values()} <= {3, 4}
    for each in pieces.values():
        assert all(piece.records >= total // 12 for piece in each[:-1])
        assert [piece.until_row for piece in each[:-1]] == [piece.first_row for piece in each[1:]]


def test_states_of_a_large_group_are_further_apart() -> None:
    assert distance(1) == distance(3_000_000) == 50_000
    assert distance(10**9) % 50_000 == 0
    assert MOST_CUTS / 2 < 10**9 / distance(10**9) <= MOST_CUTS
