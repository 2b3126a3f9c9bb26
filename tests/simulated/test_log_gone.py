"""The log's topics are deleted and created again."""

from __future__ import annotations

import pytest

from tests.simulated import broker_faults  # noqa: F401  # adds its faults
from tests.simulated.faults import chosen
from tests.simulated.run import describe, simulate


@pytest.mark.parametrize("seed", [3, 6])
def test_worker_whose_send_waits_for_a_deleted_topic_writes_nothing_to_the_new_one(seed: int) -> None:
    result = simulate(seed, "at_least_once", chosen("log_created_again"), storm_s=3, every_s=0.2)
    assert not result.problems, describe(result)
    assert result.faults == 1
