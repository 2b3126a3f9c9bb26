"""Movements in the machine: warm up, hand over, grant; movements that stall, are wiped,
reconfigured or cancelled; and sixty tasks when a seventh member joins.
"""

from __future__ import annotations

from typing import Any

import pytest

from equipoise.assignors import MovementState
from equipoise.events.decisions import AssignmentIssued, BalanceEvaluated, Decision, MemberAssigned
from equipoise.events.facts import LagReported, LeaveIntended, PartitionsObserved, TasksRevoked
from equipoise.events.tasks import LagSentinel, TaskId
from tests.groups import Group, assigned, configured, joined, rejections, tasks, topology
from tests.support.reference_model.invariants import check_snapshot_replay


def causes(decisions: list[Decision]) -> list[str]:
    return [each.cause for each in decisions if isinstance(each, AssignmentIssued)]


def verdicts(decisions: list[Decision]) -> list[str]:
    return [each.verdict for each in decisions if isinstance(each, BalanceEvaluated)]


def one_to_move(*, restores: int = 0, **settings: Any) -> tuple[Group, TaskId]:
    """m1 runs 0_0 and 0_1; m2 has joined and warms one of them up, `restores` records per report."""
    group = Group().starts("m1", stateful=2, **settings)
    group.settles()
    group.join("m2", restores=restores)
    (task,) = group.state.members["m2"].warmup
    return group, task


def lags(group: Group, lag: int | LagSentinel, number: int) -> LagReported:
    """m2's report of its warm-up."""
    return LagReported("m2", 1, number, 1, lags=dict.fromkeys(sorted(group.state.members["m2"].warmup), lag))


# Sixty tasks, six members, a seventh


def test_sixty_tasks_six_members_and_a_seventh():
    group = Group().starts(*(f"m{number}" for number in range(1, 7)), stateful=60)
    group.settles()
    before, decided = group.owners(), len(group.decisions)
    assert sorted(before.values()) == sorted(f"m{number}" for number in range(1, 7) for _ in range(10))
    group.join("m7")
    group.settles()
    after = group.owners()
    changed = {task for task in after if after[task] != before[task]}
    assert len(changed) == 8
    assert {after[task] for task in changed} == {"m7"}

    since = [each.decision for each in group.decisions[decided:]]
    rounds = [each for each in since if isinstance(each, AssignmentIssued)]
    asked = [each for each in rounds if each.cause != "handover"]  # the others only complete earlier decisions
    assert [each.cause for each in asked] == ["join", "ready", "ready", "ready", "ready"]
    revoked = [move for each in rounds for move in each.moves if move.state == "revoking"]
    assert len(revoked) == 8
    assert all(move.lag_records is not None and move.lag_records <= 10_000 for move in revoked), "no task moves to a cold destination"
    told = {task for each in since if isinstance(each, MemberAssigned) for task in each.revoke}
    assert told == changed, "no other task moves"

    assert group.state.verdict == ("balanced", 0, 0, 0, 0)
    assert group.machine.next_deadline_ms is not None
    check_snapshot_replay(group.records, most_splits=20)


@pytest.mark.slow
def test_balanced_group_does_not_change_over_100000_ticks():
    group = Group(watched=False).starts(*(f"m{number}" for number in range(1, 7)), stateful=60, checkpoint_every_records=0)
    group.settles()
    group.join("m7")
    group.settles()
    decided, began_ms = len(group.decisions), group.state.now_ms
    for number in range(100_000):
        group.tick(100)
        if number % 250 == 0:  # 25 s: just in time
            for member in group.members.values():
                member.reports()
    assert len(group.decisions) == decided
    assert group.state.now_ms == began_ms + 10_000_000


# Life of a movement


def test_cold_joiner_warms_up_first():
    group, task = one_to_move()
    assert group.state.in_flight[task].state is MovementState.WARMING
    assert group.state.owner[task] == "m1"
    assert group.fact(lags(group, 20_000, 0)) == []
    ready = group.fact(lags(group, 10_000, 1))
    assert causes(ready) == ["ready"]
    assert verdicts(ready) == ["moving"]
    assert (assigned(ready)["m1"].revoke, list(assigned(ready))) == ((task,), ["m1"])
    assert group.state.members["m2"].warmup, "the destination keeps its copy until it is granted the task"
    granted = group.fact(TasksRevoked(member_id="m1", incarnation=1, assignment_epoch=2, tasks=(task,)))
    assert assigned(granted)["m2"].active == (task,)
    assert assigned(granted)["m2"].warmup == ()
    assert verdicts(granted) == ["balanced"]


