"""The codec: one payload for each event, one reason for each payload that is no event, no crash."""

from __future__ import annotations

import copy
import json
import zlib
from pathlib import Path
from typing import Any

import attrs
import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from equipoise.events import codec
from equipoise.events.decisions import AssignmentIssued, BalanceEvaluated, EventRejected, MemberAssigned
from equipoise.events.errors import FieldError, InputError, TooLargeError, UnknownEventError, UnsoundError
from equipoise.events.facts import (
    GroupConfigured,
    LagReported,
    Load,
    LogOpened,
    MemberJoined,
    PartitionsObserved,
    ProbingTick,
    TaskReady,
    Undecodable,
)
from equipoise.events.settings import GroupSettings
from equipoise.events.tasks import LagSentinel, TaskId
from tests.strategies import any_event, instances

DATA = Path(__file__).parents[2] / "data" / "events"

T = TaskId
REPORT = LagReported("m1", 7, 3, 2, (T(0, 1), T(1, 0)), (T(0, 4),), {T(0, 2): 5, T(0, 10): LagSentinel.ACTIVE}, 2, (), False, Load(cpu=0.5))


def lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / name).read_text().splitlines()]


def reason(kind: int, version: int, payload: bytes) -> UnsoundError:
    with pytest.raises(UnsoundError) as caught:
        codec.decode(kind, version, payload)
    assert caught.value.code in codec.UNDECODABLE_CODES
    return caught.value


# --------------------------------------------------------------------------------------- round trip


@given(any_event())
def test_decode_encoded_event_equals_it_with_one_payload(event: Any) -> None:
    encoded = codec.encode(event)
    decoded = codec.decode(*encoded)
    assert decoded == event
    assert codec.encode(decoded) == encoded


@given(any_event())
def test_wire_form_survives_json(event: Any) -> None:
    form = msgpack.unpackb(codec.encode(event).payload)
    assert json.loads(json.dumps(form, allow_nan=False)) == form


@given(any_event())
def test_readable_form_round_trips(event: Any) -> None:
    text = json.dumps(codec.to_json(event), allow_nan=False, ensure_ascii=False)
    assert codec.from_json(json.loads(text)) == event


def shuffled(value: Any) -> Any:
    """An equal value whose mappings were filled in the opposite order."""
    return {key: shuffled(value[key]) for key in reversed(list(value))} if isinstance(value, dict) else value


@given(any_event())
def test_equal_events_in_any_mapping_order_have_equal_bytes(event: Any) -> None:
    other = attrs.evolve(event, **{name: shuffled(getattr(event, name)) for name in attrs.fields_dict(type(event))})
    assert other == event
    assert codec.encode(other) == codec.encode(event)


def test_equal_numbers_have_equal_bytes() -> None:
    assert codec.encode(attrs.evolve(REPORT, load=Load(cpu=1, disk=-0.0))) == codec.encode(attrs.evolve(REPORT, load=Load(cpu=1.0, disk=0)))


# ------------------------------------------------------------------------------------- stored bytes


def kept_line(event: Any) -> dict[str, Any]:
    """Returns the line of tests/data/events/current.jsonl for an event."""
    _, version, payload = codec.encode(event)
    return {"kind": type(event).__name__, "version": version, "payload": payload.hex(), "event": codec.to_json(event)["event"]}


def test_stored_bytes_of_every_kind_are_unchanged(rewrite: bool) -> None:
    """If this fails, logs written before can no longer be read: raise the kind's version and add an
    upcaster (`equipoise.events.upcasters`).
    """
    kept = lines("current.jsonl")
    today = [kept_line(codec.from_json(line)) for line in kept]
    if rewrite:
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in today)
        (DATA / "current.jsonl").write_text(text)
        return
    assert today == kept
    for line in kept:
        event = codec.from_json(line)
        assert codec.decode(codec.kind_of(event), line["version"], bytes.fromhex(line["payload"])) == event


