"""What must end when a member, a movement or a group ends, and what must not: timers, back-offs,
holds, slots.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest

from equipoise.assignors import AssignmentProblem, DelegatingAssignor, MovementState, Plan, registry
from equipoise.events.facts import LagReported, MemberLeft, TasksRevoked
from equipoise.events.tasks import TaskId
from equipoise.statemachine.deadlines import Timer
from tests.groups import SESSION_MS, Group, assigned, configured, joined, tasks, topology

STALL_MS = 5_000

# A group that became empty (docs/protocol.md#l3)


def gathering() -> Group:
    """The initial delay is under way."""
    group = Group().starts(stateless=2, initial_delay_ms=10 * SESSION_MS)
    group.fact(joined("m1"))
    assert group.state.gathering_until_ms is not None
    return group


def probing() -> Group:
    """A movement is under way."""
    group = Group().starts("m1", stateful=2, probing_interval_ms=10 * SESSION_MS, warmup_stall_ms=10 * SESSION_MS)
    group.fact(joined("m2"))
    assert group.state.probing_deadline_ms is not None
    return group


def scheduled() -> Group:
    """m2 left, and for a while no member is granted its tasks."""
    group = Group().starts("m1", "m2", stateless=2, assignor="cooperative", options={"scheduled_delay_ms": 10 * SESSION_MS})
    group.settles()
    group.fact(MemberLeft(member_id="m2", incarnation=1))
    assert group.state.scheduled_ms is not None
    return group


def waiting() -> Group:
    """A copy holds the only slot, and another task waits for it."""
    group = Group().starts("m1", stateful=4, max_warmups=1, probing_interval_ms=10 * SESSION_MS, warmup_stall_ms=10 * SESSION_MS)
    group.fact(joined("m2"))
    assert group.state.queued
    return group


def remembering() -> Group:
    """The assignor has memory that it wants back."""
    group = Group().starts("m1", "m2", stateless=4, assignor="kafka_connect")
    assert group.state.memory
    return group


@pytest.mark.parametrize("makes", [gathering, probing, scheduled, waiting, remembering])
def test_group_whose_members_all_expire_has_no_timer(makes: Callable[[], Group]):
    group = makes()
    group.pass_ms(SESSION_MS)
    assert_rests(group)


def test_group_whose_last_member_leaves_has_no_timer():
    group = gathering()
    group.fact(MemberLeft(member_id="m1", incarnation=1))
    assert_rests(group)


def test_group_whose_last_member_is_expelled_only_has_the_timer_of_its_fence():
    options = {"scheduled_delay_ms": 10 * SESSION_MS}
    group = Group().starts("m1", "m2", stateful=2, stateless=2, assignor="cooperative", options=options, revocation_timeout_ms=2_000)
    group.settles()
    group.fact(MemberLeft(member_id="m2", incarnation=1))
    group.fact(topology(2, stateful=2))
    assert group.state.members["m1"].revoking, "it keeps its task"
    assert group.state.scheduled_ms is not None
    group.pass_ms(2_000)
    assert not group.state.members
    assert [timer for _, timer, _ in group.machine.timers()] == [Timer.FENCED]
    group.pass_ms(SESSION_MS)
    assert_rests(group)


def assert_rests(group: Group) -> None:
    state = group.state
    assert not state.members
    assert group.machine.timers() == set()
    assert group.machine.next_deadline_ms is None
    assert (state.waiting, state.queued, state.lost, state.memory) == (0, {}, {}, {})
    assert state.revocations == type(state.revocations)()


# Back-offs of a removed member (docs/protocol.md#m7)


def stalled() -> tuple[Group, TaskId]:
    """m2's copy made no progress and is in back-off."""
    group = Group().starts("m1", stateful=2, warmup_stall_ms=STALL_MS)
    group.settles()
    group.join("m2", restores=0)
    (task,) = group.state.members["m2"].warmup
    group.pass_ms(STALL_MS)
    assert (task, "m2") in group.state.backoffs
    return group, task


@pytest.mark.parametrize("killed", [True, False])
def test_back_off_of_a_copy_ends_with_its_member(killed: bool):
    group, _ = stalled()
    group.fact(joined("m2", 2) if killed else MemberLeft(member_id="m2", incarnation=1))
    assert group.state.backoffs == {}
    assert not any(timer is Timer.UNBLOCK for _, timer, _ in group.machine.timers())
    if killed:
        assert group.state.members["m2"].warmup, "the next process may have another disk, and is tried at once"


def test_removed_task_of_a_dead_owner_is_new_when_it_comes_back():
    group = Group().starts("m1", stateless=1, assignor="cooperative", options={"scheduled_delay_ms": 10 * SESSION_MS})
    (task,) = group.state.owner
    group.fact(topology(2))
    group.fact(joined("m1", 2))
    assert (group.state.previous_owners, group.state.lost) == ({}, {})
    group.fact(topology(3, stateless=1))
    group.fact(joined("m1", 3, topology_epoch=3))
    assert group.state.owner == {task: "m1"}


# Holds (docs/protocol.md#m5)


