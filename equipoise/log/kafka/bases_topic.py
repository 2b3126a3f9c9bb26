"""Bases in their topic, ``<prefix>.bases``: their records, and how they are found
(docs/protocol.md#l10, docs/decisions/0023-bases.md).

The topic is compacted and has the partitions of the facts. Keys and values are msgpack arrays:

::

    ["opened"]                              [append_ms, value of LogOpened's record]
    ["state", group, offset, form, part]    [log_id, parts, CRC-32 of the whole, bytes]
    ["base", position, SHA-256, part]       [log_id, parts, bytes]: a part of a `Base`
    ["archive", name]                       [log_id, position, time (ms)]
    ["halted", group]                       [log_id, offset]

The first record is that of LogOpened. Facts before the position of an archive are in it, with their
decisions. A group that has halted may get decisions of the fact at that offset and of later ones,
whatever is decided for other groups meanwhile; an archive waits there.

Keys follow from the contents, so two workers that store the same state store the same bytes. A base
is stored after its states. Other records are ignored.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import attrs
import msgpack

from equipoise.events.errors import DamagedError
from equipoise.events.facts import LogOpened
from equipoise.log.kafka.envelope import fact_row, pack_fact
from equipoise.log.kafka.log_topics import NEW_LOG
from equipoise.log.rows import LOG_OPENED, BaseRow, FactRow

PART_BYTES = 900_000

Place = tuple[int, int, int, str]
"""Of a group's state in a base: the fact after which it is, the number of the last decision by
then, the form, and the SHA-256 in hex.
"""


@attrs.frozen(kw_only=True)
class Base:
    """The place at which a partition of a log may begin.

    `position`: offset of the next fact when it was stored. `append_ms`: time of the last fact
    before, by the log's clock. `facts_offset`, `decisions_offset`: the first fact and the first
    decision that a reader needs. `interval_bytes`: about so much was written since the base before.
    `previous`: SHA-256 of that one; "": it is the first. `groups`: group -> place of its state.
    """

    log_id: str
    position: int
    append_ms: int
    facts_offset: int
    decisions_offset: int
    interval_bytes: int
    previous: str
    groups: dict[str, Place]

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self._packed()).hexdigest()

    def _packed(self) -> bytes:
        head = [self.log_id, self.position, self.append_ms, self.facts_offset, self.decisions_offset, self.interval_bytes, self.previous]
        packed: bytes = msgpack.packb([*head, {group: list(place) for group, place in sorted(self.groups.items())}])
        return packed

    def state_keys(self) -> set[tuple[str, int, int]]:
        """(group, offset, form) of its states."""
        return {(group, place[0], place[2]) for group, place in self.groups.items()}

    def records(self) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values of its parts."""
        packed = self._packed()
        sha256 = hashlib.sha256(packed).hexdigest()
        parts = [packed[start : start + PART_BYTES] for start in range(0, len(packed), PART_BYTES)]
        for part, content in enumerate(parts):
            yield msgpack.packb(["base", self.position, sha256, part]), msgpack.packb([self.log_id, len(parts), content])


def opening_record(append_ms: int, opened: LogOpened) -> tuple[bytes, bytes]:
    """Key and value of the first record of the topic's partition."""
    return msgpack.packb(["opened"]), msgpack.packb([append_ms, pack_fact(opened)])


def opening_row(key: bytes | None, value: bytes | None) -> FactRow | None:
    """LogOpened as the first fact of the partition; None: the record is something else."""
    content = _unpack(value)
    if _unpack(key) != ["opened"] or len(content) != 2 or content[0].__class__ is not int or content[1].__class__ is not bytes:
        return None
    row = fact_row(b"", content[1], 0, content[0])
    return row if row.kind == LOG_OPENED else None


