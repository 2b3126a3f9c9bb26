"""The README's caption, table and both pictures equal the demo's output, and its commands run as
printed.

The demo's output is golden: `make pictures` (pytest --rewrite) rewrites it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from equipoise.cli import main
from equipoise.replay.inputs_reader import sum_windows
from equipoise.replay.wording import span_text
from tests.made import hold

ROOT = Path(__file__).parents[2]
README, BENCHMARKS = ROOT / "README.md", ROOT / "docs" / "benchmarks.md"
HINT = "not what the demo computes now: run `make pictures`, and look at what it changed"


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo") / "out"


@pytest.fixture(scope="module")
def document(out: Path) -> dict[str, Any]:
    """Returns the document of `equipoise demo --json`."""
    result = CliRunner().invoke(main, ["demo", "--json", "--out", str(out)])
    assert result.exit_code == 0, result.stderr
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def windows(document: dict[str, Any], run: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = document["runs"][run]["equipoise"]["simulation"]["windows"]
    return found


def both(windows: Iterable[dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the sums: recorded, simulated."""
    listed = list(windows)
    return sum_windows([window["measured"]["totals"] for window in listed]), sum_windows([window["totals"] for window in listed])


def table(document: dict[str, Any]) -> str:
    lines = ["| action | unavailable task-seconds | longest gap | moves | fewest |", "|---|--:|--:|--:|--:|"]
    for run in ("scale-out", "rolling"):
        listed = windows(document, run)
        rows = [(window["label"].replace("_", " "), window["measured"]["totals"], window["totals"]) for window in listed]
        for label, before, after in [*rows, (f"**{rows[0][0][0]} in all**", *both(listed))]:
            cells = (
                f"{before['unavailable_task_seconds']:,.1f} → {after['unavailable_task_seconds']:,.1f}",
                f"{before['longest_silence_ms'] / 1_000:.1f} s → {after['longest_silence_ms'] / 1_000:.1f} s",
                f"{before['active_moves']} → {after['active_moves']}",
                f"{after['min_moves_for_balance']}",
            )
            lines.append(f"| {' | '.join([label, *cells])} |")
    return "\n".join(lines)


def caption(document: dict[str, Any]) -> str:
    simulation = document["runs"]["scale-out"]["equipoise"]["simulation"]
    listed = windows(document, "scale-out")
    before, after = both(listed)
    waited = [window["label"].replace("_", " ") for window in listed if window["totals"]["unavailable_task_seconds"]]
    return (
        f"A recorded Kafka Streams group, {span_text(simulation['end_ms'] - simulation['start_ms'])}. A row is a task, a colour is the member that "
        "runs it, red is no member.\nThe second picture: the same starts, kills and closes with equipoise as leader, in a simulated cluster.\n"
        f"Moves: **{before['active_moves']} → {after['active_moves']}**; balance needs {after['min_moves_for_balance']}. "
        f"Unavailable task-seconds: **{before['unavailable_task_seconds']:,.1f} → {after['unavailable_task_seconds']:,.1f}**,\n"
        f"all of them in {', '.join(waited) or 'no action'}."
    )


@pytest.mark.docs
def test_readme_numbers_equal_the_demo(document: dict[str, Any], rewrite: bool) -> None:
    hold(README, {"caption": caption(document)}, rewrite)
    hold(BENCHMARKS, {"table": table(document)}, rewrite)


@pytest.mark.parametrize("name", ["recorded.svg", "equipoise.svg"])
@pytest.mark.docs
def test_pictures_equal_those_of_the_demo(document: dict[str, Any], out: Path, name: str, rewrite: bool) -> None:
    drawn, kept = (out / "scale-out" / name).read_bytes(), ROOT / "docs" / "pictures" / name
    assert document["identical"]
    if rewrite:
        kept.write_bytes(drawn)
    elif kept.read_bytes() != drawn:
        pytest.fail(f"docs/pictures/{name} is {HINT}")


def test_readme_can_be_read_in_one_go() -> None:
    """It says what this is and where to go on. Commands are in docs/commands.md, measurements in
    docs/benchmarks.md.
    """
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 120


@pytest.mark.docs
def test_readme_commands_run_after_the_demo(document: dict[str, Any], out: Path) -> None:
    section = README.read_text(encoding="utf-8").partition("## Four ways in, each under ten minutes")[2]
    (commands,) = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    assert {"explain", "verify", "what-if", "incident"} == set(re.findall(r"^equipoise ([\w-]+)", commands, re.MULTILINE))
    folder = out.parent
    for name in ("docs", "tests"):
        (folder / name).symlink_to(ROOT / name)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(["sh", "-e", "-c", commands], cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "identical: " in done.stdout
    assert "Why is 0_1 on " in done.stdout
