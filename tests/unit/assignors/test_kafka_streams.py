"""`kafka_streams`: parts of the Java runtime, and Kafka's answer as a plan. Comparison with Kafka's
answers: `test_kafka_vectors`.
"""

from __future__ import annotations

import random
import uuid

import pytest

from bench import kafka_differential, kafka_java
from equipoise.assignors import AssignmentProblem, Plan, Reason, registry
from equipoise.assignors.common.validation import plan_faults
from equipoise.assignors.kafka_streams.graph import Graph
from equipoise.assignors.kafka_streams.java import Heap, member_hash, member_key, task_hash
from equipoise.events.errors import FieldError
from equipoise.events.settings import GroupSettings
from equipoise.events.tasks import TaskId, parse_task
from equipoise.testing import AssignorGroup, stateful, stateless
from tests.support.plan_json import reason_texts
from tests.unit.assignors.build import ACTIVE, UNKNOWN, copies, ids, member, movements, numbered, problem, tasks, text

ASSIGNOR = registry.latest("kafka_streams")


def plan(question: AssignmentProblem) -> Plan:
    answer = ASSIGNOR.assign(question)
    assert plan_faults(question, answer, ASSIGNOR.guarantees) == []
    return answer


# The Java runtime


def test_member_key_sorts_ids_of_8_to_f_first() -> None:
    texts = ["00000000-0000-0000-0000-000000000001", "7fffffff-0000-0000-0000-000000000000", "80000000-0000-0000-0000-000000000000"]
    low = ["00000000-0000-0000-ffff-ffffffffffff", "00000000-0000-0000-0000-000000000000"]
    assert sorted([*texts, *low], key=member_key) == [texts[2], *low, *texts[:2]]


def test_other_ids_follow_as_java_orders_text() -> None:
    beyond, private = "\U0001f600", "\ue000"  # UTF-16 code units d83d de00, and e000: Python orders them the other way round
    uuid_text = str(uuid.UUID(int=7))
    assert sorted([private, beyond, "b", "a1", uuid_text], key=member_key) == [uuid_text, "a1", "b", beyond, private]


@pytest.mark.parametrize(
    ("member_id", "value"),
    [
        ("00000000-0000-0000-0000-000000000000", 0),
        ("00000001-0000-0002-0000-000400000008", 1 ^ 2 ^ 4 ^ 8),
        ("ffffffff-ffff-ffff-0000-000000000000", 0),
        ("hello", 99162322),
    ],
)
def test_hashes_of_ids_are_javas(member_id: str, value: int) -> None:
    assert member_hash(member_id) == value


def test_tasks_of_two_subtopologies_share_hashes() -> None:
    assert task_hash(TaskId(0, 0)) == 31**3
    assert task_hash(TaskId(1, 2)) == task_hash(TaskId(0, 33))


def test_heap_polls_in_order_without_removed_items() -> None:
    dice = random.Random(1)
    numbers = [dice.randint(0, 50) for _ in range(200)]
    heap: Heap[int] = Heap(lambda number: (number,), numbers)
    for number in numbers[:50]:
        heap.remove(number)
    assert [heap.poll() for _ in range(len(heap))] == sorted(numbers[50:])


def test_heap_ignores_changed_keys() -> None:
    weight = {"a": 1.0, "b": 2.0, "c": 3.0}
    heap: Heap[str] = Heap(lambda name: (weight[name],), "abc")
    weight["a"] = 9.0
    assert [heap.poll() for _ in range(3)] == ["a", "b", "c"]


# Flows


def test_cycles_are_cancelled_until_the_cost_is_least() -> None:
    """Two tasks (1, 2) and two clients (3, 4), each with one; where they are now costs 10 each,
    crosswise nothing.
    """
    graph = Graph(6)
    arcs = {
        (task, client): graph.add(task, client, capacity=1, cost=10 if client == task + 2 else 0, flow=int(client == task + 2))
        for task in (1, 2)
        for client in (3, 4)
    }
    for task in (1, 2):
        graph.add(0, task, capacity=1, flow=1)
    for client in (3, 4):
        graph.add(client, 5, capacity=1, flow=1)
    graph.minimise_cost()
    assert {ends for ends, arc in arcs.items() if graph.flow(arc)} == {(1, 4), (2, 3)}


def test_maximise_flow_around_narrow_arc() -> None:
    graph = Graph(4)
    for source, destination, capacity in ((0, 1, 2), (0, 2, 1), (1, 2, 1), (1, 3, 1), (2, 3, 2)):
        graph.add(source, destination, capacity=capacity)
    assert graph.maximise_flow() == 3


