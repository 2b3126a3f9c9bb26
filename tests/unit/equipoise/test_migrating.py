"""Whether a broker takes a classic group over, what its clients are, and what it costs."""

from __future__ import annotations

import struct
from typing import Any

import attrs
import pytest

from equipoise.kafka.embedded_protocol import write_assignment
from equipoise.lead.migrating.clients import UNKNOWN, ClassicClient, libraries_said, library_of, read_client
from equipoise.lead.migrating.cost import costs
from equipoise.lead.migrating.verdict import POLICY, SIZE, CoordinatorSettings, MigratedGroup, verdict_of

BROKER = CoordinatorSettings(node_id=1, knows=True, policy="bidirectional", max_size=1_000, assignors="uniform,range")


def client(number: int, *partitions: int, **changed: Any) -> ClassicClient:
    held = frozenset(("orders", each) for each in partitions)
    made = ClassicClient(member_id=f"m{number}", client_id="rdkafka", host="h", instance_id=None, library="librdkafka", topics=("orders",), held=held)
    return attrs.evolve(made, **changed)


def group(*clients: ClassicClient, **changed: Any) -> MigratedGroup:
    return attrs.evolve(MigratedGroup(name="g", state="Stable", protocol_type="consumer", protocol="range", clients=clients), **changed)


TWO = group(client(1, 0, 1), client(2, 2, 3))


@pytest.mark.parametrize(
    ("found", "broker", "takes", "why"),
    [
        (TWO, BROKER, "yes", "each client joins again by itself"),
        (TWO, attrs.evolve(BROKER, policy="UPGRADE"), "yes", f"no way back: {POLICY} is upgrade"),
        (TWO, attrs.evolve(BROKER, policy=None), "yes", "the user may not read it"),
        (TWO, attrs.evolve(BROKER, policy="downgrade"), "no", f"{POLICY} of broker 1 is downgrade"),
        (TWO, attrs.evolve(BROKER, policy="disabled"), "no", "is disabled"),
        (TWO, attrs.evolve(BROKER, knows=False, policy=None), "no", "serves no groups of KIP-848"),
        (TWO, attrs.evolve(BROKER, max_size=1), "no", f"2 clients, and {SIZE} of broker 1 is 1"),
        (attrs.evolve(TWO, state="PreparingRebalance"), BROKER, "unknown", "it rebalances"),
        (attrs.evolve(TWO, protocol_type="connect"), BROKER, "not for it", "protocol type is 'connect'"),
        (group(state="Empty"), attrs.evolve(BROKER, policy="disabled"), "yes", "no clients"),
        (group(client(1, problem="version 99")), BROKER, "no", "rdkafka says is not that of a consumer: version 99"),
        (group(client(1, sends=9), client(2, sends=9)), BROKER, "yes", "keeps what it has"),
        (group(client(1, sends=9, given=9), protocol="cooperative-sticky"), BROKER, "no", "as librdkafka does with cooperative-sticky"),
        (group(client(1, given=39), protocol="sticky"), BROKER, "no", "and sarama with sticky"),
        (group(client(1, given=3), client(2), protocol="mine"), BROKER, "no", "1 assignment of 2: to the broker that is an assignor of your own"),
        (group(client(1), protocol="cooperative-sticky"), BROKER, "yes", "only until its next rebalance"),
        (group(client(1, library="Java"), protocol="cooperative-sticky"), BROKER, "yes", "keeps what it has"),
        (group(client(1, instance_id="a"), client(2)), BROKER, "yes", "1 static member"),
    ],
)
def test_verdict_follows_the_conditions_of_the_broker(found: MigratedGroup, broker: CoordinatorSettings, takes: str, why: str) -> None:
    verdict = verdict_of(found, broker)
    assert verdict.takes == takes, verdict
    assert why in verdict.why
    assert takes == "not for it" or verdict.to_do, "it says what to do"


def test_coordinator_with_java_clients_says_nothing_of_user_data_to_come() -> None:
    assert "rebalance" not in verdict_of(group(client(1, library="Java"), protocol="cooperative-sticky"), BROKER).why


