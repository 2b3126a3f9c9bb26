"""Rows: records in stored form, and their order.

The rows of every log are a fact, the decisions it caused, the next fact, and so on. `Order` alone
decides what may come next. Readers ask it before they yield a record, writers before they store
one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import attrs
import msgpack

from equipoise.events import codec
from equipoise.events.decisions import Decision
from equipoise.events.errors import DamagedError, GapError, RepeatError, UnknownEventError, UnknownKindError, UnsoundError
from equipoise.events.facts import LogOpened, Undecodable
from equipoise.events.fields import INT64_MAX, MOST_TEXT_CHARS
from equipoise.events.records import BaseState, DecisionRecord, Entry, FactRecord, UnreadRecord

LOG_OPENED = codec.kind_of(LogOpened)
UNDECODABLE = codec.kind_of(Undecodable)
_CHECKSUMS = 2**32


@attrs.frozen(slots=True)
class FactRow:
    """A fact in stored form. `checksum`: see `codec.fact_checksum`."""

    group: str
    offset: int
    append_ms: int
    kind: int
    version: int
    payload: bytes
    checksum: int

    @property
    def belongs_to_no_group(self) -> bool:
        """Returns whether the row only holds the place of a Kafka record without a group. It is
        never folded or yielded.
        """
        return self.group == "" and self.kind == UNDECODABLE

    def record(self) -> FactRecord:
        """Decodes the row, of `Undecodable` for bytes that no constructor accepts. Raises
        UnknownKindError.
        """
        return codec.read_record(self.group, self.offset, self.append_ms, self.kind, self.version, self.payload, self.checksum)


@attrs.frozen(slots=True)
class DecisionRow:
    """A decision in stored form. The log's id and the fact's checksum are not stored with it;
    `checksum` covers them (`codec.decision_checksum`).
    """

    group: str
    number: int
    caused_by: int
    index: int
    kind: int
    version: int
    payload: bytes
    checksum: int


BASE_KIND = 0
"""Kind, in the column of kinds, of a state at which a log begins."""
BASE_VERSION = 1
BASE_NUMBER = -1
"""Number, in the column of decisions' numbers, of such a state."""


@attrs.frozen(slots=True)
class BaseRow:
    """The state of a group at which a log begins, in stored form: `BaseState` has the fields.
    `payload`: msgpack [number, begins_offset, state]. `checksum`: as of a fact of BASE_KIND.
    """

    group: str
    offset: int
    append_ms: int
    payload: bytes
    checksum: int

    @classmethod
    def of(cls, group: str, offset: int, number: int, begins_offset: int, append_ms: int, state: bytes) -> BaseRow:
        """The row of a state."""
        payload = msgpack.packb([number, begins_offset, state])
        return cls(group, offset, append_ms, payload, _base_checksum(group, offset, append_ms, payload))

    def entry(self) -> BaseState:
        """Returns what a reader gets. Raises DamagedError."""
        try:
            number, begins_offset, state = msgpack.unpackb(self.payload)
        except (ValueError, TypeError, msgpack.UnpackException):
            number = begins_offset = state = None
        if not (is_count(number) and is_count(begins_offset) and begins_offset > 0 and state.__class__ is bytes):
            raise DamagedError(self.offset, f"the state of group {self.group!r} at which the log begins is damaged; restore the log from a copy")
        return BaseState(group=self.group, offset=self.offset, number=number, begins_offset=begins_offset, append_ms=self.append_ms, state=state)


def _base_checksum(group: str, offset: int, append_ms: int, payload: bytes) -> int:
    return codec.fact_checksum(group, offset, append_ms, BASE_KIND, BASE_VERSION, payload)


Row = FactRow | DecisionRow | BaseRow


def is_count(value: Any) -> bool:
    """Returns whether `value` is an int, not a bool, from 0 to 2^63 - 1."""
    return value.__class__ is int and 0 <= value <= INT64_MAX


def is_group(value: Any) -> bool:
    """Returns whether `value` is a group's name: 1 to 1,000 characters that UTF-8 can encode."""
    if value.__class__ is not str or not 1 <= len(value) <= MOST_TEXT_CHARS:
        return False
    return value.isascii() or not any("\ud800" <= char <= "\udfff" for char in value)


def _is_sound(row: FactRow | DecisionRow) -> bool:
    """Returns whether all columns hold valid values. A damaged file may hold anything."""
    kind, version, checksum = row.kind, row.version, row.checksum
    if not (kind.__class__ is version.__class__ is checksum.__class__ is int and row.payload.__class__ is bytes):
        return False
    if not (0 <= kind <= INT64_MAX and 0 <= version <= INT64_MAX and 0 <= checksum < _CHECKSUMS):
        return False
    if isinstance(row, FactRow):
        return is_count(row.offset) and is_count(row.append_ms) and (is_group(row.group) or row.group == "")
    return is_count(row.number) and is_count(row.caused_by) and is_count(row.index) and is_group(row.group)


