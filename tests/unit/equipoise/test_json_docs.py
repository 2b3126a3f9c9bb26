"""docs/json.md holds: what each command prints with --json has the keys that stand there, no more
and no fewer, and each of them is met.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from click.testing import CliRunner

from equipoise.cli import COMMANDS, main
from equipoise.cli.spark import SPARK_COMMANDS
from equipoise.events.decisions import MemberAssigned, MemberExpired
from equipoise.events.facts import GroupConfigured, LeaveIntended, LogOpened
from equipoise.events.log import open_log
from equipoise.events.records import DecisionRecord, Record
from tests.unit.replay.lived import END_MS, JOINED_MS, lived, write

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "json.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## ([\w-]+)\n.*?^```\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
WORD = re.compile(r"(?P<key>\w*)(?P<many>\[\]|\{\w+\})?(?:@(?P<shape>\w+)|(?P<open>\.\.\.))?")

Shapes = dict[str, list[str]]


def shapes_of(block: str) -> Shapes:
    """Name of a shape -> its words; the document's own is ""."""
    shapes: Shapes = {"": []}
    name = ""
    for line in block.splitlines():
        if line.startswith("@"):
            name = line[1:]
            shapes[name] = []
        else:
            shapes[name] += line.split()
    return shapes


class Reader:
    """Reads documents by the shapes of one section, and remembers which keys it has met with a
    value.
    """

    def __init__(self, shapes: Shapes) -> None:
        self.shapes = shapes
        self.met: set[tuple[str, str]] = set()

    def read(self, document: Any) -> None:
        words = self.shapes[""]
        if words == [words[0]] and words[0].startswith("[]"):
            self._value("", words[0], document, "document")
        else:
            self._object("", document, "document")

    def _object(self, shape: str, value: Any, place: str) -> None:
        words = {self._parts(word)["key"]: word for word in self.shapes[shape]}
        assert isinstance(value, dict), place
        assert sorted(value) == sorted(words), place
        for key, inner in value.items():
            if inner is not None and (inner not in ([], {}) or self._parts(words[key])["open"]):
                self.met.add((shape, key))
            self._value(shape, words[key], inner, f"{place}.{key}")

    def _value(self, shape: str, word: str, value: Any, place: str) -> None:
        parts = self._parts(word)
        if value is None or parts["open"]:
            return
        if parts["many"] == "[]":
            assert isinstance(value, list), place
            inner = list(value)
        elif parts["many"]:
            assert isinstance(value, dict), place
            inner = list(value.values())
        else:
            inner = [value]
        for each in inner:
            if parts["shape"]:
                self._object(parts["shape"], each, place)
            else:
                assert not isinstance(each, dict), place

    @staticmethod
    def _parts(word: str) -> dict[str, str]:
        found = WORD.fullmatch(word)
        assert found is not None, word
        return {name: text or "" for name, text in found.groupdict().items()}

    def never_met(self) -> Iterator[tuple[str, str]]:
        for shape, words in self.shapes.items():
            for word in words:
                key = self._parts(word)["key"]
                if key and (shape, key) not in self.met:
                    yield shape, key


def drains_at(log: Path) -> int:
    """Offset at which a member says that it is leaving."""
    with open_log(log) as read:
        return next(entry.offset for entry in read.read() if isinstance(entry, Record) and isinstance(entry.event, LeaveIntended))


