"""Small parts of the member: the state of a task, source offsets, the throttle, options."""

from __future__ import annotations

from typing import Any, get_type_hints

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.events.errors import EquipoiseError, InputError
from equipoise.events.tasks import TaskId
from equipoise.kafka.client import TopicPartition, Unsent, partition_of_key
from equipoise.member.copies.fencing import FENCE_KEY, SOURCES_KEY
from equipoise.member.copies.stores import MemoryStore
from equipoise.member.copies.throttle import BURST_S, Throttle
from equipoise.member.options import MemberKeywords, MemberOptions
from equipoise.member.tasks.context import State, TaskContext, pack_sources, read_sources, unpack_sources
from equipoise.member.tasks.sent_records import Outputs
from equipoise.member.tasks.serdes import BytesSerde, JsonSerde, MsgpackSerde, Serde, StringSerde
from equipoise.member.tasks.timers import IntervalTimers

KEYS = st.binary(max_size=1)
CHANGES = st.lists(st.tuples(KEYS, st.none() | st.binary(max_size=2)), max_size=12)


@given(stored=CHANGES, written=CHANGES)
def test_state_shows_changes_over_the_store(stored: list, written: list) -> None:
    store = MemoryStore()
    store.apply(dict(stored) | {SOURCES_KEY: b"x", FENCE_KEY: b"y"}, offset=1)
    state = State(store)
    expected = dict(stored)
    for key, value in written:
        expected[key] = value
        if value is None:
            state.delete(key)
        else:
            state.put(key, value)
    assert list(state.items()) == sorted((key, value) for key, value in expected.items() if value is not None)
    assert all(state.get(key) == value for key, value in expected.items())
    store.apply(state.begin_commit(), offset=2)
    assert list(state.items()) == sorted((key, value) for key, value in expected.items() if value is not None)
    assert state.written == {}


@given(stored=CHANGES, before=CHANGES, dropped=CHANGES, start=KEYS, end=st.none() | KEYS)
def test_state_rolled_back_is_as_at_the_savepoint(stored: list, before: list, dropped: list, start: bytes, end: bytes | None) -> None:
    store = MemoryStore()
    store.apply(dict(stored), offset=1)
    state, expected = State(store), dict(stored) | dict(before)
    context = TaskContext(TaskId(0, 0), 1, {"changelog": state})
    for changes in (before, dropped):
        context.savepoint()
        for key, value in changes:
            state.delete(key) if value is None else state.put(key, value)
    context.rollback()
    there = sorted((key, value) for key, value in expected.items() if value is not None)
    assert list(state.items()) == there
    assert state.written == dict(before)
    assert list(state.range(start, end)) == [(key, value) for key, value in there if key >= start and (end is None or key < end)]
    assert state.get_many([start, *expected]) == [expected.get(start), *expected.values()]


STEPS = st.lists(
    st.tuples(st.just("write"), KEYS, st.none() | st.binary(max_size=2))
    | st.tuples(st.just("write many"), st.dictionaries(KEYS, st.binary(max_size=2)))
    | st.tuples(st.just("range"), KEYS, st.none() | KEYS)
    | st.tuples(st.sampled_from(["savepoint", "rollback", "commit", "over"]))
)


@given(stored=CHANGES, steps=STEPS)
def test_state_answers_the_same_before_during_and_after_commits(stored: list, steps: list) -> None:
    store, under_way = MemoryStore(), None
    store.apply(dict(stored), offset=1)
    state = State(store)
    context = TaskContext(TaskId(0, 0), 1, {"changelog": state})
    expected = {key: value for key, value in dict(stored).items() if value is not None}
    saved = dict(expected)
    for step, *given_ in steps:
        match step:
            case "write":
                key, value = given_
                if value is None:
                    state.delete(key)
                    expected.pop(key, None)
                else:
                    state.put(key, value)
                    expected[key] = value
            case "write many":
                state.put_many(given_[0])
                expected |= given_[0]
                assert state.get_many(list(expected)) == list(expected.values())
            case "range":
                start, end = given_
                there = [(key, value) for key, value in sorted(expected.items()) if key >= start and (end is None or key < end)]
                assert list(state.range(start, end)) == there
                assert state.get(start) == state.get_many([start])[0] == expected.get(start)
            case "savepoint":
                context.savepoint()
                saved = dict(expected)
            case "rollback":
                context.rollback()
                expected = dict(saved)
            case "commit" if under_way is None:
                under_way = state.begin_commit({SOURCES_KEY: b"positions"})
                saved = dict(expected)
            case "over" if under_way is not None:
                store.apply(under_way, offset=store.offset + 1)
                under_way = None
    assert list(state.items()) == sorted(expected.items())


