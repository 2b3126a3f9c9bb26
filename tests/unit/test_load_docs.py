"""docs/assignors.md on `load_balanced`: the table equals the recorded run, and its options are the
assignor's.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from equipoise.assignors.load_balanced.weights import DEFAULT_WEIGHTS, weights
from equipoise.cli import main
from equipoise.log import open_log
from equipoise.replay.inputs_reader import read_recorded_inputs
from equipoise.replay.replayer import Replayer
from equipoise.replay.wording import share_text
from equipoise.statemachine.round_problem import build_problem

PAGE = Path(__file__).parents[2] / "docs" / "assignors.md"
HEAD = "| action | `high_availability` | `load_balanced` |\n|---|--:|--:|\n"


def run(*arguments: str) -> None:
    result = CliRunner().invoke(main, list(arguments))
    assert result.exit_code == 0, result.stderr


def spreads(log: Path, ends: list[int]) -> list[tuple[int, int]]:
    """Returns the least and the most load per thread, in millionths of a fair share, at each of
    these times.
    """
    replayer = Replayer()
    found: list[tuple[int, int]] = []
    with open_log(str(log)) as source:
        for _ in replayer.follow(source.read()):
            if len(found) < len(ends) and replayer.last_append_ms >= ends[len(found)] - 2_000:
                problem = build_problem(replayer.machine.state)
                weight = weights(problem.tasks, problem.members, problem.settings)
                levels = [sum(weight[task] for task in member.active) // member.capacity for member in problem.members]
                found.append((min(levels), max(levels)))
    return found


def section() -> str:
    return PAGE.read_text(encoding="utf-8").partition("\n## `load_balanced`\n")[2].partition("\n## ")[0]


def test_load_table_equals_the_simulation(tmp_path: Path, rewrite: bool) -> None:
    recorded = tmp_path / "scale-out.db"
    run("import", "kafka-streams", "scale-out", "--to", str(recorded))
    with open_log(str(recorded)) as log:
        windows = read_recorded_inputs(log.read()).windows
    columns = []
    for assignor in ("high_availability", "load_balanced"):
        led = tmp_path / f"{assignor}.db"
        run("what-if", str(recorded), "--to", str(led), "--set", f"assignor={assignor}", "--set", "probing_interval_ms=30000")
        columns.append(spreads(led, [window.end_ms for window in windows]))
    rows = [
        f"| {window.label.partition('_')[0]} | {' | '.join(f'{share_text(low)} to {share_text(high)}' for low, high in levels)} |"
        for window, levels in zip(windows, zip(*columns, strict=True), strict=True)
    ]
    assert all(by_load[1] - by_load[0] < by_count[1] - by_count[0] for by_count, by_load in zip(*columns, strict=True))
    page = PAGE.read_text(encoding="utf-8")
    wanted = re.sub(re.escape(HEAD) + r"(\|.*\n)*", lambda _: HEAD + "\n".join(rows) + "\n", page)
    if rewrite:
        PAGE.write_text(wanted, encoding="utf-8")
    elif page != wanted:
        pytest.fail("docs/assignors.md is not what is computed now; `pytest --rewrite` writes\n" + "\n".join(rows))


def test_options_of_the_table_have_their_defaults() -> None:
    told = {name: int(default) for name, default in re.findall(r"^\| `(load_\w+)` \| (\d+) \|", section(), re.MULTILINE)}
    assert told == {**DEFAULT_WEIGHTS, "load_high_percent": 20, "load_low_percent": 5}
