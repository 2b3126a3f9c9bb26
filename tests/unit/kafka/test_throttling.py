"""How long quotas hold back a process."""

from __future__ import annotations

import pytest

from equipoise.kafka.throttling import MOST_S, WINDOW_S, Throttling


def test_answer_that_names_no_time_is_not_counted() -> None:
    throttling = Throttling()
    throttling.note(0, 10.0)
    assert (throttling.throttled_s, throttling.held_up_s(10.0)) == (0.0, None)


def test_connections_that_are_throttled_at_the_same_time_count_once() -> None:
    throttling = Throttling()
    throttling.note(3_000, 10.0)
    throttling.note(2_000, 11.0)
    throttling.note(4_000, 12.0)
    assert throttling.throttled_s == 6.0


def test_long_throttling_is_logged_once_until_hardly_any_is_left(caplog: pytest.LogCaptureFixture) -> None:
    throttling, now_s = Throttling(), 0.0
    while now_s < 3 * WINDOW_S:
        throttling.note(500, now_s)
        now_s += 1.0
    held_up_s = throttling.held_up_s(now_s)
    assert held_up_s is not None
    assert held_up_s == pytest.approx(WINDOW_S / 2)
    (line,) = caplog.messages
    assert line.startswith(f"quotas of the brokers held back this process for {MOST_S:.0f} s of the last 60; ")
    assert throttling.held_up_s(now_s + 30.0) == pytest.approx(15.0)
    assert throttling.held_up_s(now_s + 50.0) is None
    assert caplog.messages[1:] == ["quotas of the brokers hold back this process no more, or little"]


def test_announced_time_counts_when_it_has_passed() -> None:
    throttling = Throttling()
    throttling.note(int(WINDOW_S * 1_000), 100.0)
    assert throttling.held_up_s(100.0) is None
    assert throttling.held_up_s(125.0) == pytest.approx(25.0)


def test_little_throttling_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    throttling = Throttling()
    for second in range(600):
        throttling.note(300, float(second))
    assert throttling.held_up_s(600.0) is None
    assert caplog.messages == []
