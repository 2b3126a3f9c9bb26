"""explain for a task that moved for its racks: its cost before and after, and the costs on other
members.
"""

from __future__ import annotations

import attrs
import pytest

from equipoise.events.facts import (
    Fact,
    GroupConfigured,
    LagReported,
    MemberJoined,
    PartitionsObserved,
    Subtopology,
    TaskReady,
    TasksRevoked,
    TopologyDeclared,
)
from equipoise.events.records import Entry
from equipoise.events.tasks import LagSentinel
from equipoise.replay.explanation import Explanation, explain
from tests.unit.replay.lived import START_MS, configured, decided, task

EACH_MS = 1_000
TASKS = (task("0_0"), task("0_1"))


def log(strategy: str) -> list[Entry]:
    """m1 (rack a) runs both tasks; m2 (rack b) joins and takes over the task whose two partitions
    are in b.
    """
    config = configured(initial_delay_ms=0)
    aware: GroupConfigured = attrs.evolve(config, knobs=attrs.evolve(config.knobs, rack_aware_strategy=strategy))
    part = Subtopology(subtopology=0, partitions=2, stateful=True, source_topics=("orders", "users"), changelog_topics=("store",))
    facts: list[Fact] = [
        aware,
        TopologyDeclared(epoch=0, subtopologies=(part,)),
        PartitionsObserved(
            end_offsets={"store": {0: 5_000, 1: 5_000}}, racks={"orders": {0: ("b",), 1: ("a",)}, "users": {0: ("b", "c"), 1: ("a", "b")}}
        ),
        MemberJoined(member_id="m1", incarnation=1, rack="a", join_nonce="1"),
        LagReported("m1", 1, 1, 1, held=TASKS, lags=dict.fromkeys(TASKS, LagSentinel.ACTIVE)),
        MemberJoined(member_id="m2", incarnation=1, rack="b", join_nonce="2"),
        TaskReady(member_id="m2", incarnation=1, assignment_epoch=1, tasks=TASKS[:1]),
        TasksRevoked(member_id="m1", incarnation=1, assignment_epoch=2, tasks=TASKS[:1]),
    ]
    return decided(*((START_MS + number * EACH_MS, fact) for number, fact in enumerate(facts)))


@pytest.fixture(scope="module")
def moved() -> Explanation:
    return explain(log("min_cost"), TASKS[0])


def test_explain_owner_says_cost_before_and_now(moved: Explanation):
    assert moved.row.owner == "m2"
    said = " ".join(moved.why_here)
    assert "m2 is nearer to what it reads than m1" in said
    assert "Its traffic then: 0 on m2 (rack b), 20 on m1 (rack a); the least there was is 0" in said
    assert "rack_traffic_cost = 10, rack_non_overlap_cost = 1" in said


def test_explain_candidate_has_rack_and_cost(moved: Explanation):
    assert [(each.member_id, each.rack, each.traffic_cost) for each in moved.candidates] == [("m1", "a", 20), ("m2", "b", 0)]
    assert [each["traffic_cost"] for each in moved.document()["candidates"]] == [20, 0]


def test_explain_without_rack_awareness_names_no_racks():
    told = explain(log("none"), TASKS[0])
    assert "traffic" not in " ".join(told.why_here)
    assert {each.traffic_cost for each in told.candidates} == {None}
