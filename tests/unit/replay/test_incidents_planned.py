"""`equipoise incident RECORDING LOG`: an incident that was a planned change says so, with what was
expected of it and the verdict; others name what was changed meanwhile.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from equipoise.cli import main
from equipoise.events.decisions import ChangeJudged
from equipoise.events.facts import ChangePlanned, ExpectedCost
from equipoise.log import is_log, open_log
from equipoise.replay.incident.causes import Cause
from equipoise.replay.incident.incidents import incidents
from equipoise.replay.incident.values import Incident
from equipoise.replay.known_changes import KnownChange
from tests.changed_groups import changed_group, write_changed
from tests.observed_groups import BOTH, group, history, member

PLANNED_JOIN_MS = 1_795_149_670_000
"""Nine seconds before i4 and i5 join in the recorded run."""
ALONE = group(2, member("a", 0, 1, 2, 3))


def change(kind: str, at_s: int, judged_s: int | None = None) -> KnownChange:
    costs = ExpectedCost(metric="moves", median=2, low_50=2, high_50=2, low_95=2, high_95=3)
    planned = ChangePlanned(change_id=f"{kind}-9", kind=kind, what="b leaves", why="it is old", expected=(costs,))
    judged = None if judged_s is None else ChangeJudged(change_id=planned.change_id, outcome="at_rest", unavailable_task_ms=0, moves=2, rest_ms=900)
    judged_ms = None if judged_s is None else judged_s * 1_000
    return KnownChange(group="g", offset=9, append_ms=at_s * 1_000, planned=planned, judged=judged, judged_ms=judged_ms)


def lost(*changes: KnownChange) -> Incident:
    """The incident in which b is gone, from second 99 on."""
    found = incidents(history((0, BOTH), (110, ALONE), stopped={2: [(99, 111)], 3: [(99, 111)]}), changes=changes)
    return found[1]


@pytest.mark.parametrize(
    ("planned", "names", "is_cause"),
    [
        (change("scale_down", 98, 130), True, True),
        (change("restart", 40), True, True),
        (change("configure", 98, 130), True, False),
        (change("join", 98, 130), True, False),
        (change("scale_down", 40, 60), False, False),
        (change("scale_down", 112, 130), False, False),
    ],
)
def test_change_is_a_cause_when_the_incident_looks_like_it(planned: KnownChange, names: bool, is_cause: bool) -> None:
    found = lost(planned)
    assert found.cause is Cause.EXPIRED
    assert ([each.is_cause for each in found.changes], found.planned is not None) == ([is_cause] * names, is_cause)


def test_line_has_what_was_expected_and_the_verdict() -> None:
    (told,) = lost(change("scale_down", 98, 130)).changes
    assert told.line() == (
        "it was planned (scale_down-9): b leaves, because it is old; expected 2 moves to 3 moves; "
        "it cost 0.0 task-s, 2 moves, rest after 900 ms: as expected"
    )
    (told,) = lost(change("join", 98)).changes
    assert told.line() == "meanwhile planned (join-9): b leaves, because it is old; expected 2 moves to 3 moves; under way"


def test_command_names_planned_changes(tmp_path: Path) -> None:
    log = write_changed(tmp_path / "group.db", PLANNED_JOIN_MS)
    shown = CliRunner().invoke(main, ["incident", "scale-out", str(log), "--all"])
    assert shown.exit_code == 0, shown.output
    assert "a member joined (i4, i5), over after" in shown.stdout
    assert "; planned: 2 more members" in shown.stdout
    assert "it was planned (c): 2 more members; expected at most 0.5 task-s; under way" in shown.stdout
    assert "meanwhile settings were changed without a plan: max_warmups 3 -> 5" in shown.stdout
    page = tmp_path / "page.html"
    document = json.loads(
        CliRunner().invoke(main, ["incident", "scale-out", str(log), "--all", "--json", "--redact", "--until", "2026-11-20T04:43"]).stdout
    )
    planned = document["groups"][0]["incidents"][-1]
    assert [(each["change"]["change_id"], each["is_cause"]) for each in planned["changes"]] == [(None, False), ("name-2", True)]
    assert planned["changes"][1]["change"]["what"] == "a change of kind join"
    drawn = CliRunner().invoke(main, ["incident", "scale-out", str(log), "--group", "orders", "--html", str(page), "--until", "2026-11-20T04:43"])
    assert drawn.exit_code == 0, drawn.output
    assert "it was planned (c)" in page.read_text(encoding="utf-8")


def test_log_alone_or_of_another_group(tmp_path: Path) -> None:
    log = write_changed(tmp_path / "group.db")
    refused = CliRunner().invoke(main, ["incident", str(log)])
    assert (refused.exit_code, "name a recording, or logs of brokers and clients, beside it" in refused.output) == (2, True)
    lines = tmp_path / "server.log"
    lines.write_text(
        "[2026-11-20 04:41:19,000] INFO [GroupCoordinator 1]: Preparing to rebalance group clicks in state PreparingRebalance with old generation 3 "
        "(__consumer_offsets-1) (reason: Adding new member m with group instance id None) (kafka.coordinator.group.GroupCoordinator)\n"
    )
    shown = CliRunner().invoke(main, ["incident", str(lines), str(log)])
    assert "orders: 5 changes in its log, and no group of that name in the other files" in shown.output


def test_log_is_known_by_its_first_bytes(tmp_path: Path) -> None:
    for name in ("group.db", "group.jsonl", "group.parquet"):
        write_changed(tmp_path / name)
        assert is_log(str(tmp_path / name)), name
    assert is_log(str((tmp_path / "group.parquet").rename(tmp_path / "archive")))
    with open_log(tmp_path / "open.db", "a") as log:
        log.append_fact("", 1, changed_group().records[0].event)
        assert is_log(str(tmp_path / "open.db")), "its mark is beside the file yet"
    (tmp_path / "other.jsonl").write_text('{"time": "2026-11-20T04:41:19Z", "msg": "Preparing to rebalance group"}\n')
    assert not any(is_log(str(each)) for each in (tmp_path / "other.jsonl", tmp_path / "missing.db", tmp_path))
    assert is_log("kafka://127.0.0.1:9092")
    assert not is_log("-")
