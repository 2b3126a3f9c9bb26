"""The context of a handler: the state of its task, and the records it sends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import repeat
from operator import itemgetter
from typing import Any
from weakref import WeakValueDictionary

import msgpack

from equipoise.events.errors import InputError
from equipoise.events.fields import INT64_MAX
from equipoise.events.tasks import TaskId
from equipoise.kafka.client import NO_EPOCH, SentHeaders, TopicPartition
from equipoise.member.copies.fencing import RESERVED_PREFIX, SOURCE_TOPICS_KEY, SOURCES_KEY
from equipoise.member.copies.stores import Change, StateStore, StoreError
from equipoise.member.tasks.changes import Changes
from equipoise.member.tasks.drops import STREAM_TIME, Dropped, DropReason
from equipoise.member.tasks.gaps import Gaps
from equipoise.member.tasks.open_iterators import KeptReading, end_all
from equipoise.member.tasks.sent_records import Outputs
from equipoise.member.tasks.serdes import BytesSerde, Serde, check_serde
from equipoise.member.tasks.sizes import RecordSizes
from equipoise.member.tasks.timers import IntervalTimers

BYTES = BytesSerde()
_ABSENT = object()
"""There was no change."""
Undo = tuple[dict[bytes, Any], bytes, Any] | list[Any]
"""Takes back a change: the changes, its key, and the change before it or _ABSENT. Or a record: the
list in which it is last.
"""
_FIRST, _SECOND = itemgetter(0), itemgetter(1)
_KEPT = "an iterator over state ends with the call in which it was made: make a list of what you keep"
STREAMS_PREFIX = b"\x00equipoise:"
"""What the keys of `equipoise.streams` begin with."""
HIDDEN_PREFIX = b"\x00equipoise"
"""What all keys begin with that a handler does not see."""
_BEHIND_RESERVED = b"\x00equipoisf"
"""Keys from here on are not reserved."""


def class_as_is(serde: Serde) -> Any:
    """The class of what `serde` leaves as it is; None: it changes everything."""
    return bytes if type(serde) is BytesSerde else None


def _serialized(values: Iterable[Any], serialize: Callable[[Any], bytes], as_is: Any) -> list[bytes]:
    """All values, serialized. `as_is`: see `class_as_is`."""
    raw = list(values)
    return raw if as_is and set(map(type, raw)) == {as_is} else list(map(serialize, raw))


class KeptError(InputError):
    """A name has something of another kind or size, or is used twice. This is no error of a record:
    the task fails, whatever the error policy.
    """


class State:
    """The state of a task in one changelog: the store's content, over it the changes of the last
    commit, and the changes since that began. Keys and values are serialized by `keys` and `values`.
    `topic`, `sizes`, `headers`: of its changelog records.
    """

    def __init__(
        self,
        store: StateStore,
        keys: Serde = BYTES,
        values: Serde = BYTES,
        *,
        topic: str = "",
        sizes: RecordSizes | None = None,
        headers: SentHeaders | None = None,
    ) -> None:
        self.store = store
        self._topic, self._sizes, self._headers = topic, sizes or RecordSizes(), headers or []
        self._key, self._value, self._read_key, self._read = keys.serialize, values.serialize, keys.deserialize, values.deserialize
        self._key_as_is, self._value_as_is = class_as_is(keys), class_as_is(values)
        self._committing = Changes()
        """Of the commit that began last. Once they are in the store, too, they are still read here,
        which is faster: what was counted a moment ago is counted again.
        """
        self._written = Changes()
        self._gaps, self._own_gaps = Gaps(), Gaps()
        """Of what handlers see, and of what `equipoise.streams` keeps."""
        self._often: dict[bytes, Any] = {}
        """Values of the few keys that `equipoise.streams` changes with each record. A commit writes
        them once.
        """
        self._often_changed: dict[bytes, Callable[[Any], bytes]] = {}
        """Those to be written, and how they are packed."""
        self.due_ms: dict[bytes, int] = {}
        """Key -> stream time from which `equipoise.streams` has something to do. Not kept."""
        self.users: WeakValueDictionary[bytes, Any] = WeakValueDictionary()
        """Prefix of a name -> what uses it, of `equipoise.streams`. A name is used once."""
        self.met: dict[bytes, tuple[object, int]] = {}
        """Prefix of a name -> the token of what uses it, once its description here is as it should
        be; and the time before which it takes nothing.
        """
        self.may_drop: Callable[[str, Iterable[DropReason]], None] = lambda by, reasons: None
        """Called with the name of what may drop records, of `equipoise.streams`."""
        self._waits: dict[bytes, int] = {}
        """Key -> records after which it goes on with that."""
        self.failure: StoreError | None = None
        """What the store has raised, whatever the handler has made of it."""
        self.readings: list[KeptReading] = []
        """Iterators that the handler was given in this call."""
        self.undo: list[Undo] = []
        """What takes back the changes since the savepoint of the task."""

    def get(self, key: Any) -> Any:
        """The value of `key`; None when there is none."""
        value = self.get_own(key if key.__class__ is self._key_as_is else self._key(key))
        return value if value is None or self._value_as_is else self._read(value)

    def get_many(self, keys: Iterable[Any]) -> list[Any]:
        """The value of each key, as `get` returns it: much faster than one `get` each."""
        raw = _serialized(keys, self._key, self._key_as_is)
        committing: Iterable[Any] = map(self._committing.get, raw, repeat(_ABSENT))
        values: list[Any] = list(map(self._written.get, raw, committing))
        if _ABSENT in values:
            missing = list(dict.fromkeys(key for key, value in zip(raw, values, strict=True) if value is _ABSENT))
            try:
                stored = dict(zip(missing, self.store.get_many(missing), strict=True))
            except StoreError as error:
                self.failure = error
                raise
            values = [stored[key] if value is _ABSENT else value for key, value in zip(raw, values, strict=True)]
        return values if self._value_as_is else [None if value is None else self._read(value) for value in values]

    def put(self, key: Any, value: Any) -> None:
        """Sets `key`. It lasts with the next commit. Raises InputError when a serde refuses key or
        value, the key is reserved (its bytes begin with ``\\0equipoise.``), or both together are
        larger than a record of the changelog may be (1 MiB, or its `max.message.bytes`).
        """
        self._write(
            key if key.__class__ is self._key_as_is else self._key(key),
            value if value.__class__ is self._value_as_is else self._value(value),
        )

    def put_many(self, values: Mapping[Any, Any]) -> None:
        """Sets the value of each key: much faster than one `put` each. Raises InputError as `put`
        does; then none is set.
        """
        keys = _serialized(values, self._key, self._key_as_is)
        raw = _serialized(values.values(), self._value, self._value_as_is)
        if any(map(_BEHIND_RESERVED.__gt__, keys)):
            for key in keys:
                _check_key(key)
        if max(map(len, keys), default=0) + max(map(len, raw), default=0) > self._sizes.small:
            for key, value in zip(keys, raw, strict=True):
                self._sizes.check(self._topic, key, value, self._headers)
        written = self._written
        if self._gaps.ends:
            for key in keys:
                self._gaps.put(key)
        self.undo += zip(repeat(written), keys, map(written.get, keys, repeat(_ABSENT)))
        written.update(zip(keys, raw, strict=True))

    def delete(self, key: Any) -> None:
        """Removes `key`. Raises InputError as `put` does."""
        self._write(self._key(key), None)

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Every key with its value, in rising order of the keys' bytes."""
        return self._between(b"", None)

    def range(self, start: Any = None, end: Any = None) -> Iterator[tuple[Any, Any]]:
        """Keys from `start` to before `end`, with their values, in rising order of the keys' bytes.
        None: from the first, to the last.
        """
        return self._between(b"" if start is None else self._key(start), None if end is None else self._key(end))

    def prefix(self, prefix: bytes | str) -> Iterator[tuple[Any, Any]]:
        """Keys whose bytes begin with `prefix` (a str: in UTF-8), with their values, in rising
        order.
        """
        first = prefix.encode() if isinstance(prefix, str) else prefix
        return self._between(first, _behind_prefix(first))

    def _between(self, start: bytes, end: bytes | None) -> Iterator[tuple[Any, Any]]:
        reading = KeptReading(self._found(start, end), _KEPT)
        self.readings.append(reading)
        return reading

    def _found(self, start: bytes, end: bytes | None) -> Iterator[tuple[Any, Any]]:
        passed, first, last, found = 0, self._gaps.behind(start), b"", False
        for key, value in self.raw_items(first, end):
            if value is None or key.startswith(HIDDEN_PREFIX):
                passed, last = passed + 1, key
                continue
            if not found:
                found = True
                self._gaps.found(first, key, passed)
            yield self._read_key(key), self._read(value)
        if not found and passed:
            self._gaps.found(first, last + b"\0", passed)

    def raw_items(self, start: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes | None]]:
        """Keys with values, and deleted ones (None), without serdes. The changes over the store, as
        they are when each of them is reached.
        """
        written, committing = self._written, self._committing
        changes = merge(committing.between(start, end), written.between(start, end))
        changed = next(changes, None)
        for key, value in self._stored(start, end):
            while changed is not None and changed <= key:
                reached = changed
                while changed == reached:
                    changed = next(changes, None)
                yield reached, written[reached] if reached in written else committing.get(reached)
                if reached == key:
                    break
            else:
                yield key, value
        while changed is not None:
            reached = changed
            while changed == reached:
                changed = next(changes, None)
            yield reached, written[reached] if reached in written else committing.get(reached)

    def _stored(self, start: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        try:
            yield from self.store.items(start, end)
        except StoreError as error:
            self.failure = error
            raise

    def _write(self, key: bytes, value: bytes | None) -> None:
        if key < _BEHIND_RESERVED:
            _check_key(key)
        if len(key) + (0 if value is None else len(value)) > self._sizes.small:
            self._sizes.check(self._topic, key, value, self._headers)
        if value is not None and self._gaps.ends:
            self._gaps.put(key)
        written = self._written
        self.undo.append((written, key, written.get(key, _ABSENT)))
        written[key] = value

    # What `equipoise.streams` keeps

    def key_bytes(self, key: Any) -> bytes:
        """The bytes of a key, by the serde."""
        return key if key.__class__ is self._key_as_is else self._key(key)

    def key_of(self, raw: bytes) -> Any:
        """The key with these bytes."""
        return self._read_key(raw)

    def get_own(self, key: bytes) -> bytes | None:
        """Reads as `get` does, without serdes."""
        if key in self._written:
            return self._written[key]
        if key in self._committing:
            return self._committing[key]
        try:
            return self.store.get(key)
        except StoreError as error:
            self.failure = error
            raise

    def get_often(self, key: bytes, unpack: Callable[[bytes], Any]) -> Any:
        """Reads one of the few keys that each record needs; None: there is none."""
        often = self._often
        if key not in often:
            raw = self.get_own(key)
            often[key] = None if raw is None else unpack(raw)
        return often[key]

    def put_often(self, key: bytes, value: Any, pack: Callable[[Any], bytes]) -> None:
        """Changes what `get_often` has read; None deletes it. Ranges do not see it. `pack` runs
        when the state is committed, so it is of `equipoise.streams`, and never raises.
        """
        often = self._often
        self.undo.append((often, key, often[key]))
        often[key] = value
        self._often_changed[key] = pack

    def raise_often(self, key: bytes, least: int, unpack: Callable[[bytes], int], pack: Callable[[int], bytes]) -> int:
        """Changes what `get_often` has read to `least`, if it is less, or not there. Returns it."""
        often = self._often
        known: int | None = often[key] if key in often else self.get_often(key, unpack)
        if known is not None and known >= least:
            return known
        self.undo.append((often, key, known))
        often[key] = least
        self._often_changed[key] = pack
        return least

    def _write_often(self) -> None:
        for key, pack in self._often_changed.items():
            value = self._often[key]
            self._written[key] = None if value is None else pack(value)
        self._often_changed.clear()

    def wait_for(self, key: bytes, records: int) -> None:
        """`is_waited_for` is true so many times."""
        self._waits[key] = records

    def is_waited_for(self, key: bytes) -> bool:
        """Counts a record."""
        left = self._waits.get(key, 0)
        if left:
            self._waits[key] = left - 1
        return left > 0

    def put_own(self, key: bytes, value: bytes | None) -> None:
        """Writes as `put`, or with None `delete`, without serdes. `key`: with STREAMS_PREFIX."""
        if value is not None:
            if len(key) + len(value) > self._sizes.small:
                self._sizes.check(self._topic, key, value, self._headers)
            if self._own_gaps.ends:
                self._own_gaps.put(key)
        written = self._written
        self.undo.append((written, key, written.get(key, _ABSENT)))
        written[key] = value

    def range_own(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yields as `range` does, without serdes. Both begin with STREAMS_PREFIX."""
        passed, first, last, found = 0, self._own_gaps.behind(start), b"", False
        for key, value in self.raw_items(first, end):
            if value is None:
                passed, last = passed + 1, key
                continue
            if not found:
                found = True
                self._own_gaps.found(first, key, passed)
            yield key, value
        if not found and passed:
            self._own_gaps.found(first, last + b"\0", passed)

    def rolled_back(self) -> None:
        """Forgets which keys are deleted: they may be back."""
        self._forget()

    def _forget(self) -> None:
        self._gaps.forget()
        self._own_gaps.forget()
        self.due_ms.clear()
        self.met.clear()

    def write_again(self, changes: Iterable[Change]) -> None:
        """Adds changes that the state already holds to the next commit."""
        self._forget()
        self._written.update(changes)

    @property
    def has_changes(self) -> bool:
        """Returns whether something was changed since the last commit began."""
        return bool(self._written or self._often_changed)

    @property
    def written(self) -> Mapping[bytes, bytes | None]:
        """The changes since the last commit began: key -> value; None: deleted."""
        return self._written

    def begin_commit(self, own: Mapping[bytes, bytes] | None = None) -> dict[bytes, bytes | None]:
        """Begins a commit, when the changes of the former one are in the store. Returns what was
        `written`, and behind it what the member writes itself.
        """
        self._write_often()
        self._committing, self._written = self._written, Changes()
        self._committing.update(own or {})  # a copy of large commits would cost memory
        self.undo.clear()
        return self._committing

    def extend_commit(self, own: Mapping[bytes, bytes]) -> dict[bytes, bytes | None]:
        """Adds to the commit that `begin_commit` has begun, before it is in the store. Returns what
        it adds: what was `written` since, and behind it what the member writes itself.
        """
        self._write_often()
        more, self._written = self._written, Changes()
        more.update(own)
        self._committing.update(more)
        self.undo.clear()
        return more


def _check_key(key: bytes) -> None:
    for prefix in (RESERVED_PREFIX, STREAMS_PREFIX):
        if key.startswith(prefix):
            raise InputError(f"key {key!r:.60}: keys that begin with {prefix!r} are the member's own; use another key")


def _behind_prefix(prefix: bytes) -> bytes | None:
    """The first key behind all that begin with `prefix`; None: there is none."""
    cut = prefix.rstrip(b"\xff")
    return cut[:-1] + bytes([cut[-1] + 1]) if cut else None


class TaskContext:
    """One grant of one task. State changes and sent records last with the next commit; with
    at_least_once records may be sent before. `task`: its id. `states`: changelog topic -> state.
    `headers`: of each record sent.
    """

    def __init__(
        self,
        task: TaskId,
        token: int,
        states: Mapping[str, State],
        timers: IntervalTimers | None = None,
        key_serde: Serde = BYTES,
        value_serde: Serde = BYTES,
        headers: SentHeaders | None = None,
        sizes: RecordSizes | None = None,
    ) -> None:
        self.task = task
        self.token = token
        """Fencing token of the grant. Of two grants of this task in one log, the later one has the
        larger token. See docs/protocol.md#m6.
        """
        self.states = states
        self.outputs = Outputs({})
        """Records to send."""
        self._timers = timers
        self.sizes = sizes or RecordSizes()
        """What topics take."""
        self.headers = headers or []
        """Of each record sent, behind its own."""
        self._key_serde, self._value_serde = key_serde, value_serde
        self._value_as_is = class_as_is(value_serde)
        self.only_state = next(iter(states.values())) if len(states) == 1 else None
        """None: there is none, or several."""
        self._undo: list[Undo] = []
        self.readings: list[KeptReading] = []
        """Iterators over state that the function of the application at hand was given."""
        for state in states.values():
            state.undo = self._undo
            state.readings = self.readings
        self.record_ms: int | None = None
        """Time of the record that is handled, which sent records have; None: there is none, or it
        is too far ahead, and they have the time of sending.
        """
        self.dropped: list[Dropped] = []
        """What windows, joins and tables have dropped in the call at hand."""
        self.latest_ms = -1
        """Up to which time a record's time is taken, when that was looked up last."""
        self.look_up_latest: Callable[[], int] = lambda: INT64_MAX
        """Returns `latest_ms` as the brokers' clock is now."""
        self.behind: Callable[[], int | None] = lambda: 0
        """Returns how many source records are still to be handled; None: unknown."""
        self.savepoint: Callable[[], None] = self._undo.clear
        """`rollback` returns to the last call of this."""

    @property
    def state(self) -> State:
        """The state of a task with one changelog. Raises InputError when the task has none or
        several; then use `states`.
        """
        if self.only_state is None:
            if not self.states:
                raise InputError(f"task {self.task} has no state; name its topic in the `state` of Member or Processor")
            raise InputError(f"task {self.task} has {len(self.states)} states; use context.states[topic], with one of {', '.join(self.states)}")
        return self.only_state

    def send(
        self,
        topic: str,
        value: Any,
        *,
        key: Any = None,
        partition: int | None = None,
        headers: Iterable[tuple[str, bytes]] = (),
        timestamp_ms: int | None = None,
        key_serde: Serde | None = None,
        value_serde: Serde | None = None,
    ) -> None:
        """Sends a record to `topic`: with the next commit, or with at_least_once soon. `partition`
        None: chosen by the key, as Kafka's clients do. `timestamp_ms` None: the time of the
        record that is handled (a batch: its latest; timers by stream time: when they are due),
        and elsewhere the time of sending. With `now_ms` the time is the member's clock.
        The serdes are the member's, unless others are given. Raises InputError when both key and
        value are None, or the record is larger than the topic takes (1 MiB, or its
        `max.message.bytes`).
        """
        if value_serde is None:
            data = value if value.__class__ is self._value_as_is or value is None else self._value_serde.serialize(value)
        else:
            check_serde("value_serde", value_serde)
            data = None if value is None else value_serde.serialize(value)
        if key_serde is not None:
            check_serde("key_serde", key_serde)
        key_data = None if key is None else (key_serde or self._key_serde).serialize(key)
        if key is None and value is None:
            raise _empty(topic)
        at_ms = self.record_ms if timestamp_ms is None else timestamp_ms
        record = key_data, data, [*headers, *self.headers] if headers else self.headers, at_ms
        if headers or len(data or b"") + len(key_data or b"") > self.sizes.small:
            self.sizes.check(topic, key_data, data, record[2])
        self._undo.append(self.outputs.add(topic, partition, record))

    def send_many(self, topic: str, records: Iterable[tuple[Any, Any]], *, partition: int | None = None) -> None:
        """Sends records, (key, value) each, to `topic`: much faster than one `send` each.
        `partition` None: of each record chosen by its key. Their time is as in `send`. Raises
        InputError as `send` does; then none is sent.
        """
        pairs = list(records)
        keys, values = list(map(_FIRST, pairs)), list(map(_SECOND, pairs))
        raw_keys, raw_values = self._many(keys, self._key_serde), self._many(values, self._value_serde)
        if None in keys and None in values and (None, None) in zip(keys, values, strict=True):
            raise _empty(topic)
        if _longest(raw_keys) + _longest(raw_values) > self.sizes.small:
            for key, value in zip(raw_keys, raw_values, strict=True):
                self.sizes.check(topic, key, value, self.headers)
        self._undo += self.outputs.add_many(topic, partition, list(zip(raw_keys, raw_values, repeat(self.headers), repeat(self.record_ms))))

    def _many(self, values: Sequence[Any], serde: Serde) -> Sequence[bytes | None]:
        kinds = set(map(type, values))
        if kinds <= {class_as_is(serde), type(None)}:
            return values
        return [None if value is None else serde.serialize(value) for value in values]

    def every(self, seconds: float, callback: Callback) -> None:
        """Calls `callback(context)` each `seconds`, between two records, as long as the task runs
        here. What it puts and sends takes effect as a handler's. Call this in `on_assigned`. If
        `callback` raises, what it put and sent is dropped; with `ErrorPolicy.stop` the task is
        parked, else the error is logged and the timer goes on. Raises InputError in a task without
        timers.
        """
        if self._timers is None:
            raise InputError("every: this task has no timers")
        self._timers.every(seconds, callback)

    @property
    def now_ms(self) -> int:
        """The member's clock, in ms since 1970."""
        return 0 if self._timers is None else self._timers.wall_ms()

    def is_ahead(self, at_ms: int, *, is_next: bool = False) -> bool:
        """Returns whether a time is too far ahead of the brokers' clock; then it is counted, once
        for each record. `is_next`: it is of another record than the last one.
        """
        if at_ms > self.latest_ms:
            self.latest_ms = self.look_up_latest()
        if at_ms <= self.latest_ms:
            return False
        ahead = Dropped(STREAM_TIME, STREAM_TIME, DropReason.AHEAD, None, at_ms)
        if is_next or ahead not in self.dropped:  # it goes through several windows
            self.drop(ahead)
        return True

    def drop(self, dropped: Dropped) -> None:
        """Notes what a window, join or table drops, unless the call fails."""
        self.dropped.append(dropped)
        self._undo.append(self.dropped)

    def rollback(self) -> None:
        """Drops what was put and sent since the savepoint."""
        for change in reversed(self._undo):
            if isinstance(change, list):
                change.pop()
                continue
            changes, key, before = change
            if before is _ABSENT and isinstance(changes, Changes):
                changes.drop(key)
            else:
                changes[key] = before
        self._undo.clear()
        for state in self.states.values():
            state.rolled_back()

    def end_call(self) -> None:
        """After a call of a function of the application: the iterators that it was given end."""
        end_all(self.readings)

    @property
    def is_caught_up(self) -> bool:
        """Returns whether all source records are handled that are there, as far as is known."""
        return self.behind() == 0

    @property
    def store_failure(self) -> StoreError | None:
        """Returns what a store has raised; None: nothing."""
        return next((state.failure for state in self.states.values() if state.failure is not None), None)

    @property
    def has_changes(self) -> bool:
        """Returns whether something waits for the next commit."""
        return bool(self.outputs) or any(state.has_changes for state in self.states.values())


def _longest(contents: Iterable[bytes | None]) -> int:
    return max(map(len, filter(None, contents)), default=0)


def _empty(topic: str) -> InputError:
    return InputError(f"send to {topic}: a record needs a key or a value")


_EPOCHS = TopicPartition("", 0)
"""No source: there are the leader epochs in the value of SOURCES_KEY, where builds without them
keep what they find.
"""
Callback = Callable[[TaskContext], Awaitable[None] | object]
"""What it returns is not looked at, unless it is awaitable."""


def pack_sources(offsets: Mapping[TopicPartition, int], epochs: Mapping[TopicPartition, int]) -> bytes:
    """Packs source offsets, source partition -> offset of the next record, as the value of
    SOURCES_KEY. `epochs`: leader epochs in which the partitions had all before, where known.
    """
    entries: list[Any] = [[*source, offset] for source, offset in sorted(offsets.items())]
    known = [[offset, epochs.get(source, NO_EPOCH)] for source, offset in sorted(offsets.items())]
    packed: bytes = msgpack.packb([*entries, [*_EPOCHS, known]])
    return packed


def unpack_sources(packed: bytes) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """The offsets and epochs that `pack_sources` has packed. A former build keeps the epochs as
    they are beside offsets of its own; there they do not count.
    """
    offsets = {TopicPartition(topic, partition): offset for topic, partition, offset in msgpack.unpackb(packed)}
    known: Any = offsets.pop(_EPOCHS, ())
    said = zip(sorted(offsets), known, strict=False)
    return offsets, {source: epoch for source, (offset, epoch) in said if epoch != NO_EPOCH and offset == offsets[source]}


def read_sources(state: State) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """The source offsets in a changelog, and the leader epochs of those of which it has one."""
    value = state.store.get(SOURCES_KEY)
    return ({}, {}) if value is None else unpack_sources(value)


def pack_source_topics(topics: Mapping[str, str]) -> bytes:
    """Packs the ids of source topics, as the value of SOURCE_TOPICS_KEY."""
    packed: bytes = msgpack.packb(sorted(topics.items()))
    return packed


def read_source_topics(state: State) -> dict[str, str]:
    """Returns the ids of the topics whose source offsets are in a changelog: topic -> id. Missing
    ones are unknown: the brokers had none, or a former build has written the offsets.
    """
    value = state.store.get(SOURCE_TOPICS_KEY)
    return {} if value is None else dict(msgpack.unpackb(value))
