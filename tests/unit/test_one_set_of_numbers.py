"""What the commands say of one run: a quantity has one name and one value in all of them."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import attrs
import pytest
from click.testing import CliRunner

from equipoise.cli import main
from equipoise.cli.what_if import fidelity_table
from equipoise.console.recent import Recent
from equipoise.events.records import FactRecord
from equipoise.log import open_log
from equipoise.replay import numbers
from equipoise.replay.whatif.compared import compared
from equipoise.replay.whatif.evaluate import what_if_recorded
from equipoise.replay.whatif.recorded_costs import read_recording
from equipoise.replay.wording import span_text
from equipoise.statemachine.machine import GroupMachine
from equipoise.worker.metrics import WorkerMetrics

ROOT = Path(__file__).parents[2]
RUN = "scale-out"


def ask(*args: str) -> str:
    result = CliRunner().invoke(main, list(args), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def asked(*args: str) -> Any:
    return json.loads(ask(*args, "--json"))


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `make demo` says, and where its files are."""
    out = tmp_path_factory.mktemp("numbers")
    document: dict[str, Any] = asked("demo", "--out", str(out))["runs"][RUN]
    return document


@pytest.fixture(scope="module")
def logs(demo: dict[str, Any]) -> dict[str, str]:
    """The recorded run, and its inputs led by equipoise, as the README has both."""
    return {"recorded": demo["recorded"]["log"], "led": demo["equipoise"]["log"]}


def cards(path: str) -> list[str]:
    """The numbers at the head of a page, each with what it is."""
    data = json.loads(re.search(r'<script[^>]*id="data"[^>]*>(.*?)</script>', Path(path).read_text(encoding="utf-8"), re.DOTALL)[1])  # type: ignore[index]
    return [" ".join(card) for card in data["cards"]]


def test_rounds_and_moves_of_an_incident_are_those_of_the_timeline(logs: dict[str, str]) -> None:
    windows = asked("timeline", logs["recorded"])["windows"]
    (group,) = asked("incident", RUN, "--all")["groups"]
    found = [each for each in group["incidents"] if each["cause"] != "first"]
    assert [(len(each["rebalances"]), each["moved"]) for each in found] == [(each["rounds"], each["moves"]) for each in windows]
    assert sum(each["moves"] for each in windows) > 100


def test_unavailable_time_and_moves_have_one_value_of_each_source(demo: dict[str, Any], logs: dict[str, str]) -> None:
    """Measured, simulated as it was led, and simulated with equipoise: of the demo, its pages,
    `what-if`, `timeline`, `incident` and the README.
    """
    whole = compared(demo["equipoise"]["costs"])[-1]
    assert whole.measured is not None
    assert whole.as_it_was is not None
    (answer,) = asked("what-if", logs["recorded"], "--sweep", "assignor=high_availability")["groups"]
    (led,) = answer["outcomes"]
    timeline = asked("timeline", logs["recorded"])
    for found, metrics in ((whole.measured, answer["recorded"]), (whole.as_it_was, answer["factual"]["metrics"]), (whole.led, led["metrics"])):
        assert found["unavailable_task_seconds"] == pytest.approx(metrics["unavailable_task_seconds"], abs=0.001)
        assert (found["active_moves"], found["generations"]) == pytest.approx((metrics["moves"], metrics["rebalances"]), abs=0.001)
    task_s, longest_ms = whole.measured["unavailable_task_seconds"], whole.measured["longest_silence_ms"]
    assert timeline["measured"] == {"task_s": pytest.approx(task_s), "longest_ms": longest_ms, "source": "measured"}
    assert (
        f"unavailable, measured: {task_s:,.1f} task-s; longest gap {span_text(round(longest_ms))}" in ask("timeline", logs["recorded"]).splitlines()
    )
    (group,) = asked("incident", RUN, "--all")["groups"]
    moved = sum(each["moved"] for each in group["incidents"] if each["cause"] != "first")
    assert whole.measured["active_moves"] == moved == sum(each["moves"] for each in timeline["windows"])

    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"Measured in the recorded group: {task_s:,.1f} task-seconds, {moved} moves." in readme
    simulated = [each["unavailable_task_seconds"] for each in (whole.as_it_was, whole.led)]
    assert f"**{simulated[0]:,.1f} → {simulated[1]:,.1f}** unavailable task-seconds" in readme
    pages = {name: cards(demo["drawn"][name]["html"]) for name in ("recorded", "equipoise")}
    assert pages["recorded"][0].startswith(f"{task_s:,.1f} unavailable task-s, measured; longest gap {span_text(round(longest_ms))}")
    for page, of in zip((pages["recorded"][1], pages["equipoise"][0]), (whole.as_it_was, whole.led), strict=True):
        longest = span_text(round(of["longest_silence_ms"]))
        assert page == f"{of['unavailable_task_seconds']:,.1f} unavailable task-s, simulated, mean of 3 seeds; longest gap {longest}"


