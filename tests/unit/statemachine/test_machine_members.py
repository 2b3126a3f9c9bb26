"""Members as the machine sees them: leases, incarnations, force and proof, revocations, leaving,
topologies.
"""

from __future__ import annotations

from typing import Any

import pytest

from equipoise.events.decisions import AssignmentIssued, BalanceEvaluated, Decision, MemberExpired
from equipoise.events.facts import LagReported, LeaveCancelled, LeaveIntended, MemberLeft, TaskReady, TasksRevoked
from equipoise.statemachine.state import REMEMBERED_TOPOLOGIES, MemberPhase
from tests.groups import SESSION_MS, Group, assigned, configured, joined, rejections, tasks, topology


def expired(decisions: list[Decision]) -> list[tuple[str, str, int]]:
    return [(each.member_id, each.cause, each.hold_ms) for each in decisions if isinstance(each, MemberExpired)]


def causes(decisions: list[Decision]) -> list[str]:
    return [each.cause for each in decisions if isinstance(each, AssignmentIssued)]


# Leases (M4, L3)


def test_silent_member_expires_at_its_session_timeout():
    group = Group().starts("m1", "m2", stateless=2)
    group.cycle()
    mine = group.members["m1"].active
    while (left_ms := group.state.members["m1"].last_heard_ms + SESSION_MS - group.state.now_ms) > 1_000:
        group.members["m2"].reports()
        assert expired(group.tick(1_000)) == []
    assert expired(group.tick(left_ms - 1)) == []
    out = group.tick(1)
    assert expired(out) == [("m1", "session_timeout", 0)]
    assert causes(out) == ["expiry"]
    assert set(mine) <= set(assigned(out)["m2"].active)
    assert assigned(out)["m2"].hold_ms == {}, "its lease is over, so there is no hold"


def test_due_deadlines_are_handled_before_the_record():
    """A heartbeat that is appended too late does not save its member."""
    group = Group().starts("m1", "m2", stateless=2)
    group.cycle()
    silent_ms = group.state.now_ms - group.state.members["m1"].last_heard_ms
    group.pass_ms(SESSION_MS - silent_ms - 1)
    late = group.fact(group.members["m1"].report(), after_ms=1)
    assert expired(late) == [("m1", "session_timeout", 0)]
    assert rejections(late) == ["unknown_member"]


def test_rejected_report_renews_the_lease():
    group = Group().starts("m1", stateless=1)
    for number in range(100):
        assert rejections(group.fact(LagReported("m1", 1, number, 500), after_ms=900)) == ["epoch_from_future"]
    assert list(group.state.members) == ["m1"]


def test_report_of_another_incarnation_renews_no_lease():
    group = Group().starts("m1", stateless=1)
    gone: list[tuple[str, str, int]] = []
    for number in range(60):
        gone += expired(group.fact(LagReported("m1", 9, number, 0), after_ms=900))
    assert gone == [("m1", "session_timeout", 0)]


def test_session_timeout_is_that_of_the_join():
    group = Group()
    group.fact(configured(initial_delay_ms=0))
    group.join("m1", session_timeout_ms=5_000, lease_margin_ms=1_000)
    group.fact(configured(initial_delay_ms=0, revocation_timeout_ms=1))
    assert expired(group.pass_ms(4_999)) == []
    assert expired(group.tick(1)) == [("m1", "session_timeout", 0)]


def test_members_that_expire_at_once_leave_an_empty_group():
    group = Group().starts("m1", "m2", stateless=2)
    assert expired(group.pass_ms(SESSION_MS - 1)) == []
    out = group.tick(1)
    assert [name for name, *_ in expired(out)] == ["m1", "m2"]
    assert group.state.members == {}
    assert group.state.owner == {}
    assert group.machine.next_deadline_ms is None


# Identity (M1) and force (M5)


def test_second_process_takes_over_with_holds():
    group = Group().starts("m1", stateless=2)
    group.cycle()
    taken = group.fact(joined("m1", 2))
    assert expired(taken) == [("m1", "superseded", SESSION_MS)]
    told = assigned(taken)["m1"]
    assert (told.incarnation, told.assignment_epoch) == (2, 1)
    assert told.hold_ms == dict.fromkeys(tasks("1_0", "1_1"), SESSION_MS)
    assert told.tokens == (2, 2)


def test_successor_with_proof_gets_no_holds():
    group = Group().starts("m1", stateless=2)
    group.cycle()
    back = group.fact(joined("m1", 2, ended_incarnation=1))
    assert expired(back) == [("m1", "proven_dead", 0)]
    assert assigned(back)["m1"].hold_ms == {}


