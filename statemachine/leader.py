"""The leader asks the assignor and turns its plan into decisions.

A cause begins a round (see `context.CAUSES`), at most one per step. A round adds to the movements
in flight and never replaces them (docs/protocol.md#d9): they are part of the assignor's problem.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from equipoise.assignors import AssignmentProblem, Assignor, Movement, MovementState, Plan, Reason
from equipoise.assignors.common.validation import plan_faults
from equipoise.events import parts
from equipoise.events.decisions import REACHED, AssignmentIssued, AssignmentProposed, BalanceEvaluated, MemberAssigned, Move, ProposedMember
from equipoise.events.errors import GroupHalted
from equipoise.events.tasks import TaskId
from equipoise.statemachine import actions, restarts
from equipoise.statemachine.deadlines import NO_TASK, Timer
from equipoise.statemachine.restart_view import as_it_is, with_all_present
from equipoise.statemachine.round_problem import build_problem
from equipoise.statemachine.state import GroupState, MemberState, known_lag
from equipoise.statemachine.step_context import CAUSES, NATURAL, NEWS, StepContext


def decide(context: StepContext, assignor: Assignor, offset: int) -> None:
    """Runs one round of a group that has members and leads itself: asks the assignor, applies its
    plan to the state and emits the decisions.

    Raises GroupHalted when the plan is invalid; the last one stays in force (docs/protocol.md#l6).
    """
    state = context.state
    if state.restarts:
        restarts.lend(state)
    problem = build_problem(state, follow_up=context.causes.isdisjoint(NEWS), anew="deal_requested" in context.causes)
    if state.restarts:
        problem = with_all_present(state, problem)
    plan = context.plan = ask(state, assignor, problem, offset)
    given_up: list[TaskId] = []
    if state.restarts:
        plan, given_up = as_it_is(state, problem, plan)
    for task in given_up:
        actions.let_go(state, state.members[state.owner[task]], task)
        context.forget_wait(task)
    passed_on = _apply(context, plan)
    for task in given_up:
        if task not in state.lent:  # it moves for good
            actions.set_previous_owner(state, task, None)
    _schedule(context, plan)
    natural = bool(context.causes & NATURAL)
    if not plan.probing and not plan.watching:
        actions.set_probing(state, None)
    elif natural or state.probing_deadline_ms is None:
        actions.set_probing(state, state.later_ms(state.settings.probing_interval_ms))
        context.deadlines.watch(Timer.PROBING)
    if passed_on and not state.in_flight:
        actions.set_probing(state, state.now_ms)  # no report will tell that the movement is complete, so the next record begins a round
        context.deadlines.watch(Timer.PROBING)
    _end_slot_backoffs(context)
    note_verdict(context, plan)


def propose(context: StepContext, assignor: Assignor, offset: int) -> None:
    """Emits what this leader would have decided instead of the observed assignment, from the state
    before it (docs/protocol.md#d7).

    Applies nothing. `active` of a member is the target of the plan; `moves` lead there.
    """
    state = context.state
    plan = context.plan = ask(state, assignor, build_problem(state), offset)
    proposed = AssignmentProposed(
        generation=state.generation,
        members=tuple(
            ProposedMember(member_id=name, active=plan.target[name], standby=part.standby, warmup=part.warmup) for name, part in plan.members.items()
        ),
        moves=tuple(move_of(plan, movement) for movement in sorted(plan.movements, key=lambda movement: movement.task)),
        probing=plan.probing,
        unique=plan.unique,
    )
    context.emitted += parts.split(proposed, context.most_event_bytes)


@contextlib.contextmanager
def only_exceptions(assignor: Assignor) -> Iterator[None]:
    """Raises what an assignor raises as an Exception. SystemExit and the like would end the leader
    of all groups, and not its own alone.
    """
    try:
        yield
    except (Exception, KeyboardInterrupt):  # the second: Ctrl-C, or SIGTERM
        raise
    except BaseException as error:
        raise RuntimeError(f"assignor {assignor.name} {assignor.version} raised {type(error).__name__}: {error}") from error


def ask(state: GroupState, assignor: Assignor, problem: AssignmentProblem, offset: int) -> Plan:
    """The assignor's plan. Raises GroupHalted when it is invalid."""
    with only_exceptions(assignor):
        plan = assignor.assign(problem)
    faults = plan_faults(problem, plan, assignor.guarantees)
    if faults:
        problem_text = f"the plan of {assignor.name} {assignor.version} does not hold: {faults[0]}; the last one stays in force"
        raise GroupHalted(state.group, offset, "plan_invalid", problem_text)
    return plan


def _apply(context: StepContext, plan: Plan) -> bool:
    """Applies the plan. Returns whether untold tasks were passed on, so that fewer movements are in
    flight than the plan has.
    """
    state = context.state
    untold: list[TaskId] = []
    gathering = _gather(context, plan)
    _apply_movements(context, plan)
    for member_id in sorted(state.members):
        member = state.members[member_id]
        part = plan.members[member_id]
        keep = () if member_id in gathering else part.active
        for task in sorted(member.active.keys() - keep):
            if member.is_untold(task):
                actions.take_back(state, member, task)
                untold.append(task)
                continue
            actions.revoke(state, member, task)
            context.changed.add(member_id)
            context.deadlines.watch(Timer.REVOCATION, (member_id, NO_TASK))
    onward = {movement.task: movement.destination for movement in plan.movements}
    for member_id in sorted(state.members):
        member = state.members[member_id]
        part = plan.members[member_id]
        granted = [task for task in part.active if task not in member.active] if member_id not in gathering else []
        if granted or part.standby or part.warmup or member.standby or member.warmup:
            acceptable = state.acceptable_lag(member)  # as the plan saw it: before any grant
            for task in granted:
                reason = plan.reasons.get(task)
                if reason is None or onward.get(task, member_id) != member_id:
                    reason = placed(state, member, task, acceptable)  # the plan's reason belongs to the movement that begins at once
                context.grant(member, task)
                _note_grant(context, reason, member, task)
            _apply_copies(context, member, set(part.standby), set(part.warmup), acceptable)
        if _may_go(state, member):
            actions.release_member(member, keeps_copies=not member.leaving)
            context.changed.add(member_id)
        elif member.released and not member.leaving and not state.is_restarting(member_id):
            actions.readmit(member)
    for task in untold:
        context.regrant_untold(task)
    for member_id in sorted(gathering):
        context.grant_all_eager(state.members[member_id])
    return bool(untold)


def _schedule(context: StepContext, plan: Plan) -> None:
    """Notes which lost tasks wait until when, and schedules the round that assigns them."""
    state = context.state
    for task, lost in sorted(state.lost.items()):
        until_ms = plan.lost_until_ms.get(task)
        if until_ms is not None and until_ms != lost.until_ms:
            context.note(Move(task=task, source=state.previous_owners.get(task), destination=None, state="waiting", reason=plan.reasons[task].code))
        actions.postpone_lost(lost, until_ms)
    actions.remember_plan(state, plan.revocations, plan.memory)
    if plan.scheduled_ms != state.scheduled_ms:
        actions.schedule(state, plan.scheduled_ms)
        context.rescheduled = plan.scheduled_ms is not None
        context.deadlines.watch(Timer.SCHEDULED)


def _end_slot_backoffs(context: StepContext) -> None:
    """Ends the slot back-offs when no movement waits for a slot: the next record begins a round."""
    state = context.state
    waiting = [] if state.queued else [name for name, member in state.members.items() if member.slot_backoff is not None]
    for member_id in sorted(waiting):
        backoff = state.members[member_id].slot_backoff
        if backoff is not None and not backoff.over:
            actions.cut_slot_backoff(state, backoff)
            context.deadlines.watch(Timer.SLOT_BACKOFF, (member_id, NO_TASK))


def _gather(context: StepContext, plan: Plan) -> set[str]:
    """Members of the eager protocol whose tasks change: each gives up all its tasks and is then
    granted all its new ones together (KIP-415, protocol `eager`).

    An eager member without tasks, for which nobody has to give anything up, is granted its tasks
    like any other. A leaving member is not granted what it gives up.
    """
    state = context.state
    coming = {movement.destination for movement in plan.movements if movement.state is MovementState.REVOKING and movement.source is not None}
    gathering: set[str] = set()
    for member_id in sorted(name for name, member in state.members.items() if member.eager):
        member = state.members[member_id]
        if state.is_restarting(member_id):
            continue
        active = plan.members[member_id].active
        has = bool(member.revoking) or any(not member.is_untold(task) for task in member.active)
        gathers = member_id in coming or (has and set(active) != set(member.active))
        wanted = active if gathers and not member.leaving else ()
        for task in sorted(set(member.eager_regrants).difference(active if not gathers else wanted)):
            context.drop_eager_regrant(member, task, "not_wanted")
        if not gathers:
            actions.clear_eager_regrants(member)
            continue
        gathering.add(member_id)
        for task in wanted:
            taken_back = task in member.active and member.is_untold(task)
            if taken_back or task not in member.eager_regrants:
                had_it = context.take_back(member, task) if taken_back else task in state.owner
                actions.add_eager_regrant(member, task, had_it=had_it)
                source = member_id if had_it else None
                context.note_eager_regrant(Move(task=task, source=source, destination=member_id, state="revoking", reason="eager"))
    return gathering


def _apply_movements(context: StepContext, plan: Plan) -> None:
    state = context.state
    before = actions.clear_movements(state)
    for movement in sorted(plan.movements, key=lambda movement: movement.task):
        if movement.state is MovementState.WAITING:
            actions.count_waiting(state)
            if plan.reasons[movement.task].code == "slot_full":
                actions.queue(state, movement)
            continue
        actions.begin_movement(state, movement)
        if before.get(movement.task) != movement:
            context.note(move_of(plan, movement))
            context.deadlines.watch(Timer.STALL, (movement.destination, movement.task))
    for task in sorted(task for task in before if task not in state.in_flight):
        gone = before[task]
        if task in state.members[gone.destination].eager_regrants:
            continue  # the eager member gets it with its other tasks
        context.note(Move(task=task, source=gone.source, destination=gone.destination, state="cancelled", reason="not_wanted"))


def move_of(plan: Plan, movement: Movement) -> Move:
    """The movement with its reason in the plan."""
    reason = plan.reasons[movement.task]
    return Move(
        task=movement.task,
        source=movement.source,
        destination=movement.destination,
        state=movement.state.value,
        reason=reason.code,
        lag_records=reason.lag_records,
    )


def placed(state: GroupState, member: MemberState, task: TaskId, acceptable: int) -> Reason:
    """Returns why this member gets a task that nobody ran."""
    topology = state.topology
    assert topology is not None, "a granted task is one of the topology"
    part = next(part for part in topology.subtopologies if part.subtopology == task.subtopology)
    if task in member.revoking:
        return Reason(code="taken_back")
    if state.previous_owners.get(task) == member.member_id:
        code = "return_home"
    elif not part.stateful:
        code = "unowned_stateless"
    else:
        code = "unowned" if member.is_caught_up(task, acceptable) else "unowned_cold"
    lag = known_lag(member.lags.get(task))
    return Reason(code=code, lag_records=lag if lag is not None or not part.stateful else state.end_offset(task, part))


def _note_grant(context: StepContext, reason: Reason, member: MemberState, task: TaskId) -> None:
    previous_owner = context.state.previous_owners.get(task)
    source = previous_owner if previous_owner != member.member_id else None
    context.note(Move(task=task, source=source, destination=member.member_id, state="granted", reason=reason.code, lag_records=reason.lag_records))


def _apply_copies(context: StepContext, member: MemberState, standby: set[TaskId], warmup: set[TaskId], acceptable: int) -> None:
    state = context.state
    if member.standby != standby:
        actions.set_standbys(member, standby)
        context.changed.add(member.member_id)
    for task in sorted(set(member.warmup) - warmup):
        actions.end_warmup(member, task)
        context.changed.add(member.member_id)
    for task in sorted(warmup - set(member.warmup)):
        actions.begin_warmup(state, member, task, caught_up=member.is_caught_up(task, acceptable))
        context.changed.add(member.member_id)
        context.deadlines.watch(Timer.STALL, (member.member_id, task))


def note_verdict(context: StepContext, plan: Plan) -> None:
    """Emits the verdict on the balance of the group when it has changed."""
    state = context.state
    in_flight = [movement.state for movement in plan.movements]
    available = in_flight.count(MovementState.REVOKING)
    if not plan.movements:
        verdict = "blocked" if plan.lost_until_ms or plan.ask_again_ms is not None else REACHED
        if plan.probing and any(part.revoke for part in plan.members.values()):
            verdict = "moving"  # the next round names the destination
    elif available:
        verdict = "moving"
    elif MovementState.WARMING in in_flight:
        verdict = "warming"
    else:
        verdict = "blocked"
    evaluated = (verdict, available, len(plan.movements), plan.imbalance_now, plan.cost.imbalance)
    if evaluated != state.verdict:
        actions.set_verdict(state, evaluated)
        context.emitted.append(
            BalanceEvaluated(
                verdict=verdict,
                available_movements=available,
                planned_movements=len(plan.movements),
                imbalance_before=plan.imbalance_now,
                imbalance_after=plan.cost.imbalance,
            )
        )
    context.unique = context.unique and plan.unique


def settle(context: StepContext) -> None:
    """Completes a hand-over without a round: releases the members that may go."""
    for member_id in sorted(context.changed):
        member = context.state.members[member_id]
        if _may_go(context.state, member):
            actions.release_member(member, keeps_copies=not member.leaving)


def _may_go(state: GroupState, member: MemberState) -> bool:
    """Returns whether the member is to be released now: it was emptied, or it restarts and has lent
    what it is to lend.
    """
    return not member.released and (state.may_stop(member) or (member.leaving and member.owns_nothing()))


def issue(context: StepContext) -> None:
    """Emits one AssignmentIssued and one MemberAssigned per changed member, by member id; long ones
    in parts.
    """
    state = context.state
    members = tuple(sorted(name for name in context.changed if not state.is_away(name)))
    if not members and not context.moves and not context.rescheduled:
        return
    actions.begin_generation(state)
    cause = next((cause for cause in CAUSES if cause in context.causes), "hold_over" if context.lifted else "handover")
    moves = tuple(context.moves[place] for place in sorted(context.moves))
    delay_ms = 0 if state.scheduled_ms is None else max(0, state.scheduled_ms - state.now_ms)
    issued = AssignmentIssued(
        generation=state.generation,
        cause=cause,
        members=members,
        moves=moves,
        probing=state.probing_deadline_ms is not None,
        scheduled_delay_ms=delay_ms,
        unique=context.unique,
    )
    context.emitted += parts.split(issued, context.most_event_bytes)
    for member_id in members:
        member = state.members[member_id]
        actions.begin_epoch(member)
        active = tuple(sorted(member.active))
        assigned = MemberAssigned(
            member_id=member_id,
            incarnation=member.incarnation,
            assignment_epoch=member.issued_epoch,
            active=active,
            standby=tuple(sorted(member.standby)),
            warmup=tuple(sorted(member.warmup)),
            revoke=tuple(sorted(member.revoking)),
            tokens=tuple(state.tokens[task] for task in active),
            hold_ms={task: state.holds[task] for task in active if task in state.holds},
            released=member.released,
            acceptable_recovery_lag=state.settings.acceptable_recovery_lag if member.follows else None,
            acceptable_recovery_ms=state.settings.acceptable_recovery_ms if member.follows else None,
        )
        context.emitted += parts.split(assigned, context.most_event_bytes)
