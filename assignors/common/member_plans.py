"""The `MemberPlan` of each member, from owners, movements, standbys and warm-ups."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping

from equipoise.assignors.common.indexed_problem import IndexedProblem
from equipoise.assignors.common.plan import MemberPlan
from equipoise.assignors.common.problem import Movement, MovementState
from equipoise.assignors.common.standbys import Standbys
from equipoise.events.tasks import TaskId


def member_plans(
    indexed: IndexedProblem, now: Mapping[TaskId, str], planned: Iterable[Movement], standbys: Standbys, warmups: frozenset[tuple[TaskId, str]]
) -> dict[str, MemberPlan]:
    """Returns what each member may hold now. It revokes tasks whose movement is REVOKING, tasks
    that nobody may run while it is leaving, and tasks of no topology.

    The holders of standbys are in rising order, and so are the lists of each member.
    """
    revoked = {movement.task for movement in planned if movement.state is MovementState.REVOKING}
    for member_ in indexed.members.values():
        if member_.leaving:
            revoked.update(task for task in member_.active if indexed.owner.get(task) == member_.id and not indexed.eligible(task))
    active = by_member(indexed, now)
    revoke: dict[str, list[TaskId]] = {}
    for member_ in () if indexed.owned_once else indexed.members.values():
        for task in itertools.filterfalse(indexed.tasks.__contains__, member_.active):
            revoke.setdefault(member_.id, []).append(task)
    standby: dict[str, list[TaskId]] = {}
    warmup: dict[str, list[TaskId]] = {}
    for task in sorted(revoked.intersection(now)):
        revoke.setdefault(now[task], []).append(task)
        active[now[task]] = tuple([kept for kept in active[now[task]] if kept != task])
    for task, holders in standbys.holders.items():
        for holder in holders:
            standby.setdefault(holder, []).append(task)
    for task, member in sorted(warmups):
        warmup.setdefault(member, []).append(task)
    return {
        member: MemberPlan(
            active=tasks,
            standby=tuple(standby.get(member, ())),
            warmup=tuple(warmup.get(member, ())),
            revoke=tuple(sorted(revoke.get(member, ()))),
        )
        for member, tasks in active.items()
    }


def by_member(indexed: IndexedProblem, owner: Mapping[TaskId, str]) -> dict[str, tuple[TaskId, ...]]:
    """Member -> its tasks, for every member, in rising order."""
    tasks = indexed.owned()
    lost: dict[str, set[TaskId]] = {}
    gained: dict[str, set[TaskId]] = {}
    for task in indexed.changes(owner):
        if task in indexed.owner:
            lost.setdefault(indexed.owner[task], set()).add(task)
        if task in owner:
            gained.setdefault(owner[task], set()).add(task)
    for member in dict.fromkeys((*lost, *gained)):
        kept = frozenset(tasks[member]).difference(lost.get(member, ()))
        tasks[member] = tuple(sorted(kept.union(gained.get(member, ()))))
    return tasks
