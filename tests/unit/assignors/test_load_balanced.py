"""`load_balanced`: weights of tasks, what pays, when it begins and when it ends, and that the rest
is high_availability.
"""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from equipoise.assignors import AssignmentProblem, LoadBalance, MemberSpec, Movement, MovementState, Partition, Plan, Reason, Task, TaskLoad
from equipoise.assignors.common.validation import plan_faults
from equipoise.assignors.load_balanced import LoadBalanced
from equipoise.assignors.load_balanced.assignor import REBALANCING
from equipoise.assignors.load_balanced.weights import FAIR_SHARE, weights
from equipoise.events.errors import FieldError
from equipoise.events.settings import GroupSettings
from equipoise.events.tasks import TaskId, parse_task
from tests.unit.assignors.build import ids, in_flight, member, movements, problem, tasks, text

PERCENT = FAIR_SHARE // 100


def weighing(amounts: str, *, subtopology: int = 0, stateful: bool = True) -> tuple[Task, ...]:
    """``weighing("5 1")``: tasks 0_0 and 0_1 that process 5 and 1 records a second; ``-``: not
    measured.
    """
    return tuple(
        Task(
            id=TaskId(subtopology, partition),
            stateful=stateful,
            end_offset=150_000 if stateful else 0,
            load=None if amount == "-" else TaskLoad(records_per_s=int(amount)),
        )
        for partition, amount in enumerate(amounts.split())
    )


def plan(question: AssignmentProblem) -> Plan:
    assignor = LoadBalanced()
    answer = assignor.assign(question)
    assert plan_faults(question, answer, assignor.guarantees) == []
    return answer


def target(answer: Plan) -> dict[str, str]:
    return {name: text(held) for name, held in answer.target.items()}


def asked(
    amounts: str, *members: MemberSpec, rebalancing: bool = False, stateful: bool = True, movements: tuple[Movement, ...] = (), **options: Any
) -> Plan:
    every = weighing(amounts, stateful=stateful)
    question = problem(every, *members, max_warmups=9, max_warmups_per_member=9, options=options, in_flight=movements)
    return plan(attrs.evolve(question, memory={REBALANCING: 1} if rebalancing else {}))


# Weights


def weighed(every: tuple[Task, ...], threads: int = 1, **options: int) -> list[float]:
    """In per cent of a fair share."""
    return [weight / PERCENT for weight in weights(every, [member("m1", capacity=threads)], GroupSettings(options=options)).values()]


def test_weights_are_parts_of_a_fair_share():
    assert weighed(weighing("30 10 60")) == [30, 10, 60]
    assert weighed(weighing("30 10 60"), threads=2) == [60, 20, 120]


def test_weights_scale_each_dimension_by_its_sum():
    every = (
        Task(id=TaskId(0, 0), stateful=True, load=TaskLoad(cpu=900_000, records_per_s=10, memory=5)),
        Task(id=TaskId(0, 1), stateful=True, load=TaskLoad(cpu=100_000, records_per_s=30, memory=5)),
    )
    assert weighed(every) == [(90 + 25) / 2, (10 + 75) / 2]
    assert weighed(every, load_cpu=3) == [(3 * 90 + 25) / 4, (3 * 10 + 75) / 4]
    assert weighed(every, load_cpu=0) == [25, 75]
    assert weighed(every, load_cpu=0, load_throughput=0, load_memory=1) == [50, 50]
    assert weighed(every, load_disk=100) == weighed(every)  # no member reports it


def test_unmeasured_task_weighs_as_its_subtopology():
    """Of its sub-topology's others, else of all others: 20, 60 and 33 beside 30, 10 and 60."""
    every = (*weighing("30 10 -"), *weighing("60 -", subtopology=1), *weighing("-", subtopology=2))
    total = 30 + 10 + 20 + 60 + 60 + 100 / 3
    assert weighed(every) == pytest.approx([100 * part / total for part in (30, 10, 20, 60, 60, 100 / 3)], abs=0.001)
    assert weighed(weighing("- - - -")) == [25, 25, 25, 25]
    assert weighed(weighing("0 0")) == [50, 50]  # measured, and no difference
    assert min(weighed(weighing("0 1000000000"))) > 0


@pytest.mark.parametrize(
    ("options", "field", "problem_"),
    [
        ({"load_cpu": -1}, "config.options.load_cpu", "-1 is not a whole number >= 0"),
        ({"load_disk": "much"}, "config.options.load_disk", "'much' is not a whole number >= 0"),
        ({"load_cpu": 0, "load_throughput": 0}, "config.options.load_cpu", "all 0; give at least one"),
        ({"load_low_percent": 0}, "config.options.load_low_percent", "0 is not from 1 to load_high_percent = 20"),
        ({"load_low_percent": 21}, "config.options.load_low_percent", "21 is not from 1 to load_high_percent = 20"),
    ],
)
def test_option_out_of_bounds_error(options: dict[str, Any], field: str, problem_: str):
    with pytest.raises(FieldError) as caught:
        LoadBalanced().assign(problem(weighing("1 1"), member("m1"), options=options))
    assert caught.value.field == field
    assert problem_ in caught.value.problem


