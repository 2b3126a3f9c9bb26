"""The class of the assignor `learner`."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from equipoise.assignors.common import options
from equipoise.assignors.common.handover import GUARANTEES_1
from equipoise.assignors.common.indexed_problem import VERSION_1, VERSION_2
from equipoise.assignors.common.plan import Plan, Reason
from equipoise.assignors.common.problem import AssignmentProblem, MemberSpec, Movement, MovementState
from equipoise.assignors.common.standby_goal import MAX_STANDBY_STEPS
from equipoise.assignors.high_availability import HighAvailability
from equipoise.events.tasks import LagSentinel, TaskId

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


# Option `strict`: owners give up what is being learned at every rebalance, as in the proposal.


def learning_goes_on(problem: AssignmentProblem, movement: Movement) -> Movement:
    """The movement; where the owner gives the task up and takes it again, with the learner as
    destination, which goes on learning.
    """
    if movement.source is None or movement.source != movement.destination:
        return movement
    copies = [member for member in problem.members if movement.task in (*member.warmup, *member.standby) and not member.leaving]
    if not copies:
        return movement
    learner = min(copies, key=lambda member: (movement.task not in member.warmup, movement.task not in member.ready, _behind(member, movement.task)))
    return attrs.evolve(movement, destination=learner.id, state=MovementState.WARMING)


def taken_again(problem: AssignmentProblem) -> Iterator[Movement]:
    """Movements of tasks that their owners have just taken again: the learner goes on and keeps its
    slot.

    With standbys a warm-up may be a future standby; then only the target says which copy goes on.
    """
    owner = {task: member.id for member in problem.members for task in member.active}
    known = {movement.task for movement in problem.in_flight}
    for member in sorted(problem.members, key=lambda member: member.id):
        for task in sorted(member.warmup):
            if task in owner and task not in known and not problem.settings.num_standbys:
                known.add(task)
                yield Movement(task=task, source=owner[task], destination=member.id, state=MovementState.WARMING)


def _behind(member: MemberSpec, task: TaskId) -> tuple[bool, int, str]:
    lag = member.lags.get(task)
    return (False, lag, member.id) if isinstance(lag, int) else (True, 0, member.id)


def given_up_by_owners(problem: AssignmentProblem, plan: Plan, learned: set[TaskId] | frozenset[TaskId]) -> Plan:
    """The plan in which the owners of `learned` tasks, while no learner is ready, give them up and
    take them again.
    """
    members = {member.id: member for member in problem.members}
    movements: list[Movement] = []
    reasons = dict(plan.reasons)
    parts = dict(plan.members)
    for movement in plan.movements:
        source = movement.source
        if source is None or movement.task not in learned or movement.state is not MovementState.WARMING or not _runs(members[source], movement.task):
            movements.append(movement)
            continue
        movements.append(attrs.evolve(movement, destination=source, state=MovementState.REVOKING))
        reasons[movement.task] = Reason(code="being_learned", lag_records=plan.reasons[movement.task].lag_records)
        part = parts[source]
        active = tuple(task for task in part.active if task != movement.task)
        parts[source] = attrs.evolve(part, active=active, revoke=tuple(sorted((*part.revoke, movement.task))))
    return attrs.evolve(plan, members=parts, movements=tuple(movements), reasons=reasons)


def _runs(owner: MemberSpec, task: TaskId) -> bool:
    """Returns whether the owner runs the task and may have it again. A leaving owner gives nothing
    up before its learner is ready.
    """
    return not owner.leaving and owner.knows(task) and task in owner.active and owner.lags.get(task) is LagSentinel.ACTIVE
