"""KIP-441's steps, one after the other, and their context: eligibility,
movements in flight, leaving members, slots.
"""

from __future__ import annotations

import itertools
from collections import Counter

import attrs
import pytest

from equipoise.assignors import AssignmentProblem, Guarantee, MovementState, Reason, registry
from equipoise.assignors.common.indexed_problem import IndexedProblem
from equipoise.assignors.high_availability import HighAvailability
from equipoise.events.errors import FieldError
from equipoise.events.tasks import parse_task
from equipoise.testing import AssignorGroup, stateful
from tests.unit.assignors.build import ACTIVE, STATE, UNKNOWN, copies, ids, in_flight, member, movements, numbered, plan, problem, tasks, text

# Constrained balance: where a task may run now


def test_unowned_task_goes_to_a_caught_up_member():
    answer = plan(problem(tasks("0_0"), member("m1", lags={"0_0": 5000}), member("m2", lags={"0_0": 100}), member("m3")))
    assert text(answer.members["m2"].active) == "0_0"
    assert answer.reasons[parse_task("0_0")] == Reason(code="unowned", lag_records=100)
    assert not answer.probing


def test_caught_up_members_share_evenly():
    """Both are caught up on all, so it is a matter of balance: the KIP's "as balanced as it can
    be".
    """
    four = numbered(4)
    answer = plan(problem(tasks(four), member("m1", every=0, of=four), member("m2", every=0, of=four), member("m3")))
    assert [len(answer.members[name].active) for name in ("m1", "m2", "m3")] == [2, 2, 0]
    assert movements(answer) == [f"{answer.movements[0].task} {answer.movements[0].source} -> m3 warming"]


def test_unowned_task_goes_to_the_soonest_ready():
    answer = plan(problem(tasks("0_0"), member("m1", lags={"0_0": 1000}), member("m2", lags={"0_0": 500}), member("m3")))
    assert text(answer.members["m2"].active) == "0_0"
    assert answer.reasons[parse_task("0_0")] == Reason(code="unowned_cold", lag_records=500)


