"""The codec of events: event <-> (kind, version, payload).

`payload` is the msgpack of the event's wire form (`equipoise.events.wire`). Each event has exactly
one payload: equal events have equal bytes, and ``encode(decode(b)) == b`` for every accepted `b` of
a current version. Bytes that msgpack alone would accept (an int in more bytes than it needs, a
repeated key, keys out of order, trailing bytes) are unsound, as is anything that an event's
constructor refuses.

Another build may write other kinds, versions and fields. A reader handles them as follows
(docs/protocol.md#m9):

- A *fact* of an unknown kind or version halts its group in the worker (`event_unknown`), because a
  worker that knows it may decide differently. Any change to what a fact may hold (a new field, a
  new value of a field) raises its version.
- A *binding* decision orders one incarnation to do something. Its first two fields are `member_id`
  and `incarnation` (`addressee`) in every version. That incarnation must understand the decision or
  end. An *informational* decision may be ignored. Kinds from FIRST_DECISION_KIND on are binding,
  except INFORMATIONAL_KINDS; kinds from FIRST_INFORMATIONAL_KIND on are informational.
- Within one version of a decision, a field may only be appended at the end, and only if a reader
  that does not know it may ignore it. The new field has a default, and is not written while it and
  all fields after it have their defaults; so earlier records keep their bytes. `decode_decision`
  drops the fields that it does not know. Any other change raises the version.
- A checksum covers the stored bytes, so a reader can check a record that it cannot decode.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, cast

import attrs
import msgpack

from equipoise.events import decisions, facts, readable, upcasters, wire
from equipoise.events.decisions import Decision
from equipoise.events.errors import FieldError, InputError, TooLargeError, UnknownEventError, UnknownKindError, UnsoundError
from equipoise.events.facts import Fact, Undecodable
from equipoise.events.records import DecisionRecord, FactRecord

Event = Fact | Decision

MOST_EVENT_BYTES = 1_000_000
"""Largest payload of an event, in bytes. Kafka's default max.message.bytes is 1,048,588. The rest
is for the group's name (the key), the envelope
(`equipoise.log.kafka.envelope.MOST_ENVELOPE_BYTES`) and the batch.
"""

FIRST_DECISION_KIND = 100
FIRST_INFORMATIONAL_KIND = 200
INFORMATIONAL_KINDS = frozenset({101, 102, 104, 106, 107})
"""Informational decisions below FIRST_INFORMATIONAL_KIND. They are older than the ranges; none is
added.
"""
_ADDRESSEE_AT = {105: 2}
"""Kind -> index of `member_id`, where that is not the first field. EventRejected is older than the
rule; none is added.
"""

KINDS: Mapping[int, tuple[int, type]] = {
    1: (1, facts.LogOpened),
    2: (3, facts.GroupConfigured),
    3: (1, facts.TopologyDeclared),
    4: (3, facts.PartitionsObserved),
    5: (6, facts.MemberJoined),
    6: (3, facts.LagReported),
    7: (1, facts.TaskReady),
    8: (1, facts.TasksRevoked),
    9: (1, facts.LeaveIntended),
    10: (1, facts.LeaveCancelled),
    11: (1, facts.MemberLeft),
    12: (1, facts.ProbingTick),
    13: (1, facts.AssignmentObserved),
    14: (1, facts.Undecodable),
    15: (3, facts.LeaveRequested),
    16: (1, facts.DealRequested),
    17: (1, facts.TaskParked),
    18: (1, facts.MemberEnded),
    19: (1, facts.RestartIntended),
    20: (1, facts.BaseRequested),
    21: (1, facts.MemberUnchanged),
    22: (2, facts.RoundAsked),
    23: (1, facts.GroupRejoined),
    24: (1, facts.SilenceObserved),
    25: (3, facts.ChangePlanned),
    26: (2, facts.ChangeMeasured),
    27: (1, facts.TroublesReported),
    100: (1, decisions.MemberExpired),
    101: (1, decisions.BalanceEvaluated),
    102: (1, decisions.AssignmentIssued),
    103: (1, decisions.MemberAssigned),
    104: (1, decisions.AssignmentProposed),
    105: (1, decisions.EventRejected),
    106: (2, decisions.Checkpointed),
    107: (1, decisions.MemberWarned),
    108: (1, decisions.MemberAsked),
    109: (1, decisions.MemberAssignedPart),
    200: (1, decisions.AssignmentProposedPart),
    201: (1, decisions.RestartPlanned),
    202: (1, decisions.RestartEnded),
    203: (1, decisions.RoundPlanned),
    204: (1, decisions.ChangeJudged),
}
"""Type code -> (current schema version, class). A code is never reused for another class. A version
never changes; a change gets the next version.
"""

UNDECODABLE_CODES: Mapping[str, str] = {
    "too_large": "more bytes than an event may have",
    "not_msgpack": "the bytes are no msgpack value",
    "not_canonical": "the bytes are not the one form that this value has",
    "misshapen": "not an array with as many fields as the class has",
    "unsound_field": "the constructor refuses a field",
    "not_a_fact": "a decision where only facts may stand",
    "no_envelope": "a Kafka record whose value is not an array of kind, version and event",
    "no_group": "a Kafka record whose key names no group",
    "opened_again": "LogOpened behind the first record of its partition",
    "no_record": "an offset of a Kafka topic without a record: the end of somebody's transaction",
}
"""Code -> why a payload is `Undecodable`. Stored records hold the code only."""


class _Kind(NamedTuple):
    code: int
    version: int
    shape: type
    read: Callable[[Any, Any], Any]
    write: Callable[[Any], list[Any]]


FACT_VERSIONS = sum(version for code, (version, _) in KINDS.items() if code < FIRST_DECISION_KIND)
"""It rises with each kind and version. Workers say it to others, who may have facts that an older
one cannot read.
"""
_BY_CODE = {code: _Kind(code, version, shape, wire.reader(shape), wire.writer(shape)) for code, (version, shape) in KINDS.items()}
_PAST = {
    (code, version): _Kind(code, version, shape, wire.reader(shape), wire.writer(shape)) for (code, version), shape in upcasters.PAST_SHAPES.items()
}
_BY_CLASS = {kind.shape: kind for kind in _BY_CODE.values()}
_BY_NAME = {kind.shape.__name__: kind for kind in _BY_CODE.values()}

_pack = msgpack.Packer(autoreset=True).pack
_pack_again = msgpack.Packer(autoreset=True, strict_types=True).pack  # of what was unpacked, so of no subclass: a sixth faster
_unpack = msgpack.unpackb  # strict by default: UTF-8 texts, keys that are texts, and no length that exceeds the bytes given


class Encoded(NamedTuple):
    """An event as it is stored."""

    kind: int
    version: int
    payload: bytes


def kind_of(event: Event | type) -> int:
    """Returns the type code of an event or an event class."""
    return _BY_CLASS[event if isinstance(event, type) else event.__class__].code


def kind_name(code: int) -> str:
    """Returns the class name of a type code, or the code as text if this build does not know it."""
    return _BY_CODE[code].shape.__name__ if code in _BY_CODE else str(code)


def encode(event: Event) -> Encoded:
    """Encodes an event in the current version of its kind.

    Raises InputError when `event` is not an event, TooLargeError when its payload is larger than
    MOST_EVENT_BYTES.
    """
    try:
        kind = _BY_CLASS[event.__class__]
    except KeyError:
        raise InputError(f"{event!r:.80} is no event; events are the classes of equipoise.events.facts and equipoise.events.decisions") from None
    payload = _pack(kind.write(event))
    if len(payload) > MOST_EVENT_BYTES:
        field, length = _largest_field(kind, event)
        problem = f"{length} of the {len(payload)} bytes of its event; an event has at most {MOST_EVENT_BYTES}, so make it shorter"
        raise TooLargeError(f"{kind.shape.__name__}.{field}: {problem}")
    return Encoded(kind.code, kind.version, payload)


def _largest_field(kind: _Kind, event: Event) -> tuple[str, int]:
    """The name of the event's largest field, and its size in bytes."""
    sizes = {field.name: len(_pack(written)) for field, written in zip(attrs.fields(kind.shape), kind.write(event), strict=False)}
    field = max(sizes, key=lambda name: sizes[name])
    return field, sizes[field]