def test_recording_of_commits_calls_what_it_knows_by_another_name() -> None:
    text = ask("incident", RUN, "--all")
    assert " without commits, summed over partitions" in text
    assert not re.search(r"unavailable(?!; \S+ .*without commits)", re.sub(r"simulated .*", "", text))


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
def test_time_without_a_running_owner_has_one_value(demo: dict[str, Any], logs: dict[str, str], name: str) -> None:
    """Of the timeline, task by task in explain, and as the cost that what-if reads from a log."""
    timeline = asked("timeline", logs[name])
    of_tasks = {each["task"]: each["stretches"] for each in timeline["not_running"]}
    shown = {row[0]: row[1:3] for row in (line.split() for line in ask("timeline", logs[name], "--all").splitlines()) if len(row) == 5}
    moves = [each for each in timeline["moves"] if each["source"] is not None]
    for task in ("0_1", "0_8", "1_5"):
        lasted = sum(each["to_ms"] - each["from_ms"] for each in of_tasks.get(task, []))
        explained = asked("explain", logs[name], "--task", task)
        assert sum(each["to_ms"] - each["from_ms"] for each in explained["not_running"]) == lasted
        called = {"recorded": "without an owner", "led": "without a running owner"}[name]
        without = re.search(rf"{called}(?: for [^,]+, in (\d+) stretch)?", ask("explain", logs[name], "--task", task))
        assert without
        assert int(without[1] or 0) == len(of_tasks.get(task, []))
        if lasted:
            assert shown[task] == [without[1], f"{lasted / 1_000:.1f}"]
        moved = [each["began_ms"] for each in explained["moves"] if each["source"] is not None]
        assert moved == [each["began_ms"] for each in moves if each["task"] == task]
    assert sum(map(len, of_tasks.values())) > 0
    totals = timeline["totals"]
    assert cards(demo["drawn"]["recorded" if name == "recorded" else "equipoise"]["html"])[-2] == (
        f"{totals['stopped_ms'] / 1_000:,.1f} task-s {called}; longest gap {span_text(totals['longest_ms'])}"
    )


def test_metric_and_console_count_what_the_timeline_shows(logs: dict[str, str]) -> None:
    totals = asked("timeline", logs["led"])["totals"]
    counts, recent, machine = WorkerMetrics(), Recent(), GroupMachine()
    with open_log(logs["led"]) as log:
        for record in (entry for entry in log.read() if isinstance(entry, FactRecord)):
            decisions = machine.step(record)
            if record.group:
                counts.folded(record, decisions, machine.state, live=True, is_new=True)
                recent.note(0, record, decisions, machine, [])
    assert counts.unavailable_s["orders"] == counts.unavailable_in_all_s == pytest.approx(totals["stopped_ms"] / 1_000)
    shown = recent.groups["orders"].timeline(record.append_ms).totals()
    assert (shown.stopped_ms, shown.longest_ms, shown.moves) == (totals["stopped_ms"], totals["longest_ms"], totals["moves"])


def test_numbers_are_named_where_they_are_defined() -> None:
    """Each name is in the vocabulary, and no other module spells one out."""
    vocabulary = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").partition("### Numbers")[2].partition("\n\nA member is")[0]
    rows = set(re.findall(r"^\| ([a-z ]+) \|", vocabulary, re.MULTILINE)) - {"number"}
    names = {value for name, value in vars(numbers).items() if name.isupper() and isinstance(value, str)}
    of_rows = {numbers.UNAVAILABLE, numbers.WITHOUT_RUNNER, numbers.WITHOUT_OWNER, numbers.WITHOUT_COMMITS, numbers.LONGEST_GAP, numbers.MOVES}
    assert rows == of_rows | {numbers.MOVED_FOR_GOOD, numbers.LAG} <= names
    labels = (numbers.UNAVAILABLE_TASK_S, numbers.WITHOUT_RUNNER, numbers.WITHOUT_COMMITS, numbers.LONGEST_GAP, numbers.MOVED_FOR_GOOD)
    own = re.compile("|".join((*labels, "task-s(econds)? (unavailable|without)", "longest at a stretch")))
    spelt = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for folder in ("replay", "equipoise", "statemachine", "assignors", "events")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path.name != "numbers.py" and not (folder == "equipoise" and (ROOT / path.relative_to(ROOT / folder).parts[0]).is_dir())
        for node in strings_of(path)
        if own.search(str(node.value))
    ]
    assert spelt == []


def strings_of(path: Path) -> list[ast.Constant]:
    """String constants of a module that are no docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    told = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in told]


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


def test_unlike_numbers_are_not_compared(logs: dict[str, str]) -> None:
    """A log of another leader that nobody measured has no restores, and its simulation has."""
    with open_log(logs["recorded"]) as log:
        recording = read_recording(log.read())
    unmeasured = attrs.evolve(recording, metrics_source="log")
    answer = what_if_recorded(unmeasured)
    assert (what_if_recorded(recording).log_shows, answer.log_shows) == (numbers.UNAVAILABLE, numbers.WITHOUT_OWNER)
    errors = {each.metric: each.error for each in answer.fidelity}
    assert errors["unavailable_task_seconds"] is None
    assert errors["moves"] is not None
    (row, *_) = fidelity_table(answer).rows
    assert (row[0], row[-1]) == ("task-s without an owner; simulated: unavailable", "")


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
