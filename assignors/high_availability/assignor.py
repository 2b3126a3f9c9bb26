"""The class of the assignor `high_availability`: balance by number of tasks."""

from __future__ import annotations

from collections.abc import Mapping

from equipoise.assignors.common import options
from equipoise.assignors.common.assignor import Guarantee
from equipoise.assignors.common.bounds import moves_lower_bound
from equipoise.assignors.common.handover import GUARANTEES_1, hand_over
from equipoise.assignors.common.indexed_problem import NEWEST, VERSION_1, VERSION_2, IndexedProblem
from equipoise.assignors.common.plan import Plan
from equipoise.assignors.common.problem import AssignmentProblem
from equipoise.assignors.common.shares import Shares
from equipoise.assignors.common.standby_goal import MAX_STANDBY_STEPS, max_standby_steps
from equipoise.assignors.common.stateless import least_loaded
from equipoise.assignors.common.target import Candidates, Target, adopted_target, constrained_balanced_assignment
from equipoise.assignors.common.transport import SOLVER
from equipoise.events.tasks import TaskId


class HighAvailability:
    """KIP-441. Pure and without memory: movements in flight are part of the problem."""

    name = "high_availability"
    version = 3
    behaviour = NEWEST
    solver = SOLVER
    guarantees = frozenset(Guarantee)
    announced = False
    """Whether a copy is ready only when its member declares it so, whatever its lag."""
    options: tuple[str, ...] = (MAX_STANDBY_STEPS,)
    """Names of its options in `GroupSettings.options`."""

    def assign(self, problem: AssignmentProblem) -> Plan:
        """See `Assignor.assign`. Raises FieldError when the problem contradicts itself, or for an
        unknown or unsound option.
        """
        options.known_only(problem.settings, self.name, self.options)
        max_standby_steps(problem.settings)
        indexed = IndexedProblem(problem, announced=self.announced, behaviour=self.behaviour)
        return hand_over(indexed, _Counts(indexed))


class HighAvailability2(HighAvailability):
    """Behaviour version 2."""

    version = 2
    behaviour = VERSION_2
    options = ()


class HighAvailability1(HighAvailability):
    """Behaviour version 1."""

    version = 1
    behaviour = VERSION_1
    options = ()
    guarantees = GUARANTEES_1


class _Counts:
    """Balance by number of tasks."""

    def __init__(self, indexed: IndexedProblem) -> None:
        self._indexed = indexed
        self._shares = Shares(indexed)
        self._spread = not indexed.behaviour.subtopologies_apart and len(self._shares.kinds) > 1
        """Whether sub-topologies are spread: one alone is as even as all its tasks."""

    def target(self, candidates: Mapping[TaskId, Candidates], settled: Mapping[TaskId, str]) -> Target:
        spread = self._spread
        return adopted_target(self._indexed, self._shares, candidates, settled, even_parts=spread, preferred_first=spread)

    def owners_for_now(self, candidates: Mapping[TaskId, Candidates], running: Mapping[TaskId, str]) -> Mapping[TaskId, str]:
        return constrained_balanced_assignment(self._indexed, self._shares, candidates, running)

    def stateless_for_now(self, candidates: Mapping[TaskId, Candidates], running: Mapping[TaskId, str]) -> Mapping[TaskId, str]:
        return least_loaded(self._indexed, candidates, running)

    def imbalance(self, owner: Mapping[TaskId, str]) -> int:
        return self._shares.imbalance(owner)

    def moves_lower_bound(
        self, candidates: Mapping[TaskId, Candidates], settled: Mapping[TaskId, str], now: Mapping[TaskId, str], target: Mapping[TaskId, str]
    ) -> int:
        return moves_lower_bound(self._indexed, self._shares, candidates, settled, balanced=self.imbalance(target) == 0)
