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
from equipoise.assignors.common.plan_json import plan_json
from equipoise.assignors.common.validation import plan_faults
from tests.unit.assignors.drawn import drawn

RECORDED = Path(__file__).parents[2] / "data" / "plans.json"
SEEDS = range(300)
CHARS = 6
"""Of each plan's hash."""

problem = cache(drawn)


def digest(assignor: Assignor, seed: int) -> str:
    plan = assignor.assign(problem(seed))
    assert plan_faults(problem(seed), plan, assignor.guarantees) == [], seed
    return hashlib.sha256(json.dumps(plan_json(plan)).encode()).hexdigest()[:CHARS]


@pytest.mark.parametrize("assignor", [*registry.NEWEST, *registry.FORMER], ids=lambda each: f"{each.name}-{each.version}")
def test_plan_of_a_behaviour_version_is_the_recorded_one(assignor: Assignor, rewrite: bool) -> None:
    key = f"{assignor.name} {assignor.version}"
    recorded = json.loads(RECORDED.read_text(encoding="utf-8")) if RECORDED.exists() else {}
    if rewrite:
        recorded[key] = " ".join(digest(assignor, seed) for seed in SEEDS)
        RECORDED.write_text(json.dumps(dict(sorted(recorded.items())), indent=0) + "\n", encoding="utf-8")
    for seed, wanted in zip(SEEDS, recorded[key].split(), strict=True):
        assert digest(assignor, seed) == wanted, f"seed {seed}: the plan is now {json.dumps(plan_json(assignor.assign(problem(seed))), indent=1)}"