def in_racks(amounts: str, near: str, *owned: str, strategy: str = "min_cost", **more: Any) -> AssignmentProblem:
    """`near`: of each task the rack that its partition is in; `owned`: what m1 in rack a has, m2 in
    b, ...
    """
    placed = [
        attrs.evolve(task, source=(Partition(topic="t", partition=task.id.partition, racks=(rack,)),))
        for task, rack in zip(weighing(amounts), near, strict=True)
    ]
    members = [attrs.evolve(member(f"m{number}", of), rack="abc"[number - 1]) for number, of in enumerate(owned, 1)]
    return attrs.evolve(problem(placed, *members, rack_aware_strategy=strategy, max_warmups=9), **more)


def test_equal_loads_take_the_nearest_target():
    placed = plan(in_racks("5 5 5 5", "abba", "", ""))
    assert {name: text(held) for name, held in placed.target.items()} == {"m1": "0_0 0_3", "m2": "0_1 0_2"}
    assert (placed.cost.rack_cost, placed.cost.optimal) == (0, True)


def test_equally_heavy_tasks_swap_for_traffic():
    answer = plan(in_racks("50 50 40 40", "baab", "0_0 0_2", "0_1 0_3"))
    assert {(str(each.task), each.destination) for each in answer.movements} == {("0_0", "m2"), ("0_1", "m1")}
    assert {(reason.because, reason.rack_costs) for reason in answer.reasons.values()} == {("traffic", (10, 0))}
    assert answer.memory == {"near_members": ("m2", "m1"), "near_tasks": ids("0_0 0_1")}
    assert (answer.cost.rack_cost, answer.cost.rack_cost_lower_bound, answer.cost.optimal) == (2, 0, False)
    assert plan(in_racks("50 50 40 40", "baab", "0_0 0_2", "0_1 0_3", strategy="none")).movements == ()


def test_swap_half_done_is_completed_without_rebalancing():
    """0_0 has gone to m2, which has more than its share now: 0_1 follows as planned, though its
    move alone would not be worth it.
    """
    memory = {"near_members": ("m2", "m1"), "near_tasks": ids("0_0 0_1")}
    answer = plan(in_racks("50 50 40 40", "baab", "0_2", "0_0 0_1 0_3", memory=memory))
    assert movements(answer) == ["0_1 m2 -> m1 warming"]
    assert "rebalancing" not in answer.memory
    forgotten = plan(in_racks("50 50 40 40", "baab", "0_2", "0_0 0_1 0_3"))
    assert forgotten.memory == {"rebalancing": 1}


def test_load_comes_first():
    """0_0 would be nearer on m2, but nothing there is as heavy."""
    assert plan(in_racks("60 20 40 40", "baab", "0_0 0_1", "0_2 0_3")).movements == ()


# What moves


def test_hot_task_gets_its_own_member():
    """By number all is even, three and three. One task is as much as all others."""
    answer = asked("50 10 10 10 10 10", member("m1", "0_0 0_1 0_2"), member("m2", "0_3 0_4 0_5"))
    assert target(answer) == {"m1": "0_0", "m2": "0_1 0_2 0_3 0_4 0_5"}
    assert (answer.cost.moves, answer.cost.moves_lower_bound) == (2, 1)  # the bound knows nothing of what fits where
    assert answer.load == LoadBalance(
        highest_now=140 * PERCENT, lowest_now=60 * PERCENT, highest=100 * PERCENT, lowest=100 * PERCENT, bound=(20 + 5) * PERCENT
    )
    assert {reason.code for reason in answer.reasons.values()} == {"load"}
    assert all(each.state is MovementState.WARMING for each in answer.movements)


def test_heavy_tasks_move_first():
    answer = asked("40 5 5 5 5 40", member("m1", "0_0 0_1 0_2 0_3 0_4 0_5"), member("m2"))
    assert target(answer) == {"m1": "0_3 0_4 0_5", "m2": "0_0 0_1 0_2"}
    coarse = asked("40 5 5 5 5 40", member("m1", "0_0 0_1 0_2 0_3 0_4 0_5"), member("m2"), load_high_percent=40, load_low_percent=40)
    assert target(coarse) == {"m1": "0_1 0_2 0_3 0_4 0_5", "m2": "0_0"}
    assert coarse.cost.moves == coarse.cost.moves_lower_bound == 1
    assert coarse.cost.optimal


def test_capacities_count():
    answer = asked("10 10 10 10 10 10", member("m1", "0_0 0_1 0_2 0_3 0_4 0_5", capacity=2), member("m2"))
    assert {name: len(held) for name, held in answer.target.items()} == {"m1": 4, "m2": 2}


