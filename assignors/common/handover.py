"""Plans that move state first and work second (KIP-441). Assignors that use it differ in what they
balance (`Balance`).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Protocol

from equipoise.assignors.common.assignor import Guarantee
from equipoise.assignors.common.costs import plan_cost
from equipoise.assignors.common.granted import Grants
from equipoise.assignors.common.indexed_problem import IndexedProblem
from equipoise.assignors.common.member_plans import by_member, member_plans
from equipoise.assignors.common.movements import Movements, WarmupSlots, get_movements, keep_ready
from equipoise.assignors.common.plan import Plan, Reason
from equipoise.assignors.common.problem import MovementState
from equipoise.assignors.common.standbys import Standbys, assign_standbys
from equipoise.assignors.common.stateless import placed_by_load
from equipoise.assignors.common.target import Candidates, Target, min_rank
from equipoise.events.tasks import TaskId

GUARANTEES_1 = frozenset(Guarantee) - {Guarantee.LEAVING_APART}
"""Guarantees of behaviour version 1."""


class Balance(Protocol):
    """What an assignor balances, and by which moves: the part of `hand_over` that differs between
    assignors.
    """

    def target(self, candidates: Mapping[TaskId, Candidates], settled: Mapping[TaskId, str]) -> Target:
        """The target. `candidates`: tasks that need an owner now. `settled`: tasks whose
        destination is fixed by an earlier decision. See docs/protocol.md#d9.
        """

    def owners_for_now(self, candidates: Mapping[TaskId, Candidates], running: Mapping[TaskId, str]) -> Mapping[TaskId, str]:
        """Owners for tasks that need one now: each one of its candidates, as balanced as they allow
        beside the tasks that are `running`.
        """

    def stateless_for_now(self, candidates: Mapping[TaskId, Candidates], running: Mapping[TaskId, str]) -> Mapping[TaskId, str]:
        """The same for tasks without state that may run anywhere (`stateless.placed_by_load`)."""

    def imbalance(self, owner: Mapping[TaskId, str]) -> int:
        """See `PlanCost.imbalance`."""

    def moves_lower_bound(
        self, candidates: Mapping[TaskId, Candidates], settled: Mapping[TaskId, str], now: Mapping[TaskId, str], target: Mapping[TaskId, str]
    ) -> int:
        """A lower bound of the changes of owner from now to any target as balanced as this one."""


def hand_over(indexed: IndexedProblem, balance: Balance) -> Plan:
    """The plan that brings the group to the target of `balance`, state first."""
    candidates = _candidates(indexed)
    overdue = _overdue(indexed)
    settled = _settled(indexed, candidates, overdue)
    target = balance.target({**candidates, **overdue}, settled)
    if overdue:
        settled.update(_leave_now(balance, overdue, target.owner))
        target = balance.target(candidates, settled)
    now = _now(indexed, balance, candidates, target.owner)

    slots = WarmupSlots(indexed)
    movements = get_movements(indexed, now, target.owner, slots)
    standbys = assign_standbys(indexed, now, target.owner, movements, slots)
    return _plan(indexed, balance, candidates, settled, target, now, movements, standbys, keep_ready(movements, slots))


def _stands(indexed: IndexedProblem, task: TaskId) -> bool:
    """Returns whether the task's movement is REVOKING: the grant holds while the destination lives."""
    movement = indexed.in_flight.get(task)
    return movement is not None and movement.state is MovementState.REVOKING


def _candidates(indexed: IndexedProblem) -> dict[TaskId, Candidates]:
    """Tasks that need an owner now -> their candidates: the destination of their movement if that
    holds or has the min rank, else the members of the min rank.

    Stateless tasks without a movement are absent: every eligible member is a candidate.
    """
    classes = [group for group in indexed.equivalence_classes if group.first.stateful]
    others = [task for task in indexed.unowned if indexed.tasks[task].stateful and task not in indexed.class_of]
    candidates = min_rank(indexed, [task for task in others if not _stands(indexed, task)], classes)
    for task, movement in indexed.in_flight.items():
        if task not in indexed.owner and (_stands(indexed, task) or (task in candidates and movement.destination in candidates[task])):
            candidates[task] = Candidates(members=(movement.destination,))
    return candidates


def _overdue(indexed: IndexedProblem) -> dict[TaskId, Candidates]:
    """Stateful tasks of leaving members whose drain timeout has passed -> their candidates, as for
    tasks without an owner. See docs/protocol.md#m7.

    Tasks that are being revoked keep their destination.
    """
    tasks = [
        task
        for member in indexed.members.values()
        if member.drain_expired
        for task in member.active
        if task in indexed.tasks and indexed.tasks[task].stateful and indexed.must_move(task) and not _stands(indexed, task)
    ]
    overdue = min_rank(indexed, tasks)
    for task, candidates in overdue.items():
        movement = indexed.in_flight.get(task)
        if movement is not None and movement.destination in candidates:
            overdue[task] = Candidates(members=(movement.destination,))
    return overdue


