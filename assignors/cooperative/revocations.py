"""Which tasks are revoked now, and which wait for the back-off or for their step (KIP-415, Designs
I and III).
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from equipoise.assignors.common.indexed_problem import IndexedProblem
from equipoise.assignors.common.movements import MoveBenefits, Movements
from equipoise.assignors.common.plan import Reason
from equipoise.assignors.common.problem import AssignmentProblem, Memory, Movement, MovementState, Revocations
from equipoise.assignors.cooperative.options import CooperativeOptions
from equipoise.events.tasks import TaskId

IN_PARTS = "in_parts"
"""Memory key: present while a step continues of which a part has begun."""


def plan_movements(
    problem: AssignmentProblem, indexed: IndexedProblem, chosen: CooperativeOptions, target: Mapping[TaskId, str], lost: Mapping[TaskId, int]
) -> tuple[Movements, Revocations, Memory]:
    """Movements from owner to target. They begin at once, except those for balance alone: these
    wait for lost tasks and for the back-off, and go in parts.
    """
    moving = [task for task, owner in indexed.owner.items() if target.get(task, owner) != owner]
    carried = [task for task in moving if task in indexed.in_flight]
    forced = [task for task in moving if task not in indexed.in_flight and not _may_stay(indexed, task)]
    for_balance = sorted(task for task in moving if task not in indexed.in_flight and _may_stay(indexed, task))
    under_way = sum(_may_stay(indexed, task) for task in carried)
    most = chosen.revocations_per_round - under_way if chosen.revocations_per_round else len(for_balance)
    if IN_PARTS in problem.memory and for_balance and not lost:
        waits_for, revocations = "", attrs.evolve(problem.revocations, since_ms=problem.now_ms, until_ms=0)
        most = 0 if under_way else most
    else:
        waits_for, revocations = _back_off(problem, chosen, wanted=bool(for_balance), under_way=bool(carried), lost=bool(lost))
    begins = [] if waits_for else for_balance[: max(0, most)]
    later = for_balance[len(begins) :]
    benefits = MoveBenefits(indexed, indexed.owner, target, moving)
    planned: list[Movement] = []
    reasons: dict[TaskId, Reason] = {}
    for state, tasks in (
        (MovementState.REVOKING, sorted([*carried, *forced, *begins])),
        (MovementState.WAITING, later),
    ):
        for task in tasks:
            because = _wanted(indexed, benefits, task, target[task])
            code = "carried" if task in indexed.in_flight else because if state is MovementState.REVOKING else waits_for or "next_step"
            planned.append(Movement(task=task, source=indexed.owner[task], destination=target[task], state=state))
            lag_records, rack_costs = indexed.lag(target[task], task), benefits.rack_costs(task)
            reasons[task] = Reason(code=code, lag_records=lag_records, because=because, rack_costs=rack_costs)
    return (
        Movements(planned=tuple(planned), reasons=reasons, warmups=frozenset(), standby_destinations={}, ready_by_chance=()),
        revocations,
        {IN_PARTS: 1} if later and not waits_for else {},
    )


def _may_stay(indexed: IndexedProblem, task: TaskId) -> bool:
    """Returns whether the task moves for balance alone: its owner stays and may run it."""
    return not indexed.members[indexed.owner[task]].leaving and not indexed.must_move(task)


def _back_off(problem: AssignmentProblem, chosen: CooperativeOptions, *, wanted: bool, under_way: bool, lost: bool) -> tuple[str, Revocations]:
    """Reason code of what moves for balance wait for ("": they begin now), and the `Revocations`
    for the next problem.

    A back-off that movements waited for is never cut short. Otherwise a group at rest ends the
    succession.
    """
    before = problem.revocations
    until_ms = before.until_ms if before.until_ms > problem.now_ms else 0
    if not wanted:
        return "", attrs.evolve(before, times=before.times if under_way or until_ms else 0, until_ms=until_ms)
    if not until_ms and before.since_ms is not None:
        until_ms = max(0, before.since_ms + chosen.backoff_ms(before.times))
    if until_ms > problem.now_ms:
        return "back_off", attrs.evolve(before, until_ms=until_ms)
    if lost:
        return "lost_work_waits", attrs.evolve(before, until_ms=0)
    return "", Revocations(times=before.times + 1, since_ms=problem.now_ms)


def _wanted(indexed: IndexedProblem, benefits: MoveBenefits, task: TaskId, destination: str) -> str:
    """Reason code of the movement."""
    parting = indexed.parting(indexed.owner[task])
    if parting:
        return "leaving" if parting == "overdue" else parting
    return "return_home" if indexed.goes_back_to(destination, task) else benefits.code(task)