# The plan


def test_joiner_moves_most_tasks() -> None:
    """Task k ran on member k mod 6 and goes to k mod 7: 12 of 60 stay. `high_availability` makes 8
    moves.
    """
    group = AssignorGroup(stateful(60), {f"m{index}": 1 for index in range(6)}, assignor=ASSIGNOR)
    group.settle(0)
    before = group.owners()
    group.join("m6")
    rounds = group.settle(100)
    changed = sum(before[task] != owner for task, owner in group.owners().items())
    assert (changed, rounds, group.counts()["m6"]) == (48, 24, 8)


def test_running_task_goes_at_once_to_a_caught_up_destination() -> None:
    question = problem(tasks("0_0 0_1"), member("m1", "0_1", lags={"0_0": 7}), member("m2", "0_0", lags={"0_1": 700}))
    answer = plan(question)
    assert movements(answer) == ["0_0 m2 -> m1 revoking", "0_1 m1 -> m2 waiting"]
    assert answer.members["m1"].active == ids("0_1")
    assert answer.members["m1"].standby == ids("0_0"), "it keeps its copy until the task is free"
    assert answer.members["m2"].revoke == ids("0_0")
    assert answer.members["m2"].standby == ids("0_1"), "its warm-up is a standby like any other"
    assert {name: text(target) for name, target in answer.target.items()} == {"m1": "0_0", "m2": "0_1"}
    assert reason_texts(answer) == {
        "0_0": "m1 is caught up (7 records behind); in the order of ids it is the turn of m1, wherever it runs now",
        "0_1": "m2 has 700 records to restore; the next probing round looks again; in the order of ids it is the turn of m2, wherever it runs now",
    }
    assert answer.probing


def test_warm_ups_beyond_the_slots_wait_without_a_copy() -> None:
    everything = numbered(6)
    answer = plan(problem(tasks(everything), member("m1", everything), member("m2"), max_warmups=2))
    assert text(answer.members["m2"].standby) == "0_1 0_3"
    assert movements(answer) == ["0_1 m1 -> m2 waiting", "0_3 m1 -> m2 waiting", "0_5 m1 -> m2 waiting"]
    assert answer.reasons[parse_task("0_1")] == Reason(code="next_probing", lag_records=150_000, because="turn")
    assert answer.reasons[parse_task("0_5")] == Reason(code="slot_full", lag_records=150_000, because="turn")


def test_unowned_task_runs_on_a_caught_up_member_meanwhile() -> None:
    answer = plan(problem(tasks("0_0 0_1"), member("m1", lags={"0_0": 9_000}), member("m2", lags={"0_0": 3})))
    assert text(answer.members["m2"].active) == "0_0 0_1"
    assert movements(answer) == ["0_0 m2 -> m1 waiting"]
    assert answer.members["m1"].standby == ids("0_0")


def test_interim_owner_may_differ_from_the_present_owner() -> None:
    """Its owner says that it has much to restore, another is caught up, a third has its turn."""
    answer = plan(problem(tasks("0_0"), member("m1"), member("m2", "0_0", lags={"0_0": 5_000}), member("m3", lags={"0_0": 0})))
    assert movements(answer) == ["0_0 m2 -> m3 revoking"]
    assert reason_texts(answer)["0_0"].startswith("m3 stands in with 0 records to restore, until the member whose turn it is has restored it; ")
    assert answer.members["m1"].standby == ids("0_0")


def test_unknown_ranks_before_caught_up_as_in_kafka() -> None:
    """-3 sorts before -2 and 0: a member that does not know how far behind it is keeps its turn,
    cold.
    """
    answer = plan(problem(tasks("0_0"), member("m1", lags={"0_0": UNKNOWN}), member("m2", lags={"0_0": 0})))
    assert answer.members["m1"].active == ids("0_0")
    assert not answer.probing


def test_owner_without_report_counts_as_running() -> None:
    silent = member("m2", "0_0", lags={})
    assert plan(problem(tasks("0_0"), member("m1"), silent)).members["m2"].active == ids("0_0")


def test_zombie_counts_as_caught_up() -> None:
    """Somebody who says that it runs the task is caught up, whoever owns it."""
    answer = plan(problem(tasks("0_0"), member("m1", lags={"0_0": ACTIVE}), member("m2", "0_0")))
    assert movements(answer) == ["0_0 m2 -> m1 revoking"]