def test_state_reads_keys_with_a_prefix() -> None:
    state = State(MemoryStore(), StringSerde(), JsonSerde())
    for key in ("a", "ab", "ab:1", "ab:2", "ac", "ä"):
        state.put(key, {"of": key})
    assert [key for key, _ in state.prefix("ab:")] == ["ab:1", "ab:2"]
    assert list(state.prefix("ä")) == [("ä", {"of": "ä"})]
    assert [key for key, _ in state.prefix("")] == ["a", "ab", "ab:1", "ab:2", "ac", "ä"]
    other = State(MemoryStore())
    for raw in (b"a", b"\xff", b"\xff\xff"):
        other.put(raw, b"")
    assert [key for key, _ in other.prefix(b"\xff")] == [b"\xff", b"\xff\xff"]


@pytest.mark.parametrize(
    ("serde", "value", "data"),
    [
        (BytesSerde(), b"x", b"x"),
        (StringSerde(), "ä", "ä".encode()),
        (JsonSerde(), {"b": 1, "a": "ä"}, '{"a":"ä","b":1}'.encode()),
        (MsgpackSerde(), {1: [b"x", None]}, b"\x81\x01\x92\xc4\x01x\xc0"),
    ],
)
def test_serde_serializes_and_back(serde: Serde, value: object, data: bytes) -> None:
    assert serde.serialize(value) == data
    assert serde.deserialize(data) == value


def test_state_puts_many_or_none() -> None:
    state = State(MemoryStore(), StringSerde(), JsonSerde())
    state.put_many({"b": 1, "a": None})
    assert (state.get_many(["a", "b", "c"]), state.get("b")) == ([None, 1, None], 1)
    assert dict(state.written) == {b"a": b"null", b"b": b"1"}
    raw = State(MemoryStore())
    for wrong in ({b"a": b"1", "b": b"2"}, {b"a": b"1", b"b": 2}, {b"a": b"1", SOURCES_KEY: b"2"}):
        with pytest.raises(InputError, match=r"not bytes|the member's own"):
            raw.put_many(wrong)
    assert not raw.written
    raw.put_many({b"": b"0", b"\x00": b"1", b"\x00equipoisf": b"2"})
    assert len(raw.written) == 3


def test_serde_refuses_other_values() -> None:
    for serde, value in ((BytesSerde(), "x"), (BytesSerde(), None), (StringSerde(), b"x")):
        with pytest.raises(InputError, match="serde"):
            serde.serialize(value)


def test_context_serializes_what_it_sends() -> None:
    context = TaskContext(TaskId(0, 0), 1, {}, key_serde=StringSerde(), value_serde=JsonSerde(), headers=[("o", b"1")])
    context.send("out", {"a": 1}, key="k", partition=2, headers=[("h", b"x")], timestamp_ms=5)
    context.send("out", None, key="k")
    context.send("raw", b"data", value_serde=BytesSerde())
    assert context.outputs.unplaced == [
        ("out", 2, (b"k", b'{"a":1}', [("h", b"x"), ("o", b"1")], 5)),
        ("out", None, (b"k", None, [("o", b"1")], None)),
        ("raw", None, (None, b"data", [("o", b"1")], None)),
    ]
    context.outputs.take()
    context.send_many("out", [("k", {"a": 1}), ("l", None), (None, 3)], partition=1)
    assert [record for _, _, record in context.outputs.unplaced] == [
        (b"k", b'{"a":1}', [("o", b"1")], None),
        (b"l", None, [("o", b"1")], None),
        (None, b"3", [("o", b"1")], None),
    ]
    context.send_many("out", [])
    for empty in (lambda: context.send("out", None), lambda: context.send_many("out", [("k", 1), (None, None)])):
        with pytest.raises(InputError, match="needs a key or a value"):
            empty()
    assert len(context.outputs) == 3


def test_outputs_keep_the_order_of_each_partition() -> None:
    outputs = Outputs({"known": 4})
    keyed: Unsent = (b"k", b"v", [], None)
    chosen: Unsent = (None, b"to a chosen one", [], None)
    bare: Unsent = (None, b"to any", [], None)
    place = partition_of_key(b"k", 4)
    outputs.add("known", None, keyed)
    outputs.add("known", place, chosen)
    outputs.add_many("known", None, [keyed, bare])
    outputs.add_many("known", place, [chosen, chosen])
    outputs.add("new", 3, chosen)
    outputs.add("new", None, keyed)
    assert outputs.placed == {("known", place): [keyed, chosen, keyed, chosen, chosen]}
    assert outputs.unplaced == [("known", None, bare), ("new", 3, chosen), ("new", None, keyed)]
    taken = outputs.take()
    assert (len(taken), len(outputs)) == (8, 0)


