"""Windows of a fixed length: one begins every so often, and a key has one value in each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Generic, NamedTuple

from equipoise.events.errors import InputError
from equipoise.member.tasks.context import KeptError, State, TaskContext
from equipoise.member.tasks.drops import DropReason
from equipoise.member.tasks.serdes import Serde
from equipoise.streams.aggregates import A, Aggregate, R, V
from equipoise.streams.kept import Kept, OnLate, _packed, _unpacked, check_ms
from equipoise.streams.stream_time import LATEST, TIME_BYTES, advance, packed, time_of

EMITS = ("update", "final")
_new_result: Any = tuple.__new__
"""In half of the time that the class takes."""
MOST_CLOSED = 1_000
"""Windows that are returned as closed with one record; the others are with the next ones."""
MOST_DROPPED = 8
"""Windows without result that are dropped with one record: more than one record makes, so that
there are never many, and no record and no commit has to wait for millions.
"""
RECORDS_PER_DROP = 32
"""Fixed windows are dropped with one record for so many: to begin a range costs more than its keys.
"""


class WindowResult(NamedTuple, Generic[R]):
    """The value of a key in one window, from `start_ms` to before `end_ms`. Of a session and a
    sliding window `end_ms` is the time of its last record. `is_closed`: no record can change it.
    `replaces`: (start, end) of the sessions that have become one.
    """

    key: Any
    start_ms: int
    end_ms: int
    value: R
    is_closed: bool = False
    replaces: tuple[tuple[int, int], ...] = ()


class AnyWindows(Kept, Generic[V, A, R]):
    """Windows of any kind. `name`: unique in the state. `grace_ms`: how much later than
    later ones a record may come. `emit`: "update": `add` returns each window that it changes, again
    and again. "final": only those that stream time has passed, each once. `on_late` gets records
    that come later still, which are counted.
    """

    _drops = DropReason.LATE, DropReason.NULL_KEY

    def __init__(
        self,
        name: str,
        aggregate: Aggregate[V, A, R],
        *,
        grace_ms: int = 0,
        emit: str = "update",
        on_late: OnLate | None = None,
        state: str | None = None,
        serde: Serde | None = None,
    ) -> None:
        super().__init__(name, state=state, serde=serde, on_late=on_late)
        if not isinstance(aggregate, Aggregate):
            raise InputError(f"{type(self).__name__}.aggregate: {aggregate!r:.60} is no Aggregate; call what makes one, as in count()")
        check_ms(f"{type(self).__name__}.grace_ms", grace_ms, 0)
        if emit not in EMITS:
            raise InputError(f"{type(self).__name__}.emit: {emit!r} is neither 'update' nor 'final'")
        self._aggregate, self._grace_ms, self._emits_updates = aggregate, grace_ms, emit == "update"
        self._most = MOST_DROPPED if self._emits_updates else MOST_CLOSED

    def add(self, context: TaskContext, key: Any, value: V, at_ms: int) -> list[WindowResult[R]]:
        """Adds a value with this timestamp. Returns what `emit` says, in a fixed order: windows
        that were changed, then those that are closed now.
        """
        if key is None:
            self._note_drop(context, DropReason.NULL_KEY, at_ms=at_ms)
            return []
        at_ms = max(0, at_ms)
        now_ms, state = advance(context, at_ms), self._state(context)
        results = self._add(state, key, value, at_ms, now_ms)
        if results is None:
            self._note_late(context, state, key, value, at_ms)
            results = []
        closed = self._close(state, now_ms, self._most)
        return results if self._emits_updates else closed

    def close(self, context: TaskContext) -> list[WindowResult[R]]:
        """Closes all that stream time has passed, after `advance`. Returns it, if `emit` says so."""
        state = self._state(context)
        return self._close(state, time_of(state), None)

    def _add(self, state: State, key: Any, value: V, at_ms: int, now_ms: int) -> list[WindowResult[R]] | None:
        """None: it is late."""
        raise NotImplementedError

    def _close(self, state: State, now_ms: int, most: int | None) -> list[WindowResult[R]]:
        """Closes the earliest windows that have passed, at most so many; None: all."""
        raise NotImplementedError


class FixedWindows(AnyWindows[V, A, R]):
    """Windows of `size_ms`, of which one begins each `advance_ms` (None: `size_ms`, so that they do
    not overlap), since 1970. One is closed when stream time has reached its end and `grace_ms`
    more. Then it is dropped, or with `retention_ms` that long after its begin. Kept windows go on
    with another `grace_ms`, `retention_ms` and `emit`; a closed one is not opened again.
    """

    _kind = "windows of a fixed size"

    def __init__(
        self,
        name: str,
        aggregate: Aggregate[V, A, R],
        *,
        size_ms: int,
        advance_ms: int | None = None,
        grace_ms: int = 0,
        retention_ms: int = 0,
        emit: str = "update",
        on_late: OnLate | None = None,
        state: str | None = None,
        serde: Serde | None = None,
    ) -> None:
        super().__init__(name, aggregate, grace_ms=grace_ms, emit=emit, on_late=on_late, state=state, serde=serde)
        check_ms("FixedWindows.size_ms", size_ms, 1)
        check_ms("FixedWindows.retention_ms", retention_ms, 0)
        self._advance_ms = size_ms if advance_ms is None else advance_ms
        check_ms("FixedWindows.advance_ms", self._advance_ms, 1)
        if self._advance_ms > size_ms:
            raise InputError(f"FixedWindows.advance_ms: {advance_ms} is more than size_ms {size_ms}: records between windows would be in none")
        self._size_ms, self._open_ms, self._kept_ms = size_ms, size_ms + grace_ms, max(size_ms + grace_ms, retention_ms)
        self._waits_ms = self._open_ms - 1
        most_dropped = MOST_DROPPED + 2 * (size_ms // self._advance_ms)
        self._most, self._most_dropped = max(self._most, most_dropped), RECORDS_PER_DROP * most_dropped
        self._former_mark, self._mark = self._mark, self._prefix + b"s"
        """For former builds: in windows since 1970, not in ms. A task may go there and come back.
        """
        self._closed_to, self._dropped_to = self._prefix + b"c", self._prefix + b"d"
        """Keys of the first place to go on from, while not all that has passed is closed, dropped.
        """

    def _sizes(self) -> dict[str, int]:
        return {"size_ms": self._size_ms, "every_ms": self._advance_ms}

    def _compared(self, state: State) -> dict[str, Any] | None:
        had, former = super()._compared(state), self._former_marks(state)
        if had is None and former and not time_of(state) * 9 // 10 <= max(former) <= time_of(state) + self._advance_ms:
            raise KeptError(f"{self._kind} {self.name!r} had another advance_ms, or size_ms; give them another name, or the former sizes")
        return had

    def _go_on(self, state: State, had: dict[str, Any] | None) -> int:
        marks, former = self._marks(state) or (0, 0), self._former_marks(state)
        if former:
            newer = max(marks[0], former[0]), max(marks[1], former[1])
            if newer != marks:
                self._set_marks(state, *(marks := newer))
        from_ms = super()._go_on(state, had)
        return from_ms if had is not None else marks[1] if self._emits_updates else marks[0]

    def _former_marks(self, state: State) -> list[int]:
        former: tuple[int, ...] = state.get_often(self._former_mark, _unpacked) or ()
        return [each * self._advance_ms for each in former]

    def _set_marks(self, state: State, *marks: int) -> None:
        super()._set_marks(state, *marks)
        state.put_often(self._former_mark, tuple(each // self._advance_ms for each in marks), _packed)

    def add(self, context: TaskContext, key: Any, value: V, at_ms: int) -> list[WindowResult[R]]:
        """Adds a value with this timestamp. Returns what `emit` says, in a fixed order: windows
        that were changed, or those that are closed, at most 1,000 with one record.
        """
        if key is None:
            self._note_drop(context, DropReason.NULL_KEY, at_ms=at_ms)
            return []
        if at_ms < 0:
            at_ms = 0
        now_ms, size_ms, advance_ms, kept = advance(context, at_ms), self._size_ms, self._advance_ms, self._aggregate
        state = (context.only_state if self._topic is None else None) or self._state(context)
        met = state.met.get(self._prefix)
        if met is None or met[0] is not self._token:
            met = self._meet(state)
        first_ms = met[1]
        raw_key, emits, results = state.key_bytes(key), self._emits_updates, []
        start = at_ms - at_ms % advance_ms
        is_late = True
        while start > at_ms - size_ms and start >= first_ms and start + self._open_ms > now_ms:
            is_late = False
            place = self._by_time + start.to_bytes(TIME_BYTES) + raw_key
            before = state.get_own(place)
            after = kept.add(kept.init() if before is None else self._unpack(before), value)
            state.put_own(place, self._pack(after))
            if emits:
                results.append(_new_result(WindowResult, (key, start, start + size_ms, kept.result(after), False, ())))
            start -= advance_ms
        if is_late:
            self._note_late(context, state, key, value, at_ms)
        elif results[1:]:
            results.reverse()  # the earliest first
        due_ms = state.due_ms.get(self._mark)
        if due_ms is None or now_ms >= due_ms:
            if not emits:
                return self._close(state, now_ms, self._most)
            if not state.is_waited_for(self._mark):
                self._close(state, now_ms, self._most)
        return results

    def _close(self, state: State, now_ms: int, most: int | None) -> list[WindowResult[R]]:
        advance_ms = self._advance_ms
        is_open = ((now_ms - self._open_ms) // advance_ms + 1) * advance_ms
        is_kept = ((now_ms - self._kept_ms) // advance_ms + 1) * advance_ms
        was_open, was_kept = marks = self._marks(state) or (0, 0)
        results: list[WindowResult[R]] = []
        if self._emits_updates:
            was_open = max(is_open, was_open)
        elif is_open > was_open:
            closed, was_open = self._passed(state, self._closed_to, was_open, is_open, most)
            results = [self._result(state, place, raw, is_closed=True) for place, raw in closed]
        is_kept = min(is_kept, was_open)  # a window is closed before it is dropped
        if is_kept > was_kept:
            most = None if most is None else max(self._most_dropped, len(results))
            dropped, was_kept = self._passed(state, self._dropped_to, was_kept, is_kept, most)
            for place, _ in dropped:
                state.put_own(place, None)
        if (was_open, was_kept) != marks:
            self._set_marks(state, was_open, was_kept)
        due_ms = was_kept + self._kept_ms
        state.due_ms[self._mark] = due_ms if self._emits_updates else min(due_ms, was_open + self._open_ms)
        return results

    def _passed(self, state: State, cursor: bytes, begin: int, end: int, most: int | None) -> tuple[list[tuple[bytes, bytes]], int]:
        """The first windows that begin from then to before then, at most so many, and `end`; or
        `begin`, if there may be more. Then the place of the next one is kept at `cursor`: a store
        passes over what was deleted before it at the cost of each key.
        """
        first = state.get_often(cursor, bytes)
        found = list(islice(self._from(state, begin, end, first), most))
        if most is not None and len(found) == most:
            state.put_often(cursor, found[-1][0] + b"\0", bytes)
            state.wait_for(self._mark, RECORDS_PER_DROP - 1)
            return found, begin
        if first is not None:
            state.put_often(cursor, None, bytes)
        return found, end

    def _from(self, state: State, begin: int, end: int, first: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Windows that begin from then to before then, and from the place `first` on."""
        return state.range_own(first or self._by_time + packed(begin), self._by_time + packed(end))

    def _first_kept_ms(self, now_ms: int) -> int:
        return ((now_ms - self._kept_ms) // self._advance_ms + 1) * self._advance_ms

    def _result(self, state: State, place: bytes, raw: bytes, *, is_closed: bool) -> WindowResult[R]:
        at = len(self._by_time)
        start = int.from_bytes(place[at : at + TIME_BYTES])
        key = state.key_of(place[at + TIME_BYTES :])
        return WindowResult(key, start, start + self._size_ms, self._aggregate.result(self._unpack(raw)), is_closed)

    def get(self, context: TaskContext, key: Any, start_ms: int) -> R | None:
        """The value of a key in the window that begins then; None: there is none, or no longer."""
        state = self._state(context)
        if start_ms < self._first_kept_ms(time_of(state)):
            return None
        raw = state.get_own(self._by_time + packed(start_ms) + state.key_bytes(key))
        return None if raw is None else self._aggregate.result(self._unpack(raw))

    def items(self, context: TaskContext, start_ms: int = 0, end_ms: int | None = None) -> Iterator[WindowResult[R]]:
        """The windows that are kept and begin from `start_ms` to before `end_ms` (None: to the
        last), earliest first.
        """
        state, grace_ms = self._state(context), self._grace_ms
        now_ms, last = time_of(state), LATEST if end_ms is None else packed(end_ms)
        start_ms = max(start_ms, self._first_kept_ms(now_ms))
        for place, raw in state.range_own(self._by_time + packed(start_ms), self._by_time + last):
            found = self._result(state, place, raw, is_closed=False)
            yield found._replace(is_closed=found.end_ms + grace_ms <= now_ms)

    # For `Member.query`

    def query_place(self, raw_key: bytes, at_ms: int) -> bytes:
        """Returns where the value of a key is, of the window that begins then."""
        return self._by_time + packed(at_ms) + raw_key

    def query_span(self, start: Any, end: Any, key_bytes: Callable[[Any], bytes]) -> tuple[bytes, bytes]:
        """Returns where the windows are that begin from `start` to before `end`, in ms."""
        return self._by_time + packed(start or 0), self._by_time + (LATEST if end is None else packed(end))

    def query_value(self, raw: bytes) -> R:
        """The value of a window."""
        return self._aggregate.result(self._unpack(raw))

    def query_row(self, place: bytes, raw: bytes, key_of: Callable[[bytes], Any]) -> WindowResult[R]:
        """A window. Nobody knows here whether it is closed."""
        at = len(self._by_time)
        start = int.from_bytes(place[at : at + TIME_BYTES])
        return WindowResult(key_of(place[at + TIME_BYTES :]), start, start + self._size_ms, self.query_value(raw))


def tumbling(
    name: str,
    aggregate: Aggregate[V, A, R],
    *,
    size_ms: int,
    grace_ms: int = 0,
    retention_ms: int = 0,
    emit: str = "update",
    on_late: OnLate | None = None,
    state: str | None = None,
    serde: Serde | None = None,
) -> FixedWindows[V, A, R]:
    """Windows of `size_ms`, one behind the other. See `FixedWindows`."""
    return FixedWindows(
        name, aggregate, size_ms=size_ms, grace_ms=grace_ms, retention_ms=retention_ms, emit=emit, on_late=on_late, state=state, serde=serde
    )


def hopping(
    name: str,
    aggregate: Aggregate[V, A, R],
    *,
    size_ms: int,
    advance_ms: int,
    grace_ms: int = 0,
    retention_ms: int = 0,
    emit: str = "update",
    on_late: OnLate | None = None,
    state: str | None = None,
    serde: Serde | None = None,
) -> FixedWindows[V, A, R]:
    """Windows of `size_ms` that overlap: one begins each `advance_ms`. See `FixedWindows`."""
    return FixedWindows(
        name,
        aggregate,
        size_ms=size_ms,
        advance_ms=advance_ms,
        grace_ms=grace_ms,
        retention_ms=retention_ms,
        emit=emit,
        on_late=on_late,
        state=state,
        serde=serde,
    )
