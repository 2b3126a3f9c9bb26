"""The bytes of records in Kafka. The key is the group's name in UTF-8. The value is a msgpack array
that ends with the event's own array (`equipoise.events.wire`):

::

    fact        [kind, version, event]
    LogOpened   the same, with an empty key: the first record of each partition of facts, offset 0
    decision    [log_id, number, caused_by, index, fact_checksum, checksum, kind, version, event]

So any msgpack reader can read them, and the event's bytes are the end of the value, as in every
other form of log. Offset and append time of a record are the broker's.
"""

from __future__ import annotations

import logging
import zlib
from functools import lru_cache
from typing import Any, cast

import attrs
import msgpack

from equipoise.events import codec
from equipoise.events.errors import DamagedError, InputError, UnknownEventError, UnsoundError
from equipoise.events.facts import Fact, Undecodable
from equipoise.events.records import DecisionRecord, FactRecord, UnreadDecision
from equipoise.kafka.client import partition_of_key
from equipoise.log.rows import LOG_OPENED, UNDECODABLE, DecisionRow, FactRow, is_group, record_of

_LOG = logging.getLogger(__name__)
_FACT_FIELDS = 3
_DECISION_FIELDS = 9
_FACT_ARRAY = 0x90 | _FACT_FIELDS  # msgpack's fixarray
_NOT_A_BYTE = 0x80
"""First byte of a msgpack value that is not itself a number below 128."""
MOST_KEY_BYTES = 4_000
"""A group's name has at most 1,000 characters of at most 4 bytes each."""
MOST_ENVELOPE_BYTES = 4_100
"""Most bytes before an event's own bytes in the value of its record: a log's id, as long as a
group's name, and numbers. So key and value of a record together have at most 1,008,100 bytes.
"""
_pack = msgpack.Packer(autoreset=True).pack


def partition_of(group: str, partitions: int) -> int:
    """Returns the partition of a group, chosen by key as Kafka's own clients do (murmur2).

    `partitions`: the count in the log's first record, not that of the topic today, so that
    partitions added later move no group (docs/protocol.md#l1).
    """
    return partition_of_key(group_key(group), partitions)


def group_key(group: str) -> bytes:
    """Returns the key of a group's records. Raises InputError when `group` is not a valid name."""
    if not is_group(group):
        raise InputError(f"group {group!r:.80}: a group's name is a text of 1 to 1,000 characters")
    return group.encode()


def group_of(key: bytes | None) -> str | None:
    """Returns the group of a record; None: the key is not a group's name."""
    return _known_group(key) if key is not None and len(key) <= _MOST_KEPT_KEY_BYTES else _group_of(key)


def _group_of(key: bytes | None) -> str | None:
    try:
        group = "" if key is None else key.decode()
    except UnicodeDecodeError:
        return None
    return group if is_group(group) else None


_MOST_KEPT_KEY_BYTES = 300
_known_group = lru_cache(maxsize=2**14)(_group_of)


# -------------------------------------------------------------------------------------------- facts


def pack_fact(event: Fact) -> bytes:
    """Returns the value of a fact's record. Raises InputError, TooLargeError."""
    kind, version, payload = codec.encode(event)
    return pack_payload(kind, version, payload)


def pack_payload(kind: int, version: int, payload: bytes) -> bytes:
    """Returns the value of the record of an encoded fact."""
    return b"".join((_array(_FACT_FIELDS), _pack(kind), _pack(version), payload))


def read_fact(key: bytes | None, value: bytes | None, offset: int, append_ms: int) -> FactRecord:
    """Returns the record of a record of the facts topic, without a row, which only stores need. A
    record that is not a fact of a group becomes `Undecodable`, of group "" if its key names none.
    Raises UnknownKindError for a kind or version that this build does not know.
    """
    group, kind, version, payload = _stored(key, value, offset)
    return codec.read_record(group, offset, append_ms, kind, version, payload, codec.fact_checksum(group, offset, append_ms, kind, version, payload))


def fact_row(key: bytes | None, value: bytes | None, offset: int, append_ms: int) -> FactRow:
    """Returns the row of a record of the facts topic, in which `read_fact` finds the same."""
    return _row(offset, append_ms, *_stored(key, value, offset))