def test_bytes_of_every_kind_are_kept() -> None:
    kept = {(line["kind"], line["version"]) for line in lines("current.jsonl")}
    assert kept == {(shape.__name__, version) for version, shape in codec.KINDS.values()}


# ---------------------------------------------------------------------------------- what is refused


def edited(event: Any, *path: Any, to: Any) -> tuple[int, int, bytes]:
    """The stored form of `event` with one value of its wire form replaced."""
    kind, version, payload = codec.encode(event)
    form = msgpack.unpackb(payload)
    place = form
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = to
    return kind, version, msgpack.packb(form)


JOINED = MemberJoined(member_id="m1", incarnation=1, join_nonce="n", tags={"zone": "a"}, lags={T(0, 1): 3})
OBSERVED = PartitionsObserved(end_offsets={"t": {0: 5, 1: 6}})
ASSIGNED = MemberAssigned(member_id="m1", incarnation=1, assignment_epoch=1, active=(T(0, 0), T(0, 1)), tokens=(1, 2), hold_ms={T(0, 1): 9})
CONFIGURED = GroupConfigured(knobs=GroupSettings(options={"a": 1, "b": 0.5}))
KNOBS = [field.name for field in attrs.fields(GroupConfigured)].index("knobs")
OPTIONS = [field.name for field in attrs.fields(GroupSettings)].index("options")