def test_proof_of_another_incarnation_is_ignored():
    group = Group().starts("m1", stateless=1)
    group.cycle()
    assert expired(group.fact(joined("m1", 3, ended_incarnation=2))) == [("m1", "superseded", SESSION_MS)]


def test_hold_stays_until_a_member_is_known_to_run_the_task():
    group = Group().starts("m1", stateless=1)
    group.cycle()
    group.join("m1", 2)
    (task,) = tasks("1_0")
    group.fact(LagReported("m1", 2, 0, 1))  # it has read its grant and still waits
    assert group.state.holds == {task: SESSION_MS}
    again = group.fact(joined("m1", 3, session_timeout_ms=20_000))
    assert assigned(again)["m1"].hold_ms == {task: SESSION_MS}, "the first process may still run"
    group.fact(LagReported("m1", 3, 0, 1, held=(task,)))
    assert group.state.holds == {}


def test_proof_of_death_keeps_the_hold_of_an_earlier_fenced_incarnation():
    group = Group().starts("m1", stateless=1)
    group.cycle()
    group.fact(joined("m1", 2))
    back = group.fact(joined("m1", 3, ended_incarnation=2))
    assert assigned(back)["m1"].hold_ms == {tasks("1_0")[0]: SESSION_MS}


def test_hold_stays_when_the_waiting_owner_expires():
    group = Group().starts("m1", stateless=1)
    group.cycle()
    group.fact(joined("m1", 2, session_timeout_ms=4_000))
    group.pass_ms(4_000)
    group.join("m2")
    assert group.state.holds == {tasks("1_0")[0]: SESSION_MS}


def test_facts_of_a_superseded_incarnation_are_stale():
    group = Group().starts("m1", stateless=1)
    group.cycle()
    late = group.members["m1"].report()
    group.fact(joined("m1", 2))
    assert rejections(group.fact(late)) == ["stale_incarnation"]
    assert rejections(group.fact(MemberLeft(member_id="m1", incarnation=1))) == ["stale_incarnation"]
    assert group.state.members["m1"].incarnation == 2


def test_join_repeated_by_its_producer_is_rejected():
    group = Group().starts("m1", stateless=1)
    group.fact(joined("m1", 2))
    assert rejections(group.fact(joined("m1", 1))) == ["join_repeated"]
    assert group.state.members["m1"].incarnation == 2


# Revocation (M2, M3, M7)


def two_with_a_task_on_its_way(**settings: Any) -> Group:
    """m1 runs 1_0 and 1_1; m2 has joined, so one of them must move there."""
    group = Group().starts("m1", stateless=2, **settings)
    group.cycle()
    group.join("m2")
    assert len(group.state.members["m1"].revoking) == 1
    return group


def given_up(group: Group) -> Any:
    (task,) = group.state.members["m1"].revoking
    return task


def test_grant_follows_the_acknowledged_revocation_in_one_step():
    group = two_with_a_task_on_its_way()
    task = given_up(group)
    assert list(assigned(group.members["m2"].answer)) == ["m1"]
    granted = group.fact(TasksRevoked(member_id="m1", incarnation=1, assignment_epoch=2, tasks=(task,)))
    assert assigned(granted)["m2"].active == (task,)
    assert assigned(granted)["m2"].tokens == (2,)
    assert (assigned(granted)["m1"].active, assigned(granted)["m1"].revoke) == (tuple(group.state.members["m1"].active), ())
    assert group.state.owner[task] == "m2"


def test_report_without_a_revoked_task_acknowledges_the_revocation():
    group = two_with_a_task_on_its_way()
    task = given_up(group)
    kept = tuple(sorted(group.state.members["m1"].active))
    assert assigned(group.fact(LagReported("m1", 1, 50, 1, held=kept))) == {}, "it does not know of the revocation yet"
    assert assigned(group.fact(LagReported("m1", 1, 51, 2, held=tuple(sorted({*kept, task}))))) == {}, "it is still closing it"
    assert assigned(group.fact(LagReported("m1", 1, 52, 2, held=kept)))["m2"].active == (task,)


