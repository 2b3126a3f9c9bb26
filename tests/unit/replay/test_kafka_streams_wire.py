"""The decoder of `__consumer_offsets`: every documented version, on constructed bytes; real bytes
cut and flipped everywhere end in a WireError.
"""

from __future__ import annotations

import base64
import gzip
import json
import struct
import uuid
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import pytest

from equipoise.events.tasks import TaskId
from equipoise.replay.importers.kafka_streams.offsets_records import (
    NEVER_MS,
    RUNS_IT,
    UNKNOWN_SUM,
    GroupMetadata,
    OffsetCommit,
    WireError,
    decode_record,
    other_kind,
)

SHIPPED = Path(__file__).parents[3] / "replay" / "data"


def i16(number: int) -> bytes:
    return struct.pack(">h", number)


def i32(number: int) -> bytes:
    return struct.pack(">i", number)


def i64(number: int) -> bytes:
    return struct.pack(">q", number)


def text(content: str | None) -> bytes:
    return i16(-1) if content is None else i16(len(content.encode())) + content.encode()


def compact(content: str | None) -> bytes:
    return b"\0" if content is None else bytes([len(content.encode()) + 1]) + content.encode()


def sized(content: bytes) -> bytes:
    return i32(len(content)) + content


def array(*items: bytes) -> bytes:
    return i32(len(items)) + b"".join(items)


def ints(*numbers: int) -> bytes:
    return array(*map(i32, numbers))


PROCESS = uuid.UUID("456c84e0-9383-483d-9a71-93b95963f52e")
GROUP_KEY = i16(2) + text("app")


def subscription_info(version: int) -> bytes:
    """Runs 0_1 and has a copy of 1_2 (5 records), as far as the version can express it."""
    found = i32(version) + (i32(11) if version >= 3 else b"") + PROCESS.bytes
    if version <= 6:
        found += array(i32(0) + i32(1)) + array(i32(1) + i32(2))
    if version >= 2:
        found += sized(b"host:80")
    if 7 <= version <= 9:
        found += array(i32(0) + array(i32(1) + i64(-2)), i32(1) + array(i32(2) + i64(5)))
    if version >= 10:
        found += array(i32(0) + i32(1) + i64(-2) + text(None), i32(1) + i32(2) + i64(5) + text(None))
    if version >= 8:
        found += b"\x07"
    if version >= 9:
        found += i32(0)
    if version >= 11:
        found += array(sized(b"zone") + sized(b"a"))
    return found


def assignment_info(version: int, next_rebalance_ms: int = 1_234) -> bytes:
    """Active 0_1, standby 1_2, and one host with orders-1."""
    name = i32(0) if version >= 10 else b""
    found = i32(version) + (i32(11) if version >= 3 else b"")
    found += array(i32(0) + i32(1) + name) + array(i32(1) + i32(2) + name + array(text("mid") + i32(2)))
    if 2 <= version <= 4:
        found += array(text("host") + i32(80) + array(text("orders") + i32(1)))
    if version >= 5:
        found += array(i32(0) + text("orders")) + array(text("host") + i32(80) + array(i32(0) + i32(1)))
    if version >= 6:
        found += array(text("other") + i32(81) + array(i32(0) + i32(1)))
    if version >= 4:
        found += i32(0)
    if version >= 7:
        found += i64(next_rebalance_ms)
    return found


def subscription(version: int = 3, info: bytes | None = None) -> bytes:
    found = i16(version) + array(text("mid"), text("orders")) + sized(subscription_info(11) if info is None else info)
    if version >= 1:
        found += array(text("orders") + ints(1))
    if version >= 2:
        found += i32(6)
    if version >= 3:
        found += text("rack-1")
    return found


def assignment(version: int = 3, info: bytes | None = None) -> bytes:
    return i16(version) + array(text("orders") + ints(1)) + sized(assignment_info(11) if info is None else info)


