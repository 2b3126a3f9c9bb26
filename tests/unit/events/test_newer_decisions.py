"""Decisions of a newer build, read by an older one. See docs/protocol.md#m9."""

from __future__ import annotations

from typing import Any

import attrs
import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.events import codec, decisions
from equipoise.events.decisions import EventRejected, MemberAsked, MemberAssigned, MemberAssignedPart, MemberExpired
from equipoise.events.errors import DamagedError, UnsoundError
from equipoise.events.facts import MemberLeft
from equipoise.events.records import DecisionRecord, UnreadDecision
from equipoise.events.tasks import TaskId
from equipoise.log.kafka import envelope
from equipoise.log.rows import DecisionRow
from tests.strategies import any_event

KINDS = {kind: shape for kind, (_, shape) in codec.KINDS.items() if kind >= codec.FIRST_DECISION_KIND}
ASSIGNED = MemberAssigned(member_id="m1", incarnation=7, assignment_epoch=3, active=(TaskId(0, 1),), tokens=(5,))


def stored(kind: int, version: int, payload: bytes) -> envelope.StoredDecision:
    """As it comes from the topic, its checksum included."""
    checksum = codec.decision_checksum("log", "g", 9, 40, 1, 77, kind, version, payload)
    head = ("log", 9, 40, 1, 77, checksum, kind, version)
    value = b"".join((bytes((0x99,)), *map(msgpack.packb, head), payload))
    return envelope.stored_decision(b"g", value, "d/0@3")


def read(kind: int, version: int, payload: bytes) -> DecisionRecord | UnreadDecision:
    return envelope.member_decision(stored(kind, version, payload))


def next_version(decision: Any, *appended: Any) -> tuple[int, int, bytes]:
    kind, version, payload = codec.encode(decision)
    return kind, version + 1, msgpack.packb([*msgpack.unpackb(payload), *appended])


def test_binding_kinds_are_those_that_a_session_obeys() -> None:
    binding = {shape for kind, shape in KINDS.items() if codec.is_binding(kind)}
    assert binding == {MemberExpired, MemberAssigned, EventRejected, MemberAsked, MemberAssignedPart}
    assert [codec.is_binding(kind) for kind in (99, 109, 199, 200, 2**31 - 1)] == [False, True, True, False, False]


@pytest.mark.parametrize("shape", [shape for kind, shape in KINDS.items() if codec.is_binding(kind)])
def test_binding_kind_begins_with_member_and_incarnation(shape: type) -> None:
    at = 2 if shape is EventRejected else 0
    assert [field.name for field in attrs.fields(shape)][at : at + 2] == ["member_id", "incarnation"]


@given(any_event().filter(lambda event: codec.kind_of(event) in KINDS))
def test_addressee_of_unknown_kind_or_version_is_read(decision: Any) -> None:
    kind, _, payload = codec.encode(decision)
    if codec.is_binding(kind) and (decision.member_id is None) == (decision.incarnation is None):
        named = None if decision.member_id is None else (decision.member_id, decision.incarnation)
        assert codec.addressee(kind, payload) == named
        longer = msgpack.packb([*msgpack.unpackb(payload), {"new": [1, None]}])
        assert codec.addressee(kind, longer) == named


NESTED = st.recursive(st.none() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=3), lambda inner: st.lists(inner, max_size=3))


@given(st.binary(max_size=40) | NESTED.map(msgpack.packb))
def test_addressee_of_any_bytes_is_found_or_unsound(payload: bytes) -> None:
    try:
        named, code = codec.addressee(103, payload), ""
    except UnsoundError as error:
        named, code = None, error.code
    assert code == "" or code in codec.UNDECODABLE_CODES
    assert named is None or (isinstance(named[0], str) and isinstance(named[1], int))