@pytest.mark.parametrize(
    ("client_id", "found"),
    [
        ("aiokafka-0.14.0", ("aiokafka", "0.14.0")),
        ("kafka-python-3.0.12", ("kafka-python", "3.0.12")),
        ("rdkafka", ("librdkafka", "")),
        ("consumer-orders-app-1", ("Java", "")),
        ("sarama", ("sarama", "")),
        ("kgo", ("franz-go", "")),
        ("kafkajs", ("KafkaJS", "")),
        ("worker@host (github.com/segmentio/kafka-go)", ("kafka-go", "")),
        ("orders-1", (UNKNOWN, "")),
        ("", (UNKNOWN, "")),
        ("aiokafka-of-mine", (UNKNOWN, "")),
    ],
)
def test_library_is_told_by_client_ids_that_nobody_set(client_id: str, found: tuple[str, str]) -> None:
    assert library_of(client_id) == found


def test_client_is_read_from_what_it_said_and_what_it_was_given() -> None:
    name = struct.pack(">h", 6) + b"orders"
    subscription = struct.pack(">hi", 1, 1) + name + struct.pack(">i", 4) + b"mine" + struct.pack(">i", 0)
    assignment = write_assignment({"orders": [3, 1]})[:-4] + struct.pack(">i", 2) + b"us"
    found = read_client("rdkafka-1", "rdkafka", "h", None, subscription, assignment)
    assert (found.protocol_version, found.topics, found.sends, found.given) == (1, ("orders",), 4, 2)
    assert found.held == {("orders", 1), ("orders", 3)}
    assert not found.problem
    nothing = read_client("a", "rdkafka", "h", None, subscription, b"")
    assert (nothing.held, nothing.given) == (frozenset(), 0), "one that was given nothing yet"
    assert "are left" in read_client("a", "x", "h", None, subscription[:-2], b"").problem
    cut = read_client("a", "me@here (github.com/segmentio/kafka-go)", "h", None, subscription[:-4], assignment)
    assert (cut.problem, cut.held) == ("it ends before what a subscription of version 1 has", found.held), "the broker calls it malformed"
    judged = verdict_of(group(cut), BROKER)
    assert (judged.takes, judged.to_do) == ("no", "a broker takes over no group with this client: have another one, or another release, in its place")
    assert libraries_said([found, nothing, client(3, library="Java", version="4.4")]) == "2 librdkafka, 1 Java 4.4"


def test_cost_of_a_range_group_is_less_when_the_broker_has_it() -> None:
    three = group(*(client(n, *range(4 * n, 4 * n + 4)) for n in range(3)))
    found = {each.action: each for each in costs(three, broker_heartbeat_ms=5_000)}
    assert list(found) == ["one joins", "one leaves", "rolling restart"]
    joins, rolling = found["one joins"], found["rolling restart"]
    assert joins.taken_over.moves == 3 < joins.now.moves, "a fourth of twelve"
    assert 0 < joins.taken_over.unavailable_ms < joins.now.unavailable_ms
    assert rolling.taken_over.moves == 24 < rolling.now.moves
    assert joins.new_protocol.unavailable_ms > joins.taken_over.unavailable_ms, "heartbeats of 5 s, not 3 s"
    cooperative = costs(attrs.evolve(three, protocol="cooperative-sticky"), broker_heartbeat_ms=5_000)[-1]
    assert cooperative.taken_over.unavailable_ms < cooperative.now.unavailable_ms


def test_cost_of_static_members_that_restart_has_no_moves() -> None:
    found = costs(group(client(1, 0, 1, instance_id="a"), client(2, 2, 3, instance_id="b")), broker_heartbeat_ms=5_000)
    rolling = found[-1]
    assert (rolling.action, rolling.now.moves, rolling.taken_over.moves) == ("rolling restart", 0, 0)


def test_group_without_partitions_has_no_cost() -> None:
    assert costs(group(), broker_heartbeat_ms=5_000) == []
    assert costs(group(client(1)), broker_heartbeat_ms=5_000) == []
