"""Which copies keep their warm-up slots (docs/protocol.md#m7). Every `warmup_stall_ms` each copy
with a slot is looked at and judged by its progress.

A copy without progress has stalled and loses its slot. Each step of preparing a copy is progress,
and such a copy is not judged by its speed. The speed of a restoring copy gives its expected time to
ready. When a task that waits for a slot would be ready far sooner, it gets the slot. The slower
copy loses nothing: it stays on disk and continues from there later.

Copies of similar speed never give way to each other, so several slow ones are restored in turn. A
member whose speed is unknown is tried when a copy has very long to go. After that its speed is
known, so each member is tried once, which costs little compared with the copies it delays.
"""

from __future__ import annotations

import attrs

from equipoise.events.fields import INT64_MAX
from equipoise.events.tasks import TaskId
from equipoise.statemachine import actions
from equipoise.statemachine.deadlines import NO_TASK, Timer
from equipoise.statemachine.state import GroupState, MemberState, known_lag
from equipoise.statemachine.step_context import StepContext

FAR_SOONER = 2
"""A copy gives way to one whose expected time, times this, is at most its own."""
LONG_LOOKS = 10
"""A member of unknown speed is tried instead of a copy that needs at least this many times
`warmup_stall_ms`.
"""


@attrs.frozen
class Progress:
    """How many records closer to its end a copy came within `elapsed_ms`; negative: its changelog
    grew by more than the copy restored.
    """

    records: int
    elapsed_ms: int

    def expected_ms(self, missing: int) -> int | None:
        """Time to restore `missing` records at this speed, in ms; None: forever."""
        return missing * self.elapsed_ms // self.records if self.records > 0 else None

    def records_per_s(self, copies: int) -> int:
        """Speed of a member that restores this many copies at once, each at this speed; at least 1,
        because 0 means unknown.
        """
        return max(1, min(self.records * 1_000 * copies // max(1, self.elapsed_ms), INT64_MAX))


def look_at(context: StepContext, member: MemberState, task: TaskId) -> None:
    """Judges a warm-up whose time has come: it stalled, gives way, or continues."""
    state = context.state
    warmup = member.warmup[task]
    lag = known_lag(member.lags.get(task))
    if state.is_handed_over(member, task):
        # It gets the task however slow it is, because nothing in its place is ready sooner. Should
        # the hand-over be cancelled, it stalls a whole period later.
        actions.look_again(state, member, task)
        actions.restart_stall(state, member, task)
        context.deadlines.watch(Timer.STALL, (member.member_id, task))
        return
    nearer = 0 if lag is None or warmup.looked_lag is None else warmup.looked_lag - lag
    progress = Progress(nearer, state.now_ms - warmup.looked_ms)
    prepares = member.awaits_word(task, state.acceptable_lag(member))
    if state.now_ms - warmup.improved_ms >= state.settings.warmup_stall_ms:
        if not prepares:
            actions.measure_speed(member, 1)
        if not context.is_apart(task):
            _give_way(context, member, None, Progress(0, 1))
        _stalled(context, member, task, "not_prepared" if prepares else "stalled")
        return
    actions.look_again(state, member, task)
    context.deadlines.watch(Timer.STALL, (member.member_id, task))
    if warmup.caught_up or prepares:
        return  # its member must still declare it ready, and no lag shows when it will
    actions.measure_speed(member, progress.records_per_s(len(member.warmup)))
    expected_ms = progress.expected_ms(_missing(state, member, task))
    is_slow = expected_ms is None or expected_ms > state.settings.warmup_stall_ms
    if is_slow and not context.is_apart(task) and _give_way(context, member, expected_ms, progress):
        _end(context, member, task, "outpaced")
        context.causes.add("outpaced")


def _stalled(context: StepContext, member: MemberState, task: TaskId, reason: str) -> None:
    """Ends the warm-up, with a back-off twice as long as the last one."""
    _end(context, member, task, reason)
    actions.begin_backoff(context.state, member, task)
    context.deadlines.watch(Timer.UNBLOCK, (member.member_id, task))
    context.causes.add("stalled")


def _end(context: StepContext, member: MemberState, task: TaskId, reason: str) -> None:
    movement = context.state.in_flight.get(task)
    if movement is not None and movement.destination == member.member_id:
        context.cancel(task, reason)
    else:  # it was meant to replace a standby elsewhere
        actions.end_warmup(member, task)
        context.changed.add(member.member_id)


def _give_way(context: StepContext, member: MemberState, expected_ms: int | None, progress: Progress) -> bool:
    """Returns whether a task that waits for a slot gets the slot of the member's copy, which is
    expected to be ready in `expected_ms` (None: never).

    If so, none of the member's own tasks takes that slot: no warm-up begins on the member for half
    of that time, or until no task waits any more.
    """
    state = context.state
    waiter = _far_sooner(context, member, expected_ms, progress)
    if waiter is None:
        return False
    destination = context.promised[waiter] = actions.take_queued(state, waiter)
    own = {waiter} if destination == member.member_id else set()
    backoff = member.slot_backoff
    if backoff is not None and not backoff.over:
        actions.exempt_from(backoff, own)
        return True
    actions.begin_slot_backoff(state, member, own, least_ms=(expected_ms or 0) // FAR_SOONER)
    context.deadlines.watch(Timer.SLOT_BACKOFF, (member.member_id, NO_TASK))
    return True


def _far_sooner(context: StepContext, member: MemberState, expected_ms: int | None, progress: Progress) -> TaskId | None:
    """The first task that waits for a slot and would be ready far sooner in the slot of the
    member's copy, or whose member of unknown speed is worth a try.
    """
    state = context.state
    is_long = expected_ms is None or expected_ms >= LONG_LOOKS * state.settings.warmup_stall_ms
    for task, name in sorted(state.queued.items()):
        destination = state.members.get(name)
        if destination is None or destination.leaving:
            continue
        if destination is member:
            needed_ms = progress.expected_ms(_missing(state, member, task))  # it would restore in the place of this copy, at its speed
        elif not _has_free_slot(context, destination):
            continue
        elif not destination.measured_records_per_s:
            if is_long:
                return task
            continue
        else:
            copies = len(destination.warmup) + 1
            speed = destination.measured_records_per_s // copies - state.growth_records_per_s(task)
            needed_ms = _missing(state, destination, task) * 1_000 // speed if speed > 0 else None
        if needed_ms is not None and (expected_ms is None or FAR_SOONER * needed_ms <= expected_ms):
            return task
    return None


def _has_free_slot(context: StepContext, member: MemberState) -> bool:
    """Returns whether another warm-up may begin on the member."""
    if member.slot_backoff is not None and not member.slot_backoff.over:
        return False
    promised = sum(name == member.member_id for name in context.promised.values())
    return sum(not context.is_apart(task) for task in member.warmup) + promised < context.state.settings.max_warmups_per_member


def _missing(state: GroupState, member: MemberState, task: TaskId) -> int:
    """Records until the member's copy counts as caught up; the whole changelog when no lag is
    known.
    """
    lag = known_lag(member.lags.get(task))
    return max(0, (state.records(task) if lag is None else lag) - state.acceptable_lag(member))
