"""The class of the assignor `learner`."""

from __future__ import annotations

import attrs

from equipoise.assignors.common import options
from equipoise.assignors.common.handover import GUARANTEES_1
from equipoise.assignors.common.indexed_problem import VERSION_1
from equipoise.assignors.common.plan import Plan
from equipoise.assignors.common.problem import AssignmentProblem, MovementState
from equipoise.assignors.high_availability import HighAvailability
from equipoise.assignors.learner.strict import given_up_by_owners, learning_goes_on, taken_again

STRICT = "strict"


class Learner(HighAvailability):
    """Readiness by a member's word. Pure and without memory: what is under way stands in the
    problem.

    `knobs.options`:

    * `strict` (default False): a task that is being learned is given up at every rebalance and
      taken again by its owner, as the proposal has it. A rebalance is a round that something new
      began: a join, a leave, a word of readiness. Rounds that only follow up on what was decided
      are none. Leaving members keep what they run until its learner is ready, in the proposal's own
      tables too.
    """

    name = "learner"
    version = 2
    announced = True
    options = (STRICT,)

    def assign(self, problem: AssignmentProblem) -> Plan:
        """See `Assignor.assign`. Raises FieldError for an option that is none or unsound, and what
        high_availability raises.
        """
        if not options.flag(problem.settings, STRICT):
            return super().assign(problem)
        given_back = {movement.task for movement in problem.in_flight if movement.source == movement.destination}
        learned = frozenset(movement.task for movement in problem.in_flight if movement.state is MovementState.WARMING)
        going_on = [learning_goes_on(problem, movement) for movement in problem.in_flight]
        question = attrs.evolve(problem, in_flight=(*going_on, *taken_again(problem)))
        return given_up_by_owners(problem, super().assign(question), given_back if problem.follow_up else given_back | learned)


class Learner1(Learner):
    """As it decided before."""

    version = 1
    behaviour = VERSION_1
    guarantees = GUARANTEES_1
