"""What a handler works with: the state of its task, and the records it sends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import attrs
import msgpack

from equipoise.events.errors import InputError
from equipoise.events.tasks import TaskId
from equipoise.member.fencing import RESERVED_PREFIX, SOURCES_KEY
from equipoise.member.stores import Change, StateStore


@attrs.frozen
class Output:
    """One record to send."""

    topic: str
    value: bytes | None
    key: bytes | None
    partition: int | None
    headers: tuple[tuple[str, bytes], ...]


class State:
    """The state of a task in one changelog: keys and values, both bytes. It holds the store's
    content and, over it, the changes since the last commit.
    """

    def __init__(self, store: StateStore) -> None:
        self.store = store
        self._written: dict[bytes, bytes | None] = {}

    def get(self, key: bytes) -> bytes | None:
        """The value of `key`; None when there is none."""
        return self._written[key] if key in self._written else self.store.get(key)

    def put(self, key: bytes, value: bytes) -> None:
        """Sets `key`. It lasts with the next commit. Raises InputError when key or value is not
        bytes, or the key is reserved (it begins with ``\\0equipoise.``).
        """
        if value.__class__ is not bytes:
            raise InputError(f"put({key!r:.40}, {value!r:.40}): state has bytes as keys and values")
        self._written[_of_application(key)] = value

    def delete(self, key: bytes) -> None:
        """Removes `key`. Raises InputError as `put` does."""
        self._written[_of_application(key)] = None

    def write_again(self, changes: Iterable[Change]) -> None:
        """Adds changes that the state already holds to the next commit."""
        self._written.update(changes)

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Every key with its value, in rising order of the keys."""
        written = sorted(self._written.items(), reverse=True)
        for key, value in self.store.items():
            while written and written[-1][0] < key:
                yield from _there(*written.pop())
            if written and written[-1][0] == key:
                yield from _there(*written.pop())
            elif not key.startswith(RESERVED_PREFIX):
                yield key, value
        while written:
            yield from _there(*written.pop())

    def written(self) -> list[Change]:
        """The changes since the last commit, each key once."""
        return list(self._written.items())

    def committed(self) -> None:
        """The changes were applied to the store."""
        self._written.clear()


def _of_application(key: bytes) -> bytes:
    if key.__class__ is not bytes:
        raise InputError(f"key {key!r:.40}: state has bytes as keys and values")
    if key.startswith(RESERVED_PREFIX):
        raise InputError(f"key {key!r:.60}: keys that begin with {RESERVED_PREFIX!r} are the member's own; use another key")
    return key


def _there(key: bytes, value: bytes | None) -> Iterator[tuple[bytes, bytes]]:
    if value is not None:
        yield key, value


class TaskContext:
    """One grant of one task. State changes and sent records take effect together, at the next
    commit. `task`: its id. `states`: changelog topic -> state.
    """

    def __init__(self, task: TaskId, token: int, states: Mapping[str, State]) -> None:
        self.task = task
        self.token = token
        """Fencing token of the grant. Of two grants of this task in one log, the later one has the
        larger token. See docs/protocol.md#m6.
        """
        self.states = states
        self.outputs: list[Output] = []
        """Records to send with the next commit."""

    @property
    def state(self) -> State:
        """The state of a task with one changelog. Raises InputError when the task has none or
        several; then use `states`.
        """
        if len(self.states) != 1:
            raise InputError(f"task {self.task} has {len(self.states)} changelogs; use context.states[topic]")
        return next(iter(self.states.values()))

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        headers: Iterable[tuple[str, bytes]] = (),
    ) -> None:
        """Sends a record to `topic` with the next commit. `partition` None: Kafka's client chooses
        it by the key. Raises InputError when both key and value are None.
        """
        if value is None and key is None:
            raise InputError(f"send to {topic}: a record needs a key or a value")
        self.outputs.append(Output(topic, value, key, partition, tuple(headers)))


def pack_sources(positions: Mapping[tuple[str, int], int]) -> bytes:
    """Packs source positions, (topic, partition) -> offset of the next record, as the value of
    SOURCES_KEY.
    """
    packed: bytes = msgpack.packb([[topic, partition, offset] for (topic, partition), offset in sorted(positions.items())])
    return packed


def read_sources(states: Mapping[str, State]) -> dict[tuple[str, int], int]:
    """The source positions in the task's changelogs: (topic, partition) -> lowest offset of the
    next record. Partitions that one of the changelogs lacks are absent.
    """
    known: dict[tuple[str, int], int] = {}
    for index, state in enumerate(states.values()):
        value = state.store.get(SOURCES_KEY)
        stored = {} if value is None else {(topic, partition): offset for topic, partition, offset in msgpack.unpackb(value)}
        known = stored if index == 0 else {tp: min(known[tp], stored[tp]) for tp in known.keys() & stored.keys()}
    return known
