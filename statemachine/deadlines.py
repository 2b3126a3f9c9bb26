"""Timers. Each timer is a deadline in the state; a heap finds the due ones without looking at all
(docs/protocol.md#l3).

The heap is derived from the state. An entry says when to look at a timer again. A heartbeat moves
its member's deadline without touching the heap: the old entry is found too early and put back at
the time that the state gives. So a lag report costs nothing here, whatever the group's size.

A timer that does not run has no entry. Whatever starts a timer, or moves it to an earlier time,
calls `watch`. A configuration can do that to any timer, so it calls `rebuild`.
"""

from __future__ import annotations

import enum
import heapq

from equipoise.assignors import MovementState
from equipoise.events.tasks import TaskId
from equipoise.statemachine.state import GroupPhase, GroupState


class Timer(enum.IntEnum):
    """What a deadline is for. Deadlines of one time are handled in this order: members that are
    removed come first, then what their removal makes possible.
    """

    SESSION = 1
    REVOCATION = 2
    FENCED = 3
    DRAIN = 4
    STALL = 5
    UNBLOCK = 6
    SLOT_BACKOFF = 7
    CRASH_BACKOFF = 8
    GATHERING = 9
    SCHEDULED = 10
    PROBING = 11


Key = tuple[str, TaskId]
"""(member_id, key of a fenced incarnation, or ""; task or NO_TASK)."""
NO_TASK = TaskId(0, 0)
GROUP_KEY: Key = ("", NO_TASK)


def due_at_ms(state: GroupState, timer: Timer, key: Key) -> int | None:
    """Group time, in ms, at which this timer is due by the state now; None: it does not run."""
    settings = state.settings
    if timer is Timer.GATHERING:
        return state.gathering_until_ms
    if timer is Timer.SCHEDULED:
        return state.scheduled_ms
    if timer is Timer.PROBING:
        return state.probing_deadline_ms
    if timer is Timer.UNBLOCK:
        backoff = state.backoffs.get((key[1], key[0]))
        return None if backoff is None or backoff.over else backoff.until_ms
    if timer is Timer.FENCED:
        fenced = state.fenced.get(key[0])
        return None if fenced is None else fenced.last_heard_ms + fenced.session_timeout_ms
    member = state.members.get(key[0])
    if member is None:
        return None
    if timer is Timer.SESSION:
        return None if state.phase is GroupPhase.SHADOWING else member.last_heard_ms + member.session_timeout_ms
    if timer is Timer.REVOCATION:
        return min(since_ms for _, since_ms in member.revoking.values()) + settings.revocation_timeout_ms if member.revoking else None
    if timer is Timer.DRAIN:
        return member.drain_deadline_ms
    if timer is Timer.CRASH_BACKOFF:
        return state.crashes[key[0]].until_ms if key[0] in state.crashes else None
    if timer is Timer.SLOT_BACKOFF:
        return None if member.slot_backoff is None or member.slot_backoff.over else member.slot_backoff.until_ms
    warmup = member.warmup.get(key[1])
    if warmup is None:
        return None
    if warmup.caught_up:
        movement = state.in_flight.get(key[1])
        if movement is None or movement.destination != key[0] or movement.state is MovementState.REVOKING:
            return None  # the member must still declare this one ready, and its assignor waits for that
    return min(warmup.improved_ms, warmup.looked_ms) + settings.warmup_stall_ms


class Deadlines:
    """The heap of one group's timers."""

    def __init__(self, state: GroupState) -> None:
        self._state = state
        self._heap: list[tuple[int, Timer, Key]] = []
        self.rebuild()

    def rebuild(self) -> None:
        """Watches every timer that runs now. Costs time in the group's size."""
        state = self._state
        self._heap.clear()
        for member_id in sorted(state.members):
            member = state.members[member_id]
            self.watch(Timer.SESSION, (member_id, NO_TASK))
            self.watch(Timer.REVOCATION, (member_id, NO_TASK))
            self.watch(Timer.DRAIN, (member_id, NO_TASK))
            self.watch(Timer.SLOT_BACKOFF, (member_id, NO_TASK))
            self.watch(Timer.CRASH_BACKOFF, (member_id, NO_TASK))
            for task in sorted(member.warmup):
                self.watch(Timer.STALL, (member_id, task))
        for task, member_id in sorted(state.backoffs):
            self.watch(Timer.UNBLOCK, (member_id, task))
        for key in sorted(state.fenced):
            self.watch(Timer.FENCED, (key, NO_TASK))
        self.watch(Timer.GATHERING)
        self.watch(Timer.SCHEDULED)
        self.watch(Timer.PROBING)

    def watch(self, timer: Timer, key: Key = GROUP_KEY) -> None:
        """Adds a timer that starts or moves to an earlier time."""
        at_ms = due_at_ms(self._state, timer, key)
        if at_ms is not None:
            heapq.heappush(self._heap, (at_ms, timer, key))

    def running(self) -> set[tuple[int, Timer, Key]]:
        """Every timer that runs and whose entry is found in time, as (due time in group ms, timer,
        key). For tests. Costs time in the heap's size.
        """
        found = set()
        for at_ms, timer, key in self._heap:
            due_ms = due_at_ms(self._state, timer, key)
            if due_ms is not None and at_ms <= due_ms:
                found.add((due_ms, timer, key))
        return found

    def take_due(self) -> list[tuple[Timer, Key]]:
        """Removes and returns every timer that is due, each once, by (due time, timer, key)."""
        now_ms = self._state.now_ms
        heap = self._heap
        if not heap or heap[0][0] > now_ms:
            return []
        due: set[tuple[int, Timer, Key]] = set()
        while heap and heap[0][0] <= now_ms:
            _, timer, key = heapq.heappop(heap)
            at_ms = due_at_ms(self._state, timer, key)
            if at_ms is None:
                continue
            if at_ms > now_ms:
                heapq.heappush(heap, (at_ms, timer, key))
            else:
                due.add((at_ms, timer, key))
        return [(timer, key) for _, timer, key in sorted(due)]

    def next_ms(self) -> int | None:
        """Group time of the next deadline, in ms; None: no timer runs. Drops stale entries."""
        heap = self._heap
        while heap:
            at_ms, timer, key = heap[0]
            actual_ms = due_at_ms(self._state, timer, key)
            if actual_ms == at_ms:
                return at_ms
            heapq.heappop(heap)
            if actual_ms is not None:
                heapq.heappush(heap, (actual_ms, timer, key))
        return None
