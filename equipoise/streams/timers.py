"""Timers that are kept in the state of their task, and so survive hand-overs and crashes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakSet

from equipoise.events.errors import InputError
from equipoise.member.tasks.callbacks import call_sync, check_sync
from equipoise.member.tasks.context import State, TaskContext
from equipoise.member.tasks.serdes import Serde
from equipoise.streams.kept import Kept
from equipoise.streams.stream_time import TIME_BYTES, advance, packed

BY = ("stream", "clock")
LOOK_S = 0.5


class Timers(Kept):
    """Calls `callback(context, key, value, due_ms)` once for each timer that is due, earliest
    first. A key has one at each time; another one at the same time replaces it. `callback` cannot
    be async.

    `by`: "stream": when stream time has reached `due_ms`. Call `run` with each record, before it is
    handled, so that no timer comes before records that were there before it. "clock": by the
    member's clock, within half a second; call `start` in `on_assigned`. While the task has records
    to read that are there, no timer comes.
    """

    _kind = "reminders"
    """The former name, which is stored."""

    def __init__(
        self,
        name: str,
        callback: Callable[[TaskContext, Any, Any, int], object],
        *,
        by: str = "stream",
        state: str | None = None,
        serde: Serde | None = None,
    ) -> None:
        super().__init__(name, state=state, serde=serde)
        if by not in BY:
            raise InputError(f"Timers.by: {by!r} is neither 'stream' nor 'clock'")
        check_sync("Timers.callback", callback, "context, key, value, due_ms")
        self._callback, self._by = callback, by
        self._started: WeakSet[State] = WeakSet()
        """Of the tasks that run here."""

    def set(self, context: TaskContext, due_ms: int, key: Any, value: Any = None) -> None:
        """Adds a timer. One that is due already comes with the next `run`. Raises InputError for
        one by the clock before `start`, without which none comes.
        """
        state = self._state(context)
        if self._by == "clock" and state not in self._started:
            raise InputError(f"Timers {self.name!r}: nobody looks at the clock for them; call start(context) in on_assigned")
        state.put_own(self._by_time + packed(due_ms) + state.key_bytes(key), self._pack(value))
        marks = self._marks(state)
        if not marks or due_ms < marks[0]:
            self._set_marks(state, max(0, due_ms))

    def cancel(self, context: TaskContext, due_ms: int, key: Any) -> None:
        """Removes a timer, if it is there."""
        state = self._state(context)
        state.put_own(self._by_time + packed(due_ms) + state.key_bytes(key), None)

    def run(self, context: TaskContext, at_ms: int) -> int:
        """Notes a record of this time, and calls what stream time has made due. Returns how many."""
        return self._call_due(context, advance(context, at_ms))

    def start(self, context: TaskContext) -> None:
        """Calls what is due by the clock, as long as the task runs here. Raises InputError for
        timers by stream time.
        """
        if self._by != "clock":
            raise InputError(f"Timers {self.name!r}: they go by stream time; call `run` with each record, or give by='clock'")
        context.every(LOOK_S, self._look)
        self._started.add(self._state(context))

    def _look(self, context: TaskContext) -> None:
        if context.is_caught_up:
            self._call_due(context, context.now_ms)

    def _call_due(self, context: TaskContext, now_ms: int) -> int:
        state, called = self._state(context), 0
        at = len(self._by_time)
        while (marks := self._marks(state)) and marks[0] <= now_ms:
            found = next(state.range_own(self._by_time + packed(marks[0]), self._by_time + packed(now_ms + 1)), None)
            if found is None:
                rest = next(state.range_own(self._by_time + packed(now_ms + 1), self._by_time + b"\xff"), None)
                if rest is None:
                    self._set_marks(state)
                else:
                    self._set_marks(state, int.from_bytes(rest[0][at : at + TIME_BYTES]))
                break
            index, raw = found
            due_ms = int.from_bytes(index[at : at + TIME_BYTES])
            self._set_marks(state, due_ms)
            state.put_own(index, None)
            key = state.key_of(index[at + TIME_BYTES :])
            record_ms, context.record_ms = context.record_ms, due_ms if self._by == "stream" else None
            try:
                call_sync(f"Timers {self.name!r}: callback", self._callback, context, key, self._unpack(raw), due_ms)
            finally:
                context.record_ms = record_ms
            called += 1
        return called

    def pending(self, context: TaskContext) -> int:
        """The number of timers that wait, in this task. Costs as much as there are."""
        state = self._state(context)
        return sum(1 for _ in state.range_own(self._by_time, self._by_time + b"\xff"))
