"""Members that stop and will be back (docs/protocol.md#m12)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from equipoise.events.decisions import AssignmentIssued, Decision, MemberExpired, RestartEnded, RestartPlanned
from equipoise.events.facts import (
    AssignmentObserved,
    LeaveCancelled,
    LeaveIntended,
    LeaveRequested,
    MemberEnded,
    MemberLeft,
    ObservedMember,
    PartitionsObserved,
    RestartIntended,
    TasksRevoked,
)
from equipoise.events.facts import Load as ReportedLoad
from equipoise.events.tasks import LagSentinel, TaskId
from equipoise.statemachine import restarts
from equipoise.statemachine.state import GroupState, Restart
from tests.groups import Group, Truthful, configured, joined, rejections, tasks, topology

WITHIN_MS = 20_000
NAMES = ("m1", "m2", "m3")


def group_of(*names: str, stateful: int = 9, **settings: Any) -> Group:
    group = Group().starts(*names, stateful=stateful, **{"acceptable_recovery_lag": 100, "max_warmups": 20, "max_warmups_per_member": 20, **settings})
    group.settles()
    return group


def planned(decisions: Iterable[Decision]) -> list[RestartPlanned]:
    return [decision for decision in decisions if isinstance(decision, RestartPlanned)]


def ended(decisions: Iterable[Decision]) -> list[tuple[str, str, int]]:
    return [(each.member_id, each.outcome, each.away_ms) for each in decisions if isinstance(each, RestartEnded)]


def goes_away(group: Group, name: str, within_ms: int | None = WITHIN_MS) -> Truthful:
    """The member restarts, and is away now. Returns it."""
    member = group.members[name]
    member.restarts(within_ms)
    for _ in range(10):
        if name not in group.members:
            return member
        group.cycle()
    raise AssertionError(f"{name} was not released")


def comes_back(group: Group, old: Truthful) -> Truthful:
    return group.join(old.member_id, old.incarnation + 1, lags=dict(sorted(old.copies.items())))


def owners(group: Group) -> dict[TaskId, str]:
    return dict(sorted(group.state.owner.items()))


def test_restart_without_standbys_changes_no_owner() -> None:
    group = group_of(*NAMES, stateful=9, stateless=4)
    before, since = owners(group), len(group.moves())
    old = goes_away(group, "m1")
    assert owners(group) == before
    assert group.state.is_away("m1")
    group.pass_ms(WITHIN_MS - 5_000)
    comes_back(group, old)
    group.settles()
    assert owners(group) == before
    moves = [(move.state, move.reason) for move in group.moves()[since:]]
    assert moves == [("granted", "restarted")] * list(before.values()).count("m1")
    assert not group.state.restarts
    assert group.state.restart_times_ms["m1"] >= WITHIN_MS - 5_000


def test_tasks_with_a_caught_up_standby_are_lent_and_come_back() -> None:
    group = group_of(*NAMES, num_standbys=1)
    before, standbys = owners(group), {name: set(member.standby) for name, member in group.state.members.items()}
    mine = [task for task, name in before.items() if name == "m1"]
    since = len(group.moves())
    old = goes_away(group, "m1")
    assert sorted(group.state.lent) == mine
    assert {name for task, name in owners(group).items() if task in mine} <= {"m2", "m3"}
    assert not any(move.reason == "balance" for move in group.moves()[since:])
    group.cycle()
    group.cycle()
    comes_back(group, old)
    group.settles()
    assert owners(group) == before
    assert {name: set(member.standby) for name, member in group.state.members.items()} == standbys
    grants = [move.task for move in group.moves("granted")[-2 * len(mine) :]]
    assert sorted(grants) == sorted(2 * mine), "out and back, and nothing else"
    assert not group.state.lent


def test_plan_says_what_was_chosen_and_by_which_numbers() -> None:
    group = group_of(*NAMES, num_standbys=1)
    group.members["m1"].restarts(WITHIN_MS)
    (plan,) = planned(group.cycle())
    mine = tuple(task for task, name in owners(group).items() if name == "m1")
    assert (plan.member_id, plan.choice, plan.back_within_ms, plan.stated, plan.waiting) == ("m1", "wait", WITHIN_MS, True, ())
    assert plan.lent == tuple(sorted(group.state.lent))
    assert set(mine) <= set(plan.lent)


def test_member_that_is_not_back_in_time_is_given_up() -> None:
    group = group_of(*NAMES)
    goes_away(group, "m1", 5_000)
    decisions: list[Decision] = []
    for _ in range(4):
        decisions += group.cycle()
    assert ended(decisions)[0][:2] == ("m1", "not_back")
    assert "m1" not in group.state.members
    group.settles()
    assert set(owners(group).values()) == {"m2", "m3"}


def test_restarts_take_turns() -> None:
    group = group_of(*NAMES)
    old = group.members["m1"]
    old.restarts(WITHIN_MS)
    group.members["m2"].restarts(WITHIN_MS)
    decisions = group.cycle() + group.cycle()
    assert [(plan.member_id, plan.choice) for plan in planned(decisions)] == [("m1", "wait"), ("m2", "turn")]
    for _ in range(3):
        assert not planned(group.cycle())
    comes_back(group, old)
    decisions = group.cycle() + group.cycle()
    assert [(plan.member_id, plan.choice) for plan in planned([*group.members["m1"].answer, *decisions])] in ([("m2", "wait")], [])
    assert group.state.restarts["m2"].begun


def test_restart_that_does_not_wait_its_turn_begins_at_once() -> None:
    group = group_of(*NAMES)
    goes_away(group, "m1")
    group.members["m2"].restarts(WITHIN_MS, wait_turn=False)
    assert [plan.choice for plan in planned(group.cycle())] == ["wait"]


def test_member_that_does_not_wait_for_its_release_is_away_all_the_same() -> None:
    group = group_of(*NAMES, num_standbys=1)
    mine = [task for task, name in owners(group).items() if name == "m1"]
    goes_away(group, "m2")
    group.members["m1"].restarts(WITHIN_MS)
    group.cycle()
    old = group.members.pop("m1")
    decisions = group.fact(MemberLeft(member_id="m1", incarnation=1))
    (plan,) = planned(decisions)
    assert plan.choice == "wait"
    assert group.state.is_away("m1")
    assert set(mine) <= set(group.state.owner)
    comes_back(group, old)
    group.cycle()
    assert not group.state.is_away("m1")


def test_time_that_was_not_stated_is_twice_what_the_last_restart_took() -> None:
    group = group_of(*NAMES)
    group.members["m1"].restarts()
    (plan,) = planned(group.cycle())
    assert (plan.back_within_ms, plan.stated) == (60_000, False)
    old = goes_away(group, "m1", None)
    group.pass_ms(4_000)
    (back,) = ended(comes_back(group, old).answer)
    group.settles()
    assert back[2] >= 4_000
    for name in ("m2", "m1"):  # the first one never restarted: what the other took
        group.members[name].restarts()
        (plan,) = planned([*group.cycle(), *group.cycle()])
        assert (plan.member_id, plan.back_within_ms) == (name, 2 * back[2])
        group.members[name].restart = None
        group.fact(LeaveCancelled(member_id=name, incarnation=group.members[name].incarnation))
        group.settles()


def test_time_that_was_not_stated_fits_its_decision_however_long_the_last_restart_took() -> None:
    state = GroupState(restart_times_ms={"m1": 2**62})
    restart = Restart(asked_ms=0, within_ms=None, stated=False, wait_turn=True)
    assert restarts._within_ms(state, "m1", restart) == 2**63 - 1


@pytest.mark.parametrize(("within_ms", "rate", "choice"), [(60_000, 5_000.0, "wait"), (120_000, 5_000.0, "drain"), (120_000, 500.0, "wait")])
def test_long_restart_moves_state_first_if_that_is_sooner(within_ms: int, rate: float, choice: str) -> None:
    group = group_of(*NAMES)
    for member in group.members.values():
        member.load = ReportedLoad(restored_records_per_s=rate)
    group.cycle()
    group.members["m1"].restarts(within_ms)
    (plan,) = planned(group.cycle())
    assert (plan.choice, plan.restore_records, plan.restore_ms) == (choice, 150_000, int(150_000_000 / (2 * rate)))
    assert group.state.members["m1"].leaving is (choice == "drain")


def test_plan_of_a_drain_names_the_tasks_whose_state_it_counts() -> None:
    group = group_of(*NAMES)
    for member in group.members.values():
        member.load = ReportedLoad(restored_records_per_s=5_000.0)
    first, *others = (task for task, name in owners(group).items() if name == "m1")
    group.members["m2"].copies[first] = 0  # caught up
    group.cycle()
    group.members["m1"].restarts(120_000)
    (plan,) = planned(group.cycle())
    assert (plan.choice, plan.lent, plan.waiting, plan.restore_records) == ("drain", (), tuple(others), 50_000 * len(others))


def test_restart_that_drains_leaves_like_any_other() -> None:
    group = group_of(*NAMES)
    goes_away(group, "m1", 120_000)
    assert "m1" not in group.state.members
    group.settles()
    assert set(owners(group).values()) == {"m2", "m3"}


def test_cancelled_restart_gets_back_what_it_lent() -> None:
    group = group_of(*NAMES, num_standbys=1)
    before = owners(group)
    member = group.members["m1"]
    member.restarts(WITHIN_MS)
    group.members["m2"].restarts(WITHIN_MS)  # waits
    assert member.restart is not None
    group.fact(member.restart)
    member.restart = None
    assert ended(group.fact(LeaveCancelled(member_id="m1", incarnation=1))) == [("m1", "cancelled", 0)]
    group.members["m2"].restart = None
    if "m2" in group.state.restarts:
        group.fact(LeaveCancelled(member_id="m2", incarnation=1))
    group.settles()
    assert sorted(before) == sorted(owners(group))
    assert not group.state.lent


def test_released_member_may_not_cancel() -> None:
    group = group_of(*NAMES)
    group.members["m1"].restarts(WITHIN_MS)
    group.cycle()
    assert group.state.members["m1"].released
    assert rejections(group.fact(LeaveCancelled(member_id="m1", incarnation=1))) == ["already_released"]


def test_borrower_that_ends_gives_its_loans_to_the_home_that_is_away() -> None:
    group = group_of(*NAMES, num_standbys=1)
    old = goes_away(group, "m1")
    borrowed = [task for task, lent in group.state.lent.items() if lent.borrower == "m2"]
    assert borrowed
    del group.members["m2"]
    group.fact(MemberEnded(member_id="m2", incarnation=1))
    assert {group.state.owner[task] for task in borrowed} <= {"m1", "m3"}
    comes_back(group, old)
    group.settles()
    assert not group.state.lent


def test_borrower_that_leaves_is_drained() -> None:
    group = group_of(*NAMES, num_standbys=1)
    goes_away(group, "m1", 600_000 // 10)
    group.members["m2"].leaves()
    for _ in range(12):
        group.cycle()
    assert "m2" not in group.state.members


def test_facts_of_a_member_that_is_away_are_rejected() -> None:
    group = group_of(*NAMES)
    old = goes_away(group, "m1")
    assert rejections(group.fact(old.report())) == ["unknown_member"]
    assert rejections(group.fact(MemberEnded(member_id="m1", incarnation=1))) == ["not_waited_for"]


def test_operator_that_asks_a_member_that_is_away_to_leave_ends_the_wait() -> None:
    group = group_of(*NAMES)
    goes_away(group, "m1")
    decisions = group.fact(LeaveRequested(members=("m1",)))
    assert [each[:2] for each in ended(decisions)] == [("m1", "cancelled")]
    assert "m1" not in group.state.members


def test_member_that_is_back_without_its_copies_is_like_a_new_one() -> None:
    group = group_of(*NAMES)
    goes_away(group, "m1")
    group.join("m1", 2)
    group.settles()
    assert len(owners(group)) == 9


def test_all_members_may_be_away_at_once() -> None:
    group = group_of("m1", "m2")
    before = owners(group)
    old = [goes_away(group, "m1")]
    group.members["m2"].restarts(WITHIN_MS, wait_turn=False)
    last = group.members["m2"]
    while "m2" in group.members:
        group.cycle()
    old.append(last)
    assert all(map(group.state.is_away, ("m1", "m2")))
    group.pass_ms(5_000)
    for each in reversed(old):
        comes_back(group, each)
    group.settles()
    assert owners(group) == before


def test_last_member_that_is_not_back_leaves_an_empty_group() -> None:
    group = group_of("m1")
    goes_away(group, "m1", 3_000)
    group.pass_ms(4_000)
    assert not group.state.members
    assert not group.state.restarts


def test_new_task_of_a_topology_runs_while_a_member_is_away() -> None:
    group = group_of(*NAMES, stateful=9)
    goes_away(group, "m1")
    group.fact(topology(2, stateful=11))
    group.fact(PartitionsObserved(end_offsets={"log": {9: 10, 10: 10}}))
    new = tasks("0_9", "0_10")
    for member_id in ("m2", "m3"):
        old = group.members[member_id]
        group.join(member_id, 2, topology_epoch=2, lags=dict.fromkeys(sorted(old.copies), LagSentinel.UNKNOWN), ended_incarnation=1)
    group.cycle()
    assert all(group.state.owner.get(task) in ("m2", "m3") for task in new)


def test_loan_without_another_copy_waits_for_its_home_when_the_borrower_ends() -> None:
    group = group_of("m1", "m2", num_standbys=1, stateful=4)
    old = goes_away(group, "m1")
    lent = set(group.state.lent)
    assert lent
    del group.members["m2"]
    group.fact(MemberEnded(member_id="m2", incarnation=1))
    assert {task for task, name in group.state.owner.items() if name == "m1"} >= lent
    assert not group.state.lent
    assert not lent & group.state.lost.keys()
    moves = [(move.task, move.source, move.destination, move.reason) for move in group.moves("waiting")]
    assert moves == [(task, "m2", "m1", "restarting") for task in sorted(lent)]
    comes_back(group, old)
    group.settles()
    assert set(owners(group).values()) == {"m1"}


def test_member_that_restarts_may_leave_for_good_instead() -> None:
    for how in ("fact", "report", "operator"):
        group = group_of("m1", "m2")
        member = group.members["m1"]
        member.restarts(WITHIN_MS)
        assert member.restart is not None
        group.fact(member.restart)
        member.restart = None
        if how == "fact":
            decisions = group.fact(LeaveIntended(member_id="m1", incarnation=1))
        elif how == "report":
            member.leaves()
            decisions = group.fact(member.report())
        else:
            decisions = group.fact(LeaveRequested(members=("m1",)))
        assert ended(decisions) == [("m1", "cancelled", 0)]
        member.leaving = True
        assert group.state.members["m1"].leaving
        assert "m1" not in group.state.restarts
        group.settles()
        assert set(owners(group).values()) == {"m2"}


def test_member_that_is_to_be_asked_again_does_not_restart() -> None:
    group = group_of("m1", "m2")
    group.fact(LeaveRequested(members=("m1",)))
    group.fact(MemberEnded(member_id="m1", incarnation=1))
    member = group.join("m1", 2)
    member.restarts(WITHIN_MS)
    decisions = member.reports()
    assert ended(decisions) == [("m1", "cancelled", 0)]
    assert group.state.is_asked("m1")


def test_last_member_that_is_asked_while_it_is_away_leaves_an_empty_group_at_rest() -> None:
    group = group_of("m1")
    goes_away(group, "m1", 60_000)
    group.fact(LeaveRequested(members=("m1",)))
    assert (group.state.members, group.state.probing_deadline_ms) == ({}, None)


def test_away_member_that_is_asked_begins_a_round_for_its_tasks() -> None:
    group = group_of("m1", "m2")
    goes_away(group, "m1")
    group.fact(LeaveRequested(members=("m1",)))
    assert group.state.owner.keys() == group.state.tasks().keys()


def test_fenced_incarnation_is_heard_while_the_next_one_is_away() -> None:
    """Else its hold would end while it runs (docs/protocol.md#m12)."""
    group = group_of("m1")
    group.join("m1", 2)
    del group.members["m1"]
    group.fact(RestartIntended(member_id="m1", incarnation=2, back_within_ms=60_000))
    group.fact(MemberLeft(member_id="m1", incarnation=2))
    group.pass_ms(20_000)
    before_ms = group.state.fenced["m1#1"].last_heard_ms
    assert rejections(group.fact(LeaveCancelled(member_id="m1", incarnation=1))) == ["stale_incarnation"]
    assert group.state.fenced["m1#1"].last_heard_ms == group.state.now_ms > before_ms


def test_fact_of_a_stranger_incarnation_is_stale_whether_the_member_is_away_or_not() -> None:
    group = group_of("m1", "m2")
    goes_away(group, "m1")
    assert rejections(group.fact(LeaveCancelled(member_id="m1", incarnation=7))) == ["stale_incarnation"]
    assert rejections(group.fact(LeaveCancelled(member_id="m2", incarnation=7))) == ["stale_incarnation"]


def test_loan_of_a_home_that_did_not_come_back_is_the_borrowers() -> None:
    group = group_of("m1", "m2", num_standbys=1, stateful=4)
    goes_away(group, "m1", 3_000)
    lent = set(group.state.lent)
    group.pass_ms(4_000)
    assert not group.state.lent
    group.cycle()
    assert {group.state.owner[task] for task in lent} == {"m2"}
    del group.members["m2"]
    group.fact(MemberEnded(member_id="m2", incarnation=1))
    assert not group.state.owner


def test_borrower_that_ends_before_it_got_the_task_leaves_it_to_its_owner() -> None:
    group = group_of("m1", "m2", num_standbys=1, stateful=4)
    member = group.members["m1"]
    member.restarts(WITHIN_MS)
    assert member.restart is not None
    group.fact(member.restart)
    assert group.state.members["m1"].revoking
    del group.members["m2"]
    group.fact(MemberEnded(member_id="m2", incarnation=1))
    assert set(owners(group).values()) == {"m1"}
    assert len(owners(group)) == 4


def test_group_that_another_leads_knows_no_restarts() -> None:
    group = Group()
    group.fact(configured(led_by="external"))
    group.fact(topology(stateless=1))
    group.fact(joined("m1"))
    intent = RestartIntended(member_id="m1", incarnation=1)
    assert rejections(group.fact(intent)) == ["external"]
    group.fact(MemberEnded(member_id="m1", incarnation=1))
    assert (group.state.members, group.state.holds, group.state.fenced) == ({}, {}, {})


def test_member_that_is_killed_on_its_way_out_is_waited_for() -> None:
    """A supervisor that kills a process after a while, as Kubernetes does."""
    group = group_of(*NAMES)
    before = owners(group)
    old = group.members.pop("m1")
    group.fact(RestartIntended(member_id="m1", incarnation=1, back_within_ms=WITHIN_MS))
    decisions = group.fact(MemberEnded(member_id="m1", incarnation=1))
    assert group.state.is_away("m1")
    assert not [decision for decision in decisions if isinstance(decision, MemberExpired)]
    assert group.state.recent_crashes("m1") is None
    assert owners(group) == before
    comes_back(group, old)
    group.settles()
    assert owners(group) == before


def causes(decisions: Iterable[Decision]) -> list[str]:
    return [decision.cause for decision in decisions if isinstance(decision, AssignmentIssued)]


def test_rounds_that_end_a_wait_are_named_after_it() -> None:
    group = group_of("m1", "m2")
    goes_away(group, "m1", 3_000)
    assert causes(group.pass_ms(3_000)) == ["not_back"]
    group = group_of("m1", "m2")
    goes_away(group, "m1")
    assert causes(group.fact(LeaveRequested(members=("m1",)))) == ["leave"]


@pytest.mark.parametrize("how", ["not back", "asked"])
def test_group_rests_when_its_last_member_is_given_up(how: str) -> None:
    group = group_of("m1")
    goes_away(group, "m1", 3_000)
    if how == "asked":
        group.fact(LeaveRequested(members=("m1",)))
    else:
        group.pass_ms(3_000)
    assert (group.state.members, group.state.lost, group.state.probing_deadline_ms) == ({}, {}, None)


def test_tasks_that_a_topology_drops_do_not_wait() -> None:
    group = group_of("m1", "m2", stateful=8)
    goes_away(group, "m1")
    group.fact(RestartIntended(member_id="m2", incarnation=1))  # waits for its turn, and runs on
    group.fact(topology(2, stateful=2))
    assert {task for task in group.state.members["m2"].revoking if task.partition > 1}
    member = group.state.members["m1"]
    assert {task for task in member.active if task.partition > 1} == set()
    assert member.revoking == {}
    assert set(group.state.owner) >= set(group.state.tasks())


def test_loan_that_a_stopping_home_made_is_lost_with_its_borrower() -> None:
    """The home is not away yet, so it cannot be waited for."""
    group = group_of("m1", "m2", num_standbys=1, stateful=4)
    group.fact(RestartIntended(member_id="m1", incarnation=1, back_within_ms=WITHIN_MS))
    first, _ = sorted(group.state.members["m1"].revoking)
    group.fact(TasksRevoked(member_id="m1", incarnation=1, assignment_epoch=group.state.members["m1"].issued_epoch, tasks=(first,)))
    assert group.state.owner[first] == "m2"
    del group.members["m2"]
    group.fact(MemberEnded(member_id="m2", incarnation=1))
    assert group.state.owner[first] == "m1"
    assert group.state.previous_owners[first] == "m2"


def test_member_of_another_leader_that_is_proven_dead_holds_nothing() -> None:
    group = Group()
    group.fact(configured(led_by="external"))
    group.fact(topology(stateless=1))
    group.fact(joined("m1"))
    group.fact(AssignmentObserved(generation=1, members=(ObservedMember(member_id="m1", incarnation=1, active=tasks("1_0")),)))
    group.fact(MemberEnded(member_id="m1", incarnation=1))
    assert (group.state.members, group.state.holds, group.state.fenced) == ({}, {}, {})