_Stored = tuple[str, int, int, bytes]
"""Group, kind, version and payload that a log stores for a record of the facts topic."""


def _row(offset: int, append_ms: int, group: str, kind: int, version: int, payload: bytes) -> FactRow:
    return FactRow(group, offset, append_ms, kind, version, payload, codec.fact_checksum(group, offset, append_ms, kind, version, payload))


def _stored(key: bytes | None, value: bytes | None, offset: int) -> _Stored:
    group = group_of(key)
    if group and offset and value and _FACT_FIELDS < len(value) <= codec.MOST_EVENT_BYTES and value[0] == _FACT_ARRAY:
        kind, version = value[1], value[2]
        if kind < _NOT_A_BYTE and version < _NOT_A_BYTE and kind != LOG_OPENED:
            return group, kind, version, value[_FACT_FIELDS:]  # nearly every record
    bytes_ = value or b""
    split = _split(bytes_, _FACT_FIELDS)
    if offset == 0 and not key:
        group = ""  # LogOpened, or its place
    if split is None:
        return _undecodable(group, "no_envelope", bytes_)
    (kind, version), payload = split
    if offset > 0 and kind == LOG_OPENED:
        return _undecodable("", "opened_again", bytes_)
    if group is None:
        restored = not key and kind == UNDECODABLE and _is_sound(kind, version, payload)
        return ("", UNDECODABLE, version, payload) if restored else _undecodable(None, "no_group", bytes_)
    if kind.__class__ is not int or version.__class__ is not int or not (0 <= kind < 2**31 and 0 <= version < 2**31):
        return _undecodable(group, "no_envelope", bytes_)
    if len(payload) > codec.MOST_EVENT_BYTES:  # in a batch that its sender compressed; no log stores it, whatever kind it is of
        return _undecodable(group, "too_large", payload, kind)
    return group, kind, version, payload


def _undecodable(group: str | None, code: str, value: bytes, of_kind: int | None = None) -> _Stored:
    """Returns what is stored for bytes that are no fact. `group` None: the key names none."""
    event = Undecodable(code="no_group" if group is None else code, kind=of_kind, length_bytes=len(value), crc32=zlib.crc32(value))
    return group or "", *codec.encode(event)


def _is_sound(kind: Any, version: Any, payload: bytes) -> bool:
    """Returns whether these bytes are an event. A record without a group that is a sound
    `Undecodable` was written by `log_restore` in the place of one (`fact_value`).
    """
    if kind.__class__ is not int or version.__class__ is not int:
        return False
    try:
        codec.decode(kind, version, payload)
    except (UnknownEventError, UnsoundError):
        return False
    return True


def fact_value(row: FactRow) -> tuple[bytes, bytes]:
    """Returns key and value of a record that `fact_row` reads as `row`, at the same offset and with
    the same append time.
    """
    return row.group.encode(), pack_payload(row.kind, row.version, row.payload)


@attrs.frozen
class NoRecord:
    """An offset of the facts topic without a record, because a producer's transaction ended there.
    `timestamp_ms`: of the next record.
    """

    offset: int
    timestamp_ms: int


def no_record_row(hole: NoRecord) -> FactRow:
    """Returns the row that holds the place of such an offset: offsets are dense in every log."""
    return _row(hole.offset, hole.timestamp_ms, *_undecodable("", "no_record", b""))


# ---------------------------------------------------------------------------------------- decisions


@attrs.frozen
class StoredDecision:
    """A decision as the topic holds it: its row, and the fields that an embedded log does not
    repeat.
    """

    row: DecisionRow
    log_id: str
    fact_checksum: int


def pack_decision(record: DecisionRecord) -> bytes:
    """Returns the value of a decision's record."""
    kind, version, payload = codec.encode(record.decision)
    place = (record.log_id, record.group, record.number, record.caused_by, record.index, record.fact_checksum)
    checksum = codec.decision_checksum(*place, kind, version, payload)
    row = DecisionRow(record.group, record.number, record.caused_by, record.index, kind, version, payload, checksum)
    return decision_value(StoredDecision(row, record.log_id, record.fact_checksum))[1]


