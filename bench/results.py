"""Results as CSV. Those of `bench/results` stand behind tables of `docs/benchmarks.md`. Each row has
its date, its command, and the machine with its load. A test compares rows and tables.
"""

from __future__ import annotations

import csv
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.__main__ import environment

FOLDER = Path(__file__).parent / "results"


def conditions(module: str) -> dict[str, str]:
    """Under which this process measures. Call it before the machine is loaded."""
    return {"date": time.strftime("%Y-%m-%d"), "command": shlex.join(["python", "-m", module, *sys.argv[1:]]), "machine": environment()}


def write_csv(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Writes the rows; the columns are the names of the first one. Raises OSError."""
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def read_csv(path: Path) -> list[dict[str, str]]:
    """The rows that `write_csv` has written."""
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
