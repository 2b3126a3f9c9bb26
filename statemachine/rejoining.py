"""Generations of a classic consumer group that equipoise leads from the seat of its leader
(docs/protocol.md#d13).

The broker knows who is a member, and each generation says what everybody has. So a fact brings the
group's state to what is so, and one round decides for all that changed.
"""

from __future__ import annotations

from equipoise.events.facts import GroupRejoined, MemberJoined, RejoinedMember, RestartIntended
from equipoise.events.tasks import TaskId
from equipoise.statemachine import actions, restarts
from equipoise.statemachine.deadlines import NO_TASK, Timer
from equipoise.statemachine.rejections import Rejected
from equipoise.statemachine.state import GroupState, MemberState
from equipoise.statemachine.step_context import StepContext

SESSION_MS = 315_360_000_000
"""Ten years. The broker ends the sessions of these members, and the next generation says so."""
MARGIN_MS = 86_400_000
MOST_NONCE_CHARS = 500


def group_rejoined(context: StepContext, fact: GroupRejoined) -> None:
    state = context.state
    _check(state, fact)
    for declared in fact.topologies:
        actions.declare_topology(state, declared)
    if fact.topologies:
        context.forget_removed_tasks()
        context.causes.add("topology")
    here = {each.member_id: each for each in fact.members}
    _see_off(context, fact, here)
    waited: dict[str, list[TaskId]] = {}
    for each in fact.members:
        waited[each.member_id] = _see_in(context, each)
    _set_held(context, fact)
    for each in fact.members:
        restarts.give_back(context, state.members[each.member_id], waited[each.member_id])
    context.rest_if_empty()
    context.rest_if_empty()
    if not context.causes and not state.owner.keys() >= state.tasks().keys():
        context.causes.add("handover")


def _check(state: GroupState, fact: GroupRejoined) -> None:
    newest = state.topology
    for declared in fact.topologies:
        if newest is not None and declared.epoch <= newest.epoch:
            raise Rejected("topology_not_newer", declared.epoch, newest.epoch)
    for each in fact.members:
        known = state.newest_incarnation(each.member_id)
        if known is not None and each.incarnation < known:
            raise Rejected("incarnation_too_low", each.incarnation, known)


def _see_off(context: StepContext, fact: GroupRejoined, here: dict[str, RejoinedMember]) -> None:
    """Removes the members that are gone. Those that are waited for keep their place, and those that
    were away already keep it as long as was said then.
    """
    state = context.state
    absent = {each.member_id: each.back_within_ms for each in fact.absent}
    for member_id in sorted(state.members.keys() - here.keys()):
        member = state.members[member_id]
        if state.is_away(member_id):
            continue
        if member_id in absent:
            within_ms = absent[member_id]
            intent = RestartIntended(member_id=member_id, incarnation=member.incarnation, back_within_ms=within_ms, wait_turn=False)
            restarts.intend(context, member, intent)
            if restarts.left(context, member):
                continue
        context.remove_member(member, hold_ms=0)
        actions.withdraw_request(state, member_id)
        actions.forget_crashes(state, member_id)
        context.causes.add("leave")


def _see_in(context: StepContext, each: RejoinedMember) -> list[TaskId]:
    """Adds a member that is new, or another process than before. Returns the tasks that waited for
    it.
    """
    state = context.state
    old = state.members.get(each.member_id)
    waited: list[TaskId] = []
    if old is not None and old.incarnation == each.incarnation and not state.is_away(each.member_id):
        if actions.resubscribe(state, old, topology_epoch=each.topology_epoch, capacity=each.capacity, rack=each.rack):
            context.causes.add("topology")
        return waited
    if old is not None and state.is_away(each.member_id):
        waited = restarts.end_away(context, old)
    elif old is not None:
        context.remove_member(old, hold_ms=0)
    actions.join(state, joined(each), restore_records_per_s=0, measured_records_per_s=0)
    context.deadlines.watch(Timer.SESSION, (each.member_id, NO_TASK))
    context.changed.add(each.member_id)
    context.causes.add("join")
    return waited


def joined(each: RejoinedMember) -> MemberJoined:
    """The join of a member whose session the broker ends."""
    return MemberJoined(
        member_id=each.member_id,
        incarnation=each.incarnation,
        capacity=each.capacity,
        rack=each.rack,
        session_timeout_ms=SESSION_MS,
        lease_margin_ms=MARGIN_MS,
        topology_epoch=each.topology_epoch,
        join_nonce=f"{each.client}@{each.incarnation}"[-MOST_NONCE_CHARS:],
    )


def _set_held(context: StepContext, fact: GroupRejoined) -> None:
    """Brings the owners to what the members hold. What a member was asked to give up and does not
    hold any more goes to its destination. A task that was granted and that nobody holds stays
    granted: its owner is told in this generation.
    """
    state = context.state
    tasks = state.tasks()
    holder = {task: each.member_id for each in fact.members for task in each.held if task in tasks}
    for task, name in sorted(holder.items()):
        if state.owner.get(task) != name:
            _adopt(context, state.members[name], task)
    for each in fact.members:
        member = state.members[each.member_id]
        for task in sorted(task for task in member.revoking if holder.get(task) != each.member_id):
            context.release(member, task)


def _adopt(context: StepContext, member: MemberState, task: TaskId) -> None:
    """The member has the task from another leader, or from a generation whose answer was lost."""
    state = context.state
    if task in state.in_flight:
        context.cancel(task, "not_wanted")
    owner = state.owner.get(task)
    if owner is not None:
        other = state.members[owner]
        if state.is_away(owner):
            actions.let_go(state, other, task)
        else:
            if task in other.active:
                actions.revoke(state, other, task)
            context.release(other, task)
    actions.set_previous_owner(state, task, None)
    actions.adopt(state, member, task)
    context.changed.add(member.member_id)
    context.causes.add("handover")
