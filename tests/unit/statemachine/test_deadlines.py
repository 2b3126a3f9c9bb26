"""The heap of timers is a function of the state: no running timer is lost, whatever changes while
its entry waits.
"""

from __future__ import annotations

import pytest

from equipoise.events.errors import InvariantBroken
from equipoise.events.facts import LagReported, MemberLeft, TaskReady
from equipoise.reference_model.step_checker import check_restored, check_timers
from equipoise.statemachine.deadlines import NO_TASK, Timer
from equipoise.statemachine.machine import GroupMachine
from tests.groups import MARGIN_MS, SESSION_MS, Group, configured, joined, tasks


def fenced_and_led_by_another() -> Group:
    """m1/1 was superseded by force and may still run; the group is empty and led by another leader.
    """
    group = Group().starts("m1", stateless=2)
    group.fact(joined("m1", 2))
    group.fact(MemberLeft(member_id="m1", incarnation=2))
    group.fact(configured(led_by="external"))
    return group


def test_fenced_incarnation_is_waited_for_while_another_leader_leads():
    group = fenced_and_led_by_another()
    group.pass_ms(SESSION_MS - 1)
    assert group.state.holds
    group.tick(1)
    assert not group.state.holds
    assert not group.state.fenced


def test_fenced_incarnation_in_shadow_stays_fenced_by_any_message():
    group = fenced_and_led_by_another()
    group.pass_ms(SESSION_MS - 1_000)
    group.fact(TaskReady(member_id="m1", incarnation=1, assignment_epoch=1, tasks=tasks("1_0")))
    group.pass_ms(SESSION_MS - 1)
    assert group.state.holds, "last heard less than its session timeout ago"
    group.tick(1)
    assert not group.state.holds


def test_sessions_pause_while_another_leader_leads():
    group = Group().starts()
    group.fact(configured(led_by="external"))
    group.fact(joined("m1"))
    group.pass_ms(2 * SESSION_MS)
    assert "m1" in group.state.members
    group.fact(MemberLeft(member_id="m1", incarnation=1))
    group.fact(configured())
    group.fact(joined("m1", 2))
    group.pass_ms(SESSION_MS)
    assert "m1" not in group.state.members


def test_shorter_revocation_timeout_applies_to_a_revocation_under_way():
    group = Group().starts("m1", stateless=2, revocation_timeout_ms=60_000)
    group.fact(joined("m2"))
    assert group.state.members["m1"].revoking
    group.fact(configured(initial_delay_ms=0, revocation_timeout_ms=2_000))
    group.tick(1_000)
    assert "m1" in group.state.members
    group.tick(1_000)
    assert "m1" not in group.state.members, "expelled for not giving up its task within the new timeout"


def test_longer_revocation_timeout_applies_to_a_revocation_under_way():
    group = Group().starts("m1", stateless=2, revocation_timeout_ms=2_000)
    group.fact(joined("m2"))
    group.fact(configured(initial_delay_ms=0, revocation_timeout_ms=5_000))
    group.pass_ms(4_999)
    assert "m1" in group.state.members
    group.tick(1)
    assert "m1" not in group.state.members


def test_shorter_stall_timeout_applies_to_a_warm_up_under_way():
    group = Group().starts("m1", stateful=2, warmup_stall_ms=60_000)
    group.cycle()
    group.join("m2", restores=0)
    assert group.state.members["m2"].warmup
    group.fact(configured(initial_delay_ms=0, warmup_stall_ms=2_000))
    group.tick(1_000)
    assert not group.state.backoffs
    group.tick(1_000)
    assert group.state.backoffs, "no progress within the new timeout"


def test_check_finds_a_timer_that_the_heap_has_lost():
    group = Group().starts("m1", stateless=1)
    machine = group.machine
    machine._deadlines._heap = [entry for entry in machine._deadlines._heap if entry[1] is not Timer.SESSION]
    with pytest.raises(InvariantBroken, match=r"^invariant 8: at offset 3 the heap of timers lacks .*'m1'"):
        check_timers(machine)


def test_check_finds_a_timer_whose_entry_comes_too_late():
    group = Group().starts("m1", stateless=1)
    machine = group.machine
    machine._deadlines._heap = [(SESSION_MS + 1, Timer.SESSION, ("m1", NO_TASK))]
    with pytest.raises(InvariantBroken, match="invariant 8"):
        check_timers(machine)


def test_stale_entries_of_the_heap_are_no_fault():
    group = Group(watched=False).starts("m1", stateless=1)
    for number in range(5):
        group.fact(LagReported("m1", 1, number, 1, held=tasks("1_0")), MARGIN_MS // 3)
    machine = group.machine
    assert machine._deadlines._heap[0][0] == SESSION_MS, "the entry of the join is still there"
    check_timers(machine)


def test_check_restored_finds_a_decision_from_state_outside_the_snapshot():
    group = Group(watched=False).starts("m1", stateless=1)
    restored = GroupMachine.restore(group.machine.snapshot())
    decided = len(group.decisions)
    group.fact(joined("m2"))
    check_restored(restored, group.records[-1], group.decisions[decided:], group.machine)
    again = GroupMachine.restore(group.machine.snapshot())
    again.state.members["m1"].capacity = 7
    decided = len(group.decisions)
    group.fact(joined("m3"))
    with pytest.raises(InvariantBroken, match=r"^invariant 8: a machine restored before offset 5"):
        check_restored(again, group.records[-1], group.decisions[decided:], group.machine)