def state_records(log_id: str, group: str, offset: int, form: int, state: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of the parts of a state."""
    parts = [state[start : start + PART_BYTES] for start in range(0, len(state), PART_BYTES)]
    for part, content in enumerate(parts):
        yield msgpack.packb(["state", group, offset, form, part]), msgpack.packb([log_id, len(parts), zlib.crc32(state), content])


def archive_record(log_id: str, name: str, position: int, at_ms: int) -> tuple[bytes, bytes]:
    """Key and value of an archive's position: everything before it is archived."""
    return msgpack.packb(["archive", name]), msgpack.packb([log_id, position, at_ms])


@attrs.frozen
class BaseStart:
    """Where a reading of a partition begins: LogOpened, the states of a base, and the first fact
    and decision after them.
    """

    opened: FactRow
    states: tuple[BaseRow, ...]
    facts_offset: int
    decisions_offset: int


def halted_record(log_id: str, group: str, offset: int | None) -> tuple[bytes, bytes | None]:
    """Key and value that say where a group has halted; None: nowhere."""
    return msgpack.packb(["halted", group]), None if offset is None else msgpack.packb([log_id, offset])


class Bases:
    """The bases of one partition, from the records of its topic in order. `log_id`: records of
    other logs are ignored. `keep_states`: False forgets the bytes of states, and then takes each
    for whole that is there.
    """

    def __init__(self, log_id: str, *, keep_states: bool = True) -> None:
        self._log_id = log_id
        self._keep = keep_states
        self.opened: FactRow | None = None
        self.archives: dict[str, tuple[int, int]] = {}
        """Name of a declared archive -> (its position, when it said so in ms)."""
        self.halted: dict[str, int] = {}
        """Group that has halted -> the first fact whose decisions may be missing."""
        self._states: dict[tuple[str, int, int], dict[int, tuple[int, int, bytes]]] = {}
        """(group, offset, form) -> part -> (parts, checksum, bytes)."""
        self._bases: dict[tuple[int, str], dict[int, tuple[int, bytes]]] = {}
        self._found: dict[tuple[int, str], Base] = {}

    def take(self, key: bytes | None, value: bytes | None) -> None:
        """Takes the next record of the topic."""
        name, content = _unpack(key), _unpack(value)
        what = name[0] if name else None
        if what == "opened":
            self.opened = self.opened or opening_row(key, value)
        elif what == "state" and _is(name[1:], (str, int, int, int)):
            sound = _is(content, (str, int, int, bytes)) and content[0] == self._log_id
            kept = content[3] if sound and self._keep else b""
            _put(self._states, (name[1], name[2], name[3]), name[4], (content[1], content[2], kept) if sound else None)
        elif what == "base" and _is(name[1:], (int, str, int)):
            sound = _is(content, (str, int, bytes)) and content[0] == self._log_id
            _put(self._bases, (name[1], name[2]), name[3], (content[1], content[2]) if sound else None)
            self._note((name[1], name[2]))
        elif what == "archive" and _is(name[1:], (str,)):
            if _is(content, (str, int, int)) and content[0] == self._log_id:
                self.archives[name[1]] = content[1], content[2]
            elif not value:
                self.archives.pop(name[1], None)
        elif what == "halted" and _is(name[1:], (str,)):
            if _is(content, (str, int)) and content[0] == self._log_id:
                self.halted[name[1]] = content[1]
            elif not value:
                self.halted.pop(name[1], None)

    def _note(self, key: tuple[int, str]) -> None:
        """Reads the base when all its parts are there and have its hash."""
        self._found.pop(key, None)
        parts = self._bases.get(key, {})
        count = parts[0][0] if 0 in parts else 0
        if not count or any(part not in parts for part in range(count)):
            return
        packed = b"".join(parts[part][1] for part in range(count))
        if hashlib.sha256(packed).hexdigest() != key[1]:
            return
        base = _base_from(packed)
        if base is not None and base.position == key[0] and base.log_id == self._log_id:
            self._found[key] = base

    @property
    def stored(self) -> list[Base]:
        """Every base that is stored, whole or not, by position."""
        return [self._found[key] for key in sorted(self._found)]

    def keys_of(self, base: Base) -> list[bytes]:
        """Keys of the base's records."""
        sha256 = base.sha256
        return [msgpack.packb(["base", base.position, sha256, part]) for part in sorted(self._bases.get((base.position, sha256), ()))]

    def states_before(self, kept: Base) -> list[bytes]:
        """Keys of the states that neither `kept` nor a later base names."""
        named = {key for base in self.stored if base.position >= kept.position for key in base.state_keys()}
        old = [key for key in self._states if key not in named and key[1] < kept.position]
        return [msgpack.packb(["state", *key, part]) for key in sorted(old) for part in sorted(self._states[key])]

    def state(self, group: str, place: Place) -> bytes | None:
        """The state of a group; None: it is missing or has another hash."""
        found = self._parts_of(group, place)
        state = b"".join(content for _, _, content in found)
        return state if found and hashlib.sha256(state).hexdigest() == place[3] else None

    def _parts_of(self, group: str, place: Place) -> list[tuple[int, int, bytes]]:
        parts = self._states.get((group, place[0], place[2]), {})
        count = parts[0][0] if 0 in parts else 0
        found = [parts[part] for part in range(count) if part in parts]
        return found if len(found) == count else []

    def damage(self, base: Base) -> str:
        """Returns what of the base is missing; "": nothing."""
        for group, place in sorted(base.groups.items()):
            if self.state(group, place) is None if self._keep else not self._parts_of(group, place):
                return f"the state of group {group!r} after the fact at {place[0]} is missing or damaged"
        return ""

    def first(self, facts_begin: int, decisions_begin: int) -> Base | None:
        """The oldest whole base that a log with these first offsets may be read from."""
        return next(self._usable(self.stored, facts_begin, decisions_begin), None)

    def last(self, facts_begin: int, decisions_begin: int, *, reads: Callable[[int], bool]) -> Base | None:
        """The newest such base, of those in forms that `reads` accepts."""
        stored = [each for each in reversed(self.stored) if all(reads(place[2]) for place in each.groups.values())]
        return next(self._usable(stored, facts_begin, decisions_begin), None)

    def _usable(self, bases: Iterable[Base], facts_begin: int, decisions_begin: int) -> Iterator[Base]:
        for base in bases:
            if base.facts_offset >= facts_begin and base.decisions_offset >= decisions_begin and not self.damage(base):
                yield base

    def rows(self, base: Base, groups: Collection[str] | None = None) -> Iterator[BaseRow]:
        """The states of a base that is whole, by group."""
        for group, place in sorted(base.groups.items()):
            if groups is None or group in groups:
                state = self.state(group, place)
                assert state is not None, "the base is whole"
                yield BaseRow.of(group, place[0], place[1], base.facts_offset, base.append_ms, state)

    def broken_chain(self) -> str:
        """Where a base does not name the one before it; "": nowhere. Two workers at once may both
        have followed the same one.
        """
        stored = self.stored
        known = {base.sha256 for base in stored}
        for base in stored[1:]:
            if base.previous not in known:
                return f"the base at offset {base.position} does not name one before it"
        return ""


def beginning(bases: Bases, facts_begin: int, decisions_begin: int, where: str) -> Base:
    """The base that a log begins at. Raises DamagedError, which says what to do, when there is
    none.
    """
    base = bases.first(facts_begin, decisions_begin)
    if base is not None and bases.opened is not None:
        return base
    stored = bases.stored
    damaged = next((f"; the base at offset {each.position}: {bases.damage(each)}" for each in stored if bases.damage(each)), "")
    there = f"its newest base is at offset {stored[-1].position}" if stored else "it has no base"
    problem = (
        f"{where}: facts begin here and decisions at {decisions_begin}, and {there}{damaged}: records behind every base were deleted. "
        f"Restore the log from an archive (docs/logs.md#back-up-and-restore), or {NEW_LOG}"
    )
    raise DamagedError(facts_begin, problem)


def _put(into: dict[Any, dict[int, Any]], key: Any, part: int, content: Any) -> None:
    if content is not None:
        into.setdefault(key, {})[part] = content
    elif key in into:
        into[key].pop(part, None)
        if not into[key]:
            del into[key]


_BASE = (str, int, int, int, int, int, str, dict)
_PLACE = (int, int, int, str)


def _base_from(packed: bytes) -> Base | None:
    values = _unpack(packed)
    if not _is(values, _BASE):
        return None
    *head, groups = values
    if not all(group.__class__ is str and place.__class__ is list and _is(place, _PLACE) for group, place in groups.items()):
        return None
    log_id, position, append_ms, facts_offset, decisions_offset, interval_bytes, previous = head
    return Base(
        log_id=log_id,
        position=position,
        append_ms=append_ms,
        facts_offset=facts_offset,
        decisions_offset=decisions_offset,
        interval_bytes=interval_bytes,
        previous=previous,
        groups={group: tuple(place) for group, place in groups.items()},
    )


def _is(values: list[Any], kinds: tuple[type, ...]) -> bool:
    return tuple(value.__class__ for value in values) == kinds and all(value >= 0 for value in values if value.__class__ is int)


def _unpack(value: bytes | None) -> list[Any]:
    try:
        unpacked = msgpack.unpackb(value) if value else None
    except (ValueError, TypeError, msgpack.UnpackException):
        return []
    return unpacked if isinstance(unpacked, list) else []
