"""The class of the assignor `cooperative`."""

from __future__ import annotations

from collections.abc import Mapping

from equipoise.assignors.common.assignor import Guarantee
from equipoise.assignors.common.bounds import moves_lower_bound
from equipoise.assignors.common.costs import plan_cost
from equipoise.assignors.common.granted import Grants
from equipoise.assignors.common.indexed_problem import NEWEST, VERSION_1, VERSION_2, IndexedProblem
from equipoise.assignors.common.member_plans import by_member, member_plans
from equipoise.assignors.common.movements import Movements, WarmupSlots
from equipoise.assignors.common.plan import Plan, Reason
from equipoise.assignors.common.problem import AssignmentProblem
from equipoise.assignors.common.shares import Shares
from equipoise.assignors.common.standbys import Standbys, assign_standbys
from equipoise.assignors.common.target import adopted_target
from equipoise.assignors.common.transport import SOLVER
from equipoise.assignors.cooperative.lost_tasks import candidates_for_unowned, returned, still_lost
from equipoise.assignors.cooperative.options import ASSIGNOR, CooperativeOptions
from equipoise.assignors.cooperative.revocations import plan_movements
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
