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
from collections.abc import Callable, Iterator

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


def _of_session(state: GroupState, key: Key) -> int | None:
    member = state.members.get(key[0])
    if member is None or state.phase is GroupPhase.SHADOWING:
        return None
    if state.is_away(key[0]):
        return state.restarts[key[0]].until_ms
    return member.last_heard_ms + member.session_timeout_ms


def _of_revocation(state: GroupState, key: Key) -> int | None:
    member = state.members.get(key[0])
    if member is None or not member.revoking:
        return None
    return min(since_ms for _, since_ms in member.revoking.values()) + state.settings.revocation_timeout_ms


def _of_fenced(state: GroupState, key: Key) -> int | None:
    fenced = state.fenced.get(key[0])
    return None if fenced is None else fenced.last_heard_ms + fenced.session_timeout_ms


def _of_drain(state: GroupState, key: Key) -> int | None:
    member = state.members.get(key[0])
    return None if member is None else member.drain_deadline_ms


def _of_stall(state: GroupState, key: Key) -> int | None:
    member = state.members.get(key[0])
    warmup = None if member is None else member.warmup.get(key[1])
    if warmup is None or state.phase is GroupPhase.SHADOWING:  # nobody reports between the rounds of another leader
        return None
    if warmup.caught_up:
        movement = state.in_flight.get(key[1])
        if movement is None or movement.destination != key[0] or movement.state is MovementState.REVOKING:
            return None  # the member must still declare this one ready, and its assignor waits for that
    return min(warmup.improved_ms, warmup.looked_ms) + state.settings.warmup_stall_ms


def _of_unblock(state: GroupState, key: Key) -> int | None:
    backoff = state.backoffs.get((key[1], key[0]))
    return None if backoff is None or backoff.over else backoff.until_ms


def _of_slot_backoff(state: GroupState, key: Key) -> int | None:
    member = state.members.get(key[0])
    backoff = None if member is None else member.slot_backoff
    return None if backoff is None or backoff.over else backoff.until_ms


def _of_crash_backoff(state: GroupState, key: Key) -> int | None:
    return state.crashes[key[0]].until_ms if key[0] in state.members and key[0] in state.crashes else None


_DUE: tuple[Callable[[GroupState, Key], int | None], ...] = (
    _of_session,
    _of_revocation,
    _of_fenced,
    _of_drain,
    _of_stall,
    _of_unblock,
    _of_slot_backoff,
    _of_crash_backoff,
    lambda state, key: state.gathering_until_ms,
    lambda state, key: state.scheduled_ms,
    lambda state, key: state.probing_deadline_ms,
)
"""By the number of the `Timer`, from 1 on."""


def due_at_ms(state: GroupState, timer: Timer, key: Key) -> int | None:
    """Group time, in ms, at which this timer is due by the state now; None: it does not run."""
    return _DUE[timer - 1](state, key)


def timers_of(state: GroupState) -> Iterator[tuple[int, Timer, Key]]:
    """Every timer that runs by the state, as (due time in group ms, timer, key). Costs time in the
    group's size.
    """
    for timer, key in _possible(state):
        at_ms = _DUE[timer - 1](state, key)
        if at_ms is not None:
            yield at_ms, timer, key


def _possible(state: GroupState) -> Iterator[tuple[Timer, Key]]:
    """Every timer that may run, in the order in which a heap is built."""
    for member_id in sorted(state.members):
        member = state.members[member_id]
        key = member_id, NO_TASK
        for timer in _OF_A_MEMBER:
            yield timer, key
        for task in sorted(member.warmup):
            yield Timer.STALL, (member_id, task)
    for task, member_id in sorted(state.backoffs):
        yield Timer.UNBLOCK, (member_id, task)
    for fenced in sorted(state.fenced):
        yield Timer.FENCED, (fenced, NO_TASK)
    for timer in _OF_THE_GROUP:
        yield timer, GROUP_KEY


_OF_A_MEMBER = (Timer.SESSION, Timer.REVOCATION, Timer.DRAIN, Timer.SLOT_BACKOFF, Timer.CRASH_BACKOFF)
_OF_THE_GROUP = (Timer.GATHERING, Timer.SCHEDULED, Timer.PROBING)


class Deadlines:
    """The heap of one group's timers."""

    def __init__(self, state: GroupState) -> None:
        self._state = state
        self._heap: list[tuple[int, Timer, Key]] = []
        self.rebuild()

    def rebuild(self) -> None:
        """Watches every timer that runs now. Costs time in the group's size."""
        self._heap[:] = timers_of(self._state)
        heapq.heapify(self._heap)

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

    def may_be_before(self, at_ms: int) -> bool:
        """Returns whether the next deadline may be before this group time: entries are never later
        than their timers.
        """
        return bool(self._heap) and self._heap[0][0] < at_ms

    def are_all(self, timer: Timer) -> bool:
        """Returns whether no other timer than these runs; may be False for a while after the last
        one.
        """
        return all(entry[1] is timer for entry in self._heap)

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