def size_bytes(event: Event) -> int:
    """Returns the size of the event's payload in bytes, even if it is larger than MOST_EVENT_BYTES."""
    return len(_pack(_BY_CLASS[event.__class__].write(event)))


def fits(event: Event) -> bool:
    """Returns whether a log can hold `event`. Every event that the machine or a member emits must
    fit.
    """
    return size_bytes(event) <= MOST_EVENT_BYTES


def decode(kind: int, version: int, payload: bytes) -> Event:
    """Decodes a stored event.

    Raises UnknownEventError for a kind or version that this build does not know, and UnsoundError,
    with a code of UNDECODABLE_CODES and the field, for bytes that are not a sound event. Raises
    nothing else, whatever the bytes are.
    """
    if kind == _UNCHANGED and len(payload) <= _MOST_KEPT_BYTES:
        return _decode_kept(kind, version, payload)
    return _decode(kind, version, payload, with_appended=False)


def decode_decision(kind: int, version: int, payload: bytes) -> Decision:
    """Decodes a stored decision and drops fields that a newer build appended. `kind`: at least
    FIRST_DECISION_KIND.

    Raises what `decode` raises.
    """
    return cast(Decision, _decode(kind, version, payload, with_appended=kind >= FIRST_DECISION_KIND))


def has_appended_fields(kind: int, version: int, payload: bytes) -> bool:
    """Returns whether a newer build appended fields to a decision of a kind and version that this
    build writes. Does not decode the payload.
    """
    known = _BY_CODE.get(kind)
    if known is None or version != known.version or kind < FIRST_DECISION_KIND:
        return False
    fixed = payload[:1] and payload[0] & 0xF0 == 0x90  # msgpack: an array of up to 15, or of up to 65,535 (0xdc)
    length = payload[0] & 0x0F if fixed else int.from_bytes(payload[1:3]) if payload[:1] == b"\xdc" else 0
    return length > len(attrs.fields(known.shape))


