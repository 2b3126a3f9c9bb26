"""Readers that commit seldom, because a batch takes them long: a gap between two commits is not a
stop as far as they worked in it.
"""

from __future__ import annotations

import pytest

from equipoise.replay.incident import GroupHistory, gaps, incidents
from equipoise.replay.incident.causes import Cause
from equipoise.replay.incident.coordinator_history import ObservedState
from tests.observed_groups import SECOND, group, member

BATCH_S = 300
JOINED_S = 1_250
"""When the seat joined, in the midst of a batch."""


def history(read: int, *, backlog: int = 100_000) -> GroupHistory:
    """A reader of a record a second, in batches of 300; the one in which the seat joined ends 1,020
    s after the last commit, with `read` records.
    """
    commits = [(at_s * SECOND, at_s) for at_s in range(0, 1_201, BATCH_S)]
    commits += [((2_220 + at_s) * SECOND, 1_200 + read + at_s) for at_s in range(0, 901, BATCH_S)]
    alone, joined = group(1, member("slow", 0)), group(2, member("slow", 0), member("equipoise-lead"))
    return GroupHistory(
        group="g",
        states=[ObservedState(at_ms=0, group=alone), ObservedState(at_ms=JOINED_S * SECOND, group=joined)],
        commits={"orders-0": commits},
        end_times_ms=[0],
        ends=[{"orders": [backlog]}],
        unread=[],
    )


def test_reader_that_worked_all_the_time_did_not_stop() -> None:
    found = history(1_020)
    assert gaps(found) == []
    (joined,) = [each for each in incidents(found) if each.cause is Cause.JOINED]
    assert joined.unavailable_ms == 0, "equipoise-lead joined, and nobody stood still for it"


@pytest.mark.parametrize(("read", "stopped_s"), [(300, 720), (0, 720), (800, 220)])
def test_reader_stopped_for_what_it_did_not_need(read: int, stopped_s: int) -> None:
    (gap,) = gaps(history(read))
    assert gap.unavailable_ms == stopped_s * SECOND


def test_pace_is_not_known_of_a_reader_that_waits_for_records() -> None:
    """Its commits say how fast records came."""
    (gap, *_) = gaps(history(1_020, backlog=1_250))
    assert gap.unavailable_ms == 720 * SECOND
