"""Rows: records as they are stored, and the order they must come in.

Whatever keeps them, a log's rows are a fact, the decisions it caused, the next fact, and so on.
`Order` is the one place that says what may come next; a reader asks it before it hands a record on,
a writer before it stores one.
"""

from __future__ import annotations

from typing import Any, cast

import attrs

from equipoise.events import codec
from equipoise.events.decisions import Decision
from equipoise.events.errors import DamagedError, GapError, RepeatError, UnknownEventError, UnknownKindError, UnsoundError
from equipoise.events.facts import LogOpened, Undecodable
from equipoise.events.fields import INT64_MAX, MOST_TEXT_CHARS
from equipoise.events.records import DecisionRecord, Entry, Record, UnreadRecord

LOG_OPENED = codec.kind_of(LogOpened)
UNDECODABLE = codec.kind_of(Undecodable)
_CHECKSUMS = 2**32


@attrs.frozen(slots=True)
class FactRow:
    """A fact as it is stored. `checksum`: see `codec.fact_checksum`."""

    group: str
    offset: int
    append_ms: int
    kind: int
    version: int
    payload: bytes
    checksum: int

    @property
    def belongs_to_no_group(self) -> bool:
        """It holds the place of a record in Kafka that names no group: folded by nobody, given out
        by no reading.
        """
        return self.group == "" and self.kind == UNDECODABLE


@attrs.frozen(slots=True)
class DecisionRow:
    """A decision as it is stored. The log's id and the fact's checksum are not stored again:
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


Row = FactRow | DecisionRow


def is_count(value: Any) -> bool:
    """A true int from 0 to 2^63 - 1."""
    return value.__class__ is int and 0 <= value <= INT64_MAX


def is_group(value: Any) -> bool:
    """A group's name: a text of 1 to 1,000 characters that UTF-8 can carry."""
    return value.__class__ is str and 1 <= len(value) <= MOST_TEXT_CHARS and not any("\ud800" <= char <= "\udfff" for char in value)


def _is_sound(row: Row) -> bool:
    """The columns hold what they may hold; a damaged file may hold anything."""
    if not (is_count(row.kind) and is_count(row.version) and is_count(row.checksum) and row.checksum < _CHECKSUMS and row.payload.__class__ is bytes):
        return False
    if isinstance(row, FactRow):
        return is_count(row.offset) and is_count(row.append_ms) and (is_group(row.group) or row.group == "")
    return is_count(row.number) and is_count(row.caused_by) and is_count(row.index) and is_group(row.group)


class Order:
    """Where one reading, or one writing, of a log is: what was last, and so what may be next.

    `position`: offset of the next fact. `log_id`: known from the first record on; a reading from
    the middle is told.
    """

    def __init__(self, position: int = 0, log_id: str = "") -> None:
        self.position = position
        self.log_id = log_id
        self.fact_checksum = 0
        self.index = 0
        """Place of the next decision of the last fact."""
        self.started = False
        """A fact has been seen, so that decisions may follow."""
        self.numbers: dict[str, int] = {}
        """Group -> number of its last decision."""
        self.from_the_middle = position > 0
        """The numbers before are not known, so a group's first one is taken as it is."""

    def take(self, row: Row) -> None:
        """Make `row` the last one.

        Raises GapError, RepeatError and DamagedError, with the offset, when it cannot follow what
        was last or is not what was written; the order then stays as it was.
        """
        if isinstance(row, FactRow):
            self._take_fact(row)
        else:
            self._take_decision(row)

    def _take_fact(self, row: FactRow) -> None:
        if not _is_sound(row):
            raise DamagedError(self.position, "the record holds what no record can hold; restore the log from a copy")
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
            raise DamagedError(self.position, "the decision holds what no record can hold; restore the log from a copy")
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

    def record(self, row: Row) -> Record | DecisionRecord:
        """The record of the row just taken. Raises what `record_of` raises."""
        return record_of(row, self.log_id, self.fact_checksum)

    def entry(self, row: Row, partition: int | None) -> Entry:
        """What a reading gives out for the row just taken. Raises what `entry_of` raises."""
        return entry_of(row, self.log_id, self.fact_checksum, partition)


def record_of(row: Row, log_id: str, fact_checksum: int) -> Record | DecisionRecord:
    """The record of a row. `log_id`, `fact_checksum`: what a decision's row need not repeat.

    A fact that no constructor accepts is `Undecodable`: what its sender appended is stored well,
    and the group goes on (docs/protocol.md#l6). Raises UnknownKindError, and DamagedError for a decision
    that no constructor accepts.
    """
    event = _decode(row)
    if isinstance(row, FactRow):
        return Record(row.group, row.offset, row.append_ms, cast(Any, event), row.checksum)
    return DecisionRecord(log_id, row.group, row.number, row.caused_by, row.index, fact_checksum, cast(Decision, event))


def entry_of(row: Row, log_id: str, fact_checksum: int, partition: int | None) -> Entry:
    """The record of a row, or an UnreadRecord for what a newer build wrote: other groups of the log
    can still be read.

    Raises DamagedError; UnknownKindError for a LogOpened, which all groups depend on.
    """
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
    """Puts into `found` the first row of each group that this build cannot read."""
    if row.group and row.group not in found and not codec.is_known(row.kind, row.version, row.payload):
        entry = entry_of(row, "", 0, partition)
        assert isinstance(entry, UnreadRecord), "what is not known cannot be read"
        found[row.group] = entry


def _decode(row: Row) -> codec.Event:
    offset = row.offset if isinstance(row, FactRow) else row.caused_by
    try:
        if isinstance(row, FactRow) and row.offset > 0:
            return codec.decode_lenient(row.kind, row.version, row.payload)
        event = codec.decode(row.kind, row.version, row.payload)
    except UnknownEventError as error:
        raise UnknownKindError(offset, str(error)) from None
    except UnsoundError as error:
        if codec.has_appended_fields(row.kind, row.version, row.payload):
            problem = f"{codec.kind_name(row.kind)} has fields that this build does not know; upgrade to the one that wrote it"
            raise UnknownKindError(offset, problem) from None
        raise DamagedError(offset, f"{codec.kind_name(row.kind)} was stored unsound: {error}") from None
    if row.kind < codec.FIRST_DECISION_KIND and isinstance(row, DecisionRow):
        raise DamagedError(offset, f"{codec.kind_name(row.kind)}, a fact, stands as decision {row.number}")
    return event
