"""The strategies for aiokafka without a broker: what members say of themselves, whose word counts,
and that they deal as their assignors do. Groups with stock members: `test_aiokafka_in_place.py`.

On a real broker: tests/live/test_aiokafka_assignor.py.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from aiokafka.cluster import ClusterMetadata
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from aiokafka.protocol.metadata import MetadataResponse_v0, MetadataResponse_v1

from equipoise.aiokafka import BalancedAssignor, LagAwareAssignor, LagFetcher, LoadBalancedAssignor, PartitionLags
from equipoise.aiokafka.group_dealing import Subscriber, deal
from equipoise.events.errors import InputError
from equipoise.events.settings import GroupSettings
from equipoise.kafka.embedded_protocol import read_subscription
from tests import vectors


class Known(LagFetcher):
    """PartitionLags that are known already."""

    def __init__(self, lags: PartitionLags) -> None:
        super().__init__(group_id="g", connection="nowhere:9092")
        self.lags = lags

    def fetch_now(self, partitions: object) -> PartitionLags:
        return self.lags


def strategy(lags: PartitionLags | None = None, **settings: Any) -> LagAwareAssignor:
    return LagAwareAssignor(group_id="g", connection="nowhere:9092", fetcher=Known(lags or {}), **settings)


def racked(topic: str, *racks: str) -> ClusterMetadata:
    """A topic with one replica of each partition, in this rack."""
    brokers = [(number, "127.0.0.1", 9092 + number, rack) for number, rack in enumerate(sorted(set(racks)))]
    node = {rack: number for number, _, _, rack in brokers}
    known = ClusterMetadata()
    listed = [(0, topic, False, [(0, number, node[rack], [node[rack]], [node[rack]]) for number, rack in enumerate(racks)])]
    known.update_metadata(MetadataResponse_v1(brokers, 0, listed))
    return known


def cluster(**topics: int) -> ClusterMetadata:
    """Topics and how many partitions they have."""
    known = ClusterMetadata()
    listed = [(0, topic, [(0, number, 0, [0], [0]) for number in range(count)]) for topic, count in topics.items()]
    known.update_metadata(MetadataResponse_v0([(0, "127.0.0.1", 9092)], listed))
    return known


def said(*topics: str, user_data: bytes = b"", rack: str | None = None, **owned: list[int]) -> ConsumerProtocolMemberMetadata:
    return ConsumerProtocolMemberMetadata(1, list(topics), user_data or json.dumps({"owned": owned, "rack": rack}).encode())


def assigned(answer: dict[str, ConsumerProtocolMemberAssignment]) -> dict[str, list[str]]:
    """Read back from the bytes that go over the wire."""
    decoded = {name: ConsumerProtocolMemberAssignment.decode(part.encode()) for name, part in answer.items()}
    return {name: [f"{at.topic}-{at.partition}" for at in part.partitions()] for name, part in decoded.items()}


def test_deal_recorded_answers():
    for vector in vectors.vectors(vectors.FOLDER / "lag.jsonl.gz"):
        lags = {(topic, number): lag for topic, of_topic in vector["in"]["lags"].items() for number, lag in enumerate(of_topic)}
        subscribers = {name: Subscriber(topics=tuple(topics)) for name, topics in vector["in"]["subs"].items()}
        dealt = deal(subscribers, lags, {}, GroupSettings(), lags=lags)
        answer = {name: sorted(f"{topic}-{number}" for topic, numbers in of.items() for number in numbers) for name, of in dealt.items()}
        assert answer == {name: sorted(of) for name, of in vector["out"].items()}


def test_metadata_has_owned():
    mine = strategy()
    assert json.loads(mine.metadata(["b", "a"]).user_data) == {"capacity": 1, "deal": -1, "owned": {}, "rack": None}
    mine.on_assignment(ConsumerProtocolMemberAssignment(1, [("b", [2, 0]), ("a", [1])], b""))
    again = ConsumerProtocolMemberMetadata.decode(mine.metadata({"b", "a"}).encode())
    assert again.subscription == ["a", "b"]
    assert json.loads(again.user_data) == {"capacity": 1, "deal": 0, "owned": {"a": [1], "b": [0, 2]}, "rack": None}


def test_assign_follows_lags_and_keeps_owned_partitions():
    lags = {("t", 0): 100, ("t", 1): 60, ("t", 2): 50}
    members = {"c1": said("t", t=[1, 2]), "c2": said("t", t=[0])}
    assert assigned(strategy(lags).assign(cluster(t=3), members)) == {"c1": ["t-1", "t-2"], "c2": ["t-0"]}
    others = {"c1": said("t", t=[0, 1]), "c2": said("t", t=[2])}
    moved = assigned(strategy(lags).assign(cluster(t=3), others))
    assert sorted(map(sorted, moved.values())) == [["t-0"], ["t-1", "t-2"]], "even as it was, and dealt by lag all the same"
    without = {"c1": said("t", t=[0, 1, 2]), "c2": said("t"), "c3": said("t")}
    assert assigned(strategy().assign(cluster(t=3), without))["c1"] in (["t-0"], ["t-1"], ["t-2"])


def test_owned_partitions_claimed_twice_or_unreadable_have_no_owner():
    claims = {"c1": said("t", t=[0, 1]), "c2": said("t", t=[0, 1])}
    assert assigned(strategy().assign(cluster(t=2), claims)) == {"c1": ["t-0"], "c2": ["t-1"]}
    for unreadable in (b"\xff", b"[]", b'{"owned":{"t":5}}', b'{"owned":{"t":["x"]}}'):
        members = {"c1": said("t", user_data=unreadable), "c2": said("t", t=[0, 9])}
        assert assigned(strategy().assign(cluster(t=2), members)) == {"c1": ["t-1"], "c2": ["t-0"]}


def test_topics_that_the_cluster_does_not_know_are_left_out():
    members = {"c1": said("t", "gone"), "c2": said("gone")}
    assert assigned(strategy().assign(cluster(t=2), members)) == {"c1": ["t-0", "t-1"], "c2": []}


def test_assign_equal_lags_prefers_racks_of_replicas():
    there = racked("t", "b", "a", "b", "a")
    members = {"c1": said("t", rack="a"), "c2": said("t", rack="b")}
    assert assigned(strategy().assign(there, members)) == {"c1": ["t-1", "t-3"], "c2": ["t-0", "t-2"]}
    lags = {("t", 0): 105, ("t", 1): 100, ("t", 2): 50, ("t", 3): 55}
    assert assigned(strategy(lags, rack_lag_tolerance=10).assign(there, members)) == {"c1": ["t-1", "t-3"], "c2": ["t-0", "t-2"]}
    by_lag = assigned(strategy(lags).assign(there, members))
    assert by_lag in ({"c1": ["t-0", "t-2"], "c2": ["t-1", "t-3"]}, {"c1": ["t-1", "t-3"], "c2": ["t-0", "t-2"]})


def test_lag_counts_before_racks():
    lags = {("t", 0): 100, ("t", 1): 60, ("t", 2): 50}
    members = {"c1": said("t", rack="a"), "c2": said("t", rack="b")}
    dealt = assigned(strategy(lags).assign(racked("t", "a", "a", "b"), members))
    assert sorted(dealt.values()) == [["t-0"], ["t-1", "t-2"]]


def test_members_without_rack_or_of_older_versions_are_assigned_alike():
    old = ConsumerProtocolMemberMetadata(1, ["t"], json.dumps({"owned": {"t": [0]}}).encode())
    for other in (old, said("t", user_data=b'{"owned":{"t":[0]},"rack":5}')):
        members = {"c1": other, "c2": said("t", rack="b"), "c3": said("t", rack="a")}
        assert assigned(strategy().assign(racked("t", "c", "a", "b"), members)) == {"c1": ["t-0"], "c2": ["t-2"], "c3": ["t-1"]}


def test_metadata_has_the_rack():
    said = strategy(rack="a").metadata(["t"])
    assert json.loads(said.user_data)["rack"] == "a"
    assert read_subscription(said.encode()).rack == "a", "as version 3 of the subscription says it"
    assert ConsumerProtocolMemberMetadata.decode(said.encode()).subscription == ["t"], "as aiokafka reads it"


def counts(dealt: dict[str, list[str]]) -> dict[str, int]:
    return {name: len(places) for name, places in dealt.items()}


def test_balanced_shares_all_topics_and_moves_the_fewest():
    members = {"c1": said("t", "u", t=[0, 1, 2, 3], u=[0]), "c2": said("t", "u", u=[1, 2, 3]), "c3": said("t", "u")}
    dealt = assigned(BalancedAssignor().assign(cluster(t=4, u=5), members))
    assert counts(dealt) == {"c1": 3, "c2": 3, "c3": 3}
    assert set(dealt["c2"]) == {"u-1", "u-2", "u-3"}
    assert set(dealt["c1"]) < {"t-0", "t-1", "t-2", "t-3", "u-0"}, "two of five go"


def test_balanced_keeps_to_subscriptions_and_capacity():
    members = {"c1": said("t", user_data=b'{"capacity":2,"owned":{"u":[0,1]}}'), "c2": said("t", "u")}
    dealt = assigned(BalancedAssignor().assign(cluster(t=4, u=2), members))
    assert counts(dealt) == {"c1": 4, "c2": 2}
    assert dealt["c2"] == ["u-0", "u-1"], "whatever a member had that has ended its subscription"
    for nonsense in (0, -1, 2.5, True, "9", 10**9):
        of_one = {"c1": said("t", user_data=json.dumps({"capacity": nonsense}).encode()), "c2": said("t")}
        assert counts(assigned(BalancedAssignor().assign(cluster(t=4), of_one))) == {"c1": 2, "c2": 2}
    with pytest.raises(InputError, match="capacity: 0"):
        BalancedAssignor(capacity=0)


def test_balanced_equal_deals_prefers_racks_of_replicas():
    members = {"c1": said("t", rack="a"), "c2": said("t", rack="b")}
    assert assigned(BalancedAssignor().assign(racked("t", "b", "a", "b", "a"), members)) == {"c1": ["t-1", "t-3"], "c2": ["t-0", "t-2"]}


def test_newest_claim_counts_of_several():
    claims = {
        "c1": said("t", user_data=b'{"deal":3,"owned":{"t":[0,1]}}'),
        "c2": said("t", user_data=b'{"deal":2,"owned":{"t":[0,1,2,3]}}'),
    }
    assert assigned(BalancedAssignor().assign(cluster(t=4), claims)) == {"c1": ["t-0", "t-1"], "c2": ["t-2", "t-3"]}


def loaded(loads: PartitionLags) -> LoadBalancedAssignor:
    return LoadBalancedAssignor(group_id="g", connection="nowhere:9092", fetcher=Known(loads))


def test_load_balanced_deals_by_load_and_moves_only_what_pays():
    loads = {("t", 0): 900, ("t", 1): 300, ("t", 2): 300, ("t", 3): 300}
    fresh = {"c1": said("t"), "c2": said("t")}
    assert sorted(assigned(loaded(loads).assign(cluster(t=4), fresh).copy()).values()) == [["t-0"], ["t-1", "t-2", "t-3"]]
    even_enough = {"c1": said("t", t=[0, 1]), "c2": said("t", t=[2, 3])}
    close = {("t", 0): 310, ("t", 1): 300, ("t", 2): 290, ("t", 3): 300}
    assert assigned(loaded(close).assign(cluster(t=4), even_enough)) == {"c1": ["t-0", "t-1"], "c2": ["t-2", "t-3"]}
    assert counts(assigned(loaded({}).assign(cluster(t=4), fresh))) == {"c1": 2, "c2": 2}, "without loads by count"