def is_known(kind: int, version: int, payload: bytes) -> bool:
    """Returns whether this build knows every field of this event. Does not decode the payload."""
    known = _BY_CODE.get(kind)
    return known is not None and 1 <= version <= known.version and not has_appended_fields(kind, version, payload)


def is_binding(kind: int) -> bool:
    """Returns whether a decision of this kind, known or unknown, orders an incarnation to do
    something.
    """
    return FIRST_DECISION_KIND <= kind < FIRST_INFORMATIONAL_KIND and kind not in INFORMATIONAL_KINDS


def addressee(kind: int, payload: bytes) -> tuple[str, int] | None:
    """Returns the member id and incarnation that a binding decision is for, whatever its kind and
    version. None: it names no member.

    Raises UnsoundError when the bytes have neither.
    """
    at = _ADDRESSEE_AT.get(kind, 0)
    try:
        form = _unpack(payload)
    except (ValueError, TypeError, OverflowError, RecursionError, MemoryError, msgpack.UnpackException) as error:
        raise UnsoundError("not_msgpack", kind_name(kind), f"{len(payload)} bytes that are no msgpack value ({error!s:.80})") from None
    named = form[at : at + 2] if form.__class__ is list else []
    if named == [None, None]:
        return None
    if len(named) != 2 or named[0].__class__ is not str or named[1].__class__ is not int:
        raise UnsoundError("misshapen", kind_name(kind), "does not begin with a member id and an incarnation")
    return named[0], named[1]


def _decode(kind: int, version: int, payload: bytes, *, with_appended: bool) -> Event:
    known = _BY_CODE.get(kind)
    if known is None:
        raise _unknown(kind, version)
    _, current, shape, read, _ = known
    if not 1 <= version <= current:
        raise _unknown(kind, version)
    if len(payload) > MOST_EVENT_BYTES:
        raise UnsoundError("too_large", shape.__name__, f"{len(payload)} bytes; an event has at most {MOST_EVENT_BYTES}")
    try:
        form = _unpack(payload)
        if _pack_again(form) != payload:
            raise UnsoundError("not_canonical", shape.__name__, "its bytes are not the only ones for what they say (a long int, a key twice)")
    except (ValueError, TypeError, OverflowError, RecursionError, MemoryError, msgpack.UnpackException) as error:
        raise UnsoundError("not_msgpack", shape.__name__, f"{len(payload)} bytes that are no msgpack value ({error!s:.80})") from None
    try:
        if version != current:
            form = upcasters.upcast(kind, version, current, form)
        elif with_appended and form.__class__ is list:
            known_fields = len(attrs.fields(shape))
            if len(form) > known_fields:
                form = wire.without_defaults(form[:known_fields], shape)
        event: Event = read(form, shape)
        return event
    except UnsoundError:
        raise
    except FieldError as error:
        raise UnsoundError("unsound_field", error.field, error.problem) from None
    except RecursionError:
        raise UnsoundError("misshapen", shape.__name__, "is nested too deeply") from None


_UNCHANGED = kind_of(facts.MemberUnchanged)
_MOST_KEPT_BYTES = 300


@lru_cache(maxsize=2**16)
def _decode_kept(kind: int, version: int, payload: bytes) -> Event:
    """A member at rest sends the same bytes again and again, so what they mean is kept: at most
    some 30 MB. The event has no field that could be changed in place.
    """
    return _decode(kind, version, payload, with_appended=False)


def _unknown(kind: int, version: int) -> UnknownEventError:
    known = _BY_CODE.get(kind)
    if known is None:
        return UnknownEventError(kind, version, f"event kind {kind}, version {version}, is not known to this build; upgrade to the one that wrote it")
    versions = f"{known.shape.__name__} version {version} is not known to this build, which reads 1 to {known.version}"
    return UnknownEventError(kind, version, f"{versions}; upgrade to the one that wrote it")


