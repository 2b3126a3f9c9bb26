"""What it costs that somebody else begins to deal a group's partitions: counted look by look, and
predicted by simulation.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from equipoise.events.facts import ExpectedCost
from equipoise.replay.prediction.described_cost import DescribedCost
from equipoise.replay.prediction.predict_deal import RUNS, predict_deal
from equipoise.replay.simulation.kafka.consumers import COOPERATIVE, ConsumerSettings

HAS = {f"t-{number}": f"m{number % 3}" for number in range(12)}
MOVED = {**HAS, "t-0": "m1", "t-1": "m2", "t-3": "m1"}
BROKER = ConsumerSettings(session_timeout_ms=45_000, is_broker_led=True, heartbeat_interval_ms=5_000)
EAGER = ConsumerSettings(session_timeout_ms=45_000)


def test_place_counts_while_nobody_has_it_for_a_second_and_more() -> None:
    cost = DescribedCost[str](1_000, {"b": 10})
    cost.look({"a": "m1", "b": "m1"}, 1_000, is_at_rest=False)
    cost.look({"a": "m1"}, 2_000, is_at_rest=True)
    assert cost.rested_ms(9_000) == 0, "nobody has b"
    assert cost.costs(2_500) == {"unavailable_task_ms": 0, "moves": 0, "rest_ms": 1_500}
    assert cost.costs(3_500)["unavailable_task_ms"] == 15_000
    cost.look({"a": "m1", "b": "m2"}, 4_000, is_at_rest=True)
    cost.look({"b": "m2"}, 5_000, is_at_rest=True)
    cost.look({"a": "m1", "b": "m2"}, 5_900, is_at_rest=True)
    assert cost.costs(9_000) == {"unavailable_task_ms": 20_000, "moves": 10, "rest_ms": 4_900}
    assert cost.rested_ms(9_000) == 3_100


def test_place_that_nobody_had_counts_from_its_first_owner_on() -> None:
    cost = DescribedCost[str](0)
    cost.look({}, 0, is_at_rest=True)
    cost.look({"a": "m1"}, 9_000, is_at_rest=True)
    assert cost.costs(9_000) == {"unavailable_task_ms": 0, "moves": 0, "rest_ms": 0}


def by_metric(expected: tuple[ExpectedCost, ...]) -> Mapping[str, ExpectedCost]:
    return {each.metric: each for each in expected}


def test_broker_moves_a_partition_in_the_heartbeats_of_both_members() -> None:
    found = by_metric(predict_deal(HAS, MOVED, BROKER))
    assert (found["moves"].low_95, found["moves"].high_95) == (3, 3)
    assert 0 < found["unavailable_task_ms"].median < found["unavailable_task_ms"].high_95 <= 3 * 5_500
    assert 2_000 < found["rest_ms"].median <= 5_000 * 2 + 1_750
    faster = by_metric(predict_deal(HAS, MOVED, ConsumerSettings(session_timeout_ms=45_000, is_broker_led=True, heartbeat_interval_ms=1_000)))
    assert faster["unavailable_task_ms"].high_95 < found["unavailable_task_ms"].high_95 / 3


@pytest.mark.parametrize("settings", [BROKER, EAGER, ConsumerSettings(session_timeout_ms=45_000, assignor=COOPERATIVE)])
def test_deal_of_before_moves_nothing_and_is_over_when_all_have_answered(settings: ConsumerSettings) -> None:
    found = by_metric(predict_deal(HAS, HAS, settings, idle=["m9"]))
    assert (found["moves"].low_95, found["moves"].high_95) == (0, 0)
    assert 0 < found["rest_ms"].median <= settings.heartbeat_interval_ms + 1_750
    stops_all = settings is EAGER
    assert (found["unavailable_task_ms"].median > 0) is stops_all


def test_members_of_an_eager_group_stop_twice_when_its_leader_is_taken_out() -> None:
    once, twice = (by_metric(predict_deal(HAS, MOVED, EAGER, evicted=evicted)) for evicted in (None, "m0"))
    assert once["moves"] == twice["moves"]
    assert once["moves"].median == 3, "who was taken out has its partitions again"
    assert twice["unavailable_task_ms"].median > once["unavailable_task_ms"].median
    assert once["rest_ms"].median < twice["rest_ms"].median
    assert twice["rest_ms"].high_95 < 15_000, "one that joins while the leader assigns begins one generation more, and not one after the other"


def test_partitions_alike_count_each() -> None:
    many = {f"t-{number}": f"m{number % 2}" for number in range(2_000)}
    found = by_metric(predict_deal(many, dict.fromkeys(many, "m1"), BROKER))
    assert found["moves"].median == 1_000
    assert found["unavailable_task_ms"].high_95 > 1_000 * 1_000


def test_prediction_is_repeatable() -> None:
    assert predict_deal(HAS, MOVED, BROKER) == predict_deal(HAS, MOVED, BROKER)
    assert RUNS >= 40, "of fewer runs the outermost hold less than 95 %"
