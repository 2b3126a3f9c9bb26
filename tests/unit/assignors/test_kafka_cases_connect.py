"""The cases of Kafka Connect's IncrementalCooperativeAssignorTest, on `kafka_connect`: what each
worker has in the end, in rising order of counts.

Left out: testLeaderStateUpdated and the tests of protocol versions are about the wire and the
leader's own bookkeeping, which is not here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from tests.vectors import ConnectScript

DELAY_MS = 300_000
BACK_OFF_MS = 40


class Group:
    """Workers that follow the rounds, unless a round fails to reach them."""

    def __init__(self, workers: int = 1, *, max_delay_ms: int = DELAY_MS, connectors: int = 2, tasks: int = 4) -> None:
        steps = [{"op": "conf", "c": f"connector{number}", "n": tasks} for number in range(1, connectors + 1)]
        self.script = ConnectScript({"maxDelay": max_delay_ms, "steps": steps})
        self.does(*steps)
        self.joins(*(f"worker{number}" for number in range(1, workers + 1)))

    def does(self, *steps: dict[str, Any]) -> None:
        assert all(map(self.script.happens, steps))

    def joins(self, *workers: str) -> None:
        self.does(*({"op": "join", "w": worker} for worker in workers))

    def leaves(self, worker: str) -> None:
        self.does({"op": "leave", "w": worker})

    def sleeps(self, sleep_ms: int) -> None:
        self.does({"op": "sleep", "ms": sleep_ms})

    def round(self, kind: str = "rebalance") -> dict[str, Any]:
        """A round: running work is given to no other worker, and new work of a worker is
        given once.
        """
        running = [resource for has in self.script.workers.values() for resource in has]
        before = {worker: set(has) for worker, has in self.script.workers.items()}
        said = self.script.round(kind)
        if kind != "fail":
            granted = [resource for worker, has in self.script.workers.items() for resource in has if resource not in before[worker]]
            assert not set(granted) & set(running)
            assert len(granted) == len(set(granted))
        return said

    def follow_up(self) -> dict[str, Any]:
        """Rounds until one changes nothing; it is returned."""
        for _ in range(10):
            said = self.round()
            if self.unchanged(said):
                return said
        raise AssertionError("ten rounds, and no rest")

    @staticmethod
    def unchanged(said: dict[str, Any]) -> bool:
        return not any(part[key] for part in said["w"].values() for key in ("ac", "at", "rc", "rt"))

    @staticmethod
    def revoked(said: dict[str, Any]) -> int:
        return sum(len(part["rc"]) + len(part["rt"]) for part in said["w"].values())

    @property
    def connectors(self) -> list[int]:
        return sorted(sum(resource.startswith("0_") for resource in has) for has in self.script.workers.values())

    @property
    def tasks(self) -> list[int]:
        return sorted(sum(not resource.startswith("0_") for resource in has) for has in self.script.workers.values())

    def has(self, connectors: Iterable[int], tasks: Iterable[int]) -> bool:
        return (self.connectors, self.tasks) == (list(connectors), list(tasks))


def test_task_assignment_when_worker_joins():
    group = Group()
    assert group.round()["delay"] == 0
    assert group.has([2], [8])
    group.joins("worker2")
    assert group.round()["delay"] == 0
    assert group.has([0, 1], [0, 4]), "revoked, and without an owner"
    assert group.round()["delay"] == 0
    assert group.has([1, 1], [4, 4])
    assert group.unchanged(group.round())


def test_assignments_when_workers_join_after_revocations():
    group = Group(connectors=3)
    group.round()
    group.joins("worker2")
    group.round()
    assert group.tasks == [0, 6]
    group.joins("worker3")
    delayed = group.round()
    assert delayed["delay"] == BACK_OFF_MS
    assert group.tasks == [3, 3, 6]
    assert group.revoked(delayed) == 0
    group.sleeps(BACK_OFF_MS)
    group.joins("worker4")
    assert group.revoked(group.round()) > 0
    assert group.tasks == [0, 3, 3, 3]
    group.joins("worker5")
    delayed = group.round()
    assert delayed["delay"] > BACK_OFF_MS
    assert group.revoked(delayed) == 0
    assert group.tasks == [1, 2, 3, 3, 3]
    group.sleeps(delayed["delay"])
    group.joins("worker6")
    assert group.revoked(group.round()) > 0
    assert group.tasks == [0, 1, 2, 2, 2, 2]
    group.follow_up()
    assert group.has([0, 0, 0, 1, 1, 1], [2] * 6)


def test_immediate_revocations_when_max_delay_is_0():
    group = Group(connectors=3, max_delay_ms=0)
    group.round()
    for worker in ("worker2", "worker3"):
        group.joins(worker)
        assert group.revoked(group.round()) > 0
    assert group.follow_up()["delay"] == 0
    assert group.has([1, 1, 1], [4, 4, 4])


def test_successive_revocations_when_max_delay_is_equal_to_the_first_back_off():
    group = Group(connectors=3, max_delay_ms=1)
    group.round()
    group.joins("worker2")
    assert group.revoked(group.round()) > 0
    group.joins("worker3")
    third = group.round()
    assert third["delay"] == 1
    assert group.revoked(third) == 0


def test_worker_joining_during_delayed_rebalance():
    group = Group(3, connectors=3)
    group.round()
    group.leaves("worker3")
    assert group.round()["delay"] == DELAY_MS
    group.sleeps(DELAY_MS // 2)
    group.joins("worker4")
    half_way = group.round()
    assert half_way["delay"] == DELAY_MS // 2
    assert group.revoked(half_way) == 0
    group.sleeps(DELAY_MS // 2 + 1)
    group.joins("worker5")
    group.round()
    group.follow_up()
    assert group.has([0, 1, 1, 1], [3, 3, 3, 3])


def test_worker_joining_during_delayed_rebalance_of_a_revocation():
    """The case itself: the third worker's revocation is delayed; a fourth joins half-way through
    that, and a fifth after it.
    """
    group = Group(connectors=3)
    group.round()
    group.joins("worker2")
    group.round()
    assert group.tasks == [0, 6]
    group.joins("worker3")
    delayed = group.round()
    assert delayed["delay"] > 0
    assert group.revoked(delayed) == 0
    group.sleeps(delayed["delay"] // 2)
    group.joins("worker4")
    half_way = group.round()
    assert 0 < half_way["delay"] < delayed["delay"]
    assert group.revoked(half_way) == 0
    assert group.tasks == [0, 3, 3, 6]
    group.sleeps(half_way["delay"])
    group.joins("worker5")
    assert group.revoked(group.round()) > 0
    assert group.tasks == [0, 0, 2, 3, 3]
    group.follow_up()
    assert group.has([0, 0, 1, 1, 1], [2, 2, 2, 3, 3])


def test_task_assignment_when_worker_leaves_permanently():
    group = Group(2)
    group.round()
    group.leaves("worker2")
    assert group.round()["delay"] == DELAY_MS
    assert group.has([1], [4])
    group.sleeps(DELAY_MS // 2)
    assert group.round()["delay"] == DELAY_MS // 2
    group.sleeps(DELAY_MS // 2 + 1)
    assert group.round()["delay"] == 0
    assert group.has([2], [8])


def test_task_assignment_when_worker_bounces():
    group = Group(2)
    group.round()
    group.leaves("worker2")
    group.round()
    group.sleeps(3 * DELAY_MS // 4)
    group.joins("worker2")
    back = group.round()
    assert back["delay"] == DELAY_MS // 4
    assert group.unchanged(back), "its work waits though it is back"
    group.sleeps(DELAY_MS // 4)
    last = group.round()
    assert (last["delay"], group.revoked(last)) == (0, 0)
    assert group.has([1, 1], [4, 4])


@pytest.mark.parametrize("comes_back", [False, True])
def test_task_assignment_when_leader_leaves_or_bounces(comes_back: bool):
    group = Group(3)
    group.round()
    group.leaves("worker1")
    group.script.memory = {}
    assert group.round()["delay"] == 0, "a new leader knows of nothing that was lost"
    assert group.has([1, 1], [4, 4])
    if comes_back:
        group.joins("worker1")
        assert group.revoked(group.round()) > 0
        group.follow_up()
        assert group.has([0, 1, 1], [2, 3, 3])


def test_task_assignment_when_first_assignment_attempt_fails():
    group = Group(2)
    group.round("fail")
    assert group.has([0, 0], [0, 0])
    assert group.round()["delay"] == 0
    assert group.has([1, 1], [4, 4])


@pytest.mark.parametrize("leader_lost_it_too", [False, True])
def test_task_assignment_when_subsequent_assignment_attempt_fails(leader_lost_it_too: bool):
    group = Group(2)
    group.round()
    group.joins("worker3")
    assert group.revoked(group.round("fail")) > 0
    again = group.round("mismatch" if leader_lost_it_too else "rebalance")
    assert again["delay"] == BACK_OFF_MS
    assert group.revoked(again) == 0
    group.sleeps(BACK_OFF_MS)
    assert group.revoked(group.round()) > 0
    group.follow_up()
    assert group.has([0, 1, 1], [2, 3, 3])


def test_task_assignment_when_connectors_are_deleted():
    group = Group(2, connectors=3)
    group.round()
    group.does({"op": "del", "c": "connector3"})
    assert group.revoked(group.round()) >= 5
    group.follow_up()
    assert group.has([1, 1], [4, 4])


@pytest.mark.parametrize(("running", "new", "expected"), [((2, 2, 2), 5, [4, 4, 3]), ((2, 3, 4), 5, [5, 5, 4]), ((2, 3, 4, 0), 15, [6, 6, 6, 6])])
@pytest.mark.parametrize("kind", ["connectors", "tasks"])
def test_new_work_goes_to_the_least_loaded_workers_by_id(kind: str, running: tuple[int, ...], new: int, expected: list[int]):
    """testAssignConnectorsWhenBalanced, testAssignTasksWhenBalanced,
    testAssignConnectorsWhenImbalanced: what runs stays.
    """
    all_in_all = sum(running) + new
    of_connectors = kind == "connectors"
    group = Group(0, connectors=all_in_all, tasks=0) if of_connectors else Group(0, connectors=1, tasks=all_in_all)
    left = iter(f"0_{number}" if of_connectors else f"1_{number}" for number in range(all_in_all))
    before = {f"worker{number}": [next(left) for _ in range(count)] for number, count in enumerate(running, 1)}
    group.script.workers = {worker: list(has) for worker, has in before.items()}
    if not of_connectors:
        group.script.workers["worker1"].append("0_0")
    group.round()
    assert [len([each for each in has if each.startswith("0_") is of_connectors]) for has in group.script.workers.values()] == expected
    assert all(set(before[worker]) <= set(has) for worker, has in group.script.workers.items())


def test_scheduled_delay_is_disabled():
    group = Group(2, max_delay_ms=0)
    group.round()
    group.leaves("worker2")
    assert group.round()["delay"] == 0
    assert group.has([2], [8])


@pytest.mark.parametrize("deleted", [False, True])
def test_work_claimed_by_a_joining_worker_is_revoked_from_both(deleted: bool):
    group = Group()
    group.round()
    group.joins("worker2")
    group.does({"op": "claim", "w": "worker2", "from": "worker1"})
    if deleted:
        group.does({"op": "del", "c": "connector2"})
    assert group.revoked(group.round()) == 20
    assert group.has([0, 0], [0, 0])
    assert group.round()["delay"] == 0
    assert group.has([0, 1] if deleted else [1, 1], [2, 2] if deleted else [4, 4])


def test_lost_work_goes_to_all_candidates_and_none_when_they_leave_again():
    group = Group(3)
    group.round()
    group.leaves("worker3")
    group.round()
    group.joins("worker4", "worker5")
    assert group.round()["delay"] == DELAY_MS
    assert group.script.memory["candidate_members"] == ["worker4", "worker5"]
    group.leaves("worker5")
    group.sleeps(DELAY_MS)
    group.round()
    assert group.script.memory["candidate_members"] == []
    group.follow_up()
    assert sum(group.tasks) == 8
    assert max(group.tasks) - min(group.tasks) <= 1


def test_lost_work_is_new_when_no_candidate_stayed():
    group = Group(2)
    group.round()
    group.leaves("worker2")
    group.round()
    group.joins("worker3")
    group.round()
    group.leaves("worker3")
    group.round()
    group.sleeps(DELAY_MS)
    assert group.round()["delay"] == 0
    assert group.has([2], [8])
