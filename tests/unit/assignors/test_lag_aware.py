"""`lag_aware`: the recorded answers of kafka-lag-based-assignor, the KIP's example and lag rules,
subscriptions, `cross_topic`, stickiness.
"""

from __future__ import annotations

import json
import random
from typing import Any

import attrs
import pytest

from equipoise.assignors import AssignmentProblem, Partition, Plan, Task
from equipoise.assignors.common.source_lag import partition_lag
from equipoise.assignors.common.validation import plan_faults
from equipoise.assignors.lag_aware import LagAware
from equipoise.events.errors import InputError
from equipoise.events.tasks import parse_task
from equipoise.testing import AssignorGroup, stateless
from tests import vectors
from tests.support.assign_json import assign_line
from tests.unit.assignors.build import ids, in_flight, member, movements, problem, tasks, text

RECORDED = list(vectors.vectors(vectors.FOLDER / "lag.jsonl.gz"))


def plan(question: AssignmentProblem) -> Plan:
    answer = LagAware().assign(question)
    assert plan_faults(question, answer, LagAware.guarantees) == []
    return answer


def consumers(lags: dict[str, list[int]], subscriptions: dict[str, list[str]], **options: Any) -> dict[str, list[str]]:
    """Consumer -> its partitions in a group without owners."""
    question = vectors.lag_problem({"lags": lags, "subs": subscriptions})
    answer = json.loads(assign_line(json.dumps({**question, "config": {"options": options}})))
    return {name: part["active"] for name, part in answer["members"].items()}


def refused(question: dict[str, Any]) -> str:
    with pytest.raises(InputError) as caught:
        assign_line(json.dumps({"assignor": "lag_aware", **question}))
    return str(caught.value)


# As the Java assignor


def test_recorded_answers():
    assert len(RECORDED) > 150
    assert [vectors.lag_answer(vector["in"]) for vector in RECORDED] == [vector["out"] for vector in RECORDED]


@pytest.mark.parametrize("seed", range(3))
def test_input_order_does_not_matter(seed: int):
    dice = random.Random(seed)
    for vector in RECORDED[seed::3]:
        question = vectors.lag_problem(vector["in"])
        dice.shuffle(question["tasks"])
        dice.shuffle(question["members"])
        answer = json.loads(assign_line(json.dumps(question)))
        assert {name: part["active"] for name, part in answer["members"].items()} == vector["out"]


def test_kip_example():
    lags = {"t0": [100_000, 60_000, 50_000]}
    assert consumers(lags, {"C0": ["t0"], "C1": ["t0"]}) == {"C0": ["t0-0"], "C1": ["t0-1", "t0-2"]}


def test_ties_go_by_utf_16_unit_and_topics_come_in_the_order_of_a_java_map():
    lags = {topic: [1] for topic in ("BB", "Aa", "t3", "t4")}
    everything = list(lags)
    assigned = consumers(lags, {"\ue000": everything, "\U0001f600": everything})
    assert assigned == {"\U0001f600": ["Aa-0", "BB-0", "t4-0", "t3-0"], "\ue000": []}, "three share a bucket; t3's is the last"


@pytest.mark.parametrize(
    ("offsets", "lag"),
    [
        ({"beginning": 10, "end": 100, "committed": 40}, 60),
        ({"beginning": 10, "end": 100, "committed": 100}, 0),
        ({"beginning": 10, "end": 100, "committed": 130}, 0),
        ({"beginning": 10, "end": 100, "committed": None}, 0),
        ({"beginning": 10, "end": 100, "committed": None, "auto_offset_reset": "Latest"}, 0),
        ({"beginning": 10, "end": 100, "committed": None, "auto_offset_reset": "earliest"}, 90),
        ({"beginning": 10, "end": 100, "committed": None, "auto_offset_reset": "none"}, 90),
        ({"beginning": None, "end": 100, "committed": None, "auto_offset_reset": "earliest"}, 100),
        ({"beginning": 10, "end": None, "committed": None, "auto_offset_reset": "earliest"}, 0),
        ({"beginning": None, "end": None, "committed": 7}, 0),
        ({"beginning": 1111, "end": 9999, "committed": 5555}, 4444),
        ({"beginning": 1111, "end": None, "committed": 5555}, 0),
        ({"beginning": 1111, "end": 9999, "committed": None, "auto_offset_reset": "latest"}, 0),
        ({"beginning": 1111, "end": 9999, "committed": None, "auto_offset_reset": "earliest"}, 8888),
    ],
)
def test_partition_lag(offsets: dict[str, Any], lag: int):
    assert partition_lag(**offsets) == lag


