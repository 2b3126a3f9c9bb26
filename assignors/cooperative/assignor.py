"""The class of the assignor `cooperative`."""

from __future__ import annotations

from collections.abc import Mapping

from equipoise.assignors.common.assignor import Guarantee
from equipoise.assignors.common.bounds import moves_lower_bound
from equipoise.assignors.common.costs import plan_cost
from equipoise.assignors.common.indexed_problem import NEWEST, VERSION_1, Situation
from equipoise.assignors.common.member_plans import by_member, member_plans
from equipoise.assignors.common.movements import Movements, Slots
from equipoise.assignors.common.plan import Plan, Reason
from equipoise.assignors.common.problem import AssignmentProblem
from equipoise.assignors.common.shares import Shares
from equipoise.assignors.common.standbys import Standbys, assign_standbys
from equipoise.assignors.common.target import adopted_target
from equipoise.assignors.common.transport import SOLVER
from equipoise.assignors.cooperative.lost_tasks import candidates_for_unowned, returned, still_lost
from equipoise.assignors.cooperative.options import ASSIGNOR, Delays
from equipoise.assignors.cooperative.revocations import plan_movements
from equipoise.events.tasks import TaskId


class Cooperative:
    """KIP-415. Pure and without memory: since when a task is lost, and whose it was, stands in the
    problem.
    """

    name = ASSIGNOR
    version = 2
    behaviour = NEWEST
    solver = SOLVER
    guarantees = frozenset((Guarantee.ALWAYS_OWNED, Guarantee.COPIES_CAPPED, Guarantee.CONVERGES))
    options: tuple[str, ...] = ("scheduled_delay_ms", "revocation_backoff_ms", "revocations_per_round")

    def assign(self, problem: AssignmentProblem) -> Plan:
        """See `Assignor.assign`. Raises FieldError when the problem contradicts itself, or an
        option is unsound.
        """
        delays = Delays.of(problem.settings, self.options)
        situation = Situation(problem, behaviour=self.behaviour)
        shares = Shares(situation)
        homes = returned(situation)
        lost = still_lost(problem, situation, homes, delays)
        settled = {task: movement.destination for task, movement in situation.in_flight.items()}
        candidates = candidates_for_unowned(situation, homes, settled)
        target = adopted_target(situation, shares, candidates, settled, even_parts=True)  # lost work included: its place if nobody comes back for it
        now = {**situation.owner, **{task: member for task, member in target.owner.items() if task not in situation.owner and task not in lost}}
        now = dict(sorted(now.items()))
        movements, revocations, memory = plan_movements(problem, situation, delays, target.owner, lost)
        standbys = assign_standbys(situation, now, target.owner, movements, Slots(situation))
        imbalance = shares.imbalance(target.owner)
        moves = len(movements.planned)
        bound = moves_lower_bound(situation, shares, candidates, settled, balanced=imbalance == 0)
        return Plan(
            members=member_plans(situation, now, movements.planned, standbys, standbys.warmups),
            target=by_member(situation, target.owner),
            movements=movements.planned,
            reasons=_reasons(situation, homes, lost, now, movements, standbys),
            probing=bool(movements.planned) or standbys.unsettled,
            cost=plan_cost(situation, now, target, standbys.goal, moves=moves, bound=min(moves, bound), imbalance=imbalance),
            unique=target.unique and (standbys.goal is None or standbys.goal.unique),
            imbalance_now=shares.imbalance(now),
            lost_until_ms=lost,
            revocations=revocations,
            memory=memory,
        )


class Cooperative1(Cooperative):
    """As it decided before."""

    version = 1
    behaviour = VERSION_1
    options = ("scheduled_delay_ms", "revocation_backoff_ms")


def _reasons(
    situation: Situation,
    homes: Mapping[TaskId, str],
    lost: Mapping[TaskId, int],
    now: Mapping[TaskId, str],
    movements: Movements,
    standbys: Standbys,
) -> dict[TaskId, Reason]:
    """For each task that moves, waits, is placed, or gets a copy."""
    reasons = {task: Reason(code="standby") for task in standbys.placed}
    reasons.update((task, Reason(code="lost")) for task in lost)
    for task, owner in now.items():
        if task in situation.owner:
            if situation.members[owner].leaving and not situation.eligible(task):
                reasons[task] = Reason(code="leaving")
            continue
        code = "unowned_stateless"
        if task in situation.in_flight:
            code = "carried"
        elif homes.get(task) == owner:
            code = "return_home"
        elif situation.is_kept_from_home(task):
            code = "crash_loop"
        elif situation.tasks[task].lost_since_ms is not None:
            code = "lost_for_good" if task not in homes else "balance"
        elif situation.tasks[task].stateful:
            code = "unowned" if situation.caught_up(owner, task) else "unowned_cold"
        reasons[task] = Reason(code=code, lag_records=situation.lag(owner, task))
    reasons.update(movements.reasons)
    return dict(sorted(reasons.items()))
