"""The deployed hosts hold in some simulations; `make simulate` runs more of them."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from random import Random

import pytest

from tests.model.without import sessions_end_early
from tests.simulated import broker_faults, operator_faults, seeds, upgrade_faults, wire_faults  # noqa: F401  # they add their faults
from tests.simulated.deployment import Deployment
from tests.simulated.faults import Fault, chosen
from tests.simulated.run import describe, simulate


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])
@pytest.mark.parametrize("seed", [2, 5])
def test_deployed_hosts_under_all_faults_lose_and_double_nothing(seed: int, guarantee: str) -> None:
    result = simulate(seed, guarantee, chosen("all"), storm_s=10, every_s=0.5)
    assert not result.problems, describe(result)
    assert result.faults > 5
    assert result.orders > 100


def test_simulation_with_sessions_that_end_early_is_no_run_of_the_model() -> None:
    with ExitStack() as stack:
        for patch in sessions_end_early():
            stack.enter_context(patch)
        problems = [problem for seed in (1, 7) for problem in simulate(seed, "at_least_once", chosen("members"), storm_s=6, every_s=0.5).problems]
    assert problems
    assert all("no run of the model" in problem for problem in problems)


def test_same_seed_gives_the_same_trace_whatever_the_hash_seed() -> None:
    command = [sys.executable, "-m", "tests.simulated", "--seeds", "3", "--storm-s", "6", "--every-s", "0.5"]
    ran = [
        subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": hash_seed}, capture_output=True, text=True, check=True, timeout=300)
        for hash_seed in ("1", "2")
    ]
    first, second = (each.stdout.splitlines()[0].rpartition("trace ")[2] for each in ran)
    assert first == second
    assert first == simulate(3, "exactly_once", chosen("all"), storm_s=6, every_s=0.5).trace_hash


def test_fault_that_fails_itself_is_the_result_of_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    def begin(deployment: Deployment, random: Random) -> float:
        raise KeyError("m1")

    monkeypatch.setattr(seeds, "chosen", lambda names: [Fault("bad", "test", begin)])
    result = seeds.run_seed(7, guarantee="both", faults="all", storm_s=6, every_s=0.5)
    assert (result.seed, result.guarantee, len(result.problems)) == (7, "exactly_once", 1)
    assert "KeyError: 'm1'" in result.problems[0]
