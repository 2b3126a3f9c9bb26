"""How long members take to restore, by measured rates and without one."""

from __future__ import annotations

import pytest

from equipoise.assignors.common.restore_rate import RestoreRates

RATES = RestoreRates({"fast": 1_000, "slow": 100, "new": 0})


@pytest.mark.parametrize(("work", "most_ms"), [({}, 0), ({"fast": 0}, 0), ({"fast": 1_500, "slow": 20}, 1_500), ({"fast": 1, "new": 101}, 1_010)])
def test_longest_restore_is_that_of_the_slowest_member_and_without_a_rate_as_slow_as_any(work: dict[str, int], most_ms: int) -> None:
    assert RATES.longest_ms(work) == most_ms


def test_records_within_a_time_are_those_of_the_members_own_rate() -> None:
    assert [RATES.within(member, 2_500) for member in ("fast", "slow", "new")] == [2_500, 250, 250]
    assert RATES.within("fast", -1) == 0


def test_nothing_is_said_without_any_rate_but_of_no_work() -> None:
    unmeasured = RestoreRates({"a": 0, "b": 0})
    assert (unmeasured.longest_ms({"a": 0}), unmeasured.longest_ms({"a": 1}), unmeasured.within("a", 1_000)) == (0, None, None)