def decode_lenient(kind: int, version: int, payload: bytes) -> Fact:
    """Decodes a fact, or returns `Undecodable` for bytes that are not a sound fact. See
    docs/protocol.md#l6.

    Raises UnknownEventError for an unknown kind or version: another worker may know it, so the
    group must halt.
    """
    try:
        event = decode(kind, version, payload)
    except UnsoundError as error:
        return _undecodable(error.code, error.field, kind, payload)
    if kind >= FIRST_DECISION_KIND:
        return _undecodable("not_a_fact", kind_name(kind), kind, payload)
    return cast(Fact, event)


def _undecodable(code: str, field: str, kind: int, payload: bytes) -> Undecodable:
    # A field's name may hold text from the payload: cut to what Undecodable takes.
    return Undecodable(code=code, field=field[:200], kind=kind, length_bytes=len(payload), crc32=zlib.crc32(payload))


# ---------------------------------------------------------------------------------------- checksums


def fact_checksum(group: str, offset: int, append_ms: int, kind: int, version: int, payload: bytes) -> int:
    """Returns the CRC-32 of msgpack [group, offset, append_ms, kind, version] followed by the
    payload.
    """
    return zlib.crc32(payload, zlib.crc32(_pack((group, offset, append_ms, kind, version))))


def decision_checksum(
    log_id: str, group: str, number: int, caused_by: int, index: int, fact_checksum: int, kind: int, version: int, payload: bytes
) -> int:
    """Returns the CRC-32 of msgpack [log_id, group, number, caused_by, index, fact_checksum, kind,
    version] followed by the payload.
    """
    return zlib.crc32(payload, zlib.crc32(_pack((log_id, group, number, caused_by, index, fact_checksum, kind, version))))


def read_record(group: str, offset: int, append_ms: int, kind: int, version: int, payload: bytes, checksum: int) -> FactRecord:
    """Builds the record of a stored fact, of `Undecodable` for bytes that are not a sound fact.
    Raises UnknownKindError for a kind or version that this build does not know.
    """
    try:
        event = decode_lenient(kind, version, payload)
    except UnknownEventError as error:
        raise UnknownKindError(offset, str(error)) from None
    return FactRecord(group, offset, append_ms, event, checksum)


def make_record(group: str, offset: int, append_ms: int, event: Fact) -> FactRecord:
    """Builds the record of a fact, with the checksum of its current encoding."""
    return FactRecord(group, offset, append_ms, event, fact_checksum(group, offset, append_ms, *encode(event)))


def checksum_of(record: DecisionRecord) -> int:
    """Returns the checksum of a decision's current encoding."""
    return decision_checksum(
        record.log_id, record.group, record.number, record.caused_by, record.index, record.fact_checksum, *encode(record.decision)
    )


# --------------------------------------------------------------------------------------------- JSON


def to_json(event: Event) -> dict[str, Any]:
    """Returns the readable form of an event, for people and JSON Lines: ``{"kind": "LagReported",
    "event": {"member_id": ...}}``. See `equipoise.events.readable`.
    """
    return {"kind": event.__class__.__name__, "event": readable.write(event)}


def from_json(form: Mapping[str, Any]) -> Event:
    """Builds an event from the form that `to_json` returns. Missing fields get their defaults.

    Raises UnsoundError with the field, and UnknownEventError (kind -1) for an unknown name of a
    kind.
    """
    name = form.get("kind")
    if name.__class__ is not str or name not in _BY_NAME:
        raise _unknown_name(name)
    return cast(Event, readable.read(_BY_NAME[name].shape, form.get("event")))


def payload_to_json(kind: int, version: int, payload: bytes) -> dict[str, Any] | None:
    """Returns the fields of a stored payload in readable form, under their names in that version.

    None: the payload is not the canonical form of a sound event of that version, so names and
    values could not restore its bytes.
    """
    shape = _versioned(kind, version)
    if shape is None:
        return None
    try:
        event = shape.read(_unpack(payload), shape.shape)
        return readable.write(event) if _pack(shape.write(event)) == payload else None
    except (FieldError, ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException):
        return None


def payload_from_json(name: str, version: int, form: Any) -> tuple[int, bytes]:
    """Returns the kind and payload for a form that `payload_to_json` returned. Raises UnsoundError,
    and UnknownEventError for a kind or version that this build does not know.
    """
    kind = _BY_NAME[name].code if name.__class__ is str and name in _BY_NAME else -1
    shape = _versioned(kind, version)
    if shape is None:
        raise _unknown(kind, version) if kind >= 0 else _unknown_name(name)
    return kind, _pack(shape.write(readable.read(shape.shape, form)))


def _versioned(kind: int, version: int) -> _Kind | None:
    newest = _BY_CODE.get(kind)
    return newest if newest is not None and newest.version == version else _PAST.get((kind, version))


def _unknown_name(name: object) -> UnknownEventError:
    return UnknownEventError(-1, 0, f"event kind {name!r:.80} is not known to this build; upgrade to the one that wrote it")
