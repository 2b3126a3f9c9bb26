"""`kafka_connect` beside the class of the published jar, on random scripts;
without Java this fails.
"""

from __future__ import annotations

import os
import random

import pytest

from bench import connect_differential
from tests.vectors import connect_answer


@pytest.mark.smoke
def test_random_scripts_give_the_assignments_of_the_jvm() -> None:
    seed = 1 if os.environ.get("CI") else random.randrange(10**9)
    dice = random.Random(seed)
    scripts = [connect_differential.script(dice) for _ in range(60)]
    for script, answer in zip(scripts, connect_differential.theirs(scripts), strict=True):
        assert connect_answer(script) == answer, f"seed {seed}"
