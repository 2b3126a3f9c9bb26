"""`python -m bench`: runs every benchmark and prints one table.

A benchmark is a module ``bench/<name>_bench.py`` with ``run() -> list[tuple[str, float, str]]``:
what was measured, the number, and what it is to be held against ("at most 8: ..."). Numbers are
ratios and counts, never wall time alone: this machine is not the next one.

``live_<name>_bench.py`` is the benchmark ``live-<name>``, on a real Kafka: it takes minutes, and
runs only when it is asked for, by its name or by `--live`.
"""

from __future__ import annotations

import importlib
import os
import platform
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from equipoise.cli.command import command
from equipoise.cli.screen import Screen, Table
from equipoise.events.errors import InputError

FOLDER = Path(__file__).parent

Row = tuple[str, float, str]


def benchmarks(folder: Path) -> list[str]:
    """Names of the benchmarks in `folder`, in rising order."""
    return sorted(path.name.removesuffix("_bench.py").replace("_", "-") for path in folder.glob("*_bench.py"))


def environment() -> str:
    """What a reader must know of the machine to read the numbers; to be asked before it is put to
    work.
    """
    machine = f"Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores"
    return f"{machine}, load {os.getloadavg()[0]:.1f} before"


@command("bench", short_help="Ratios that must not get worse.")
@click.argument("names", nargs=-1)
@click.option("--live", is_flag=True, help="All those on a real Kafka.")
def bench(screen: Screen, names: Sequence[str], live: bool) -> None:
    """Runs the benchmarks NAMES (default: all but live-...) and prints what they measured.

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


if __name__ == "__main__":
    bench.main(prog_name="python -m bench")
