"""`equipoise scale-down`: the pure function of `equipoise.assignors.scale_down`, asked about a
group as its log leaves it.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from equipoise.assignors import registry
from equipoise.cli import main
from equipoise.events.facts import GroupConfigured, LogOpened, MemberJoined, PartitionsObserved, Subtopology, TopologyDeclared
from equipoise.events.settings import GroupSettings
from equipoise.log import open_log
from equipoise.statemachine.machine import GroupMachine


@pytest.fixture(scope="module")
def forty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of 40 members in 4 racks, each with one task; the changelog of task 0_n holds 1,000 (n
    + 1) records.
    """
    path = tmp_path_factory.mktemp("forty") / "group.db"
    learner = registry.latest("learner")
    machine = GroupMachine()
    with open_log(path, "w") as log, log.transaction():

        def fact(event: object, group: str = "orders") -> None:
            record = log.append_fact(group, 0, event)  # type: ignore[arg-type]
            log.append_decisions(machine.step(record))

        fact(LogOpened(log_id="forty"), "")
        settings = GroupSettings(initial_delay_ms=0, max_warmups=40, max_warmups_per_member=40)
        fact(GroupConfigured(assignor="learner", behaviour_version=learner.version, solver=learner.solver, knobs=settings))
        part = Subtopology(subtopology=0, partitions=40, stateful=True, source_topics=("in",), changelog_topics=("log",))
        fact(TopologyDeclared(epoch=1, subtopologies=(part,)))
        fact(PartitionsObserved(end_offsets={"log": {index: 1_000 * (index + 1) for index in range(40)}}))
        for index in range(40):
            fact(
                MemberJoined(
                    member_id=f"m{index:02}",
                    incarnation=1,
                    rack=f"r{index % 4}",
                    topology_epoch=1,
                    join_nonce=f"m{index}",
                    session_timeout_ms=30_000,
                    lease_margin_ms=3_000,
                )
            )
    return path


def run(*args: str | Path, code: int = 0) -> str:
    result = CliRunner().invoke(main, [*map(str, args)])
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.stderr


def test_forty_to_eighty_percent_asks_eight_two_from_each_rack(forty: Path):
    """The first member runs everything; the seven others that are asked have nothing."""
    told = json.loads(run("scale-down", forty, "--runs", "0", "--keep", "80%", "--json"))
    assert len(told["asked"]) == 8
    assert told["keep"] == 32
    assert told["racks"] == {f"r{index}": {"members": 10, "stay": 8} for index in range(4)}
    assert told["restore_records"] == 0
    assert told["drain"] == {"expected_ms": 0, "left_ms": 600_000}
    assert "m00" not in {each["member"] for each in told["asked"]}
    by_number = json.loads(run("scale-down", forty, "--runs", "0", "--keep", "32", "--json"))
    assert by_number == {**told, "percent": None}


def test_scale_down_predicts_what_it_will_cost(forty: Path) -> None:
    """The member that runs everything leaves, and nobody has a copy."""
    told = json.loads(run("scale-down", forty, "--keep", "80%", "--runs", "2", "--json"))
    assert told["predicted"] is None
    text = run("scale-down", forty, "--keep", "80%", "--runs", "2")
    assert "not predicted: group 'orders': this change makes members restore" in text


def test_scale_down_text(forty: Path):
    text = run("scale-down", forty, "--runs", "0", "--keep", "80%")
    assert "32 members stay, 0 records to restore in all, those of standbys included" in text
    assert "8 members to ask" in text
    assert "to drain them: at once: no task waits for a restore, 10 min 00 s at most" in text
    assert "racks: r0 8 of 10 stay, r1 8 of 10 stay, r2 8 of 10 stay, r3 8 of 10 stay" in text
    assert "no member has to leave" in run("scale-down", forty, "--runs", "0", "--keep", "100%")
    assert "1 member stays" in run("scale-down", forty, "--runs", "0", "--keep", "1%")


@pytest.mark.parametrize("given", ["0", "eighty", "101%", "4 members"])
def test_invalid_share_error(forty: Path, given: str):
    complaint = run("scale-down", forty, "--runs", "0", "--keep", given, code=2)
    assert f"'{given}' is neither a number of members, as 4, nor a share of them, as 80%" in complaint


def test_scale_down_group_without_members_is_an_input_error(forty: Path):
    assert "the group has no members" in run("scale-down", forty, "--runs", "0", "--keep", "80%", "--at", "2", code=2)
