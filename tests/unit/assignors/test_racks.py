"""Racks (KIP-925): cost of a task per rack, when racks count, and their effect on the target."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs
import pytest

from equipoise.assignors import AssignmentProblem, MemberSpec, Partition, Plan, Reason, StageCost, Task
from equipoise.assignors.common.indexed_problem import IndexedProblem
from equipoise.assignors.common.racks import RACK_TAG, Racks, rack_of, traffic_cost
from equipoise.assignors.common.shares import Shares
from equipoise.assignors.common.validation import plan_faults
from equipoise.assignors.high_availability import HighAvailability
from equipoise.events.errors import FieldError
from equipoise.events.facts import MemberJoined
from equipoise.events.settings import GroupSettings
from equipoise.events.tasks import TaskId, parse_task
from tests.support.plan_json import reason_texts
from tests.unit.assignors.build import STATE, ids, member, numbered, problem, text

A, B, C = "abc"


def at(rack: str | None, made: MemberSpec) -> MemberSpec:
    return attrs.evolve(made, rack=rack)


def reading(task: str, *racks: str, changelog: str = "", stateful: bool = True, weights: Iterable[int] = ()) -> Task:
    """A task that reads one partition for each of `racks`, written ``ab`` for replicas in a and b."""
    weighed = [*weights, *[1] * len(racks)]
    return Task(
        id=parse_task(task),
        stateful=stateful,
        end_offset=STATE if stateful else 0,
        source=tuple(Partition(topic=f"t{index}", partition=0, racks=tuple(each), weight=weighed[index]) for index, each in enumerate(racks)),
        changelog=(Partition(topic="c", partition=0, racks=tuple(changelog)),) if stateful else (),
    )


def aware(tasks: Iterable[Task], *members: MemberSpec, **settings: Any) -> AssignmentProblem:
    return problem(tasks, *members, **{"rack_aware_strategy": "min_cost", **settings})


def plan(question: AssignmentProblem) -> Plan:
    assignor = HighAvailability()
    answer = assignor.assign(question)
    assert plan_faults(question, answer, assignor.guarantees) == []
    return answer


def target(answer: Plan) -> dict[str, str]:
    return {name: text(tasks) for name, tasks in answer.target.items()}


def racks_of(question: AssignmentProblem) -> Racks:
    return IndexedProblem(question).racks


# What a task costs


def test_partition_without_local_replica_costs_its_weight():
    question = aware([reading("0_0", "a", "ab", "c", weights=[1, 2, 5])], at(A, member("m1")), at(B, member("m2")), at(None, member("m3")))
    racks = racks_of(question)
    active = racks.active(parse_task("0_0"))
    assert (active.far, active.near) == (80, {"a": 50, "b": 60})
    assert [racks.cost(parse_task("0_0"), name) for name in ("m1", "m2", "m3")] == [50, 60, 80]
    assert [traffic_cost(question.tasks[0], each, question.settings) for each in question.members] == [50, 60, None]
    assert racks.least() == 50


def test_changelogs_are_counted_when_they_are_given_a_cost():
    for cost, expected in ((0, (10, 0)), (3, (13, 0)), (20, (30, 0))):
        question = aware([reading("0_0", "b", changelog="b")], at(A, member("m1")), at(B, member("m2")), rack_changelog_cost=cost)
        racks = racks_of(question)
        assert (racks.cost(parse_task("0_0"), "m1"), racks.cost(parse_task("0_0"), "m2")) == expected


def test_stateless_task_costs_one_per_partition_and_moves_free():
    racks = racks_of(aware([reading("0_0", "a", "b", stateful=False), reading("1_0", "a")], at(A, member("m1")), at(C, member("m2"))))
    assert [racks.cost(task, "m2") for task in ids("0_0 1_0")] == [2, 10]
    assert [racks.move_cost(task) for task in ids("0_0 1_0")] == [0, 1]


@pytest.mark.parametrize(
    ("tasks", "members"),
    [
        ([reading("0_0", "a")], [at(A, member("m1")), at(A, member("m2"))]),
        ([reading("0_0", "ab")], [at(A, member("m1")), at(B, member("m2"))]),
        ([reading("0_0", "c")], [at(A, member("m1")), at(B, member("m2"))]),
        ([reading("0_0", "")], [at(A, member("m1")), at(B, member("m2"))]),
        ([reading("0_0")], [at(A, member("m1")), at(B, member("m2"))]),
        ([reading("0_0", "a", "b")], [at(A, member("m1")), at(B, member("m2"))]),
        ([reading("0_0", "a")], [at(None, member("m1")), at(None, member("m2"))]),
        ([reading("0_0", "a", weights=[0])], [at(A, member("m1")), at(B, member("m2"))]),
        ([reading("0_0", "a")], [at(A, member("m1")), at(B, member("m2", leaving=True))]),
    ],
    ids=["one rack", "all racks", "no rack", "unknown partition", "no partition", "even", "unknown members", "no weight", "only who leaves"],
)
def test_racks_are_ignored_when_costs_are_equal(tasks: list[Task], members: list[MemberSpec]):
    question = aware(tasks, *members)
    assert not racks_of(question).counts
    assert plan(question) == plan(attrs.evolve(question, settings=attrs.evolve(question.settings, rack_aware_strategy="none")))
    assert plan(question).cost.stages == ()


# The target


def test_new_group_gets_near_tasks():
    answer = plan(
        aware([reading("0_0", "a"), reading("0_1", "b"), reading("0_2", "a"), reading("0_3", "b")], at(A, member("m1")), at(B, member("m2")))
    )
    assert target(answer) == {"m1": "0_0 0_2", "m2": "0_1 0_3"}
    assert answer.cost.stages == (StageCost(name="active", cost=0, lower_bound=0),)
    assert answer.cost.cross_rack == 0
    assert answer.cost.optimal


def test_balance_comes_before_traffic():
    answer = plan(aware([reading(f"0_{number}", "a") for number in range(4)], at(A, member("m1")), at(B, member("m2"))))
    assert {name: len(tasks) for name, tasks in answer.target.items()} == {"m1": 2, "m2": 2}
    assert answer.cost.stages == (StageCost(name="active", cost=20, lower_bound=20),)


@pytest.mark.parametrize(("non_overlap", "moves"), [(0, 2), (1, 2), (9, 2), (10, 0), (11, 0)])
def test_move_is_made_when_savings_exceed_cost(non_overlap: int, moves: int):
    """Exchanging two tasks saves 20 and costs two moves."""
    question = aware(
        [reading("0_0", "a"), reading("0_1", "b")], at(A, member("m1", "0_1")), at(B, member("m2", "0_0")), rack_non_overlap_cost=non_overlap
    )
    answer = plan(question)
    assert answer.cost.moves == moves
    assert answer.cost.stages[0].cost == (2 * non_overlap if moves else 20)
    assert answer.cost.optimal


def test_zero_traffic_cost_equals_no_racks():
    """Kafka: shouldRemainOriginalAssignmentWithoutTrafficCostForMinCostStrategy."""
    question = aware(
        [reading("0_0", "a"), reading("0_1", "b")],
        at(A, member("m1", "0_1")),
        at(B, member("m2", "0_0")),
        rack_traffic_cost=0,
        rack_non_overlap_cost=10,
    )
    assert plan(question) == plan(attrs.evolve(question, settings=attrs.evolve(question.settings, rack_aware_strategy="none")))


def test_move_states_its_saving():
    question = aware([reading("0_0", "a"), reading("0_1", "b", "b")], at(A, member("m1", "0_1")), at(B, member("m2", "0_0")))
    answer = plan(question)
    assert answer.reasons[TaskId(0, 0)] == Reason(code="traffic", lag_records=STATE, because="traffic", rack_costs=(10, 0))
    assert reason_texts(answer) == {
        "0_0": "m1 is nearer to what it reads than m2 (traffic 10 before, 0 after)",
        "0_1": "m2 is nearer to what it reads than m1 (traffic 20 before, 0 after)",
    }


def test_move_to_make_room_says_so():
    question = aware([reading("0_0", "c"), reading("0_1", "b")], at(A, member("m1", "0_1")), at(B, member("m2", "0_0")))
    assert reason_texts(plan(question)) == {
        "0_0": "it makes room on m2 for a task that is nearer there (traffic 10 before, 10 after)",
        "0_1": "m2 is nearer to what it reads than m1 (traffic 10 before, 0 after)",
    }


def test_member_without_rack_gets_tasks_without_a_better_place():
    tasks = [reading("0_0", "a"), reading("0_1", "b"), reading("0_2", "c"), reading("0_3", "")]
    answer = plan(aware(tasks, at(A, member("m1")), at(B, member("m2")), at(None, member("m3", capacity=2))))
    assert target(answer) == {"m1": "0_0", "m2": "0_1", "m3": "0_2 0_3"}


def test_unowned_task_starts_where_caught_up_then_moves_near():
    tasks = [reading("0_0", "b"), reading("0_1", "a")]
    answer = plan(aware(tasks, at(A, member("m1", "0_1", lags={"0_0": 0})), at(B, member("m2")), at(A, member("m3"))))
    assert answer.members["m1"].active == ids("0_0 0_1")
    assert target(answer) == {"m1": "0_1", "m2": "0_0", "m3": ""}
    assert answer.reasons[TaskId(0, 0)].because == "traffic"


# Sub-topologies


def test_balanced_min_cost_spreads_before_traffic():
    tasks = [reading(f"{subtopology}_{number}", "ab"[subtopology]) for subtopology in range(2) for number in range(4)]
    members = [at(A, member("m1")), at(B, member("m2"))]
    near = plan(aware(tasks, *members))
    assert target(near) == {"m1": numbered(4), "m2": numbered(4, subtopology=1)}
    spread = plan(aware(tasks, *members, rack_aware_strategy="balanced_min_cost"))
    for tasks_of in spread.target.values():
        assert sorted(task.subtopology for task in tasks_of) == [0, 0, 1, 1]
    assert (near.cost.rack_cost, spread.cost.rack_cost) == (0, 40)
    assert near.cost.optimal
    assert spread.cost.optimal


def test_limits_of_a_sub_topology_are_kafkas_with_the_upper_share():
    tasks = [reading(f"{subtopology}_{number}", "a") for subtopology, count in enumerate((5, 3)) for number in range(count)]
    question = aware(tasks, at(A, member("m1")), at(B, member("m2", capacity=2)), rack_aware_strategy="balanced_min_cost")
    shares = Shares(IndexedProblem(question))
    assert {name: share.upper for name, share in shares.every.items()} == {"m1": 3, "m2": 6}
    assert shares.limits() == {(0, True): {"m1": 2, "m2": 4}, (1, True): {"m1": 2, "m2": 3}}
    assert shares.crowding(dict.fromkeys(ids(numbered(5), numbered(3, subtopology=1)), "m1")) == 3 + 1


# Who is where


def test_rack_tag_wins_if_tags_are_set():
    tagged = attrs.evolve(member("m1"), rack="a", tags={RACK_TAG: "b", "zone": "z"})
    assert rack_of(tagged, GroupSettings()) == "a"
    assert rack_of(tagged, GroupSettings(rack_aware_tags=("zone",))) == "a"
    assert rack_of(tagged, GroupSettings(rack_aware_tags=("zone", RACK_TAG))) == "b"


@pytest.mark.parametrize(
    ("tags", "problem_text"),
    [
        ({f"k{number}": "v" for number in range(6)}, "MemberJoined.tags: has 6 entries; 5 at most"),
        ({"k" * 21: "v"}, "is not a text of 1 to 20 characters"),
        ({"k": "v" * 31}, "is not a text of 1 to 30 characters"),
    ],
)
def test_client_tags_have_the_kips_limits(tags: dict[str, str], problem_text: str):
    with pytest.raises(FieldError) as caught:
        MemberJoined(member_id="m1", incarnation=1, join_nonce="n", tags=tags)
    assert problem_text in str(caught.value)
    MemberJoined(member_id="m1", incarnation=1, join_nonce="n", tags={"k" * 20: "v" * 30})


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"rack_aware_tags": tuple("abcdef")}, "rack_aware_tags"),
        ({"rack_aware_tags": ("a", "a")}, "rack_aware_tags"),
        ({"rack_aware_tags": ("k" * 21,)}, "rack_aware_tags[0]"),
        ({"rack_traffic_cost": 100_001}, "rack_traffic_cost"),
        ({"rack_non_overlap_cost": -1}, "rack_non_overlap_cost"),
        ({"rack_standby_strategy": "both"}, "rack_standby_strategy"),
        ({"rack_standbys_apart": -1}, "rack_standbys_apart"),
        ({"rack_changelog_cost": 1.5}, "rack_changelog_cost"),
    ],
)
def test_settings_are_checked(settings: dict[str, object], field: str):
    with pytest.raises(FieldError) as caught:
        GroupSettings(**settings)  # type: ignore[arg-type]
    assert caught.value.field == f"Knobs.{field}"


def test_costs_at_their_limits_are_solved_exactly():
    heavy = [reading(f"0_{number}", "ab"[number % 2], weights=[1_000_000]) for number in range(6)]
    question = aware(heavy, at(A, member("m1", numbered(3))), at(B, member("m2", numbered(3, start=3))), rack_traffic_cost=100_000)
    answer = plan(question)
    assert target(answer) == {"m1": "0_0 0_2 0_4", "m2": "0_1 0_3 0_5"}
    assert answer.cost.rack_cost == 2
    assert answer.cost.optimal
