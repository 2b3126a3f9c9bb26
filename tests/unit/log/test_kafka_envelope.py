"""Records in Kafka: they round-trip, an undecodable one is folded or belongs to no group, and a
group's partition never changes.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.events import codec
from equipoise.events.decisions import EventRejected
from equipoise.events.errors import DamagedError, InputError, UnknownKindError
from equipoise.events.facts import LogOpened, MemberLeft, ProbingTick, Undecodable
from equipoise.events.records import DecisionRecord, FactRecord
from equipoise.kafka.connection import Connection, connection_to
from equipoise.kafka.declared_settings import build
from equipoise.log.kafka import envelope
from equipoise.log.kafka.log_topics import Topics
from equipoise.log.rows import UNDECODABLE

LEFT = MemberLeft(member_id="m1", incarnation=3)
DECISION = DecisionRecord("log", "orders", 7, 41, 2, 99, EventRejected(kind=5, code="unknown_member", numbers=(1,)))


def record_of(key: bytes | None, value: bytes | None, offset: int = 5):
    return envelope.fact_row(key, value, offset, 1_000).record()


def test_fact_unpacked_equals_other_logs_record() -> None:
    record = record_of(b"orders", envelope.pack_fact(LEFT))
    assert record == codec.make_record("orders", 5, 1_000, LEFT)
    kind, version, event = msgpack.unpackb(envelope.pack_fact(LEFT))
    assert [kind, version, event] == [11, 1, ["m1", 3]]


UNSOUND = [
    (b"orders", b"", "orders", "no_envelope"),
    (b"orders", None, "orders", "no_envelope"),
    (b"orders", b"rubbish", "orders", "no_envelope"),
    (b"orders", msgpack.packb(["11", 1, []]), "orders", "no_envelope"),
    (b"orders", msgpack.packb([-1, 1, []]), "orders", "no_envelope"),
    (b"orders", msgpack.packb([11, 1, ["m1"]]), "orders", "misshapen"),
    (b"orders", msgpack.packb([11, 1, ["m1", -3]]), "orders", "unsound_field"),
    (b"orders", envelope.pack_payload(11, 1, b"\xc1"), "orders", "not_msgpack"),
    (b"orders", envelope.pack_payload(*codec.encode(DECISION.decision)), "orders", "not_a_fact"),
    (None, envelope.pack_fact(LEFT), "", "no_group"),
    (b"", envelope.pack_fact(LEFT), "", "no_group"),
    (b"\xff", envelope.pack_fact(LEFT), "", "no_group"),
    (b"", msgpack.packb([14, "1", ["no_group", "", None, 0, 0]]), "", "no_group"),
    (b"", envelope.pack_fact(LogOpened(log_id="late")), "", "opened_again"),
    (b"orders", envelope.pack_fact(LogOpened(log_id="late")), "", "opened_again"),
]
"""Key, value, and the group and the code of the Undecodable that it is folded as."""


@pytest.mark.parametrize(("key", "value", "group", "code"), UNSOUND)
def test_fact_row_of_unsound_record_is_undecodable(key: bytes | None, value: bytes | None, group: str, code: str) -> None:
    record = record_of(key, value)
    assert (record.group, record.offset) == (group, 5)
    assert isinstance(record.event, Undecodable)
    assert record.event.code == code
    assert code in codec.UNDECODABLE_CODES


def read(of: Callable[[], FactRecord]) -> FactRecord | str:
    try:
        return of()
    except UnknownKindError as error:
        return str(error)


PACKED = (envelope.pack_fact(LEFT), envelope.pack_payload(99, 1, b"\x90"), *(value for _, value, _, _ in UNSOUND))


@given(
    key=st.none() | st.binary(max_size=3) | st.sampled_from((b"orders", b"k" * 4_001)),
    value=st.none() | st.binary(max_size=6) | st.sampled_from(PACKED),
    offset=st.integers(0, 2),
)
def test_record_without_a_row_is_the_same(key: bytes | None, value: bytes | None, offset: int) -> None:
    assert read(lambda: envelope.read_fact(key, value, offset, 1_000)) == read(lambda: record_of(key, value, offset))


@pytest.mark.parametrize(("key", "value"), [(b"orders", envelope.pack_fact(LEFT)), *((key, value) for key, value, _, _ in UNSOUND)])
def test_restored_fact_is_read_as_the_same_row(key: bytes | None, value: bytes | None) -> None:
    row = envelope.fact_row(key, value, 5, 1_000)
    assert envelope.fact_row(*envelope.fact_value(row), 5, 1_000) == row
    opened = envelope.fact_row(b"", envelope.pack_fact(LogOpened(log_id="a1")), 0, 1_000)
    assert envelope.fact_row(*envelope.fact_value(opened), 0, 1_000) == opened


@pytest.mark.parametrize(
    "value",
    [
        envelope.pack_payload(UNDECODABLE, 1, b"\xc1"),
        envelope.pack_payload(UNDECODABLE, 99, codec.encode(Undecodable(code="no_group", kind=None, length_bytes=1, crc32=1))[2]),
        envelope.pack_payload(UNDECODABLE, 1, msgpack.packb(["no_group"])),
    ],
)
def test_place_of_no_group_that_restore_does_not_write_is_a_record_without_a_group(value: bytes) -> None:
    event = record_of(b"", value).event
    assert event == Undecodable(code="no_group", kind=None, length_bytes=len(value), crc32=zlib.crc32(value))


def test_restored_decision_has_the_bytes_of_the_published_one() -> None:
    value = envelope.pack_decision(DECISION)
    assert envelope.decision_value(envelope.stored_decision(b"orders", value, "topic/0@1")) == (b"orders", value)


def test_fact_of_unknown_kind_raises_with_offset() -> None:
    with pytest.raises(UnknownKindError, match="offset 5"):
        record_of(b"orders", envelope.pack_payload(77, 1, b"\x90"))


def test_log_opened_round_trips() -> None:
    opened = LogOpened(log_id="log", partitions=3)
    assert record_of(b"", envelope.pack_fact(opened), offset=0) == codec.make_record("", 0, 1_000, opened)


def test_decision_round_trips() -> None:
    value = envelope.pack_decision(DECISION)
    stored = envelope.stored_decision(b"orders", value, "d/0@3")
    assert envelope.decision_record(stored) == DECISION
    assert stored.row.checksum == codec.checksum_of(DECISION)


def test_largest_decision_fits_kafkas_default_limit() -> None:
    widest = "\U0001f600" * 1_000  # of both texts that an envelope or a key holds
    head = (widest, *(2**63 - 1,) * 4, 2**32 - 1, 2**31 - 1, 2**31 - 1)
    payload_bytes = len(codec.encode(DECISION.decision).payload)
    largest = DecisionRecord(widest, "orders", 2**63 - 1, 2**63 - 1, 2**63 - 1, 2**63 - 1, DECISION.decision)
    assert len(envelope.pack_decision(largest)) - payload_bytes <= len(msgpack.packb(head)) <= envelope.MOST_ENVELOPE_BYTES
    assert len(envelope.group_key(widest)) == envelope.MOST_KEY_BYTES
    record_and_batch_overhead_bytes = 200
    assert codec.MOST_EVENT_BYTES + envelope.MOST_ENVELOPE_BYTES + envelope.MOST_KEY_BYTES + record_and_batch_overhead_bytes < 1_048_576


def test_decision_with_a_changed_byte_is_damaged() -> None:
    value = envelope.pack_decision(DECISION)
    found = 0
    for place in range(len(value)):
        damaged = value[:place] + bytes([value[place] ^ 1]) + value[place + 1 :]
        with pytest.raises(DamagedError):
            envelope.stored_decision(b"orders", damaged, "d/0@3")
        found += 1
    assert found == len(value)
    with pytest.raises(DamagedError):
        envelope.stored_decision(b"other", value, "d/0@3")


def test_partition_of_group_equals_kafka_clients() -> None:
    # As org.apache.kafka.common.utils.Utils.toPositive(Utils.murmur2(key)) % partitions gives them.
    assert [envelope.partition_of(group, 12) for group in ("21", "foobar", "a-little-bit-long-string")] == [
        (-973932308 & 0x7FFFFFFF) % 12,
        (-790332482 & 0x7FFFFFFF) % 12,
        (-985981536 & 0x7FFFFFFF) % 12,
    ]
    with pytest.raises(InputError, match="group"):
        envelope.group_key("")


def test_settings_have_one_name_everywhere_and_later_layers_win() -> None:
    environment = {"EQUIPOISE_SECURITY_PROTOCOL": "SASL_PLAINTEXT", "EQUIPOISE_SASL_USERNAME": "u", "EQUIPOISE_SASL_PASSWORD": "p", "HOME": "/"}
    connection = connection_to("b:1", environment)
    assert connection == Connection(bootstrap="b:1", security_protocol="SASL_PLAINTEXT", sasl_username="u", sasl_password="p")
    assert connection.options()["sasl_plain_password"] == "p"
    assert build(Connection, ("file", {"bootstrap": "a:1", "ssl_check_hostname": True}), ("flag", {"ssl_check_hostname": "no"})) == Connection(
        bootstrap="a:1", ssl_check_hostname=False
    )


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"bootstrop": "a:1"}, "file bootstrop: no such setting; did you mean bootstrap?"),
        ({"ssl_check_hostname": "perhaps"}, "file ssl_check_hostname: 'perhaps' is not a true or false"),
        ({"bootstrap": 5}, "file bootstrap: 5 is not a text"),
        ({"security_protocol": "TLS"}, "file security_protocol: .*PLAINTEXT"),
        ({"security_protocol": "SASL_SSL"}, "sasl_username and sasl_password: security_protocol SASL_SSL needs both"),
    ],
)
def test_wrong_setting_is_named(values: dict, said: str) -> None:
    with pytest.raises(InputError, match=said):
        build(Connection, ("file", values))


def test_topic_prefix_invalid_is_refused() -> None:
    assert Topics().facts == "equipoise.facts"
    with pytest.raises(InputError, match="prefix"):
        Topics("a/b")


def test_tick_is_four_bytes() -> None:
    assert envelope.pack_fact(ProbingTick()) == b"\x93\x0c\x01\x90"


# -------------------------------------------------------------------------------------------- sizes


@pytest.mark.parametrize("kind", [6, 99])
def test_fact_too_large_of_any_kind_is_undecodable(kind: int) -> None:
    payload = b"x" * (codec.MOST_EVENT_BYTES + 1)
    row = envelope.fact_row(b"orders", envelope.pack_payload(kind, 1, payload), 5, 1_000)
    assert len(row.payload) < 100
    event = row.record().event
    assert event == Undecodable(code="too_large", kind=kind, length_bytes=len(payload), crc32=zlib.crc32(payload))


def test_row_of_no_record_keeps_offset_without_group() -> None:
    row = envelope.no_record_row(envelope.NoRecord(7, 1_000))
    assert row.belongs_to_no_group
    assert (row.offset, row.append_ms, row.record().event) == (7, 1_000, Undecodable(code="no_record", length_bytes=0, crc32=0))