@pytest.mark.parametrize(
    ("event", "path", "to", "field"),
    [
        (REPORT, (0,), 5, "LagReported.member_id"),
        (REPORT, (0,), "", "LagReported.member_id"),
        (REPORT, (0,), "x" * 1_001, "LagReported.member_id"),
        (REPORT, (1,), True, "LagReported.incarnation"),
        (REPORT, (1,), 2**63, "LagReported.incarnation"),
        (REPORT, (1,), -1, "LagReported.incarnation"),
        (REPORT, (1,), 1.0, "LagReported.incarnation"),
        (REPORT, (4,), None, "LagReported.held"),
        (REPORT, (4,), {}, "LagReported.held"),
        (REPORT, (4,), [[0, [1]], [0, [2]]], "LagReported.held"),
        (REPORT, (4,), [[1, [1]], [0, [1]]], "LagReported.held"),
        (REPORT, (4,), [[0, []]], "LagReported.held"),
        (REPORT, (4,), [[0, [1, 0]]], "LagReported.held"),
        (REPORT, (4,), [[0, [True]]], "LagReported.held"),
        (REPORT, (4,), [[True, [1]]], "LagReported.held"),
        (REPORT, (4,), [[0, [1], 2]], "LagReported.held"),
        (REPORT, (4,), [[-1, [1]]], "LagReported.held"),
        (REPORT, (4,), [[10**9, [1]]], "LagReported.held[0]"),
        (REPORT, (4,), [[0, [10**9 + 1]]], "LagReported.held[0]"),
        (REPORT, (6,), [], "LagReported.lags"),
        (REPORT, (6,), {"0_10": 5, "0_2": 5}, "LagReported.lags"),
        (REPORT, (6,), {"0_01": 5}, "LagReported.lags"),
        (REPORT, (6,), {"0_1234567890": 5}, "LagReported.lags"),
        (REPORT, (6,), {"m": 5}, "LagReported.lags"),
        (REPORT, (6,), {"0_2": -1}, "LagReported.lags[0_2]"),
        (REPORT, (6,), {"0_2": True}, "LagReported.lags[0_2]"),
        (REPORT, (6,), {"0_2": 2**63}, "LagReported.lags[0_2]"),
        (REPORT, (6,), {"0_2": "late"}, "LagReported.lags[0_2]"),
        (REPORT, (6,), {"0_2": [1]}, "LagReported.lags[0_2]"),
        (REPORT, (7,), "x", "LagReported.base"),
        (REPORT, (9,), 0, "LagReported.leaving"),
        (REPORT, (10,), [], "Load"),
        (REPORT, (10,), 3, "Load"),
        (REPORT, (10, 0), float("nan"), "Load.cpu"),
        (REPORT, (10, 0), float("inf"), "Load.cpu"),
        (REPORT, (10, 0), -0.5, "Load.cpu"),
        (REPORT, (10, 0), -0.0, "Load.cpu"),
        (REPORT, (10, 0), 1, "Load.cpu"),
        (JOINED, (4,), {"zone": 1}, "MemberJoined.tags[zone]"),
        (JOINED, (4,), {"b": "1", "a": "1"}, "MemberJoined.tags"),
        (JOINED, (4,), ["zone"], "MemberJoined.tags"),
        (OBSERVED, (0, "t"), [[1, 5], [0, 5]], "PartitionsObserved.end_offsets"),
        (OBSERVED, (0, "t"), [[1, 5], [1, 6]], "PartitionsObserved.end_offsets"),
        (OBSERVED, (0, "t"), [[1]], "PartitionsObserved.end_offsets"),
        (OBSERVED, (0, "t"), {"1": 5}, "PartitionsObserved.end_offsets"),
        (OBSERVED, (0, "t", 0, 1), -1, "PartitionsObserved.end_offsets[t][0]"),
        (ASSIGNED, (7,), [1], "MemberAssigned.tokens"),
        (ASSIGNED, (7,), [1, 0], "MemberAssigned.tokens[1]"),
        (ASSIGNED, (8,), [[9, [[5, [1]]]]], "MemberAssigned.hold_ms[5_0]"),
        (ASSIGNED, (8,), [[9, []]], "MemberAssigned.hold_ms"),
        (ASSIGNED, (8,), [[8, [[0, [1]]]], [9, [[0, [1]]]]], "MemberAssigned.hold_ms"),
        (ASSIGNED, (8,), [[9, [[0, [1]]]], [8, [[0, [2]]]]], "MemberAssigned.hold_ms"),
        (CONFIGURED, (KNOBS, OPTIONS, "a"), 2**63, "Knobs.options[a]"),
        (CONFIGURED, (KNOBS, OPTIONS, "a"), float("nan"), "Knobs.options[a]"),
        (CONFIGURED, (KNOBS, OPTIONS, "a"), -0.0, "Knobs.options[a]"),
        (CONFIGURED, (KNOBS, OPTIONS, "a"), {"b": 1, "a": 1}, "Knobs.options[a]"),
        (CONFIGURED, (KNOBS, OPTIONS, "a"), b"", "Knobs.options[a]"),
        (CONFIGURED, (KNOBS, OPTIONS, "a"), msgpack.ExtType(3, b"x"), "Knobs.options[a]"),
        (CONFIGURED, (KNOBS, OPTIONS, "a"), None, "Knobs.options[a]"),
        (CONFIGURED, (KNOBS,), None, "Knobs"),
        (CONFIGURED, (KNOBS,), [1], "Knobs"),
        (CONFIGURED, (KNOBS, OPTIONS), 3, "Knobs.options"),
    ],
)
def test_decode_unsound_value_names_the_field(event: Any, path: tuple[Any, ...], to: Any, field: str) -> None:
    error = reason(*edited(event, *path, to=to))
    assert error.code == ("misshapen" if field in ("Load", "Knobs") else "unsound_field")
    assert error.field == field
    assert len(str(error)) < 300


TICK, READY = codec.kind_of(ProbingTick), codec.kind_of(TaskReady)


