"""The `MemberPlan` of each member, from owners, movements, standbys and warm-ups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from equipoise.assignors.common.indexed_problem import IndexedProblem
from equipoise.assignors.common.plan import MemberPlan
from equipoise.assignors.common.problem import Movement, MovementState
from equipoise.assignors.common.standbys import Standbys
from equipoise.events.tasks import TaskId


def member_plans(
    indexed: IndexedProblem, now: Mapping[TaskId, str], planned: Iterable[Movement], standbys: Standbys, warmups: frozenset[tuple[TaskId, str]]
) -> dict[str, MemberPlan]:
    """What each member may hold now. It revokes tasks whose movement is REVOKING, tasks that nobody
    may run while it is leaving, and tasks of no topology.

    `now` and the holders of standbys are in rising order, and so are the lists of each member.
    """
    revoked = {movement.task for movement in planned if movement.state is MovementState.REVOKING}
    for member_ in indexed.members.values():
        if member_.leaving:
            revoked.update(task for task in member_.active if indexed.owner.get(task) == member_.id and not indexed.eligible(task))
    active: dict[str, list[TaskId]] = {member: [] for member in indexed.members}
    revoke: dict[str, list[TaskId]] = {
        member.id: [task for task in member.active if task not in indexed.tasks] for member in indexed.members.values()
    }
    standby: dict[str, list[TaskId]] = {member: [] for member in indexed.members}
    warmup: dict[str, list[TaskId]] = {member: [] for member in indexed.members}
    for task, owner in now.items():
        (revoke if task in revoked else active)[owner].append(task)
    for task, holders in standbys.holders.items():
        for holder in holders:
            standby[holder].append(task)
    for task, member in sorted(warmups):
        warmup[member].append(task)
    return {
        member: MemberPlan(
            active=tuple(active[member]),
            standby=tuple(standby[member]),
            warmup=tuple(warmup[member]),
            revoke=tuple(sorted(revoke[member])),
        )
        for member in indexed.members
    }


def by_member(indexed: IndexedProblem, owner: Mapping[TaskId, str]) -> dict[str, tuple[TaskId, ...]]:
    """Member -> its tasks, for every member. `owner` is in rising order, and so are the lists."""
    tasks: dict[str, list[TaskId]] = {member: [] for member in indexed.members}
    for task, member in owner.items():
        tasks[member].append(task)
    return {member: tuple(of) for member, of in tasks.items()}
