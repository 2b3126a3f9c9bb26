"""What the commands say of one run: a quantity has one name and one value in all of them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from equipoise.cli import main

ROOT = Path(__file__).parents[2]
RUN = "scale-out"


def ask(*args: str) -> str:
    result = CliRunner().invoke(main, list(args), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def asked(*args: str) -> Any:
    return json.loads(ask(*args, "--json"))


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The recorded run, and its inputs led by equipoise, as the README has both."""
    folder = tmp_path_factory.mktemp("numbers")
    recorded, led = str(folder / "recorded.db"), str(folder / "led.db")
    ask("import", "kafka-streams", RUN, "--to", recorded)
    ask("what-if", recorded, "--to", led)
    return {"recorded": recorded, "led": led}


def test_rounds_and_moves_of_an_incident_are_those_of_the_timeline(logs: dict[str, str]) -> None:
    windows = asked("timeline", logs["recorded"])["windows"]
    (group,) = asked("incident", RUN, "--all")["groups"]
    found = [each for each in group["incidents"] if each["cause"] != "first"]
    assert [(len(each["rebalances"]), each["moved"]) for each in found] == [(each["rounds"], each["moves"]) for each in windows]
    assert sum(each["moves"] for each in windows) > 100


def test_measured_costs_have_one_value(logs: dict[str, str]) -> None:
    simulated = asked("what-if", logs["recorded"], "--to", str(Path(logs["led"]).with_name("again.db")))
    (answer,) = asked("what-if", logs["recorded"], "--seeds", "1")["groups"]
    windows = asked("timeline", logs["recorded"])["windows"]
    measured = [each["measured"]["totals"] for each in simulated["windows"]]
    recorded = answer["recorded"]
    assert recorded["unavailable_task_seconds"] == pytest.approx(sum(each["unavailable_task_seconds"] for each in measured), abs=0.1)
    assert recorded["moves"] == sum(each["active_moves"] for each in measured) == sum(each["moves"] for each in windows)
    assert recorded["rebalances"] == sum(each["generations"] for each in measured) == sum(each["rounds"] for each in windows)
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    after = simulated["windows"]
    assert f"Moves: **{recorded['moves']} → {sum(each['totals']['active_moves'] for each in after)}**" in readme
    assert f"**{recorded['unavailable_task_seconds']:,.1f} → {sum(each['totals']['unavailable_task_seconds'] for each in after):,.1f}**" in readme


@pytest.mark.parametrize("name", ["recorded", "led"])
def test_facts_and_length_have_one_value(logs: dict[str, str], name: str) -> None:
    log = logs[name]
    timeline = re.match(r"orders  \S+ \S+ UTC, (.*), led by .*, 26 tasks, ([\d,]+) facts$", ask("timeline", log).splitlines()[0])
    what_if = re.search(r"^orders  (.*), ([\d,]+) facts, led by", ask("what-if", log, "--seeds", "1"), re.MULTILINE)
    assert timeline
    assert what_if
    assert timeline.groups() == what_if.groups()
    if name == "led":
        verified = asked("verify", log)["groups"][0]
        assert (f"{verified['facts']:,}", asked("status", log, "--group", "orders")["state"]["offset"]) == (timeline[2], verified["facts"])
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"A recorded Kafka Streams group, {timeline[1]}." in readme


def test_decisions_of_a_simulation_are_those_that_are_verified(logs: dict[str, str]) -> None:
    simulated = asked("what-if", logs["recorded"], "--to", str(Path(logs["led"]).with_name("once_more.db")))
    verified = asked("verify", logs["led"])["groups"][0]
    assert (simulated["facts"], simulated["decisions"]) == (verified["facts"], verified["decisions_identical"])


@pytest.mark.parametrize("name", ["recorded", "led"])
def test_time_without_a_running_owner_has_one_value(logs: dict[str, str], name: str) -> None:
    """Of the timeline, task by task in explain, and as the cost that what-if reads from a log."""
    timeline = asked("timeline", logs[name])
    of_tasks = {each["task"]: each["stretches"] for each in timeline["not_running"]}
    shown = {row[0]: row[1:3] for row in (line.split() for line in ask("timeline", logs[name], "--all").splitlines()) if len(row) == 5}
    moves = [each for each in timeline["moves"] if each["source"] is not None]
    for task in ("0_1", "0_8", "1_5"):
        lasted = sum(each["to_ms"] - each["from_ms"] for each in of_tasks.get(task, []))
        explained = asked("explain", logs[name], "--task", task)
        assert sum(each["to_ms"] - each["from_ms"] for each in explained["not_running"]) == lasted
        without = re.search(r"without a running owner(?: for [^,]+, in (\d+) stretch)?", ask("explain", logs[name], "--task", task))
        assert without
        assert int(without[1] or 0) == len(of_tasks.get(task, []))
        if lasted:
            assert shown[task] == [without[1], f"{lasted / 1_000:.1f}"]
        moved = [each["began_ms"] for each in explained["moves"] if each["source"] is not None]
        assert moved == [each["began_ms"] for each in moves if each["task"] == task]
    assert sum(map(len, of_tasks.values())) > 0


def test_costs_that_what_if_reads_from_a_log_are_those_of_its_timeline(logs: dict[str, str]) -> None:
    """Where the group itself was not measured; its simulation is read in the same way."""
    windows = asked("timeline", logs["led"])["windows"]
    text = ask("what-if", logs["led"], "--seeds", "1")
    found = re.findall(r"^(\S.*?\S) {2,}([\d,.]+) {2,}[\d,.]+ {2,}[\d,.]+ to ", text, re.MULTILINE)
    rows = {name: float(value.replace(",", "")) for name, value in found}
    assert not {"unavailable task-s", "records restored"} & set(rows), "those are measured at the records"
    assert rows["task-s without a running owner"] == pytest.approx(sum(each["stopped_ms"] for each in windows) / 1_000, abs=0.1)
    assert rows["moves"] == sum(each["moves"] for each in windows)
    assert rows["rebalances"] == sum(each["rounds"] for each in windows)
    assert f"{rows['moves']:.0f} moves in " in ask("timeline", logs["led"], "--svg", str(Path(logs["led"]).with_suffix(".svg")))


def test_status_of_a_group_that_its_own_leader_leads_counts_owners(logs: dict[str, str]) -> None:
    """Between two of its rounds, when some tasks are given up and not given out."""
    at = ("status", logs["recorded"], "--group", "orders", "--at", "300")
    owned = sum(each["owner"] is not None for each in asked(*at)["state"]["tasks"])
    assert owned < 26
    assert f"its own leader decides; {owned} of 26 tasks have an owner" in ask(*at).splitlines()


def test_member_has_one_colour_on_every_page(logs: dict[str, str], tmp_path: Path) -> None:
    """The recorded timeline, that of equipoise and the page of the incident."""
    colours: dict[str, set[str]] = {}
    for number, command in enumerate((("timeline", logs["recorded"]), ("timeline", logs["led"]), ("incident", RUN, "--group", "orders"))):
        path = tmp_path / f"{number}.html"
        ask(*command, "--html", str(path))
        data = json.loads(re.search(r'<script[^>]*id="data"[^>]*>(.*?)</script>', path.read_text(encoding="utf-8"), re.DOTALL)[1])  # type: ignore[index]
        for member, colour in zip(data["members"], data["colours"], strict=True):
            colours.setdefault(member, set()).add(colour)
    assert {name: len(found) for name, found in colours.items()} == {f"i{number}": 1 for number in range(1, 6)}
