"""Ids that would forge a line, colour a terminal or turn its text around: no command prints them as
they are, and no new fact has them.
"""

from __future__ import annotations

import functools
import io
import json
import logging
import os
import pty
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

from equipoise.cli.screen import Line, Table, bold, plain
from equipoise.cli.visible import MOST_WORD_CHARS, VisibleFormatter, shortened, visible, visible_json
from equipoise.events.decisions import MemberAssigned
from equipoise.events.errors import FieldError
from equipoise.events.facts import MemberJoined, Subtopology, TopologyDeclared
from equipoise.events.fields import check_name, is_hidden
from equipoise.events.records import DecisionRecord, Entry, FactRecord
from equipoise.hosting.json_logging import JsonFormatter
from equipoise.log import open_log
from equipoise.replay.sentences import tell
from equipoise.replay.simulation.member_process import ProcessSettings
from equipoise.replay.simulation.simulated_cluster import ClusterConfig, MemorySink, SimulatedCluster
from equipoise.replay.simulation.world import steady
from tests.json_schemas import check
from tests.unit.equipoise.test_commands import run
from tests.unit.equipoise.test_newer_events import append
from tests.unit.replay.lived import configured, write

START_MS = 1_795_149_187_000
FORGED = "FORGED: all is well"
EVIL = f"\x1b[2J\x1b[31m[red]\x07\x00\x9b1m\r\n{FORGED}\n\u2028{FORGED}\u202e\u200b\u2066\ufeff\x7f"
GROUP = "orders" + EVIL
LONG = "x" * 997


@functools.cache
def evil() -> tuple[Entry, ...]:
    """A group in which every name is hostile, and one member's name is as long as a log may hold."""
    sink = MemorySink()
    topology = TopologyDeclared(
        epoch=0,
        subtopologies=(Subtopology(subtopology=0, partitions=4, stateful=True, source_topics=("in" + EVIL,), changelog_topics=("store" + EVIL,)),),
    )
    growth = {("store" + EVIL, partition): steady(records=50_000, records_per_s=50, start_ms=START_MS) for partition in range(4)}
    config = ClusterConfig(group=GROUP, log_id="evil", configured=configured(), topology=topology, growth=growth, start_ms=START_MS)
    cluster = SimulatedCluster(config, seed=3, sink=sink)
    cluster.start_worker()
    for name in ("m1" + EVIL, "m2" + EVIL):
        cluster.start_process(ProcessSettings(member_id=name, capacity=1, rack="rack" + EVIL, tags={"zone": EVIL[:30]}))
    cluster.run_until(START_MS + 30_000)
    cluster.start_process(ProcessSettings(member_id=LONG + "m3", capacity=1, rack="rack" + EVIL))
    cluster.run_until(START_MS + 90_000)
    cluster.last_process("m1" + EVIL).kill()
    cluster.run_until(START_MS + 120_000)
    return tuple(sink.entries)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("evil") / "evil.db"
    with open_log(path, "w") as log:
        write(log, evil())
    return path


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same log with a decision that is not the recomputed one."""
    path = tmp_path_factory.mktemp("wrong") / "wrong.db"
    entries = list(evil())
    at = next(i for i, each in enumerate(entries) if isinstance(each, DecisionRecord) and isinstance(each.decision, MemberAssigned))
    found = entries[at]
    assert isinstance(found, DecisionRecord)
    assert isinstance(found.decision, MemberAssigned)
    entries[at] = attrs.evolve(found, decision=attrs.evolve(found.decision, assignment_epoch=99))
    with open_log(path, "w") as log:
        write(log, entries)
    return path


def assert_all_visible(text: str) -> None:
    assert not [line for line in text.splitlines() if line.lstrip().startswith(FORGED)]
    assert {char for char in text if is_hidden(char)} <= {"\n"}


COMMANDS = [
    "verify {log}",
    "verify {wrong}",
    "verify {log} --group nope",
    "status {log}",
    "status {log} --group nope",
    "explain {log} --task 0_0",
    "explain {log} --task 0_3",
    "timeline {log} --all",
    "tail {log} --facts -n 500",
    "tail {log} --facts -n 500 --json",
    "scale-down {log} --keep 50% --runs 0",
    "what-if {log} --to {folder}/out.db --group {group}",
    "what-if {log} --to {folder}/out.db --group nope",
    "what-if {log} --sweep max_warmups=1,2",
    "archive {newer} --to {folder}/copy.db",
    "verify {newer}",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_command_on_a_log_of_hostile_names_prints_nothing_hidden(log: Path, wrong: Path, tmp_path: Path, command: str) -> None:
    newer = tmp_path / "newer.db"
    with open_log(newer, "w") as made:
        write(made, evil())
        append(made, GROUP, 99, 1, b"\x90")
    places = {"{log}": log, "{wrong}": wrong, "{newer}": newer, "{folder}": tmp_path, "{group}": GROUP}
    words = command.split()
    for name, value in places.items():
        words = [word.replace(name, str(value)) for word in words]
    result = run(*words)
    assert result.exit_code in (0, 1, 2), result.output
    assert result.exit_code != 2 or "defect" not in result.stderr
    assert FORGED in result.stdout + result.stderr  # it was printed at all
    assert_all_visible(result.stdout)
    assert_all_visible(result.stderr)


def test_long_names_are_shortened_in_tables_and_whole_in_json(log: Path) -> None:
    shown = run("status", log).stdout
    assert "x" * (MOST_WORD_CHARS + 1) not in shown
    members = {member["member_id"] for member in json.loads(run("status", log, "--group", GROUP, "--json").stdout)["state"]["members"]}
    assert LONG + "m3" in members
    assert members <= {each + EVIL for each in ("m1", "m2")} | {LONG + "m3"}


def test_simulate_takes_a_member_id_of_a_thousand_characters(log: Path, tmp_path: Path) -> None:
    assert max(len(each) for each in (GROUP, LONG + "m3")) == 999
    result = run("what-if", log, "--to", tmp_path / "out.db")
    assert result.exit_code == 0, result.stderr
    assert run("verify", tmp_path / "out.db").exit_code == 0


@pytest.mark.parametrize("arguments", [("status",), ("status", "--all"), ("explain", "--task", "0_0"), ("timeline",), ("verify",)])
def test_terminal_gets_no_sequence_but_our_own(log: Path, arguments: tuple[str, ...]) -> None:
    """On a terminal there are colours: they are ours, and nothing else is there that it would obey."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "equipoise", arguments[0], str(log), *arguments[1:]],
        stdout=follower,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "COLUMNS": "100", "TERM": "xterm-256color"},
    )
    os.close(follower)
    written = io.BytesIO()
    while True:
        try:
            written.write(os.read(leader, 65_536))
        except OSError:
            break
    os.close(leader)
    assert process.wait() == 0
    text = written.getvalue().decode()
    for ours in ("\r\n", "\x1b[0m", "\x1b[1m", "\x1b[2m", "\x1b[32m", "\x1b[1;32m", "\x1b[32;1m"):
        text = text.replace(ours, "")
    assert "[red]" in text  # markup is text
    assert {char for char in text if is_hidden(char)} == set()


