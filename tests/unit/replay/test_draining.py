"""Drain times of members: expected before they are asked to leave, and remaining while they leave."""

from __future__ import annotations

import pytest

from equipoise.assignors import registry
from equipoise.assignors.scale_down import drain_ms
from equipoise.events.facts import Load
from equipoise.replay.group_view import Drain, drains
from equipoise.statemachine.round_problem import build_problem
from tests.groups import Group


def group_of(speed: int) -> Group:
    """m1 runs four tasks of 30,000 records; m2 and m3, with `speed`, run stateless ones."""
    group = Group().starts(stateful=4, stateless=2, end_offset=30_000, drain_timeout_ms=60_000, max_warmups=1)
    group.join("m1")
    group.settles()
    for name in ("m2", "m3"):
        group.join(name, restores=0)
        group.members[name].load = Load(restored_records_per_s=float(speed))
    group.cycle()
    return group


@pytest.mark.parametrize(("speed", "expected_ms"), [(1_000, 60_000), (4_000, 15_000), (0, None)])
def test_drains_before_members_are_asked_gives_expected_time(speed: int, expected_ms: int | None):
    group = group_of(speed)
    problem = build_problem(group.state)
    assert drain_ms(problem, ["m1"], registry.latest("high_availability")) == expected_ms
    assert drain_ms(problem, [], registry.latest("high_availability")) == 0


def test_drains_while_members_leave_gives_each_its_time():
    group = group_of(1_000)
    assert drains(group.state) == {}
    group.members["m1"].leaves()
    group.cycle()
    assert len(group.state.in_flight) == 4  # more than max_warmups
    left_ms = (group.state.members["m1"].drain_deadline_ms or 0) - group.state.now_ms
    assert drains(group.state) == {"m1": Drain(expected_ms=60_000, left_ms=left_ms)}
    for name in ("m2", "m3"):
        group.members[name].restores = 10_000
    group.cycle()
    (drain,) = drains(group.state).values()
    behind = [lag for lag in group.state.members["m2"].lags.values() if isinstance(lag, int)]
    assert len(behind) == 2
    assert 0 < sum(behind) < 60_000
    assert drain.expected_ms == sum(behind)  # at 1,000 records/s
    group.settles()
    assert "m1" not in group.state.members
    assert drains(group.state) == {}


def test_drain_text_says_expected_and_longest_time():
    assert Drain(expected_ms=40_000, left_ms=600_000).text() == "about 40.0 s to go, 10 min 00 s at most"
    assert Drain(expected_ms=None, left_ms=60_000).text().startswith("time to go not known")
    assert Drain(expected_ms=90_000, left_ms=60_000).text().endswith("at most: the rest will stand still while it is restored")
