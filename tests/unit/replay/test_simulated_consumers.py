"""Simulated consumer groups: who reads what, and how long nobody did."""

from __future__ import annotations

import statistics
from typing import Any

import pytest

from equipoise.replay.simulation.kafka.consumers import ConsumerEvent, ConsumerSettings, Joined, assign, unavailable_ms

AT_MS = 1_000_000
OWNERS = {f"orders-{number}": "abc"[number // 4] for number in range(12)}
KILL, LEAVE, BACK = ConsumerEvent(AT_MS, "kill", "b"), ConsumerEvent(AT_MS, "leave", "b"), ConsumerEvent(AT_MS + 5_000, "start", "b")
SESSION_S = 45


def silent_s(*events: ConsumerEvent, session_s: float = SESSION_S, **settings: Any) -> dict[str, float]:
    """Partition -> mean seconds without a reader."""
    chosen = ConsumerSettings(session_timeout_ms=round(session_s * 1000), **settings)
    runs = [unavailable_ms(OWNERS, events, chosen, seed=seed, until_ms=AT_MS + 200_000) for seed in range(5)]
    return {partition: statistics.mean(run[partition] for run in runs) / 1000 for partition in OWNERS}


def test_partitions_of_a_killed_consumer_wait_for_its_session_and_a_heartbeat() -> None:
    for assignor in ("range", "sticky", "cooperative-sticky"):
        silent = silent_s(KILL, assignor=assignor)
        assert all(SESSION_S - 3 <= silent[f"orders-{number}"] <= SESSION_S + 4 for number in range(4, 8)), assignor
        assert all(silent[f"orders-{number}"] <= 3.2 for number in (0, 1, 2, 3, 8, 9, 10, 11)), assignor
    assert all(value <= 14 for value in silent_s(KILL, session_s=10).values())


def test_eager_consumers_stop_and_cooperative_ones_run_on() -> None:
    eager, cooperative = silent_s(LEAVE, assignor="range"), silent_s(LEAVE, assignor="cooperative-sticky")
    assert sum(eager.values()) > sum(cooperative.values())
    assert not any(cooperative[f"orders-{number}"] for number in (0, 1, 2, 3, 8, 9, 10, 11))
    assert all(value > 0 for value in (cooperative[f"orders-{number}"] for number in range(4, 8)))


def test_restart_without_a_word_stops_an_eager_group_until_the_session_is_over() -> None:
    assert min(silent_s(KILL, BACK, assignor="range").values()) > SESSION_S - 10, "those who joined again wait for the one that is dead"
    cooperative = silent_s(KILL, BACK, assignor="cooperative-sticky")
    assert [partition for partition, value in cooperative.items() if value] == [f"orders-{number}" for number in range(4, 8)]


@pytest.mark.parametrize("is_broker_led", [False, True])
@pytest.mark.parametrize("stop", [KILL, LEAVE])
def test_static_consumer_that_is_back_in_time_disturbs_nobody(stop: ConsumerEvent, is_broker_led: bool) -> None:
    silent = silent_s(stop, BACK, is_static=True, is_broker_led=is_broker_led)
    assert {partition: round(value, 1) for partition, value in silent.items() if value} == {f"orders-{number}": 5.0 for number in range(4, 8)}


def test_held_partitions_wait_for_their_member_and_go_to_others_when_it_does_not_come() -> None:
    free = silent_s(LEAVE, assignor="cooperative-sticky")
    waiting = silent_s(LEAVE, assignor="cooperative-sticky", hold_ms=15_000)
    assert all(15 <= waiting[f"orders-{number}"] - free[f"orders-{number}"] <= 18.5 for number in range(4, 8))
    back = silent_s(LEAVE, BACK, assignor="sticky", hold_ms=15_000)
    assert all(back[f"orders-{number}"] < 9 for number in range(12))


def test_group_that_the_broker_leads_moves_what_it_has_to() -> None:
    joined = silent_s(ConsumerEvent(AT_MS, "start", "d"), is_broker_led=True, heartbeat_interval_ms=5_000)
    assert 0 < sum(value > 0 for value in joined.values()) <= 3, "a fourth of twelve, and those at once are not seen"
    assert max(joined.values()) < 5.1
    left = silent_s(LEAVE, is_broker_led=True, heartbeat_interval_ms=5_000)
    assert all(left[f"orders-{number}"] < 5.1 for number in range(4, 8))
    assert not any(left[f"orders-{number}"] for number in range(4))


def test_group_without_events_reads_all_the_time() -> None:
    assert set(silent_s().values()) == {0}


@pytest.mark.parametrize(
    ("assignor", "expected"),
    [
        ("range", {"a": ["t-0", "t-1"], "b": ["t-10", "t-2"]}),
        ("roundrobin", {"a": ["t-0", "t-2"], "b": ["t-1", "t-10"]}),
        ("cooperative-sticky", {"a": ["t-10", "t-2"], "b": ["t-0", "t-1"]}),
    ],
)
def test_assignors_deal_as_kafkas(assignor: str, expected: dict[str, list[str]]) -> None:
    joined = [Joined("b", "b", frozenset()), Joined("a", "a", frozenset({"t-2", "t-10"}))]
    given = assign(assignor, joined, ["t-10", "t-2", "t-1", "t-0"])
    assert {member: sorted(partitions) for member, partitions in given.items()} == expected