def group_value(version: int, subscribed: bytes | None = None, assigned: bytes | None = None) -> bytes:
    sent, given = subscription() if subscribed is None else subscribed, assignment() if assigned is None else assigned
    if version >= 4:
        member = compact("m-1") + compact(None) + compact("i1-StreamThread-1-consumer") + compact("/127.0.0.1") + i32(300_000) + i32(10_000)
        for content in (sent, given):
            length = len(content) + 1
            member += (bytes([length]) if length < 128 else bytes([length & 0x7F | 0x80, length >> 7])) + content
        head = i16(version) + compact("consumer") + i32(7) + compact("stream") + compact("m-1") + i64(99)
        return head + b"\x02" + member + b"\x00" + b"\x01\x05\x02ab"  # one unknown tagged field
    member = text("m-1") + (text(None) if version >= 3 else b"") + text("i1-StreamThread-1-consumer") + text("/127.0.0.1")
    member += (i32(300_000) if version >= 1 else b"") + i32(10_000) + sized(sent) + sized(given)
    return i16(version) + text("consumer") + i32(7) + text("stream") + text("m-1") + (i64(99) if version >= 2 else b"") + array(member)


def decoded(value: bytes) -> GroupMetadata:
    event = decode_record(17, GROUP_KEY, value)
    assert isinstance(event, GroupMetadata)
    return event


@pytest.mark.parametrize("version", range(5))
def test_offset_commits_of_every_version(version: int) -> None:
    value = i16(version) + i64(42) + (i32(3) if version >= 3 else b"") + (compact("meta") if version >= 4 else text("meta")) + i64(1_000)
    value += i64(2_000) if version == 1 else b""
    value += b"\x01\x00\x02ab" if version >= 4 else b""
    for kind in (0, 1):
        key = i16(kind) + text("app") + text("orders") + i32(5)
        assert decode_record(1, key, value) == OffsetCommit(group="app", topic="orders", partition=5, committed=42)
        assert decode_record(1, key, None) == OffsetCommit(group="app", topic="orders", partition=5, committed=None)


@pytest.mark.parametrize("version", range(5))
def test_group_metadata_of_every_version(version: int) -> None:
    event = decoded(group_value(version))
    assert (event.record_version, event.generation, event.protocol, event.leader) == (version, 7, "stream", "m-1")
    assert event.state_timestamp == (99 if version >= 2 else -1)
    (member,) = event.members
    assert (member.member_id, member.static_id, member.client_id, member.host) == ("m-1", None, "i1-StreamThread-1-consumer", "/127.0.0.1")
    assert (member.session_timeout_ms, member.rebalance_timeout_ms) == (10_000, 300_000 if version >= 1 else -1)
    assert member.subscription.rack == "rack-1"
    assert member.assignment.active == (TaskId(0, 1),)


@pytest.mark.parametrize("version", range(4))
def test_consumer_protocol_of_every_version(version: int) -> None:
    (member,) = decoded(group_value(3, subscription(version), assignment(version))).members
    sent = member.subscription
    assert sent.topics == ("mid", "orders")
    assert sent.owned_partitions == ({"orders": (1,)} if version >= 1 else {})
    assert sent.owned_generation == (6 if version >= 2 else -1)
    assert sent.rack == ("rack-1" if version >= 3 else None)
    assert member.assignment.partitions == {"orders": (1,)}


@pytest.mark.parametrize("version", range(1, 4))
def test_subscription_may_end_before_the_fields_of_its_version(version: int) -> None:
    """kafka-go sends such ones, and a coordinator stores what it is sent."""
    (member,) = decoded(group_value(3, i16(version) + subscription(0)[2:], assignment(version))).members
    assert (member.subscription.topics, member.subscription.owned_partitions) == (("mid", "orders"), {})


@pytest.mark.parametrize("version", range(1, 12))
def test_subscription_info_of_every_version(version: int) -> None:
    (member,) = decoded(group_value(3, subscription(3, subscription_info(version)))).members
    sent = member.subscription
    assert (sent.version, sent.latest_supported_version, sent.process_id) == (version, 11 if version >= 3 else -1, str(PROCESS))
    assert sent.task_offset_sums == {TaskId(0, 1): RUNS_IT, TaskId(1, 2): 5 if version >= 7 else UNKNOWN_SUM}
    assert sent.user_endpoint == ("host:80" if version >= 2 else None)
    assert sent.unique_field == (7 if version >= 8 else 0)
    assert sent.tags == ({"zone": "a"} if version >= 11 else {})