class Order:
    """The position of one reader or writer of a log, which determines the next valid row.

    `position`: offset of the next fact. `log_id`: known from the first record on, or given to a
    reader that starts in the middle.
    """

    def __init__(self, position: int = 0, log_id: str = "") -> None:
        self.position = position
        self.log_id = log_id
        self.fact_checksum = 0
        self.index = 0
        """Index of the next decision of the last fact."""
        self.started = False
        """A fact was read, so decisions may follow."""
        self.numbers: dict[str, int] = {}
        """Group -> number of its last decision."""
        self.from_the_middle = position > 0
        """Earlier numbers are unknown, so the first number of each group is accepted."""
        self.begins_offset: int | None = None
        """First fact of a log that begins at a base; None: it does not."""
        self.bases: set[str] = set()
        """Groups whose state at the base was taken."""

    def take(self, row: Row) -> None:
        """Accepts `row` as the next one.

        Raises GapError, RepeatError or DamagedError, with the offset, when the row cannot follow
        the last one or differs from what was written; then the order is unchanged.
        """
        if isinstance(row, FactRow):
            self._take_fact(row)
        elif isinstance(row, DecisionRow):
            self._take_decision(row)
        else:
            self._take_base(row)

    def _take_base(self, row: BaseRow) -> None:
        """A state comes behind LogOpened, and moves the position to the log's first fact."""
        if not (is_group(row.group) and is_count(row.offset) and is_count(row.append_ms) and row.payload.__class__ is bytes):
            raise DamagedError(self.position, "row of a base: invalid column value; restore the log from a copy")
        if _base_checksum(row.group, row.offset, row.append_ms, row.payload) != row.checksum:
            raise DamagedError(row.offset, f"the state of group {row.group!r} differs from its checksum; restore the log from a copy")
        state = row.entry()
        if self.begins_offset is None and 1 < self.position < state.begins_offset:
            raise GapError(self.position, f"is missing; the log that is copied begins at the base at offset {state.begins_offset}")
        if row.group in self.bases or self.position != (1 if self.begins_offset is None else self.begins_offset) or not self.log_id:
            raise RepeatError(row.offset, f"the state of group {row.group!r} comes where offset {self.position} was due; restore the log from a copy")
        if self.begins_offset not in (None, state.begins_offset):
            raise DamagedError(row.offset, f"the state of group {row.group!r} is of another base; restore the log from a copy")
        self.begins_offset = self.position = state.begins_offset
        self.bases.add(row.group)
        self.numbers[row.group] = state.number

    def _take_fact(self, row: FactRow) -> None:
        if not _is_sound(row):
            raise DamagedError(self.position, "fact row: invalid column value; restore the log from a copy")
        if codec.fact_checksum(row.group, row.offset, row.append_ms, row.kind, row.version, row.payload) != row.checksum:
            raise DamagedError(self.position, "the record's bytes differ from its checksum; restore the log from a copy")
        if row.offset > self.position:
            raise GapError(self.position, f"is missing; the next record has offset {row.offset}. Restore the log from a copy")
        if row.offset < self.position:
            raise RepeatError(row.offset, f"came again where offset {self.position} was due; restore the log from a copy")
        if (row.offset == 0) != (row.kind == LOG_OPENED) or (row.group == "") != (row.offset == 0 or row.belongs_to_no_group):
            raise DamagedError(row.offset, "LogOpened, which belongs to no group, must be the first record and no other")
        if row.offset == 0:
            self.log_id = cast(LogOpened, _decode(row)).log_id
        self.position += 1
        self.fact_checksum, self.index, self.started = row.checksum, 0, True

    def _take_decision(self, row: DecisionRow) -> None:
        if not _is_sound(row):
            raise DamagedError(self.position, "decision row: invalid column value; restore the log from a copy")
        if not self.started or row.caused_by >= self.position:
            raise GapError(self.position, f"is missing; a decision caused by offset {row.caused_by} comes before it. Restore the log from a copy")
        if row.caused_by != self.position - 1:
            raise RepeatError(row.caused_by, f"a decision it caused comes after offset {self.position - 1}; restore the log from a copy")
        place = (self.log_id, row.group, row.number, row.caused_by, row.index, self.fact_checksum)
        if codec.decision_checksum(*place, row.kind, row.version, row.payload) != row.checksum:
            raise DamagedError(row.caused_by, f"its decision {row.number} has bytes that differ from their checksum; restore the log from a copy")
        due = self.numbers.get(row.group, row.number - 1 if self.from_the_middle else 0) + 1
        if row.number > due or row.index > self.index:
            raise GapError(row.caused_by, f"decision {due} of group {row.group!r} is missing; number {row.number}, index {row.index} came")
        if row.number < due or row.index < self.index:
            raise RepeatError(row.caused_by, f"decision {row.number} of group {row.group!r}, index {row.index}, came where {due} was due")
        self.numbers[row.group] = row.number
        self.index += 1

    def save(self) -> list[Any]:
        """Returns what `restore` needs: values for msgpack."""
        place = [self.position, self.log_id, self.fact_checksum, self.index, self.started]
        return [*place, self.numbers, self.from_the_middle, self.begins_offset, sorted(self.bases)]

    @classmethod
    def restore(cls, saved: Sequence[Any]) -> Order:
        """Goes on where `save` was called."""
        order = cls()
        order.position, order.log_id, order.fact_checksum, order.index, order.started, numbers, *rest = saved
        order.numbers = dict(numbers)
        order.from_the_middle, order.begins_offset, bases = rest
        order.bases = set(bases)
        return order

    def record(self, row: FactRow | DecisionRow) -> FactRecord | DecisionRecord:
        """Returns the record of the row just taken. Raises what `record_of` raises."""
        return record_of(row, self.log_id, self.fact_checksum)

    def entry(self, row: Row, partition: int | None) -> Entry:
        """Returns the entry that a reader yields for the row just taken. Raises what `entry_of`
        raises.
        """
        return entry_of(row, self.log_id, self.fact_checksum, partition)