def test_joiner_gets_its_share_below_the_threshold():
    """Ten of one task each more than the mean is within 20 %; the joiner has nothing, which is not."""
    owners = [member(f"m{index}", " ".join(f"0_{6 * index + place}" for place in range(6))) for index in range(10)]
    answer = asked(" ".join(["10"] * 60), *owners, member("new"))
    assert len(answer.target["new"]) == 5
    assert answer.cost.moves == answer.cost.moves_lower_bound == 5


def test_between_the_thresholds_nothing_begins_and_what_began_goes_on():
    members = member("m1", "0_0 0_1"), member("m2", "0_2")
    amounts = "105 11 84"  # levels 116 and 84; 0_1 there: 105 and 95, which betters by 21
    assert asked(amounts, *members).cost.moves == 1
    assert asked(amounts, *members, load_high_percent=21).cost.moves == 0
    still = asked(amounts, *members, load_high_percent=21, rebalancing=True)
    assert (still.cost.moves, still.memory) == (1, {REBALANCING: 1})
    done = asked(amounts, member("m1", "0_0"), member("m2", "0_1 0_2"), load_high_percent=21, rebalancing=True)
    assert (done.cost.moves, done.memory, done.probing, done.watching) == (0, {}, False, True)


def test_move_in_flight_counts_as_made():
    members = member("m1", "0_0 0_1 0_2"), member("m2", warmup="0_2", lags={"0_2": 9000})
    answer = asked("10 10 10", *members, movements=(in_flight("0_2", "m1", "m2", "warming"),), rebalancing=True)
    assert movements(answer) == ["0_2 m1 -> m2 warming"]
    assert answer.memory == {}


def test_equal_loads_prefer_a_ready_copy():
    """m2 and m3 are as empty; m3 has a standby of 0_1, so that one moves there, at once."""
    answer = asked("10 10 10 10", member("m1", "0_0 0_1 0_2 0_3"), member("m2"), member("m3", lags={"0_1": 7}))
    assert "0_1 m1 -> m3 revoking" in movements(answer)


def test_dead_members_tasks_go_to_the_caught_up_then_move_on():
    """m2 has all copies; it gets all tasks now, and passes two on once their state is restored."""
    answer = asked("10 10 10 10", member("m2", every=3, of="0_0 0_1 0_2 0_3"), member("m3"))
    assert text(answer.members["m2"].active) == "0_0 0_1 0_2 0_3"
    assert len(answer.target["m3"]) == 2
    assert {each.source for each in answer.movements} == {"m2"}


def test_unowned_tasks_are_placed_heaviest_first():
    answer = asked("7 6 5 4 3 2 1", member("m1"), member("m2"), stateful=False)
    loads = {name: sum(7 - task.partition for task in held) for name, held in answer.target.items()}
    assert loads == {"m1": 14, "m2": 14}
    assert not answer.movements


def test_leaving_members_task_goes_to_least_load():
    answer = asked("30 10 10 10", member("m1", "0_0"), member("m2", "0_1 0_2"), member("m3", "0_3", leaving=True))
    assert movements(answer) == ["0_3 m3 -> m2 warming"]
    assert answer.reasons[parse_task("0_3")].because == "leaving"


def test_slots_and_standbys_are_those_of_high_availability():
    question = problem(weighing("10 10 10 10 10 10"), member("m1", "0_0 0_1 0_2 0_3 0_4 0_5"), member("m2"), max_warmups=1, num_standbys=1)
    answer = plan(question)
    assert sum(len(part.warmup) for part in answer.members.values()) <= 1
    assert {task for part in answer.members.values() for task in part.standby} == set(ids("0_0 0_1 0_2 0_3 0_4 0_5"))


def test_unknown_loads_balance_by_count():
    answer = plan(problem(tasks("0_0 0_1 0_2 0_3"), member("m1", "0_0 0_1 0_2 0_3"), member("m2"), max_warmups=9))
    assert {name: len(held) for name, held in answer.target.items()} == {"m1": 2, "m2": 2}
    assert answer.reasons[answer.movements[0].task] == Reason(code="load", lag_records=150_000, because="load")


def test_plan_states_its_load_balance_and_bound():
    answer = asked("60 20 20", member("m1", "0_0 0_1"), member("m2", "0_2"))
    assert answer.load == LoadBalance(
        highest_now=160 * PERCENT, lowest_now=40 * PERCENT, highest=120 * PERCENT, lowest=80 * PERCENT, bound=(120 + 5) * PERCENT
    )
    rest = asked("60 20 20", member("m1", "0_0"), member("m2", "0_1 0_2"))
    assert rest.load == LoadBalance(
        highest_now=120 * PERCENT, lowest_now=80 * PERCENT, highest=120 * PERCENT, lowest=80 * PERCENT, bound=(120 + 20) * PERCENT
    )
    assert (rest.cost.imbalance, rest.imbalance_now, answer.imbalance_now) == (0, 0, 800)
