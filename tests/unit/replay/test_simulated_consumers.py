"""Simulated consumer groups: who reads what, and how long nobody did."""

from __future__ import annotations

import statistics
from typing import Any

import pytest

from equipoise.replay.simulation.kafka.connect import ConnectSettings
from equipoise.replay.simulation.kafka.consumers import ConsumerEvent, ConsumerSettings, Joined, assign
from equipoise.replay.simulation.kafka.unread_partitions import connect_unavailable_ms, unavailable_ms

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


@pytest.mark.parametrize(("num_standbys", "least_s", "most_s"), [(0, 30, 36), (1, 0, 6)])
def test_task_is_restored_where_there_is_no_copy(num_standbys: int, least_s: float, most_s: float) -> None:
    restored = silent_s(
        LEAVE, is_broker_led=True, heartbeat_interval_ms=5_000, begin_ms=500, restore_ms=dict.fromkeys(OWNERS, 30_000), num_standbys=num_standbys
    )
    assert all(least_s <= restored[f"orders-{number}"] <= most_s for number in range(4, 8))
    assert not any(restored[f"orders-{number}"] for number in range(4)), "those who stay have their state"


def test_copy_that_is_not_complete_is_restored_to_its_end() -> None:
    """b leaves, and c 20 s later: the copies that were made of b's tasks have 10 s to go."""
    twice = silent_s(
        LEAVE, ConsumerEvent(AT_MS + 20_000, "leave", "c"), is_broker_led=True, begin_ms=0, restore_ms=dict.fromkeys(OWNERS, 30_000), num_standbys=1
    )
    assert max(twice.values()) < 30 + 3 + 3
    assert any(5 < value < 20 for value in twice.values())


def connect_silent_s(*events: ConsumerEvent, delay_s: float, sink_session_s: float, tasks: int = 3) -> dict[str, float]:
    """Partition of a sink -> seconds without a reader. Three workers, of which b has a task."""
    settings = ConnectSettings(
        workers=ConsumerSettings(session_timeout_ms=10_000, assignor="cooperative-sticky", begin_ms=1_000, hold_ms=round(delay_s * 1000)),
        sinks=ConsumerSettings(session_timeout_ms=round(sink_session_s * 1000)),
    )
    workers = {"sink": "a", **{f"sink-{number}": "bca"[number] for number in range(tasks)}}
    readers = {f"orders-{number}": f"sink-{number % tasks}" for number in range(6)}
    runs = [connect_unavailable_ms(workers, readers, events, settings, seed=seed, until_ms=AT_MS + 500_000) for seed in range(5)]
    return {partition: statistics.mean(run[partition] for run in runs) / 1000 for partition in readers}


def test_sink_of_connect_with_other_tasks_waits_for_its_group_and_not_for_the_delay() -> None:
    silent = connect_silent_s(KILL, delay_s=300, sink_session_s=45)
    assert all(42 <= silent[f"orders-{number}"] <= 49 for number in (0, 3)), "of sink-0, which b ran"
    assert all(silent[f"orders-{number}"] < 8 for number in (1, 2, 4, 5))
    assert max(connect_silent_s(KILL, delay_s=300, sink_session_s=10).values()) < 20


@pytest.mark.parametrize("back", [(), (BACK,)])
def test_only_task_of_a_sink_waits_for_the_delay_whether_its_worker_is_back_or_not(back: tuple[ConsumerEvent, ...]) -> None:
    silent = connect_silent_s(LEAVE, *back, delay_s=100, sink_session_s=45, tasks=1)
    assert all(100 <= value <= 112 for value in silent.values())
    assert max(connect_silent_s(LEAVE, *back, delay_s=0, sink_session_s=45, tasks=1).values()) < 16


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