def test_revocation_with_another_epoch_is_rejected():
    group = two_with_a_task_on_its_way()
    task = given_up(group)
    m1: dict[str, Any] = {"member_id": "m1", "incarnation": 1}
    assert rejections(group.fact(TasksRevoked(**m1, assignment_epoch=1, tasks=(task,)))) == ["epoch_too_low"]
    assert rejections(group.fact(TasksRevoked(**m1, assignment_epoch=3, tasks=(task,)))) == ["epoch_from_future"]
    assert group.state.owner[task] == "m1"
    assert rejections(group.fact(TasksRevoked(**m1, assignment_epoch=2, tasks=(task,)))) == []
    assert rejections(group.fact(TasksRevoked(**m1, assignment_epoch=2, tasks=(task,)))) == ["not_revoking"]


def test_acknowledgement_is_not_outdated_by_rounds_of_other_members():
    """With one group generation as the fence, an acknowledgement of generation 2 would be outdated
    once generation 3 changed another member (M3).
    """
    group = two_with_a_task_on_its_way()
    task = given_up(group)
    generation = group.state.generation
    group.join("m3")
    group.fact(MemberLeft(member_id="m3", incarnation=1))
    assert group.state.generation >= generation
    epoch = group.state.members["m1"].revoking[task][0]
    assert rejections(group.fact(TasksRevoked(member_id="m1", incarnation=1, assignment_epoch=epoch, tasks=(task,)))) == []


def test_member_that_does_not_revoke_is_expelled_with_holds():
    group = two_with_a_task_on_its_way(revocation_timeout_ms=5_000)
    for number in range(100, 104):
        assert expired(group.fact(LagReported("m1", 1, number, 2, held=tasks("1_0", "1_1")), after_ms=1_000)) == []
    assert expired(group.tick(999)) == []
    assert expired(group.tick(1)) == [("m1", "revocation_timeout", SESSION_MS)]
    owned = group.state.members["m2"].active
    assert set(owned) == set(tasks("1_0", "1_1"))
    assert set(group.state.holds.values()) == {SESSION_MS}


def test_member_is_unreleased_while_another_revokes():
    group = two_with_a_task_on_its_way()
    state = group.state
    assert state.member_phase(state.members["m1"]) is MemberPhase.UNREVOKED
    assert state.member_phase(state.members["m2"]) is MemberPhase.UNRELEASED
    group.settles()
    assert {state.member_phase(member) for member in state.members.values()} == {MemberPhase.STABLE}


# Leaving (M7, invariant 6)


def test_leaving_member_hands_over_to_ready_copies_and_is_released():
    group = Group().starts("m1", "m2", stateful=4, stateless=2)
    group.settles()
    group.members["m1"].leaves()
    group.settles()
    assert "m1" not in group.state.members
    assert set(group.state.owner.values()) == {"m2"}
    stateful = [move for move in group.moves("granted") if move.source == "m1" and move.task.subtopology == 0]
    assert {move.lag_records for move in stateful} == {0}, "each went to a caught-up copy"


def test_leave_intended_begins_the_drain_and_leave_cancelled_ends_it():
    group = Group().starts("m1", "m2", stateful=4)
    group.settles()
    m1: dict[str, Any] = {"member_id": "m1", "incarnation": 1}
    assert causes(group.fact(LeaveIntended(**m1))) == ["leave_intended"]
    assert group.state.members["m2"].warmup
    assert causes(group.fact(LeaveCancelled(**m1))) == ["leave_cancelled"]
    assert not group.state.members["m2"].warmup
    assert group.state.members["m1"].drain_deadline_ms is None


def test_leaving_member_is_released_with_its_last_task_though_no_round_begins():
    group = Group().starts("m1", "m2", "m3", stateless=3)
    group.settles()
    leaving = [group.members[name] for name in ("m1", "m2")]
    for member in leaving:
        member.leaves()
        member.reports()
    out = leaving[0].reports()
    assert not any(isinstance(each, BalanceEvaluated) for each in out), "m2 still hands its task over"
    assert (assigned(out)["m1"].active, assigned(out)["m1"].released) == ((), True)


def test_released_member_cannot_cancel_its_leave():
    group = Group().starts("m1", "m2", stateless=2)
    group.settles()
    group.members["m1"].leaves()
    group.members["m1"].reports()
    group.members["m1"].reports()
    assert group.state.members["m1"].released
    assert rejections(group.fact(LeaveCancelled(member_id="m1", incarnation=1))) == ["already_released"]


def test_last_member_that_leaves_is_released_at_once():
    group = Group().starts("m1", stateful=2)
    group.settles()
    group.members["m1"].leaves()
    for _ in range(3):
        group.cycle()
    assert group.state.members == {}


