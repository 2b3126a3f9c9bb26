"""The plans of every behaviour version for problems drawn from seeds are the recorded ones: a log
replays only while the versions that decided it decide alike. `--rewrite` records them; a version
that was released must not change, a new one adds lines.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path

import pytest

from equipoise.assignors import registry
from equipoise.assignors.common.assignor import Assignor
from equipoise.assignors.common.validation import plan_faults
from tests.support.plan_json import plan_json
from tests.unit.assignors.drawn import drawn

RECORDED = Path(__file__).parents[2] / "data" / "plans.json"
BLOCK = 50
CHARS = 6
"""Of each plan's hash."""

problem = cache(drawn)


def digest(assignor: Assignor, seed: int) -> str:
    plan = assignor.assign(problem(seed))
    assert plan_faults(problem(seed), plan, assignor.guarantees) == [], seed
    return hashlib.sha256(json.dumps(plan_json(plan)).encode()).hexdigest()[:CHARS]


@pytest.mark.parametrize("first", range(0, 300, BLOCK))
@pytest.mark.parametrize("assignor", [*registry.NEWEST, *registry.FORMER], ids=lambda each: f"{each.name}-{each.version}")
def test_plan_of_a_behaviour_version_is_the_recorded_one(assignor: Assignor, first: int, rewrite: bool) -> None:
    name, seeds = f"{assignor.name} {assignor.version}", range(first, first + BLOCK)
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    if rewrite:
        recorded.setdefault(name, {})[f"{first:03}"] = " ".join(digest(assignor, seed) for seed in seeds)
        RECORDED.write_text(json.dumps(recorded, indent=0, sort_keys=True) + "\n", encoding="utf-8")
    for seed, wanted in zip(seeds, recorded[name][f"{first:03}"].split(), strict=True):
        assert digest(assignor, seed) == wanted, f"seed {seed}: the plan is now {json.dumps(plan_json(assignor.assign(problem(seed))), indent=1)}"