@pytest.mark.parametrize("partitions", [{}, {"out": 3}])
def test_rollback_drops_what_was_sent_since_the_savepoint(partitions: dict[str, int]) -> None:
    context = TaskContext(TaskId(0, 0), 1, {})
    context.outputs.partitions.update(partitions)

    def send() -> None:
        context.send("out", b"1", partition=0)
        context.send_many("out", [(b"k", b"2"), (None, b"3")])
        context.send_many("out", [(b"k", b"4"), (None, b"5")], partition=0)

    send()
    context.savepoint()
    send()
    assert len(context.outputs) == 10
    context.rollback()
    kept = context.outputs.take()
    assert len(kept) == 5
    assert sorted(record[1] or b"" for records in (*kept.placed.values(), [each for _, _, each in kept.unplaced]) for record in records) == [
        b"1",
        b"2",
        b"3",
        b"4",
        b"5",
    ]


def test_timers_are_due_once_each_interval_and_never_twice_for_the_past() -> None:
    now = 0.0
    timers = IntervalTimers(lambda: now)
    assert timers.wait_s() is None
    timers.every(10, lambda context: "SLOW")
    timers.every(4, lambda context: "FAST")

    def look(at_s: float) -> tuple[float | None, list[str]]:
        nonlocal now
        now = at_s
        return timers.wait_s(), [callback(None) for callback in timers.take_due()]

    found = [look(at_s) for at_s in (1.0, 4.0, 4.5, 8.0, 10.0, 31.0, 31.5, 35.0)]
    assert found == [
        (3.0, []),
        (0.0, ["FAST"]),
        (3.5, []),
        (0.0, ["FAST"]),
        (0.0, ["SLOW"]),
        (0.0, ["SLOW", "FAST"]),
        (3.5, []),
        (0.0, ["FAST"]),
    ]
    for wrong in (0, -1, float("nan")):
        with pytest.raises(InputError, match="a number of seconds above 0"):
            timers.every(wrong, print)


def test_member_keywords_are_the_options() -> None:
    assert get_type_hints(MemberKeywords) == get_type_hints(MemberOptions)


def test_state_holds_changes_of_a_commit_under_way_and_later_ones() -> None:
    store = MemoryStore()
    state = State(store)
    for key in (b"a", b"b", b"c"):
        state.put(key, b"1")
    first = state.begin_commit({SOURCES_KEY: b"positions"})
    assert list(first) == [b"a", b"b", b"c", SOURCES_KEY]
    state.put(b"b", b"2")
    state.delete(b"c")
    for _ in range(2):
        assert [state.get(key) for key in (b"a", b"b", b"c")] == [b"1", b"2", None]
        assert list(state.items()) == [(b"a", b"1"), (b"b", b"2")]
        store.apply(first, offset=3)
    assert list(state.written.items()) == [(b"b", b"2"), (b"c", None)]


@pytest.mark.parametrize(("key", "value"), [("k", b""), (b"k", "v"), (b"k", None)])
def test_state_takes_bytes(key: object, value: object) -> None:
    with pytest.raises(InputError, match=r"is not bytes; encode it, or give Member another serde"):
        State(MemoryStore()).put(key, value)


@pytest.mark.parametrize("key", [SOURCES_KEY, FENCE_KEY])
def test_state_keeps_the_members_own_keys(key: bytes) -> None:
    state = State(MemoryStore())
    for change in (lambda: state.put(key, b""), lambda: state.delete(key)):
        with pytest.raises(InputError, match=r"keys that begin with .* are the member's own; use another key"):
            change()
    assert state.written == {}


def test_state_write_again_commits_the_change_again() -> None:
    store = MemoryStore()
    store.apply({b"a": b"1"}, offset=1)
    state = State(store)
    state.write_again([(b"a", b"1"), (b"b", None)])
    state.put(b"a", b"2")
    assert list(state.written.items()) == [(b"a", b"2"), (b"b", None)]
    assert list(state.items()) == [(b"a", b"2")]


def test_state_of_a_task_needs_exactly_one() -> None:
    one, two = State(MemoryStore()), State(MemoryStore())
    assert TaskContext(TaskId(0, 0), 1, {"log": one}).state is one
    with pytest.raises(InputError, match="task 0_0 has no state; name its topic in the `state` of Member or Processor"):
        _ = TaskContext(TaskId(0, 0), 1, {}).state
    with pytest.raises(InputError, match=r"has 2 states; use context.states\[topic\], with one of a, b"):
        _ = TaskContext(TaskId(0, 0), 1, {"a": one, "b": two}).state
    with pytest.raises(InputError, match="needs a key or a value"):
        TaskContext(TaskId(0, 0), 1, {}).send("topic", None)


