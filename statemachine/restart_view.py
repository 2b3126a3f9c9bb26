"""The assignor's problem while members restart, and its plan in terms of what is so
(docs/protocol.md#m12).

An assignor knows nothing of restarts. It sees each such member as if it were there and ran all its
tasks, also those that it has lent. So it moves nothing for balance that would have to come back,
and leaves standbys where they are. What its plan has these members gain is left out.
"""

from __future__ import annotations

from collections.abc import Collection

import attrs

from equipoise.assignors import AssignmentProblem, MemberSpec, Movement, MovementState, Plan, Reason
from equipoise.assignors.common.plan import MemberPlan
from equipoise.events.tasks import LagSentinel, TaskId
from equipoise.statemachine import restarts
from equipoise.statemachine.state import GroupState, Lent, MemberState, known_lag


def _lent(state: GroupState) -> dict[TaskId, Lent]:
    """Loans of members that are not back, in rising order."""
    return {task: lent for task, lent in sorted(state.lent.items()) if state.is_restarting(lent.home)}


def with_all_present(state: GroupState, problem: AssignmentProblem) -> AssignmentProblem:
    """The problem as if no member restarted."""
    lent = _lent(state)
    if not lent:
        return problem
    return attrs.evolve(
        problem,
        members=tuple([_present(state, member, lent) for member in problem.members]),
        in_flight=tuple([movement for movement in problem.in_flight if movement.task not in lent]),
    )


def _present(state: GroupState, member: MemberSpec, lent: dict[TaskId, Lent]) -> MemberSpec:
    gave = [task for task, loan in lent.items() if loan.home == member.id]
    took = [task for task, loan in lent.items() if loan.borrower == member.id]
    if not gave and not took:
        return member
    standby = {*member.standby, *(task for task in took if lent[task].as_standby)}
    stateful = {task for task in took if state.is_stateful(task)}
    lags = {**member.lags, **dict.fromkeys(gave, LagSentinel.ACTIVE), **dict.fromkeys(sorted(stateful), 0)}
    return attrs.evolve(
        member,
        active=tuple(sorted({*member.active, *gave}.difference(took))),
        standby=tuple(sorted(standby)),
        lags={task: lag for task, lag in sorted(lags.items()) if task in stateful or task not in took},
        ready=member.ready | stateful,
        previously_owned=member.previously_owned.difference(lent),
    )


class _Parts:
    """The parts of a plan, to change."""

    def __init__(self, plan: Plan) -> None:
        self.actives = {name: set(part.active) for name, part in plan.members.items()}
        self.standbys = {name: set(part.standby) for name, part in plan.members.items()}
        self.warmups = {name: set(part.warmup) for name, part in plan.members.items()}
        self.revokes = {name: set(part.revoke) for name, part in plan.members.items()}
        self.movements: list[Movement] = []
        self.reasons = dict(plan.reasons)

    def keep(self, member_id: str, task: TaskId) -> None:
        self.revokes[member_id].discard(task)
        self.actives[member_id].add(task)

    def run(self, member_id: str, task: TaskId) -> None:
        self.actives[member_id].add(task)
        self.standbys[member_id].discard(task)
        self.warmups[member_id].discard(task)

    def drop(self, member_id: str, task: TaskId) -> None:
        self.actives[member_id].discard(task)
        self.revokes[member_id].discard(task)

    def give_elsewhere(self, member_id: str, task: TaskId) -> None:
        """The member does not get the task, and so it does not move on from there."""
        self.actives[member_id].discard(task)
        self.reasons.pop(task, None)
        for movement in self.movements:
            if movement.task == task:
                self.warmups[movement.destination].discard(task)
        self.movements = [movement for movement in self.movements if movement.task != task]

    def members(self) -> dict[str, MemberPlan]:
        return {
            name: MemberPlan(
                active=tuple(sorted(active)),
                standby=tuple(sorted(self.standbys[name])),
                warmup=tuple(sorted(self.warmups[name])),
                revoke=tuple(sorted(self.revokes[name])),
            )
            for name, active in self.actives.items()
        }


def as_it_is(state: GroupState, problem: AssignmentProblem, plan: Plan) -> tuple[Plan, list[TaskId]]:
    """The plan for `with_all_present`, in terms of what is so, and the tasks that members that are
    away give up to it at once, in rising order. Raises nothing: `plan` is valid for `problem`.
    """
    staying_away = {member.id for member in problem.members if state.is_restarting(member.id)}
    lent = _lent(state)
    parts = _Parts(plan)
    free: list[TaskId] = []
    for movement in plan.movements:
        if movement.task not in lent and movement.destination not in staying_away:
            _carry_on(state, parts, movement, free)
            continue
        parts.warmups[movement.destination].discard(movement.task)
        if movement.state is MovementState.REVOKING and movement.source is not None:
            parts.keep(movement.source, movement.task)
        if movement.task not in lent and movement.source is not None and state.members[movement.source].leaving:
            _move_elsewhere(state, parts, movement.source, movement.task)
    had = {member.id: frozenset(member.active) for member in problem.members if member.id in staying_away}
    for name in sorted(staying_away):
        _gains_nothing(state, parts, state.members[name], had[name])
    for task, loan in lent.items():
        _lend(state, parts, task, loan, free)
    return attrs.evolve(plan, members=parts.members(), movements=tuple(parts.movements), reasons=dict(sorted(parts.reasons.items()))), sorted(free)


