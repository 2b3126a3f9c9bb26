"""What Python makes for the pages' scripts has the types that they declare. `make check` holds the
scripts themselves.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from equipoise.replay.incident import incidents
from equipoise.replay.incident.page import page_data as incident_data
from equipoise.replay.timelines import build_timeline, page_data
from tests.changed_groups import changed_group
from tests.groups import GROUP, Group
from tests.observed_groups import BOTH, group, history, member
from tests.unit.equipoise.console.test_pages import served
from tests.unit.replay.lived import lived
from tools.script_types import PROJECT, check

ROOT = Path(__file__).parents[2]
TYPES = {"PageData": "replay/drawing/page_data"}
DOCUMENTS = "equipoise/console/static/documents"

Made = Sequence[tuple[str, Any]]
"""Values, each with the name of its type."""


def wrong(made: Made, folder: Path) -> str:
    """What the compiler says of these values as literals of their types."""
    lines = [
        f"const made{number}: import({json.dumps(str(ROOT / TYPES.get(name, DOCUMENTS)))}).{name} = {json.dumps(value)};"
        for number, (name, value) in enumerate(made)
    ]
    (folder / "made.ts").write_text("\n".join([*lines, "export {};\n"]), encoding="utf-8")
    config = json.loads((PROJECT / "tsconfig.json").read_text())
    options = config["compilerOptions"] | {"rootDirs": [str((PROJECT / each).resolve()) for each in config["compilerOptions"]["rootDirs"]]}
    (folder / "tsconfig.json").write_text(json.dumps({"compilerOptions": options, "files": ["made.ts"]}), encoding="utf-8")
    return check(folder)


def test_no_line_of_a_script_is_longer_than_140_columns() -> None:
    scripts = [path for folder in ("replay/drawing", "replay/timelines", "equipoise/console/static") for path in (ROOT / folder).glob("*.[jt]s")]
    assert len(scripts) >= 9
    assert [f"{path.name}:{number}" for path in scripts for number, line in enumerate(path.read_text().splitlines(), 1) if len(line) > 140] == []


def test_pages_get_what_their_script_draws(tmp_path: Path) -> None:
    observed = history((0, BOTH), (60, group(2, member("a", 0, 1, 2, 3))), (90, BOTH), stopped={2: [(60, 75)]})
    found = incidents(observed)
    incident = incident_data(observed, found, {each: ["one line"] for each in found})
    own = page_data(build_timeline(lived()))
    assert wrong([("PageData", each) for each in (incident, own)], tmp_path) == ""
    assert all(own[name] for name in ("lives", "intervals", "copies", "moves", "rounds", "lags", "imbalance"))
    assert all(incident[name] for name in ("windows", "totals", "stories", "intervals", "rounds"))


async def documents(led: Group | None) -> list[tuple[str, Any]]:
    """Every document of the console of a worker that leads a group, in which something moves."""
    asked = {
        "Groups": "api/groups", "Group": f"api/group?group={GROUP}", "PageData": f"api/timeline?group={GROUP}",
        "Sentences": f"api/said?group={GROUP}", "Explanation": f"api/explain?group={GROUP}&task=0_0", "WhatIf": f"api/what-if?group={GROUP}&join=1",
    }  # fmt: skip # a table: one row a line
    made = []
    async with served(group=led) as (worker, http):
        worker.group.join("m3", rack="a", tags={"zone": "a"})
        worker.tell()
        for name, path in asked.items():
            async with http.get(f"/console/{path}") as answer:
                made.append((name, await answer.json()))
    return made


async def test_console_gets_what_its_script_shows(tmp_path: Path) -> None:
    made = [*await documents(None), *await documents(copy.deepcopy(changed_group()))]
    assert wrong([(name, {key: each for key, each in value.items() if key != "problem"}) for name, value in made], tmp_path) == ""
    whole = dict(made[:6])
    assert all(whole["Group"][name] for name in ("member_rows", "task_rows", "copies", "waits", "settings"))
    assert all(whole["WhatIf"][name] for name in ("moves", "members"))
    assert made[6][1]["changes"]
    assert whole["Explanation"]["candidates"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: data.pop("moves"), "Property 'moves' is missing"),
        (lambda data: data.update(owners=[]), "does not exist in type 'PageData'"),
        (lambda data: data["intervals"][0].append(1), "Source has 8 element"),
        (lambda data: data["moves"][0].update(why=None), "Type 'null' is not assignable to type 'string'"),
    ],
)
def test_value_that_a_script_does_not_expect_is_named(change: Any, said: str, tmp_path: Path) -> None:
    data = page_data(build_timeline(lived()))
    change(data)
    assert re.search(re.escape(said), wrong([("PageData", data)], tmp_path))
