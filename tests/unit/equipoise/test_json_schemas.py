"""The schemas in equipoise/schemas: every command has one, what a command prints with --json fits
it, and every property is met.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import attrs
import pytest
from click.testing import CliRunner
from jsonschema import Draft202012Validator

from equipoise.cli import COMMANDS, main
from equipoise.cli.spark import SPARK_COMMANDS
from equipoise.events.decisions import MemberAssigned, MemberExpired
from equipoise.events.facts import GroupConfigured, LeaveIntended, LogOpened, TaskParked
from equipoise.events.records import DecisionRecord, FactRecord
from equipoise.events.tasks import parse_task
from equipoise.log import open_log
from tests.changed_groups import write_changed
from tests.group_logs import EXAMPLE
from tests.json_schemas import NOT_MET, SHARED, Coverage, check, closed_objects, properties_of, references_in, schemas
from tests.pages import rows_of
from tests.unit.replay.lived import END_MS, JOINED_MS, lived, write
from tests.unit.replay.test_incidents_planned import PLANNED_JOIN_MS
from tests.unit.replay.test_size import Known

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "json.md").read_text(encoding="utf-8")
COMMANDS_PAGE = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")


def drains_at(log: Path) -> int:
    """Offset at which a member says that it is leaving."""
    with open_log(log) as read:
        return next(entry.offset for entry in read.read() if isinstance(entry, FactRecord) and isinstance(entry.event, LeaveIntended))


def printed(*args: str | Path, code: int = 0) -> Any:
    result = CliRunner().invoke(main, [*map(str, args), "--json"])
    assert result.exit_code == code, result.stderr
    return json.loads(result.stdout)


OF_ORDERS = ("--group", "orders")
pytestmark = pytest.mark.xdist_group("json")  # what the commands print takes ten seconds, once


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
    warming = max(entry.offset for entry in lived() if isinstance(entry, FactRecord) and entry.append_ms <= JOINED_MS + 10_000)
    decisions = [entry for entry in lived() if isinstance(entry, DecisionRecord)]
    revoking = next(entry for entry in decisions if isinstance(entry.decision, MemberAssigned) and entry.decision.revoke).caused_by
    cut = folder / "cut.db"
    write_log(cut, [entry for entry in lived() if not isinstance(entry, DecisionRecord) or entry.caused_by < revoking])
    moving = next(row["task"] for row in printed("status", log, *OF_ORDERS, "--at", str(warming))["state"]["tasks"] if row["movement"] == "warming")
    dead = str(first.caused_by - 1)
    tasks = [row["task"] for row in printed("status", log, *OF_ORDERS)["state"]["tasks"]]
    parked = with_parked_task(folder / "parked.db", printed("status", log, *OF_ORDERS)["state"])
    archived = f"{folder / 'archive'}/"
    archive = [printed("archive", log, "--to", archived), printed("archive", archived, "--compact")]
    return {
        "archive": archive,
        "import": [printed("import", "kafka-streams", "rolling", "--to", told)],
        "what-if": [
            printed("what-if", log, "--to", led, "--set", "assignor=learner", "--set", "options.strict=true", "--set", "rack_aware_tags=zone"),
            printed("what-if", told, "--to", led),
            printed("what-if", told, "--sweep", "max_warmups=10", "--seeds", "2"),
            printed("what-if", told, "--sweep", "carrier=kafka_streams", "--seeds", "1"),
            printed("what-if", log, "--sweep", "announce_closes=true", "--sweep", "behaviour_version=1", "--seeds", "1"),
            printed("what-if", log, "--change", "kill=m1", "--change", "restart=1", "--runs", "8"),
            printed("what-if", two_groups(folder / "two.db"), "--seeds", "1", code=1),
            printed("what-if", folder / "two.db", "--change", "join=1", "--runs", "8", code=1),
        ],
        "verify": [printed("verify", path, code=code) for path, code in ((log, 0), (wrong, 1), (torn, 1), (strange, 2), (archived, 0))],
        "status": [
            printed("status", log),
            printed("status", wrong, *OF_ORDERS),
            printed("status", parked),
            printed("status", cut, *OF_ORDERS),
            printed("status", parked, *OF_ORDERS),
            *(printed("status", path, *OF_ORDERS, *at) for path in (log, told) for at in ((), ("--at", str(warming)), ("--at", str(revoking)))),
        ],
        "explain": [
            *(printed("explain", log, "--task", task) for task in tasks),
            *(printed("explain", log, "--task", task, "--at", str(warming)) for task in tasks),
            printed("explain", log, "--task", moving, "--at", dead),
            printed("explain", wrong, "--task", moving),
            printed("explain", cut, "--task", moving),
            *(printed("explain", led, "--task", f"0_{partition}") for partition in range(12)),
            printed("explain", told, "--task", "0_0"),
        ],
        "timeline": [
            *(printed("timeline", path) for path in (log, wrong, led, told)),
            printed("timeline", write_changed(folder / "changed.db"), "--changes"),
        ],
        "size": [*sizes(folder / "busy.db"), *sizes(folder / "hot.db", code=1, skew=20.0), size_of_parked(folder / "failed.db")],
        "scale-down": [
            printed("scale-down", log, "--keep", "50%", "--runs", "2"),
            printed("scale-down", led, "--keep", "30%", "--at", str(drains_at(led)), "--runs", "2"),
        ],
        "incident": [
            printed("incident", "rolling", "--all"),
            printed("incident", "scale-out", "--group", "orders"),
            printed("incident", str(EXAMPLE)),
            printed("incident", "scale-out", write_changed(folder / "planned.db", PLANNED_JOIN_MS), "--all"),
        ],
        "demo": [printed("demo", "--out", folder / "out")],
    }


def sizes(path: Path, *, code: int = 0, skew: float = 1.0) -> list[Any]:
    """Of a group whose members reported loads for an hour and a half."""
    with open_log(path, "w") as log:
        write(log, Known(per_s=1_000, mean=200 if skew == 1.0 else 60, skew=skew).log())
    return [printed("size", path, "--lag", "20", "--runs", "2" if skew == 1.0 else "0", code=code)]


def size_of_parked(path: Path) -> Any:
    """Of a group with a task that has failed."""
    sizes(path)
    view = printed("status", path, *OF_ORDERS)["state"]
    with open_log(path, "a") as log:
        log.append_fact("orders", END_MS + 8 * 3_600_000, parked_task(view))
    return printed("size", path, "--lag", "20", "--runs", "0", code=1)


def two_groups(path: Path) -> Path:
    """The second one is only configured."""
    with open_log(path, "w") as log:
        write(log, lived())
        log.append_fact("empty", END_MS, GroupConfigured(solver=""))
    return path


def parked_task(view: Any) -> TaskParked:
    """The owner of the first task parks it."""
    task = view["tasks"][0]
    incarnation = next(member["incarnation"] for member in view["members"] if member["member_id"] == task["owner"])
    return TaskParked(
        member_id=task["owner"], incarnation=incarnation, task=parse_task(task["task"]), token=task["token"], topic="orders", error="ValueError"
    )


def with_parked_task(path: Path, view: Any) -> Path:
    """The log of this view, in which the owner of the first task has parked it."""
    with open_log(path, "w") as log:
        write(log, lived())
        log.append_fact("orders", END_MS, parked_task(view))
    return path


def write_log(path: Path, entries: Any = None) -> None:
    with open_log(path, "w") as log:
        write(log, lived() if entries is None else entries)


ON_SPARK = {f"spark-{name}" for name in SPARK_COMMANDS}
"""Checked in tests/spark, where there is a session."""
LIVE = {"cluster", "configure", "doctor", "migrate", "record", "tail", "witness", "worker"}
"""Checked in tests/live (test_kafka_log.py, test_streams_import.py, test_configure.py,
test_lag_aware.py, test_group_members.py, test_outage.py, test_restore.py, test_doctor.py,
test_groups_of_a_cluster.py, test_migrate.py), where there is a broker.
"""
COMMANDS_WITH_JSON = {*COMMANDS, *ON_SPARK} - {"lead", "spark"}


def test_schemas_cover_every_command_with_json() -> None:
    assert set(schemas()) == {*COMMANDS_WITH_JSON, SHARED}


@pytest.mark.parametrize("name", sorted(schemas()))
def test_schema_is_sound_and_closed(name: str) -> None:
    """Every object lists all its keys, and allows no others. Only what some recorded groups lack
    may be missing.
    """
    schema = schemas()[name]
    Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == Draft202012Validator.META_SCHEMA["$id"]
    for each in closed_objects(schema):
        assert each["additionalProperties"] is False
        assert each is schema.get("$defs", {}).get("some_totals") or sorted(each["required"]) == sorted(each["properties"])


def test_schemas_references_lead_to_definitions_and_every_definition_is_used() -> None:
    defined = {f"{name}#{each}" for name, schema in schemas().items() for each in schema.get("$defs", {})}
    used = {reference for name in schemas() for reference in references_in(name)}
    assert used - defined <= set(schemas())
    assert defined - used == set()


@pytest.mark.slow
@pytest.mark.xdist_group("json")
@pytest.mark.parametrize("command", sorted(COMMANDS_WITH_JSON - LIVE - ON_SPARK))
def test_command_output_fits_its_schema(documents: dict[str, list[Any]], command: str) -> None:
    coverage = Coverage(command)
    for document in documents[command]:
        coverage.check(document)
    assert coverage.never_met() == NOT_MET.get(command, set())


@pytest.mark.parametrize("name", sorted(COMMANDS_WITH_JSON))
def test_json_page_lists_the_schema_and_examples_of_the_command_name_keys_of_it(name: str) -> None:
    assert [row for row in rows_of(PAGE) if row.cells[1].startswith(f"[{name}.json](../equipoise/schemas/{name}.json)")]
    queries = re.findall(rf"^equipoise {name.replace('spark-', 'spark ')} .*\| jq (.*)$", COMMANDS_PAGE, re.MULTILINE)
    asked = re.sub(r"[.]event[.]\w+", ".event", " ".join(queries))  # what an event has is its own
    assert set(re.findall(r"[.]([a-z_]+)", asked)) <= properties_of(name)


def test_check_finds_a_key_too_many_a_key_too_few_and_a_wrong_value() -> None:
    right = {"recording": "c.db", "records": 1, "commits": 2, "samples": 3, "unread": 0}
    check("record", right)
    values = ({"records": "1"}, {"commits": None}, {"samples": -1})
    for wrong in ({**right, "more": 1}, {"recording": "c.db", "records": 1}, *({**right, **value} for value in values)):
        with pytest.raises(AssertionError, match="record at"):
            check("record", wrong)


def test_coverage_notes_properties_that_have_a_value() -> None:
    coverage = Coverage("archive")
    coverage.check({"facts": 1, "decisions": 0, "next_offset": None, "next_offsets": [], "waiting": 0, "unread": [], "withdrawn": None})
    assert {("archive#copied", "next_offset"), ("archive#copied", "next_offsets"), ("archive#unread", "kind")} <= coverage.never_met()
    assert ("archive#copied", "facts") not in coverage.never_met()