def test_decided_grant_holds_though_its_destination_falls_behind():
    """Otherwise a destination at the threshold would flip back and forth at every tick (D3)."""
    group, task = one_to_move()
    group.fact(lags(group, 10_000, 0))
    assert group.fact(lags(group, 10_001, 1)) == []
    assert group.fact(lags(group, 9_999, 2)) == []
    granted = group.fact(TasksRevoked(member_id="m1", incarnation=1, assignment_epoch=2, tasks=(task,)))
    assert assigned(granted)["m2"].active == (task,)


@pytest.mark.parametrize("lag", [10_001, LagSentinel.UNKNOWN, LagSentinel.ACTIVE])
def test_unknown_lag_or_lag_above_the_limit_is_not_caught_up(lag: Any):
    group, _ = one_to_move()
    assert causes(group.fact(lags(group, lag, 0))) == []


def test_stateless_tasks_skip_warming():
    group = Group().starts("m1", stateless=4)
    group.cycle()
    join = group.join("m2").answer
    assert {move.state for each in join if isinstance(each, AssignmentIssued) for move in each.moves} == {"revoking"}
    group.settles()
    assert sorted(group.owners().values()) == ["m1", "m1", "m2", "m2"]


def test_warm_ups_stay_within_their_caps():
    group = Group().starts("m1", stateful=12, max_warmups=3, max_warmups_per_member=2)
    group.settles()
    group.join("m2", restores=0)
    group.join("m3", restores=0)
    warming = {name: len(member.warmup) for name, member in group.state.members.items()}
    assert sum(warming.values()) == 3
    assert max(warming.values()) == 2
    assert group.state.waiting == 5


def test_ready_copy_is_moved_before_the_next_probing():
    group, _ = one_to_move(probing_interval_ms=600_000)
    assert group.state.probing_deadline_ms is not None
    assert causes(group.fact(lags(group, 0, 0), after_ms=100)) == ["ready"]


def test_probing_deadline_moves_with_natural_rounds_only():
    group, _ = one_to_move(probing_interval_ms=20_000)
    first_ms = group.state.probing_deadline_ms
    assert first_ms == group.state.now_ms + 20_000
    group.fact(lags(group, 5, 0), after_ms=500)
    assert group.state.probing_deadline_ms == first_ms
    group.join("m3", restores=0)
    assert group.state.probing_deadline_ms == group.state.now_ms + 20_000


def test_probing_goes_on_while_movements_wait_and_stops_when_balanced():
    group, _ = one_to_move(restores=9_000, probing_interval_ms=4_000)
    group.settles()
    assert group.state.probing_deadline_ms is None


# What ends a movement


def test_dead_destination_ends_its_movement():
    group, task = one_to_move()
    group.fact(lags(group, 0, 0))
    assert group.state.in_flight[task].state is MovementState.REVOKING
    back = group.fact(joined("m2", 2, ended_incarnation=1))
    (cancelled,) = [move for each in back if isinstance(each, AssignmentIssued) for move in each.moves if move.state == "cancelled"]
    assert (cancelled.task, cancelled.destination, cancelled.reason) == (task, "m2", "destination_gone")
    assert task in assigned(back)["m1"].active, "the source is granted it again, with a new token"
    assert assigned(back)["m1"].tokens[assigned(back)["m1"].active.index(task)] == 2


def test_leaving_destination_ends_its_movement():
    group, _ = one_to_move()
    out = group.fact(LeaveIntended(member_id="m2", incarnation=1))
    assert assigned(out)["m2"].warmup == ()
    assert assigned(out)["m2"].released
    assert group.state.in_flight == {}


