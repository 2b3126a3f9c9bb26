"""Faust's stock assignor and equipoise's, both real, in the same groups."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from faust.assignor.partition_assignor import PartitionAssignor

from equipoise.cli import main
from equipoise.faust import FaustAssignor
from equipoise.log import open_log
from equipoise.replay.verification import Verdict, verify
from tests.unit.faust.group import Group

NAMES = ("w1", "w2", "w3", "w4")


@pytest.fixture(params=[PartitionAssignor, FaustAssignor], ids=["stock", "equipoise"])
def kind(request: pytest.FixtureRequest) -> type[PartitionAssignor]:
    found: type[PartitionAssignor] = request.param
    return found


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    made = Group(tmp_path, partitions=24, replicas=1)
    yield made
    made.close()


def running(group: Group, kind: type[PartitionAssignor] = FaustAssignor, names: tuple[str, ...] = NAMES) -> Group:
    """All workers have run for a while."""
    for name in names:
        group.start(name, kind)
    group.rebalance()
    group.settle()
    group.check()
    group.restored = 0
    return group


def verdict_of(folder: Path) -> Verdict:
    with open_log(folder / "v1" / "equipoise.db") as log:
        return verify(log.read()).verdict


@pytest.mark.parametrize("away", ["w4", "w1"], ids=["another", "the leader"])
def test_worker_that_returns_has_tasks_again_and_nobody_restores_anything(group: Group, away: str) -> None:
    before = running(group).processes[away].active
    group.stop(away)
    group.rebalance()
    group.check()
    group.start(away)
    group.rebalance("w1" if away != "w1" else "w2")
    group.check()
    assert group.restored == 0
    assert set(group.counts().values()) == {6}
    if away != "w1":  # a new leader does not know where the tasks were before
        assert group.processes[away].active == before


@pytest.mark.parametrize(("partitions", "workers"), [(100, 40), (24, 4)])
def test_returning_worker_gets_nothing_or_restores_with_stock_and_does_neither_with_equipoise(
    tmp_path: Path, kind: type[PartitionAssignor], partitions: int, workers: int
) -> None:
    """faust-streaming/faust#93."""
    group = Group(tmp_path, partitions=partitions, replicas=1)
    names = tuple(f"w{number:02}" for number in range(1, workers + 1))
    running(group, kind, names)
    group.stop(names[-1])
    group.rebalance()
    group.settle()
    group.start(names[-1], kind)
    group.rebalance()
    group.check()
    got = group.counts()[names[-1]]
    group.close()
    if kind is FaustAssignor:
        assert (got, group.restored) == (partitions // workers, 0)
    elif partitions == 100:
        assert got == 0
    else:
        assert group.restored >= group.records


def test_worker_that_joins_gets_copies_first_and_all_tasks_in_one_rebalance(group: Group) -> None:
    before = {name: process.active for name, process in running(group).processes.items()}
    joined = group.start("w5")
    group.rebalance()
    assert {name: process.active for name, process in group.processes.items()} == {**before, "w5": set()}
    assert len(joined.warmups) == 4
    assert group.settle() == 1
    group.check()
    assert group.restored == 0
    assert sorted(group.counts().values()) == [4, 5, 5, 5, 5]
    assert sum(len(before[name] - group.processes[name].active) for name in before) == 4
    group.close()
    assert verdict_of(group.folder / "w1") is Verdict.IDENTICAL


def test_rebalance_without_a_change_moves_nothing(group: Group) -> None:
    running(group)
    before = {name: (process.active, process.standby) for name, process in group.processes.items()}
    group.rebalance("w3")
    group.rebalance("w1")
    assert {name: (process.active, process.standby) for name, process in group.processes.items()} == before


def test_no_copy_is_begun_while_a_worker_is_expected_back_and_the_leader_looks_again(group: Group) -> None:
    running(group)
    copies = {name: process.active | process.standby for name, process in group.processes.items()}
    group.stop("w4")
    group.rebalance()
    assert all(process.active | process.standby == copies[name] for name, process in group.processes.items())


def test_group_with_a_stock_worker_is_assigned_by_stock_and_by_equipoise_once_all_report(group: Group, caplog: pytest.LogCaptureFixture) -> None:
    for name in NAMES:
        group.start(name, PartitionAssignor)
    group.rebalance()
    for name in NAMES:  # upgraded one by one, whoever leads
        group.stop(name)
        group.rebalance()
        group.check()
        group.start(name)
        caplog.clear()
        group.rebalance()
        group.check()
        warned = [each.getMessage() for each in caplog.records if each.name.startswith("equipoise") and each.levelname == "WARNING"]
        leads_as_stock = not isinstance(group.processes["w1"].assignor, FaustAssignor)
        assert warned == [] if leads_as_stock or name == "w4" else ["no report of its copies" in text for text in warned] == [True]
    for name in NAMES:  # and back
        group.stop(name)
        group.rebalance("w4" if name != "w4" else "w1")
        group.check()
        group.start(name, PartitionAssignor)
        group.rebalance()
        group.check()


def test_error_in_the_leader_is_logged_and_stock_decides(group: Group, caplog: pytest.LogCaptureFixture) -> None:
    for name in NAMES:
        group.start(name)
    (group.folder / "w1" / "v1").mkdir(parents=True)
    (group.folder / "w1" / "v1" / "equipoise.db").write_bytes(b"no log of ours" * 100)
    with caplog.at_level(logging.WARNING):
        group.rebalance()
    group.check()
    assert "Faust's own assignor decides this rebalance" in caplog.text


def test_worker_that_was_paused_does_not_keep_what_another_one_got(group: Group) -> None:
    running(group)
    paused = group.processes.pop("w4")
    group.rebalance()
    group.rebalance()
    group.processes["w4"] = paused  # with an assignment of two generations ago
    group.rebalance()
    group.check()
    assert group.restored == 0


def test_worker_whose_offsets_are_not_known_now_keeps_its_tasks(group: Group) -> None:
    before = {name: process.active for name, process in running(group).processes.items()}
    group.processes["w2"].reported, group.processes["w2"].is_current = {}, False
    group.rebalance()
    assert {name: process.active for name, process in group.processes.items()} == before


def test_worker_that_still_restores_its_tasks_shares_them_with_one_that_joins(group: Group) -> None:
    """It does not process yet, so there is nothing to go on with while the other one restores."""
    only = group.start("w1")
    group.rebalance()
    only.reported = dict.fromkeys(range(24), 10)
    group.start("w2")
    group.rebalance()
    assert group.counts() == {"w1": 12, "w2": 12}


def test_log_of_faust_is_explained_and_not_simulated(group: Group) -> None:
    running(group)
    group.start("w5")
    group.rebalance()
    group.settle()
    group.close()
    log = group.folder / "w1" / "v1" / "equipoise.db"
    explained = CliRunner().invoke(main, ["explain", str(log), "--task", "0_3"])
    assert explained.exit_code == 0, explained.output
    assert "Why is 0_3 on w" in explained.output
    simulated = CliRunner().invoke(main, ["what-if", str(log)])
    assert simulated.exit_code == 2
    assert "rebalances are not simulated" in simulated.output
