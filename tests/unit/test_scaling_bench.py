"""bench.scaling: the queues and KEDA's rule are what they say, and a short day ends."""

from __future__ import annotations

import pytest

from bench import scaling
from bench.scaling import MEMBER_PER_S, START_MS, TASKS, Keda, Queues, arriving, day, members_worth

DAY_S = 24 * 3_600.0


def wanted(keda: Keda, now: int, lag: float, at_s: int) -> int:
    keda.queues.waiting = {task: lag if task == TASKS[0] else 0.0 for task in TASKS}
    return keda.members(now, START_MS + at_s * 1_000)


def test_keda_asks_for_lag_over_threshold_in_steps_and_for_fewer_after_300_s() -> None:
    keda = Keda(1_000.0, Queues(DAY_S))
    assert wanted(keda, 3, 3_200, 0) == 3, "within a tenth"
    assert wanted(keda, 3, 4_400, 15) == 5
    assert wanted(keda, 3, 90_000, 30) == 7, "four more at most"
    assert wanted(keda, 7, 90_000, 45) == 14, "or twice as many"
    assert wanted(keda, 20, 90_000, 60) == 24, "no more than partitions"
    assert wanted(keda, 24, 100, 75) == 24
    assert wanted(keda, 24, 100, 330) == 24, "the highest of the last 300 s, which is that of 60 s"
    assert wanted(keda, 24, 100, 375) == 1


def test_queue_that_gets_more_than_a_member_does_falls_behind_by_what_is_left() -> None:
    queues = Queues(DAY_S)
    owners = dict.fromkeys(TASKS, "m1")
    lag_s = 0.0
    for second in range(int(1.8 * 3_600), int(1.8 * 3_600) + 100):  # 3.7 members' worth arrive
        lag_s = queues.second(owners, START_MS + second * 1_000)
    assert sum(queues.done.values()) == pytest.approx(100 * MEMBER_PER_S)
    assert 2.5 * 100 * MEMBER_PER_S < sum(queues.waiting.values()) < 3 * 100 * MEMBER_PER_S
    assert 60 < lag_s < 80, "it does the records of 27 s in 100 s"
    load = queues.load_of("m1", TASKS, START_MS)
    assert sum(load.behind.values()) == pytest.approx(sum(queues.waiting.values()), rel=0.001)


def test_one_partition_gets_more_than_a_member_does_for_two_hours() -> None:
    came = arriving(19 * 3_600, DAY_S, MEMBER_PER_S, TASKS)
    assert came[TASKS[-1]] > MEMBER_PER_S
    assert all(came[task] < MEMBER_PER_S / 10 for task in TASKS[:-1])
    assert members_worth(21 * 3_600, DAY_S) == (2.0, 0.0)


@pytest.mark.parametrize("name", ["equipoise's recommendation", "KEDA, lagThreshold 10,000"])
def test_short_day_counts_members_and_changes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "members_worth", lambda at_s, day_s: (5.0 if at_s > 400 else 2.0, 0.0))
    found = day(0.2, name)
    assert found.changes >= 1
    assert found.most >= 5
    assert 3 * 0.2 < found.member_hours < found.most * 0.2
    assert found.moves > 0
    assert 0 < found.unavailable_s < found.moves * 5