@pytest.mark.parametrize("caught_up", [False, True])
def test_destination_that_lost_its_copy_ends_its_movement(caught_up: bool):
    group, task = one_to_move()
    group.fact(lags(group, 0 if caught_up else 30_000, 0))
    wiped = group.fact(LagReported("m2", 1, 1, 1))
    assert causes(wiped) == ["wiped"]
    moves = [(move.state, move.reason) for each in wiped if isinstance(each, AssignmentIssued) for move in each.moves]
    assert moves[0] == ("cancelled", "destination_wiped")
    assert task in group.state.members["m1"].active
    assert group.fact(LagReported("m2", 1, 2, group.state.members["m2"].issued_epoch)) == [], "reported once, decided once"


def test_standby_that_lost_its_copy_ends_its_movement():
    group = Group().starts("m1", "m2", stateful=2, num_standbys=1)
    group.settles()
    group.fact(LeaveIntended(member_id="m1", incarnation=1))
    (task,) = group.state.members["m1"].revoking
    assert group.state.in_flight[task].destination == "m2"
    m2 = group.members["m2"]
    m2.reads()
    del m2.copies[task]
    wiped = group.fact(m2.report())
    assert causes(wiped) == ["wiped"]
    assert task in group.state.members["m1"].active


def test_task_of_a_dead_source_goes_to_a_caught_up_member():
    group, task = one_to_move()
    group.fact(lags(group, 0, 0))
    left = group.fact(joined("m1", 2, ended_incarnation=1))
    assert task in assigned(left)["m2"].active


def test_movement_cancelled_while_the_source_closes_returns_the_task():
    """The acknowledgement comes too late and is rejected. The member opens the task again, with a
    new token.
    """
    group, task = one_to_move()
    group.fact(lags(group, 0, 0))
    group.fact(joined("m2", 2, ended_incarnation=1))
    m1 = group.members["m1"]
    assert rejections(group.fact(TasksRevoked(member_id="m1", incarnation=1, assignment_epoch=2, tasks=(task,)))) == ["not_revoking"]
    m1.reads()
    assert m1.active[task] == 2
    assert group.fact(m1.report()) == []


# Stalls (M7)


