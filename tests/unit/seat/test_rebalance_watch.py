"""Whom a rebalance waited for, as the seat says it."""

from __future__ import annotations

import logging
from uuid import UUID

import pytest

from equipoise.lead.seat.rebalance_watch import RebalanceWatch
from equipoise.lead.seat_status import SeatStatus


def member(client: str, number: int) -> str:
    return f"{client}-{UUID(int=number)}"


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def status(clock: Clock) -> SeatStatus:
    return SeatStatus(group="g", monotonic_s=clock)


OWN, OTHER, APP = member("equipoise-lead", 1), member("equipoise-lead", 2), member("app", 3)


def generation(watch: RebalanceWatch, clock: Clock, took_s: float, *members: str) -> None:
    with watch.joining():
        clock.now_s += took_s
    watch.over(members)


def test_seat_that_hung_is_named_and_counted(clock: Clock, status: SeatStatus, caplog: pytest.LogCaptureFixture) -> None:
    watch = RebalanceWatch(status)
    generation(watch, clock, 0.2, OWN, OTHER, APP)
    assert (status.members, status.seats, status.silent_seats) == (1, 2, 0)
    generation(watch, clock, 6.1, OWN, APP)
    assert (status.members, status.seats, status.silent_seats) == (1, 1, 1)
    assert "waited 6.1 s for another seat of equipoise" in caplog.text
    assert OTHER in caplog.text
    generation(watch, clock, 0.1, OWN, APP)
    assert status.silent_seats == 1


def test_member_that_polls_late_is_no_seat(clock: Clock, status: SeatStatus, caplog: pytest.LogCaptureFixture) -> None:
    watch = RebalanceWatch(status)
    generation(watch, clock, 230.0, OWN, APP)
    assert status.silent_seats == 0
    assert "waited 230.0 s for the slowest member to poll" in caplog.text
    assert status.age_s(status.answered_s) == 0.0


def test_seat_that_left_in_time_kept_nobody_waiting(clock: Clock, status: SeatStatus, caplog: pytest.LogCaptureFixture) -> None:
    watch = RebalanceWatch(status)
    generation(watch, clock, 0.1, OWN, OTHER)
    generation(watch, clock, 0.3, OWN)
    assert (status.silent_seats, caplog.text) == (0, "")


@pytest.mark.parametrize(("silent_s", "is_away", "counted"), [(9.0, False, 1), (9.0, True, 0), (2.0, False, 0)])
def test_process_that_stood_still_says_so(
    silent_s: float, is_away: bool, counted: int, clock: Clock, status: SeatStatus, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    watch = RebalanceWatch(status)
    generation(watch, clock, 0.1, OWN, APP)
    clock.now_s += silent_s
    watch.out_of_group(is_away=is_away)
    assert status.silent_seats == counted
    assert (f"this process did not run for {silent_s:.1f} s" in caplog.text) is bool(counted)


def test_wait_under_way_is_shown(clock: Clock, status: SeatStatus) -> None:
    watch = RebalanceWatch(status)
    with watch.joining():
        clock.now_s += 70.0
        assert status.age_s(status.waits_since_s) == 70.0
    assert status.waits_since_s is None
