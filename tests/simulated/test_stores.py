"""The judge compares members' stores with their changelogs."""

from __future__ import annotations

import json
from typing import Any
from unittest import mock

import pytest

from equipoise.member.copies.restorer import ChangelogRestorer
from tests.simulated.run import describe, simulate

APPLY = ChangelogRestorer._apply


def _without_the_newest(restorer: ChangelogRestorer, tp: Any, store: Any, batch: Any, position: int, *, bulk: bool) -> None:
    """Leaves out a customer's records from the eleventh order on: by then, everything runs where it
    is to run.
    """
    kept = [each for each in batch if each[0] != b"c1" or json.loads(each[1])["orders"] <= 10]
    APPLY(restorer, tp, store, kept, position, bulk=bulk)


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])
def test_copy_that_leaves_out_records_is_found_although_nobody_took_it_over(guarantee: str) -> None:
    with mock.patch.object(ChangelogRestorer, "_apply", _without_the_newest):
        result = simulate(1, guarantee, [], storm_s=3)
    assert result.problems
    assert all("store of " in problem and "followed" in problem and "b'c1'" in problem for problem in result.problems), describe(result)
