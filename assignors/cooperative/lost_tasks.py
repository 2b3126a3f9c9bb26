"""Lost tasks: those that wait for their previous owner, and those that return to it (KIP-415,
Design II).
"""

from __future__ import annotations

from collections.abc import Mapping

from equipoise.assignors.common.indexed_problem import IndexedProblem
from equipoise.assignors.common.problem import AssignmentProblem
from equipoise.assignors.common.target import Candidates
from equipoise.assignors.cooperative.options import CooperativeOptions
from equipoise.events.tasks import TaskId


def returned(indexed: IndexedProblem) -> dict[TaskId, str]:
    """Lost tasks whose previous owner is back -> that member."""
    return {
        task.id: owner
        for task in indexed.tasks.values()
        if task.lost_since_ms is not None
        for owner in indexed.previous_owners(task.id)
        if indexed.may_run(owner, task.id)
    }


def still_lost(
    problem: AssignmentProblem, indexed: IndexedProblem, returned_to: Mapping[TaskId, str], chosen: CooperativeOptions
) -> dict[TaskId, int]:
    """Lost tasks that wait for their previous owner -> group time (ms) at which the wait ends. A
    task in flight goes to its destination, and none waits for a member that crashes repeatedly.
    """
    promised = returned_to.keys() | indexed.in_flight.keys()
    waits = {
        task.id: task.lost_since_ms + chosen.scheduled_delay_ms
        for task in indexed.tasks.values()
        if task.lost_since_ms is not None and task.id not in promised and not indexed.previous_owner_crash_loops(task.id)
    }
    return {task: until_ms for task, until_ms in waits.items() if until_ms > problem.now_ms}


def candidates_for_unowned(indexed: IndexedProblem, returned_to: Mapping[TaskId, str], settled: Mapping[TaskId, str]) -> dict[TaskId, Candidates]:
    """Tasks without an owner -> members that may have them without a change of owner: the previous
    owner if it is back, else every eligible member.
    """
    found: dict[TaskId, Candidates] = {}
    for task in indexed.tasks.values():
        if task.id in returned_to:
            found[task.id] = Candidates(members=(returned_to[task.id],))
        elif task.stateful and task.id not in indexed.owner and task.id not in settled and indexed.eligible(task.id):
            found[task.id] = Candidates(fresh=indexed.eligible(task.id))
    return found
