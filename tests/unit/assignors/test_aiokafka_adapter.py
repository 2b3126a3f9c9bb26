"""The strategy for aiokafka without a broker: what members say of themselves, whose word counts, and that it deals as `lag_aware` does.

On a real broker: tests/live/test_aiokafka_assignor.py.
"""

from __future__ import annotations

import json

from aiokafka.cluster import ClusterMetadata
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from aiokafka.protocol.metadata import MetadataResponse_v0

from assignors.adapters.aiokafka import LagAwareAssignor, LagFetcher, Lags, deal
from assignors.lag_aware import DEAL_ANEW
from events.knobs import Knobs
from tests import vectors

KNOBS = Knobs(options={DEAL_ANEW: True})


class Known(LagFetcher):
    """Lags that are known already."""

    def __init__(self, lags: Lags) -> None:
        super().__init__(group_id="g", connection="nowhere:9092")
        self.lags = lags

    def fetch_now(self, partitions: object) -> Lags:
        return self.lags


def strategy(lags: Lags | None = None) -> LagAwareAssignor:
    return LagAwareAssignor(group_id="g", connection="nowhere:9092", fetcher=Known(lags or {}))


def cluster(**topics: int) -> ClusterMetadata:
    """Topics and how many partitions they have."""
    known = ClusterMetadata()
    listed = [(0, topic, [(0, number, 0, [0], [0]) for number in range(count)]) for topic, count in topics.items()]
    known.update_metadata(MetadataResponse_v0([(0, "127.0.0.1", 9092)], listed))
    return known


def said(*topics: str, user_data: bytes = b"", **owned: list[int]) -> ConsumerProtocolMemberMetadata:
    return ConsumerProtocolMemberMetadata(1, list(topics), user_data or json.dumps({"owned": owned}).encode())


def assigned(answer: dict[str, ConsumerProtocolMemberAssignment]) -> dict[str, list[str]]:
    """Read back from the bytes that go over the wire."""
    decoded = {name: ConsumerProtocolMemberAssignment.decode(part.encode()) for name, part in answer.items()}
    return {name: [f"{at.topic}-{at.partition}" for at in part.partitions()] for name, part in decoded.items()}


def test_recorded_answers_come_out_the_same():
    for vector in vectors.vectors(vectors.FOLDER / "lag.jsonl.gz"):
        lags = {(topic, number): lag for topic, of_topic in vector["in"]["lags"].items() for number, lag in enumerate(of_topic)}
        dealt = deal(vector["in"]["subs"], lags, lags, {}, KNOBS)
        answer = {name: sorted(f"{topic}-{number}" for topic, numbers in of.items() for number in numbers) for name, of in dealt.items()}
        assert answer == {name: sorted(of) for name, of in vector["out"].items()}


def test_a_member_says_what_it_had():
    mine = strategy()
    assert json.loads(mine.metadata(["b", "a"]).user_data) == {"owned": {}}
    mine.on_assignment(ConsumerProtocolMemberAssignment(1, [("b", [2, 0]), ("a", [1])], b""))
    again = ConsumerProtocolMemberMetadata.decode(mine.metadata({"b", "a"}).encode())
    assert again.subscription == ["a", "b"]
    assert json.loads(again.user_data) == {"owned": {"a": [1], "b": [0, 2]}}


def test_every_round_deals_by_lag_and_members_keep_what_they_can():
    lags = {("t", 0): 100, ("t", 1): 60, ("t", 2): 50}
    members = {"c1": said("t", t=[1, 2]), "c2": said("t", t=[0])}
    assert assigned(strategy(lags).assign(cluster(t=3), members)) == {"c1": ["t-1", "t-2"], "c2": ["t-0"]}
    others = {"c1": said("t", t=[0, 1]), "c2": said("t", t=[2])}
    moved = assigned(strategy(lags).assign(cluster(t=3), others))
    assert sorted(map(sorted, moved.values())) == [["t-0"], ["t-1", "t-2"]], "even as it was, and dealt by lag all the same"
    without = {"c1": said("t", t=[0, 1, 2]), "c2": said("t"), "c3": said("t")}
    assert assigned(strategy().assign(cluster(t=3), without))["c1"] in (["t-0"], ["t-1"], ["t-2"])


def test_what_two_claim_or_nobody_can_read_is_nobodys():
    claims = {"c1": said("t", t=[0, 1]), "c2": said("t", t=[0, 1])}
    assert assigned(strategy().assign(cluster(t=2), claims)) == {"c1": ["t-0"], "c2": ["t-1"]}
    for unreadable in (b"\xff", b"[]", b'{"owned":{"t":5}}', b'{"owned":{"t":["x"]}}'):
        members = {"c1": said("t", user_data=unreadable), "c2": said("t", t=[0, 9])}
        assert assigned(strategy().assign(cluster(t=2), members)) == {"c1": ["t-1"], "c2": ["t-0"]}


def test_topics_that_the_cluster_does_not_know_are_left_out():
    members = {"c1": said("t", "gone"), "c2": said("gone")}
    assert assigned(strategy().assign(cluster(t=2), members)) == {"c1": ["t-0", "t-1"], "c2": []}