@pytest.mark.parametrize(
    ("kind", "payload", "code"),
    [
        (TICK, b"", "not_msgpack"),
        (TICK, b"\xc1", "not_msgpack"),  # the one byte msgpack never uses
        (TICK, b"\x90\x90", "not_msgpack"),  # bytes behind the end
        (TICK, b"\xdd\xff\xff\xff\xff", "not_msgpack"),  # says it has 2^32 - 1 items
        (TICK, b"\xdb\xff\xff\xff\xffx", "not_msgpack"),
        (TICK, b"\xa2\xff\xfe", "not_msgpack"),  # no UTF-8
        (TICK, b"\x81\x01\x02", "not_msgpack"),  # a key that is no text
        (TICK, b"\x81\x90\x02", "not_msgpack"),
        (TICK, b"\x91" * 500_000, "not_msgpack"),  # nested too deeply
        (TICK, (b"\xdd\x00\x0f\x00\x00" * 190_000), "not_msgpack"),  # a thousand lists of a million items, nested
        (TICK, b"\x91" * 900 + b"\x90", "misshapen"),
        (TICK, b"\x91\x00", "misshapen"),
        (TICK, b"\x80", "misshapen"),
        (TICK, b"\xc0", "misshapen"),
        (TICK, b"\x00", "misshapen"),
        (TICK, b"\xdc\x00\x00", "not_canonical"),  # a length in more bytes than it needs
        (TICK, b"\xcb" + bytes(8) + b"x" * codec.MOST_EVENT_BYTES, "too_large"),
        (READY, b"\x94\xa1m\xcc\x01\x01\x90", "not_canonical"),  # an int in more bytes than it needs
        (READY, b"\x94\xd9\x01m\x01\x01\x90", "not_canonical"),
        (READY, b"\x94\xa1m\x01\x01\x82\xa10\x01\xa10\x02", "not_canonical"),  # a key twice
        (READY, b"\x94\xa1m\x01\x01\xca\x00\x00\x00\x00", "not_canonical"),  # a float of 32 bits
        (READY, b"\x94\xa1m\x01\x01\xd4\x01\x01", "unsound_field"),
        (READY, b"\x94\xa1m\x01\x01" + b"\x91" * 900 + b"\x90", "unsound_field"),
    ],
    ids=lambda value: value[:12].hex() if isinstance(value, bytes) else None,
)
def test_bytes_that_are_no_event_have_their_reason(kind: int, payload: bytes, code: str) -> None:
    assert reason(kind, 1, payload).code == code


NEXT_FACT = max(kind for kind in codec.KINDS if kind < codec.FIRST_DECISION_KIND) + 1


@pytest.mark.parametrize(("kind", "version"), [(0, 1), (99, 1), (NEXT_FACT, 1), (-1, 1), (2**70, 1), (TICK, 0), (TICK, 2), (TICK, -1)])
def test_decode_unknown_kind_or_version_raises(kind: int, version: int) -> None:
    for decode in (codec.decode, codec.decode_lenient):
        with pytest.raises(UnknownEventError) as caught:
            decode(kind, version, b"\x90")
        assert (caught.value.kind, caught.value.version) == (kind, version)


def test_lenient_decoding_gives_sound_facts_as_they_are() -> None:
    assert codec.decode_lenient(*codec.encode(REPORT)) == REPORT


def test_decode_lenient_unsound_bytes_gives_the_code() -> None:
    kind, version, payload = edited(REPORT, 6, to={"0_2": -1})
    expected = Undecodable(code="unsound_field", field="LagReported.lags[0_2]", kind=kind, length_bytes=len(payload), crc32=zlib.crc32(payload))
    assert codec.decode_lenient(kind, version, payload) == expected


def test_decode_lenient_decision_is_undecodable() -> None:
    fact = codec.decode_lenient(*codec.encode(EventRejected(kind=6, code="late")))
    assert isinstance(fact, Undecodable)
    assert (fact.code, fact.field) == ("not_a_fact", "EventRejected")


@given(st.sampled_from([(code, version) for code, (newest, _) in codec.KINDS.items() for version in range(1, newest + 1)]), st.binary(max_size=80))
@example((TICK, 1), b"\x90")
def test_random_bytes_are_an_event_or_have_a_reason(stored: tuple[int, int], payload: bytes) -> None:
    accepted_or_refused(*stored, payload)


def accepted_or_refused(kind: int, version: int, payload: bytes) -> None:
    """An accepted payload is canonical, a refused one has a reason, and live intake agrees."""
    lenient = codec.decode_lenient(kind, version, payload)
    try:
        event = codec.decode(kind, version, payload)
    except UnsoundError as error:
        code = error.code
    else:
        code = ""
    if code:
        assert code in codec.UNDECODABLE_CODES
        assert isinstance(lenient, Undecodable)
        assert (lenient.code, lenient.length_bytes) == (code, len(payload))
        return
    if version == codec.KINDS[kind][0]:
        assert codec.encode(event) == (kind, version, payload)
    if kind < codec.FIRST_DECISION_KIND:
        assert lenient == event