@pytest.mark.parametrize("records", [(60_000, 700), (700, 60_000), (5_000, 5_000)])
def test_new_member_gets_tasks_of_each_subtopology(records: tuple[int, int]):
    """A slow processor and a fast one: the records to restore decide only which task of each."""
    sized = (*tasks("0_0 0_1", end_offset=records[0]), *tasks("1_0 1_1", end_offset=records[1]))
    answer = plan(problem(sized, member("m1", "0_0 0_1 1_0 1_1"), member("m2", lags={"0_1": records[0] // 3})))
    assert [task.subtopology for task in answer.target["m2"]] == [0, 1]
    assert (answer.cost.moves, answer.cost.optimal) == (2, True)


def test_consumers_without_state_share_each_topic():
    """Two topics of four partitions, and three of other sizes; nothing moves for that alone."""
    both = f"{numbered(4)} {numbered(4, subtopology=1)}"
    joined = plan(problem(tasks("", both), member("c1", both), member("c2")))
    assert [task.subtopology for task in joined.target["c2"]] == [0, 0, 1, 1]
    uneven = plan(problem(tasks("", both), member("c1", numbered(4)), member("c2", numbered(4, subtopology=1))))
    assert uneven.movements == ()
    topics = " ".join(numbered(count, subtopology=topic) for topic, count in enumerate((4, 8, 16)))
    third = plan(problem(tasks("", topics), member("c1", topics), member("c2"), member("c3"), member("c4")))
    assert {tuple(Counter(task.subtopology for task in has).values()) for has in third.target.values()} == {(1, 2, 4)}


def test_previous_owner_precedes_the_spread():
    """m2 is back with both tasks of one processor on its disk."""
    every = "0_0 0_1 1_0 1_1"
    back = member("m2", lags={"0_0": 0, "0_1": 0}, previously_owned="0_0 0_1")
    assert text(plan(problem(tasks(every), member("m1", every), back)).target["m2"]) == "0_0 0_1"


def test_very_many_subtopologies_are_spread_as_far_as_there_is_time(monkeypatch: pytest.MonkeyPatch):
    """The largest ones first."""
    monkeypatch.setattr("equipoise.assignors.common.shares.MOST_PARTS", 2)
    sized = (*tasks(numbered(2), end_offset=10), *tasks(numbered(4, subtopology=1), end_offset=99), *tasks("2_0", end_offset=1))
    every = f"{numbered(2)} {numbered(4, subtopology=1)} 2_0"
    answer = plan(problem(sized, member("m1", every), member("m2")))
    assert [task.subtopology for task in answer.target["m2"]] == [1, 1, 2]


def test_soonest_ready_depends_on_speed():
    """m1 has more to restore and is four times as fast; without measurements all are equal."""
    lags = {"m1": 1000, "m2": 500}
    for speeds, soonest in (((40_000, 10_000), "m1"), ((10_000, 40_000), "m2"), ((0, 0), "m2"), ((40_000, 0), "m2"), ((39_999, 20_000), "m2")):
        members = [member(name, lags={"0_0": lag}, speed=speed) for (name, lag), speed in zip(lags.items(), speeds, strict=True)]
        answer = plan(problem(tasks("0_0"), *members, acceptable_recovery_lag=0))
        assert text(answer.members[soonest].active) == "0_0", speeds


def test_fast_member_without_a_copy_precedes_slow_one_with_half():
    half = {"0_0": STATE // 2}
    for fast, soonest in ((30_000, "m2"), (15_000, "m1")):
        answer = plan(problem(tasks("0_0"), member("m1", lags=dict(half), speed=10_000), member("m2", speed=fast), member("m3", speed=10_000)))
        assert text(answer.members[soonest].active) == "0_0", fast


def test_task_without_copies_goes_to_the_first_to_restore_it():
    """m1 is idle and slow, m2 restores something and is done with both before m1 is."""
    busy = member("m2", "0_0", lags={"0_0": 30_000}, speed=100_000, capacity=5)
    answer = plan(problem(tasks("0_0 0_1"), busy, member("m1", speed=10_000)))
    assert text(answer.members["m2"].active) == "0_0 0_1"
    assert movements(answer) == []


def test_restore_queue_decides_without_copies():
    """m1 restores 0_0 and would begin with 0_1 only after it (docs/protocol.md#d3)."""
    busy = member("m1", "0_0", lags={"0_0": 90_000}, capacity=5)
    answer = plan(problem(tasks("0_0 0_1"), busy, member("m2")))
    assert text(answer.members["m2"].active) == "0_1"


def test_many_partial_copies_do_not_attract_every_task():
    """m1 has a little of all ten; restored one after the other that is no sooner than sharing them."""
    ten = numbered(10)
    answer = plan(problem(tasks(ten), member("m1", every=140_000, of=ten), member("m2"), member("m3")))
    assert len(answer.members["m1"].active) <= 4
    assert answer.imbalance_now == 0


def test_zombie_counts_as_copy_of_unknown_age():
    answer = plan(problem(tasks("0_0"), member("m1", lags={"0_0": ACTIVE}), member("m2", lags={"0_0": 50})))
    assert text(answer.members["m2"].active) == "0_0"


def test_owned_task_stays_though_another_is_caught_up():
    """m1 restores 0_0; that m2 is caught up is no reason to move it, as long as the balance asks
    for nothing.
    """
    answer = plan(problem(tasks("0_0 0_1"), member("m1", "0_0", lags={"0_0": 500}), member("m2", "0_1", lags={"0_0": 0})))
    assert text(answer.members["m1"].active) == "0_0"
    assert answer.cost.moves == 0


def test_balance_moves_a_restoring_task_first():
    three = numbered(3)
    answer = plan(problem(tasks(three), member("m1", three, lags={"0_1": 90_000}), member("m2", every=0, of=three)))
    assert movements(answer) == ["0_1 m1 -> m2 revoking"]


# Proposed balance: the target


def test_joiner_moves_only_its_share():
    """60 tasks, 6 members, a seventh: 8 moves (Kafka Streams 4: 51)."""
    sixty = [numbered(10, start=10 * index) for index in range(6)]
    answer = plan(problem(tasks(" ".join(sixty)), *(member(f"m{index}", each) for index, each in enumerate(sixty)), member("m6")))
    assert (answer.cost.moves, answer.cost.moves_lower_bound, answer.cost.imbalance) == (8, 8, 0)
    assert answer.cost.optimal
    assert sorted(len(target) for target in answer.target.values()) == [8, 8, 8, 9, 9, 9, 9]
    assert {each.destination for each in answer.movements} == {"m6"}
    assert [each.state for each in answer.movements].count(MovementState.WARMING) == 2


def test_equal_targets_move_the_least_state():
    sizes = {"0_0": 9000, "0_1": 500, "0_2": 7000, "0_3": 400}
    made = [attrs.evolve(task, end_offset=sizes[str(task.id)]) for task in tasks(" ".join(sizes))]
    answer = plan(problem(made, member("m1", " ".join(sizes)), member("m2")))
    assert text(answer.target["m2"]) == "0_1 0_3"
    assert answer.cost.restore_records == 900


def test_target_uses_an_existing_copy():
    three = numbered(3)
    answer = plan(problem(tasks(three), member("m1", three), member("m2", lags={"0_1": 90_000})))
    assert text(answer.target["m2"]) == "0_1"


def test_balance_goes_by_capacity():
    """Kafka's caps 1, 2, 3: exactly 1, 2, 3."""
    six = numbered(6)
    answer = plan(problem(tasks(six), member("m1", six), member("m2", capacity=2), member("m3", capacity=3)))
    assert [len(target) for target in answer.target.values()] == [1, 2, 3]


def test_balance_holds_for_stateful_tasks_and_for_all_tasks_at_once():
    stateful, stateless = numbered(5), numbered(5, subtopology=1)
    answer = plan(problem(tasks(stateful, stateless), member("m1", stateful), member("m2", stateless), member("m3")))
    for target in answer.target.values():
        assert 3 <= len(target) <= 4
        assert 1 <= sum(task.subtopology == 0 for task in target) <= 2


@pytest.mark.parametrize(
    ("counts", "balance_factor", "target"),
    [
        ((4, 0), 1, [2, 2]),
        ((4, 0), 2, [3, 1]),
        ((4, 0), 3, [3, 1]),  # 4 and 0 differ by 4
        ((4, 0), 4, [4, 0]),
        ((4, 1), 2, [3, 2]),
        ((4, 1), 3, [4, 1]),
        ((6, 2), 3, [5, 3]),
        ((3, 3, 1), 2, [3, 3, 1]),  # all slack below the fair share, 2.33
        ((1, 2, 2, 3), 2, [1, 2, 2, 3]),  # on both sides
        ((4, 2, 2, 2), 2, [4, 2, 2, 2]),  # above
    ],
)
def test_balance_factor_is_the_difference_between_most_and_least(counts: tuple[int, ...], balance_factor: int, target: list[int]):
    starts = [sum(counts[:index]) for index in range(len(counts))]
    members = [member(f"m{index}", numbered(count, start=start)) for index, (count, start) in enumerate(zip(counts, starts, strict=True))]
    answer = plan(problem(tasks(numbered(sum(counts))), *members, balance_factor=balance_factor))
    assert [len(each) for each in answer.target.values()] == target


@pytest.mark.parametrize(("balance_factor", "moves"), [(1, 2), (2, 1), (3, 0)])
def test_version_1_takes_the_slack_on_both_sides(balance_factor: int, moves: int):
    question = problem(tasks(numbered(4)), member("m1", numbered(4)), member("m2"), balance_factor=balance_factor)
    assert registry.load("high_availability", 1).assign(question).cost.moves == moves


@pytest.mark.parametrize("balance_factor", [1, 2, 3])
def test_copies_differ_by_at_most_balance_factor(balance_factor: int):
    """Active ones and standbys together: two members had all 16 copies, a third has joined."""
    group = AssignorGroup(stateful(8), {"m1": 1, "m2": 1}, num_standbys=1, balance_factor=balance_factor)
    group.settle(20)
    group.join("m3")
    group.settle(40)
    copies = [len(process.owned) + len(process.standby) for process in group.members.values()]
    assert sum(copies) == 16
    assert 0 < max(copies) - min(copies) <= balance_factor


def test_warm_up_does_not_count_as_a_standby():
    """The KIP counts it. Then the hot copy would have to go for one that has everything to restore,
    and a kill of m1 meanwhile would find no copy.
    """
    six = numbered(6)
    answer = plan(problem(tasks(six), member("m1", six), member("m2", standby=six, every=0, of=six, subtopologies=[0]), member("m3"), num_standbys=1))
    moving = {each.task for each in answer.movements if each.destination == "m3"}
    assert moving
    assert moving <= set(answer.members["m2"].standby)
    assert set(answer.members["m3"].warmup) & moving


def test_destination_with_the_standby_warms_it_up():
    """Nobody else is there to hold it: then it is the task's one standby, and takes no slot."""
    question = problem(tasks(numbered(2)), member("m1", numbered(2)), member("m2", standby="0_1", lags={"0_1": 5_000}), num_standbys=1)
    answer = plan(question)
    assert [str(each.task) for each in answer.movements] == ["0_1"]
    assert [str(task) for task in answer.members["m2"].standby] == ["0_0", "0_1"]
    assert answer.members["m2"].warmup == ()


def of_leaving(speed: int, deadline_ms: int | None) -> AssignmentProblem:
    """m1 leaves with six tasks of 4,000 records, which m2 has to take over."""
    six = numbered(6)
    leaver = attrs.evolve(member("m1", six, leaving=True), drain_deadline_ms=deadline_ms)
    question = problem(tasks(six, end_offset=4_000), leaver, member("m2", speed=speed), max_warmups=1, max_warmups_per_member=1)
    return attrs.evolve(question, now_ms=50_000)


@pytest.mark.parametrize(
    ("speed", "deadline_ms", "warming"),
    [
        (1_000, 74_000, 6),
        (1_000, 73_999, 6),  # the last one has a slot, like any other movement
        (1_000, 65_999, 4),  # 15.999 s: three in time, and one has a slot
        (1_000, 50_000, 1),
        (0, 50_001, 6),  # no rate was measured, so nothing speaks against it
        (1, None, 6),
    ],
)
def test_copies_for_a_leaving_member_begin_together_within_the_drain_deadline(speed: int, deadline_ms: int | None, warming: int):
    question = of_leaving(speed, deadline_ms)
    answer = plan(question)
    states = [movement.state for movement in answer.movements]
    assert states == [MovementState.WARMING] * warming + [MovementState.WAITING] * (6 - warming)
    former = registry.load("high_availability", 1)
    assert [movement.state for movement in former.assign(question).movements].count(MovementState.WARMING) == 1


def test_copies_for_a_leaving_member_take_no_warmup_slots():
    """m3 joined when m1 began to leave: its movement from m2 continues."""
    question = problem(tasks(numbered(8)), member("m1", "0_0 0_1", leaving=True), member("m2", numbered(6, start=2)), member("m3"), max_warmups=2)
    answer = plan(question)
    begun = Counter(movement.source for movement in answer.movements if movement.state is MovementState.WARMING)
    assert begun == {"m1": 2, "m2": 2}


def test_warm_ups_go_on_when_the_leaver_is_gone():
    """Then it counts like any other, also above the caps: nothing that was restored is thrown away,
    and nothing new begins.
    """
    six = numbered(6)
    begun = [in_flight(f"0_{each}", "m3", "m2", "warming") for each in range(6)]
    now_m3 = member("m3", six)
    question = problem(tasks(six), now_m3, member("m2", warmup=six, every=3_000, of=six), in_flight=begun, max_warmups=1, max_warmups_per_member=1)
    assert text(plan(question).members["m2"].warmup) == six


def test_balanced_group_is_unchanged():
    question = problem(tasks(numbered(7), "1_0 1_1"), member("m1", "0_0 0_2 0_4 0_6 1_1"), member("m2", "0_1 0_3 0_5 1_0"))
    answer = plan(question)
    assert [answer.members[each.id].active for each in question.members] == [each.active for each in question.members]
    assert answer.reasons == {}
    assert (answer.movements, answer.probing, answer.cost.moves, answer.unique) == ((), False, 0, True)


def test_target_no_better_than_the_present_is_dropped():
    """The KIP's last lines. m2 can run none of the tasks, so no plan is more balanced."""
    answer = plan(problem(tasks(numbered(4)), member("m1", numbered(4)), member("m2", subtopologies=[])))
    assert (answer.imbalance_now, answer.cost.imbalance) == (4, 4)
    assert answer.movements == ()
    assert not answer.probing


def test_return_home_first():
    """m2 was away and has its old copies: of all tasks that could come, its own do, and at once."""
    six = numbered(6)
    answer = plan(problem(tasks(six), member("m1", six), member("m2", every=40, of="0_1 0_3 0_5", previously_owned="0_1 0_3 0_5")))
    assert text(answer.target["m2"]) == "0_1 0_3 0_5"
    assert movements(answer) == [f"{task} m1 -> m2 revoking" for task in ("0_1", "0_3", "0_5")]
    assert answer.reasons[parse_task("0_1")].code == "return_home"


def test_displaced_go_first():
    """m1 runs two tasks of its own, and two only because a member died: they are what a new member
    gets.
    """
    question = problem(tasks("0_0 0_1 0_2 0_3"), member("m1", "0_0 0_1 0_2 0_3"), member("m2"))
    for displaced in itertools.combinations(ids("0_0 0_1 0_2 0_3"), 2):
        asked = attrs.evolve(question, tasks=tuple(attrs.evolve(task, displaced=task.id in displaced) for task in question.tasks))
        assert plan(asked).target["m2"] == displaced


def test_return_home_needs_half_of_the_state():
    """Of 0_1 it has to restore more than half: no home to return to; 0_2 is closer."""
    three = numbered(3)
    question = problem(tasks(three), member("m1", three), member("m2", lags={"0_1": STATE // 2, "0_2": 30_000}, previously_owned="0_1"))
    assert text(plan(question).target["m2"]) == "0_2"
    closer = problem(tasks(three), member("m1", three), member("m2", lags={"0_1": STATE // 2 - 1, "0_2": 30_000}, previously_owned="0_1"))
    assert text(plan(closer).target["m2"]) == "0_1"


def test_stateless_tasks_stay_and_move_only_as_the_target_asks():
    """Kafka Streams deals them again in every round. Here: one of six moves, in two steps."""
    six = numbered(6, subtopology=1)
    answer = plan(problem(tasks("", six), member("m1", "1_0 1_1 1_2 1_3"), member("m2", "1_4 1_5")))
    assert answer.cost.moves == 1
    assert [each.state for each in answer.movements] == [MovementState.REVOKING]
    assert answer.members["m1"].revoke == (answer.movements[0].task,)
    assert answer.movements[0].task not in answer.members["m2"].active
    assert answer.members["m2"].warmup == ()


def test_new_stateless_tasks_go_straight_to_their_target():
    answer = plan(problem(tasks("0_0", "1_0 1_1 1_2"), member("m1", "0_0"), member("m2")))
    assert sorted(len(part.active) for part in answer.members.values()) == [2, 2]
    assert answer.reasons[parse_task("1_0")].code == "unowned_stateless_balance"
    assert not answer.probing


# Movements and slots


def test_slots_go_to_what_is_soonest_ready():
    """Kafka's order is by task id; here by records to restore."""
    lags = {"0_0": 90_000, "0_1": 30_000, "0_2": 60_000}
    answer = plan(problem(tasks(numbered(6)), member("m1", numbered(6)), member("m2", lags=dict(lags))))
    assert movements(answer) == ["0_1 m1 -> m2 warming", "0_2 m1 -> m2 warming", "0_0 m1 -> m2 waiting"]
    assert answer.reasons[parse_task("0_0")] == Reason(code="slot_full", lag_records=90_000, because="balance")
    assert answer.reasons[parse_task("0_1")] == Reason(code="balance", lag_records=30_000, because="balance")
    assert text(answer.members["m2"].warmup) == "0_1 0_2"
    assert answer.probing


def test_slots_go_by_restore_time_at_known_speed():
    """m2 has more to restore and is ten times as fast."""
    question = problem(
        tasks(numbered(6)),
        member("m1", numbered(6), capacity=2),
        member("m2", lags={"0_0": 90_000}, speed=1000),
        member("m3", lags={"0_1": 30_000}, speed=100),
        max_warmups=1,
    )
    assert [each for each in movements(plan(question)) if "warming" in each] == ["0_0 m1 -> m2 warming"]


@pytest.mark.parametrize(("group", "per_member", "warming"), [(1, 9, 1), (3, 9, 3), (9, 1, 2), (9, 2, 4)])
def test_caps_of_the_group_and_of_each_member(group: int, per_member: int, warming: int):
    question = problem(
        tasks(numbered(9)), member("m1", numbered(9)), member("m2"), member("m3"), max_warmups=group, max_warmups_per_member=per_member
    )
    answer = plan(question)
    assert sum(len(part.warmup) for part in answer.members.values()) == warming
    assert len(answer.movements) == 6


def test_caught_up_destination_needs_no_slot():
    nine = numbered(9)
    answer = plan(problem(tasks(nine), member("m1", nine), member("m2", every=3, of="0_0 0_1 0_2 0_3"), max_warmups=1))
    assert [each.state for each in answer.movements] == [MovementState.REVOKING] * 4
    assert text(answer.members["m1"].revoke) == "0_0 0_1 0_2 0_3"
    assert len(answer.members["m2"].warmup) == 1  # a slot that is left over keeps one of the copies fresh


def test_standby_warms_up_without_a_slot():
    question = problem(
        tasks(numbered(4)),
        member("m1", numbered(4)),
        member("m2", standby=numbered(4), every=5000, of=numbered(4)),
        member("m3"),
        num_standbys=1,
        max_warmups=1,
    )
    answer = plan(question)
    assert [each.destination for each in answer.movements if each.state is MovementState.WARMING].count("m2") >= 1
    assert answer.members["m2"].warmup == ()


def test_movement_in_flight_is_carried_to_its_end():
    """Without it the target would be another: 0_1 has nothing left to restore on m2. But 0_0 was
    decided (docs/protocol.md#d9).
    """
    two = numbered(2)
    begun = problem(
        tasks(two), member("m1", two), member("m2", warmup="0_0", lags={"0_0": 80_000, "0_1": 0}), in_flight=[in_flight("0_0", "m1", "m2", "warming")]
    )
    answer = plan(begun)
    assert movements(answer) == ["0_0 m1 -> m2 warming"]
    assert answer.reasons[parse_task("0_0")] == Reason(code="warming", lag_records=80_000, because="balance")
    fresh = attrs.evolve(begun, in_flight=())
    assert movements(plan(fresh)) == ["0_1 m1 -> m2 revoking"]


def test_movement_in_flight_keeps_its_slot():
    four = numbered(4)
    question = problem(
        tasks(four),
        member("m1", four),
        member("m2", warmup="0_3", lags={"0_3": 100_000, "0_0": 500}),
        in_flight=[in_flight("0_3", "m1", "m2", "warming")],
        max_warmups=1,
    )
    assert movements(plan(question)) == ["0_3 m1 -> m2 warming", "0_0 m1 -> m2 waiting"]


def test_caught_up_movement_revokes_and_keeps_its_slot():
    four = numbered(4)
    question = problem(
        tasks(four),
        member("m1", four),
        member("m2", warmup="0_3", lags={"0_3": 100}),
        in_flight=[in_flight("0_3", "m1", "m2", "warming")],
        max_warmups=1,
    )
    answer = plan(question)
    assert movements(answer)[0] == "0_3 m1 -> m2 revoking"
    assert [each.state for each in answer.movements] == [MovementState.REVOKING, MovementState.WAITING]
    assert (answer.members["m1"].revoke, answer.members["m2"].warmup) == (ids("0_3"), ids("0_3"))
    assert answer.reasons[parse_task("0_3")].code == "ready"


def test_grant_is_kept_though_destination_lags():
    """m1 has let go. m2 is behind again by 5,000, m3 is caught up: it stays m2's, or it would flip
    at every tick (docs/protocol.md#d3).
    """
    question = problem(
        tasks(numbered(4)),
        member("m1", "0_0", lags={"0_2": 0}),
        member("m2", "0_1", warmup="0_2", lags={"0_2": 5000}, capacity=2),
        member("m3", "0_3", lags={"0_2": 0}),
        in_flight=[in_flight("0_2", None, "m2", "revoking")],
    )
    answer = plan(question)
    assert text(answer.members["m2"].active) == "0_1 0_2"
    assert answer.members["m2"].warmup == ()
    assert answer.reasons[parse_task("0_2")].code == "carried"


def test_dead_sources_task_goes_to_the_best_copy():
    """0_0 was warming up on m2 when its owner died: m3, a standby, is caught up and runs it; the
    movement continues from m3.
    """
    question = problem(
        tasks("0_0"),
        member("m2", warmup="0_0", lags={"0_0": 40_000}),
        member("m3", standby="0_0", lags={"0_0": 0}),
        in_flight=[in_flight("0_0", None, "m2", "warming")],
        num_standbys=1,
    )
    answer = plan(question)
    assert text(answer.members["m3"].active) == "0_0"
    assert movements(answer) == ["0_0 m3 -> m2 warming"]
    alone = attrs.evolve(question, members=question.members[:1])
    assert text(plan(alone).members["m2"].active) == "0_0"


def test_movements_whose_reason_is_gone_are_forgotten():
    """The machine drops them; whoever asks otherwise gets the same."""
    two = numbered(2)
    question = problem(
        tasks(two), member("m1", two), member("m2", leaving=True, warmup="0_0", lags={"0_0": 3}), in_flight=[in_flight("0_0", "m1", "m2", "warming")]
    )
    answer = plan(question)
    assert answer.movements == ()
    assert answer.members["m2"].warmup == ()


def test_blocked_pairs_begin_nothing():
    """The only destination there is stalled on 0_0: another task moves; when all are blocked, one
    waits and says so.
    """
    two = numbered(2)
    question = problem(tasks(two), member("m1", two), member("m2", lags={"0_0": 1000}), blocked=[("0_0", "m2")])
    assert movements(plan(question)) == ["0_1 m1 -> m2 warming"]
    both = problem(tasks(two), member("m1", two), member("m2", lags={"0_0": 1000}), blocked=[("0_0", "m2"), ("0_1", "m2")])
    answer = plan(both)
    assert [each.state for each in answer.movements] == [MovementState.WAITING]
    assert answer.reasons[answer.movements[0].task].code == "blocked"
    assert answer.probing


def test_blocked_task_goes_to_another_member():
    six = numbered(6)
    for name in ("m2", "m3"):
        blocked = [(task, name) for task in ("0_0", "0_1", "0_2", "0_3")]
        answer = plan(problem(tasks(six), member("m1", six), member("m2"), member("m3"), blocked=blocked))
        assert not {(str(each.task), each.destination) for each in answer.movements} & set(blocked)


# Who may run what


def test_rolling_deploy_new_sub_topologies_go_to_new_members():
    answer = plan(problem(tasks("0_0 0_1 1_0 1_1"), member("old", "0_0 0_1", subtopologies=[0]), member("new")))
    assert text(answer.members["new"].active) == "1_0 1_1"
    assert answer.cost.moves == 0


def test_rolling_deploy_new_partitions_go_to_new_members():
    answer = plan(problem(tasks("0_0 0_1 0_2 0_3"), member("old", "0_0 0_1", subtopologies={0: 2}), member("new")))
    assert text(answer.members["new"].active) == "0_2 0_3"
    assert answer.cost.moves == 0


def test_standbys_of_new_partitions_are_kept_by_new_members_only():
    question = problem(
        tasks("0_0 0_1 0_2 0_3"), member("old", "0_0 0_1", subtopologies={0: 2}), member("n1", "0_2"), member("n2", "0_3"), num_standbys=1
    )
    kept = {name: set(part.standby) for name, part in plan(question).members.items()}
    assert kept["old"] <= set(ids("0_0 0_1"))
    assert kept["n1"] | kept["n2"] >= set(ids("0_2 0_3"))


@pytest.mark.parametrize("partitions", [0, 1, 2, 3, 4, 9])
def test_eligible_members_know_the_task(partitions: int):
    known = {0: 3} if partitions == 0 else {0: 3, 1: partitions}
    question = problem(tasks("0_0 0_1 1_1 1_3"), member("m1", subtopologies=known), member("m2", leaving=True), member("m3", subtopologies={1: 2}))
    indexed = IndexedProblem(question)
    staying = [each for each in question.members if not each.leaving]
    for task in indexed.tasks:
        assert indexed.eligible(task).members == tuple(each.id for each in staying if each.knows(task))
        assert all(indexed.may_run(each.id, task) == (each in staying and each.knows(task)) for each in question.members)
    assert indexed.eligible_for_any(0).members == ("m1",)


def test_task_without_eligible_member_stays_unassigned():
    answer = plan(problem(tasks("0_0 1_0"), member("m1", subtopologies=[0])))
    assert text(answer.members["m1"].active) == "0_0"
    assert text(answer.target["m1"]) == "0_0"


def test_owner_keeps_task_only_it_can_run():
    answer = plan(problem(tasks("0_0 1_0"), member("m1", "0_0 1_0", subtopologies=[0]), member("m2", subtopologies=[])))
    assert text(answer.members["m1"].active) == "0_0 1_0"


def test_task_unknown_to_its_owner_warms_up_elsewhere():
    answer = plan(problem(tasks("0_0 1_0"), member("m1", "0_0 1_0", subtopologies=[0]), member("m2")))
    assert movements(answer) == ["1_0 m1 -> m2 warming"]


def test_tasks_the_topology_dropped_are_revoked():
    answer = plan(problem(tasks("0_0"), member("m1", "0_0 7_7")))
    assert (text(answer.members["m1"].active), text(answer.members["m1"].revoke)) == ("0_0", "7_7")


def test_plan_of_an_empty_group():
    assert plan(problem(tasks("0_0"))).members == {}
    assert plan(problem(())).probing is False
    assert plan(problem((), member("m1"))).target == {"m1": ()}


# Leaving


def test_leaving_members_tasks_warm_up_elsewhere():
    answer = plan(problem(tasks(numbered(4)), member("m1", "0_0 0_1", leaving=True), member("m2", "0_2"), member("m3", "0_3")))
    assert sorted(len(target) for target in answer.target.values()) == [0, 2, 2]
    assert [each.state for each in answer.movements] == [MovementState.WARMING] * 2
    assert text(answer.members["m1"].active) == "0_0 0_1"
    assert {answer.reasons[each.task].code for each in answer.movements} == {"leaving"}


def test_drain_expired_tasks_go_at_once_to_the_best_copies():
    question = problem(
        tasks(numbered(2), "1_0"),
        member("m1", "0_0 0_1 1_0", leaving=True, drain_expired=True),
        member("m2", lags={"0_0": 5000}),
        member("m3", lags={"0_0": 90_000, "0_1": UNKNOWN}),
    )
    answer = plan(question)
    assert {str(each.task): each.destination for each in answer.movements if each.task.subtopology == 0} == {"0_0": "m2", "0_1": "m3"}
    assert [each.state for each in answer.movements] == [MovementState.REVOKING] * 3
    assert text(answer.members["m1"].revoke) == "0_0 0_1 1_0"
    assert answer.reasons[parse_task("0_0")] == Reason(code="overdue", lag_records=5000, because="overdue")


def test_overdue_task_goes_to_a_caught_up_member_not_a_warm_up():
    question = problem(
        tasks("0_0"),
        member("m1", "0_0", leaving=True, drain_expired=True),
        member("m2", warmup="0_0", lags={"0_0": 5000}),
        member("m3", lags={"0_0": 0}),
        in_flight=[in_flight("0_0", "m1", "m2", "warming")],
    )
    assert movements(plan(question)) == ["0_0 m1 -> m3 revoking"]


def test_last_member_leaving_revokes_at_once():
    """docs/protocol.md#m7: the drain timeout is zero; the last member revokes and may go."""
    answer = plan(problem(tasks("0_0"), member("m1", "0_0", leaving=True)))
    assert text(answer.members["m1"].revoke) == "0_0"
    assert answer.target == {"m1": ()}
    assert answer.movements == ()
    assert answer.reasons[parse_task("0_0")].code == "leaving"


# Standbys


@pytest.mark.parametrize("wanted", [0, 1, 2, 3])
def test_standbys_as_many_as_asked_and_fit(wanted: int):
    """The KIP places one ("if count < num_standbys"); it means n."""
    answer = plan(problem(tasks(numbered(6), "1_0"), member("m1"), member("m2"), member("m3"), num_standbys=wanted))
    standbys = [task for part in answer.members.values() for task in part.standby]
    assert len(standbys) == 6 * min(wanted, 2)
    assert all(task.subtopology == 0 for task in standbys)
    assert {len(part.standby) for part in answer.members.values()} == {2 * min(wanted, 2)}


def test_scarce_standbys_are_shared_round_by_round():
    """All tasks get their first before any gets its second, and copies count with active tasks:
    no member is above its share.
    """
    answer = plan(problem(tasks(numbered(10)), *(member(f"m{index}") for index in range(5)), num_standbys=3))
    assert {copies(answer, f"m{index}") for index in range(5)} == {8}


def test_standbys_of_a_member_are_spread():
    """So its work is, when it dies: of nine tasks on each of four members, no other member holds
    more than three.
    """
    answer = plan(problem(tasks(numbered(36)), *(member(f"m{index}") for index in range(4)), num_standbys=1))
    for part in answer.members.values():
        held = [len(set(part.active) & set(other.standby)) for other in answer.members.values()]
        assert sorted(held) == [0, 3, 3, 3]


def test_standbys_stay_where_they_are():
    question = problem(tasks("0_0 0_1"), member("m1", "0_0", standby="0_1"), member("m2", "0_1", standby="0_0"), num_standbys=1)
    answer = plan(question)
    assert (text(answer.members["m1"].standby), text(answer.members["m2"].standby)) == ("0_1", "0_0")
    assert answer.reasons == {}


def test_standby_prefers_a_left_over_copy():
    answer = plan(problem(tasks(numbered(3)), member("m1", "0_0"), member("m2", "0_1"), member("m3", "0_2", lags={"0_0": 700}), num_standbys=1))
    assert parse_task("0_0") in answer.members["m3"].standby


def test_previous_owner_becomes_the_standby():
    """m2, the standby, has just been granted 0_0; m1 has a fresh copy left."""
    question = problem(
        tasks("0_0 0_1"),
        member("m1", "0_1", lags={"0_0": 0}),
        member("m2", standby="0_0", lags={"0_0": 0}),
        member("m3"),
        in_flight=[in_flight("0_0", None, "m2", "revoking")],
        num_standbys=1,
    )
    answer = plan(question)
    assert (text(answer.members["m2"].active), parse_task("0_0") in answer.members["m1"].standby) == ("0_0", True)


def test_surplus_standbys_drop_the_destinations_last():
    """num_standbys was 2 and is 1 now; m3's copy is the one that is to take over."""
    question = problem(
        tasks("0_0 0_1 0_2"),
        member("m1", "0_0 0_1"),
        member("m2", "0_2", standby="0_0", lags={"0_0": 0}),
        member("m3", standby="0_0", lags={"0_0": 900}),
        in_flight=[in_flight("0_0", "m1", "m3", "warming")],
        num_standbys=1,
    )
    answer = plan(question)
    assert parse_task("0_0") in answer.members["m3"].standby
    assert parse_task("0_0") not in answer.members["m2"].standby


def test_standby_moves_without_loss():
    """m1 holds all standbys of m2's tasks, m3 none: the copy restores on m3 as a warm-up, and m1
    keeps its own until then.
    """
    even = problem(
        tasks(numbered(6)),
        member("m1", "0_0 0_1", standby="0_2 0_3 0_4 0_5", every=0, of="0_2 0_3 0_4 0_5"),
        member("m2", "0_2 0_3", standby="0_0 0_1", every=0, of="0_0 0_1"),
        member("m3", "0_4 0_5"),
        num_standbys=1,
    )
    answer = plan(even)
    assert answer.probing
    assert answer.movements == ()
    assert len(answer.members["m1"].standby) == 4
    (moved, *more) = answer.members["m3"].warmup
    assert moved in answer.members["m1"].standby
    warm = attrs.evolve(
        even,
        members=(
            *even.members[:2],
            attrs.evolve(even.members[2], warmup=(moved, *more), lags={**even.members[2].lags, moved: 0, **dict.fromkeys(more, 0)}),
        ),
    )
    settled = plan(warm)
    assert moved in settled.members["m3"].standby
    assert moved not in settled.members["m1"].standby


def test_leaving_members_standby_stays_until_replaced():
    question = problem(
        tasks("0_0 0_1"),
        member("m1", "0_0", standby="0_1", lags={"0_1": 0}),
        member("m2", "0_1"),
        member("m3", standby="0_0", leaving=True, lags={"0_0": 0}),
        num_standbys=1,
    )
    answer = plan(question)
    assert text(answer.members["m3"].standby) == "0_0"
    assert text(answer.members["m2"].warmup) == "0_0"
    assert answer.probing


def test_destination_keeps_the_standby_of_two_members():
    """Kafka's shouldNotAssignWarmupAndStandbyToTheSameClient: no other member can hold it, so
    no slot is needed.
    """
    answer = plan(problem(tasks(numbered(4)), member("m1", numbered(4)), member("m2"), num_standbys=1, max_warmups=1))
    assert text(answer.members["m2"].standby) == numbered(4)
    assert [each.state for each in answer.movements] == [MovementState.WARMING] * 2
    assert answer.members["m2"].warmup == ()


# What it says of itself


def test_name_version_solver_and_guarantees():
    assignor = HighAvailability()
    assert (assignor.name, assignor.version) == ("high_availability", 3)
    assert assignor.solver == "ortools-9.15.6755"
    assert assignor.guarantees == frozenset(Guarantee)


@pytest.mark.parametrize(
    ("question", "field"),
    [
        (problem((*tasks("0_0"), *tasks("0_0")), member("m1")), "tasks"),
        (problem(tasks("0_0"), member("m1"), member("m1")), "members"),
        (problem(tasks("0_0"), member("m1", "0_0"), member("m2", "0_0")), "members[m2].active"),
        (problem(tasks("0_0"), member("m1", capacity=0)), "members[m1].capacity"),
        (problem(tasks("0_0"), member("m1"), in_flight=[in_flight("0_0", None, "m1", "warming")] * 2), "in_flight"),
    ],
)
def test_problems_that_contradict_themselves(question: object, field: str):
    with pytest.raises(FieldError) as caught:
        HighAvailability().assign(question)  # type: ignore[arg-type]
    assert caught.value.field == field
    assert "\n" not in str(caught.value)


def test_numbers_at_their_limits():
    """Everything a setting, a capacity or a changelog may be: a plan all the same."""
    most = 2**63 - 1
    question = problem(
        tasks(numbered(3), "1_0", end_offset=most * 5),
        member("m1", "0_0 0_1", lags={"0_2": most}, capacity=most),
        member("m2", lags={"0_2": most - 1}, speed=10**300),
        balance_factor=most,
        acceptable_recovery_lag=0,
        num_standbys=1000,
        max_warmups=most,
        max_warmups_per_member=most,
    )
    assert plan(question).cost.imbalance == 0
    assert plan(attrs.evolve(question, settings=attrs.evolve(question.settings, balance_factor=1, acceptable_recovery_lag=most))).cost.imbalance == 0
