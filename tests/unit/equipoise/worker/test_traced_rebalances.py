"""Rebalances from facts and decisions: their begin and end, steps, causes."""

from __future__ import annotations

from equipoise.events.tasks import TaskId
from equipoise.statemachine.machine import GroupMachine
from equipoise.worker.tracing import RebalanceFollower, WorkerRebalance
from tests.groups import SESSION_MS, Group, topology


class Followed(Group):
    """A group whose rebalances are followed."""

    def __init__(self) -> None:
        super().__init__()
        self.follower = RebalanceFollower()
        self.seen = 0

    def follow(self) -> list[WorkerRebalance]:
        """The rebalances that have ended since the last call."""
        machine = GroupMachine()
        self.follower = follower = RebalanceFollower()
        ended = [follower.fold(record, machine.step(record), machine.state) for record in self.records]
        found = [each for each in ended if each is not None]
        new, self.seen = found[self.seen :], len(found)
        return new


def kinds(rebalance: WorkerRebalance) -> dict[str, set[TaskId]]:
    found: dict[str, set[TaskId]] = {}
    for timed in rebalance.steps:
        assert rebalance.begin_ms <= timed.begin_ms <= timed.end_ms <= rebalance.end_ms
        found.setdefault(timed.step.kind, set()).add(timed.step.task)
    return found


def test_first_start_is_a_rebalance_of_restores() -> None:
    group = Followed()
    group.starts("m1", stateful=4)
    group.settles()
    (first,) = group.follow()
    assert kinds(first) == {"restore": {TaskId(0, n) for n in range(4)}}
    assert first.changes_of_owner == 4
    assert first.is_finished
    assert not first.taken_over


def test_join_is_one_rebalance_with_its_warm_ups_and_hand_overs() -> None:
    group = Followed()
    group.starts("m1", stateful=4)
    group.settles()
    group.follow()
    began_ms = group.append_ms
    group.join("m2", restores=20_000)
    group.settles()
    (found,) = group.follow()
    moved = {task for task, owner in group.owners().items() if owner == "m2"}
    assert len(moved) == 2
    assert found.begin_ms == began_ms
    assert found.cause == "join"
    assert found.changes_of_owner == 2
    assert kinds(found)["warm-up"] == kinds(found)["hand-over"] == moved
    assert all(timed.step.member == "m2" for timed in found.steps if timed.step.kind == "warm-up")
    warmups = [timed.end_ms - timed.begin_ms for timed in found.steps if timed.step.kind == "warm-up"]
    assert min(warmups) >= 2_000, "50,000 records at 20,000 a report"
    assert any("m2 joined" in text for _, text in found.said)
    assert (found.first_generation or 0) < (found.last_generation or 0)


def test_expiry_is_a_rebalance_with_restores_of_what_has_no_copy() -> None:
    group = Followed()
    group.starts("m1", "m2", stateful=4)
    group.settles()
    group.follow()
    lost = {task for task, owner in group.owners().items() if owner == "m2"}
    del group.members["m2"]
    for _ in range(2 * SESSION_MS // 3_000):
        group.cycle()
    group.settles()
    (found,) = group.follow()
    assert found.cause == "expiry"
    assert found.expired == ["m2"]
    assert kinds(found)["restore"] == lost


def test_tasks_without_any_member_that_may_run_them_have_no_owner() -> None:
    group = Followed()
    group.starts("m1", stateful=2, initial_delay_ms=5_000)
    group.pass_ms(6_000)
    group.settles()
    (found,) = group.follow()
    assert kinds(found)["restore"] == {TaskId(0, 0), TaskId(0, 1)}
    group.fact(topology(epoch=2, stateful=3))
    group.cycle()
    assert group.follow() == []
    group.join("m1", 2, topology_epoch=2)
    group.settles()
    (found,) = group.follow()
    assert TaskId(0, 2) in kinds(found)["no owner"]


def test_nothing_to_do_is_no_rebalance() -> None:
    group = Followed()
    group.starts("m1", stateful=4)
    group.settles()
    group.follow()
    for _ in range(5):
        group.cycle()
    assert group.follow() == []
    assert group.follower.abandon(group.append_ms) is None


def test_rebalance_that_began_before_the_follower_is_taken_over() -> None:
    group = Followed()
    group.starts("m1", stateful=2)
    group.settles()
    group.join("m2", restores=20_000)
    group.cycle()
    machine, seen = group.machine, len(group.records)
    follower = RebalanceFollower()
    group.tick()
    assert follower.fold(group.records[seen], [], machine.state) is None
    found = follower.abandon(group.append_ms)
    assert found is not None
    assert found.taken_over


def test_abandoned_rebalance_is_unfinished_and_has_its_open_steps() -> None:
    group = Followed()
    group.starts("m1", stateful=2)
    group.settles()
    group.follow()
    group.join("m2", restores=1)
    group.cycle()
    assert group.follow() == []
    found = group.follower.abandon(group.append_ms)
    assert found is not None
    assert not found.is_finished
    assert kinds(found) == {"warm-up": set(group.state.members["m2"].warmup)}
