"""The class of the assignor `learner`."""

from __future__ import annotations

import attrs

from equipoise.assignors.common import options
from equipoise.assignors.common.handover import GUARANTEES_1
from equipoise.assignors.common.indexed_problem import VERSION_1, VERSION_2
from equipoise.assignors.common.plan import Plan
from equipoise.assignors.common.problem import AssignmentProblem, MovementState
from equipoise.assignors.common.standby_goal import MAX_STANDBY_STEPS
from equipoise.assignors.high_availability import HighAvailability
from equipoise.assignors.learner.strict import given_up_by_owners, learning_goes_on, taken_again

STRICT = "strict"


class Learner(HighAvailability):
    """Readiness by a member's word. Pure and without memory: movements in flight are part of the
    problem.

    Option `strict` (default false): at every rebalance owners give up each task that is being
    learned and take it again, as in the proposal. A rebalance is a round with new input: a join, a
    leave, a word of readiness; a follow-up round is none. Leaving members keep their tasks until
    the learner is ready, as in the proposal's own tables.
    """

    name = "learner"
    version = 3
    announced = True
    options: tuple[str, ...] = (STRICT, MAX_STANDBY_STEPS)

    def assign(self, problem: AssignmentProblem) -> Plan:
        """See `Assignor.assign`. Raises FieldError when the problem contradicts itself, or for an
        unknown or unsound option.
        """
        if not options.flag(problem.settings, STRICT):
            return super().assign(problem)
        given_back = {movement.task for movement in problem.in_flight if movement.source == movement.destination}
        learned = frozenset(movement.task for movement in problem.in_flight if movement.state is MovementState.WARMING)
        going_on = [learning_goes_on(problem, movement) for movement in problem.in_flight]
        question = attrs.evolve(problem, in_flight=(*going_on, *taken_again(problem)))
        return given_up_by_owners(problem, super().assign(question), given_back if problem.follow_up else given_back | learned)


class Learner2(Learner):
    """Behaviour version 2."""

    version = 2
    behaviour = VERSION_2
    options = (STRICT,)


class Learner1(Learner):
    """Behaviour version 1."""

    version = 1
    behaviour = VERSION_1
    options = (STRICT,)
    guarantees = GUARANTEES_1