def test_cases_of_the_java_assignor():
    lags = {"topic1": [100_000, 100_000, 500, 1], "topic2": [900_000, 100_000]}
    assert consumers(lags, {"m1": ["topic1", "topic2"], "m2": ["topic1"]}) == {
        "m1": ["topic1-0", "topic1-2", "topic2-0", "topic2-1"],
        "m2": ["topic1-1", "topic1-3"],
    }
    idle = consumers({"t": [0] * 7}, {"m1": ["t"], "m2": ["t"]})
    assert sorted(map(len, idle.values())) == [3, 4]
    skewed = consumers({"t": [360, 359, 230, 444, 255, 253, 455_000, 424_000, 7, 40]}, {name: ["t"] for name in ("m1", "m2", "m3")})
    assert sorted(map(len, skewed.values())) == [3, 3, 4]
    assert "t-6" not in max(skewed.values(), key=len), "the most partitions are not with the most lag"


# Subscriptions


def test_topic_goes_only_to_its_subscribers():
    assigned = consumers({"a": [5, 4, 3, 2], "b": [9], "unread": [7]}, {"c1": ["a"], "c2": ["a", "b", "gone"], "c3": ["gone"], "c4": []})
    assert assigned == {"c1": ["a-0", "a-3"], "c2": ["a-1", "a-2", "b-0"], "c3": [], "c4": []}


def test_member_without_topics_subscribes_to_all():
    question = vectors.lag_problem({"lags": {"a": [1], "b": [1]}, "subs": {"c1": ["a"]}})
    question["members"].append({"id": "c2"})
    answer = json.loads(assign_line(json.dumps(question)))
    assert {name: part["active"] for name, part in answer["members"].items()} == {"c1": ["a-0"], "c2": ["b-0"]}


def test_plan_uses_the_problems_task_names():
    question = vectors.lag_problem({"lags": {"a": [4, 3, 2, 1]}, "subs": {"c1": ["a"], "c2": ["a"]}})
    question["members"][0]["active"] = ["a-0", "a-1", "a-2", "a-3"]
    answer = json.loads(assign_line(json.dumps(question)))
    assert answer["members"]["c1"] == {"active": ["a-0", "a-3"], "standby": [], "warmup": [], "revoke": ["a-1", "a-2"]}
    assert answer["target"] == {"c1": ["a-0", "a-3"], "c2": ["a-1", "a-2"]}
    assert answer["movements"][0] == {"task": "a-1", "source": "c1", "destination": "c2", "state": "revoking"}
    assert answer["reasons"]["a-1"] == "its topic is dealt by count, then by lag; it falls to c2"
    assert answer["cost"]["moves"] == answer["cost"]["moves_lower_bound"] == 2


@pytest.mark.parametrize(
    ("tasks_said", "members_said", "problem_said"),
    [
        ([{"id": "a-0", "topic": "a", "partition": 0, "lag": -2}], [], '$.tasks[0].lag: -2 is not a lag; use a number of records >= 0, "active" or'),
        ([{"id": "a-0", "topic": "a", "partition": 0, "lag": "active"}], [], '$.tasks[0].lag: "active" is the lag of a copy'),
        ([{"id": "a-0", "topic": "a", "partition": -1}], [], "$.tasks[0].partition: -1 is not a whole number"),
        ([{"id": "a-0", "topic": "a", "partition": 10**9}], [], "$.tasks[0].partition: 1000000000 is more than"),
        ([{"id": "a-0", "topic": "a", "partition": 0, "stateful": True}], [], "$.tasks[0].stateful: unknown field"),
        ([{"id": "x", "topic": "a", "partition": 0}, {"id": "x", "topic": "a", "partition": 1}], [], "$.tasks[1]: 'x' repeats item [0]"),
        ([{"id": "x", "topic": "a", "partition": 0}, {"id": "y", "topic": "a", "partition": 0}], [], "$.tasks[1]: partition 0 of 'a' is $.tasks[0]"),
        ([{"id": "0_0", "stateful": False}], [{"id": "c", "topics": []}], "$.tasks[0].stateful: unknown field"),
        ([{"id": "a-0", "topic": "a", "partition": 0}], [{"id": "c", "topics": [1]}], "$.members[0].topics[0]: 1 is not a text"),
        ([{"id": "a-0", "topic": "a", "partition": 0}], [{"id": "c", "topics": "a"}], '$.members[0].topics: "a" is not an array'),
        ([{"id": "a-0", "topic": "a", "partition": 0}], [{"id": "c", "subtopologies": {"0": 1}}], "$.members[0].subtopologies: unknown field"),
        ([{"id": "a-0", "topic": "a", "partition": 0}], [{"id": "c", "active": ["0_0"]}], "$.members[0].active[0]: there is no task 0_0 in $.tasks"),
    ],
)
def test_unsound_problem_is_refused_with_its_json_path(tasks_said: list[Any], members_said: list[Any], problem_said: str):
    assert refused({"tasks": tasks_said, "members": members_said}).startswith(problem_said)


