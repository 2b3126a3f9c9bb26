"""Deals the partitions of a consumer group by an assignor: partitions are tasks without state, and
all members have stopped, as in every generation of an eager protocol.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs

from equipoise.assignors.common.assignor import Assignor
from equipoise.assignors.common.problem import AssignmentProblem, MemberSpec, Partition, Task, TaskLoad
from equipoise.assignors.common.task_names import TopicTask, co_partitioned, name_topics
from equipoise.assignors.lag_aware import LagAware
from equipoise.events.settings import GroupSettings
from equipoise.events.tasks import TaskId

Place = tuple[str, int]
"""Topic and partition."""


@attrs.frozen(kw_only=True)
class Subscriber:
    """A member of the group. `capacity`: its share, beside 1 of the others."""

    topics: tuple[str, ...]
    rack: str | None = None
    capacity: int = 1


def deal(
    subscribers: Mapping[str, Subscriber],
    partitions: Iterable[Place],
    owners: Mapping[Place, str],
    settings: GroupSettings,
    *,
    assignor: Assignor | None = None,
    lags: Mapping[Place, int] | None = None,
    loads: Mapping[Place, int] | None = None,
    replicas: Mapping[Place, tuple[str, ...]] | None = None,
    together: bool = False,
) -> dict[str, dict[str, list[int]]]:
    """Member -> topic -> its partitions.

    `assignor`: None is `lag_aware`. `lags`, `loads`: records, where they are known. `replicas`:
    racks of each partition's replicas. `together`: topics of equally many partitions and the same
    subscribers are dealt as one, so that equal partition numbers go to one member.
    """
    lags, loads, replicas = lags or {}, loads or {}, replicas or {}
    numbers: dict[str, set[int]] = {}
    for topic, number in partitions:
        numbers.setdefault(topic, set()).add(number)
    wanted = {tuple(topic for topic in sorted(each.topics) if topic in numbers) for each in subscribers.values()}
    counts = {topic: len(of) for topic, of in numbers.items()}
    bundles = {each[0]: each for each in (co_partitioned(wanted, counts) if together else [(topic,) for topic in numbers])}
    tasks = [
        TopicTask(id=f"{first}-{number}", topic=first, partition=number, lag=sum(lags.get((topic, number), 0) for topic in topics))
        for first, topics in sorted(bundles.items())
        for number in sorted(numbers[first])
    ]
    names = name_topics(tasks, {name: [topic for topic in each.topics if topic in bundles] for name, each in subscribers.items()})
    places = {TaskId(names.topics[task.topic], task.partition): [(topic, task.partition) for topic in bundles[task.topic]] for task in tasks}
    lag_of = {TaskId(names.topics[task.topic], task.partition): task.lag for task in tasks}
    active: dict[str, list[TaskId]] = {name: [] for name in subscribers}
    for task, its_places in places.items():
        had = {owners.get(place) for place in its_places}
        owner = had.pop() if len(had) == 1 else None
        if owner in active and its_places[0][0] in subscribers[owner].topics:
            active[owner].append(task)
    problem = AssignmentProblem(
        tasks=tuple(
            Task(
                id=task,
                stateful=False,
                lag=lag_of[task],
                load=TaskLoad(records_per_s=sum(loads.get(place, 0) for place in its_places)) if loads else None,
                source=tuple(Partition(topic=topic, partition=number, racks=replicas.get((topic, number), ())) for topic, number in its_places),
            )
            for task, its_places in places.items()
        ),
        members=tuple(
            MemberSpec(
                id=name,
                rack=each.rack,
                capacity=each.capacity,
                subtopologies=names.subscription(topic for topic in each.topics if topic in bundles),
                active=tuple(active[name]),
            )
            for name, each in subscribers.items()
        ),
        settings=settings,
        anew=True,
    )
    plan = (assignor or LagAware()).assign(problem)
    dealt: dict[str, dict[str, list[int]]] = {}
    for name, target in plan.target.items():
        dealt[name] = {}
        for task in target:
            for topic, number in places[task]:
                dealt[name].setdefault(topic, []).append(number)
    return dealt
