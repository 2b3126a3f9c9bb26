"""The working set of one `step`: the state, the decisions so far, and the causes for a round."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from equipoise.assignors import Guarantee, MovementState, Plan
from equipoise.events.decisions import Decision, MemberAsked, MemberExpired, Move
from equipoise.events.facts import AssignmentObserved, GroupConfigured, RoundAsked
from equipoise.events.tasks import TaskId
from equipoise.statemachine import actions
from equipoise.statemachine.deadlines import NO_TASK, Deadlines, Timer
from equipoise.statemachine.state import (
    GroupState,
    MemberState,
    known_lag,
)

CAUSES = (
    "start",
    "join",
    "leave",
    "expiry",
    "expelled",
    "not_back",
    "restarting",
    "restart_intended",
    "restart_cancelled",
    "leave_intended",
    "leave_requested",
    "deal_requested",
    "leave_cancelled",
    "leave_withdrawn",
    "overdue",
    "scheduled",
    "topology",
    "configured",
    "racks",
    "wiped",
    "ready",
    "handover",
    "stalled",
    "outpaced",
    "unblocked",
    "recovered",
    "probing",
    "hold_over",
)
"""What causes a decision round. When one step has several causes, the round is named after the
first in this list. All up to `wiped` are natural changes, which reset the probing interval
(KIP-441).
"""
NATURAL = frozenset(CAUSES[: CAUSES.index("wiped") + 1])
NEWS = NATURAL | {"ready"}
"""Changes for which the members of a Kafka group would rejoin. A round without any of them is a
follow-up of earlier decisions.
"""

_PLACE = {"cancelled": 0, "granted": 1, "waiting": 2, "warming": 2, "revoking": 2}
_EAGER_REGRANT, _REGRANT_DROPPED = 3, -1
"""Order of the moves of one task in one step: first what ends, then who has the task now, then
where it goes next, then an eager regrant. Two moves may end together: an eager regrant, and the
movement of the same task to another member.
"""


class StepContext:
    """Collects the effects of one step on `state`."""

    def __init__(
        self,
        state: GroupState,
        deadlines: Deadlines,
        refusal_of: Callable[[GroupConfigured], str | None],
        guarantees_of: Callable[[GroupConfigured], frozenset[Guarantee]],
        most_event_bytes: int,
    ) -> None:
        self.state = state
        self.deadlines = deadlines
        self.most_event_bytes = most_event_bytes
        """A decision with a larger payload is emitted in parts (docs/protocol.md#l8)."""
        self.refusal_of = refusal_of
        """Rejection code of a configuration whose assignor or settings cannot be used; None: they
        can.
        """
        self.deals_by_lag = False
        """Whether the assignor that decides in this step deals by lag."""
        self.guarantees_of = guarantees_of
        """Guarantees of the assignor of a configuration."""
        self.previous_offset: int
        """Offset of the group's last fact before this one; -1: there was none."""
        self.emitted: list[Decision] = []
        self.causes: set[str] = set()
        self.moves: dict[tuple[TaskId, int], Move] = {}
        """The moves of this step. A task can have several: one movement ends, a grant follows,
        another movement begins.
        """
        self.unique = True
        self.plan: Plan | None = None
        """The assignor's answer; None: it was not asked."""
        self.observed: AssignmentObserved | None = None
        """The assignment of another leader, observed in this step (docs/protocol.md#d7)."""
        self.round_asked: RoundAsked | None = None
        """The round that another leader asked for in this step (docs/protocol.md#d12)."""
        self.gone: list[str] = []
        """Members that the round does not name."""
        self.lifted = False
        """Whether a hold ended before its time."""
        self.rescheduled = False
        """Whether the scheduled delay changed since it was last announced."""
        self.changed: set[str] = set()
        """Members whose assignment differs from the last one issued."""
        self.promised: dict[TaskId, str] = {}
        """Tasks that waited for a warm-up slot and get one that was given up in this step ->
        destination.
        """

    def is_untouched(self) -> bool:
        """Returns whether the step had no effect but on the state itself, so that the context can
        serve the next one.
        """
        return not (
            self.emitted
            or self.causes
            or self.changed
            or self.moves
            or self.promised
            or self.lifted
            or self.rescheduled
            or self.plan is not None
            or self.observed is not None
            or self.round_asked is not None
        )

    def note(self, move: Move) -> None:
        """Records a move. The last move of a task in one state counts."""
        self.moves[move.task, _PLACE[move.state]] = move

    def note_eager_regrant(self, move: Move) -> None:
        """Records that an eager member gives the task up to be granted it again with others."""
        self.moves[move.task, _EAGER_REGRANT] = move

    def forget_wait(self, task: TaskId) -> None:
        """The task does not wait: another member is granted it in the same step."""
        self.moves.pop((task, _PLACE["waiting"]), None)

    def noted(self, task: TaskId, state: str) -> Move | None:
        """The recorded move of the task in this state, or in a state that excludes it."""
        return self.moves.get((task, _PLACE[state]))

    def cancel(self, task: TaskId, reason: str) -> None:
        """Ends a movement in flight explicitly: its reason is gone, or its slot is taken away
        (docs/protocol.md#d9).
        """
        movement = actions.end_movement(self.state, task)
        self.note(Move(task=task, source=movement.source, destination=movement.destination, state="cancelled", reason=reason))
        if actions.end_warmup(self.state.members[movement.destination], task):
            self.changed.add(movement.destination)

    def release(self, member: MemberState, task: TaskId) -> None:
        """Frees a task that the member has given up. The destination of its movement gets it at
        once; without a movement a round decides.
        """
        actions.release(self.state, member, task)
        self.changed.add(member.member_id)
        if task in member.eager_regrants:
            pass  # it stays the member's own, which is granted it again by `grant_all_eager`
        elif task in self.state.in_flight:
            returns = member.leaving or task in self.state.lent or self.state.is_crash_looping(member.member_id)
            actions.set_previous_owner(self.state, task, member if returns else None)
            movement = self.state.in_flight[task]
            if movement.state is not MovementState.REVOKING:  # an eager member gave up all tasks for another movement; this one still warms up
                self.cancel(task, "source_gone")
                self.causes.add("handover")
            else:
                self.complete_handover(task)
            if self.state.waiting or not self.state.in_flight or movement.source == movement.destination:
                # A slot is free and a task waits for it, or everything is done and the verdict is
                # due, or the learner of the task must be announced again.
                self.causes.add("handover")
        elif self.state.has_task(task):
            self.causes.add("handover")
        if member.eager:
            self.grant_all_eager(member)

    def complete_handover(self, task: TaskId) -> None:
        """Gives a task without owner to the destination of its movement: at once, or together
        with others when the destination is eager.
        """
        destination = self.state.members[self.state.in_flight[task].destination]
        if destination.eager:
            self.grant_all_eager(destination)
        else:
            self._take(destination, task)

    def grant_all_eager(self, member: MemberState) -> None:
        """Grants an eager member all its tasks together, once it has given up everything and no
        task that comes to it has an owner.
        """
        owner = self.state.owner
        arriving = [task for task in sorted(member.incoming) if self.state.in_flight[task].state is MovementState.REVOKING]
        if member.revoking or any(task in owner for task in arriving) or any(task in owner for task in member.eager_regrants):
            return
        for task in arriving:
            self._take(member, task)
        for task, was_its_own in sorted(member.eager_regrants.items()):
            self.grant(member, task)
            self.moves.pop((task, _EAGER_REGRANT), None)
            source = member.member_id if was_its_own else None
            lag = known_lag(member.lags.get(task))
            self.note(Move(task=task, source=source, destination=member.member_id, state="granted", reason="carried", lag_records=lag))
        taken = bool(arriving or member.eager_regrants)
        actions.clear_eager_regrants(member)
        if taken and (self.state.waiting or not self.state.in_flight):
            self.causes.add("handover")

    def _take(self, destination: MemberState, task: TaskId) -> None:
        movement = actions.end_movement(self.state, task)
        self.grant(destination, task)
        lag = known_lag(destination.lags.get(task))
        self.note(Move(task=task, source=movement.source, destination=movement.destination, state="granted", reason="carried", lag_records=lag))

    def regrant_untold(self, task: TaskId) -> None:
        """Passes on a task that was granted and taken back in one step. No member has seen it, so
        the destination that the round names has it at once.

        An eager destination gets it with its other tasks.
        """
        movement = self.state.in_flight.get(task)
        granted = self.noted(task, "granted")
        if granted is None or movement is None or movement.state is not MovementState.REVOKING:
            self._never_told(task, "not_wanted" if self.state.has_task(task) else "task_gone")
            return
        destination = self.state.members[movement.destination]
        actions.end_movement(self.state, task)
        del self.moves[task, _PLACE["revoking"]]
        if destination.eager:
            self._never_told(task, "not_wanted")
            actions.add_eager_regrant(destination, task, had_it=False)
            self.note_eager_regrant(attrs.evolve(granted, source=None, destination=movement.destination, state="revoking", reason="eager"))
            return
        self.grant(destination, task)
        self.note(attrs.evolve(granted, destination=movement.destination, lag_records=known_lag(destination.lags.get(task))))

    def take_back(self, member: MemberState, task: TaskId) -> bool:
        """Takes back a task that was granted to an eager member in this step. The member has not
        seen it, and gets the task later, with others.

        Ends no movement, because the decision that the member gets the task still holds
        (docs/protocol.md#d3). Returns whether the member had the task before.
        """
        actions.take_back(self.state, member, task)
        granted = self.moves.pop((task, _PLACE["granted"]), None)
        return granted is not None and granted.source == member.member_id

    def _never_told(self, task: TaskId, reason: str) -> None:
        """Turns a grant of this step that ended a movement into its cancellation."""
        granted = self.moves.pop((task, _PLACE["granted"]), None)
        if granted is not None:
            self.note(attrs.evolve(granted, state="cancelled", reason=reason))

    def grant(self, member: MemberState, task: TaskId) -> None:
        """Lets the member run the task from its next MemberAssigned on. The task has no owner, or
        this member is its owner.
        """
        actions.grant(self.state, member, task)
        self.changed.add(member.member_id)

    def expire(self, member: MemberState, cause: str, *, hold_ms: int) -> None:
        """Removes the incarnation and emits MemberExpired."""
        silent_ms = self.state.now_ms - member.last_heard_ms
        expired = MemberExpired(member_id=member.member_id, incarnation=member.incarnation, cause=cause, silent_ms=silent_ms, hold_ms=hold_ms)
        self.emitted.append(expired)
        actions.record_crash(self.state, member.member_id)
        self.remove_member(member, hold_ms=hold_ms)

    def back_off_from_crashes(self, member_id: str) -> None:
        """A member joins: after repeated crashes it must first run for its back-off
        (docs/protocol.md#d10).
        """
        if actions.begin_crash_backoff(self.state, member_id):
            self.deadlines.watch(Timer.CRASH_BACKOFF, (member_id, NO_TASK))

    def ask(self, member: MemberState) -> None:
        """Asks the member to leave, as an operator wants, and drains it (docs/protocol.md#m8)."""
        actions.request_leave(self.state, member)
        self.emitted.append(MemberAsked(member_id=member.member_id, incarnation=member.incarnation, leave=True))
        if not member.leaving:
            self.begin_drain(member, "leave_requested")

    def initial_delay_over(self) -> None:
        """The initial delay is over: begins the first round, or waits once more for source lags
        that the assignor needs (docs/protocol.md#d2).
        """
        state = self.state
        if self.deals_by_lag and not state.awaiting_lags and not state.knows_source_lags():
            actions.await_lags(state)
            self.deadlines.watch(Timer.GATHERING)
            return
        self._begin_first_round()

    def begin_if_lags_known(self) -> None:
        """Begins the first round when the source lags that it waits for are known. Called after
        each fact.
        """
        if self.state.awaiting_lags and (not self.deals_by_lag or self.state.knows_source_lags()):
            self._begin_first_round()

    def _begin_first_round(self) -> None:
        actions.end_gathering(self.state)
        self.causes.add("start")

    def waits_for_others(self, delay_ms: int) -> bool:
        """Has a round begin within `delay_ms` that decides for a new member and for those that join
        until then, unless a task has no owner or its owner gives it up to nobody
        (docs/protocol.md#d5). Returns whether.
        """
        state, at_ms = self.state, self.state.later_ms(delay_ms)
        if not state.owner.keys() >= state.tasks().keys() or self._is_given_up_to_nobody():
            return False
        if state.scheduled_ms is not None and state.scheduled_ms <= at_ms:
            return True
        actions.schedule(state, at_ms)
        self.deadlines.watch(Timer.SCHEDULED)
        return True

    def _is_given_up_to_nobody(self) -> bool:
        """Returns whether a task is being revoked for no movement, nor to be granted again with
        others.
        """
        state = self.state
        return any(
            task not in state.in_flight and task not in member.eager_regrants and state.has_task(task)
            for member in state.members.values()
            for task in member.revoking
        )

    def rest_if_empty(self) -> None:
        """Stops the round timers of a group without members, which needs no ticks
        (docs/protocol.md#l3).
        """
        if not self.state.members:
            actions.rest(self.state)

    def remove_member(self, member: MemberState, *, hold_ms: int) -> None:
        """Removes the incarnation and frees its tasks. hold_ms > 0: it may still run them, so their
        next owner waits for that long (docs/protocol.md#m5).
        """
        state = self.state
        if hold_ms:
            key = actions.fence(state, member, hold_ms)
            if key is not None:
                self.deadlines.watch(Timer.FENCED, (key, NO_TASK))
        for task in sorted((*member.active, *member.revoking)):
            actions.disown(state, task)
            if member.is_untold(task):
                self._never_told(task, "destination_gone")
                continue
            if task in state.lent and state.lent[task].borrower == member.member_id and self._keeps_for_home(task):
                continue
            movement = state.in_flight.get(task)
            if movement is None or movement.state is MovementState.WARMING:
                self._lose(member, task)
        for task, was_its_own in sorted(member.eager_regrants.items()):
            if was_its_own:
                self._lose(member, task)
        for task in sorted(member.incoming):
            self.cancel(task, "destination_gone")
        for task in [task for task, movement in state.in_flight.items() if movement.source == member.member_id]:
            if task in state.in_flight:  # an eager member may have been granted it together with another task
                self._source_gone(task)
        actions.remove(state, member)
        self.changed.discard(member.member_id)

    def forget_removed_tasks(self) -> None:
        """The newest topology was declared: ends what is under way for tasks that it lacks."""
        state = self.state
        tasks = state.tasks()
        for task in sorted(task for task in state.in_flight if task not in tasks):
            self.cancel(task, "task_gone")
        for member_id in sorted(filter(state.is_away, state.restarts)):
            member = state.members[member_id]
            for task in sorted(member.active.keys() - tasks.keys()):
                actions.let_go(state, member, task)
        actions.forget_removed_tasks(state)

    def drop_eager_regrant(self, member: MemberState, task: TaskId, reason: str) -> None:
        """Ends an eager regrant: the task goes elsewhere, or reaches the member in another way."""
        source = member.member_id if actions.drop_eager_regrant(member, task) else None
        self.moves[task, _REGRANT_DROPPED] = Move(task=task, source=source, destination=member.member_id, state="cancelled", reason=reason)

    def _keeps_for_home(self, task: TaskId) -> bool:
        """The borrower of a task is gone. The task waits for the member that lent it, if that is
        away (docs/protocol.md#m12). Returns whether.
        """
        state = self.state
        lent = actions.end_loan(state, task)
        home = state.members.get(lent.home)
        if home is None or not state.is_away(lent.home):
            return False
        actions.keep_for(state, home, task)
        self.note(Move(task=task, source=lent.borrower, destination=lent.home, state="waiting", reason="restarting"))
        return True

    def _lose(self, member: MemberState, task: TaskId) -> None:
        if self.state.has_task(task):  # else the topology dropped it; if it comes back, it is a new task
            actions.lose(self.state, member, task)

    def unfence(self, key: str) -> None:
        """Lifts the holds of a fenced incarnation that was silent for its session timeout
        (docs/protocol.md#m5).
        """
        state = self.state
        for task in actions.unfence(state, key):
            owner = state.owner.get(task)
            if owner is not None and task in state.members[owner].active:
                self.changed.add(owner)
                self.lifted = True

    def _source_gone(self, task: TaskId) -> None:
        """The source of a movement is gone and the task is free. A movement that was being handed
        over completes; one that was warming up ends, and the next round decides by ranks.
        """
        movement = self.state.in_flight[task]
        if movement.state is not MovementState.REVOKING:
            self.cancel(task, "source_gone")
            return
        self.complete_handover(task)
        if task in self.state.in_flight:
            actions.forget_source(self.state, task)

    def is_apart(self, task: TaskId) -> bool:
        """Returns whether a warm-up that will take the task over is outside the caps, because the
        task's owner is leaving (docs/protocol.md#m7).
        """
        config = self.state.config
        return config is not None and self.state.is_leaving_owner(task) and Guarantee.LEAVING_APART in self.guarantees_of(config)

    def begin_drain(self, member: MemberState, cause: str) -> None:
        """Begins the drain of a member: it gets nothing new, and its tasks move away within
        drain_timeout_ms (docs/protocol.md#m7).
        """
        actions.begin_drain(self.state, member)
        self.deadlines.watch(Timer.DRAIN, (member.member_id, NO_TASK))
        self.stop_incoming(member, "destination_leaving")
        self.causes.add(cause)

    def cancel_drain(self, member: MemberState, cause: str) -> None:
        """Ends the drain: movements that exist only because the member was leaving end
        (docs/protocol.md#d9); revocations already sent to it continue.
        """
        actions.end_drain(member)
        for task, movement in sorted(self.state.in_flight.items()):
            if movement.source == member.member_id and movement.state is MovementState.WARMING:
                self.cancel(task, "source_stays")
        self.causes.add(cause)

    def stop_incoming(self, member: MemberState, reason: str) -> None:
        """Cancels what was to come to the member."""
        for task in sorted(member.incoming):
            self.cancel(task, reason)
        for task in sorted(member.eager_regrants):
            self.drop_eager_regrant(member, task, reason)
        for task in sorted(task for task in member.active if member.is_untold(task)):
            # A deadline of this step granted it before the member's report was read. Nobody was
            # told, so the task is free for a member that stays.
            actions.take_back(self.state, member, task)
            self._never_told(task, reason)
