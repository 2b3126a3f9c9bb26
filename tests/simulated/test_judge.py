"""What the judge of a simulation allows."""

from __future__ import annotations

from collections import Counter

from examples.orders.recount import Recount
from tests.simulated.judge import repeated_faults

COMMIT = 8


def test_repeated_faults_allow_one_commit_for_each_opening_of_a_grant() -> None:
    found = Recount(again=Counter({"g": 2 * COMMIT}))
    assert repeated_faults(found, {"g": 2}, COMMIT) == []
    assert repeated_faults(found, {"g": 1}, COMMIT) == ["grant g counts 16 orders again, and was opened 1 times"]


def test_repeated_faults_allow_one_commit_more_where_a_count_is_late() -> None:
    found = Recount(again=Counter({"g": 2 * COMMIT}), late=Counter({"g": 1}))
    assert repeated_faults(found, {}, COMMIT) == []
    found.again["g"] += 1
    assert repeated_faults(found, {"g": 1}, COMMIT)