@given(any_event(), st.data())
def test_mutated_payloads_are_an_event_or_have_a_reason(event: Any, data: st.DataObject) -> None:
    kind, version, payload = codec.encode(event)
    bits = bytearray(payload)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(bits)))
        match data.draw(st.sampled_from(["flip", "cut", "put", "twice"])):
            case "flip" if at < len(bits):
                bits[at] ^= 1 << data.draw(st.integers(0, 7))
            case "cut":
                del bits[at : at + data.draw(st.integers(1, 4))]
            case "put":
                bits[at:at] = data.draw(st.binary(min_size=1, max_size=4))
            case "twice":
                bits[at:at] = bits[at : at + 8]
    accepted_or_refused(kind, version, bytes(bits))


_JUNK = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(), st.text(max_size=5), st.binary(max_size=3), st.just("0_1")),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(any_event(), _JUNK, st.data())
def test_junk_in_the_place_of_any_value_is_an_event_or_has_a_reason(event: Any, junk: Any, data: st.DataObject) -> None:
    kind, version, payload = codec.encode(event)
    form = msgpack.unpackb(payload)
    place, depth = form, 0
    while place and depth < 6:
        key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        if not isinstance(place[key], list | dict) or not place[key] or data.draw(st.booleans()):
            place[key] = copy.deepcopy(junk)
            break
        place, depth = place[key], depth + 1
    accepted_or_refused(kind, version, msgpack.packb(form))


@given(any_event(), _JUNK, st.data())
def test_junk_in_the_readable_form_is_an_event_or_has_a_reason(event: Any, junk: Any, data: st.DataObject) -> None:
    form = codec.to_json(event)
    names = sorted(form["event"])
    if names:
        form["event"][data.draw(st.sampled_from(names))] = junk
    try:
        event = codec.from_json(form)
    except UnsoundError as error:
        field = error.field
    else:
        field = type(event).__name__
        assert codec.decode(*codec.encode(event)) == event
    assert field.split(".")[0] in {
        *("Load", "Move", "Knobs", "Subtopology", "ObservedMember", "EndedMember", "ProposedMember"),
        *("PresentMember", "RejoinedMember", "AbsentMember"),
        "MemberAssigned",  # of a part
        "AssignmentProposed",
        form["kind"],
    }


# ------------------------------------------------------------------------------------ readable form


def test_readable_form_has_the_event_fields() -> None:
    assert codec.to_json(REPORT)["event"] | {"load": None} == {
        "member_id": "m1",
        "incarnation": 7,
        "number": 3,
        "assignment_epoch": 2,
        "held": ["0_1", "1_0"],
        "ready": ["0_4"],
        "lags": {"0_2": 5, "0_10": "active"},
        "base": 2,
        "forgotten": [],
        "leaving": False,
        "load": None,
        "preparing": {},
        "failed": [],
    }


def test_fields_left_out_get_their_defaults() -> None:
    form = {"kind": "MemberJoined", "event": {"member_id": "m1", "incarnation": 1, "join_nonce": "n"}}
    assert codec.from_json(form) == MemberJoined(member_id="m1", incarnation=1, join_nonce="n")


@pytest.mark.parametrize(
    ("form", "field"),
    [
        ({"member_id": "m1", "incarnation": 1}, "MemberJoined.join_nonce"),
        ({"member_id": "m1", "incarnation": 1, "join_nonce": "n", "colour": 1}, "MemberJoined"),
        ({"member_id": "m1", "incarnation": "1", "join_nonce": "n"}, "MemberJoined.incarnation"),
        ({"member_id": "m1", "incarnation": 1, "join_nonce": "n", "lags": {"x": 1}}, "MemberJoined.lags"),
        ({"member_id": "m1", "incarnation": 1, "join_nonce": "\ud800"}, "MemberJoined.join_nonce"),
        ([], "MemberJoined"),
        (None, "MemberJoined"),
    ],
)
def test_from_json_unsound_form_names_the_field(form: Any, field: str) -> None:
    with pytest.raises(UnsoundError) as caught:
        codec.from_json({"kind": "MemberJoined", "event": form})
    assert caught.value.field == field