def test_stateless_tasks_are_rotated() -> None:
    """A new member sorts first, so that the turn of each task passes on."""
    answer = plan(problem(tasks(stateless="0_0 0_1 0_2"), member("a"), member("m1", "0_0 0_2"), member("m2", "0_1")))
    assert movements(answer) == ["0_0 m1 -> a revoking", "0_1 m2 -> m1 revoking", "0_2 m1 -> m2 revoking"]
    assert {reason.code for reason in answer.reasons.values()} == {"dealt_anew"}
    assert not answer.probing, "Kafka's own word: it probes for copies only"


def test_standbys_exclude_the_owner() -> None:
    answer = plan(problem(tasks(numbered(6)), *(member(f"m{index}") for index in range(3)), num_standbys=1))
    assert [copies(answer, name) for name in answer.members] == [4, 4, 4]
    assert all(not frozenset(part.active) & frozenset(part.standby) for part in answer.members.values())


def test_leaving_member_is_excluded() -> None:
    """It gives everything up at once; the others rank among themselves."""
    leaver = member("m1", "0_0 0_1", leaving=True)
    answer = plan(problem(tasks("0_0 0_1"), leaver, member("m2", lags={"0_0": 90_000}), member("m3", lags={"0_1": 5})))
    assert movements(answer) == ["0_1 m1 -> m3 revoking", "0_0 m1 -> m2 revoking"]
    assert answer.members["m1"].revoke == ids("0_0 0_1")
    assert answer.reasons[parse_task("0_0")].because == "leaving"


def test_last_member_leaving_revokes() -> None:
    answer = plan(problem(tasks("0_0"), member("m1", "0_0", leaving=True)))
    assert answer.members["m1"].revoke == ids("0_0")
    assert answer.movements == ()


def test_empty_group_has_empty_plan() -> None:
    answer = plan(problem(tasks("0_0 0_1")))
    assert (answer.members, answer.target, answer.movements, answer.probing) == ({}, {}, (), False)


def test_members_of_an_older_topology_get_what_they_know() -> None:
    """Sub-topology 1 is new: m1 does not know it, and is dealt tasks of sub-topology 0 only.
    RemainingWarmups are shared.
    """
    old = member("m1", "0_0 0_1", subtopologies=[0])
    answer = plan(problem(tasks("0_0 0_1 1_0 1_1"), old, member("m2"), max_warmups=1))
    assert text(answer.members["m1"].active) == "0_0 0_1"
    assert text(answer.members["m2"].active) == "1_0 1_1"
    assert movements(answer) == ["0_1 m1 -> m2 waiting"]


def test_task_of_no_topology_is_revoked() -> None:
    answer = plan(problem(tasks("0_0"), member("m1", "0_0 3_3")))
    assert answer.members["m1"].active == ids("0_0")
    assert answer.members["m1"].revoke == ids("3_3")


def test_contradictions_are_refused_with_the_field() -> None:
    with pytest.raises(FieldError, match=r"^members\[m2\]\.active: 0_0 is active on m1 too"):
        ASSIGNOR.assign(problem(tasks("0_0"), member("m1", "0_0"), member("m2", "0_0")))


def test_rack_strategies_accept_kafkas_names() -> None:
    assert GroupSettings(rack_aware_strategy="min_traffic") == GroupSettings(rack_aware_strategy="min_cost")
    assert GroupSettings(rack_aware_strategy="balance_subtopology") == GroupSettings(rack_aware_strategy="balanced_min_cost")
    with pytest.raises(FieldError, match="'best' is not one of none, min_cost, balanced_min_cost"):
        GroupSettings(rack_aware_strategy="best")


def test_group_with_both_task_kinds_settles() -> None:
    group = AssignorGroup([*stateful(12), *stateless(6)], {"m1": 2, "m2": 2}, assignor=ASSIGNOR, num_standbys=1)
    group.decide()
    group.join("a", capacity=2)
    group.settle(60)
    assert group.counts() == {"a": 6, "m1": 6, "m2": 6}


# The published class


def test_random_problems_have_the_answers_of_the_published_class() -> None:
    dice = random.Random(20)
    questions = [kafka_differential.problem(dice) for _ in range(60)]
    for question, answer in zip(questions, kafka_java.assigned(questions), strict=True):
        assert kafka_differential.ours(question) == {key: answer[key] for key in ("probing", "members")}