def test_unknown_lag_counts_as_zero():
    question = vectors.lag_problem({"lags": {"a": [0, 0, 5]}, "subs": {"c1": ["a"], "c2": ["a"]}})
    question["tasks"][0]["lag"] = "unknown"
    del question["tasks"][1]["lag"]
    answer = json.loads(assign_line(json.dumps(question)))
    assert {name: part["active"] for name, part in answer["members"].items()} == {"c1": ["a-2"], "c2": ["a-0", "a-1"]}


# All topics together


def test_cross_topic_balances_small_topics():
    lags = {f"t{number}": [100 * (10 - number)] for number in range(10)}
    everybody = {"c1": list(lags), "c2": list(lags)}
    assert {name: len(topics) for name, topics in consumers(lags, everybody).items()} == {"c1": 10, "c2": 0}
    together = consumers(lags, everybody, cross_topic=True)
    totals = {name: sum(lags[topic.partition("-")[0]][0] for topic in topics) for name, topics in together.items()}
    assert {name: len(topics) for name, topics in together.items()} == {"c1": 5, "c2": 5}
    assert abs(totals["c1"] - totals["c2"]) <= 1000


def test_topics_with_little_choice_come_first():
    lags = {"all": [9], "one": [1]}
    assert consumers(lags, {"c1": ["all", "one"], "c2": ["all"]}, cross_topic=True) == {"c1": ["one-0"], "c2": ["all-0"]}


MIXED = {"A": [f"t{number}" for number in range(9)], "B": ["t0", "t1", "t2"], "C": [f"t{number}" for number in range(2, 9)]}
"""Subscriptions to nine topics of one partition."""


def dealt(owned: dict[str, list[str]], **options: Any) -> tuple[dict[str, list[str]], bool]:
    """Who has what when a group with these owners rests, and whether that is called optimal."""
    question = vectors.lag_problem({"lags": {f"t{number}": [10 * number] for number in range(9)}, "subs": MIXED})
    for _ in range(9):
        members = [{**each, "active": owned.get(each["id"], [])} for each in question["members"]]
        answer = json.loads(assign_line(json.dumps({**question, "members": members, "config": {"options": options}})))
        target = {name: part["active"] for name, part in answer["members"].items()}
        if target == owned:
            break
        owned = target
    return owned, answer["cost"]["optimal"]


@pytest.mark.parametrize("owned", [{}, {"A": ["t0-0"], "B": ["t1-0"], "C": [f"t{number}-0" for number in range(2, 9)]}])
def test_cross_topic_evens_out_totals_of_different_subscriptions(owned: dict[str, list[str]]):
    even, optimal = dealt(owned, cross_topic=True)
    assert sorted(len(tasks) for tasks in even.values()) == [3, 3, 3]
    assert optimal
    _, optimal = dealt(owned)
    assert not optimal, "each topic is dealt alone"


@pytest.mark.parametrize("value", [1, "yes", 0.5])
def test_cross_topic_is_true_or_false(value: Any):
    question = vectors.lag_problem({"lags": {}, "subs": {}})
    said = refused({**question, "config": {"options": {"cross_topic": value}}})
    assert said == f"$.config.options.cross_topic: {value!r} is neither true nor false"


def test_racks_break_ties_of_counts_and_lags():
    """The KIP's example with a member in each rack: racks decide which member gets which bundle."""
    question: dict[str, Any] = {
        "assignor": "lag_aware",
        "config": {"rack_aware_strategy": "min_cost"},
        "tasks": [
            {"id": f"t0-{number}", "topic": "t0", "partition": number, "lag": lag, "racks": racks, "weight": 1 + number}
            for number, (lag, racks) in enumerate([(100_000, ["b"]), (60_000, ["b"]), (50_000, ["a"])])
        ],
        "members": [{"id": "C0", "rack": "a"}, {"id": "C1", "rack": "b"}],
    }
    plain = json.loads(assign_line(json.dumps({**question, "config": {}})))
    assert {name: part["active"] for name, part in plain["members"].items()} == {"C0": ["t0-0"], "C1": ["t0-1", "t0-2"]}
    answer = json.loads(assign_line(json.dumps(question)))
    assert {name: part["active"] for name, part in answer["members"].items()} == {"C0": ["t0-1", "t0-2"], "C1": ["t0-0"]}
    assert (answer["cost"]["rack_cost"], answer["cost"]["rack_cost_lower_bound"], answer["cost"]["optimal"]) == (2, 2, True)
    assert refused({**question, "tasks": [{**question["tasks"][0], "weight": -1}]}).startswith("$.tasks[0].weight: ")


