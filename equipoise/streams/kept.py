"""Windows, joins and reminders have a name, under which they keep what they have in a state of
their task, and a count of late records.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import pack, unpack
from typing import Any

from msgpack import Packer, unpackb

from equipoise.events import fields
from equipoise.events.errors import InputError
from equipoise.member.callbacks import call_sync, check_sync
from equipoise.member.drops import Dropped, DropReason
from equipoise.member.serdes import Serde, check_serde
from equipoise.member.task_context import STREAMS_PREFIX, State, TaskContext
from equipoise.streams.stream_time import TIME_BYTES, packed

OnLate = Callable[[TaskContext, Any, Any, int], object]
"""Called with the context, key, value and timestamp (ms) of a late record. The callback
cannot be async. To send the record somewhere:
``lambda context, key, value, at_ms: context.send("late", value, key=key)``.
"""
_LENGTH_BYTES = 4


class Kept:
    """Something with a `name`, unique in its state. `state`: the changelog topic; None: the task
    has one. `serde`: of what it keeps; None: msgpack.
    """

    def __init__(self, name: str, *, state: str | None = None, serde: Serde | None = None, on_late: OnLate | None = None) -> None:
        fields.check_name(f"{type(self).__name__}.name", name)
        if serde is not None:
            check_serde(f"{type(self).__name__}.serde", serde)
        check_sync(f"{type(self).__name__}.on_late", on_late, "context, key, value, at_ms")
        self.name = name
        self._topic, self._on_late = state, on_late
        self._pack: Callable[[Any], bytes] = Packer().pack if serde is None else serde.serialize
        self._unpack: Callable[[bytes], Any] = _read if serde is None else serde.deserialize
        prefix = self._prefix = STREAMS_PREFIX + name.encode() + b"\0"
        self._by_time, self._by_key, self._mark, self._late = prefix + b"t", prefix + b"k", prefix + b"m", prefix + b"l"

    def _state(self, context: TaskContext) -> State:
        if self._topic is None:
            return context.only_state or context.state
        state = context.states.get(self._topic)
        if state is None:
            raise InputError(f"{type(self).__name__} {self.name!r}: the task has no state {self._topic!r}; add it to the processor's `state`")
        return state

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
