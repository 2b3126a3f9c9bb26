"""Storms of deploys hold; `python -m tests.simulated.deploys` runs more of them."""

from __future__ import annotations

import pytest

from tests.simulated.deploys import run_deploys


def check(seed: int) -> None:
    storm = run_deploys(seed)
    assert not storm.problems, "\n".join((*storm.trace, *storm.problems[:10]))
    assert len(storm.trace) >= 6


@pytest.mark.parametrize("seed", range(1, 5))
def test_records_count_once_whatever_is_deployed(seed: int) -> None:
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5, 35))
def test_records_count_once_whatever_is_deployed_in_more_storms(seed: int) -> None:
    check(seed)
