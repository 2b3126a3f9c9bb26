"""`equipoise what-if`: the table, the picture, the line; every group of a log; errors that name
the option.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from equipoise.cli import main
from equipoise.events.facts import LogOpened
from equipoise.events.records import FactRecord
from equipoise.log import open_log
from equipoise.replay.whatif.evaluate import FACTUAL
from tests.unit.replay.lived import lived, write


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("what-if") / "group.db"
    with open_log(path, "w") as made:
        write(made, lived())
    return path


def invoke(*args: str | Path) -> Result:
    return CliRunner().invoke(main, ["what-if", *map(str, args)])


def document(*args: str | Path) -> dict[str, Any]:
    result = invoke(*args, "--json")
    assert result.exit_code == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_what_if_has_a_row_per_configuration_and_ends_with_advice(log: Path) -> None:
    result = invoke(log, "--sweep", "max_warmups=2,4", "--sweep", "num_standbys=0,1", "--seeds", "1")
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    rows = [line for line in lines[:-1] if "num_standbys=" in line]
    assert [line.lstrip("* ").partition("  ")[0] for line in rows] == [
        "max_warmups=2 num_standbys=1",
        "max_warmups=4 num_standbys=0",
        "max_warmups=4 num_standbys=1",
    ]
    assert "max_warmups=2 num_standbys=0 is the group's own configuration" in result.stderr
    assert any(FACTUAL in line for line in lines)
    assert any(line.startswith("*") for line in lines)
    assert lines[-1].startswith(("change ", "keep what you have: "))
    assert "led by high_availability" in lines[0]


def test_toml_files_and_a_given_speed(log: Path, tmp_path: Path) -> None:
    calm, bold = tmp_path / "calm.toml", tmp_path / "bold.toml"
    calm.write_text("[knobs]\nmax_warmups = 1\n")
    bold.write_text('name = "quite bold"\nassignor = "learner"\n[sweep]\nmax_warmups = [4, 8]\n')
    found = document(log, "--config", calm, "--config", bold, "--restore-speed", "90000", "--seeds", "2")
    (group,) = found["groups"]
    assert [each["name"] for each in group["outcomes"]] == ["calm", "quite bold max_warmups=4", "quite bold max_warmups=8"]
    assert [each["assignor"] for each in group["outcomes"]] == ["high_availability", "learner", "learner"]
    assert (group["restore_records_per_s"], group["restore_basis"]) == (90_000, "given")
    assert all(len(each["runs"]) == 2 for each in (group["factual"], *group["outcomes"]))
    assert set(group["front"]) <= {FACTUAL, *(each["name"] for each in group["outcomes"])}
    assert group["advice"]["line"]


def test_what_if_covers_all_groups_or_the_named_one(tmp_path: Path) -> None:
    path = tmp_path / "two.db"
    with open_log(path, "w") as made:
        for entry in lived():
            if isinstance(entry, FactRecord):
                made.append_fact(entry.group, entry.append_ms, entry.event)
                if not isinstance(entry.event, LogOpened):
                    made.append_fact("another", entry.append_ms, entry.event)
    both = document(path, "--seeds", "1")
    assert [group["group"] for group in both["groups"]] == ["another", "orders"]
    assert document(path, "--seeds", "1", "--group", "another")["groups"] == both["groups"][:1]


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("--sweep", "max_warmup=1"), "--sweep max_warmup: no such setting; did you mean max_warmups?"),
        (("--sweep", "max_warmups"), "--sweep max_warmups: write it as name=value,value"),
        (("--sweep", "max_warmups=a"), "--sweep max_warmups: 'a' is not a whole number"),
        (("--sweep", "max_warmups=0"), "max_warmups"),
        (("--sweep", "max_warmups=1", "--sweep", "max_warmups=2"), "--sweep max_warmups: given twice"),
        (("--sweep", "assignor=nobody"), "nobody"),
        (("--sweep", "announce_closes=maybe"), "announce_closes: 'maybe' is neither true nor false"),
        (("--config", "none.toml"), "none.toml: No such file"),
        (("--group", "nobody"), "'nobody'"),
    ],
)
def test_what_if_wrong_argument_error_is_one_line(log: Path, args: tuple[str, ...], told: str) -> None:
    result = invoke(log, "--seeds", "1", *args)
    assert result.exit_code == 2
    assert told in result.stderr
    assert "Traceback" not in result.stderr
