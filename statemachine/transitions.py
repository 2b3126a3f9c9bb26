"""The one transition table: what each fact does in each phase of a group.

A transition gets the context and the fact. It changes the state and returns, or raises Rejected and
has changed nothing but a lease, or what is remembered of a refused join. A transition begins no
round: it notes a cause, and the machine asks the leader once per step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, get_args

import attrs

from equipoise.assignors import MovementState
from equipoise.events.decisions import MemberAsked
from equipoise.events.facts import (
    JUDGED_METRICS,
    MEASURED_KINDS,
    AssignmentObserved,
    BaseRequested,
    ChangeMeasured,
    ChangePlanned,
    DealRequested,
    Fact,
    GroupConfigured,
    GroupRejoined,
    LagReported,
    LeaveCancelled,
    LeaveIntended,
    LeaveRequested,
    MemberEnded,
    MemberJoined,
    MemberLeft,
    MemberUnchanged,
    PartitionsObserved,
    ProbingTick,
    RestartIntended,
    RoundAsked,
    SilenceObserved,
    TaskParked,
    TaskReady,
    TasksRevoked,
    TopologyDeclared,
    TroublesReported,
    Undecodable,
)
from equipoise.events.tasks import TaskId
from equipoise.statemachine import actions, rejoining, restarts, watched_change
from equipoise.statemachine.deadlines import NO_TASK, Timer
from equipoise.statemachine.loads import measured_loads
from equipoise.statemachine.rack_warnings import warn_of_racks
from equipoise.statemachine.rejections import Rejected
from equipoise.statemachine.state import GroupPhase, GroupState, MemberState, WatchedChange, fenced_key, known_lag
from equipoise.statemachine.step_context import StepContext
from equipoise.statemachine.topologies import difference

FURTHEST = 2**63
"""More records than any copy can be behind."""


def group_configured(context: StepContext, fact: GroupConfigured) -> None:
    state = context.state
    before = state.config
    _check_basis(state, fact)
    if before is not None and before.led_by != fact.led_by and state.members:
        raise Rejected("leader_change", len(state.members))
    margins = [member.lease_margin_ms for member in state.members.values()] + [fenced.lease_margin_ms for fenced in state.fenced.values()]
    if margins and fact.knobs.max_step_ms > min(margins):
        raise Rejected("step_exceeds_margin", fact.knobs.max_step_ms, min(margins))
    refusal = context.refusal_of(fact)
    if refusal is not None:
        raise Rejected(refusal)
    actions.configure(state, fact)
    if state.change is not None:
        _configure_change(context, state.change, fact)
    if before is None or before.knobs.rack_aware_tags != fact.knobs.rack_aware_tags:
        for member_id in sorted(state.members):
            warn_of_racks(context, state.members[member_id])
    if state.phase is GroupPhase.LEADING:
        _give_back_slots(context)
        if before is None or _acceptable(before) != _acceptable(fact):
            context.changed.update(name for name, member in state.members.items() if member.follows and member.issued_epoch)
    context.deadlines.rebuild()  # the leader, and the length of any timer, may have changed
    context.causes.add("configured")


def _configure_change(context: StepContext, change: WatchedChange, fact: GroupConfigured) -> None:
    """These settings carry the change out, take it back, or end it."""
    if change.undoes:
        actions.watch_change(context.state, None)
        return
    change = attrs.evolve(change, configured=change.configured + 1)
    if change.counts is None and change.configured > watched_change.carries_out(fact, change.planned):
        watched_change.conclude(context, change, watched_change.verdict_on(change.planned, "replaced"))
    else:
        actions.watch_change(context.state, change)


def _check_basis(state: GroupState, fact: GroupConfigured | ChangePlanned) -> None:
    problem = state.basis_problem(fact)
    if problem is not None:
        raise Rejected(problem)


def _acceptable(config: GroupConfigured) -> tuple[int, int]:
    """The settings by which members judge whether their copies are ready. The leader sends them to
    the members at once when they change (docs/protocol.md#m2).
    """
    return config.knobs.acceptable_recovery_lag, config.knobs.acceptable_recovery_ms


def _give_back_slots(context: StepContext) -> None:
    """Ends the warm-ups that are furthest from ready until the rest fits the lowered caps
    (docs/protocol.md#d8).

    With fewer standbys a movement to one of them may have to continue as a warm-up, so it counts as
    one.
    """
    state = context.state
    settings = state.settings
    standbys = Counter(task for member in state.members.values() for task in member.standby)
    warmups: list[tuple[bool, int, TaskId, str]] = []
    for member_id, member in state.members.items():
        moved = [task for task in member.incoming if task in member.standby and standbys[task] > settings.num_standbys]
        for task in (*member.warmup, *moved):
            lag = known_lag(member.lags.get(task))
            if context.is_apart(task):
                continue
            warmups.append((not state.is_handed_over(member, task), FURTHEST if lag is None else lag, task, member_id))
    used: dict[str, int] = {}
    kept = 0
    for may_end, _, task, member_id in sorted(warmups):
        movement = state.in_flight.get(task)
        if not may_end or (kept < settings.max_warmups and used.get(member_id, 0) < settings.max_warmups_per_member):
            kept += 1
            used[member_id] = used.get(member_id, 0) + 1
        elif movement is not None and movement.destination == member_id:
            context.cancel(task, "reconfigured")
        else:
            actions.end_warmup(state.members[member_id], task)
            context.changed.add(member_id)


def topology_declared(context: StepContext, fact: TopologyDeclared) -> None:
    newest = context.state.topology
    if newest is not None and fact.epoch <= newest.epoch:
        raise Rejected("topology_not_newer", fact.epoch, newest.epoch)
    actions.declare_topology(context.state, fact)
    context.forget_removed_tasks()
    context.causes.add("topology")


def partitions_observed(context: StepContext, fact: PartitionsObserved) -> None:
    if actions.observe_partitions(context.state, fact) and context.state.settings.rack_aware_strategy != "none":
        context.causes.add("racks")


def member_joined(context: StepContext, fact: MemberJoined) -> None:
    state = context.state
    if fact.join_nonce in state.nonces:
        raise Rejected("join_repeated")
    first = not state.members
    old = state.members.get(fact.member_id)
    if old is not None and old.incarnation == fact.incarnation:
        raise Rejected("incarnation_repeated", fact.incarnation)
    newest = state.newest_incarnation(fact.member_id)
    if newest is not None and fact.incarnation <= newest:
        raise Rejected("incarnation_too_low", fact.incarnation, newest)
    if fact.lease_margin_ms < state.settings.max_step_ms:
        raise Rejected("margin_too_small", fact.lease_margin_ms, state.settings.max_step_ms)
    if fact.lease_margin_ms >= fact.session_timeout_ms:
        raise Rejected("margin_too_large", fact.lease_margin_ms, fact.session_timeout_ms)
    declared = state.topologies.get(fact.topology_epoch)
    if fact.subtopologies is not None and declared is not None and state.phase is not GroupPhase.SHADOWING:
        differs = difference(declared.subtopologies, fact.subtopologies)
        if differs is not None:
            numbers = (fact.topology_epoch, *differs.numbers)
            actions.refuse(state, fact.member_id, differs.code, numbers)
            raise Rejected(differs.code, *numbers)

    speed = old.restore_records_per_s if old is not None else 0
    speed = speed or min((member.restore_records_per_s for member in state.members.values() if member.restore_records_per_s), default=0)
    waited: list[TaskId] = []
    if old is not None and state.is_away(fact.member_id):
        waited = restarts.end_away(context, old)
    elif old is not None and state.phase is not GroupPhase.SHADOWING:
        proven = fact.ended_incarnation == old.incarnation
        context.expire(old, "proven_dead" if proven else "superseded", hold_ms=0 if proven else old.session_timeout_ms)
    elif old is not None:
        context.remove_member(old, hold_ms=0)
    member = actions.join(state, fact, restore_records_per_s=speed, measured_records_per_s=0 if old is None else old.measured_records_per_s)
    context.back_off_from_crashes(fact.member_id)
    restarts.give_back(context, member, waited)
    warn_of_racks(context, member)
    context.deadlines.watch(Timer.SESSION, (fact.member_id, NO_TASK))
    if first and state.settings.initial_delay_ms and state.phase is not GroupPhase.SHADOWING:
        actions.begin_gathering(state)
        context.deadlines.watch(Timer.GATHERING)
    delay_ms = state.settings.join_delay_ms if old is None and state.phase is GroupPhase.LEADING else 0
    if not (delay_ms and context.waits_for_others(delay_ms)):
        context.causes.add("join")


def lag_reported(context: StepContext, fact: LagReported) -> None:
    """Applies a member's heartbeat and complete report (docs/protocol.md#m2). Costs time in the
    size of the report.
    """
    member = _renew(context, fact.member_id, fact.incarnation)
    if fact.number <= member.report_number:
        raise Rejected("report_repeated", fact.number, member.report_number)
    _check_epoch(member, fact.assignment_epoch)
    if fact.base is not None and fact.base != member.report_number:
        raise Rejected("report_base_unknown", fact.base, member.report_number)
    shadowing = context.state.phase is GroupPhase.SHADOWING
    if fact.held and not shadowing:
        for task in fact.held:
            if task not in member.active and task not in member.revoking:
                raise Rejected("held_not_granted", *task)

    had = frozenset(task for task in member.incoming if _has_copy(member, task)) if member.incoming else frozenset()
    before = member.ready
    actions.report(context.state, member, fact)
    if fact.load is not None:
        actions.record_loads(context.state, measured_loads(context.state, member, fact.load), fact.load.behind)
    if shadowing:
        return
    _applied(context, member, fact.assignment_epoch, fact.held)
    if fact.leaving != member.intends:
        actions.intend_leave(member, fact.leaving)
    if context.state.is_to_be_asked(fact.member_id):
        if fact.member_id in context.state.restarts:
            restarts.cancel(context, member)
        context.ask(member)  # with its first report: its former tasks are back on its copies by then, and move state first
    if fact.leaving and fact.member_id in context.state.restarts:
        restarts.cancel(context, member)
    restart = context.state.restarts.get(fact.member_id)
    leaving = fact.leaving or context.state.is_asked(fact.member_id) or (restart is not None and restart.drains)
    if leaving != member.leaving:
        if leaving:
            context.begin_drain(member, "leave_intended")
        elif not member.released:
            context.cancel_drain(member, "leave_cancelled")
    if member.warmup or member.incoming:
        _note_progress(context, member, declared=member.ready - before, had=had)


def member_unchanged(context: StepContext, fact: MemberUnchanged) -> None:
    """The last report still holds (docs/protocol.md#m2). What its lags are compared with may have
    changed, so copies that are on their way to run are judged again.
    """
    member = _renew(context, fact.member_id, fact.incarnation)
    if fact.report != member.report_number:
        raise Rejected("report_base_unknown", fact.report, member.report_number)
    if (member.warmup or member.incoming) and context.state.phase is not GroupPhase.SHADOWING:
        _note_progress(context, member, declared=frozenset())


def task_ready(context: StepContext, fact: TaskReady) -> None:
    member = _renew(context, fact.member_id, fact.incarnation)
    _check_epoch(member, fact.assignment_epoch)
    for task in fact.tasks:
        if task not in member.warmup and task not in member.standby and task not in member.active:
            raise Rejected("not_a_copy", *task)
    before = member.ready
    actions.declare_ready(member, fact.tasks)
    _note_progress(context, member, declared=member.ready - before)


def tasks_revoked(context: StepContext, fact: TasksRevoked) -> None:
    member = _renew(context, fact.member_id, fact.incarnation)
    _check_epoch(member, fact.assignment_epoch)
    for task in fact.tasks:
        if task not in member.revoking:
            raise Rejected("not_revoking", *task)
        if fact.assignment_epoch < member.revoking[task][0]:
            raise Rejected("epoch_too_low", fact.assignment_epoch, member.revoking[task][0])
    actions.stop_holding(member, fact.tasks)
    for task in fact.tasks:
        context.release(member, task)


def task_parked(context: StepContext, fact: TaskParked) -> None:
    """For people: no decision depends on it."""
    member = _renew(context, fact.member_id, fact.incarnation)
    if (fact.task not in member.active and fact.task not in member.revoking) or context.state.tokens.get(fact.task) != fact.token:
        raise Rejected("not_granted", *fact.task, fact.token)
    actions.park(context.state, fact)


def troubles_reported(context: StepContext, fact: TroublesReported) -> None:
    """For people: no decision depends on it."""
    actions.note_troubles(_renew(context, fact.member_id, fact.incarnation), fact.troubles)


def restart_intended(context: StepContext, fact: RestartIntended) -> None:
    member = _renew(context, fact.member_id, fact.incarnation)
    restarts.intend(context, member, fact)


def leave_intended(context: StepContext, fact: LeaveIntended) -> None:
    member = _renew(context, fact.member_id, fact.incarnation)
    actions.intend_leave(member, True)
    if fact.member_id in context.state.restarts:
        restarts.cancel(context, member)
    if not member.leaving:
        context.begin_drain(member, "leave_intended")


def leave_cancelled(context: StepContext, fact: LeaveCancelled) -> None:
    member = _renew(context, fact.member_id, fact.incarnation)
    if member.released:
        raise Rejected("already_released")
    actions.intend_leave(member, False)
    if fact.member_id in context.state.restarts:
        restarts.cancel(context, member)
    if member.leaving and not context.state.is_asked(fact.member_id):
        context.cancel_drain(member, "leave_cancelled")


def leave_requested(context: StepContext, fact: LeaveRequested) -> None:
    """Asks members to leave, as an operator wants. Renews no lease. All are asked at once, so that
    none is granted what another gives up.
    """
    state = context.state
    if fact.withdrawn:
        _withdraw(context, fact.members)
        return
    unknown = sum(member_id not in state.members for member_id in fact.members)
    if unknown:
        raise Rejected("unknown_members", unknown)
    others = sum(state.members[name].incarnation != number for name, number in zip(fact.members, fact.incarnations, strict=False))
    if others:
        raise Rejected("members_changed", others)
    stay = state.members.keys() - fact.members
    if fact.staying is not None and (left := sum(not state.members[name].leaving for name in stay)) < fact.staying:
        raise Rejected("too_few_stay", left, fact.staying)
    for member_id in fact.members:
        if state.is_away(member_id):  # it has left already
            restarts.not_back(context, state.members[member_id], "cancelled")
            context.rest_if_empty()
            context.causes.add("leave")
        elif not state.is_asked(member_id):
            if member_id in state.restarts:
                restarts.cancel(context, state.members[member_id])
            context.ask(state.members[member_id])


def deal_requested(context: StepContext, fact: DealRequested) -> None:
    """Deals all tasks again, at an operator's request (docs/protocol.md#d11). Rejected while tasks
    are being handed over, because these would be left out.
    """
    state = context.state
    if not context.deals_by_lag:
        raise Rejected("deals_nothing")
    if state.phase is not GroupPhase.LEADING:
        raise Rejected("not_dealt_yet")
    moving = set(state.in_flight).union(*(member.revoking for member in state.members.values()))
    if moving:
        raise Rejected("handing_over", len(moving))
    context.causes.add("deal_requested")


def _withdraw(context: StepContext, members: tuple[str, ...]) -> None:
    state = context.state
    staying = [member_id for member_id in members if _may_stay(state, member_id)]
    if not staying:
        raise Rejected("nobody_asked")
    for member_id in staying:
        asked = state.is_asked(member_id)
        actions.withdraw_request(state, member_id)
        if asked:
            member = state.members[member_id]
            context.emitted.append(MemberAsked(member_id=member_id, incarnation=member.incarnation, leave=False))
            if not member.intends:
                context.cancel_drain(member, "leave_withdrawn")


def _may_stay(state: GroupState, member_id: str) -> bool:
    """Returns whether it is asked to leave and not yet released, or would be asked when it returns."""
    return state.is_to_be_asked(member_id) or (state.is_asked(member_id) and not state.members[member_id].released)


def member_left(context: StepContext, fact: MemberLeft) -> None:
    member = _renew(context, fact.member_id, fact.incarnation)
    if restarts.left(context, member):
        return
    context.remove_member(member, hold_ms=0)
    actions.withdraw_request(context.state, fact.member_id)  # the request is fulfilled
    actions.forget_crashes(context.state, fact.member_id)
    context.rest_if_empty()
    context.causes.add("leave")


def member_ended(context: StepContext, fact: MemberEnded) -> None:
    """Removes an incarnation that is proven dead, or stops waiting for it (docs/protocol.md#m11)."""
    state = context.state
    member, key = state.members.get(fact.member_id), fenced_key(fact.member_id, fact.incarnation)
    if member is not None and member.incarnation == fact.incarnation and not state.is_away(fact.member_id):
        if restarts.left(context, member):  # killed on its way out: it said that it will be back
            return
        if state.phase is GroupPhase.SHADOWING:
            context.remove_member(member, hold_ms=0)
        else:
            context.expire(member, "proven_dead", hold_ms=0)
        context.rest_if_empty()
        context.causes.add("expiry")
    elif key in state.fenced:
        context.unfence(key)
    else:
        raise Rejected("not_waited_for", fact.incarnation)


def probing_tick(context: StepContext, fact: ProbingTick) -> None:
    """Changes nothing: time was moved and due deadlines were handled before."""


def silence_observed(context: StepContext, fact: SilenceObserved) -> None:
    """Members are as silent as the worker measured, if nothing came in between
    (docs/protocol.md#l11).
    """
    state = context.state
    if fact.after_offset != context.previous_offset:
        raise Rejected("silence_outdated", fact.after_offset, context.previous_offset)
    for member_id, silent_ms in fact.silent_ms.items():
        member = state.members.get(member_id)  # its time may have run out in this step
        if member is not None and not state.is_away(member_id):
            actions.note_silence(state, member, silent_ms)
            context.deadlines.watch(Timer.SESSION, (member_id, NO_TASK))


def base_requested(context: StepContext, fact: BaseRequested) -> None:
    """Changes nothing: the machine answers every request with the hash of its state."""


def undecodable(context: StepContext, fact: Undecodable) -> None:
    raise Rejected("undecodable", fact.length_bytes, fact.crc32)


def assignment_observed(context: StepContext, fact: AssignmentObserved) -> None:
    """Another leader's assignment becomes current (docs/protocol.md#d7), after this leader has
    proposed its own.
    """
    state = context.state
    if state.generation and fact.generation <= state.generation:
        raise Rejected("generation_not_newer", fact.generation, state.generation)
    tasks = state.tasks()
    seen: set[TaskId] = set()
    for observed in fact.members:
        member = state.members.get(observed.member_id)
        if member is None:
            raise Rejected("unknown_member")
        if member.incarnation != observed.incarnation:
            raise Rejected("stale_incarnation", observed.incarnation, member.incarnation)
        for task in observed.active:
            if task in seen:
                raise Rejected("task_owned_twice", *task)
            if task not in tasks:
                raise Rejected("observed_unknown_task", *task)
            seen.add(task)
    present = {observed.member_id for observed in fact.members}
    for member_id in sorted(state.members):
        if member_id not in present:
            context.remove_member(state.members[member_id], hold_ms=0)
    actions.observe_generation(state, fact.generation)
    context.observed = fact


def round_asked(context: StepContext, fact: RoundAsked) -> None:
    """Another leader wants to know who runs what from here on (docs/protocol.md#d12)."""
    state = context.state
    if fact.round_id in state.nonces:
        raise Rejected("round_repeated")
    for present in fact.members:
        member = state.members.get(present.member_id)
        if member is None:
            raise Rejected("unknown_member")
        if member.incarnation != present.incarnation:
            raise Rejected("stale_incarnation", present.incarnation, member.incarnation)
    names = {present.member_id for present in fact.members}
    for member_id in sorted(state.members):
        if member_id not in names:
            context.remove_member(state.members[member_id], hold_ms=0)
            context.gone.append(member_id)
    actions.remember_nonce(state, fact.round_id)
    context.round_asked = fact


def _renew(context: StepContext, member_id: str, incarnation: int) -> MemberState:
    """Renews the lease of the current incarnation before the content is judged, for any valid
    envelope (docs/protocol.md#m4). Raises Rejected when the incarnation is not the current one.
    """
    heard = actions.hear(context.state, member_id, incarnation)
    away = context.state.is_away(member_id)
    if heard is not None and not away:
        return heard
    member = context.state.members.get(member_id)
    if member is None or (away and member.incarnation == incarnation):
        raise Rejected("unknown_member")
    raise Rejected("stale_incarnation", incarnation, member.incarnation)


def _check_epoch(member: MemberState, epoch: int) -> None:
    """Checks the epoch that a member acknowledges, which is its own (docs/protocol.md#m3)."""
    if epoch > member.issued_epoch:
        raise Rejected("epoch_from_future", epoch, member.issued_epoch)
    if epoch < member.applied_epoch:
        raise Rejected("epoch_went_back", epoch, member.applied_epoch)


def _applied(context: StepContext, member: MemberState, epoch: int, held: tuple[TaskId, ...]) -> None:
    """The member has applied `epoch` and runs `held`: releases what it had to give up by then and
    does not run.
    """
    if member.revoking:
        holding = set(held)
        for task in sorted(task for task, (revoked_epoch, _) in member.revoking.items() if epoch >= revoked_epoch and task not in holding):
            context.release(member, task)
    if context.state.holds:
        for task in held:
            if task in context.state.holds and member.active.get(task, epoch + 1) <= epoch:
                actions.clear_hold(context.state, task)


def _note_progress(context: StepContext, member: MemberState, *, declared: frozenset[TaskId], had: frozenset[TaskId] = frozenset()) -> None:
    """Notes that warm-ups, or standbys that will take over, advanced, caught up or lost their copy.
    `declared`: tasks that became ready with this fact.

    `had`: tasks on their way to the member of which it had a copy before this report. An assignor
    may choose a member without a copy, which then loses none.
    """
    state = context.state
    for task in declared:
        if (task in member.warmup or task in member.incoming) and not state.is_handed_over(member, task):
            context.causes.add("ready")
    acceptable = state.acceptable_lag(member)
    for task, warmup in sorted(member.warmup.items()):
        before = warmup.caught_up
        actions.record_progress(state, member, task, caught_up=member.is_caught_up(task, acceptable))
        if warmup.caught_up and not before:
            context.causes.add("ready")
        elif before and not warmup.caught_up:
            context.deadlines.watch(Timer.STALL, (member.member_id, task))
        if task not in member.lags and warmup.best_lag is not None:
            context.causes.add("wiped")
            movement = state.in_flight.get(task)
            if movement is not None and movement.destination == member.member_id:
                context.cancel(task, "destination_wiped")
            else:
                actions.end_warmup(member, task)
                context.changed.add(member.member_id)
    for task in sorted(member.incoming.difference(member.warmup)):  # to a standby, or to a copy that no assignment asked for
        movement = state.in_flight[task]
        if movement.state is MovementState.WARMING:
            if member.is_caught_up(task, acceptable):
                context.causes.add("ready")
        elif task in had and not _has_copy(member, task):
            context.cancel(task, "destination_wiped")
            context.causes.add("wiped")


def _has_copy(member: MemberState, task: TaskId) -> bool:
    return task in member.lags or task in member.ready


Transition = Callable[[StepContext, Any], None]


def _reject(code: str) -> Transition:
    def transition(context: StepContext, fact: Fact) -> None:
        raise Rejected(code)

    transition.__name__ = f"rejected:{code}"
    return transition


def change_planned(context: StepContext, fact: ChangePlanned) -> None:
    state = context.state
    if state.change is not None and state.change.undoes:
        raise Rejected("being_undone")
    _check_basis(state, fact)
    before = state.change
    if before is not None:
        costs = None if before.counts is None else before.counts.costs(state.now_ms)
        watched_change.conclude(context, before, watched_change.verdict_on(before.planned, "replaced", costs))
    counts = watched_change.begun(state, fact, watched_change.OF_FORMER_BUILDS) if fact.judged_by == "fold" else None
    assert state.config is not None, "a change is planned of a configured group"
    change = WatchedChange(planned=fact, former=state.config, offset=state.last_offset, planned_ms=state.now_ms, counts=counts)
    actions.watch_change(state, change)


def change_planned_outside(context: StepContext, fact: ChangePlanned) -> None:
    """Members of a group that something else leads report nothing to judge by."""
    if fact.kind not in MEASURED_KINDS:
        raise Rejected("external")
    change_planned(context, fact)


def change_measured(context: StepContext, fact: ChangeMeasured) -> None:
    change = context.state.change
    if change is None or change.undoes or change.planned.change_id != fact.change_id:
        raise Rejected("not_watched")
    if change.counts is not None:
        if change.planned.kind not in MEASURED_KINDS:
            raise Rejected("not_watched")
        costs = {metric: getattr(fact, metric) for metric in JUDGED_METRICS}
        fact = watched_change.measured(change.planned, costs, is_over=fact.outcome == "at_rest", by=watched_change.OF_FORMER_BUILDS)
    watched_change.conclude(context, change, fact)


_OnlyLed = TaskReady | TasksRevoked | TaskParked | TroublesReported | LeaveIntended | RestartIntended | LeaveCancelled


def _external(context: StepContext, fact: _OnlyLed) -> None:
    """Rejects a fact that only a leading equipoise answers, while something else leads the group.
    It still shows that the member lives.
    """
    actions.hear(context.state, fact.member_id, fact.incarnation)
    raise Rejected("external")


_external.__name__ = "rejected:external"


_ALWAYS: dict[type, Transition] = {
    GroupConfigured: group_configured,
    TopologyDeclared: topology_declared,
    PartitionsObserved: partitions_observed,
    ProbingTick: probing_tick,
    BaseRequested: base_requested,
    Undecodable: undecodable,
}
_OF_MEMBERS: dict[type, Transition] = {
    LagReported: lag_reported,
    MemberUnchanged: member_unchanged,
    TaskReady: task_ready,
    TasksRevoked: tasks_revoked,
    TaskParked: task_parked,
    TroublesReported: troubles_reported,
    LeaveIntended: leave_intended,
    RestartIntended: restart_intended,
    LeaveCancelled: leave_cancelled,
    MemberLeft: member_left,
    MemberEnded: member_ended,
}
_LED: dict[type, Transition] = {
    **_ALWAYS,
    MemberJoined: member_joined,
    LeaveRequested: leave_requested,
    DealRequested: deal_requested,
    ChangePlanned: change_planned,
    ChangeMeasured: change_measured,
    SilenceObserved: silence_observed,
    AssignmentObserved: _reject("not_external"),
    RoundAsked: _reject("not_external"),
    GroupRejoined: rejoining.group_rejoined,
}

TRANSITIONS: dict[GroupPhase, dict[type, Transition]] = {
    GroupPhase.UNCONFIGURED: {**dict.fromkeys((*_LED, *_OF_MEMBERS), _reject("not_configured")), **_ALWAYS},
    GroupPhase.EMPTY: {**_LED, **_OF_MEMBERS},
    GroupPhase.GATHERING: {**_LED, **_OF_MEMBERS},
    GroupPhase.LEADING: {**_LED, **_OF_MEMBERS},
    GroupPhase.SHADOWING: {
        **_ALWAYS,
        **dict.fromkeys(get_args(_OnlyLed), _external),
        LeaveRequested: _reject("external"),
        DealRequested: _reject("external"),
        ChangePlanned: change_planned_outside,
        ChangeMeasured: change_measured,
        SilenceObserved: _reject("external"),
        GroupRejoined: _reject("external"),
        MemberJoined: member_joined,
        LagReported: lag_reported,
        MemberUnchanged: member_unchanged,
        MemberLeft: member_left,
        MemberEnded: member_ended,
        AssignmentObserved: assignment_observed,
        RoundAsked: round_asked,
    },
}
"""(phase of the group, fact) -> transition. Every phase has an entry for every fact of a group: an
illegal pair is a rejection and never a missing entry. LogOpened is of no group, and the machine
takes it without a step.
"""