def printed(*args: str | Path, code: int = 0) -> Any:
    result = CliRunner().invoke(main, [*map(str, args), "--json"])
    assert result.exit_code == code, result.stderr
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """What each command prints, for logs in which everything happens that has keys of its own."""
    folder = tmp_path_factory.mktemp("json")
    names = ("lived.db", "told.db", "led.db", "strange.db", "wrong.jsonl", "torn.jsonl")
    log, told, led, strange, wrong, torn = (folder / name for name in names)
    write_log(log)
    entries = list(lived())
    at = next(index for index, entry in enumerate(entries) if isinstance(entry, DecisionRecord) and isinstance(entry.decision, MemberExpired))
    first = entries[at]
    assert isinstance(first, DecisionRecord)
    assert isinstance(first.decision, MemberExpired)
    entries[at] = attrs.evolve(first, decision=attrs.evolve(first.decision, silent_ms=7))
    write_log(wrong, entries)
    torn.write_bytes(wrong.read_bytes()[:-20])
    with open_log(strange, "w") as made:
        made.append_fact("", 0, LogOpened(log_id="strange"))
        made.append_fact("orders", 0, GroupConfigured(assignor="nobody", solver=""))
    warming = max(entry.offset for entry in lived() if isinstance(entry, Record) and entry.append_ms <= JOINED_MS + 10_000)
    decisions = [entry for entry in lived() if isinstance(entry, DecisionRecord)]
    revoking = next(entry for entry in decisions if isinstance(entry.decision, MemberAssigned) and entry.decision.revoke).caused_by
    moving = next(row["task"] for row in printed("show", log, "--at", str(warming))["tasks"] if row["movement"] == "warming")
    dead = str(first.caused_by - 1)
    tasks = [row["task"] for row in printed("show", log)["tasks"]]
    scenario = ROOT / "tests" / "scenarios" / "high_availability" / "cold_joiner.txt"
    changed = folder / "changed.txt"
    changed.write_text(scenario.read_text(encoding="utf-8").replace("gen=1 probing=no", "gen=1 probing=yes"), encoding="utf-8")
    archived = f"{folder / 'archive'}/"
    archive = [printed("archive", log, "--to", archived)]
    return {
        "archive": archive,
        "compact": [printed("compact", archived)],
        "fleet": [printed("fleet", "--to", folder / "fleet", "--groups", "1", "--records", "200", "--processes", "1")],
        "import": [printed("import", "kafka-streams", "rolling", "--to", told)],
        "simulate": [
            printed("simulate", log, "--to", led, "--assignor", "learner", "--set", "options.strict=true", "--set", "rack_aware_tags=zone"),
            printed("simulate", told, "--to", led),
        ],
        "compare": [printed("compare", told, "--assignor", "learner")],
        "what-if": [
            printed("what-if", told, "--sweep", "max_warmups=10", "--seeds", "2"),
            printed("what-if", log, "--sweep", "announce_closes=true", "--seeds", "1"),
            printed("what-if", two_groups(folder / "two.db"), "--seeds", "1", code=1),
        ],
        "verify": [printed("verify", path, code=code) for path, code in ((log, 0), (wrong, 1), (torn, 1), (strange, 2))],
        "show": [printed("show", *args) for args in ((log,), (log, "--at", str(warming)), (log, "--at", str(revoking)), (wrong,), (told,))],
        "explain": [
            *(printed("explain", log, "--task", task) for task in tasks),
            *(printed("explain", log, "--task", task, "--at", str(warming)) for task in tasks),
            printed("explain", log, "--task", moving, "--at", dead),
            printed("explain", wrong, "--task", moving),
            *(printed("explain", led, "--task", f"0_{partition}") for partition in range(12)),
            printed("explain", told, "--task", "0_0"),
        ],
        "timeline": [printed("timeline", log), printed("timeline", wrong), printed("timeline", led), printed("timeline", told)],
        "scale-down": [printed("scale-down", log, "--percent", "50%"), printed("scale-down", led, "--percent", "30", "--at", str(drains_at(led)))],
        "demo": [printed("demo", "--out", folder / "out")],
        "scenario": [printed("scenario", scenario), printed("scenario", changed, code=1)],
    }


def two_groups(path: Path) -> Path:
    """The second one is only configured."""
    with open_log(path, "w") as log:
        write(log, lived())
        log.append_fact("empty", END_MS, GroupConfigured(solver=""))
    return path


def write_log(path: Path, entries: Any = None) -> None:
    with open_log(path, "w") as log:
        write(log, lived() if entries is None else entries)


ON_SPARK = {f"spark-{name}" for name in SPARK_COMMANDS}
"""Held to their sections in tests/spark, where there is a session."""
LIVE = {"configure", "deal", "groups", "shadow", "status", "tail"}
"""Held to their sections in tests/live (test_kafka_log.py, test_streams_import.py,
test_configure.py, test_lag_aware.py), where there is a broker.
"""

_NOT_PREPARED = {("task", "preparing"), ("copy", "preparing"), *(("preparing", each) for each in ("thousandths", "since_ms", "has_failed"))}
NOT_MET: dict[str, set[tuple[str, str]]] = {
    "show": {
        *(("drain", each) for each in ("expected_ms", "left_ms")),
        *(("member", each) for each in ("drain", "crash_backoff_ms", "rack", "ready_lag_records")),
        *_NOT_PREPARED,
    },
    "explain": {("candidate", "rack"), ("candidate", "traffic_cost"), ("candidate", "load_share"), ("candidate", "task_share"),
                *_NOT_PREPARED},
    "timeline": {("lifeline", "rack")},
    "archive": {("", "unread"), *(("unread", each) for each in ("group", "partition", "offset", "number", "kind", "version", "problem"))},
    "scenario": {("file", "disagreements")},
}
"""Keys that these logs have no value for: no member names a rack or a limit of its own, prepares,
is leaving or keeps crashing, no scenario disagrees with itself, nothing is of a newer build
(test_newer_events.py has that)."""


def test_every_command_with_a_document_has_a_section() -> None:
    assert sorted(SECTIONS) == sorted({*COMMANDS, *ON_SPARK} - {"assign", "worker", "spark"})


@pytest.mark.parametrize("command", sorted(set(SECTIONS) - LIVE - ON_SPARK))
def test_a_command_prints_the_keys_of_its_section(documents: dict[str, list[Any]], command: str) -> None:
    reader = Reader(shapes_of(SECTIONS[command]))
    for document in documents[command]:
        reader.read(document)
    assert set(reader.never_met()) == NOT_MET.get(command, set())


def test_a_key_too_many_or_too_few_is_found() -> None:
    shapes = shapes_of("a b[]@inner c{x}\n\n@inner\nd")
    Reader(shapes).read({"a": 1, "b": [{"d": 2}], "c": {"u": 1, "v": None}})
    for wrong in ({"a": 1, "b": []}, {"a": 1, "b": [{"e": 1}], "c": {}}, {"a": {"x": 1}, "b": [], "c": {}}, {"a": 1, "b": [], "c": {"u": {}}}):
        with pytest.raises(AssertionError):
            Reader(shapes).read(wrong)