def keep_alive(group: Group, duration_ms: int, lag: int) -> list[Decision]:
    """m1 and m2 report for this long; m2 reports the same lag of each of its warm-ups."""
    decisions: list[Decision] = []
    for _ in range(duration_ms // 1_000):
        m2 = group.members["m2"]
        m2.reads()
        m2.copies = dict.fromkeys(sorted(m2.keeps), lag)
        decisions += group.fact(m2.report(), after_ms=500)
        decisions += group.members["m1"].reports(after_ms=500)
    return decisions


def test_warm_up_without_progress_loses_its_slot():
    group, task = one_to_move(warmup_stall_ms=10_000)
    assert keep_alive(group, 10_000, 40_000) == []
    stalled = keep_alive(group, 1_000, 40_000)
    assert causes(stalled) == ["stalled"]
    moves = [(move.state, move.task == task) for each in stalled if isinstance(each, AssignmentIssued) for move in each.moves]
    assert sorted(moves) == [("cancelled", True), ("warming", False)], "the slot goes to another task"


def test_progress_restarts_the_time_to_stall():
    group, task = one_to_move(warmup_stall_ms=10_000)
    for lag in (40_000, 39_999, 39_998):
        assert keep_alive(group, 9_000, lag) == []
    assert task in group.state.in_flight


def test_back_off_doubles_with_each_stall():
    group, _ = one_to_move(warmup_stall_ms=10_000)
    waits: dict[tuple[TaskId, int], int] = {}
    for _ in range(400):
        keep_alive(group, 1_000, 40_000)
        for (task, _), backoff in group.state.backoffs.items():
            if not backoff.over:
                waits.setdefault((task, backoff.times), backoff.until_ms - group.state.now_ms)
    for task in tasks("0_0", "0_1"):
        observed = [waits[task, times] for times in (1, 2, 3, 4)]
        assert [round(wait_ms, -4) for wait_ms in observed] == [10_000, 20_000, 40_000, 80_000]
    assert group.state.members.keys() == {"m1", "m2"}


def test_verdict_is_blocked_while_every_pair_is_in_back_off():
    group, _ = one_to_move(warmup_stall_ms=10_000)
    seen: list[str] = []
    for _ in range(100):
        decisions = keep_alive(group, 1_000, 40_000)
        if group.state.verdict is not None and group.state.verdict[0] == "blocked":
            assert group.state.in_flight == {}
        seen += causes(decisions) + verdicts(decisions)
    assert "blocked" in seen
    assert "unblocked" in seen[seen.index("blocked") :]


def test_catching_up_clears_the_back_off():
    group, task = one_to_move(warmup_stall_ms=10_000)
    keep_alive(group, 11_000, 40_000)
    assert (task, "m2") in group.state.backoffs
    while task not in group.state.members["m2"].warmup:
        keep_alive(group, 1_000, 40_000)
    keep_alive(group, 1_000, 10)
    assert (task, "m2") not in group.state.backoffs
    group.settles()


# Change of configuration (D8)


def test_lower_caps_cancel_the_warm_ups_furthest_from_ready():
    group = Group().starts("m1", stateful=8, max_warmups=4, max_warmups_per_member=4)
    group.settles()
    group.join("m2", restores=0)
    warming = sorted(group.state.members["m2"].warmup)
    assert len(warming) == 4
    group.fact(LagReported("m2", 1, 0, 1, lags=dict(zip(warming, (40_000, 20_000, LagSentinel.UNKNOWN, 30_000), strict=True))))
    out = group.fact(configured(initial_delay_ms=0, max_warmups=2, max_warmups_per_member=2))
    ended = {move.task for each in out if isinstance(each, AssignmentIssued) for move in each.moves if move.state == "cancelled"}
    assert ended == {warming[0], warming[2]}, "a lag that is not known counts as the furthest"
    assert set(group.state.members["m2"].warmup) == {warming[1], warming[3]}


def test_lower_caps_keep_hand_overs_in_progress():
    group = Group().starts("m1", stateful=6, max_warmups=3, max_warmups_per_member=3)
    group.settles()
    group.join("m2", restores=0)
    near, ready, far = sorted(group.state.members["m2"].warmup)
    group.fact(LagReported("m2", 1, 0, 1, lags={near: 10_500, ready: 9_000, far: 40_000}))
    assert group.state.in_flight[ready].state is MovementState.REVOKING
    group.fact(LagReported("m2", 1, 1, 1, lags={near: 10_500, ready: 12_000, far: 40_000}))
    group.fact(configured(initial_delay_ms=0, max_warmups=1, max_warmups_per_member=1))
    assert set(group.state.members["m2"].warmup) == {ready}


def test_higher_caps_are_used_at_once():
    group = Group().starts("m1", stateful=8)
    group.settles()
    group.join("m2", restores=0)
    group.fact(configured(initial_delay_ms=0, max_warmups=4, max_warmups_per_member=4))
    assert len(group.state.members["m2"].warmup) == 4


def test_standbys_follow_num_standbys():
    group = Group().starts("m1", "m2", "m3", stateful=6)
    group.settles()
    for number in (1, 2, 1, 0):
        group.fact(configured(initial_delay_ms=0, num_standbys=number))
        group.settles()
        held = [task for member in group.state.members.values() for task in member.standby]
        assert len(held) == 6 * number


# Facts about partitions (D6)


def test_end_offset_is_the_lag_of_an_unreported_copy():
    group = Group().starts("m1", stateful=2, end_offset=0)
    group.settles()
    group.fact(PartitionsObserved(end_offsets={"log": {0: 7_000_000}}))
    assert group.state.end_offsets == {"log": {0: 7_000_000, 1: 0}}
    out = group.join("m2", restores=0).answer
    (move,) = [move for each in out if isinstance(each, AssignmentIssued) for move in each.moves]
    assert move.task == tasks("0_1")[0], "the one that is soonest ready"


# A new topology in the middle


def test_removed_task_ends_its_movement():
    group = Group().starts("m1", stateful=4)
    group.settles()
    group.join("m2", restores=0)
    moving = sorted(group.state.in_flight)
    out = group.fact(topology(epoch=2, stateful=moving[-1].partition))
    gone = {move.task: move.reason for each in out if isinstance(each, AssignmentIssued) for move in each.moves if move.state == "cancelled"}
    assert gone[moving[-1]] == "task_gone"
    assert moving[-1] not in group.state.members["m2"].warmup
