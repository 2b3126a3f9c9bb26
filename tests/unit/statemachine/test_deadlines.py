"""The heap of timers is a function of the state: no running timer is lost, whatever changes while
its entry waits.
"""

from __future__ import annotations

import pytest

from equipoise.assignors import Movement, MovementState
from equipoise.events.errors import InvariantBroken
from equipoise.events.facts import LagReported, MemberLeft, TaskReady
from equipoise.events.tasks import TaskId
from equipoise.statemachine import actions
from equipoise.statemachine.deadlines import GROUP_KEY, NO_TASK, Deadlines, Timer, due_at_ms
from equipoise.statemachine.machine import GroupMachine
from equipoise.statemachine.state import Backoff, Crashes, FencedIncarnation, GroupState, SlotBackoff
from tests.groups import MARGIN_MS, SESSION_MS, Group, configured, joined, tasks
from tests.support.reference_model.step_checker import check_restored, check_timers
from tests.unit.statemachine.contexts import moves, owns, step


def fenced_and_led_by_another() -> Group:
    """m1/1 was superseded by force and may still run; the group is empty and led by another leader."""
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


# When each timer is due


A, B = TaskId(0, 0), TaskId(0, 1)


def due(state: GroupState, timer: Timer, member_id: str = "m2", task: TaskId = NO_TASK) -> int | None:
    return due_at_ms(state, timer, (member_id, task))


def under_way() -> GroupState:
    """m2 warms A up."""
    state = step("m1", "m2").state
    actions.configure(state, configured(warmup_stall_ms=1_000, revocation_timeout_ms=2_000))
    actions.set_probing(state, None)
    owns(state, "m1", A, B)
    moves(state, A, "m1", "m2", MovementState.WARMING)
    return state


def test_session_is_due_when_its_member_was_silent_for_it():
    state = under_way()
    state.members["m2"].last_heard_ms = 7
    assert (due(state, Timer.SESSION), due(state, Timer.SESSION, "m9")) == (7 + SESSION_MS, None)
    state.config = configured(led_by="external")
    assert due(state, Timer.SESSION) is None


def test_revocation_is_due_from_the_first_one():
    state = under_way()
    member = state.members["m2"]
    assert (due(state, Timer.REVOCATION), due(state, Timer.REVOCATION, "m9")) == (None, None)
    member.revoking = {A: (1, 50), B: (2, 40)}
    assert due(state, Timer.REVOCATION) == 2_040


def test_fenced_incarnation_is_due_after_its_session():
    state = under_way()
    state.fenced = {"m3#1": FencedIncarnation("m3", 1, 500, 1, 30, {A})}
    assert (due(state, Timer.FENCED, "m3#1"), due(state, Timer.FENCED, "m3#2")) == (530, None)


def test_warm_up_is_due_at_its_next_look_or_when_it_stalls():
    state = under_way()
    warmup = state.members["m2"].warmup[A]
    assert [due(state, Timer.STALL, name, task) for name, task in (("m2", A), ("m2", B), ("m1", A), ("m9", A))] == [1_000, None, None, None]
    warmup.improved_ms, warmup.looked_ms = 50, 40
    assert due(state, Timer.STALL, task=A) == 1_040
    warmup.improved_ms = 30
    assert due(state, Timer.STALL, task=A) == 1_030


@pytest.mark.parametrize(
    ("destination", "how", "runs"),
    [("m2", MovementState.WARMING, True), ("m2", MovementState.REVOKING, False), ("m1", MovementState.WARMING, False), (None, None, False)],
)
def test_copy_that_caught_up_stalls_only_while_its_movement_waits_for_it(destination: str | None, how: MovementState, runs: bool):
    state = under_way()
    state.members["m2"].warmup[A].caught_up = True
    actions.end_movement(state, A)
    if destination is not None:
        actions.begin_movement(state, Movement(task=A, source="m1", destination=destination, state=how))
    assert (due(state, Timer.STALL, task=A) is not None) is runs


def test_back_offs_are_due_until_they_are_over():
    state = under_way()
    member = state.members["m2"]
    state.backoffs = {(A, "m2"): Backoff(60, 1), (B, "m2"): Backoff(60, 1, over=True)}
    assert [due(state, Timer.UNBLOCK, name, task) for name, task in (("m2", A), ("m2", B), ("m1", A))] == [60, None, None]
    assert (due(state, Timer.SLOT_BACKOFF), due(state, Timer.SLOT_BACKOFF, "m9")) == (None, None)
    member.slot_backoff = SlotBackoff(70, 1)
    assert due(state, Timer.SLOT_BACKOFF) == 70
    member.slot_backoff.over = True
    assert due(state, Timer.SLOT_BACKOFF) is None


def test_crash_back_off_is_due_while_its_member_is_there():
    state = under_way()
    state.crashes = {"m2": Crashes(times=2, first_ms=0, changed_ms=0, until_ms=80), "m9": Crashes(times=2, first_ms=0, changed_ms=0, until_ms=80)}
    assert [due(state, Timer.CRASH_BACKOFF, name) for name in ("m1", "m2", "m9")] == [None, 80, None]


def test_drain_and_the_groups_timers_are_due_when_the_state_says():
    state = under_way()
    assert (due(state, Timer.DRAIN), due(state, Timer.DRAIN, "m9")) == (None, None)
    state.members["m2"].drain_deadline_ms = 90
    state.gathering_until_ms, state.scheduled_ms, state.probing_deadline_ms = 1, 2, 3
    assert [due(state, timer, "") for timer in (Timer.GATHERING, Timer.SCHEDULED, Timer.PROBING)] == [1, 2, 3]
    assert due(state, Timer.DRAIN) == 90


def test_heap_finds_each_due_timer_once_in_order():
    state = under_way()
    deadlines = Deadlines(state)
    assert deadlines.take_due() == []
    deadlines.watch(Timer.STALL, ("m2", A))
    deadlines.watch(Timer.DRAIN, ("m2", NO_TASK))
    state.now_ms = 1_000
    state.scheduled_ms = 1_000
    deadlines.watch(Timer.SCHEDULED)
    assert deadlines.next_ms() == 1_000
    assert deadlines.take_due() == [(Timer.STALL, ("m2", A)), (Timer.SCHEDULED, GROUP_KEY)]
    assert deadlines.take_due() == []
    assert deadlines.next_ms() == SESSION_MS
    assert {timer for _, timer, _ in deadlines.running()} == {Timer.SESSION}


def test_timer_is_found_in_the_first_milliseconds_of_a_group():
    state = under_way()
    state.now_ms = state.scheduled_ms = 5
    assert Deadlines(state).take_due() == [(Timer.SCHEDULED, GROUP_KEY)]


def test_timer_that_moved_is_found_at_its_new_time():
    state = under_way()
    deadlines = Deadlines(state)
    state.now_ms = 1_000
    state.members["m2"].warmup[A].improved_ms = state.members["m2"].warmup[A].looked_ms = 600
    assert (deadlines.take_due(), deadlines.next_ms()) == ([], 1_600)
    state.members["m2"].warmup[A].improved_ms = state.members["m2"].warmup[A].looked_ms = 700
    assert deadlines.next_ms() == 1_700
    state.members.clear()
    assert (deadlines.next_ms(), deadlines.running()) == (None, set())


def test_timer_that_no_longer_runs_hides_no_later_one():
    state = under_way()
    state.scheduled_ms, state.probing_deadline_ms = 5, 6
    deadlines = Deadlines(state)
    state.now_ms, state.scheduled_ms = 6, None
    assert deadlines.take_due() == [(Timer.PROBING, GROUP_KEY)]
