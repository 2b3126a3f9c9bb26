"""The class of the assignor `load_balanced`."""

from __future__ import annotations

import attrs

from equipoise.assignors.common.assignor import Guarantee
from equipoise.assignors.common.handover import GUARANTEES_1, hand_over
from equipoise.assignors.common.indexed_problem import NEWEST, VERSION_1, VERSION_2, IndexedProblem
from equipoise.assignors.common.plan import Plan
from equipoise.assignors.common.problem import AssignmentProblem
from equipoise.assignors.common.standby_goal import MAX_STANDBY_STEPS, max_standby_steps
from equipoise.assignors.common.transport import SOLVER
from equipoise.assignors.load_balanced.load_target import LoadTarget
from equipoise.assignors.load_balanced.options import ASSIGNOR, Thresholds


class LoadBalanced:
    """Balance by measured load. Pure and without memory: moves that have begun are part of the
    problem.
    """

    name = ASSIGNOR
    version = 3
    behaviour = NEWEST
    solver = SOLVER  # of standbys, where tags matter; the target itself needs none
    guarantees = frozenset(Guarantee)
    other_options: tuple[str, ...] = (MAX_STANDBY_STEPS,)

    def assign(self, problem: AssignmentProblem) -> Plan:
        """See `Assignor.assign`. Raises FieldError when the problem contradicts itself, or an
        option is unsound or none of its own.
        """
        thresholds = Thresholds.of(problem.settings, self.other_options)
        max_standby_steps(problem.settings)
        balance = LoadTarget(IndexedProblem(problem, behaviour=self.behaviour), thresholds, problem.memory)
        plan = hand_over(balance.indexed, balance)
        return attrs.evolve(
            plan,
            reasons={task: balance.reason(task, reason) for task, reason in plan.reasons.items()},
            memory=balance.memory(),
            watching=sum(not member.leaving for member in problem.members) > 1,
            load=balance.summary(plan),
        )


class LoadBalanced2(LoadBalanced):
    """Behaviour version 2."""

    version = 2
    behaviour = VERSION_2
    other_options = ()


class LoadBalanced1(LoadBalanced):
    """Behaviour version 1."""

    version = 1
    behaviour = VERSION_1
    other_options = ()
    guarantees = GUARANTEES_1
