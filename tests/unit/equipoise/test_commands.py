"""The commands on logs, as a user types them: answers, exit codes, one line on stderr when
something is wrong, one JSON document with --json.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs
import click
import pytest
from click.testing import CliRunner, Result

import equipoise
from equipoise.cli import COMMANDS, SECTIONS, main
from equipoise.cli.spark import SPARK_COMMANDS
from equipoise.events.decisions import MemberExpired
from equipoise.events.facts import GroupConfigured, LeaveIntended, MemberJoined
from equipoise.events.records import DecisionRecord, Entry, FactRecord
from equipoise.log import open_log
from tests.unit.replay.lived import lived, write
from tools.commands_page import count


def run(*args: str | Path) -> Result:
    return CliRunner().invoke(main, [str(arg) for arg in args])


def document(*args: str | Path) -> Any:
    result = run(*args, "--json")
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The lived log, in SQLite."""
    return written(tmp_path_factory.mktemp("lived") / "group.db", lived())


def written(path: Path, entries: tuple[Entry, ...] | list[Entry]) -> Path:
    with open_log(path, "w") as log:
        write(log, entries)
    return path


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recorded run, imported by the command."""
    path = tmp_path_factory.mktemp("recorded") / "rolling.db"
    result = run("import", "kafka-streams", "rolling", "--to", path)
    assert result.exit_code == 0, result.stderr
    assert "37 generations" in result.stdout
    assert "AssignmentObserved" in result.stdout
    assert "observed" in result.stdout
    return path


def one_line(result: Result, code: int = 2) -> str:
    assert result.exit_code == code, result.output
    assert result.stderr.startswith("equipoise: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


def test_verify_says_identical(log: Path) -> None:
    result = run("verify", log)
    decisions = sum(isinstance(entry, DecisionRecord) for entry in lived())
    assert result.exit_code == 0
    assert result.stdout.startswith(f"identical: {decisions} decisions")
    told = document("verify", log)
    assert (told["verdict"], told["groups"][0]["decisions_identical"]) == ("identical", decisions)


def test_verify_shows_the_first_divergence_and_ends_with_1(tmp_path: Path) -> None:
    entries = list(lived())
    index = next(i for i, entry in enumerate(entries) if isinstance(entry, DecisionRecord) and isinstance(entry.decision, MemberExpired))
    wrong = entries[index]
    assert isinstance(wrong, DecisionRecord)
    entries[index] = attrs.evolve(wrong, decision=MemberExpired(member_id="m2", incarnation=2, cause="session_timeout", silent_ms=7))
    path = written(tmp_path / "group.jsonl", entries)
    result = run("verify", path)
    assert result.exit_code == 1
    assert result.stderr == ""
    assert f"first divergence of group orders, at offset {wrong.caused_by}" in result.stdout
    assert "in the log" in result.stdout
    assert "recomputed" in result.stdout
    assert "session_timeout after 7 ms" in result.stdout
    told = run("verify", "--json", path)
    assert told.exit_code == 1
    divergence = json.loads(told.stdout)["groups"][0]["divergence"]
    assert divergence["offset"] == wrong.caused_by
    assert divergence["stored"]["event"]["silent_ms"] == 7
    assert divergence["recomputed"]["event"]["silent_ms"] != 7
    assert divergence["fact"]["offset"] == wrong.caused_by


def test_verify_changed_byte_names_the_offset(tmp_path: Path) -> None:
    path = written(tmp_path / "group.jsonl", lived())
    original = path.read_bytes()
    for part in (0.2, 0.5, 0.9):
        at = int(len(original) * part)
        path.write_bytes(original[:at] + bytes([original[at] ^ 1]) + original[at + 1 :])
        line = one_line(run("verify", path))
        assert "offset " in line
        told = run("verify", "--json", path)
        assert told.exit_code == 2
        assert json.loads(told.stdout)["verdict"] == "cannot verify"
        assert json.loads(told.stdout)["offset"] is not None


def test_status_has_every_member_and_task(log: Path) -> None:
    for arguments in ((), ("--all",)):
        result = run("status", log, *arguments)
        assert result.exit_code == 0
        assert "4 members" in result.stdout
        assert "15 tasks" in result.stdout
        assert "balanced" not in result.stdout
        assert ("incarnation" in result.stdout) == ("--all" in arguments)
    told = document("status", log, "--group", "orders", "--at", "60")
    assert told["state"]["offset"] == 60
    assert len(told["state"]["tasks"]) == 15


def test_status_of_several_groups_lists_them_and_names_them_where_one_is_wanted(log: Path, tmp_path: Path) -> None:
    (row,) = document("status", log)["groups"]
    assert (row["group"], row["members"], row["tasks"]) == ("orders", 4, 15)
    two = tmp_path / "two.db"
    written(two, lived())
    with open_log(two, "a") as other:
        other.append_fact("clicks", 10**15, GroupConfigured(solver=""))
    assert [row["group"] for row in document("status", two)["groups"]] == ["clicks", "orders"]
    assert "trouble" in run("status", two).stdout
    assert "it holds 'clicks', 'orders'" in one_line(run("status", two, "--at", "9"))
    assert "it holds 'clicks', 'orders'" in one_line(run("status", two, "--group", "other"))
    assert "--watch: follows a group in Kafka" in one_line(run("status", two, "--group", "orders", "--watch"))


def test_explain_answers_three_questions(log: Path) -> None:
    result = run("explain", log, "--task", "0_3")
    assert result.exit_code == 0
    for question in ("Why is 0_3 on ", "How did 0_3 get there?", "What is next?"):
        assert question in result.stdout
    assert document("explain", log, "--task", "0_3")["task"] == "0_3"


def test_timeline_writes_its_page_and_its_picture_instead_of_tables(log: Path, tmp_path: Path) -> None:
    page, picture = tmp_path / "group.html", tmp_path / "group.svg"
    result = run("timeline", log, "--html", page, "--svg", picture)
    assert result.exit_code == 0
    assert "what it cost" in run("timeline", log).stdout
    assert [line.partition(" -> ")[2] for line in result.stdout.splitlines()[2:]] == [str(page), str(picture)]
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert picture.read_text(encoding="utf-8").startswith("<svg ")
    told = document("timeline", log)
    assert len(told["rounds"]) == told["totals"]["rounds"]
    assert "and 6 more: --all shows them" not in run("timeline", log, "--all").stdout


def test_long_table_is_cut_with_hint(recorded: Path) -> None:
    cut, whole = run("timeline", recorded).stdout, run("timeline", recorded, "--all").stdout
    assert "more: --all shows them" in cut
    assert "more: --all shows them" not in whole
    assert len(whole.splitlines()) > len(cut.splitlines())


@pytest.mark.parametrize(
    ("args", "names"),
    [
        (("status", "{log}", "--at", "999999"), "--at: the log ends at offset"),
        (("status", "{log}", "--group", "other"), "'other'"),
        (("explain", "{log}", "--task", "9_9"), "no task 9_9"),
        (("explain", "{log}", "--task", "x"), "0_3"),
        (("explain", "{log}"), "--task"),
        (("verify", "{log}.missing.db"), "no such log"),
        (("timeline", "{log}", "--html", "/no/such/folder/x.html"), "/no/such/folder/x.html"),
        (("what-if", "{log}", "--to", "{log}"), "name another one"),
        (("what-if", "{log}", "--to", "{tmp}/x.db", "--set", "max_warmup=3"), "did you mean max_warmups"),
        (("what-if", "{log}", "--to", "{tmp}/x.db", "--set", "assignor=nobody"), "'nobody'"),
        (("import", "kafka-streams", "{tmp}/none", "--to", "{tmp}/x.db"), "no such recording"),
        (("import", "kafka-streams", "rolling", "--to", "{tmp}/x.db", "--set", "colour=1"), "unknown setting 'colour'"),
        (("import", "kafka-streams", "rolling", "--to", "{tmp}/x.db", "--set", "colour"), "name=value"),
        (("import", "flink", "rolling", "--to", "{tmp}/x.db"), "flink"),
    ],
)
def test_command_wrong_argument_error_is_one_line(log: Path, tmp_path: Path, args: tuple[str, ...], names: str) -> None:
    result = run(*(arg.format(log=log, tmp=tmp_path) for arg in args))
    assert names in one_line(result)
    assert result.stdout == ""


def test_simulate_says_what_each_action_cost_beside_what_was_recorded(recorded: Path, tmp_path: Path) -> None:
    told = document("what-if", recorded, "--to", tmp_path / "a.db", "--seed", "3")
    assert [window["label"] for window in told["windows"]] == ["B1_bounce", "B2_bounce", "B3_bounce", "B4_disk_loss", "B5_scale_in_leave_group"]
    assert all(window["measured"]["totals"]["generations"] > 0 for window in told["windows"])
    assert told["fit"]["records_per_s"] == told["restore_records_per_s"] > 0
    assert document("verify", tmp_path / "a.db")["verdict"] == "identical"
    result = run("what-if", recorded, "--to", tmp_path / "b.db", "--seed", "3")
    assert result.exit_code == 0
    assert "measured unavailable task-s, and simulated (as it was led -> equipoise), seed 3" in result.stdout
    rows = {row[: row.find("  ")]: row.split() for row in result.stdout.splitlines()}
    assert "85.5" in rows["B1 bounce"]
    assert "664.1" in rows["in all"], "what the windows add up to"
    assert "restore, all members" in result.stdout


def test_simulate_announces_closes_by_default_and_says_so(recorded: Path, tmp_path: Path) -> None:
    announced = run("what-if", recorded, "--to", tmp_path / "a.db")
    assert "members announce that they close, as equipoise members do; with announce_closes=false they stop at once" in announced.stdout
    assert "members that close stop at once" in run("what-if", recorded, "--to", tmp_path / "b.db", "--set", "announce_closes=false").stdout
    intents = {}
    for name in ("a", "b"):
        with open_log(tmp_path / f"{name}.db") as log:
            intents[name] = sum(isinstance(entry, FactRecord) and isinstance(entry.event, LeaveIntended) for entry in log.read())
    assert intents == {"a": 4, "b": 0}, "three bounces and one that leaves"


def test_simulate_takes_settings_and_says_so_in_the_log(recorded: Path, tmp_path: Path) -> None:
    told = document("what-if", recorded, "--to", tmp_path / "a.db", "--set", "num_standbys=0", "--set", "max_warmups=5", "--restore-speed", "9000")
    assert (told["knobs"]["num_standbys"], told["knobs"]["max_warmups"], told["restore_records_per_s"]) == (0, 5, 9_000)
    other = document("what-if", recorded, "--to", tmp_path / "b.db")
    assert other["knobs"]["num_standbys"] == 1
    assert other["log_id"] != told["log_id"]


def test_simulate_reads_a_simulated_log(recorded: Path, tmp_path: Path) -> None:
    document("what-if", recorded, "--to", tmp_path / "a.jsonl")
    told = document("what-if", tmp_path / "a.jsonl", "--to", tmp_path / "b.jsonl")
    assert told["decisions"] > 0
    assert document("verify", tmp_path / "b.jsonl")["verdict"] == "identical"


def test_imported_group_is_explained_shown_and_drawn(recorded: Path, tmp_path: Path) -> None:
    result = run("explain", recorded, "--task", "0_1")
    assert "its own leader gave it to it in generation" in result.stdout
    assert "equipoise would" in result.stdout
    assert "led by its own leader" in run("status", recorded, "--all").stdout
    assert run("timeline", recorded, "--html", tmp_path / "x.html").exit_code == 0
    told = document("verify", recorded)
    assert told["groups"][0]["not_yet_written"] > 0, "proposals are computed, not imported"


def test_demo_report_files(tmp_path: Path) -> None:
    result = run("demo", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.count("recomputed and compared byte for byte: identical") == 2
    for text in ("what each action cost", "A3 kill one", "888.7 -> 42.4", "why did ", "has more than its share", "equipoise explain "):
        assert text in result.stdout
    assert len(result.stdout.splitlines()) <= 40, "it fits one screen"
    for name in ("scale-out/recorded.db", "scale-out/equipoise.db", "scale-out/equipoise.html", "rolling/recorded.html", "rolling/equipoise.html"):
        assert (tmp_path / "out" / name).stat().st_size > 10_000
    assert "\x1b" not in result.stdout, "plain text when it is no terminal"


def test_demo_next_steps_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = run("demo").stdout.splitlines()
    commands = [line.split("  ")[1] for line in lines[lines.index("next") + 1 :]]
    assert len(commands) >= 4
    for command in commands:
        name, *args = command.split()
        assert name == "equipoise"
        if "DUMP" not in args:
            result = run(*args)
            assert result.exit_code == 0, (command, result.stderr)


def test_demo_json_document(tmp_path: Path) -> None:
    told = document("demo", "--out", tmp_path)
    assert told["identical"] is True
    assert sorted(told["runs"]) == ["rolling", "scale-out"]
    windows = told["runs"]["scale-out"]["equipoise"]["simulation"]["windows"]
    joins = {window["label"]: window["totals"]["unavailable_task_seconds"] for window in windows}
    assert joins["A1_scale_out_one_cold"] == joins["A2_scale_out_two_cold"] == joins["A4_restart_with_old_state"] == 0


def test_demo_unwritable_out_is_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "--out" in one_line(run("demo", "--out", tmp_path / "file" / "out"))


def test_simulate_bytes_do_not_depend_on_the_hash_seed(recorded: Path, tmp_path: Path) -> None:
    written_bytes = []
    for seed in ("1", "2"):
        path = tmp_path / f"{seed}.jsonl"
        args = [sys.executable, "-c", "from equipoise.cli import main; main()", "what-if", str(recorded), "--to", str(path), "--quiet"]
        subprocess.run(args, check=True, capture_output=True, env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(equipoise.__file__).parents[1])})
        written_bytes.append(path.read_bytes())
    assert written_bytes[0] == written_bytes[1]
    assert len(written_bytes[0]) > 100_000


def all_commands() -> dict[str, click.Command]:
    """Every command by what a user types."""
    names = {f"equipoise {name}": place for name, place in COMMANDS.items() if name != "spark"}
    names |= {f"equipoise spark {name}": place for name, place in SPARK_COMMANDS.items()}
    return {name: getattr(importlib.import_module(place.partition(":")[0]), place.partition(":")[2]) for name, place in names.items()}


def test_commands_are_few_and_their_help_fits_one_screen() -> None:
    assert count() == len(all_commands()) <= 26
    assert 3 <= len(SECTIONS) <= 4
    shown = CliRunner().invoke(main, [], env={"COLUMNS": "80"}).stdout.splitlines()
    assert len(shown) < 40
    assert max(map(len, shown)) <= 80
    assert [line.split()[0] for line in shown if re.match("  [a-z-]+  ", line)] == list(COMMANDS), "each on one line"


@pytest.mark.parametrize("name", all_commands())
def test_command_help_has_a_summary_options_with_help_and_examples_a_line_each(name: str) -> None:
    command = all_commands()[name]
    summary, text = command.get_short_help_str(200), inspect.cleandoc(command.help or "")
    assert re.fullmatch(r"[A-Z][a-z-]+( here)?:? .*\.", summary), "an imperative sentence"
    assert all(getattr(each, "help", "") for each in command.params if isinstance(each, click.Option) and each.name != "help")
    block = text.partition("Examples:\n")[2].replace("\\\n", "")
    starts = [line.split()[0] for line in block.splitlines() if line.startswith("  ") and not line.startswith("   ")]
    assert starts
    assert {start.partition("=")[0] for start in starts} <= {
        "equipoise",
        "echo",
        "duckdb",
        "spark-submit",
        "EQUIPOISE_SECURITY_PROTOCOL",
        "EQUIPOISE_WITNESS",
    }
    assert not re.search(r"equipoise [a-z-]+ [^|\n&]*(?<!\$\()\bequipoise [a-z-]+ ", block), "two commands on one line"


def test_tail_prints_sentences_and_whole_decisions_as_json(log: Path) -> None:
    shown = run("tail", log, "-n", "1000").stdout.splitlines()
    decided = [json.loads(line) for line in run("tail", log, "-n", "1000", "--json").stdout.splitlines()]
    assert len(decided) == sum(isinstance(entry, DecisionRecord) for entry in lived())
    assert all(re.match(r"\d\d:\d\d:\d\d\.\d{3} #\d+ orders: ", line) for line in shown)
    assert not any("{" in line for line in shown)
    said = [line.partition("orders: ")[2] for line in shown]
    joins = [entry.event.member_id for entry in lived() if isinstance(entry, FactRecord) and isinstance(entry.event, MemberJoined)]
    assert [line.partition(" joined")[0] for line in said if " joined, incarnation" in line] == joins
    rounds = [each["event"]["generation"] for each in decided if each["kind"] == "AssignmentIssued"]
    assert [int(found[1]) for line in said if (found := re.match(r"round (\d+), because", line))] == rounds
    assert run("tail", log, "-n", "2").stdout.splitlines() == shown[-2:]
    with_facts = run("tail", log, "-n", "1000", "--facts").stdout.splitlines()
    assert [line for line in with_facts if line in shown] == shown
    assert any("LagReported {" in line for line in with_facts)
