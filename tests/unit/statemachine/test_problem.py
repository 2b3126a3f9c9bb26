"""The assignor's problem: what it has of the state, and that nothing kept from the last round is
out of date.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from equipoise.assignors import AssignmentProblem, Movement, MovementState, Partition, Revocations, TaskLoad
from equipoise.events.facts import AssignmentObserved, LagReported, Load, ObservedMember, PartitionsObserved
from equipoise.events.tasks import TaskId
from equipoise.statemachine import actions
from equipoise.statemachine.round_problem import build_problem
from equipoise.statemachine.state import Backoff, Crashes, GroupState, MeasuredLoad, SlotBackoff
from tests.groups import joined, topology
from tests.unit.statemachine.contexts import gives_up, moves, owns, step

Change = Callable[[GroupState], object]

A, B, C, D, E, F = (TaskId(0, partition) for partition in range(6))
STATELESS = TaskId(1, 0)
LOAD = MeasuredLoad(measured_ms=0, cpu=1, memory=2, disk=3, records_per_s=4)


def group_state() -> GroupState:
    """m1 runs A and is giving up B, m2 keeps copies of A and C, and E lost its owner m3, which is
    gone. Ends, lags, loads, racks and weights are known.
    """
    state = step("m1", "m2", "m3", stateless=1).state
    ends = {"log": dict.fromkeys(range(6), 1_000)}
    source_lags = {"in": dict.fromkeys(range(6), 10)}
    racks = {"log": {0: ("r1",)}, "in": {0: ("r2",)}}
    actions.observe_partitions(state, PartitionsObserved(end_offsets=ends, source_lags=source_lags, racks=racks, weights={"in": {0: 7}}))
    actions.record_loads(state, {A: LOAD}, {B: 5})
    owns(state, "m1", A)
    gives_up(state, "m1", B)
    actions.set_standbys(state.members["m2"], {A})
    actions.begin_warmup(state, state.members["m2"], C, caught_up=False)
    actions.lose(state, state.members["m3"], E)
    actions.remove(state, state.members["m3"])
    state.members["m1"].lags.update({A: 3, D: 8})
    return state


def observes(after_ms: int = 0, **observed: Any) -> Change:
    def observe(state: GroupState) -> None:
        state.now_ms += after_ms
        actions.observe_partitions(state, PartitionsObserved(**observed))

    return observe


def reports(**fields: Any) -> Change:
    fact = attrs.evolve(LagReported(member_id="m1", incarnation=1, number=1, assignment_epoch=5), **fields)
    return lambda state: actions.report(state, state.members["m1"], fact)


def joins(member_id: str, **fields: Any) -> Change:
    fact = joined(member_id, **fields)
    return lambda state: actions.join(state, fact, restore_records_per_s=0, measured_records_per_s=0)


def removes(member_id: str) -> Change:
    return lambda state: actions.remove(state, state.members[member_id])


def crashes_twice(state: GroupState) -> None:
    actions.record_crash(state, "m1")
    actions.record_crash(state, "m1")
    actions.begin_crash_backoff(state, "m1")


def declares(stateful: int) -> Change:
    def declare(state: GroupState) -> None:
        actions.declare_topology(state, topology(2, stateful=stateful, stateless=1))
        actions.forget_removed_tasks(state)

    return declare


def rejoins(member_id: str) -> Change:
    """The next incarnation comes before a round."""

    def rejoin(state: GroupState) -> None:
        removes(member_id)(state)
        joins(member_id, incarnation=2, capacity=3)(state)

    return rejoin


def changes_member(change: Callable[..., object], member_id: str, *arguments: object) -> Change:
    """The actions on a member alone."""
    return lambda state: change(state.members[member_id], *arguments)


def changes_both(change: Callable[..., object], member_id: str, *arguments: object, **named: object) -> Change:
    """The actions on the state and a member."""
    return lambda state: change(state, state.members[member_id], *arguments, **named)


CHANGES: dict[str, tuple[Change, ...]] = {
    "grant": (changes_both(actions.grant, "m2", D),),
    "grant of a lost task": (changes_both(actions.grant, "m2", E),),
    "grant of a copy": (changes_both(actions.grant, "m2", C),),
    "take back": (changes_both(actions.take_back, "m1", A),),
    "grant, then take back": (changes_both(actions.grant, "m2", D), changes_both(actions.take_back, "m2", D)),
    "release": (changes_both(actions.release, "m1", B),),
    "lose": (changes_both(actions.lose, "m1", D),),
    "lose, then grant": (changes_both(actions.lose, "m1", D), changes_both(actions.grant, "m1", D)),
    "lose again later": (changes_both(actions.lose, "m1", D), lambda state: setattr(state, "now_ms", 9_000), changes_both(actions.lose, "m1", D)),
    "previous owner": (lambda state: actions.set_previous_owner(state, D, state.members["m1"]),),
    "no previous owner": (lambda state: actions.set_previous_owner(state, E, None),),
    "previous owner removed, then back": (
        lambda state: actions.set_previous_owner(state, D, state.members["m2"]),
        removes("m2"),
        joins("m2", incarnation=2),
    ),
    "observed assignment": (
        lambda state: actions.observe_assignment(
            state,
            AssignmentObserved(
                generation=1,
                members=(
                    ObservedMember(member_id="m1", incarnation=1, active=(B,)),
                    ObservedMember(member_id="m2", incarnation=1, active=(A,), standby=(D,)),
                ),
            ),
        ),
    ),
    "standbys": (changes_member(actions.set_standbys, "m2", {D}),),
    "begin of a warm-up": (changes_both(actions.begin_warmup, "m1", D, caught_up=False),),
    "end of a warm-up": (changes_member(actions.end_warmup, "m2", C),),
    "declared ready": (changes_member(actions.declare_ready, "m2", (C,)),),
    "released": (changes_member(actions.release_member, "m2"),),
    "drain": (changes_both(actions.begin_drain, "m1"), changes_member(actions.expire_drain, "m1"), changes_member(actions.end_drain, "m1")),
    "full report": (reports(lags={A: 1}),),
    "full report without copies": (reports(),),
    "report of a change": (reports(base=0, lags={A: 1}),),
    "report of a copy that is gone": (reports(base=0, forgotten=(D,)),),
    "report of readiness": (reports(base=0, ready=(C,)),),
    "report of readiness, then none": (reports(base=0, ready=(C,)), reports(base=1, number=2)),
    "report of a restore speed": (reports(base=0, load=Load(restored_records_per_s=70)),),
    "join": (joins("m4"),),
    "leave": (removes("m2"),),
    "leave, and join of another": (removes("m2"), joins("m4")),
    "next incarnation": (rejoins("m2"),),
    "next incarnation of a new member": (joins("m4"), rejoins("m4")),
    "crash back-off": (crashes_twice, lambda state: actions.end_crash_backoff(state, "m1")),
    "end offsets": (observes(end_offsets={"log": {5: 2_000}}),),
    "growth": (observes(1_000, end_offsets={"log": {5: 2_000}}), observes(1_000, end_offsets={"log": {5: 2_000}})),
    "source lags": (observes(source_lags={"in": {5: 11}}),),
    "source lags after a report": (observes(source_lags={"in": {1: 10}}),),
    "racks": (observes(racks={"in": {5: ("r3",)}}),),
    "weights": (observes(weights={"log": {5: 2}}),),
    "loads": (lambda state: actions.record_loads(state, {D: LOAD}, {}),),
    "reported source lags": (lambda state: actions.record_loads(state, {}, {D: 6}),),
    "begin of gathering": (actions.begin_gathering,),
    "topology with more partitions": (declares(7),),
    "topology with fewer partitions": (declares(1),),
}


@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES.keys())
def test_build_problem_after_a_change_has_it(changes: tuple[Change, ...]) -> None:
    """As if nothing were kept from the last problem."""
    state = group_state()
    made = build_problem(state)
    for change in changes:
        before = copy.deepcopy(made)
        change(state)
        made = build_problem(state)
        assert made != before, "else the test would pass without the change"
        assert made == build_problem(attrs.evolve(state))


def made_again(before: AssignmentProblem, after: AssignmentProblem) -> tuple[list[str], list[TaskId]]:
    """Members and tasks that are other objects."""
    members, tasks = {id(member) for member in before.members}, {id(task) for task in before.tasks}
    return [each.id for each in after.members if id(each) not in members], [each.id for each in after.tasks if id(each) not in tasks]


@pytest.mark.parametrize(
    ("change", "members", "tasks"),
    [
        (lambda state: None, [], []),
        (reports(base=0), [], []),
        (reports(base=0, lags={A: 1}), ["m1"], []),
        (reports(base=0, forgotten=(D,)), ["m1"], []),
        (changes_both(actions.revoke, "m1", A), [], []),
        (changes_both(actions.grant, "m2", D), ["m2"], []),
        (changes_both(actions.lose, "m1", D), ["m1"], [D]),
        (lambda state: actions.set_previous_owner(state, E, None), [], [E]),
        (lambda state: actions.record_loads(state, {B: LOAD}, {D: 6}), [], [B, D]),
        (observes(end_offsets={"log": {0: 2_000}}), [], [A, B, C, D, E, F]),
        (observes(source_lags={"in": {0: 11}}), [], [A, B, C, D, E, F, STATELESS]),
        (observes(racks={"in": {0: ("r2",)}}, weights={"in": {0: 7}}), [], []),
        (removes("m2"), [], []),
    ],
)
def test_build_problem_makes_again_what_changed_alone(change: Change, members: list[str], tasks: list[TaskId]) -> None:
    state = group_state()
    before = build_problem(state)
    change(state)
    assert made_again(before, build_problem(state)) == (members, tasks)
    again = build_problem(state)
    assert made_again(again, build_problem(state)) == ([], [])


def test_build_problem_has_the_tasks_of_the_topology_with_what_is_known_of_them() -> None:
    tasks = {task.id: task for task in build_problem(group_state()).tasks}
    assert list(tasks) == [A, B, C, D, E, F, STATELESS]
    task = tasks[A]
    assert (task.stateful, task.end_offset, task.lag, task.lost_since_ms, task.displaced) == (True, 1_000, 10, None, False)
    assert task.source == (Partition(topic="in", partition=0, racks=("r2",), weight=7),)
    assert task.changelog == (Partition(topic="log", partition=0, racks=("r1",), weight=1),)
    assert task.load == TaskLoad(cpu=1, memory=2, disk=3, records_per_s=4)
    assert (tasks[B].lag, tasks[B].load) == (5, None)
    assert tasks[B].source == (Partition(topic="in", partition=1),)
    assert (tasks[E].lost_since_ms, tasks[E].displaced) == (group_state().now_ms, True)
    assert (tasks[STATELESS].stateful, tasks[STATELESS].changelog, tasks[STATELESS].end_offset) == (False, (), 0)


def test_build_problem_before_anything_is_observed_has_no_lags_and_no_records() -> None:
    state = step("m1").state
    assert {(task.lag, task.end_offset) for task in build_problem(state).tasks} == {(None, 0)}


def test_build_problem_has_reported_lags_before_any_are_observed() -> None:
    state = step("m1").state
    actions.record_loads(state, {}, {B: 5})
    assert [task.lag for task in build_problem(state).tasks][:3] == [None, 5, None]


def test_build_problem_says_whose_drain_has_expired() -> None:
    state = group_state()
    for member in state.members.values():
        actions.begin_drain(state, member)
    actions.expire_drain(state.members["m1"])
    assert [(each.drain_expired, each.drain_deadline_ms is None) for each in build_problem(state).members] == [(True, True), (False, False)]


def test_build_problem_sums_what_a_tasks_changelogs_grow_by() -> None:
    state = group_state()
    state.now_ms += 1_000
    actions.observe_partitions(state, PartitionsObserved(end_offsets={"log": {0: 1_500}}))
    assert [task.written_records_per_s for task in build_problem(state).tasks][:2] == [500, 0]


def test_build_problem_has_what_members_own_and_keep() -> None:
    state = group_state()
    actions.begin_drain(state, state.members["m1"])
    state.crashes["m2"] = Crashes(times=2, first_ms=0, changed_ms=0, until_ms=99)
    actions.set_previous_owner(state, D, state.members["m2"])
    m1, m2 = build_problem(state).members
    assert (m1.id, m1.active, m1.standby, m1.warmup, m1.lags) == ("m1", (A, B), (), (), {A: 3, D: 8})
    assert (m1.leaving, m1.drain_expired, m1.drain_deadline_ms) == (True, False, state.members["m1"].drain_deadline_ms)
    assert (m2.id, m2.active, m2.standby, m2.warmup) == ("m2", (), (A,), (C,))
    assert (m1.crash_looping, m2.crash_looping) == (False, True)
    assert (m1.previously_owned, m2.previously_owned) == (frozenset(), frozenset({D}))
    assert (m1.subtopologies, m2.leaving, m2.drain_deadline_ms) == (None, False, None)


def test_build_problem_has_what_members_joined_with() -> None:
    state = group_state()
    fact = joined("m4", capacity=3, rack="r1", tags={"zone": "z"}, lags={A: 4}, eager=True, readiness="lag", ready_lag_records=9, topology_epoch=0)
    actions.join(state, fact, restore_records_per_s=50, measured_records_per_s=60)
    actions.declare_ready(state.members["m4"], (A,))
    member = build_problem(state).members[-1]
    assert (member.id, member.capacity, member.rack, member.tags, member.lags) == ("m4", 3, "r1", {"zone": "z"}, {A: 4})
    assert (member.eager, member.readiness, member.ready_lag_records, member.ready) == (True, "lag", 9, frozenset({A}))
    assert (member.restore_records_per_s, member.subtopologies) == (50, {})


def test_build_problem_has_nothing_of_tasks_that_the_topology_dropped() -> None:
    state = group_state()
    actions.declare_topology(state, topology(2, stateful=1, stateless=1))
    actions.forget_removed_tasks(state)
    m1, m2 = build_problem(state).members
    assert (m1.active, m2.standby, m2.warmup) == ((A,), (A,), ())


def test_build_problem_has_movements_without_a_source_that_gave_the_task_up() -> None:
    state = group_state()
    moves(state, B, "m1", "m2", MovementState.REVOKING)
    moves(state, A, "m1", "m2", MovementState.REVOKING)
    kept = Movement(task=A, source="m1", destination="m2", state=MovementState.REVOKING)
    given_up = attrs.evolve(kept, task=B)
    assert build_problem(state).in_flight == (kept, given_up)
    actions.release(state, state.members["m1"], B)
    assert build_problem(state).in_flight == (kept, attrs.evolve(given_up, source=None))


def test_build_problem_has_free_tasks_on_their_way_to_the_eager_member_that_waits_for_them() -> None:
    state = group_state()
    moves(state, B, "m1", "m2", MovementState.REVOKING)
    for task in (A, B, D):
        actions.add_eager_regrant(state.members["m2"], task, had_it=False)
    actions.release(state, state.members["m1"], B)
    on_their_way = [Movement(task=task, source=None, destination="m2", state=MovementState.REVOKING) for task in (B, D)]
    assert list(build_problem(state).in_flight) == on_their_way, "B has a movement already, and m1 still runs A"


def test_build_problem_blocks_stalled_pairs_and_members_that_gave_a_slot_up() -> None:
    state = group_state()
    state.backoffs[A, "m1"] = Backoff(until_ms=9, times=1)
    state.backoffs[B, "m1"] = Backoff(until_ms=9, times=1, over=True)
    assert build_problem(state).blocked == {(A, "m1")}
    state.members["m2"].slot_backoff = SlotBackoff(until_ms=9, times=1, exempt={C, D})
    assert build_problem(state).blocked == {(A, "m1"), (A, "m2"), (B, "m2"), (E, "m2"), (F, "m2")}, "a task without state is not restored"
    state.members["m2"].slot_backoff.over = True
    assert build_problem(state).blocked == {(A, "m1")}


def test_build_problem_has_the_time_and_what_the_assignor_wants_back() -> None:
    state = group_state()
    revocations = Revocations(times=2, since_ms=5, until_ms=9)
    actions.remember_plan(state, revocations, {"key": 1})
    problem = build_problem(state)
    assert (problem.now_ms, problem.settings, problem.revocations, problem.memory) == (state.now_ms, state.settings, revocations, {"key": 1})
    assert (problem.follow_up, problem.anew) == (False, False)
    problem = build_problem(state, follow_up=True, anew=True)
    assert (problem.follow_up, problem.anew) == (True, True)


def test_build_problem_of_a_group_without_a_topology_has_no_tasks() -> None:
    state = GroupState()
    actions.observe_partitions(state, PartitionsObserved(end_offsets={"log": {0: 1_000}}))
    problem = build_problem(state)
    assert (problem.tasks, problem.members) == ((), ())


def test_build_problem_keeps_nothing_of_members_that_are_gone() -> None:
    state = group_state()
    build_problem(state)
    removes("m2")(state)
    build_problem(state)
    assert set(state.problem_cache.members) == {"m1"}