def test_hold_lasts_the_longest_session_of_all_incarnations_that_may_run_the_task():
    """A process with a long session is followed by one with a short session, and that one by a
    third, before a member is known to have waited.
    """
    group = Group().starts(stateless=1)
    (task,) = tasks("1_0")
    group.fact(joined("m1", 1, session_timeout_ms=40_000))
    group.fact(joined("m1", 2, session_timeout_ms=5_000))
    answer = group.fact(joined("m1", 3, session_timeout_ms=10_000))
    assert group.state.holds == {task: 40_000}
    assert assigned(answer)["m1"].hold_ms == {task: 40_000}


def test_hold_is_not_ended_by_a_late_report_of_an_earlier_grant():
    """m2 ran the task before m3, which was removed by force. A report of m2 from that time does not
    show that m2 has waited for m3.
    """
    group = Group().starts("m2", stateless=2)
    late = LagReported("m2", 1, 0, 1, held=tasks("1_0", "1_1"))
    group.fact(joined("m3"))
    (task,) = group.state.members["m2"].revoking
    group.fact(TasksRevoked(member_id="m2", incarnation=1, assignment_epoch=2, tasks=(task,)))
    group.fact(LagReported("m3", 1, 0, 1, held=(task,)))
    group.fact(joined("m3", 2, topology_epoch=9))  # a build that has none of the tasks
    assert (group.state.owner[task], group.state.holds) == ("m2", {task: SESSION_MS})
    group.fact(late)
    assert group.state.holds == {task: SESSION_MS}, "it was granted again since"
    group.fact(LagReported("m2", 1, 1, group.state.members["m2"].issued_epoch, held=tasks("1_0", "1_1")))
    assert group.state.holds == {}


# Copies whose task is handed over (docs/protocol.md#m7)

CALL_OFF = {"call_off": True}


class CallsOff(DelegatingAssignor):
    """Cancels every hand-over on demand, and keeps the copies."""

    def assign(self, problem: AssignmentProblem) -> Plan:
        plan = self.wrapped.assign(attrs.evolve(problem, settings=attrs.evolve(problem.settings, options={})))
        if problem.settings.options != CALL_OFF:
            return plan
        back = {movement.task: movement.source for movement in plan.movements if movement.state is MovementState.REVOKING}
        members = {
            name: attrs.evolve(
                part,
                active=tuple(sorted({*part.active, *(task for task in back if back[task] == name)})),
                revoke=tuple(task for task in part.revoke if task not in back),
            )
            for name, part in plan.members.items()
        }
        waiting = [attrs.evolve(each, state=MovementState.WAITING) if each.task in back else each for each in plan.movements]
        return attrs.evolve(plan, members=members, movements=tuple(waiting))


def handed_over() -> tuple[Group, TaskId]:
    """m1 must give a task up for m2, whose copy has fallen behind and makes no progress."""
    group = Group(lambda name, version: CallsOff(registry.load(name, version))).starts("m1", stateful=2, warmup_stall_ms=STALL_MS)
    group.fact(joined("m2"))
    (task,) = group.state.members["m2"].warmup
    group.fact(LagReported("m2", 1, 0, 1, lags={task: 0}))
    assert group.state.members["m1"].revoking.keys() == {task}
    group.fact(LagReported("m2", 1, 1, 1, lags={task: 40_000}))
    return group, task


def test_copy_whose_task_is_handed_over_does_not_stall():
    """The movement is completed, however slow its copy (docs/protocol.md#d9)."""
    group, task = handed_over()
    group.pass_ms(3 * STALL_MS)
    assert task in group.state.members["m2"].warmup
    assert group.state.in_flight[task].state is MovementState.REVOKING
    assert not group.state.backoffs
    answer = group.fact(TasksRevoked(member_id="m1", incarnation=1, assignment_epoch=2, tasks=(task,)))
    assert assigned(answer)["m2"].active == (task,)


@pytest.mark.parametrize("waits_ms", [0, STALL_MS])
def test_copy_stalls_once_its_hand_over_is_called_off(waits_ms: int):
    group, task = handed_over()
    group.pass_ms(waits_ms)
    group.fact(configured(initial_delay_ms=0, warmup_stall_ms=STALL_MS, options=CALL_OFF))
    assert task not in group.state.in_flight
    assert task in group.state.members["m2"].warmup
    group.pass_ms(STALL_MS - 1_000)
    assert (task, "m2") not in group.state.backoffs
    group.pass_ms(1_000)
    assert (task, "m2") in group.state.backoffs


def test_copy_that_falls_behind_restarts_its_time_to_stall():
    """No task goes to m2: its owner gave the task up to take it again, as the strict learner does
    at each rebalance.
    """
    group = Group().starts("m1", stateful=2, assignor="learner", options={"strict": True}, warmup_stall_ms=STALL_MS, acceptable_recovery_lag=100)
    group.cycle()
    group.fact(joined("m2"))
    (task,) = group.state.members["m2"].warmup
    group.fact(LagReported("m2", 1, 0, 1, lags={task: 0}))
    assert group.state.in_flight[task].destination == "m1"
    group.pass_ms(2 * STALL_MS)
    group.fact(LagReported("m2", 1, 1, 1, lags={task: 40_000}))
    group.pass_ms(STALL_MS - 1)
    assert not group.state.backoffs
    group.tick(1)
    assert group.state.backoffs.keys() == {(task, "m2")}