def test_plain_tables_and_lines_escape_their_cells_titles_and_styles() -> None:
    table = Table(columns=("member",), rows=[(EVIL,), (None,), (7,)], title=f"of {EVIL}")
    for drawn in (plain(table), Line(bold(EVIL), EVIL).drawn()):
        assert_all_visible(drawn.replace("\x1b[1m", "").replace("\x1b[0m", ""))
    assert Line(bold(EVIL)).drawn().count("\x1b") == 2


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("m1", "m1"),
        ("Ünïcode 日本 \u00a0", "Ünïcode 日本 \u00a0"),
        ("a\nb\tc", "a\\nb\\tc"),
        ("\x1b[31m", "\\x1b[31m"),
        ("\x9b", "\\x9b"),
        ("\u202e\u200b\u2028\U000e0041\ud800", "\\u202e\\u200b\\u2028\\U000e0041\\ud800"),
    ],
)
def test_visible_shows_each_character(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_json_stays_the_same_document() -> None:
    document = json.dumps({"id": EVIL + "\U000e0041\ud800é"}, ensure_ascii=False)
    assert_all_visible(visible_json(document))
    assert json.loads(visible_json(document)) == json.loads(document)
    assert "é" in visible_json(document)


def test_shortened_cuts_only_long_words() -> None:
    assert shortened("a" * MOST_WORD_CHARS + " b") == "a" * MOST_WORD_CHARS + " b"
    cut = shortened("a" * 500 + "z" * 500 + " (5, ready)")
    assert len(cut) == MOST_WORD_CHARS + len(" (5, ready)")
    assert cut.startswith("aaa")
    assert cut.endswith("zzz (5, ready)")


def test_json_log_line_is_one_document_that_fits_its_schema() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger("tests.in JSON")
    logger.addHandler(handler)
    logger.propagate = False
    try:
        raise ValueError(EVIL)
    except ValueError:
        logger.exception("group %s halted", GROUP)
    joined = MemberJoined(member_id="m1", incarnation=7, join_nonce="n")
    (told,) = tell(FactRecord(GROUP, 5, 0, joined), [])
    logger.warning("%s", told.text, extra={"decided": {"partition": 0, **told.values}})
    assert stream.getvalue().isascii()
    failed, said = map(json.loads, stream.getvalue().splitlines())
    for document in (failed, said):
        check("worker", document)
    assert (failed["level"], failed["message"], failed["decided"]) == ("ERROR", f"group {GROUP} halted", None)
    assert failed["error"].startswith("Traceback")
    assert (said["error"], said["message"]) == (None, "m1 joined, incarnation 7")
    assert (said["decided"]["group"], said["decided"]["kind"], said["decided"]["member"]) == (GROUP, "MemberJoined", "m1")


def test_log_lines_of_a_worker_are_one_line_for_each_message() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(VisibleFormatter("%(levelname)s %(message)s"))
    logger = logging.getLogger("tests.of its own")
    logger.addHandler(handler)
    logger.propagate = False
    try:
        raise ValueError(EVIL)
    except ValueError:
        logger.exception("group %s halted", GROUP)
    text = stream.getvalue()
    assert text.splitlines()[0].startswith("ERROR group orders\\x1b[2J")
    assert {char for char in text if is_hidden(char)} == {"\n"}


@pytest.mark.parametrize("char", ["\x00", "\n", "\x1b", "\x7f", "\x85", "\x9b", "\u200b", "\u202e", "\u2066", "\u2028", "\ufeff", "\U000e0041"])
def test_new_name_hidden_char_is_error(char: str) -> None:
    with pytest.raises(FieldError, match=r"Member\.group: .* is no visible character; leave control and format characters out") as caught:
        check_name("Member.group", f"orders{char}")
    assert_all_visible(str(caught.value))


def test_log_of_hostile_names_is_verified(log: Path) -> None:
    assert json.loads(run("verify", log, "--json").stdout)["verdict"] == "identical"