def test_source_positions_of_a_changelog() -> None:
    store = MemoryStore()
    assert read_sources(State(store)) == ({}, {})
    store.apply({SOURCES_KEY: pack_sources({TopicPartition("t", 1): 7, TopicPartition("u", 1): 5}, {TopicPartition("u", 1): 0})}, offset=1)
    assert read_sources(State(store)) == ({("t", 1): 7, ("u", 1): 5}, {("u", 1): 0})


def test_leader_epochs_count_only_beside_the_positions_that_they_were_written_with() -> None:
    first, second = TopicPartition("t", 1), TopicPartition("u", 1)
    assert unpack_sources(msgpack.packb([[*first, 7]])) == ({first: 7}, {}), "of a build without epochs"
    read = {(topic, partition): offset for topic, partition, offset in msgpack.unpackb(pack_sources({first: 7, second: 5}, {first: 3, second: 0}))}
    moved = {**read, first: 8}  # as such a build goes on
    assert unpack_sources(msgpack.packb([[*place, offset] for place, offset in sorted(moved.items())])) == ({first: 8, second: 5}, {second: 0})
    del moved[second]
    assert unpack_sources(msgpack.packb([[*place, offset] for place, offset in sorted(moved.items())])) == ({first: 8}, {})


@given(takes=st.lists(st.integers(1, 300), min_size=1, max_size=40), quiet_s=st.floats(0, 5))
def test_throttle_admits_its_rate_and_one_burst(takes: list[int], quiet_s: float) -> None:
    now = 100.0
    throttle = Throttle(records_per_s=1_000, clock=lambda: now)
    now += quiet_s
    begun, taken = now, 0
    for records in takes:
        now += throttle.wait_s()
        assert taken <= 1_000 * (now - begun + BURST_S) + 1e-6
        throttle.taken(records, 0)
        taken += records
    now += throttle.wait_s()
    assert now - begun >= taken / 1_000 - BURST_S - 1e-6
    assert now - begun <= taken / 1_000 + 1e-6  # and waits for nothing else


@pytest.mark.parametrize(("more", "waits_s"), [(True, 0.0), (False, 0.5 - BURST_S)])
def test_throttle_makes_up_for_a_slow_moment_while_there_is_more_to_take(more: bool, waits_s: float) -> None:
    now = 0.0
    throttle = Throttle(records_per_s=1_000, clock=lambda: now)
    throttle.taken(500, 0, more=more)
    now += 1.5  # as long as three such takes may last
    throttle.taken(500, 0)
    assert throttle.wait_s() == pytest.approx(waits_s)


def test_bytes_are_limited_by_what_records_weigh() -> None:
    throttle = Throttle(bytes_per_s=100_000, clock=lambda: 0.0)
    throttle.taken(10, 20_000)
    assert throttle.wait_s() == pytest.approx(0.2 - BURST_S)
    assert throttle.most_records(10_000) == 16
    assert Throttle().most_records(10_000) == 10_000
    assert Throttle(records_per_s=50_000).most_records(10_000) == 5_000


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"guarantee": "maybe"}, "guarantee"),
        ({"session_timeout_ms": 3_000}, "lease_margin_ms"),
        ({"heartbeat_interval_ms": 21_001}, "heartbeat_interval_ms"),
        ({"keepalive_interval_ms": 31_501}, "keepalive_interval_ms"),
        ({"capacity": 0}, "capacity"),
        ({"auto_offset_reset": "none"}, "auto_offset_reset"),
    ],
)
def test_wrong_options_are_named(wrong: dict, field: str) -> None:
    with pytest.raises(EquipoiseError, match=field):
        MemberOptions(**wrong)


@pytest.mark.parametrize(
    ("settings", "keepalive_ms"),
    [
        ({}, 25_200),
        ({"session_timeout_ms": 30_000}, 12_000),
        ({"session_timeout_ms": 120_000}, 70_200),
        ({"session_timeout_ms": 10_000}, 3_000),
        ({"keepalive_interval_ms": 9_000}, 9_000),
        ({"keepalive_interval_ms": 0}, None),
    ],
)
def test_a_member_at_rest_leaves_brokers_the_time_to_fail_over(settings: Any, keepalive_ms: int | None) -> None:
    assert MemberOptions(**settings).keepalive_ms == keepalive_ms
