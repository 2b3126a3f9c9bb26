"""docs/assignors.md: its table equals the simulations of `tests.support.compare`, its pictures
those of the simulation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from equipoise.assignors import registry
from equipoise.cli import main
from tests.made import hold
from tests.support.compare import Contender, cost_of, recorded_cost, recorded_runs, rows_of

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "assignors.md"
DRAWN = ("cooperative", "high_availability", "kafka_streams", "load_balanced")
BUILT_IN = ("high_availability", "learner", "load_balanced", "cooperative", "lag_aware", "kafka_streams", "kafka_connect")


def equipoise(*arguments: str) -> str:
    result = CliRunner().invoke(main, list(arguments))
    assert result.exit_code == 0, result.stderr
    return result.stdout


def cells(totals: Mapping[str, Any]) -> list[str]:
    return [
        f"{totals['unavailable_task_seconds']:,.1f}",
        f"{totals['longest_silence_ms'] / 1_000:.1f} s",
        f"{totals['active_moves']}",
        f"{totals['generations']}",
    ]


@pytest.mark.docs
def test_example_equals_the_simulations(rewrite: bool) -> None:
    runs = list(recorded_runs())
    costs = [cost for run in runs for cost in (*recorded_cost(run), *(cost_of(run, Contender(assignor=name)) for name in BUILT_IN))]
    headings = [f"{run.name}: {what}" if what == "unavailable" else what for run in runs for what in ("unavailable", "longest", "moves", "rounds")]
    lines = [f"| led by | {' | '.join(headings)} |", f"|---|{'--:|' * len(headings)}"]
    for contender, of_runs in rows_of(costs).items():
        name = contender if contender not in BUILT_IN else f"`{contender}`"
        lines.append(f"| {' | '.join([name, *(cell for cost in of_runs.values() for cell in cells(cost.totals))])} |")
    hold(PAGE, {"compared": "\n".join(lines)}, rewrite)


@pytest.mark.parametrize("name", DRAWN)
@pytest.mark.docs
def test_pictures_equal_those_of_the_simulation(name: str, tmp_path: Path, rewrite: bool) -> None:
    recorded, led, drawn = (str(tmp_path / file) for file in ("recorded.db", "led.db", "led.svg"))
    equipoise("import", "kafka-streams", "scale-out", "--to", recorded)
    equipoise("what-if", recorded, "--to", led, "--set", f"assignor={name}")
    equipoise("timeline", led, "--svg", drawn)
    kept, made = ROOT / "docs" / "pictures" / f"{name}.svg", Path(drawn).read_bytes()
    if rewrite:
        kept.write_bytes(made)
    elif kept.read_bytes() != made:
        pytest.fail(f"{kept.name} is not what is drawn now: run `make pictures`, and look at it")


def test_assignors_have_their_sections() -> None:
    built_in = {name for name, _ in registry.available()}
    assert built_in >= set(BUILT_IN)
    sections = re.findall(r"^## `(\w+)`$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(sections) == sorted(BUILT_IN)