@pytest.mark.parametrize("version", range(1, 12))
def test_assignment_info_of_every_version(version: int) -> None:
    (member,) = decoded(group_value(3, None, assignment(3, assignment_info(version)))).members
    given = member.assignment
    assert (given.version, given.active, given.standby) == (version, (TaskId(0, 1),), {TaskId(1, 2): (("mid", 2),)})
    assert given.active_by_host == ({"host:80": (("orders", 1),)} if version >= 2 else {})
    assert given.standby_by_host == ({"other:81": (("orders", 1),)} if version >= 6 else {})
    assert given.next_rebalance_ms == (1_234 if version >= 7 else NEVER_MS)


def test_active_tasks_pair_with_partitions_sorted_by_topic_and_partition() -> None:
    """As Kafka Streams pairs them on receipt, whatever order the wire has."""
    info = i32(9) + i32(11) + array(i32(2) + i32(3), i32(0) + i32(1), i32(0) + i32(4)) + array() + array() + array() + array() + i32(0) + i64(0)
    given = decoded(group_value(3, None, i16(3) + array(text("orders") + ints(4, 1), text("clicks") + ints(3)) + sized(info))).members[0].assignment
    assert list(zip(given.active, given.input_partitions(), strict=True)) == [
        (TaskId(2, 3), ("clicks", 3)),
        (TaskId(0, 1), ("orders", 1)),
        (TaskId(0, 4), ("orders", 4)),
    ]


def test_other_kinds_and_other_groups_are_passed_over() -> None:
    assert decode_record(0, i16(3) + b"whatever", b"anything") is None
    assert decode_record(0, i16(2) + text("other"), b"no metadata at all", "app") is None
    assert decode_record(0, i16(1) + text("other") + text("t") + i32(0), b"", "app") is None


def test_group_tombstone_is_deletion() -> None:
    event = decode_record(0, GROUP_KEY, None)
    assert isinstance(event, GroupMetadata)
    assert event.deleted
    assert not event.members


UNSOUND = {
    "group metadata of version 5": (i16(5), 0, "group metadata of version 5 is not known here"),
    "SubscriptionInfo of version 12": (
        group_value(3, subscription(3, i32(12) + i32(12))),
        None,
        "SubscriptionInfo of Kafka Streams protocol version 12 is not known here",
    ),
    "AssignmentInfo of version 0": (
        group_value(3, None, assignment(3, i32(0))),
        None,
        "AssignmentInfo of Kafka Streams protocol version 0 is not known here",
    ),
    "consumer protocol 4": (group_value(3, subscription(4)), None, "subscription of consumer protocol version 4 is not known here"),
    "no user data": (group_value(3, i16(3) + array() + i32(-1) + array() + i32(0) + text(None)), None, "its consumer is no Kafka Streams thread"),
    "unknown sentinel": (
        group_value(3, subscription(3, subscription_info(11).replace(i64(5), i64(-4)))),
        None,
        "offset sum -4 of task 1_2 is neither a number of records nor a known sentinel",
    ),
    "a named topology": (
        group_value(3, subscription(3, subscription_info(11).replace(i64(5) + text(None), i64(5) + text("t")))),
        None,
        "the task belongs to a named topology",
    ),
    "bytes after the end": (group_value(3) + b"\0", None, "1 bytes too many after the group's metadata"),
    "more members than bytes": (
        i16(0) + text("consumer") + i32(7) + text(None) + text(None) + i32(2**31 - 1),
        None,
        "members cannot be in the 0 bytes",
    ),
    "a task without a partition": (
        group_value(3, None, i16(3) + array() + sized(assignment_info(11))),
        None,
        "1 active task for 0 input partitions",
    ),
}


@pytest.mark.parametrize("name", UNSOUND)
def test_unsound_value_error_has_position(name: str) -> None:
    value, position, problem = UNSOUND[name]
    with pytest.raises(WireError, match=problem) as caught:
        decode_record(17, GROUP_KEY, value)
    assert caught.value.offset == 17
    assert caught.value.part == "value"
    assert 0 <= caught.value.position <= len(value)
    assert position is None or caught.value.position == position
    assert "offset 17" in str(caught.value)


