"""Small words to write problems with, shared by the assignors' tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from equipoise.assignors import AssignmentProblem, MemberPlan, MemberSpec, Movement, MovementState, Plan, Task
from equipoise.assignors.common.validation import plan_faults
from equipoise.assignors.high_availability import HighAvailability
from equipoise.events.settings import GroupSettings
from equipoise.events.tasks import Lag, LagSentinel, TaskId, parse_task

ACTIVE = LagSentinel.ACTIVE
UNKNOWN = LagSentinel.UNKNOWN
STATE = 150_000
"""End offset of stateful tasks where a test does not say otherwise."""
MANY = 1_000
"""Partitions of a sub-topology that a member knows whole."""


def ids(*texts: str) -> tuple[TaskId, ...]:
    """``ids("0_0", "0_1")``; a text may hold several, separated by spaces."""
    return tuple(sorted(parse_task(word) for text in texts for word in text.split()))


def tasks(stateful: str = "", stateless: str = "", *, end_offset: int = STATE) -> tuple[Task, ...]:
    return (
        *(Task(id=task, stateful=True, end_offset=end_offset) for task in ids(stateful)),
        *(Task(id=task, stateful=False) for task in ids(stateless)),
    )


def numbered(count: int, *, subtopology: int = 0, start: int = 0) -> str:
    """``"0_0 0_1 ..."``: `count` tasks of a sub-topology."""
    return " ".join(f"{subtopology}_{partition}" for partition in range(start, start + count))


def member(
    name: str,
    active: str = "",
    *,
    standby: str = "",
    warmup: str = "",
    lags: dict[str, Lag] | None = None,
    every: Lag | None = None,
    of: str = "",
    capacity: int = 1,
    leaving: bool = False,
    drain_expired: bool = False,
    previously_owned: str = "",
    ready: str = "",
    subtopologies: Iterable[int] | Mapping[int, int] | None = None,
    speed: int = 0,
) -> MemberSpec:
    """A member that owns `active` and says so; `every`: its lag on each task of `of`; `lags` say
    the rest.

    `subtopologies`: those that it knows, with the number of their partitions, or with all of them.
    """
    reported: dict[TaskId, Lag] = dict.fromkeys(ids(active), ACTIVE)
    reported.update({task: every for task in ids(of) if every is not None and task not in reported})
    reported.update({parse_task(task): lag for task, lag in (lags or {}).items()})
    known = subtopologies if subtopologies is None or isinstance(subtopologies, Mapping) else dict.fromkeys(subtopologies, MANY)
    return MemberSpec(
        id=name,
        capacity=capacity,
        leaving=leaving,
        drain_expired=drain_expired,
        subtopologies=known,
        active=ids(active),
        standby=ids(standby),
        warmup=ids(warmup),
        lags=reported,
        ready=frozenset(ids(ready)),
        previously_owned=frozenset(ids(previously_owned)),
        restore_records_per_s=speed,
    )


def in_flight(task: str, source: str | None, destination: str, state: str) -> Movement:
    return Movement(task=parse_task(task), source=source, destination=destination, state=MovementState(state))


def problem(
    tasks: Iterable[Task], *members: MemberSpec, in_flight: Iterable[Movement] = (), blocked: Iterable[tuple[str, str]] = (), **settings: Any
) -> AssignmentProblem:
    """Settings by name; `acceptable_recovery_lag` is 100 and `num_standbys` 0 by default."""
    return AssignmentProblem(
        tasks=tuple(tasks),
        members=members,
        settings=GroupSettings(**{"acceptable_recovery_lag": 100, **settings}),
        in_flight=tuple(in_flight),
        blocked=frozenset((parse_task(task), name) for task, name in blocked),
    )


def plan(question: AssignmentProblem) -> Plan:
    """The plan of `high_availability`, judged."""
    assignor = HighAvailability()
    answer = assignor.assign(question)
    assert plan_faults(question, answer, assignor.guarantees) == []
    return answer


def text(tasks: Iterable[TaskId]) -> str:
    """``"0_0 0_1"``."""
    return " ".join(map(str, tasks))


def movements(answer: Plan) -> list[str]:
    """``"0_1 m1 -> m2 warming"``, in the plan's order."""
    return [f"{each.task} {each.source} -> {each.destination} {each.state.value}" for each in answer.movements]


def copies(answer: Plan, name: str) -> int:
    """Tasks a member holds in any form."""
    part = answer.members[name]
    return len(part.active) + len(part.revoke) + len(part.standby) + len(part.warmup)


def copies_by_task(members: Iterable[MemberPlan]) -> dict[TaskId, int]:
    """How many members hold each task in any form."""
    counts: dict[TaskId, int] = {}
    for part in members:
        for task in (*part.active, *part.revoke, *part.standby, *part.warmup):
            counts[task] = counts.get(task, 0) + 1
    return dict(sorted(counts.items()))