def test_drain_timeout_moves_tasks_to_cold_members():
    group = Group().starts("m1", stateful=2, drain_timeout_ms=10_000)
    group.settles()
    group.join("m2", restores=0)
    group.members["m1"].leaves()
    for _ in range(3):
        group.cycle()
        assert set(group.state.owner.values()) == {"m1"}
    for _ in range(3):
        group.cycle()
    assert set(group.state.owner.values()) == {"m2"}


def test_member_left_frees_its_tasks_at_once_without_a_hold():
    group = Group().starts("m1", "m2", stateless=2)
    group.cycle()
    left = group.fact(MemberLeft(member_id="m1", incarnation=1))
    assert len(assigned(left)["m2"].active) == 2
    assert assigned(left)["m2"].hold_ms == {}
    assert causes(left) == ["leave"]


# Topologies (D1)


def test_member_of_an_old_topology_gets_no_new_subtopology():
    group = Group().starts("m1", stateful=2)
    group.settles()
    group.fact(topology(epoch=2, stateful=2, stateless=2))
    assert set(group.state.owner) == set(tasks("0_0", "0_1"))
    group.join("m2", topology_epoch=2)
    group.settles()
    owners = group.owners()
    assert {task for task, owner in owners.items() if owner == "m2"} >= set(tasks("1_0", "1_1"))


def test_member_ahead_of_the_topology_gets_nothing_until_it_is_declared():
    group = Group().starts(stateless=2)
    assert assigned(group.join("m1", topology_epoch=2).answer) == {}
    assert set(assigned(group.fact(topology(epoch=2, stateless=2)))) == {"m1"}


def test_member_of_a_remembered_old_topology_may_return():
    group = Group().starts(stateless=2)
    group.fact(topology(epoch=2, stateless=3))
    assert assigned(group.join("m1", topology_epoch=1).answer)["m1"].active == tasks("1_0", "1_1")


def test_member_of_an_old_topology_gets_no_new_partitions():
    group = Group().starts("old", stateful=3, num_standbys=1)
    group.settles()
    group.fact(topology(epoch=2, stateful=6))
    assert set(group.state.owner) == set(tasks("0_0", "0_1", "0_2")), "no member can run the others yet"
    group.join("new", topology_epoch=2)
    group.settles()
    new = tasks("0_3", "0_4", "0_5")
    assert {task for task, owner in group.owners().items() if owner == "new"} >= set(new)
    assert not group.state.members["old"].standby.intersection(new), "it keeps no copy of a task that it cannot run"
    assert group.state.members["new"].standby == set(tasks("0_0", "0_1", "0_2"))


def test_tasks_of_new_partitions_wait_when_their_only_member_dies():
    group = Group().starts("old", stateless=2)
    group.fact(topology(epoch=2, stateless=4))
    group.join("new", topology_epoch=2)
    group.cycle()
    assert {group.state.owner[task] for task in tasks("1_2", "1_3")} == {"new"}
    group.fact(MemberLeft(member_id="new", incarnation=1))
    assert set(group.state.owner) == set(tasks("1_0", "1_1"))
    assert group.state.verdict is not None


def test_partitions_that_come_back_go_to_members_that_know_them():
    group = Group().starts("six", stateless=6)
    group.settles()
    group.fact(topology(epoch=2, stateless=3))
    group.join("three", topology_epoch=2)
    group.settles()
    group.fact(topology(epoch=3, stateless=6))
    assert {task: owner for task, owner in group.state.owner.items() if task.partition >= 3} == dict.fromkeys(tasks("1_3", "1_4", "1_5"), "six")


def test_leaving_member_gives_up_a_partition_that_no_other_member_knows():
    group = Group().starts(stateless=2)
    group.fact(topology(epoch=2, stateless=4))
    group.join("old")
    group.join("new", topology_epoch=2)
    group.cycle()
    group.members["new"].leaves()
    for _ in range(4):
        group.cycle()
    assert set(group.state.owner) == set(tasks("1_0", "1_1"))
    assert "new" not in group.state.members


def test_eager_member_of_an_old_topology_gets_no_new_partitions():
    group = Group().starts(stateless=3)
    group.join("old", eager=True)
    group.fact(topology(epoch=2, stateless=6))
    group.join("new", topology_epoch=2, eager=True)
    group.settles()
    assert {group.state.owner[task] for task in tasks("1_3", "1_4", "1_5")} == {"new"}


def test_member_whose_topology_is_not_remembered_gets_nothing():
    group = Group().starts(stateless=2)
    for epoch in range(2, REMEMBERED_TOPOLOGIES + 3):
        group.fact(topology(epoch=epoch, stateless=2))
    assert assigned(group.join("m1", topology_epoch=1).answer) == {}


