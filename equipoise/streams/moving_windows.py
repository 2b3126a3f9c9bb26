"""Windows that go by the records of a key: sessions, which a gap ends, and sliding windows, of
which each record ends one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from equipoise.events.errors import InputError
from equipoise.member.tasks.context import State
from equipoise.member.tasks.serdes import Serde
from equipoise.streams.aggregates import A, Aggregate, R, V
from equipoise.streams.kept import OnLate, check_ms
from equipoise.streams.stream_time import LATEST, TIME_BYTES, packed
from equipoise.streams.windows import AnyWindows, WindowResult


class SessionWindows(AnyWindows[V, A, R]):
    """Sessions of a key: records that are at most `gap_ms` apart are in one. One is closed, and
    dropped, when stream time is more than `gap_ms` and `grace_ms` behind its last record. Sessions
    that are kept go on with another `gap_ms` or `grace_ms`.
    """

    _kind = "session windows"

    def __init__(
        self,
        name: str,
        aggregate: Aggregate[V, A, R],
        *,
        gap_ms: int,
        grace_ms: int = 0,
        emit: str = "update",
        on_late: OnLate | None = None,
        state: str | None = None,
        serde: Serde | None = None,
    ) -> None:
        super().__init__(name, aggregate, grace_ms=grace_ms, emit=emit, on_late=on_late, state=state, serde=serde)
        check_ms("SessionWindows.gap_ms", gap_ms, 1)
        self._gap_ms, self._waits_ms = gap_ms, gap_ms + grace_ms

    def _add(self, state: State, key: Any, value: V, at_ms: int, now_ms: int) -> list[WindowResult[R]] | None:
        kept, gap_ms, raw_key = self._aggregate, self._gap_ms, state.key_bytes(key)
        place, start, end, content = self._by_key + raw_key, at_ms, at_ms, None
        first_open_ms = max(now_ms - self._waits_ms, self._from_ms(state))
        raw = state.get_own(place)
        joined: list[tuple[int, int]] = []
        others: list[Any] = []
        for each in () if raw is None else self._unpack(raw):
            its_start, its_end, its_content = each
            if its_start - gap_ms <= at_ms <= its_end + gap_ms and its_end >= first_open_ms:
                joined.append((its_start, its_end))
                start, end = min(start, its_start), max(end, its_end)
                content = its_content if content is None else kept.merge(content, its_content)
            else:
                others.append(each)
        if end < first_open_ms:
            return None
        content = kept.add(kept.init() if content is None else content, value)
        state.put_own(place, self._pack([*others, (start, end, content)] if others else [(start, end, content)]))
        is_new = True
        for _, its_end in joined:
            if its_end == end:
                is_new = False
            else:
                state.put_own(self._by_time + packed(its_end) + raw_key, None)
        if is_new:
            state.put_own(self._by_time + packed(end) + raw_key, b"1")
            marks = self._marks(state)
            if not marks or end < marks[0]:
                self._set_marks(state, end)
        if not self._emits_updates:
            return []
        return [WindowResult(key, start, end, kept.result(content), replaces=tuple(each for each in joined if each != (start, end)))]

    def _close(self, state: State, now_ms: int, most: int | None) -> list[WindowResult[R]]:
        bound_ms, marks = max(now_ms - self._waits_ms, self._from_ms(state)), self._marks(state)
        if not marks or marks[0] >= bound_ms:  # no session ends before that
            return []
        results, at = [], len(self._by_time)
        rest_ms = None
        for passed, (index, _) in enumerate(state.range_own(self._by_time + packed(marks[0]), self._by_time + LATEST)):
            raw_key, end = index[at + TIME_BYTES :], int.from_bytes(index[at : at + TIME_BYTES])
            if end >= bound_ms or passed == most:
                rest_ms = end
                break
            place = self._by_key + raw_key
            raw, others = state.get_own(place), []
            for each in () if raw is None else self._unpack(raw):
                if each[1] != end:
                    others.append(each)
                elif not self._emits_updates:
                    results.append(WindowResult(state.key_of(raw_key), each[0], end, self._aggregate.result(each[2]), is_closed=True))
            state.put_own(place, self._pack(others) if others else None)
            state.put_own(index, None)
        if rest_ms is None:
            self._set_marks(state)
        else:
            self._set_marks(state, rest_ms)
        return results

    # For `Member.query`

    def query_place(self, raw_key: bytes, at_ms: int) -> bytes:
        """Returns where the sessions of a key are."""
        return self._by_key + raw_key

    def query_span(self, start: Any, end: Any, key_bytes: Callable[[Any], bytes]) -> tuple[bytes, bytes]:
        """Returns where the sessions of keys from `start` to before `end` are."""
        first, last = self._by_key, self._by_key[:-1] + bytes([self._by_key[-1] + 1])
        return first if start is None else first + key_bytes(start), last if end is None else first + key_bytes(end)

    def query_value(self, raw: bytes) -> list[tuple[int, int, R]]:
        """The open sessions of a key: first and last time, and value."""
        return [(start, end, self._aggregate.result(content)) for start, end, content in self._unpack(raw)]

    def query_row(self, place: bytes, raw: bytes, key_of: Callable[[bytes], Any]) -> tuple[Any, list[tuple[int, int, R]]]:
        """Key and open sessions."""
        return key_of(place[len(self._by_key) :]), self.query_value(raw)


sessions = SessionWindows
"""Makes sessions, which a gap of more than `gap_ms` ends."""


class SlidingWindows(AnyWindows[V, A, R]):
    """The last `size_ms` of a key at each of its records: from `size_ms` before it to the record
    itself, both included. One is closed when stream time is more than `grace_ms` behind its end.
    """

    _kind = "sliding windows"

    def __init__(
        self,
        name: str,
        aggregate: Aggregate[V, A, R],
        *,
        size_ms: int,
        grace_ms: int = 0,
        emit: str = "update",
        on_late: OnLate | None = None,
        state: str | None = None,
        serde: Serde | None = None,
    ) -> None:
        super().__init__(name, aggregate, grace_ms=grace_ms, emit=emit, on_late=on_late, state=state, serde=serde)
        check_ms("SlidingWindows.size_ms", size_ms, 1)
        self._size_ms, self._waits_ms = size_ms, grace_ms

    def _sizes(self) -> dict[str, int]:
        return {"size_ms": self._size_ms}

    def _add(self, state: State, key: Any, value: V, at_ms: int, now_ms: int) -> list[WindowResult[R]] | None:
        if at_ms < max(now_ms - self._grace_ms, self._from_ms(state)):
            return None
        kept, size_ms, raw_key = self._aggregate, self._size_ms, state.key_bytes(key)
        of_key, before, results, is_new = self._of_key(raw_key), kept.init(), [], True
        ends: list[tuple[int, A, A]] = []
        for place, raw in state.range_own(of_key + packed(at_ms - size_ms), of_key + packed(at_ms + size_ms + 1)):
            end = int.from_bytes(place[-TIME_BYTES:])
            own, whole = self._unpack(raw)
            if end < at_ms:
                before = kept.merge(before, own)
                continue
            if end == at_ms:
                own, is_new = kept.add(own, value), False
            ends.append((end, own, kept.add(whole, value)))
        if is_new:
            ends.insert(0, (at_ms, kept.add(kept.init(), value), kept.add(before, value)))
            state.put_own(self._by_time + packed(at_ms) + raw_key, b"1")
            marks = self._marks(state)
            if not marks:
                self._set_marks(state, at_ms, at_ms)
            elif at_ms < max(marks):
                self._set_marks(state, min(marks[0], at_ms), min(marks[1], at_ms))
        for end, own, whole in ends:
            state.put_own(of_key + packed(end), self._pack([own, whole]))
            if self._emits_updates:
                results.append(WindowResult(key, max(0, end - size_ms), end, kept.result(whole)))
        return results

    def _close(self, state: State, now_ms: int, most: int | None) -> list[WindowResult[R]]:
        marks = self._marks(state)
        if not marks:
            return []
        closed_to, kept_from = marks
        bound_ms, at = max(now_ms - self._grace_ms, self._from_ms(state)), len(self._by_time)
        results: list[WindowResult[R]] = []
        if self._emits_updates:
            closed_to = max(closed_to, bound_ms)
        elif closed_to < bound_ms:
            end_ms = closed_to
            for index, _ in state.range_own(self._by_time + packed(closed_to), self._by_time + packed(bound_ms)):
                raw_key, end = index[at + TIME_BYTES :], index[at : at + TIME_BYTES]
                if most is not None and len(results) >= most and int.from_bytes(end) > end_ms:  # those of one moment are not parted
                    closed_to = int.from_bytes(end)
                    break
                raw, end_ms = state.get_own(self._of_key(raw_key) + end), int.from_bytes(end)
                if raw is not None:
                    value = self._aggregate.result(self._unpack(raw)[1])
                    results.append(WindowResult(state.key_of(raw_key), max(0, end_ms - self._size_ms), end_ms, value, is_closed=True))
            else:
                closed_to = bound_ms
        kept_from = self._drop(state, kept_from, min(bound_ms - self._size_ms, closed_to), most)
        if (closed_to, kept_from) != marks:
            self._set_marks(state, closed_to, kept_from)
        return results

    def _drop(self, state: State, kept_from: int, bound_ms: int, most: int | None) -> int:
        """Drops the first windows that end before `bound_ms`. Returns the end of the next one."""
        if kept_from >= bound_ms:
            return kept_from
        at = len(self._by_time)
        for passed, (index, _) in enumerate(state.range_own(self._by_time + packed(kept_from), self._by_time + packed(bound_ms))):
            if passed == most:
                return int.from_bytes(index[at : at + TIME_BYTES])
            state.put_own(self._of_key(index[at + TIME_BYTES :]) + index[at : at + TIME_BYTES], None)
            state.put_own(index, None)
        return bound_ms

    # For `Member.query`

    def query_place(self, raw_key: bytes, at_ms: int) -> bytes:
        """Returns where the window of a key is that ends then."""
        return self._of_key(raw_key) + packed(at_ms)

    def query_span(self, start: Any, end: Any, key_bytes: Callable[[Any], bytes]) -> tuple[bytes, bytes]:
        """Returns where the windows of the key `start` are; None: of all. Raises InputError for an
        `end`, because the windows are not in the order of the keys.
        """
        if end is not None:
            raise InputError(f"query_range: sliding windows {self.name!r} are asked for one key, query_range(key, of=...), or for all; leave out end")
        of = self._by_key if start is None else self._of_key(key_bytes(start))
        return of, of[:-1] + bytes([of[-1] + 1]) if start is None else of + LATEST + b"\0"

    def query_value(self, raw: bytes) -> R:
        """The value of a window."""
        return self._aggregate.result(self._unpack(raw)[1])

    def query_row(self, place: bytes, raw: bytes, key_of: Callable[[bytes], Any]) -> WindowResult[R]:
        """A window. Nobody knows here whether it is closed."""
        at, end = len(self._of_key(b"")), int.from_bytes(place[-TIME_BYTES:])
        return WindowResult(key_of(place[at:-TIME_BYTES]), max(0, end - self._size_ms), end, self.query_value(raw))


sliding = SlidingWindows
"""Makes windows of the last `size_ms` at each record."""
