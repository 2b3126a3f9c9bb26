"""What a decision of `high_availability` costs: in moves and rounds for the group, and in time as the group grows.

A join is played as in Kafka's TaskAssignorConvergenceTest: copies that were told to warm up are warm one round later, hand-overs happen in between.
Kafka Streams 4 needs, in the same play (means over 20 draws of ids), 51 changes of owner in 26.8 rounds for 60 tasks on 6 members, 105 in 53.6 for
120 on 10.
"""

from __future__ import annotations

import math
import time

import attrs

from assignors.high_availability import HighAvailability
from assignors.problem import AssignmentProblem, Member, Movement, MovementState, Plan, Task
from events.knobs import Knobs
from events.tasks import LagSentinel, TaskId

END_OFFSET = 150_000
MOST_ROUNDS = 10_000
KAFKA = {(60, 6): "Kafka Streams 4: 51 and 26.8", (120, 10): "Kafka Streams 4: 105 and 53.6"}


def group(tasks: int, members: int, joiners: int = 1) -> AssignmentProblem:
    """`tasks` stateful tasks dealt out evenly over `members` members, and `joiners` more that have nothing."""
    dealt: dict[str, list[TaskId]] = {f"m{index:05}": [] for index in range(members)}
    names = list(dealt)
    for partition in range(tasks):
        dealt[names[partition % members]].append(TaskId(0, partition))
    return AssignmentProblem(
        tasks=tuple(Task(id=TaskId(0, partition), stateful=True, end_offset=END_OFFSET) for partition in range(tasks)),
        members=(
            *(Member(id=name, active=tuple(owned), lags=dict.fromkeys(owned, LagSentinel.ACTIVE)) for name, owned in dealt.items()),
            *(Member(id=f"n{index:05}") for index in range(joiners)),
        ),
        knobs=Knobs(max_warmups=2),
    )


def join(tasks: int, members: int) -> tuple[int, int]:
    """(changes of owner, probing rounds) until a joiner has its share."""
    assignor = HighAvailability()
    problem = group(tasks, members)
    before = {task: member.id for member in problem.members for task in member.active}
    for rounds in range(MOST_ROUNDS):
        plan = assignor.assign(problem)
        while any(part.revoke for part in plan.members.values()):
            problem = handed_over(problem, plan)
            plan = assignor.assign(problem)
        if not plan.probing:
            after = {task: name for name, part in plan.members.items() for task in part.active}
            return sum(before[task] != name for task, name in after.items()), rounds
        problem = warmed_up(handed_over(problem, plan))
    raise AssertionError(f"{tasks} tasks, {members} members: not settled after {MOST_ROUNDS} rounds")


def handed_over(problem: AssignmentProblem, plan: Plan) -> AssignmentProblem:
    """The group once it has done what the plan says: what is to be revoked is free."""
    revoked = {task for part in plan.members.values() for task in part.revoke}
    return attrs.evolve(
        problem,
        members=tuple(
            attrs.evolve(
                member,
                active=plan.members[member.id].active,
                warmup=plan.members[member.id].warmup,
                lags={
                    **member.lags,
                    **dict.fromkeys(plan.members[member.id].active, LagSentinel.ACTIVE),
                    **dict.fromkeys(plan.members[member.id].revoke, 0),
                },
            )
            for member in problem.members
        ),
        in_flight=tuple(
            Movement(task=each.task, source=None if each.task in revoked else each.source, destination=each.destination, state=each.state)
            for each in plan.movements
            if each.state is not MovementState.WAITING
        ),
    )


def warmed_up(problem: AssignmentProblem) -> AssignmentProblem:
    """Every warm-up is up to date."""
    return attrs.evolve(
        problem, members=tuple(attrs.evolve(member, lags={**member.lags, **dict.fromkeys(member.warmup, 0)}) for member in problem.members)
    )


def best_seconds(problem: AssignmentProblem, turns: int) -> float:
    """One decision's time, the best of some turns: what the machine does besides slows all of them."""
    assignor = HighAvailability()
    spent = []
    for _ in range(turns):
        started = time.perf_counter()
        assignor.assign(problem)
        spent.append(time.perf_counter() - started)
    return min(spent)


def run() -> list[tuple[str, float, str]]:
    """Rows for `python -m bench`."""
    rows: list[tuple[str, float, str]] = []
    for tasks, members in ((60, 6), (120, 10), (1000, 100)):
        moves, rounds = join(tasks, members)
        fewest = tasks // (members + 1)
        compared = f"; {KAFKA[tasks, members]}" if (tasks, members) in KAFKA else ""
        rows.append((f"changes of owner when one joins {tasks} tasks on {members} members", moves, f"fewest there can be: {fewest}{compared}"))
        rows.append(("probing rounds of that join, 2 warm-ups", rounds, f"at least {-(-fewest // 2)}: two a round"))
    small, large = best_seconds(group(100, 20), 15), best_seconds(group(6000, 1200), 5)
    growth = (large / small) / (6000 * math.log(6000) / (100 * math.log(100)))
    rows.append(("growth of one decision's time from 100 to 6,000 tasks, over n log n", round(growth, 2), "about 1: no faster than n log n"))
    return rows