@pytest.mark.parametrize(
    ("encoded", "binding", "named"),
    [
        (next_version(ASSIGNED), True, ("m1", 7)),
        (next_version(MemberExpired(member_id="m2", incarnation=1, cause="superseded", silent_ms=1)), True, ("m2", 1)),
        (next_version(EventRejected(kind=5, code="new_code", member_id="m1", incarnation=7)), True, ("m1", 7)),
        (next_version(EventRejected(kind=5, code="new_code")), True, (None, None)),
        ((109, 1, msgpack.packb(["m1", 7, "anything"])), True, ("m1", 7)),
        ((199, 4, msgpack.packb(["m3", 8])), True, ("m3", 8)),
        ((200, 1, msgpack.packb(["m1", 7])), False, (None, None)),
        ((2**31 - 1, 1, b"\xc1"), False, (None, None)),
        (
            next_version(
                decisions.BalanceEvaluated(verdict="empty", available_movements=0, planned_movements=0, imbalance_before=0, imbalance_after=0)
            ),
            False,
            (None, None),
        ),
        (next_version(decisions.MemberWarned(member_id="m1", incarnation=7, code="rack_tag_missing", said="a")), False, (None, None)),
        ((100, 1, msgpack.packb(["m1", 7, "a_new_cause", 1, 0])), True, ("m1", 7)),
    ],
)
def test_unread_decision_names_its_addressee(encoded: tuple[int, int, bytes], binding: bool, named: tuple[str | None, int | None]) -> None:
    unread = read(*encoded)
    assert isinstance(unread, UnreadDecision)
    assert (unread.log_id, unread.group, unread.number, unread.kind, unread.version) == ("log", "g", 9, *encoded[:2])
    assert (unread.binding, (unread.member_id, unread.incarnation)) == (binding, named)
    assert unread.problem


@pytest.mark.parametrize("payload", [b"\xc1", msgpack.packb(7), msgpack.packb([7, "m1"]), msgpack.packb(["m1"]), msgpack.packb(["m1", None])])
def test_binding_decision_without_member_is_damage(payload: bytes) -> None:
    with pytest.raises(DamagedError, match="its decision 9"):
        read(103, 2, payload)


def test_fact_stored_as_decision_is_damage() -> None:
    with pytest.raises(DamagedError, match="a fact, is stored as decision 9"):
        read(11, 1, msgpack.packb(["m1", 7]))


@given(any_event().filter(lambda event: codec.kind_of(event) in KINDS), st.lists(st.none() | st.integers(0, 9) | st.just([1, {}]), max_size=20))
def test_appended_fields_are_left_out_by_a_reader_that_does_not_know_them(decision: Any, appended: list[Any]) -> None:
    kind, version, payload = codec.encode(decision)
    said = msgpack.unpackb(payload)
    unsaid = [None] * (len(attrs.fields(type(decision))) - len(said)) if appended else []  # a newer build fills them, to write what is behind
    longer = msgpack.packb([*said, *unsaid, *appended])
    assert codec.decode_decision(kind, version, longer) == decision
    assert codec.has_appended_fields(kind, version, longer) is bool(appended)
    if appended:
        with pytest.raises(UnsoundError):
            codec.decode(kind, version, longer)


def test_appended_field_at_default_is_not_written() -> None:
    """So decisions made before the field existed keep their bytes."""
    kind, version, payload = codec.encode(ASSIGNED)
    said = msgpack.unpackb(payload)
    with_limits = attrs.evolve(ASSIGNED, acceptable_recovery_lag=100, acceptable_recovery_ms=0)
    assert msgpack.unpackb(codec.encode(with_limits).payload) == [*said, 100, 0]
    assert codec.decode_decision(*codec.encode(with_limits)) == codec.decode(*codec.encode(with_limits)) == with_limits
    assert msgpack.unpackb(codec.encode(attrs.evolve(with_limits, acceptable_recovery_lag=None)).payload) == [*said, None, 0]
    assert "acceptable_recovery_lag" not in codec.to_json(ASSIGNED)["event"]
    for unwritten in ([None], [100, None]):
        with pytest.raises(UnsoundError) as caught:
            codec.decode(kind, version, msgpack.packb([*said, *unwritten]))
        assert (caught.value.code, caught.value.field) == ("not_canonical", "MemberAssigned")


def test_fact_with_extra_field_is_unsound() -> None:
    """Another worker would fold that field, and decide otherwise."""
    kind, version, payload = codec.encode(MemberLeft(member_id="m1", incarnation=1))
    longer = msgpack.packb([*msgpack.unpackb(payload), 1])
    assert not codec.has_appended_fields(kind, version, longer)
    for read_it in (codec.decode, codec.decode_decision):
        with pytest.raises(UnsoundError):
            read_it(kind, version, longer)


def test_member_decision_of_known_kind_is_a_record() -> None:
    record = DecisionRecord("log", "g", 9, 40, 1, 77, ASSIGNED)
    value = envelope.pack_decision(record)
    assert envelope.member_decision(envelope.stored_decision(b"g", value, "d/0@3")) == record
    row = DecisionRow("g", 9, 40, 1, *codec.encode(ASSIGNED), 0)
    assert envelope.member_decision(envelope.StoredDecision(row, "log", 77)) == record