@pytest.mark.parametrize("name", ["Nothing", None, 3, ["LagReported"]])
def test_from_json_unknown_kind_raises(name: Any) -> None:
    with pytest.raises(UnknownEventError):
        codec.from_json({"kind": name, "event": {}})


# --------------------------------------------------------------------------------------------- size


def test_encode_assignment_of_100000_tasks_fits() -> None:
    tasks = tuple(T(sub, part) for sub in range(4) for part in range(25_000))
    tokens = tuple(range(4_000_000_000, 4_000_000_000 + 100_000))  # four thousand million grants ago this group began
    event = MemberAssigned(
        member_id="m1", incarnation=1, assignment_epoch=9, active=tasks, tokens=tokens, hold_ms=dict.fromkeys(tasks, 30_000), revoke=tasks
    )
    encoded = codec.encode(event)
    assert len(encoded.payload) < codec.MOST_EVENT_BYTES
    assert codec.decode(*encoded) == event


def test_encode_event_over_the_limit_is_refused() -> None:
    event = AssignmentIssued(generation=1, cause="join", members=("m" * 1_000,) * 1_000, probing=False)
    with pytest.raises(TooLargeError, match=r"AssignmentIssued.members: 1003003 of the 1003016 bytes of its event; an event has at most 1000000"):
        codec.encode(event)
    assert codec.size_bytes(event) == 1_003_016
    assert not codec.fits(event)


def test_size_bytes_is_that_of_the_payload() -> None:
    event = AssignmentIssued(generation=1, cause="join", members=("m" * 1_000,) * 900, probing=False)
    assert codec.size_bytes(event) == len(codec.encode(event).payload)
    assert codec.fits(event)


def test_largest_manifest_fits() -> None:
    event = LogOpened(log_id="x", manifest="m" * 900_000)
    assert codec.decode(*codec.encode(event)) == event


# -------------------------------------------------------------------------------------------- other


def test_encode_non_event_raises() -> None:
    with pytest.raises(InputError, match="is no event"):
        codec.encode(Load())  # type: ignore[arg-type]


def test_encode_task_out_of_range_raises() -> None:
    with pytest.raises(FieldError):
        codec.encode(attrs.evolve(REPORT, lags={T(0, -1): 5}))


def test_checksums_depend_on_everything_they_cover() -> None:
    fact = ("g", 1, 2, 6, 1, b"x")
    changed = [("h", *fact[1:]), *[(*fact[:at], 9, *fact[at + 1 :]) for at in range(1, 5)], (*fact[:5], b"y")]
    assert len({codec.fact_checksum(*values) for values in [fact, *changed]}) == 7  # type: ignore[arg-type]
    decision = ("l", "g", 1, 2, 3, 4, 6, 1, b"x")
    others = [
        ("k", *decision[1:]),
        ("l", "h", *decision[2:]),
        *[(*decision[:at], 9, *decision[at + 1 :]) for at in range(2, 8)],
        (*decision[:8], b"y"),
    ]
    assert len({codec.decision_checksum(*values) for values in [decision, *others]}) == 10  # type: ignore[arg-type]


def test_made_record_has_the_stored_checksum() -> None:
    record = codec.make_record("g", 5, 1_000, REPORT)
    assert (record.group, record.offset, record.append_ms, record.event) == ("g", 5, 1_000, REPORT)
    assert record.checksum == codec.fact_checksum("g", 5, 1_000, *codec.encode(REPORT))


@given(instances(BalanceEvaluated))
def test_balance_evaluated_is_small(event: BalanceEvaluated) -> None:
    assert len(codec.encode(event).payload) < 60
