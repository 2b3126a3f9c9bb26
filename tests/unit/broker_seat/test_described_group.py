"""From a description of a group to a plan, and what the assignor inside the brokers makes of it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import attrs
import pytest

from equipoise.cli.lead import configuration
from equipoise.kafka.embedded_protocol import TopicPartition
from equipoise.lead.broker_seat.broker_plan import MARK, read_plan, write_plan
from equipoise.lead.broker_seat.broker_seat import CONSUMER, TOGETHER, decide
from equipoise.lead.broker_seat.described_group import DescribedConsumer, DescribedConsumers, described, plan_for, subscriptions
from equipoise.lead.broker_seat.extra_member import TopicsAsked
from equipoise.lead.seat.generation import SeatSettings
from equipoise.lead.seat.log import SeatLog
from equipoise.lead.seat.metadata import SeatTopicMetadata
from equipoise.lead.seat.names import is_static
from equipoise.log import open_log
from equipoise.replay.verification import Verdict, verify
from tests.support.assignor_model import BrokerMember, BrokerTopic, assign

SEAT = "seat"


def consumer(name: str, *partitions: int, topics: tuple[str, ...] = ("in",), topic: str = "in", pattern: str = "") -> DescribedConsumer:
    held = frozenset((topic, number) for number in partitions)
    return DescribedConsumer(member_id=f"id-{name}", instance_id=None, client_id=name, rack="", topics=topics, pattern=pattern, target=held, has=held)


class Simulated:
    """A group whose broker has the assignor, as its model."""

    def __init__(self, log: SeatLog, counts: dict[str, int], *consumers: DescribedConsumer, hold_ms: int = 0, protocol: str = CONSUMER) -> None:
        self.log, self.protocol = log, protocol
        self.settings = SeatSettings(hold_ms=hold_ms)
        self.counts = counts
        self.ids = {topic: hashlib.sha256(topic.encode()).digest()[:16] for topic in counts}
        self.rack = f"{MARK}1"
        self.epoch = 0
        self.consumers = consumers

    def members_changed(self, *consumers: DescribedConsumer) -> None:
        """The broker assigns, before equipoise knows of it."""
        self.consumers, self.epoch = consumers, self.epoch + 1
        self.broker_assigns()

    def broker_assigns(self) -> None:
        read = subscriptions(self.consumers, self.counts)
        members = [
            BrokerMember(member_id=each.member_id, topics={self.ids[name] for name in read[each.member_id]}, held=self.by_topic(each.target))
            for each in self.consumers
        ]
        topics = {self.ids[topic]: BrokerTopic(partitions=count) for topic, count in self.counts.items()}
        assigned = assign([*members, BrokerMember(member_id=SEAT, rack=self.rack)], topics)
        name_of = {topic_id: topic for topic, topic_id in self.ids.items()}
        self.consumers = tuple(
            attrs.evolve(each, target=frozenset((name_of[topic], n) for topic, of in assigned[each.member_id].items() for n in of))
            for each in self.consumers
        )

    def by_topic(self, places: frozenset[TopicPartition]) -> dict[bytes, set[int]]:
        found: dict[bytes, set[int]] = {}
        for topic, number in places:
            found.setdefault(self.ids[topic], set()).add(number)
        return found

    def decided(self) -> int:
        """One decision, carried out; returns how many partitions moved. What was wanted is so."""
        group = DescribedConsumers(epoch=self.epoch, assigned_epoch=self.epoch, assignor="equipoise", consumers=self.consumers, carriers=())
        read = subscriptions(self.consumers, self.counts)
        asked = TopicsAsked(metadata=SeatTopicMetadata(counts=self.counts, racks={}), ids=self.ids)
        decided = decide(self.log, self.settings, group, asked, read, protocol=self.protocol, lags={}, before=[])
        holds, together = self.settings.hold_ms > 0, self.protocol == TOGETHER
        plan = plan_for(group, decided.wanted, self.ids, asked.metadata, read, number=self.epoch, holds=holds, together=together)
        self.rack = write_plan(plan)
        assert read_plan(self.rack) == plan
        self.broker_assigns()
        now = attrs.evolve(group, consumers=self.consumers).targets()
        assert now == decided.wanted
        return decided.moves

    def counts_of(self) -> dict[str, int]:
        return {each.client_id: len(each.target) for each in self.consumers}

    def named(self, name: str) -> DescribedConsumer:
        return next(each for each in self.consumers if each.client_id == name)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SeatLog]:
    with SeatLog(tmp_path / "group.db", "orders") as log:
        log.configure(configuration(()))
        yield log
    with open_log(tmp_path / "group.db") as stored:
        assert verify(stored.read()).verdict is Verdict.IDENTICAL


def test_group_that_is_balanced_is_left_as_it_is(log: SeatLog) -> None:
    group = Simulated(log, {"in": 4}, consumer("a", 0, 3), consumer("b", 1, 2))
    assert group.decided() == 0
    assert group.named("a").target == {("in", 0), ("in", 3)}


def test_joiner_gets_its_share_by_the_fewest_moves(log: SeatLog) -> None:
    group = Simulated(log, {"in": 6}, consumer("a", 0, 1, 2), consumer("b", 3, 4, 5))
    group.decided()
    group.members_changed(*group.consumers, consumer("c"))
    assert group.counts_of() == {"a": 3, "b": 3, "c": 0}, "without a plan it waits"
    assert group.decided() == 2
    assert group.counts_of() == {"a": 2, "b": 2, "c": 2}


def test_partitions_of_a_member_that_left_are_read_before_equipoise_knows(log: SeatLog) -> None:
    group = Simulated(log, {"in": 6}, consumer("a", 0, 1), consumer("b", 2, 3), consumer("c", 4, 5))
    group.decided()
    group.members_changed(group.named("a"), group.named("b"))
    assert group.counts_of() == {"a": 3, "b": 3}
    assert group.decided() == 0


def test_held_partitions_are_with_nobody_until_their_member_is_back(log: SeatLog) -> None:
    group = Simulated(log, {"in": 6}, consumer("a", 0, 1), consumer("b", 2, 3), consumer("c", 4, 5), hold_ms=60_000)
    group.decided()
    group.members_changed(group.named("a"), group.named("b"))
    assert group.counts_of() == {"a": 2, "b": 2}
    assert group.decided() == 0
    back = attrs.evolve(consumer("c"), member_id="id-c-again")
    group.members_changed(group.named("a"), group.named("b"), back)
    assert group.decided() == 2
    assert group.named("c").target == {("in", 4), ("in", 5)}


def test_topics_of_range_go_together(log: SeatLog) -> None:
    both = ("in", "out")
    members = (consumer("a", topics=both), consumer("b", topics=both), consumer("c", topics=both))
    group = Simulated(log, {"in": 6, "out": 6}, *members, protocol=TOGETHER)
    group.decided()
    for each in group.consumers:
        assert {number for topic, number in each.target if topic == "in"} == {number for topic, number in each.target if topic == "out"}


@pytest.mark.parametrize("seed", range(10))
def test_plans_of_changing_groups_make_what_was_decided(log: SeatLog, seed: int) -> None:
    rng = Random(seed)
    counts = {"in": 7, "out": 4, "more": 1}
    group = Simulated(log, counts, hold_ms=rng.choice((0, 60_000)))
    for _ in range(12):
        names = rng.sample("abcde", rng.randint(0, 5))
        known = {each.client_id: each for each in group.consumers}
        fresh = [consumer(name, topics=tuple(sorted(rng.sample(list(counts), rng.randint(1, 3))))) for name in names]
        group.members_changed(*(known.get(each.client_id, each) for each in fresh))
        if rng.random() < 0.2:
            counts["in"] += 1
        group.decided()


def test_description_is_read() -> None:
    nothing: dict[str, Any] = {"topic_partitions": []}
    member: dict[str, Any] = {
        "member_id": "m",
        "instance_id": None,
        "rack_id": None,
        "member_epoch": 3,
        "client_id": "app",
        "client_host": "/127.0.0.1",
        "subscribed_topic_names": ["out", "in"],
        "subscribed_topic_regex": None,
        "assignment": nothing,
        "target_assignment": {"topic_partitions": [{"topic_id": bytes(16), "topic_name": "in", "partitions": [2, 0]}]},
    }
    found = described(
        {
            "group_epoch": 7,
            "assignment_epoch": 6,
            "assignor": "uniform",
            "members": [member, {**member, "member_id": "s", "rack_id": "equipoise/1;x", "target_assignment": nothing}],
        }
    )
    assert (found.epoch, found.assigned_epoch, found.assignor) == (7, 6, "uniform")
    assert found.targets() == {("in", 0): "m", ("in", 2): "m"}
    assert found.consumers[0].topics == ("in", "out")
    assert [each.member_id for each in found.carriers] == ["s"]


def test_pattern_is_resolved_and_a_strange_one_is_not() -> None:
    members = [consumer("a", topics=(), pattern="or.*"), consumer("b", 1, topics=(), pattern="(?<x")]
    assert subscriptions(members, {"orders", "in", "more-orders"}) == {"id-a": ("orders",), "id-b": ("in",)}


def test_member_without_an_instance_id_is_not_static() -> None:
    assert not is_static(consumer("a").client().key)
    assert is_static(attrs.evolve(consumer("a"), instance_id="i-1").client().key)
    assert attrs.evolve(consumer("a"), instance_id="i-1").client().base == "i-1"


def test_partitions_that_are_new_to_the_seat_stay_where_the_broker_has_put_them(tmp_path: Path) -> None:
    with SeatLog(tmp_path / "seat.db", "g") as log:
        log.configure(configuration(()))
        group = Simulated(log, {"in": 4}, consumer("a", 0, 1), consumer("b", 2, 3))
        assert group.decided() == 0
        group.counts = {"in": 12}
        group.members_changed(*group.consumers)
        described = DescribedConsumers(epoch=2, assigned_epoch=2, assignor="equipoise", consumers=group.consumers, carriers=())
        assert len(described.targets()) == 12
        old, wanted = SeatTopicMetadata(counts={"in": 4}, racks={}), {place: to for place, to in described.targets().items() if place[1] < 4}
        plan = plan_for(described, wanted, group.ids, old, subscriptions(group.consumers, {"in"}), number=2, holds=False, together=False)
        assert plan.entries == (), "none of them is held back"
        assert group.decided() == 0
