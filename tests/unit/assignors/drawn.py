"""Problems drawn from a seed: the same on every Python, unlike those of Hypothesis."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any, TypeVar

from equipoise.assignors import AssignmentProblem, MemberSpec, Movement, MovementState, Partition, Task
from equipoise.events.facts import READINESS
from equipoise.events.settings import GroupSettings
from equipoise.events.tasks import Lag, LagSentinel, TaskId

T = TypeVar("T")
LAGS: tuple[Lag, ...] = (0, 10, 99, 100, 101, 700, 4_000, 99_999, LagSentinel.UNKNOWN, LagSentinel.ACTIVE)
OWNERS_LAGS: tuple[Lag, ...] = (LagSentinel.ACTIVE, LagSentinel.ACTIVE, LagSentinel.ACTIVE, 0, 3_000)
RACKS = ("a", "b", "c")
NOW_MS = 1_000_000
GONE = TaskId(9, 9)
"""A task that the topology no longer has."""


class _Dice:
    """Draws by `random.random` alone, whose numbers no version of Python changes."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def one(self, *of: T) -> T:
        return of[int(self._random.random() * len(of))]

    def some(self, of: Iterable[T], share: float) -> tuple[T, ...]:
        return tuple(each for each in of if self._random.random() < share)


def drawn(seed: int) -> AssignmentProblem:
    """A problem that uses every field; every fourth one has up to a hundred tasks."""
    dice = _Dice(seed)
    large = seed % 4 == 3
    racks = dice.one(True, False, False)
    names = [f"m{place}" for place in range(dice.one(1, 2, 3, 3, 4, 5, 6))]
    kinds = [
        (TaskId(subtopology, partition), has_state)
        for subtopology in range(dice.one(1, 2, 3))
        for has_state in [dice.one(True, True, False)]
        for partition in range(dice.one(8, 20, 40) if large else dice.one(1, 2, 3, 4))
    ]
    usual = dice.one(names, names[:1], names[:2])
    among: tuple[str | None, ...] = (*usual, *usual, None) if dice.one(True, False) else tuple(usual)
    owner = {task: dice.one(*among) for task, _ in kinds}
    displaced = dice.some([task for task, _ in kinds if owner[task]], dice.one(0, 0.2))
    every = tuple(_task(dice, task, has_state, task in displaced, racks=racks) for task, has_state in kinds)
    copies, knows_all = dice.one(0.0, 0.1, 0.4) / (5 if large else 1), dice.one(True, True, False)
    members = tuple(_member(dice, name, every, owner, copies, knows_all=knows_all) for name in names)
    moving = dice.some([task for task, _ in kinds], dice.one(0, 0, 0.3) / (5 if large else 1))
    return AssignmentProblem(
        tasks=every,
        members=members,
        in_flight=tuple(
            Movement(task=task, source=owner[task], destination=name, state=dice.one(MovementState.REVOKING, MovementState.WARMING))
            for task in moving
            for name in [dice.one(*names)]
            if name != owner[task]
        ),
        blocked=frozenset((task, name) for name in names for task in dice.some([GONE, *(task for task, _ in kinds)], dice.one(0, 0, 0.2))),
        settings=_settings(dice, racks=racks),
        now_ms=NOW_MS,
    )


def _task(dice: _Dice, task: TaskId, has_state: bool, displaced: bool, *, racks: bool) -> Task:
    def partition(topic: str) -> Partition:
        return Partition(topic=topic, partition=task.partition, racks=dice.some(RACKS, 0.5), weight=dice.one(1, 1, 1, 3))

    return Task(
        id=task,
        stateful=has_state,
        end_offset=dice.one(0, 1, 50, 1_000, 5_000, 150_000, 2**61) if has_state else 0,
        source=tuple(partition(topic) for topic in dice.some("st", 0.7)) if racks else (),
        changelog=(partition("c"),) if racks and has_state else (),
        written_records_per_s=dice.one(0, 0, 3),
        displaced=displaced,
    )


def _member(dice: _Dice, name: str, every: tuple[Task, ...], owner: dict[TaskId, str | None], copies: float, *, knows_all: bool) -> MemberSpec:
    active = tuple(task.id for task in every if owner[task.id] == name)
    lags = {task.id: dice.one(*OWNERS_LAGS) for task in every if task.stateful and owner[task.id] == name}
    others = [task.id for task in every if task.stateful and owner[task.id] != name] + [*dice.some((GONE,), 0.1)]
    standby, warmup, left_over = dice.some(others, copies), dice.some(others, copies / 2), dice.some(others, copies)
    lags.update({task: dice.one(*LAGS) for task in (*standby, *dice.some(warmup, 0.7), *left_over)})
    leaving = dice.one(*[False] * 6, True)
    return MemberSpec(
        id=name,
        capacity=dice.one(1, 1, 1, 2, 3),
        rack=dice.one(None, *RACKS, *RACKS),
        tags={key: dice.one("x", "y", "z") for key in dice.some(("cluster", "zone"), 0.8)},
        leaving=leaving,
        drain_expired=leaving and dice.one(True, False),
        drain_deadline_ms=dice.one(None, NOW_MS + 1_000, NOW_MS + 100_000) if leaving else None,
        crash_looping=dice.one(*[False] * 9, True),
        subtopologies=None if knows_all or dice.one(True, False) else {number: dice.one(1, 2, 3, 100) for number in dice.some((0, 1, 2), 0.8)},
        active=active + dice.some((TaskId(9, int(name[1:])),), 0.05),
        standby=standby,
        warmup=tuple(task for task in warmup if task not in standby),
        lags=lags,
        ready=frozenset(dice.some(others, copies / 4)),
        readiness=dice.one("word_or_lag", *READINESS),
        ready_lag_records=dice.one(*[None] * 5, 0, 700),
        previously_owned=frozenset(dice.some([GONE, *(task.id for task in every)], dice.one(0, 0, 0.2))),
        restore_records_per_s=dice.one(0, 5, 100, 1_000),
    )


def _settings(dice: _Dice, *, racks: bool) -> GroupSettings:
    drawn: dict[str, Any] = {
        "acceptable_recovery_lag": 100,
        "acceptable_recovery_ms": dice.one(0, 0, 10_000, 100_000),
        "balance_factor": dice.one(1, 1, 2, 3),
        "num_standbys": dice.one(0, 1, 1, 2),
        "max_warmups": dice.one(1, 2, 3, 20),
        "max_warmups_per_member": dice.one(1, 2, 20),
    }
    if racks:
        drawn.update(
            rack_aware_strategy=dice.one("min_cost", "balanced_min_cost", "none"),
            rack_traffic_cost=dice.one(10, 10, 1),
            rack_non_overlap_cost=dice.one(1, 1, 0, 15),
            rack_standby_strategy=dice.one("balance", "greedy"),
            rack_standbys_apart=dice.one(0, 1, 2),
            rack_aware_tags=dice.one((), (), ("zone",), ("cluster", "zone")),
        )
    return GroupSettings(**drawn)
