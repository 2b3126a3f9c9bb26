"""The class of the assignor `cooperative`."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from equipoise.assignors.common.assignor import Guarantee
from equipoise.assignors.common.bounds import moves_lower_bound
from equipoise.assignors.common.costs import plan_cost
from equipoise.assignors.common.granted import Grants
from equipoise.assignors.common.indexed_problem import NEWEST, VERSION_1, VERSION_2, IndexedProblem
from equipoise.assignors.common.member_plans import by_member, member_plans
from equipoise.assignors.common.movements import MoveBenefits, Movements, WarmupSlots
from equipoise.assignors.common.plan import Plan, Reason
from equipoise.assignors.common.problem import AssignmentProblem, Memory, Movement, MovementState, Revocations
from equipoise.assignors.common.shares import Shares
from equipoise.assignors.common.standbys import Standbys, assign_standbys
from equipoise.assignors.common.target import Candidates, adopted_target
from equipoise.assignors.common.transport import SOLVER
from equipoise.assignors.cooperative.options import ASSIGNOR, CooperativeOptions
from equipoise.events.tasks import TaskId


class Cooperative:
    """KIP-415. Pure and without memory: lost tasks and their previous owners are part of the
    problem.
    """

    name = ASSIGNOR
    version = 3
    behaviour = NEWEST
    solver = SOLVER
    guarantees = frozenset((Guarantee.ALWAYS_OWNED, Guarantee.COPIES_CAPPED, Guarantee.CONVERGES))
    options: tuple[str, ...] = ("scheduled_delay_ms", "revocation_backoff_ms", "revocations_per_round")

    def assign(self, problem: AssignmentProblem) -> Plan:
        """See `Assignor.assign`. Raises FieldError when the problem contradicts itself, or for an
        unsound option.
        """
        chosen = CooperativeOptions.of(problem.settings, self.options)
        indexed = IndexedProblem(problem, behaviour=self.behaviour)
        shares = Shares(indexed)
        returned_to = returned(indexed)
        lost = still_lost(problem, indexed, returned_to, chosen)
        settled = {task: movement.destination for task, movement in indexed.in_flight.items()}
        candidates = candidates_for_unowned(indexed, returned_to, settled)
        target = adopted_target(indexed, shares, candidates, settled, even_parts=True)  # lost tasks too: where they go if not back in time
        now = {**indexed.owner, **{task: member for task, member in target.owner.items() if task not in indexed.owner and task not in lost}}
        now = dict(sorted(now.items()))
        movements, revocations, memory = plan_movements(problem, indexed, chosen, target.owner, lost)
        standbys = assign_standbys(indexed, now, target.owner, movements, WarmupSlots(indexed))
        imbalance = shares.imbalance(target.owner)
        moves = len(movements.planned)
        bound = moves_lower_bound(indexed, shares, candidates, settled, balanced=imbalance == 0)
        return Plan(
            members=member_plans(indexed, now, movements.planned, standbys, standbys.warmups),
            target=by_member(indexed, target.owner),
            movements=movements.planned,
            reasons=_reasons(Grants(indexed, candidates, soonest=False), indexed, returned_to, lost, now, movements, standbys),
            probing=bool(movements.planned) or standbys.unsettled,
            cost=plan_cost(indexed, now, target, standbys.goal, moves=moves, bound=min(moves, bound), imbalance=imbalance),
            unique=target.unique and (standbys.goal is None or standbys.goal.unique),
            imbalance_now=shares.imbalance(now),
            lost_until_ms=lost,
            revocations=revocations,
            memory=memory,
        )


class Cooperative2(Cooperative):
    """Behaviour version 2."""

    version = 2
    behaviour = VERSION_2


class Cooperative1(Cooperative):
    """Behaviour version 1."""

    version = 1
    behaviour = VERSION_1
    options = ("scheduled_delay_ms", "revocation_backoff_ms")


def _reasons(
    grants: Grants,
    indexed: IndexedProblem,
    returned_to: Mapping[TaskId, str],
    lost: Mapping[TaskId, int],
    now: Mapping[TaskId, str],
    movements: Movements,
    standbys: Standbys,
) -> dict[TaskId, Reason]:
    """The reason of each task that moves, waits, is placed, or gets a copy."""
    reasons = {task: Reason(code="standby") for task in standbys.placed}
    reasons.update((task, Reason(code="lost")) for task in lost)
    for task, owner in now.items():
        if task in indexed.owner:
            if indexed.members[owner].leaving and not indexed.eligible(task):
                reasons[task] = Reason(code="leaving")
            continue
        if task in indexed.in_flight:
            code = "carried"
        elif returned_to.get(task) == owner:
            code = "return_home"
        elif indexed.previous_owner_crash_loops(task):
            code = "crash_loop"
        elif indexed.tasks[task].lost_since_ms is not None:
            former = indexed.behaviour.reasons_unchecked
            code = ("balance" if former else "lost_elsewhere") if task in returned_to else "lost_for_good" if former else "lost_passed_on"
        else:
            code = grants.code(task, owner)
        reasons[task] = Reason(code=code, lag_records=indexed.lag(owner, task))
    reasons.update(movements.reasons)
    return dict(sorted(reasons.items()))


# Lost tasks: those that wait for their previous owner, and those that return to it (KIP-415,
# Design II).


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


# Which tasks are revoked now, and which wait for the back-off or for their step (KIP-415, Designs
# I and III).

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
