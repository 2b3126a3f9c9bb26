"""Stream time of a task: the highest timestamp that its records had. It is kept in each state of
the task, committed with it, and never goes back.
"""

from __future__ import annotations

from equipoise.member.task_context import STREAMS_PREFIX, State, TaskContext

_KEY = STREAMS_PREFIX + b"\0time"
TIME_BYTES = 8
LATEST = b"\xff" * TIME_BYTES


def packed(at_ms: int) -> bytes:
    """A time as bytes that are in its order."""
    return max(0, at_ms).to_bytes(TIME_BYTES)


def time_of(state: State) -> int:
    """Stream time as this state has it, in ms since 1970; 0: nothing was handled."""
    return state.get_often(_KEY, int.from_bytes) or 0


def stream_time_ms(context: TaskContext) -> int:
    """Stream time of the task, in ms since 1970; 0: nothing was handled."""
    return max(map(time_of, context.states.values()), default=0)


def advance(context: TaskContext, at_ms: int) -> int:
    """Notes a record of this time. Returns the stream time. Windows and joins call this themselves;
    call it for records that go to none.
    """
    state, now_ms = context.only_state, 0
    if state is not None:  # the same without a loop, for the most of tasks
        now_ms = state.get_often(_KEY, int.from_bytes)
        if now_ms is None or now_ms < at_ms:
            now_ms = max(0, at_ms)
            state.put_often(_KEY, now_ms, packed)
        return now_ms
    for each in context.states.values():
        known_ms = each.get_often(_KEY, int.from_bytes)
        if known_ms is None or known_ms < at_ms:
            known_ms = max(0, at_ms)
            each.put_often(_KEY, known_ms, packed)
        if known_ms > now_ms:
            now_ms = known_ms
    return now_ms
