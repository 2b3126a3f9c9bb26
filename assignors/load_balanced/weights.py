"""The weight of each task: one whole number, from what members report of their hosts.

A weight is in millionths of a *fair share*: the load of one thread if the group's load were spread
evenly over the threads of the staying members. So the weights of all tasks add up to a million per
thread.

Each dimension (cpu, memory, disk, throughput) is first scaled to that unit by its own sum over the
group, so that only proportions count, and an idle group is as even or uneven as a busy one. Then
the dimensions are averaged, by these options::

    load_cpu          1   weight of processor time
    load_throughput   1   weight of records processed
    load_memory       0   weight of memory in use; most belongs to the process, not to tasks
    load_disk         0   weight of disk in use

A dimension that no member reports does not count. A task of unknown load (a new one, or one that no
member reports) weighs as the mean of its sub-topology, else of all tasks; when all are unknown, all
weigh the same and balance is by count. No weight is 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from equipoise.assignors.common import options
from equipoise.assignors.common.problem import MemberSpec, Task
from equipoise.events.errors import FieldError
from equipoise.events.settings import GroupSettings
from equipoise.events.tasks import TaskId

FAIR_SHARE = 1_000_000
"""Load of one thread when the group is even."""
DEFAULT_WEIGHTS: Mapping[str, int] = {"load_cpu": 1, "load_throughput": 1, "load_memory": 0, "load_disk": 0}


def weights(tasks: Iterable[Task], members: Iterable[MemberSpec], settings: GroupSettings) -> dict[TaskId, int]:
    """Task -> its weight, in millionths of a fair share, at least 1; in rising order of tasks.

    Raises FieldError for an option that is not a whole number, and when all dimensions weigh 0.
    """
    every = sorted(tasks, key=lambda task: task.id)
    of_dimension = _dimension_weights(settings)
    threads = sum(member.capacity for member in members if not member.leaving)
    measured = [task for task in every if task.load is not None]
    averaged = dict.fromkeys((task.id for task in measured), 0)
    used = 0
    for dimension, weight in of_dimension.items():
        amounts = [_amount(task, dimension) for task in measured]
        total = sum(amounts)
        if weight and total:
            used += weight
            for task, amount in zip(measured, amounts, strict=True):
                averaged[task.id] += weight * amount * FAIR_SHARE * max(1, threads) // total
    known = {task: amount // used for task, amount in averaged.items()} if used else {}
    found = {task.id: known.get(task.id, mean) for task, mean in zip(every, _means(every, known), strict=True)}
    total = sum(found.values())
    return {task: max(1, weight * FAIR_SHARE * max(1, threads) // total) for task, weight in found.items()}


def _dimension_weights(settings: GroupSettings) -> dict[str, int]:
    found = {name: options.whole(settings, name, default) for name, default in DEFAULT_WEIGHTS.items()}
    if not any(found.values()):
        raise FieldError("config.options.load_cpu", f"{', '.join(found)} are all 0; give at least one a weight above 0")
    return found


def _amount(task: Task, dimension: str) -> int:
    load = task.load
    assert load is not None, "asked of measured tasks only"
    return {"load_cpu": load.cpu, "load_memory": load.memory, "load_disk": load.disk, "load_throughput": load.records_per_s}[dimension]


def _means(every: Sequence[Task], known: Mapping[TaskId, int]) -> list[int]:
    """Task -> the mean weight of the known tasks of its sub-topology, else of all known tasks, else
    the same for all; at least 1.
    """
    of_subtopology: dict[int, list[int]] = {}
    for task, weight in known.items():
        of_subtopology.setdefault(task.subtopology, []).append(weight)
    means = {subtopology: sum(found) // len(found) for subtopology, found in of_subtopology.items()}
    overall = sum(known.values()) // len(known) if known else FAIR_SHARE
    return [max(1, means.get(task.id.subtopology, overall)) for task in every]
