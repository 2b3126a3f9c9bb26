"""The assignor `learner`: smooth scaling as its proposal tells it. A *learner* is a copy that
restores in order to take over; its member says itself when it is ready (`TaskReady`), and the task
moves then, and not before.

::

    who is learned by whom     the target of high_availability: balanced, by the fewest moves
    learner                    a warm-up: a copy of the task on its destination
    being learned              the task's owner runs on
    ready                      the destination's own word; a lag, however small, is none
    scale down                 a leaving member's tasks are learned by those who stay; it is released when it has nothing left
    stateless                  in two phases: revoked, then assigned (KIP-415); there is nothing to learn

What nobody runs goes to whoever is soonest ready, by reported lags: waiting for a word would be
waiting without need.

Where this does better than the proposal: there, owners give up every task that is being learned
whenever a rebalance begins, so that a hand-over needs one rebalance and not two; whoever is not
ready yet costs its task a stop, at each rebalance again. Here only the task whose learner is ready
is given up. With the option `strict` it is done as in the proposal, to be compared.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from equipoise.assignors import options
from equipoise.assignors.high_availability import GUARANTEES_1, HighAvailability
from equipoise.assignors.problem import AssignmentProblem, Member, Movement, MovementState, Plan, Reason
from equipoise.assignors.situation import VERSION_1
from equipoise.events.tasks import LagSentinel, TaskId

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
        going_on = [_learning_goes_on(problem, movement) for movement in problem.in_flight]
        question = attrs.evolve(problem, in_flight=(*going_on, *_taken_again(problem)))
        return _given_up_by_owners(problem, super().assign(question), given_back if problem.follow_up else given_back | learned)


class Learner1(Learner):
    """As it decided before."""

    version = 1
    behaviour = VERSION_1
    guarantees = GUARANTEES_1


def _learning_goes_on(problem: AssignmentProblem, movement: Movement) -> Movement:
    """Behind a task that its owner gives up and takes again, its learner goes on learning."""
    if movement.source is None or movement.source != movement.destination:
        return movement
    copies = [member for member in problem.members if movement.task in (*member.warmup, *member.standby) and not member.leaving]
    if not copies:
        return movement
    learner = min(copies, key=lambda member: (movement.task not in member.warmup, movement.task not in member.ready, _behind(member, movement.task)))
    return attrs.evolve(movement, destination=learner.id, state=MovementState.WARMING)


def _taken_again(problem: AssignmentProblem) -> Iterator[Movement]:
    """Tasks that their owners have just taken again: whoever learns them goes on, and keeps its
    slot.

    Where there are standbys a warm-up may be one to be; then only the target says who goes on.
    """
    owner = {task: member.id for member in problem.members for task in member.active}
    known = {movement.task for movement in problem.in_flight}
    for member in sorted(problem.members, key=lambda member: member.id):
        for task in sorted(member.warmup):
            if task in owner and task not in known and not problem.settings.num_standbys:
                known.add(task)
                yield Movement(task=task, source=owner[task], destination=member.id, state=MovementState.WARMING)


def _behind(member: Member, task: TaskId) -> tuple[bool, int, str]:
    lag = member.lags.get(task)
    return (False, lag, member.id) if isinstance(lag, int) else (True, 0, member.id)


def _given_up_by_owners(problem: AssignmentProblem, plan: Plan, learned: set[TaskId] | frozenset[TaskId]) -> Plan:
    """The plan, but that the owners of these tasks, where they are learned and nobody is ready yet,
    give them up and take them again.
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


def _runs(owner: Member, task: TaskId) -> bool:
    """It runs the task and may have it again; who is leaving gives nothing up before its learner is
    ready.
    """
    return not owner.leaving and owner.knows(task) and task in owner.active and owner.lags.get(task) is LagSentinel.ACTIVE
