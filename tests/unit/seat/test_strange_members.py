"""Whatever a client sends when it joins, the seat answers: other members get their partitions, and
a client that cannot be understood gets nothing.
"""

from __future__ import annotations

import struct
import tempfile
import uuid
from pathlib import Path
from random import Random

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from equipoise.cli.lead import configuration
from equipoise.kafka.embedded_protocol import read_assignment, write_assignment
from equipoise.lead.seat.generation import SeatSettings, answer, read_members
from equipoise.lead.seat.log import SeatLog
from equipoise.lead.seat.metadata import SeatTopicMetadata
from equipoise.lead.seat.names import MOST_KEY_CHARS, clients_of, is_static
from equipoise.log import open_log
from equipoise.replay.verification import Verdict, verify
from tests.unit.seat.test_seat_protocol import text

COUNTS = {"in": 6, "other": 3}
Member = tuple[str, str | None, bytes]


def subscription(version: int, topics: tuple[str, ...], owned: tuple[tuple[str, int], ...] = (), generation: int = -1, rack: str = "r1") -> bytes:
    data = struct.pack(">hi", version, len(topics)) + b"".join(map(text, topics)) + struct.pack(">i", -1)
    if version >= 1:
        data += struct.pack(">i", len(owned)) + b"".join(text(topic) + struct.pack(">ii", 1, partition) for topic, partition in owned)
    return data + (struct.pack(">i", generation) if version >= 2 else b"") + (text(rack) if version >= 3 else b"")


def member_id(name: str, number: int) -> str:
    return f"{name}-{uuid.UUID(int=number)}"


places = st.tuples(st.sampled_from(["in", "other", "nowhere", ""]), st.integers(-(2**31), 2**31 - 1) | st.integers(0, 8))
whole = st.builds(
    subscription,
    st.integers(-(2**15), 2**15 - 1) | st.integers(0, 4),
    st.lists(st.sampled_from(["in", "other", "nowhere", "", "x" * 5_000, "nul\0", "ü", "..", "a b"]), max_size=4).map(tuple),
    st.lists(places, max_size=6).map(tuple),
    st.integers(-(2**31), 2**31 - 1),
    st.sampled_from(["", "r1", "r\n\0", "r" * 5_000, "\u202e"]),
)
int32 = st.integers(-(2**31), 2**31 - 1)
cut = st.builds(lambda data, size: data[: size % (len(data) + 1)], whole, st.integers(0, 200))
flipped = st.builds(
    lambda data, at, byte: data[: at % len(data)] + byte + data[at % len(data) + 1 :], whole, st.integers(0, 500), st.binary(min_size=1, max_size=1)
)
counted = st.builds(lambda version, count, rest: struct.pack(">hi", version, count) + rest, st.integers(-1, 4), int32, st.binary())
data = st.just(b"") | st.binary(max_size=100) | whole | cut | flipped | counted
names = st.sampled_from(["a", "b", "x" * 1_500, "ü" * 400, "\u202e\0\n", "", "c/2", "../..", "%s{0}"])
strange = st.tuples(names, st.none() | names.filter(bool) | st.just(member_id("a", 1)), data)


@pytest.mark.parametrize("eager", [True, False])
@given(generations=st.lists(st.lists(strange, max_size=4), min_size=1, max_size=4), seed=st.integers(0, 99))
@settings(deadline=None, max_examples=30, phases=[Phase.generate])
def test_members_get_their_partitions_whatever_others_send(eager: bool, generations: list[list[tuple[str, str | None, bytes]]], seed: int) -> None:
    protocol = "range" if eager else "cooperative-sticky"
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "group.db"
        with SeatLog(place, "orders") as log:
            log.configure(configuration(()))
            assigned: dict[str, frozenset[tuple[str, int]]] = {}
            owned: dict[str, frozenset[tuple[str, int]]] = {}
            for number, others in enumerate([*generations, [], []], 1):
                sane = {member_id(name, 1): subscription(1, ("in",), tuple(sorted(owned.get(name, ())))) for name in ("a", "b")}
                members: list[Member] = [(key, None, data) for key, data in sane.items()]
                members += [(member_id(name, 10 + index), instance, data) for index, (name, instance, data) in enumerate(others)]
                Random(seed).shuffle(members)
                read = read_members(members, assigned, eager=eager)
                decided = answer(
                    log,
                    SeatSettings(hold_ms=1_000 * (seed % 2)),
                    number=number,
                    protocol=protocol,
                    eager=eager,
                    joined=read.joined,
                    metadata=SeatTopicMetadata(counts=COUNTS, racks={}),
                    lags={},
                )
                answers = {name: read_assignment(write_assignment(decided.assigned.get(client.key, {}))) for name, client in read.clients.items()}
                assert answers.keys() == {name for name, _, _ in members}, "everybody is answered"
                given_out = [each for has in answers.values() for each in has]
                assert len(given_out) == len(set(given_out))
                assert all(0 <= partition < COUNTS[topic] for topic, partition in given_out)
                assert all(not answers[name] for name, client in read.clients.items() if client in read.unread)
                assigned = {read.clients[name].key: has for name, has in answers.items()}
                owned = {name: answers[member_id(name, 1)] for name in ("a", "b")}
                if eager and not seed % 2:
                    assert {place for place in given_out if place[0] == "in"} == {("in", each) for each in range(6)}
            if not seed % 2:
                assert owned["a"] | owned["b"] == {("in", each) for each in range(6)}, "those that stay have all of it in the end"
                assert {len(owned["a"]), len(owned["b"])} == {3}
        with open_log(place) as stored:
            assert verify(stored.read()).verdict is Verdict.IDENTICAL


def test_long_ids_are_short_keys_that_stay_apart_and_tell_static_members() -> None:
    long = "x" * 1_500
    found = clients_of([(member_id(long, 1), None), (member_id(long, 2), None), (member_id(long, 3), long), (member_id(long, 4), long + "y")])
    assert len({client.key for client in found.values()}) == 4
    assert all(len(client.key) <= MOST_KEY_CHARS for client in found.values())
    assert [is_static(client.key) for client in found.values()].count(True) == 2
    assert clients_of([(member_id("a", 1), None)]) == clients_of([(member_id("a", 1), None)])


def test_instance_id_that_is_another_members_id_is_another_client() -> None:
    taken = member_id("a", 1)
    found = clients_of([(member_id("b", 2), taken), (taken, None)])
    assert found[taken].key == taken
    assert found[member_id("b", 2)].key != taken
