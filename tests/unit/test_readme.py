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
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from equipoise.cli import main
from equipoise.replay.numbers import LONGEST_GAP, MEASURED, MOVED_FOR_GOOD, MOVES, SIMULATED, UNAVAILABLE
from equipoise.replay.whatif.compared import SHOWN, ComparedCost, compared
from equipoise.replay.wording import span_text
from tests.made import hold

ROOT = Path(__file__).parents[2]
README, BENCHMARKS = ROOT / "README.md", ROOT / "docs" / "benchmarks.md"
RAW = ROOT / "bench" / "results" / "recorded_groups.csv"
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


def costs_of(document: dict[str, Any], run: str) -> list[dict[str, Any]]:
    costs: list[dict[str, Any]] = document["runs"][run]["equipoise"]["costs"]
    return costs


def pair(each: ComparedCost, name: str, form: str = "{:,.0f}", scale: float = 1) -> str:
    """Simulated with Kafka Streams, and with equipoise."""
    assert each.as_it_was is not None
    return f"{form.format(each.as_it_was[name] / scale)} → {form.format(each.led[name] / scale)}"


def table(document: dict[str, Any]) -> str:
    lines = [
        f"| action | {UNAVAILABLE} task-seconds, {MEASURED} | {SIMULATED} | {LONGEST_GAP}, s | {MOVES} | {MOVED_FOR_GOOD} | fewest |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for run in ("scale-out", "rolling"):
        rows = compared(costs_of(document, run))
        for each in rows:
            assert each.measured is not None
            cells = (
                f"{each.measured['unavailable_task_seconds']:,.1f}",
                pair(each, "unavailable_task_seconds", "{:,.1f}"),
                pair(each, "longest_silence_ms", "{:.1f}", 1_000),
                pair(each, "active_moves"),
                pair(each, "net_active_moves"),
                f"{each.led['min_moves_for_balance']:.0f}",
            )
            label = f"**{rows[0].action[0]} in all**" if each is rows[-1] else each.action
            lines.append(f"| {' | '.join([label, *cells])} |")
    return "\n".join(lines)


def caption(document: dict[str, Any]) -> str:
    simulation = document["runs"]["scale-out"]["equipoise"]["simulation"]
    *actions, whole = compared(costs_of(document, "scale-out"))
    assert whole.measured is not None
    waited = [each.action for each in actions if each.led["unavailable_task_seconds"]]
    return (
        f"A recorded Kafka Streams group, {span_text(simulation['end_ms'] - simulation['start_ms'])}. A row is a task, a colour is the member that "
        "runs it, red is no member.\nThe second picture: the same starts, kills and closes with equipoise as leader, in a simulated cluster.\n"
        f"{SIMULATED.capitalize()} with Kafka Streams → with equipoise (mean of 3 seeds): **{pair(whole, 'unavailable_task_seconds', '{:,.1f}')}** "
        f"{UNAVAILABLE} task-seconds, **{pair(whole, 'active_moves')}** moves; balance needs {whole.led['min_moves_for_balance']:.0f}.\n"
        f"With equipoise tasks are {UNAVAILABLE} in {', '.join(waited) or 'no action'} alone. {MEASURED.capitalize()} in the recorded group: "
        f"{whole.measured['unavailable_task_seconds']:,.1f} task-seconds, {whole.measured['active_moves']:.0f} moves."
    )


def raw(document: dict[str, Any]) -> str:
    """Every cost of every run, as CSV."""
    lines = [",".join(("run", "action", "led_by", "source", "seed", *SHOWN))]
    for run in ("scale-out", "rolling"):
        for each in costs_of(document, run):
            about = [each["action"], each["led_by"], each["source"], "" if each["seed"] is None else each["seed"]]
            lines.append(",".join(map(str, (run, *about, *(each["totals"][name] for name in SHOWN)))))
    return "\n".join(lines) + "\n"


@pytest.mark.docs
def test_raw_numbers_are_kept_beside_the_pages(document: dict[str, Any], rewrite: bool) -> None:
    if rewrite:
        RAW.write_text(raw(document), encoding="utf-8")
    assert RAW.read_text(encoding="utf-8") == raw(document), f"{RAW.name} is {HINT}"


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