def crossed(other_lag: int, **options: Any) -> AssignmentProblem:
    """0_0 is remote on m1 and 0_1 on m2, in the other's rack each; 0_2 and 0_3 are where they
    should be. 0_0 has a lag of 5, 0_1 another.
    """
    placed = [("0_0", 5, "b"), ("0_1", other_lag, "a"), ("0_2", 0, "a"), ("0_3", 100, "b")]
    return problem(
        [
            Task(id=parse_task(task), stateful=False, lag=lag, source=(Partition(topic="t", partition=0, racks=(rack,)),))
            for task, lag, rack in placed
        ],
        attrs.evolve(member("m1", "0_0 0_2"), rack="a"),
        attrs.evolve(member("m2", "0_1 0_3"), rack="b"),
        rack_aware_strategy="min_cost",
        options=options,
    )


def test_even_partitions_are_exchanged_for_traffic_with_a_reason():
    answer = plan(crossed(5))
    assert movements(answer) == ["0_0 m1 -> m2 revoking", "0_1 m2 -> m1 revoking"]
    assert {(reason.code, reason.rack_costs) for reason in answer.reasons.values()} == {("traffic", (1, 0))}
    assert (answer.cost.rack_cost, answer.cost.rack_cost_lower_bound) == (0, 0)
    on_its_way = attrs.evolve(crossed(5), in_flight=(in_flight("0_2", "m1", "m2", "revoking"), in_flight("0_3", "m2", "m1", "revoking")))
    assert plan(on_its_way).cost.moves == 2  # other moves wait until then


def test_partitions_change_places_only_if_their_lags_are_alike():
    assert plan(crossed(6)).movements == ()
    assert plan(crossed(6, rack_lag_tolerance=1)).cost.moves == 2
    assert plan(crossed(7, rack_lag_tolerance=1)).movements == ()
    assert refused({"tasks": [], "members": [], "config": {"options": {"rack_lag_tolerance": -1}}}).startswith(
        "$.config.options.rack_lag_tolerance: "
    )


# A group that runs


def test_even_topic_stays_whatever_its_lags():
    question = problem(tasks(stateless="0_0 0_1 1_0"), member("m1", "0_0", lags={"0_0": 1_000_000}), member("m2", "0_1 1_0"))
    assert plan(question).movements == ()
    assert not plan(question).probing


def test_equal_lags_move_the_fewest():
    group = AssignorGroup(stateless(12, subtopology=0), {"m1": 1, "m2": 1}, assignor=LagAware())
    group.settle(2)
    group.join("m3")
    group.settle(2)
    assert (group.counts(), group.owner_changes) == ({"m1": 4, "m2": 4, "m3": 4}, 4)
    assert group.plan is not None
    assert group.plan.cost.moves == 0


def test_leaving_member_gives_everything_up():
    answer = plan(problem(tasks(stateless="0_0 0_1"), member("m1", "0_0 0_1", leaving=True), member("m2")))
    assert movements(answer) == ["0_0 m1 -> m2 revoking", "0_1 m1 -> m2 revoking"]
    assert answer.reasons[ids("0_0")[0]].because == "leaving"


def test_while_partitions_are_handed_over_only_the_ownerless_are_dealt():
    handed = in_flight("0_0", "m1", "m2", "revoking")
    question = problem(tasks(stateless="0_0 0_1 0_2 0_3"), member("m1", "0_0 0_1 0_2"), member("m2"), member("m3"), in_flight=[handed])
    answer = plan(question)
    assert movements(answer) == ["0_0 m1 -> m2 revoking"]
    assert text(answer.members["m3"].active) == "0_3"
    assert answer.reasons[ids("0_0")[0]].code == "carried"


def test_cross_topic_deals_the_ownerless_by_counts_of_all_topics_while_partitions_are_handed_over():
    handed = in_flight("0_0", "m1", "m2", "revoking")
    members = member("m1", "0_0 0_1 0_2 1_0"), member("m2"), member("m3")
    ownerless = "1_1 1_2 2_0 2_1"
    question = problem(tasks(stateless=f"0_0 0_1 0_2 1_0 {ownerless}"), *members, in_flight=[handed], options={"cross_topic": True})
    answer = plan(question)
    assert movements(answer) == ["0_0 m1 -> m2 revoking"]
    assert {name: text(part.active) for name, part in answer.members.items()} == {"m1": "0_1 0_2 1_0", "m2": "1_2 2_1", "m3": "1_1 2_0"}


def test_unrunnable_task_is_not_dealt():
    assert plan(problem(tasks(stateless="0_0"))).target == {}
    blind = attrs.evolve(member("m1"), subtopologies={7: 1})
    assert plan(problem(tasks(stateless="0_0"), blind)).target == {"m1": ()}
