"""Windows, joins and timers have a name, under which they keep what they have in a state of
their task, and a count of late records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import pack, unpack
from typing import Any

from msgpack import Packer, packb, unpackb

from equipoise.events import fields
from equipoise.events.errors import InputError
from equipoise.member.tasks.callbacks import call_sync, check_sync
from equipoise.member.tasks.context import STREAMS_PREFIX, KeptError, State, TaskContext
from equipoise.member.tasks.declared import Declared
from equipoise.member.tasks.drops import Dropped, DropReason
from equipoise.member.tasks.serdes import Serde, check_serde
from equipoise.streams.stream_time import TIME_BYTES, packed, time_of

OnLate = Callable[[TaskContext, Any, Any, int], object]
"""Called with the context, key, value and timestamp (ms) of a late record. The callback
cannot be async. To send the record somewhere:
``lambda context, key, value, at_ms: context.send("late", value, key=key)``.
"""
_LENGTH_BYTES = 4
_FORM = 1
"""Of what is kept. State of a former build has no description."""
_FORMER_KINDS = {
    (b"t", 0, False): "windows of a fixed size",
    (b"t", 2, False): "windows of a fixed size",
    (b"t", 1, False): "reminders",
    (b"kt", 1, True): "session windows",
    (b"kt", 2, False): "sliding windows",
    (b"kt", 1, False): "a join of streams",
    (b"k", 0, False): "a table",
}
"""How a kind is known without description: where it has keys, the number of its marks, and whether
its first place by time names a place by key.
"""
_SHOWN = {"every_ms": "advance_ms", "reminders": "timers"}
"""Word of a description -> the one that an application uses. Stored words stay as they are."""


def shown(stored: str) -> str:
    """A word of a description, for people."""
    return _SHOWN.get(stored, stored)


class Kept(Declared):
    """Something with a `name`, unique in its state. `state`: the changelog topic; None: the task
    has one. `serde`: of what it keeps; None: msgpack.

    A description is kept beside it: its kind and sizes.
    """

    _kind = ""
    """What it is, as its description says."""
    _drops: Sequence[DropReason] = ()
    _waits_ms = 0
    """For so long behind stream time it takes something."""

    def __init__(self, name: str, *, state: str | None = None, serde: Serde | None = None, on_late: OnLate | None = None) -> None:
        fields.check_name(f"{type(self).__name__}.name", name)
        if serde is not None:
            check_serde(f"{type(self).__name__}.serde", serde)
        check_sync(f"{type(self).__name__}.on_late", on_late, "context, key, value, at_ms")
        self.name, self._token = name, object()
        self._topic, self._on_late = state, on_late
        self._pack: Callable[[Any], bytes] = Packer().pack if serde is None else serde.serialize
        self._unpack: Callable[[bytes], Any] = _read if serde is None else serde.deserialize
        prefix = self._prefix = STREAMS_PREFIX + name.encode() + b"\0"
        self._by_time, self._by_key, self._mark, self._late = prefix + b"t", prefix + b"k", prefix + b"m", prefix + b"l"
        self._description = prefix + b"f"

    def place_in(self, context: TaskContext) -> tuple[str, str] | None:
        """Returns the changelog topic and the name; None: the task has no such state, or several
        and none was named.
        """
        topic = self._topic or (next(iter(context.states)) if len(context.states) == 1 else "")
        return (topic, self.name) if topic in context.states else None

    def check(self, context: TaskContext) -> None:
        """Raises KeptError when what is kept does not fit. Changes nothing."""
        place = self.place_in(context)
        if place is not None:
            self._compared(context.states[place[0]])

    def _state(self, context: TaskContext) -> State:
        state = (context.only_state or context.state) if self._topic is None else context.states.get(self._topic)
        if state is None:
            raise InputError(f"{type(self).__name__} {self.name!r}: the task has no state {self._topic!r}; add it to the processor's `state`")
        met = state.met.get(self._prefix)
        if met is None or met[0] is not self._token:
            self._meet(state)
        return state

    def _meet(self, state: State) -> tuple[object, int]:
        """Compares the description in a state with its own, and writes that. Raises KeptError,
        before anything is changed, when it cannot go on, or the name is used twice.
        """
        other = state.users.setdefault(self._prefix, self)
        if other is not self:
            raise KeptError(
                f"the name {self.name!r} is used twice in one state: by {shown(other._kind)} and by {shown(self._kind)}; give each its own name"
            )
        had = self._compared(state)
        from_ms = self._go_on(state, had)
        described = {"form": _FORM, "kind": self._kind, **self._sizes(), "waits_ms": self._waits_ms, **self._carried(state, had), "from_ms": from_ms}
        if described != had:
            state.put_own(self._description, packb(described))
        state.may_drop(self.name, self._drops)
        met = state.met[self._prefix] = self._token, from_ms
        return met

    def _compared(self, state: State) -> dict[str, Any] | None:
        """The description in a state; None: it has none. Raises KeptError when the name has what
        this cannot go on with.
        """
        raw = state.get_own(self._description)
        had: dict[str, Any] | None = None if raw is None else unpackb(raw)
        kind = self._former_kind(state) if had is None else had["kind"]
        if kind not in ("", self._kind):
            raise KeptError(f"{self.name!r} was the name of {shown(kind)} and is that of {shown(self._kind)} now; give the new one another name")
        for size, value in {"form": _FORM, **self._sizes()}.items():
            if had is not None and had.get(size) != value:
                raise KeptError(
                    f"{self._kind} {self.name!r} had {shown(size)}={had.get(size)} and has {shown(size)}={value} now: what is kept does not fit; "
                    f"give them another name, or {shown(size)}={had.get(size)} again"
                )
        return had

    def _sizes(self) -> dict[str, int]:
        """Sizes without which what is kept means something else, in ms."""
        return {}

    def _carried(self, state: State, had: dict[str, Any] | None) -> dict[str, int]:
        """Adds to the description. `had`: the former one; None: there is none."""
        return {}

    def _go_on(self, state: State, had: dict[str, Any] | None) -> int:
        """Returns the time before which nothing is taken any more, in ms: with a longer grace, what
        was closed with the shorter one.
        """
        if had is None:
            return 0
        from_ms: int = had["from_ms"]
        return from_ms if had["waits_ms"] == self._waits_ms else max(from_ms, time_of(state) - had["waits_ms"])

    def _from_ms(self, state: State) -> int:
        return state.met[self._prefix][1]

    def _former_kind(self, state: State) -> str:
        """The kind of what a former build has kept under the name; "": nothing."""
        found = {part: next(state.range_own(self._prefix + part, self._prefix + bytes([part[0] + 1])), None) for part in (b"k", b"t")}
        parts, index = b"".join(part for part, first in found.items() if first is not None), found[b"t"]
        marks = len(state.get_own(self._prefix + b"m") or b"") // TIME_BYTES
        by_key = None if index is None else state.get_own(self._by_key + index[0][len(self._by_time) + TIME_BYTES :])
        return _FORMER_KINDS.get((parts, marks, by_key is not None), "something else") if parts else ""

    @property
    def topic(self) -> str | None:
        """Its changelog; None: the task has one."""
        return self._topic

    def late_records(self, context: TaskContext) -> int:
        """The number of records that came too late, in this task."""
        return self._state(context).get_often(self._late, int.from_bytes) or 0

    def _note_drop(self, context: TaskContext, reason: DropReason, key: Any = None, at_ms: int | None = None) -> None:
        context.drop(Dropped(self.name, f"{type(self).__name__} {self.name!r}", reason, key, at_ms))

    def _note_late(self, context: TaskContext, state: State, key: Any, value: Any, at_ms: int) -> None:
        state.put_often(self._late, 1 + (state.get_often(self._late, int.from_bytes) or 0), packed)
        self._note_drop(context, DropReason.LATE, key, at_ms)
        if self._on_late is not None:
            call_sync(f"{type(self).__name__} {self.name!r}: on_late", self._on_late, context, key, value, at_ms)

    def _of_key(self, raw_key: bytes) -> bytes:
        """The places of a key begin with this; the time is behind that."""
        return self._by_key + len(raw_key).to_bytes(_LENGTH_BYTES) + raw_key

    def _marks(self, state: State) -> tuple[int, ...]:
        return state.get_often(self._mark, _unpacked) or ()

    def _set_marks(self, state: State, *marks: int) -> None:
        """Without marks: nothing waits any more."""
        state.put_often(self._mark, marks or None, _packed)


def _read(data: bytes) -> Any:
    try:
        return unpackb(data)
    except ValueError:  # a map whose keys are neither text nor bytes; to allow it each time takes twice as long
        return unpackb(data, strict_map_key=False)


def _packed(marks: tuple[int, ...]) -> bytes:
    return pack(f">{len(marks)}Q", *marks)


def _unpacked(data: bytes) -> tuple[int, ...]:
    return unpack(f">{len(data) // TIME_BYTES}Q", data)


def check_ms(place: str, value: Any, least: int) -> None:
    """Raises InputError when `value` is no number of milliseconds of at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InputError(f"{place}: {value!r} is no number of milliseconds; give an int of at least {least}")
