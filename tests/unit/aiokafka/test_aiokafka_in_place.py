"""Groups in which members with a strategy of equipoise and with a stock one of aiokafka are
together: whichever leads, each partition has one member, and what nobody needs to move stays.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from aiokafka.cluster import ClusterMetadata
from aiokafka.coordinator.assignors.abstract import AbstractPartitionAssignor
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from aiokafka.protocol.metadata import MetadataResponse_v0

from equipoise.aiokafka import BalancedAssignor, LagAwareAssignor, LagFetcher, LoadBalancedAssignor, PartitionLags
from equipoise.events.errors import InputError

STOCK: dict[str, Any] = {"range": RangePartitionAssignor, "roundrobin": RoundRobinPartitionAssignor, "sticky": StickyPartitionAssignor}
TOPICS = {"t": 6, "u": 6, "v": 5}
ALL = {(topic, number) for topic, count in TOPICS.items() for number in range(count)}


class NoLags(LagFetcher):
    """Lags of 0."""

    def __init__(self) -> None:
        super().__init__(group_id="g", connection="nowhere:9092")

    def fetch_now(self, partitions: object) -> PartitionLags:
        return {}


def ours(kind: type[BalancedAssignor], stock: str) -> BalancedAssignor:
    strategy = kind.in_place_of(stock)
    return strategy() if kind is BalancedAssignor else strategy(group_id="g", connection="nowhere:9092", fetcher=NoLags())  # type: ignore[call-arg]


def stock(name: str) -> AbstractPartitionAssignor:
    """Its own class for each member, because the stock strategy `sticky` keeps what it has there."""
    return type("Stock", (STOCK[name],), {})()


def cluster(topics: Mapping[str, int] = TOPICS) -> ClusterMetadata:
    known = ClusterMetadata()
    listed = [(0, topic, [(0, number, 0, [0], [0]) for number in range(count)]) for topic, count in topics.items()]
    known.update_metadata(MetadataResponse_v0([(0, "127.0.0.1", 9092)], listed))
    return known


class Members:
    """A group: member -> its strategy, and what each has."""

    def __init__(self, **strategies: AbstractPartitionAssignor) -> None:
        self.strategies = strategies
        self.topics = dict.fromkeys(strategies, tuple(TOPICS))
        self.has: dict[str, set[tuple[str, int]]] = {}

    def join(self, name: str, strategy: AbstractPartitionAssignor, topics: Iterable[str] = TOPICS) -> None:
        self.strategies[name] = strategy
        self.topics[name] = tuple(topics)

    def generation(self, leader: str) -> int:
        """One generation, through the bytes on the wire. Returns how many partitions move between
        members that were there before.
        """
        assert len({each.name for each in self.strategies.values()}) == 1, "one protocol"
        said = {name: ConsumerProtocolMemberMetadata.decode(each.metadata(set(self.topics[name])).encode()) for name, each in self.strategies.items()}
        dealt = self.strategies[leader].assign(cluster(), said)
        had, self.has = self.has, {}
        for name, each in self.strategies.items():
            part = ConsumerProtocolMemberAssignment.decode(dealt[name].encode())
            each.on_assignment(part)
            self.has[name] = {(at.topic, at.partition) for at in part.partitions()}
        places = list(itertools.chain.from_iterable(self.has.values()))
        subscribed = {topic for name in self.strategies for topic in self.topics[name]}
        assert sorted(places) == sorted(place for place in ALL if place[0] in subscribed), "each has one member"
        before = {place: name for name, of in had.items() for place in of}
        staying = {place: name for place, name in before.items() if name in self.has}
        return sum(staying.get(place, name) != name for name, of in self.has.items() if name in had for place in of)


@pytest.mark.parametrize("kind", [BalancedAssignor, LagAwareAssignor, LoadBalancedAssignor])
@pytest.mark.parametrize("name", STOCK)
def test_upgrade_and_back_one_by_one_whoever_leads(kind: type[BalancedAssignor], name: str) -> None:
    for seed in range(10):
        dice = random.Random(seed)
        group = Members(**{f"m{number}": stock(name) for number in range(3)})
        group.generation("m0")
        for made in (lambda: ours(kind, name), lambda: stock(name)):
            for number in dice.sample(range(3), 3):
                del group.strategies[f"m{number}"]
                group.generation(dice.choice(sorted(group.strategies)))
                group.join(f"m{number}", made())
                group.generation(dice.choice(sorted(group.strategies)))


@pytest.mark.parametrize("name", ["range", "roundrobin", "sticky"])
def test_whoever_leads_with_ours_keeps_what_members_have(name: str) -> None:
    group = Members(m0=ours(BalancedAssignor, name), m1=ours(BalancedAssignor, name), m2=ours(BalancedAssignor, name))
    group.generation("m0")
    assert group.generation("m1") == group.generation("m2") == 0
    group.join("m3", ours(BalancedAssignor, name))
    assert group.generation("m1") == 0, "all that moves goes to the new one"
    assert 3 <= len(group.has["m3"]) <= 5 + (name == "range")
    del group.strategies["m3"]
    assert group.generation("m2") == 0


def test_leader_knows_what_it_dealt_to_stock_members() -> None:
    """A stock member of `roundrobin` does not say what it has."""
    group = Members(m0=ours(BalancedAssignor, "roundrobin"), m1=stock("roundrobin"), m2=stock("roundrobin"))
    group.generation("m0")
    group.join("m3", stock("roundrobin"))
    assert group.generation("m0") == 0
    del group.strategies["m3"]
    assert group.generation("m0") == 0


def test_sticky_members_of_both_kinds_know_what_the_others_have() -> None:
    group = Members(m0=ours(BalancedAssignor, "sticky"), m1=stock("sticky"), m2=ours(BalancedAssignor, "sticky"))
    group.generation("m0")
    assert group.generation("m1") == 0, "the stock leader reads what ours has"
    assert group.generation("m2") == 0, "and ours what the stock member has"


def test_in_place_of_range_keeps_equal_partition_numbers_together() -> None:
    group = Members(m0=ours(BalancedAssignor, "range"), m1=stock("range"), m2=ours(BalancedAssignor, "range"))
    group.generation("m0")
    owner = {place: name for name, places in group.has.items() for place in places}
    assert all(owner["t", number] == owner["u", number] for number in range(6)), "six partitions each"


def test_members_of_different_topics_get_their_own() -> None:
    group = Members(m0=ours(BalancedAssignor, "range"), m1=stock("range"))
    group.topics["m1"] = ("t",)
    group.generation("m0")
    assert {topic for topic, _ in group.has["m1"]} == {"t"}


def test_in_place_of_takes_names_and_classes() -> None:
    named, of_class = BalancedAssignor.in_place_of("range"), BalancedAssignor.in_place_of(RangePartitionAssignor)
    assert named is of_class
    assert issubclass(named, BalancedAssignor)
    assert (named.name, BalancedAssignor.name) == ("range", "equipoise-balanced")
    assert LagAwareAssignor.in_place_of("range").__name__ == "LagAwareAssignorInPlaceOfRange"
    with pytest.raises(InputError, match="'cooperative-sticky' is not one of range, roundrobin, sticky"):
        BalancedAssignor.in_place_of("cooperative-sticky")


def test_subscriptions_are_of_version_0_as_those_of_stock_members() -> None:
    """A broker and Java's leaders expect more behind user data in version 1."""
    assert BalancedAssignor().metadata(["t"]).encode()[:2] == b"\0\0"
    assert LagAwareAssignor(group_id="g", connection="nowhere:9092").metadata(["t"]).encode()[:2] == b"\0\0"


def test_stock_leaders_read_ours_with_a_rack() -> None:
    racked = BalancedAssignor.in_place_of("sticky")(rack="a")
    group = Members(m0=racked, m1=stock("sticky"))
    group.generation("m1")
    assert group.generation("m1") == 0
