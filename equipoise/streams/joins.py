"""Joins of two streams: records of the same key that are near each other in time."""

from __future__ import annotations

from typing import Any, Generic, NamedTuple

from msgpack import unpackb

from equipoise.events.errors import InputError
from equipoise.member.tasks.context import State, TaskContext
from equipoise.member.tasks.drops import DropReason
from equipoise.member.tasks.serdes import Serde
from equipoise.streams.kept import Kept, OnLate, check_ms
from equipoise.streams.stream_time import LATEST, TIME_BYTES, advance, packed, time_of
from equipoise.streams.tables import L, R
from equipoise.streams.windows import MOST_CLOSED, MOST_DROPPED

_LEFT, _RIGHT = b"\0", b"\1"
KINDS = ("inner", "left", "outer")


class JoinedPair(NamedTuple, Generic[L, R]):
    """Two records of a key. `at_ms`: the later of their times. None: there was none within the
    time, and none can come.
    """

    key: Any
    left: L | None
    right: R | None
    at_ms: int


class StreamJoin(Kept, Generic[L, R]):
    """Joins each left record with the right ones of its key that are at most `before_ms` earlier
    and `after_ms` later (None: as `before_ms`). `kind`: "left" also returns left records that had
    no partner, once none can come, and "outer" those of both sides.

    `grace_ms`: how much later a record may come than its last partner. `on_late` gets those that
    come later still, which are counted. Records that wait go on with other times.
    """

    _kind, _drops = "a join of streams", (DropReason.LATE, DropReason.NULL_KEY)

    def __init__(
        self,
        name: str,
        *,
        before_ms: int,
        after_ms: int | None = None,
        grace_ms: int = 0,
        kind: str = "inner",
        on_late: OnLate | None = None,
        state: str | None = None,
        serde: Serde | None = None,
    ) -> None:
        super().__init__(name, state=state, serde=serde, on_late=on_late)
        check_ms("StreamJoin.before_ms", before_ms, 0)
        check_ms("StreamJoin.grace_ms", grace_ms, 0)
        self._before_ms, self._after_ms, self._grace_ms = before_ms, before_ms if after_ms is None else after_ms, grace_ms
        check_ms("StreamJoin.after_ms", self._after_ms, 0)
        if kind not in KINDS:
            raise InputError(f"StreamJoin.kind: {kind!r} is none of {', '.join(KINDS)}")
        self._alone = {_LEFT: kind != "inner", _RIGHT: kind == "outer"}
        self._wait_ms = {_LEFT: self._after_ms, _RIGHT: self._before_ms}
        """Side -> how much later its partners may be."""
        self._most = MOST_DROPPED if kind == "inner" else MOST_CLOSED
        self._kept_ms, self._waits_ms = self._before_ms + self._after_ms, grace_ms
        """Any partner that is not late finds a record for so long."""

    def _carried(self, state: State, had: dict[str, Any] | None) -> dict[str, int]:
        return {"former_kept_ms": self._found_kept_ms(state) if had is None else had["former_kept_ms"]}

    def _found_kept_ms(self, state: State) -> int:
        """Finds how long a former build has kept a record, whose index does not say its time."""
        at, first = len(self._by_time), next(state.range_own(self._by_time, self._by_time + LATEST), None)
        if first is None:
            return self._kept_ms
        until_ms, side, raw_key = int.from_bytes(first[0][at : at + TIME_BYTES]), first[0][at + TIME_BYTES :][:1], first[0][at + TIME_BYTES + 1 :]
        of_side = self._of_key(raw_key) + side
        place = next(state.range_own(of_side, of_side + LATEST), None)
        return self._kept_ms if place is None else until_ms - int.from_bytes(place[0][-TIME_BYTES:])

    def _former_kept_ms(self, state: State) -> int:
        kept_ms: int = unpackb(state.get_own(self._description) or b"")["former_kept_ms"]
        return kept_ms

    def left(self, context: TaskContext, key: Any, value: L, at_ms: int) -> list[JoinedPair[L, R]]:
        """Adds a left record. Returns its pairs, then records without partner that were waiting, of
        1,000 moments at most.
        """
        return self._add(context, _LEFT, key, value, at_ms)

    def right(self, context: TaskContext, key: Any, value: R, at_ms: int) -> list[JoinedPair[L, R]]:
        """Adds a right record. Returns as `left`."""
        return self._add(context, _RIGHT, key, value, at_ms)

    def close(self, context: TaskContext) -> list[JoinedPair[L, R]]:
        """Gives up all that stream time has passed, after `advance`. Returns records without
        partner.
        """
        state = self._state(context)
        return self._close(state, time_of(state), None)

    def _add(self, context: TaskContext, side: bytes, key: Any, value: Any, at_ms: int) -> list[JoinedPair[L, R]]:
        if key is None:
            self._note_drop(context, DropReason.NULL_KEY, at_ms=at_ms)
            return []
        at_ms = max(0, at_ms)
        now_ms, state = advance(context, at_ms), self._state(context)
        if at_ms + self._wait_ms[side] < max(now_ms - self._grace_ms, self._from_ms(state)):
            self._note_late(context, state, key, value, at_ms)
            return self._close(state, now_ms, self._most)
        raw_key = state.key_bytes(key)
        other = _LEFT if side == _RIGHT else _RIGHT
        of_other, pairs = self._of_key(raw_key) + other, []
        first, last = at_ms - self._wait_ms[other], at_ms + self._wait_ms[side]
        for place, raw in list(state.range_own(of_other + packed(first), of_other + packed(last + 1))):
            its_ms, (has_partner, values) = int.from_bytes(place[-TIME_BYTES:]), self._unpack(raw)
            for each in values:
                left, right = (value, each) if side == _LEFT else (each, value)
                pairs.append(JoinedPair(key, left, right, max(at_ms, its_ms)))
            if not has_partner and self._alone[other]:
                state.put_own(place, self._pack([True, values]))
        self._keep(state, side, raw_key, value, at_ms, has_partner=bool(pairs))
        return [*pairs, *self._close(state, now_ms, self._most)]

    def _keep(self, state: State, side: bytes, raw_key: bytes, value: Any, at_ms: int, *, has_partner: bool) -> None:
        place = self._of_key(raw_key) + side + packed(at_ms)
        known = state.get_own(place)
        values = [] if known is None else self._unpack(known)[1]
        state.put_own(place, self._pack([has_partner, [*values, value]]))
        if known is None:
            until_ms = at_ms + self._kept_ms
            state.put_own(self._by_time + packed(until_ms) + side + raw_key, packed(at_ms))
            marks = self._marks(state)
            if not marks or until_ms < marks[0]:
                self._set_marks(state, until_ms)

    def _close(self, state: State, now_ms: int, most: int | None) -> list[JoinedPair[L, R]]:
        """Gives up the earliest records for which no partner can come, at most those of so many
        moments and keys; None: all.
        """
        bound_ms, marks, alone = max(now_ms - self._grace_ms, self._from_ms(state)), self._marks(state), []
        if not marks or marks[0] >= bound_ms:
            return []
        at, rest_ms = len(self._by_time), None
        waits_longer: list[int] = []
        for passed, (index, raw_at) in enumerate(state.range_own(self._by_time + packed(marks[0]), self._by_time + LATEST)):
            until_ms = int.from_bytes(index[at : at + TIME_BYTES])
            if until_ms >= bound_ms or passed == most:
                rest_ms = until_ms
                break
            side, raw_key = index[at + TIME_BYTES : at + TIME_BYTES + 1], index[at + TIME_BYTES + 1 :]
            at_ms = int.from_bytes(raw_at) if len(raw_at) == TIME_BYTES else until_ms - self._former_kept_ms(state)
            if at_ms + self._kept_ms > until_ms:  # it was kept with shorter times
                waits_longer.append(at_ms + self._kept_ms)
                state.put_own(self._by_time + packed(waits_longer[-1]) + side + raw_key, packed(at_ms))
                state.put_own(index, None)
                continue
            place = self._of_key(raw_key) + side + packed(at_ms)
            raw = state.get_own(place)
            has_partner, values = (True, []) if raw is None else self._unpack(raw)
            if not has_partner and self._alone[side]:
                key = state.key_of(raw_key)
                is_left = side == _LEFT
                alone += [JoinedPair(key, each if is_left else None, None if is_left else each, at_ms) for each in values]
            state.put_own(place, None)
            state.put_own(index, None)
        rest_ms = min([*waits_longer, *(() if rest_ms is None else (rest_ms,))], default=None)
        if rest_ms is None:
            self._set_marks(state)
        else:
            self._set_marks(state, rest_ms)
        return alone
