"""Which storms run: kept seeds that failed once, and rolling ones, a new range for each commit.

A storm is named by its seed and its kind, as in ``tests/data/seeds.txt``: ``70001026 plain``.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.storms import Setting, draw

KEPT = Path(__file__).parent / "data" / "seeds.txt"
KINDS = ("plain", "switching", "operators", "operators+switching", "operators+switching+witnessed", "restarting", "operators+switching+restarting")
"""switching: other assignors take the lead. operators: see `tests.storm_operators`. witnessed: the
ends of processes are proven. restarting: members that leave say that they will be back.
"""
SPREAD = 1_000
"""How far apart the ranges of commits one second apart are."""


def kind_of(seed: int) -> str:
    """The kind of a seed's storm in `make soak`: one kind after the other."""
    return KINDS[seed % len(KINDS)]


def setting_of(seed: int, kind: str | None = None) -> Setting:
    """`kind` None: `kind_of` the seed."""
    words = (kind or kind_of(seed)).split("+")
    has = words.__contains__
    return draw(seed, switching=has("switching"), operators=has("operators"), witnessed=has("witnessed"), restarting=has("restarting"))


def kept() -> list[tuple[int, str]]:
    """(seed, kind) of storms that failed once."""
    lines = [line.split("#")[0].split() for line in KEPT.read_text().splitlines()]
    return [(int(line[0]), line[1]) for line in lines if line]


def base() -> int:
    """The first rolling seed: SEED_BASE, or by the time of the last commit; 0 without either."""
    given = os.environ.get("SEED_BASE")
    if given:
        return int(given)
    asked = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=KEPT.parent, capture_output=True, text=True, check=False)
    return int(asked.stdout) * SPREAD if asked.stdout.strip() else 0
