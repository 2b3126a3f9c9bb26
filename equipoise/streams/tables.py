"""Tables: the newest value of each key, and what two of them have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, NamedTuple, TypeVar

from equipoise.member.tasks.context import TaskContext
from equipoise.member.tasks.drops import DropReason
from equipoise.member.tasks.serdes import Serde
from equipoise.streams.kept import Kept
from equipoise.streams.stream_time import advance

T = TypeVar("T")
L = TypeVar("L")
R = TypeVar("R")


class StreamTable(Kept, Generic[T]):
    """The newest value of each key of a topic, in the task's state. Read the topic with
    `Source(topic, table=True)`, so that it is there before what is joined with it::

        users: StreamTable[dict[str, str]] = StreamTable("users")

        def handle(record: Record, context: TaskContext) -> None:
            if record.topic == "users":
                users.put(context, record.key, record.value)
            else:
                user = users.get(context, record.key)
    """

    _kind, _drops = "a table", (DropReason.NULL_KEY,)

    def __init__(self, name: str, *, state: str | None = None, serde: Serde | None = None) -> None:
        super().__init__(name, state=state, serde=serde)

    def put(self, context: TaskContext, key: Any, value: T | None) -> T | None:
        """Sets the value of a key; None deletes it, as a record without value means. Returns the
        former one. A record without key is dropped and counted.
        """
        if key is None:
            self._note_drop(context, DropReason.NULL_KEY)
            return None
        state = self._state(context)
        place = self._by_key + state.key_bytes(key)
        former = state.get_own(place)
        state.put_own(place, None if value is None else self._pack(value))
        return None if former is None else self._unpack(former)

    def get(self, context: TaskContext, key: Any) -> T | None:
        """The value of a key; None: there is none."""
        if key is None:
            return None
        state = self._state(context)
        raw = state.get_own(self._by_key + state.key_bytes(key))
        return None if raw is None else self._unpack(raw)

    def items(self, context: TaskContext) -> Iterator[tuple[Any, T]]:
        """Every key of the task with its value, in rising order of the keys' bytes."""
        state, at = self._state(context), len(self._by_key)
        for place, raw in state.range_own(self._by_key, self._by_key[:-1] + bytes([self._by_key[-1] + 1])):
            yield state.key_of(place[at:]), self._unpack(raw)

    # For `Member.query`

    def query_place(self, raw_key: bytes, at_ms: int) -> bytes:
        """Returns where the value of a key is."""
        return self._by_key + raw_key

    def query_span(self, start: Any, end: Any, key_bytes: Callable[[Any], bytes]) -> tuple[bytes, bytes]:
        """Returns where the values of keys from `start` to before `end` are."""
        first, last = self._by_key, self._by_key[:-1] + bytes([self._by_key[-1] + 1])
        return first if start is None else first + key_bytes(start), last if end is None else first + key_bytes(end)

    def query_value(self, raw: bytes) -> T:
        """The value."""
        value: T = self._unpack(raw)
        return value

    def query_row(self, place: bytes, raw: bytes, key_of: Callable[[bytes], Any]) -> tuple[Any, T]:
        """Key and value."""
        return key_of(place[len(self._by_key) :]), self._unpack(raw)


class JoinedRows(NamedTuple, Generic[L, R]):
    """The values of a key in two tables. None: that one has none."""

    left: L | None
    right: R | None

    @property
    def is_whole(self) -> bool:
        """Returns whether both have something: what an inner join has."""
        return self.left is not None and self.right is not None


class TableJoin(Generic[L, R]):
    """Two tables with the same keys. Each change returns what both have then: a row with
    `is_whole` is one of the inner join, one with `left` of the left join, and any of the outer one.
    """

    def __init__(self, name: str, *, state: str | None = None, serde: Serde | None = None) -> None:
        self.left_table: StreamTable[L] = StreamTable(f"{name}.left", state=state, serde=serde)
        self.right_table: StreamTable[R] = StreamTable(f"{name}.right", state=state, serde=serde)

    def left(self, context: TaskContext, key: Any, value: L | None, at_ms: int = 0) -> JoinedRows[L, R]:
        """Changes the left table. Returns the row."""
        advance(context, at_ms)
        self.left_table.put(context, key, value)
        return JoinedRows(value, self.right_table.get(context, key))

    def right(self, context: TaskContext, key: Any, value: R | None, at_ms: int = 0) -> JoinedRows[L, R]:
        """Changes the right table. Returns the row."""
        advance(context, at_ms)
        self.right_table.put(context, key, value)
        return JoinedRows(self.left_table.get(context, key), value)

    def get(self, context: TaskContext, key: Any) -> JoinedRows[L, R]:
        """The row of a key."""
        return JoinedRows(self.left_table.get(context, key), self.right_table.get(context, key))