def _leave_now(balance: Balance, overdue: Mapping[TaskId, Candidates], target: Mapping[TaskId, str]) -> dict[TaskId, str]:
    """Overdue tasks -> their next owner: the target if it is a candidate, else another candidate."""
    straight = {task: target[task] for task, candidates in overdue.items() if target[task] in candidates}
    others = {task: candidates for task, candidates in overdue.items() if task not in straight}
    running = {task: member for task, member in target.items() if task not in others}
    return {**straight, **balance.owners_for_now(others, running)}


def _settled(indexed: IndexedProblem, candidates: Mapping[TaskId, Candidates], overdue: Mapping[TaskId, Candidates]) -> dict[TaskId, str]:
    """Tasks whose movement continues regardless of balance -> its destination. See
    docs/protocol.md#d9."""
    return {
        task: movement.destination
        for task, movement in indexed.in_flight.items()
        if task not in overdue and (task in indexed.owner or (task in candidates and movement.destination not in candidates[task]))
    }


def _now(indexed: IndexedProblem, balance: Balance, candidates: Mapping[TaskId, Candidates], target: Mapping[TaskId, str]) -> Mapping[TaskId, str]:
    """Task -> owner after this plan.

    Owners keep their tasks. A task without an owner goes to its target if that is a candidate, else
    to another candidate, as balanced as the candidates allow. Tasks without state come last (see
    `stateless`).
    """
    if indexed.owner.keys() == target.keys():
        return indexed.owner
    now = {**target, **indexed.owner}
    waiting = {task: takers for task, takers in candidates.items() if task in target and target[task] not in takers.everyone}
    for task in waiting:
        del now[task]
    if waiting:
        now.update(balance.owners_for_now(waiting, now))
    elsewhere = placed_by_load(indexed, now, target, candidates)  # when it is known which tasks with state are to move
    if elsewhere:
        now.update(balance.stateless_for_now(elsewhere, {task: member for task, member in now.items() if task not in elsewhere}))
    if not (waiting or elsewhere) and len(now) == len(target):
        return now  # in the order of the target
    return {task: now[task] for task in indexed.tasks if task in now}


def _plan(
    indexed: IndexedProblem,
    balance: Balance,
    candidates: Mapping[TaskId, Candidates],
    settled: Mapping[TaskId, str],
    target: Target,
    now: Mapping[TaskId, str],
    movements: Movements,
    standbys: Standbys,
    kept_ready: frozenset[tuple[TaskId, str]],
) -> Plan:
    """The plan: every list sorted, every member named."""
    imbalance = balance.imbalance(target.owner)
    bound = balance.moves_lower_bound(candidates, settled, now, target.owner)
    return Plan(
        members=member_plans(indexed, now, movements.planned, standbys, movements.warmups | standbys.warmups | kept_ready),
        target=by_member(indexed, target.owner),
        movements=movements.planned,
        reasons=_reasons(indexed, Grants(indexed, candidates, soonest=True), now, movements, standbys),
        probing=bool(movements.planned) or standbys.unsettled or (imbalance > 0 and bool(settled)),
        cost=plan_cost(indexed, now, target, standbys.goal, moves=len(movements.planned), bound=bound, imbalance=imbalance),
        unique=target.unique and (standbys.goal is None or standbys.goal.unique),
        imbalance_now=balance.imbalance(now),
    )


def _reasons(indexed: IndexedProblem, grants: Grants, now: Mapping[TaskId, str], movements: Movements, standbys: Standbys) -> dict[TaskId, Reason]:
    """The reason of each task that moves, waits, is placed, or gets a copy."""
    reasons: dict[TaskId, Reason] = dict.fromkeys(standbys.placed, Reason(code="standby", lag_records=None))
    granted = _Granted()
    for task in indexed.unowned:
        if task in now and task not in indexed.class_of:
            reasons[task] = granted[_why_granted(indexed, grants, task, now[task]), indexed.lag(now[task], task)]
    for member in indexed.members.values():
        for task in member.active if member.leaving else ():
            if task in indexed.tasks and not indexed.eligible(task):
                reasons[task] = Reason(code="leaving", lag_records=None)
    for each in indexed.equivalence_classes:
        if indexed.eligible(each.first.id):
            records = each.records if each.first.stateful else itertools.repeat(None, len(each.tasks))
            why = zip(grants.codes(each.tasks, now), records, strict=True)
            reasons.update(zip(each.tasks, map(granted.__getitem__, why), strict=True))
    reasons.update(movements.reasons)
    return {**{task: reasons[task] for task in now if task in reasons}, **reasons}  # in the order of `now`


class _Granted(dict[tuple[str, int | None], Reason]):
    """(code, lag) -> the one `Reason` that all such tasks share."""

    def __missing__(self, why: tuple[str, int | None]) -> Reason:
        reason = self[why] = Reason(code=why[0], lag_records=why[1])
        return reason


def _why_granted(indexed: IndexedProblem, grants: Grants, task: TaskId, owner: str) -> str:
    """Reason code of a task that had no owner."""
    if _stands(indexed, task):
        return "carried"
    if indexed.goes_back_to(owner, task):
        return "return_home"
    if indexed.previous_owner_crash_loops(task):
        return "crash_loop"
    movement = indexed.in_flight.get(task)
    if movement is not None and movement.destination == owner and not (indexed.behaviour.reasons_unchecked or indexed.is_ready(owner, task)):
        return "carried"
    return grants.code(task, owner)