def record_of(row: FactRow | DecisionRow, log_id: str, fact_checksum: int) -> FactRecord | DecisionRecord:
    """Decodes a row. `log_id`, `fact_checksum`: not stored in the row of a decision.

    A fact that no constructor accepts becomes `Undecodable`, and its group goes on
    (docs/protocol.md#l6). Raises UnknownKindError, and DamagedError for a decision that no
    constructor accepts.
    """
    if isinstance(row, FactRow) and row.offset > 0:
        return row.record()
    event = _decode(row)
    if isinstance(row, FactRow):
        return FactRecord(row.group, row.offset, row.append_ms, cast(Any, event), row.checksum)
    return DecisionRecord(log_id, row.group, row.number, row.caused_by, row.index, fact_checksum, cast(Decision, event))


def entry_of(row: Row, log_id: str, fact_checksum: int, partition: int | None) -> Entry:
    """Decodes a row, or returns an UnreadRecord for one of a newer build: other groups of the log
    stay readable.

    Raises DamagedError; UnknownKindError for a LogOpened, on which all groups depend.
    """
    if isinstance(row, BaseRow):
        return row.entry()
    try:
        return record_of(row, log_id, fact_checksum)
    except UnknownKindError as error:
        if row.group == "":
            raise
        offset, number = (row.offset, None) if isinstance(row, FactRow) else (row.caused_by, row.number)
        return UnreadRecord(
            group=row.group, partition=partition, offset=offset, number=number, kind=row.kind, version=row.version, problem=error.problem
        )


def note_unread(row: Row, partition: int | None, found: dict[str, UnreadRecord]) -> None:
    """Adds to `found` the first row of each group that this build cannot read."""
    if not isinstance(row, BaseRow) and row.group and row.group not in found and not codec.is_known(row.kind, row.version, row.payload):
        entry = entry_of(row, "", 0, partition)
        assert isinstance(entry, UnreadRecord), "what is not known cannot be read"
        found[row.group] = entry


def _decode(row: FactRow | DecisionRow) -> codec.Event:
    """Decodes a decision, or the first fact of a log, which must be sound."""
    offset = row.offset if isinstance(row, FactRow) else row.caused_by
    try:
        event = codec.decode(row.kind, row.version, row.payload)
    except UnknownEventError as error:
        raise UnknownKindError(offset, str(error)) from None
    except UnsoundError as error:
        if codec.has_appended_fields(row.kind, row.version, row.payload):
            problem = f"{codec.kind_name(row.kind)} has fields that this build does not know; upgrade to the one that wrote it"
            raise UnknownKindError(offset, problem) from None
        raise DamagedError(offset, f"{codec.kind_name(row.kind)} was stored unsound: {error}") from None
    if row.kind < codec.FIRST_DECISION_KIND and isinstance(row, DecisionRow):
        raise DamagedError(offset, f"{codec.kind_name(row.kind)}, a fact, is stored as decision {row.number}")
    return event
