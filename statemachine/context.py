"""What one `step` works with: the state, what it has emitted so far, and what makes a decision
round necessary.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from equipoise.assignors import Guarantee, MovementState, Plan
from equipoise.events.decisions import Decision, MemberAsked, MemberExpired, Move
from equipoise.events.facts import AssignmentObserved, GroupConfigured
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
"""What begins a decision round; of several in one step the first of this list names it. All up to
`wiped` are natural changes: they reset the probing interval (KIP-441)."""
NATURAL = frozenset(CAUSES[: CAUSES.index("wiped") + 1])
NEWS = NATURAL | {"ready"}
"""What comes from outside, for which members of a Kafka group would join anew; a round without any
only follows up on what was decided.
"""

_PLACE = {"cancelled": 0, "granted": 1, "waiting": 2, "warming": 2, "revoking": 2}
_EAGER_REGRANT, _REGRANT_DROPPED = 3, -1
"""In one step and for one task: what ends comes first, then who has it now, then where it goes
next, then that an eager member gets it anew. Two things may end together: that an eager member gets
the task again, and its movement to another one."""


class Context:
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
        """A decision with a larger payload is emitted in parts (PROTOCOL L8)."""
        self.refusal_of = refusal_of
        """Code of what speaks against the assignor and the settings of a configuration; None:
        nothing.
        """
        self.deals_by_lag = False
        """The assignor that decides in this step does (`equipoise.assignors.deals_by_lag`).
        """
        self.guarantees_of = guarantees_of
        """What the assignor of a configuration promises."""
        self.emitted: list[Decision] = []
        self.causes: set[str] = set()
        self.moves: dict[tuple[TaskId, int], Move] = {}
        """What happened to each task's movement; in one step one may end, a grant follow, and
        another begin.
        """
        self.unique = True
        self.plan: Plan | None = None
        """The assignor's answer, if it was asked."""
        self.observed: AssignmentObserved | None = None
        """What something else decided in this step (PROTOCOL D7)."""
        self.lifted = False
        """A hold is over before its time."""
        self.rescheduled = False
        """The time until which something is left undone on purpose is another than was told."""
        self.changed: set[str] = set()
        """Members whose set differs from what they were last told."""
        self.promised: dict[TaskId, str] = {}
        """What waited for a warm-up slot and is to have one that was given up in this step -> its
        destination.
        """

    def note(self, move: Move) -> None:
        """Of several moves of one state the last one counts."""
        self.moves[move.task, _PLACE[move.state]] = move

    def note_eager_regrant(self, move: Move) -> None:
        """An eager member gives the task up to get it anew, wherever it may go after that."""
        self.moves[move.task, _EAGER_REGRANT] = move

    def noted(self, task: TaskId, state: str) -> Move | None:
        """What was noted for the task in this state, or in one that excludes it."""
        return self.moves.get((task, _PLACE[state]))

    def cancel(self, task: TaskId, reason: str) -> None:
        """The reason of a movement in flight is gone, or its slot is taken away: it ends here,
        explicitly (PROTOCOL D9).
        """
        movement = actions.end_movement(self.state, task)
        self.note(Move(task=task, source=movement.source, destination=movement.destination, state="cancelled", reason=reason))
        if actions.end_warmup(self.state.members[movement.destination], task):
            self.changed.add(movement.destination)

    def release(self, member: MemberState, task: TaskId) -> None:
        """The member has given the task up: its destination may have it at once, and if there is
        none, a round decides.
        """
        actions.release(self.state, member, task)
        self.changed.add(member.member_id)
        if task in member.eager_regrants:
            pass  # nobody else's: it is its own again when it has given up everything, see `grant_all_eager`
        elif task in self.state.in_flight:
            returns = member.leaving or self.state.is_crash_looping(member.member_id)
            actions.set_previous_owner(self.state, task, member if returns else None)
            movement = self.state.in_flight[task]
            if movement.state is not MovementState.REVOKING:  # an eager member gave up all it had for one movement, and this one is not that far
                self.cancel(task, "source_gone")
                self.causes.add("handover")
            else:
                self.complete_handover(task)
            if self.state.waiting or not self.state.in_flight or movement.source == movement.destination:
                # A slot came free and somebody waits for one, or all is done and the verdict is
                # due, or who learns the task is to be said again.
                self.causes.add("handover")
        elif self.state.has_task(task):
            self.causes.add("handover")
        if member.eager:
            self.grant_all_eager(member)

    def complete_handover(self, task: TaskId) -> None:
        """Nobody owns the task any more, and the destination of its movement is to have it: at
        once, unless it is eager; see `grant_all_eager`.
        """
        destination = self.state.members[self.state.in_flight[task].destination]
        if destination.eager:
            self.grant_all_eager(destination)
        else:
            self._take(destination, task)

    def grant_all_eager(self, member: MemberState) -> None:
        """An eager member gets all that it is to have together: when it has given up everything,
        and all that is on its way is free.
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
        """The task was granted and taken back in one step: nobody was told, so its next owner, if
        the round names one, has it at once.

        An eager one has it with all the rest, when the round takes that up.
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
        """The task was granted to an eager member in this very step, and the member was not told
        yet; it gets the task with others, later.

        Nothing ends by this: that the member is to have the task was decided before and still
        stands (PROTOCOL D3). Returns whether the member had the task before.
        """
        actions.take_back(self.state, member, task)
        granted = self.moves.pop((task, _PLACE["granted"]), None)
        return granted is not None and granted.source == member.member_id

    def _never_told(self, task: TaskId, reason: str) -> None:
        """The grant of this step with which a movement ended is taken back: what is told is that
        the movement was called off.
        """
        granted = self.moves.pop((task, _PLACE["granted"]), None)
        if granted is not None:
            self.note(attrs.evolve(granted, state="cancelled", reason=reason))

    def grant(self, member: MemberState, task: TaskId) -> None:
        """The member may run the task from the next MemberAssigned on. The task has no owner, or
        this one.
        """
        actions.grant(self.state, member, task)
        self.changed.add(member.member_id)

    def expire(self, member: MemberState, cause: str, *, hold_ms: int) -> None:
        """The incarnation is out, and is told so."""
        silent_ms = self.state.now_ms - member.last_heard_ms
        expired = MemberExpired(member_id=member.member_id, incarnation=member.incarnation, cause=cause, silent_ms=silent_ms, hold_ms=hold_ms)
        self.emitted.append(expired)
        actions.record_crash(self.state, member.member_id)
        self.remove_member(member, hold_ms=hold_ms)

    def back_off_from_crashes(self, member_id: str) -> None:
        """The member joins: if it crashed again and again, it has to run for its back-off first
        (PROTOCOL D10).
        """
        if actions.begin_crash_backoff(self.state, member_id):
            self.deadlines.watch(Timer.CRASH_BACKOFF, (member_id, NO_TASK))

    def ask(self, member: MemberState) -> None:
        """An operator wants the member to leave: it is told so, and drained (PROTOCOL M8)."""
        actions.request_leave(self.state, member)
        self.emitted.append(MemberAsked(member_id=member.member_id, incarnation=member.incarnation, leave=True))
        if not member.leaving:
            self.begin_drain(member, "leave_requested")

    def initial_delay_over(self) -> None:
        """The first round is due, but for lags that are to be known and are not: it is put off once
        (PROTOCOL D2).
        """
        state = self.state
        if self.deals_by_lag and not state.awaiting_lags and not state.knows_source_lags():
            actions.await_lags(state)
            self.deadlines.watch(Timer.GATHERING)
            return
        self._begin_first_round()

    def begin_if_lags_known(self) -> None:
        """After each fact: what the first round waits for may be known now."""
        if self.state.awaiting_lags and (not self.deals_by_lag or self.state.knows_source_lags()):
            self._begin_first_round()

    def _begin_first_round(self) -> None:
        actions.end_gathering(self.state)
        self.causes.add("start")

    def rest_if_empty(self) -> None:
        """Nobody is left: nothing is under way, and no timer of a round runs (PROTOCOL L3: no ticks
        while a group is empty).
        """
        if not self.state.members:
            actions.rest(self.state)

    def remove_member(self, member: MemberState, *, hold_ms: int) -> None:
        """The incarnation is out. What it ran is free; with hold_ms > 0 the next owner waits, for
        the old one may run on (PROTOCOL M5).
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
            movement = state.in_flight.get(task)
            if movement is None or movement.state is MovementState.WARMING:
                self._lose(member, task)
        for task, was_its_own in sorted(member.eager_regrants.items()):
            if was_its_own:
                self._lose(member, task)
        for task in sorted(member.incoming):
            self.cancel(task, "destination_gone")
        for task in [task for task, movement in state.in_flight.items() if movement.source == member.member_id]:
            if task in state.in_flight:  # an eager member may have taken it with another one
                self._source_gone(task)
        actions.remove(state, member)
        self.changed.discard(member.member_id)

    def drop_eager_regrant(self, member: MemberState, task: TaskId, reason: str) -> None:
        """What an eager member was to get, or to get again, goes elsewhere, or comes to it
        otherwise.
        """
        source = member.member_id if actions.drop_eager_regrant(member, task) else None
        self.moves[task, _REGRANT_DROPPED] = Move(
            task=task, source=source, destination=member.member_id, state="cancelled", reason=reason
        )  # fmt: skip

    def _lose(self, member: MemberState, task: TaskId) -> None:
        if self.state.has_task(task):  # else the topology dropped it: should it come back, it is a new task
            actions.lose(self.state, member, task)

    def unfence(self, key: str) -> None:
        """The fenced incarnation was silent for its session timeout, so nobody waits for it any
        longer (docs/protocol.md#m5).
        """
        state = self.state
        for task in actions.unfence(state, key):
            owner = state.owner.get(task)
            if owner is not None and task in state.members[owner].active:
                self.changed.add(owner)
                self.lifted = True

    def _source_gone(self, task: TaskId) -> None:
        """The task is free now. A movement that was being handed over is finished; one that was
        warming ends, and ranks decide anew.
        """
        movement = self.state.in_flight[task]
        if movement.state is not MovementState.REVOKING:
            self.cancel(task, "source_gone")
            return
        self.complete_handover(task)
        if task in self.state.in_flight:
            actions.forget_source(self.state, task)

    def is_apart(self, task: TaskId) -> bool:
        """Whether a copy that is to take the task over is outside the caps of warm-ups: its owner
        is leaving (PROTOCOL M7).
        """
        config = self.state.config
        return config is not None and self.state.is_leaving_owner(task) and Guarantee.LEAVING_APART in self.guarantees_of(config)

    def begin_drain(self, member: MemberState, cause: str) -> None:
        """The member is to leave: it gets nothing new, and its tasks go elsewhere by
        drain_timeout_ms (PROTOCOL M7).
        """
        actions.begin_drain(self.state, member)
        self.deadlines.watch(Timer.DRAIN, (member.member_id, NO_TASK))
        for task in sorted(member.incoming):
            self.cancel(task, "destination_leaving")
        for task in sorted(member.eager_regrants):
            self.drop_eager_regrant(member, task, "destination_leaving")
        for task in sorted(task for task, epoch in member.active.items() if epoch > member.issued_epoch):
            # Granted by a deadline of this very step, before its word was heard: nobody was told,
            # so it is free for somebody who stays.
            actions.take_back(self.state, member, task)
            self._never_told(task, "destination_leaving")
        self.causes.add(cause)
