"""How one decision's time of `high_availability` grows with the group. What a decision leads to:
`convergence_bench`; what it costs beside Java: `java_bench`."""

from __future__ import annotations

import json
import math
import time

from bench.java_bench import Case, our_seconds, question
from equipoise.assignors import AssignmentProblem, MemberSpec, Task
from equipoise.assignors.high_availability import HighAvailability
from equipoise.events.settings import GroupSettings
from equipoise.events.tasks import LagSentinel, TaskId
from tests.support.assign_json import problem_of

END_OFFSET = 150_000


def group(tasks: int, members: int, joiners: int = 1) -> AssignmentProblem:
    """`tasks` stateful tasks dealt out evenly over `members` members, and `joiners` more that have
    nothing.
    """
    dealt: dict[str, list[TaskId]] = {f"m{index:05}": [] for index in range(members)}
    names = list(dealt)
    for partition in range(tasks):
        dealt[names[partition % members]].append(TaskId(0, partition))
    return AssignmentProblem(
        tasks=tuple(Task(id=TaskId(0, partition), stateful=True, end_offset=END_OFFSET) for partition in range(tasks)),
        members=(
            *(MemberSpec(id=name, active=tuple(owned), lags=dict.fromkeys(owned, LagSentinel.ACTIVE)) for name, owned in dealt.items()),
            *(MemberSpec(id=f"n{index:05}") for index in range(joiners)),
        ),
        settings=GroupSettings(max_warmups=2),
    )


def best_seconds(problem: AssignmentProblem, turns: int) -> float:
    """One decision's CPU time, the best of some turns: what the machine does besides plays little
    part.
    """
    assignor = HighAvailability()
    spent = []
    for _ in range(turns):
        started = time.thread_time()
        assignor.assign(problem)
        spent.append(time.thread_time() - started)
    return min(spent)


def racks_growth() -> float:
    """The same with racks, from 1,000 tasks on 100 members to 10,000 on 1,000."""
    cases = Case(1_000, 100, racks=True), Case(10_000, 1_000, racks=True)
    small, large = (our_seconds(problem_of(json.dumps(question(case)))[2]) for case in cases)
    return (large / small) / (10_000 * math.log(10_000) / (1_000 * math.log(1_000)))


def run() -> list[tuple[str, float, str]]:
    """Rows for `python -m bench`."""
    small, large = best_seconds(group(100, 20), 15), best_seconds(group(6000, 1200), 5)
    growth = (large / small) / (6000 * math.log(6000) / (100 * math.log(100)))
    no_faster = "goal: at most 1.2, no faster than n log n"
    return [
        ("growth of one decision's time from 100 to 6,000 tasks, over n log n", round(growth, 2), no_faster),
        ("the same with racks, from 1,000 to 10,000 tasks", round(racks_growth(), 2), no_faster),
    ]
