"""KIP-441's ranking: what each kind of report is worth, and its table of ranks."""

from __future__ import annotations

import pytest

from assignors.ranking import copy_of, rank
from events.tasks import Lag, parse_task
from tests.unit.assignors.build import ACTIVE, UNKNOWN, member, tasks

T = tasks("0_0", end_offset=5000)[0]


@pytest.mark.parametrize(
    ("lag", "owns", "ready", "caught_up", "records"),
    [
        (ACTIVE, True, False, True, 0),
        (ACTIVE, False, False, False, 5000),  # a zombie says it runs the task: a copy of unknown age
        (UNKNOWN, False, False, False, 5000),
        (None, False, False, False, 5000),
        (0, False, False, True, 0),
        (100, False, False, True, 100),
        (101, False, False, False, 101),
        (101, True, False, False, 101),  # it owns it and restores it
        (9000, False, False, False, 5000),  # a copy is never worse than none
        (9000, False, True, True, 5000),
        (None, False, True, True, 0),
    ],
)
def test_what_a_report_is_worth(lag: Lag | None, owns: bool, ready: bool, caught_up: bool, records: int):
    copy = copy_of(T, lag, owns=owns, ready=ready, acceptable_recovery_lag=100)
    assert (copy.caught_up, copy.records) == (caught_up, records)


def test_an_empty_changelog_still_wants_one_report():
    empty = tasks("0_0", end_offset=0)[0]
    assert copy_of(empty, None, owns=False, ready=False, acceptable_recovery_lag=100).caught_up is False
    assert copy_of(empty, 0, owns=False, ready=False, acceptable_recovery_lag=0).caught_up is True
    assert rank([empty], [member("m1"), member("m2", lags={"0_0": 0})], 0) == {parse_task("0_0"): {0: ("m2",), 1: ("m1",)}}


def test_the_kips_table():
    """lag <= acceptable: rank 0, whoever; above: the lag; no lag: the whole changelog. Stateless tasks are not ranked."""
    ranked = rank(
        tasks("0_1 0_0", "1_0", end_offset=5000),
        [member("m3"), member("m1", lags={"0_0": 100, "0_1": 2500}), member("m2", lags={"0_0": 7, "0_1": UNKNOWN})],
        100,
    )
    assert ranked == {
        parse_task("0_0"): {0: ("m1", "m2"), 5000: ("m3",)},
        parse_task("0_1"): {2500: ("m1",), 5000: ("m2", "m3")},
    }
    assert list(ranked) == sorted(ranked)
    assert [list(ranks) for ranks in ranked.values()] == [[0, 5000], [2500, 5000]]
