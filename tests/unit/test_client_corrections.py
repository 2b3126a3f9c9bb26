"""Each difference between equipoise's clients and aiokafka's is seen by a test."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutation.corrections import CORRECTIONS

ROOT = Path(__file__).parents[2]


def test_each_correction_is_in_its_function() -> None:
    assert all(each.mutant().source for each in CORRECTIONS)


@pytest.mark.slow
def test_each_correction_that_is_switched_off_is_seen() -> None:
    done = subprocess.run([sys.executable, "-m", "tests.mutation.corrections"], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("\nseen: ") + done.stdout.startswith("seen: ") == len(CORRECTIONS)