def real_records() -> list[tuple[int, bytes, bytes]]:
    """Group records of a real run, of all sizes, and a few offset commits."""
    found: list[tuple[int, bytes, bytes]] = []
    with gzip.open(SHIPPED / "rolling" / "offsets_topic.jsonl.gz", "rt") as lines:
        for line in lines:
            record = json.loads(line)
            key, value = base64.b64decode(record["key"]), base64.b64decode(record["value"])
            if key[1] == 2 or len(found) < 5:
                found.append((record["offset"], key, value))
    return found


REAL = real_records()


def test_value_prefix_is_refused_at_a_byte_within_it() -> None:
    offset, key, value = next(each for each in REAL if each[1][1] == 2 and len(each[2]) > 4_000)
    for length in range(len(value)):
        with pytest.raises(WireError) as caught:
            decode_record(offset, key, value[:length])
        assert caught.value.offset == offset
        assert caught.value.position <= length


def test_key_prefix_is_refused() -> None:
    for offset, key, value in REAL[:6]:
        for length in range(len(key)):
            with pytest.raises(WireError) as caught:
                decode_record(offset, key[:length], value)
            assert caught.value.part == "key"


def refusal(offset: int, key: bytes, value: bytes | None) -> WireError | None:
    """Returns the decoder's error for these bytes; any other exception is a defect."""
    try:
        decode_record(offset, key, value)
    except WireError as error:
        return error
    return None


@hypothesis.given(
    record=st.sampled_from(REAL),
    changes=st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), min_size=1, max_size=4),
    of_key=st.booleans(),
)
@hypothesis.settings(max_examples=400)
def test_mutated_real_bytes_decode_or_say_where(record: tuple[int, bytes, bytes], changes: list[tuple[int, int]], of_key: bool) -> None:
    offset, key, value = record
    mutated = bytearray(key if of_key else value)
    for place, byte in changes:
        mutated[place % len(mutated)] = byte
    refused = refusal(offset, *((bytes(mutated), value) if of_key else (key, bytes(mutated))))
    assert refused is None or (refused.offset == offset and 0 <= refused.position <= max(len(mutated), len(value)))


@pytest.mark.parametrize(
    ("protocol_type", "protocol", "words"),
    [
        ("consumer", "range", "group 'app' is a group of plain consumers (assignor 'range')"),
        ("connect", "sessioned", "group 'app' is a group of Kafka Connect workers"),
        ("mine", "own", "group 'app' is a group of protocol type 'mine'"),
    ],
)
def test_decode_record_group_of_another_kind_error_names_the_kind_and_the_readable_one(protocol_type: str, protocol: str, words: str) -> None:
    value = group_value(3).replace(text("consumer"), text(protocol_type), 1).replace(text("stream"), text(protocol), 1)
    refused = refusal(5, GROUP_KEY, value)
    assert refused is not None
    assert words in str(refused)
    assert str(refused).endswith("equipoise reads groups of Kafka Streams that use the classic protocol (group.protocol=classic)")


@pytest.mark.parametrize(
    ("kind", "words"),
    [(3, "KIP-848"), (8, "KIP-848"), (10, "share group"), (16, "KIP-848"), (17, "KIP-1071"), (23, "KIP-1071"), (2, None), (99, None)],
)
def test_other_kind_key_of_a_newer_protocol_names_it(kind: int, words: str | None) -> None:
    found = other_kind(i16(kind) + text("app") + text("m-1"), "app")
    assert (found is None) if words is None else (found is not None and words in found)
    assert other_kind(i16(kind) + text("app2"), "app") is None
    assert other_kind(b"\x00", "app") is None


@hypothesis.given(key=st.binary(max_size=40), value=st.none() | st.binary(max_size=200), kind=st.sampled_from([None, 0, 1, 2]))
@hypothesis.settings(max_examples=400)
def test_bytes_decode_or_say_where(key: bytes, value: bytes | None, kind: int | None) -> None:
    refused = refusal(3, key if kind is None else (GROUP_KEY if kind == 2 else i16(kind) + text("app") + text("t") + i32(0)), value)
    assert refused is None or refused.offset == 3
