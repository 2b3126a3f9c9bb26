"""Tasks and members as a network: costs of offers, and the split of tasks that share an offer."""

from __future__ import annotations

from equipoise.assignors import Task
from equipoise.assignors.common.flow_network import AssignmentNetwork, Offer
from equipoise.assignors.common.indexed_problem import pool_of
from equipoise.events.tasks import TaskId

TASKS = {TaskId(0, partition): Task(id=TaskId(0, partition), stateful=True) for partition in range(4)}
RACKS = {"m1": "a", "m2": "a", "m3": "b"}


def network() -> AssignmentNetwork:
    return AssignmentNetwork(TASKS, levels=2, racks=RACKS)


def owners(built: AssignmentNetwork) -> dict[TaskId, str]:
    for member in RACKS:
        built.place(member, len(TASKS), (0, 0))
    return built.assigned(built.solve())


def test_offer_by_rack_counts_the_last_level():
    """The first level is the same in both racks; the last one is less in b."""
    built = network()
    offer = Offer(pool_of(RACKS), built.lane(TaskId(0, 0)), (1, 5), {"a": (0, 4), "b": (0, 3)})
    for task in TASKS:
        built.pooled(task, offer)
    built.wanted()
    assert set(owners(built).values()) == {"m3"}


def test_pooled_more_cost_is_per_task():
    """The offer costs 1 and m1 costs 3 on the last level: a task that pays 3 more for the offer
    goes to m1.
    """
    built = network()
    offer = Offer(pool_of(["m2", "m3"]), built.lane(TaskId(0, 0)), (0, 1), None)
    for task in TASKS:
        built.direct(task, "m1", (0, 3))
        built.pooled(task, offer, more=3 if task.partition == 2 else 0)
    built.wanted()
    assert [task for task, member in owners(built).items() if member == "m1"] == [TaskId(0, 2)]