def test_topologies_without_members_are_forgotten():
    group = Group().starts("m1", stateless=2)
    for epoch in range(2, 3 * REMEMBERED_TOPOLOGIES):
        group.fact(topology(epoch=epoch, stateless=2))
    assert len(group.state.topologies) == REMEMBERED_TOPOLOGIES + 1, "the newest, and the one that m1 runs"
    assert 1 in group.state.topologies


def test_removed_tasks_are_revoked():
    group = Group().starts("m1", stateless=4)
    group.settles()
    told = assigned(group.fact(topology(epoch=2, stateless=2)))["m1"]
    assert (told.active, told.revoke) == (tasks("1_0", "1_1"), tasks("1_2", "1_3"))
    group.cycle()
    assert set(group.state.owner) == set(tasks("1_0", "1_1"))
    assert group.state.members["m1"].revoking == {}


def test_task_declared_again_has_a_higher_token():
    group = Group().starts("m1", stateless=2)
    group.settles()
    group.fact(topology(epoch=2, stateless=1))
    group.settles()
    told = assigned(group.fact(topology(epoch=3, stateless=2)))["m1"]
    assert dict(zip(told.active, told.tokens, strict=True)) == {tasks("1_0")[0]: 1, tasks("1_1")[0]: 2}


# Readiness


def test_announced_readiness_counts_as_caught_up():
    group = Group().starts("m1", stateful=2)
    group.settles()
    group.join("m2", restores=0)
    (task,) = group.state.members["m2"].warmup
    group.members["m2"].reports()
    ready = group.fact(TaskReady(member_id="m2", incarnation=1, assignment_epoch=1, tasks=(task,)))
    assert assigned(ready)["m1"].revoke == (task,)
    assert causes(ready) == ["ready"]


@pytest.mark.parametrize("capacity", [1, 3])
def test_shares_follow_capacity(capacity: int):
    group = Group().starts("m1", stateless=8)
    group.join("m2", capacity=capacity)
    group.settles()
    assert len(group.members["m2"].active) == 8 * capacity // (1 + capacity)


def test_task_that_two_dead_members_had_in_one_step_has_no_grant():
    """m1 gives a task up for m2. Both fall silent, and one record finds both dead: m2 never knew of
    its grant.
    """
    group = two_with_a_task_on_its_way()
    task = given_up(group)
    group.join("m3")
    group.pass_ms(SESSION_MS - 5_000)
    group.members["m3"].reports()
    assert group.state.in_flight[task].destination == "m2"
    group.fact(LagReported("m1", 1, 50, 2, held=tasks("1_0", "1_1")))
    group.fact(LagReported("m2", 1, 50, 0))
    group.pass_ms(SESSION_MS - 5_000)
    group.members["m3"].reports()
    out = group.pass_ms(5_000)
    assert [name for name, *_ in expired(out)] == ["m1", "m2"]
    assert set(group.state.owner) == set(tasks("1_0", "1_1"))
    assert set(group.state.owner.values()) == {"m3"}
    assert {move.destination for move in group.moves("granted")} == {"m1", "m3"}


def test_member_removed_before_it_knew_of_a_task_leaves_no_hold():
    group = two_with_a_task_on_its_way(revocation_timeout_ms=SESSION_MS)
    task = given_up(group)
    group.join("m3")
    assert group.state.in_flight[task].destination == "m2"
    group.fact(LagReported("m1", 1, 50, 2, held=tasks("1_0", "1_1")))
    out = group.fact(joined("m2", 2))  # m2 never had a task
    assert expired(out) == [("m2", "superseded", SESSION_MS)]
    assert group.state.holds == {}


def test_task_removed_in_the_step_of_its_hand_over_has_no_move():
    group = two_with_a_task_on_its_way()
    task = given_up(group)
    group.members["m2"].reports()
    silent_ms = group.state.now_ms - group.state.members["m1"].last_heard_ms
    for _ in range((SESSION_MS - silent_ms) // 1_000 - 1):
        group.tick(1_000)
        group.members["m2"].reports()
    assert "m1" in group.state.members
    out = group.fact(topology(epoch=2, stateless=task.partition), after_ms=1_000)
    assert expired(out) == [("m1", "session_timeout", 0)]
    assert task not in group.state.owner
    told = [move for each in out if isinstance(each, AssignmentIssued) for move in each.moves if move.task == task]
    assert [(move.state, move.reason, move.destination) for move in told] == [("cancelled", "task_gone", "m2")]
