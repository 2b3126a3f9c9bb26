"""Stream time of a task: the highest timestamp that its records had. It is kept in each state of
the task, committed with it, and never goes back. A time further ahead of the brokers' clock than
`max_ahead_ms` does not move it: all later records would be late, for ever.
"""

from __future__ import annotations

from equipoise.member.tasks.context import STREAMS_PREFIX, State, TaskContext

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
    least = at_ms if 0 <= at_ms <= context.latest_ms else 0 if context.is_ahead(at_ms) else max(0, at_ms)
    state = context.only_state
    if state is not None:  # without a loop, for the most of tasks
        return state.raise_often(_KEY, least, int.from_bytes, packed)
    return max((each.raise_often(_KEY, least, int.from_bytes, packed) for each in context.states.values()), default=0)
