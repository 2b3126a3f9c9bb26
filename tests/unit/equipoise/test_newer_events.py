"""A log in which one group has events of a newer build: that group is one error line, and every
command continues with the others.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgpack
import pytest

from equipoise.events import codec
from equipoise.events.decisions import EventRejected
from equipoise.events.facts import MemberLeft
from equipoise.events.records import UnreadRecord
from equipoise.log import Log, open_log
from equipoise.log.parquet.log import ArchiveLog
from equipoise.log.parquet.store import ArchivePartition
from equipoise.log.rows import DecisionRow, FactRow, Row
from equipoise.log.stored import StoredLog
from equipoise.replay import verify
from equipoise.replay.spark.groups import units_of
from equipoise.replay.spark.timeline import timeline_group
from equipoise.replay.spark.verify import verify_group
from equipoise.replay.spark.what_if import what_if_group
from tests.json_schemas import check
from tests.unit.equipoise.test_commands import document, one_line, run
from tests.unit.replay.lived import END_MS, lived, write

LEFT = MemberLeft(member_id="m1", incarnation=1)
REJECTED = codec.encode(EventRejected(kind=11, code="unknown_member"))
LONGER = msgpack.packb([*msgpack.unpackb(REJECTED.payload), "a field more"])
UNKNOWN_FACT = "group 'newer': event kind 99, version 1, is not known to this build; upgrade to the one that wrote it"
UNKNOWN_DECISION = "group 'later': decision 1: event kind 299, version 4, is not known to this build; upgrade to the one that wrote it"
APPENDED = "group 'longer': decision 1: EventRejected has fields that this build does not know; upgrade to the one that wrote it"


def append(log: Log, group: str, kind: int, version: int, payload: bytes) -> FactRow:
    at = log.position()
    row = FactRow(group, at, END_MS, kind, version, payload, codec.fact_checksum(group, at, END_MS, kind, version, payload))
    log.append_row(row)
    return row


def decide(log: Log, log_id: str, fact: FactRow, kind: int, version: int, payload: bytes) -> None:
    place = (fact.group, 1, fact.offset, 0)
    checksum = codec.decision_checksum(log_id, *place, fact.checksum, kind, version, payload)
    log.append_row(DecisionRow(*place, kind, version, payload, checksum))


FILES = ["group.db", "group.jsonl"]
ARCHIVE = "archive/"


@pytest.fixture(params=[*FILES, ARCHIVE])
def mixed(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return made(f"{tmp_path}/{request.param}")


def made(location: str) -> str:
    """The lived group, and three in which something is of a newer build: a fact, a decision, a
    decision with a field more.
    """
    entries = lived()
    log_id = entries[0].event.log_id  # type: ignore[union-attr]
    with open_log(location, "w") as log:
        write(log, entries)
        with log.transaction():
            append(log, "newer", 99, 1, b"\x90")
            append(log, "newer", *codec.encode(LEFT))
            decide(log, log_id, append(log, "later", *codec.encode(LEFT)), 299, 4, b"\x93\x01\x02\x03")
            decide(log, log_id, append(log, "longer", *codec.encode(LEFT)), REJECTED.kind, REJECTED.version, LONGER)
            append(log, "orders", *codec.encode(LEFT))
    return location


def rows_of(location: str) -> list[Row]:
    log: StoredLog | ArchivePartition = (
        ArchiveLog(location, "r").part(0) if location.endswith("/") else open_log(location)  # type: ignore[assignment]
    )
    with log:
        return [row for row, _ in log.checked_rows()]


def test_read_returns_unread_records(mixed: str) -> None:
    with open_log(mixed) as log:
        unread = [entry for entry in log.read() if isinstance(entry, UnreadRecord)]
    assert [(each.group, each.number, each.kind, each.version) for each in unread] == [
        ("newer", None, 99, 1),
        ("later", 1, 299, 4),
        ("longer", 1, REJECTED.kind, REJECTED.version),
    ]
    assert {each.partition for each in unread} == {0 if mixed.endswith("/") else None}


def test_verify_goes_on_with_the_other_groups(mixed: str) -> None:
    result = run("verify", mixed, "--json")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    groups = {group["group"]: group for group in json.loads(result.stdout)["groups"]}
    assert {name: group["verdict"] for name, group in groups.items()} == {
        "orders": "identical",
        "newer": "cannot verify",
        "later": "cannot verify",
        "longer": "cannot verify",
    }
    assert groups["orders"]["not_yet_written"] > 0
    for name, problem in (("newer", UNKNOWN_FACT), ("later", UNKNOWN_DECISION), ("longer", APPENDED)):
        where = "partition 0, " if mixed.endswith("/") else ""
        assert groups[name]["problem"] == f"offset {groups[name]['offset']}: {where}{problem}"
    shown = run("verify", mixed)
    assert [line.split(":")[0] for line in shown.stdout.splitlines() if "not known" in line or "does not know" in line] == [
        f"not verified from offset {groups[name]['offset']} on" for name in ("later", "longer", "newer")
    ]
    assert shown.stderr.endswith("(and 2 other groups)\n")


def test_verify_group_reads_only_it(mixed: str) -> None:
    assert document("verify", mixed, "--group", "orders")["verdict"] == "identical"
    assert "newer" in one_line(run("verify", mixed, "--group", "orders", "--group", "newer"))
    assert [each.group for each in verify(mixed, group="orders").groups] == ["orders"]
    missing = one_line(run("verify", mixed, "--group", "nope"))
    assert missing == "equipoise: --group: the log holds no fact of group 'nope'; it holds 'later', 'longer', 'newer', 'orders'\n"


ONE_GROUP = [("status",), ("timeline",), ("explain", "--task", "0_0"), ("what-if", "--to", "out.db"), ("what-if",)]


@pytest.mark.parametrize("command", ONE_GROUP)
def test_readers_of_one_group_pass_over_the_others(mixed: str, tmp_path: Path, command: tuple[str, ...]) -> None:
    arguments = [str(tmp_path / each) if each == "out.db" else each for each in command[1:]]
    assert document(command[0], mixed, "--group", "orders", *arguments)


@pytest.mark.parametrize("command", [("status",), ("timeline",), ("explain", "--task", "0_0")])
def test_named_unread_group_is_error(mixed: str, command: tuple[str, ...]) -> None:
    assert UNKNOWN_FACT in one_line(run(command[0], mixed, "--group", "newer", *command[1:]))


def test_tail_reports_unread_events(mixed: str) -> None:
    told = [json.loads(line) for line in run("tail", mixed, "--facts", "-n", "7", "--json").stdout.splitlines()]
    assert [(each["group"], each["kind"], each["number"]) for each in told] == [
        ("newer", "99", None),
        ("newer", "MemberLeft", None),
        ("later", "MemberLeft", None),
        ("later", "299", 1),
        ("longer", "MemberLeft", None),
        ("longer", "EventRejected", 1),
        ("orders", "MemberLeft", None),
    ]
    assert "is not known to this build" in run("tail", mixed, "--facts").stdout


@pytest.mark.parametrize("to", ["copy.db", "copy.jsonl", "copy/"])
@pytest.mark.parametrize("source", FILES)
def test_archive_keeps_every_byte_and_says_so(source: str, tmp_path: Path, to: str) -> None:
    mixed = made(f"{tmp_path}/{source}")
    target = f"{tmp_path}/{to}"
    result = run("archive", mixed, "--to", target, "--json")
    told: Any = json.loads(result.stdout)
    assert (result.exit_code, [each["group"] for each in told["unread"]]) == (1, ["newer", "later", "longer"])
    check("archive", told)
    assert rows_of(target) == rows_of(mixed)
    again = run("archive", mixed, "--to", target)
    assert (again.exit_code, again.stderr) == (0, "")


def test_compact_keeps_every_byte(tmp_path: Path) -> None:
    mixed = made(f"{tmp_path}/{ARCHIVE}")
    with open_log(mixed, "a") as log:
        append(log, "newer", 98, 7, b"\x91\x01")
    before = rows_of(mixed)
    assert document("archive", mixed, "--compact")["merged_rows"] == len(before)
    assert rows_of(mixed) == before


def test_many_groups_report_one_row(tmp_path: Path) -> None:
    mixed = made(f"{tmp_path}/{ARCHIVE}")
    units = {unit.group: unit for unit in units_of([mixed])}
    rows = {name: verify_group(unit) for name, unit in units.items()}
    assert {name: row["verdict"] for name, row in rows.items()} == {
        "orders": "identical",
        "newer": "cannot verify",
        "later": "cannot verify",
        "longer": "cannot verify",
    }
    assert UNKNOWN_FACT in rows["newer"]["problem"]
    histories = {name: timeline_group(unit)["groups"]["problem"] for name, unit in units.items() if name in ("orders", "newer")}
    assert histories["orders"] is None
    assert UNKNOWN_FACT in histories["newer"]
    simulated = {name: what_if_group(unit, [], [0])["problem"] for name, unit in units.items() if name in ("orders", "newer")}
    assert simulated["orders"] is None
    assert UNKNOWN_FACT in simulated["newer"]
