"""`python -m bench`: runs every benchmark and prints one table.

A benchmark is a module ``bench/<name>_bench.py`` with ``run() -> list[tuple[str, float, str]]``:
what was measured, the number, and a note, which may state a goal: "goal: at most 8", "goal: at
least 0.5" or "goal: 0.9 to 1.1". The command exits with 1 when a number misses its goal. Numbers
are ratios and counts, never wall time alone: this machine is not the next one.

``live_<name>_bench.py`` is the benchmark ``live-<name>``, on a real Kafka: it takes minutes, and
runs only when it is asked for, by its name or by `--live`.
"""

from __future__ import annotations

import importlib
import os
import platform
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from equipoise.cli.command import command
from equipoise.cli.screen import Screen, Table
from equipoise.events.errors import InputError

FOLDER = Path(__file__).parent

Row = tuple[str, float, str]
GOAL = re.compile(r"goal: (?:(?P<bound>at most|at least) (?P<limit>[\d.]+)|(?P<low>[\d.]+) to (?P<high>[\d.]+))")


def benchmarks(folder: Path) -> list[str]:
    """Names of the benchmarks in `folder`, in rising order."""
    return sorted(path.name.removesuffix("_bench.py").replace("_", "-") for path in folder.glob("*_bench.py"))


def misses_goal(value: float, note: str) -> bool:
    """Whether `value` misses the goal that `note` states; without a goal it misses none. Raises
    ValueError when the note mentions a goal that cannot be read.
    """
    found = GOAL.search(note)
    if found is None:
        if "goal" in note:
            raise ValueError(f"{note!r}: write a goal as 'goal: at most 8', 'goal: at least 0.5' or 'goal: 0.9 to 1.1'")
        return False
    if found["bound"] is None:
        return not float(found["low"]) <= value <= float(found["high"])
    limit = float(found["limit"])
    return value > limit if found["bound"] == "at most" else value < limit


def environment() -> str:
    """The machine and its load. Call it before the benchmarks load the machine."""
    machine = f"Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores"
    return f"{machine}, load {os.getloadavg()[0]:.1f} before"


@command("bench", short_help="Ratios that must not get worse.")
@click.argument("names", nargs=-1)
@click.option("--live", is_flag=True, help="All those on a real Kafka.")
def bench(screen: Screen, names: Sequence[str], live: bool) -> int:
    """Runs the benchmarks NAMES (default: all but live-...) and prints what they measured.

    Exits with 1 when a number misses its stated goal.

    \b
    Examples:
      python -m bench
      python -m bench codec --json
      python -m bench live-latency
    """
    there = benchmarks(FOLDER)
    for name in names:
        if name not in there:
            raise InputError(f"{name!r} is no benchmark; there are: {', '.join(there) or 'none'}")
    where = environment()
    wanted = names or [name for name in there if name.startswith("live-") == live]
    rows: list[tuple[str, str, float, str]] = []
    for name in screen.track(wanted, "measuring", len(wanted)):
        run: Callable[[], list[Row]] = importlib.import_module(f"bench.{name.replace('-', '_')}_bench").run
        rows.extend((name, *row) for row in run())
    keys = ("benchmark", "measure", "value", "note")
    document = {"environment": where, "rows": [dict(zip(keys, row, strict=True)) for row in rows]}
    screen.answer(document, where, Table(columns=keys, rows=rows))
    missed = [row for row in rows if misses_goal(row[2], row[3])]
    for name, measure, value, note in missed:
        print(f"goal missed: {name}: {measure}: {value:.3g} ({note})", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    bench.main(prog_name="python -m bench")