def stored_decision(key: bytes | None, value: bytes | None, place: str) -> StoredDecision:
    """Parses a record of the decisions topic. `place`: ``topic/partition@offset``, for messages.
    Raises DamagedError.
    """
    group = group_of(key)
    split = _split(value or b"", _DECISION_FIELDS)
    if group is None or split is None:
        raise DamagedError(-1, f"{place} is not a decision; only workers may write there")
    (log_id, number, caused_by, index, fact_checksum, checksum, kind, version), payload = split
    numbers = (number, caused_by, index, fact_checksum, checksum, kind, version)
    if log_id.__class__ is not str or not all(each.__class__ is int and each >= 0 for each in numbers):
        raise DamagedError(-1, f"{place} is not a decision; only workers may write there")
    if codec.decision_checksum(log_id, group, number, caused_by, index, fact_checksum, kind, version, payload) != checksum:
        raise DamagedError(caused_by, f"its decision {number} at {place} has bytes that differ from their checksum")
    return StoredDecision(DecisionRow(group, number, caused_by, index, kind, version, payload, checksum), log_id, fact_checksum)


def published(record: Any) -> StoredDecision | None:
    """Parses a client's record of the decisions topic. Returns None, and logs a warning, when it is
    not a decision.

    If it took the place of a decision, readers find the missing number.
    """
    try:
        return stored_decision(record.key, record.value, f"{record.topic}/{record.partition}@{record.offset}")
    except DamagedError as error:
        _LOG.warning("skipped: %s", error.problem)
        return None


def decision_record(stored: StoredDecision) -> DecisionRecord:
    """Decodes a stored decision. Raises UnknownKindError, DamagedError."""
    return cast(DecisionRecord, record_of(stored.row, stored.log_id, stored.fact_checksum))


def member_decision(stored: StoredDecision) -> DecisionRecord | UnreadDecision:
    """Decodes a stored decision for a member, whatever build wrote it (docs/protocol.md#m9).

    Raises DamagedError for a fact, and for a binding decision without an addressee.
    """
    row = stored.row
    if row.kind < codec.FIRST_DECISION_KIND:
        raise DamagedError(row.caused_by, f"{codec.kind_name(row.kind)}, a fact, is stored as decision {row.number}")
    try:
        event = codec.decode_decision(row.kind, row.version, row.payload)
    except (UnknownEventError, UnsoundError) as error:
        binding = codec.is_binding(row.kind)
        try:
            named = codec.addressee(row.kind, row.payload) if binding else None
        except UnsoundError as unsound:
            raise DamagedError(row.caused_by, f"its decision {row.number}: {unsound}") from None
        member_id, incarnation = named or (None, None)
        return UnreadDecision(stored.log_id, row.group, row.number, row.kind, row.version, binding, member_id, incarnation, str(error))
    return DecisionRecord(stored.log_id, row.group, row.number, row.caused_by, row.index, stored.fact_checksum, event)


def decision_value(stored: StoredDecision) -> tuple[bytes, bytes]:
    """Returns key and value of the record of a stored decision."""
    row = stored.row
    head = (stored.log_id, row.number, row.caused_by, row.index, stored.fact_checksum, row.checksum, row.kind, row.version)
    return row.group.encode(), b"".join((_array(_DECISION_FIELDS), *map(_pack, head), row.payload))


# ------------------------------------------------------------------------------------------- arrays


def _array(length: int) -> bytes:
    return bytes((0x90 | length,))  # msgpack's fixarray


def _split(value: bytes, length: int) -> tuple[list[Any], bytes] | None:
    """Splits an array of `length` into its fields except the last, and the bytes of the last; None:
    it is not such an array.
    """
    if not value or value[0] != 0x90 | length:
        return None
    unpacker = msgpack.Unpacker(max_buffer_size=max(len(value), 1))
    unpacker.feed(value)
    try:
        unpacker.read_array_header()
        head = [unpacker.unpack() for _ in range(length - 1)]
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException):
        return None
    return head, value[unpacker.tell() :]
