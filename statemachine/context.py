"""What one `step` works with: the state, what it has emitted so far, and what makes a decision round necessary."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from assignors.problem import Revocations
from events.decisions import Decision, MemberExpired, Move
from events.facts import AssignmentObserved, GroupConfigured
from events.tasks import TaskId
from statemachine.deadlines import NO_TASK, Deadlines, Timer
from statemachine.state import Ghost, GroupState, Lost, MemberState, ghost_key, known_lag

CAUSES = (
    "start",
    "join",
    "leave",
    "expiry",
    "expelled",
    "leave_intended",
    "leave_cancelled",
    "overdue",
    "scheduled",
    "topology",
    "configured",
    "racks",
    "wiped",
    "ready",
    "handover",
    "stalled",
    "unblocked",
    "probing",
    "hold_over",
)
"""What begins a decision round; of several in one step the first of this list names it. All up to `wiped` are natural changes: they reset the
probing interval (KIP-441)."""
NATURAL = frozenset(CAUSES[: CAUSES.index("wiped") + 1])
NEWS = NATURAL | {"ready"}
"""What comes from outside, for which members of a Kafka group would join anew; a round without any only follows up on what was decided."""

_PLACE = {"cancelled": 0, "granted": 1, "waiting": 2, "warming": 2, "revoking": 2}
"""In one step and for one task: what ends comes first, then who has it now, then where it goes next."""


class Context:
    """Collects the effects of one step on `state`."""

    def __init__(self, state: GroupState, deadlines: Deadlines, refuses: Callable[[GroupConfigured], bool]) -> None:
        self.state = state
        self.deadlines = deadlines
        self.refuses = refuses
        """Whether the assignor that a configuration names cannot take its knobs."""
        self.emitted: list[Decision] = []
        self.causes: set[str] = set()
        self.moves: dict[tuple[TaskId, int], Move] = {}
        """What happened to each task's movement; in one step one may end, a grant follow, and another begin."""
        self.unique = True
        self.observed: AssignmentObserved | None = None
        """What something else decided in this step (PROTOCOL D7)."""
        self.lifted = False
        """A hold is over before its time."""
        self.rescheduled = False
        """The time until which something is left undone on purpose is another than was told."""
        self.changed: set[str] = set()
        """Members whose set differs from what they were last told."""

    def note(self, move: Move) -> None:
        """Of several moves of one state the last one counts."""
        self.moves[move.task, _PLACE[move.state]] = move

    def noted(self, task: TaskId, state: str) -> Move | None:
        """What was noted for the task in this state, or in one that excludes it."""
        return self.moves.get((task, _PLACE[state]))

    def cancel(self, task: TaskId, reason: str) -> None:
        """The reason of a movement in flight is gone, or its slot is taken away: it ends here, explicitly (PROTOCOL D9)."""
        movement = self.state.in_flight.pop(task)
        self.note(Move(task=task, source=movement.source, destination=movement.destination, state="cancelled", reason=reason))
        destination = self.state.members.get(movement.destination)
        if destination is not None:
            destination.incoming.discard(task)
            if destination.warmup.pop(task, None) is not None:
                self.changed.add(destination.member_id)

    def release(self, member: MemberState, task: TaskId) -> None:
        """The member has given the task up: its destination may have it at once, and if there is none, a round decides."""
        del member.revoking[task]
        del self.state.owner[task]
        self.changed.add(member.member_id)
        movement = self.state.in_flight.get(task)
        if movement is None:
            if self.state.has_task(task):
                self.causes.add("handover")
            return
        del self.state.in_flight[task]
        destination = self.state.members[movement.destination]
        destination.incoming.discard(task)
        self.grant(destination, task)
        if member.leaving:
            self.state.homes[task] = member.member_id
        else:
            self.state.homes.pop(task, None)
        self.note(
            Move(
                task=task,
                source=movement.source,
                destination=movement.destination,
                state="granted",
                reason="carried",
                lag_records=known_lag(destination.lags.get(task)),
            )
        )
        if self.state.waiting or not self.state.in_flight or movement.source == movement.destination:
            # A slot came free and somebody waits for one, or all is done and the verdict is due, or who learns the task is to be said again.
            self.causes.add("handover")

    def pass_on(self, task: TaskId) -> None:
        """The task was granted and taken back in one step: nobody was told, so its next owner, if the round names one, has it at once."""
        movement = self.state.in_flight.get(task)
        granted = self.noted(task, "granted")
        if granted is None or movement is None or movement.state.value != "revoking":
            self._never_told(task, "not_wanted" if self.state.has_task(task) else "task_gone")
            return
        del self.state.in_flight[task]
        destination = self.state.members[movement.destination]
        destination.incoming.discard(task)
        self.grant(destination, task)
        del self.moves[task, _PLACE["revoking"]]
        self.note(attrs.evolve(granted, destination=movement.destination, lag_records=known_lag(destination.lags.get(task))))

    def _never_told(self, task: TaskId, reason: str) -> None:
        """The grant of this step with which a movement ended is taken back: what is told is that the movement was called off."""
        granted = self.moves.pop((task, _PLACE["granted"]), None)
        if granted is not None:
            self.note(attrs.evolve(granted, state="cancelled", reason=reason))

    def grant(self, member: MemberState, task: TaskId) -> None:
        """The member may run the task from the next MemberAssigned on. The task has no owner, or this one."""
        state = self.state
        member.revoking.pop(task, None)
        member.active[task] = member.issued_epoch + 1
        member.standby.discard(task)
        member.warmup.pop(task, None)
        state.owner[task] = member.member_id
        state.tokens[task] = state.tokens.get(task, 0) + 1
        state.lost.pop(task, None)
        if state.homes.get(task) == member.member_id:
            del state.homes[task]
        self.changed.add(member.member_id)

    def expire(self, member: MemberState, cause: str, *, hold_ms: int) -> None:
        """The incarnation is out, and is told so."""
        silent_ms = self.state.now_ms - member.last_heard_ms
        expired = MemberExpired(member_id=member.member_id, incarnation=member.incarnation, cause=cause, silent_ms=silent_ms, hold_ms=hold_ms)
        self.emitted.append(expired)
        self.remove_member(member, hold_ms=hold_ms)

    def rest_if_empty(self) -> None:
        """Nobody is left: nothing is under way, and no timer of a round runs (PROTOCOL L3: no ticks while a group is empty)."""
        state = self.state
        if not state.members:
            state.gathering_until_ms = None
            state.probing_deadline_ms = None
            state.scheduled_ms = None
            state.revocations = Revocations()
            state.memory = {}
            state.lost.clear()  # who comes first comes to an empty group, and that has a delay of its own (PROTOCOL D2)
            state.waiting = 0

    def remove_member(self, member: MemberState, *, hold_ms: int) -> None:
        """The incarnation is out. What it ran is free; with hold_ms > 0 the next owner waits, for the old one may run on (PROTOCOL M5)."""
        state = self.state
        if hold_ms:
            self._haunt(member, hold_ms)
        for task in sorted((*member.active, *member.revoking)):
            del state.owner[task]
            if member.is_untold(task):
                self._never_told(task, "destination_gone")
                continue
            movement = state.in_flight.get(task)
            if movement is None or movement.state.value == "warming":
                state.homes[task] = member.member_id
                state.lost[task] = Lost(since_ms=state.now_ms)
        for task in sorted(member.incoming):
            self.cancel(task, "destination_gone")
        for task in [task for task, movement in state.in_flight.items() if movement.source == member.member_id]:
            self._source_gone(task)
        for key in [key for key in state.backoffs if key[1] == member.member_id]:
            del state.backoffs[key]
        del state.members[member.member_id]
        self.changed.discard(member.member_id)

    def _haunt(self, member: MemberState, hold_ms: int) -> None:
        state = self.state
        tasks = {task for task in (*member.active, *member.revoking) if not member.is_untold(task)}
        for task in tasks:
            state.holds[task] = max(hold_ms, state.holds.get(task, 0))
        key = ghost_key(member.member_id, member.incarnation)
        if key in state.ghosts:
            tasks |= state.ghosts[key].tasks
        if tasks:
            state.ghosts[key] = Ghost(member.member_id, member.incarnation, member.session_timeout_ms, member.last_heard_ms, tasks)
            self.deadlines.watch(Timer.GHOST, (key, NO_TASK))

    def lay(self, key: str) -> None:
        """The ghost has been silent for its session timeout: who has its tasks need not wait any longer (PROTOCOL M5)."""
        state = self.state
        for task in sorted(state.ghosts.pop(key).tasks):
            if any(task in ghost.tasks for ghost in state.ghosts.values()):
                continue
            del state.holds[task]
            owner = state.owner.get(task)
            if owner is not None and task in state.members[owner].active:
                self.changed.add(owner)
                self.lifted = True

    def has_waited(self, task: TaskId) -> None:
        """Its owner is known to run it, so whoever had it before is over."""
        state = self.state
        del state.holds[task]
        for key in [key for key, ghost in state.ghosts.items() if task in ghost.tasks]:
            state.ghosts[key].tasks.discard(task)
            if not state.ghosts[key].tasks:
                del state.ghosts[key]

    def _source_gone(self, task: TaskId) -> None:
        """The task is free now. A movement that was being handed over is finished; one that was warming ends, and ranks decide anew."""
        movement = self.state.in_flight[task]
        destination = self.state.members[movement.destination]
        if movement.state.value == "revoking":
            del self.state.in_flight[task]
            destination.incoming.discard(task)
            self.grant(destination, task)
            self.note(Move(task=task, source=movement.source, destination=movement.destination, state="granted", reason="carried"))
        else:
            self.cancel(task, "source_gone")

    def begin_drain(self, member: MemberState) -> None:
        """The member wants to leave: it gets nothing new, and its tasks go elsewhere by drain_timeout_ms (PROTOCOL M7)."""
        member.leaving = True
        member.drain_deadline_ms = self.state.now_ms + self.state.knobs.drain_timeout_ms
        self.deadlines.watch(Timer.DRAIN, (member.member_id, NO_TASK))
        for task in sorted(member.incoming):
            self.cancel(task, "destination_leaving")
        for task in sorted(task for task, epoch in member.active.items() if epoch > member.issued_epoch):
            # Granted by a deadline of this very step, before its word was heard: nobody was told, so it is free for somebody who stays.
            del member.active[task]
            del self.state.owner[task]
            self._never_told(task, "destination_leaving")
        self.causes.add("leave_intended")