def _carry_on(state: GroupState, parts: _Parts, movement: Movement, free: list[TaskId]) -> None:
    """A movement that no loan concerns. A member that is away gives the task up at once; one that
    was released, when it is away.
    """
    source, task = movement.source, movement.task
    if source is None or movement.state is not MovementState.REVOKING or not state.is_restarting(source) or task in state.members[source].revoking:
        parts.movements.append(movement)
    elif not state.is_away(source):
        stopping = state.members[source].released
        parts.movements.append(attrs.evolve(movement, state=MovementState.WARMING) if stopping else movement)
        if stopping:
            parts.keep(source, task)
    elif state.members[movement.destination].eager:
        parts.keep(source, task)
        parts.warmups[movement.destination].discard(task)
    else:
        parts.drop(source, task)
        parts.run(movement.destination, task)
        free.append(task)


def _move_elsewhere(state: GroupState, parts: _Parts, source: str, task: TaskId) -> None:
    """A member leaves, and one that restarts would get its task: another one gets it."""
    able = _able(state, parts, task)
    if not able:
        return
    (is_behind, *_), destination = able[0]
    if is_behind and not state.members[source].drain_expired:
        if task not in parts.standbys[destination]:
            if not _has_slot(state, parts, destination):
                return
            parts.warmups[destination].add(task)
        what = MovementState.WARMING
    else:
        parts.actives[source].discard(task)
        parts.revokes[source].add(task)
        what = MovementState.REVOKING
    parts.movements.append(Movement(task=task, source=source, destination=destination, state=what))
    parts.reasons[task] = Reason(code="leaving", lag_records=known_lag(state.members[destination].lags.get(task)))


def _has_slot(state: GroupState, parts: _Parts, member_id: str) -> bool:
    """Returns whether another warm-up may begin on the member."""
    settings = state.settings
    used = sum(map(len, parts.warmups.values()))
    return used < settings.max_warmups and len(parts.warmups[member_id]) < settings.max_warmups_per_member


def _able(state: GroupState, parts: _Parts, task: TaskId) -> list[tuple[tuple[bool, int, bool, int], str]]:
    """Members that are there and may run the task, with their ranks, the best first."""
    staying = [member for member in state.members.values() if not state.is_restarting(member.member_id) and not member.leaving]
    return sorted((_rank(state, parts, member, task), member.member_id) for member in staying if restarts.knows(state, member, task))


def _gains_nothing(state: GroupState, parts: _Parts, member: MemberState, had: Collection[TaskId]) -> None:
    """What the plan has the member gain goes to a member that is there, or waits."""
    name = member.member_id
    moving = {movement.task for movement in parts.movements}
    for task in sorted(parts.revokes[name] - moving - member.revoking.keys()):
        parts.keep(name, task)  # revoked with no destination yet, as some assignors do
    if member.eager:  # what it gives up now it could take again only with all its tasks
        parts.actives[name] -= member.revoking.keys()
    parts.standbys[name] &= member.standby
    parts.warmups[name] &= member.warmup.keys()
    for task in sorted(parts.actives[name].difference(had)):
        parts.give_elsewhere(name, task)
        able = _able(state, parts, task)
        if able and (not able[0][0][0] or member.released or member.eager or task not in member.lags):
            parts.run(able[0][1], task)
        elif not (member.released or member.eager):  # it has not stopped yet, and nobody else is caught up
            parts.actives[name].add(task)


def _rank(state: GroupState, parts: _Parts, member: MemberState, task: TaskId) -> tuple[bool, int, bool, int]:
    """Less is better: whether it is behind, records to restore, whether it keeps crashing, then
    tasks for its capacity.
    """
    lag = known_lag(member.lags.get(task))
    ready = not state.is_stateful(task) or member.is_caught_up(task, state.acceptable_lag(member))
    restores = 0 if ready else state.records(task) if lag is None else lag
    return not ready, restores, state.is_crash_looping(member.member_id), len(parts.actives[member.member_id]) * 1_000_000 // member.capacity


def _lend(state: GroupState, parts: _Parts, task: TaskId, loan: Lent, free: list[TaskId]) -> None:
    """The borrower has the task, or gets it as soon as its home has given it up."""
    parts.drop(loan.home, task)
    owner = state.owner.get(task)
    lag = known_lag(state.members[loan.borrower].lags.get(task))
    if owner == loan.home and not state.is_away(loan.home):
        parts.revokes[loan.home].add(task)
        parts.movements.append(Movement(task=task, source=loan.home, destination=loan.borrower, state=MovementState.REVOKING))
        parts.reasons[task] = Reason(code="lent", lag_records=lag)
        return
    parts.run(loan.borrower, task)
    if owner == loan.home:
        free.append(task)
        parts.reasons[task] = Reason(code="lent", lag_records=lag)
