"""What is read from a group's state."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from equipoise.assignors import Movement, MovementState
from equipoise.events.facts import Subtopology, TopologyDeclared
from equipoise.events.tasks import Lag, LagSentinel, TaskId
from equipoise.statemachine import actions
from equipoise.statemachine.state import (
    DEFAULT_SETTINGS,
    Crashes,
    FencedIncarnation,
    GroupPhase,
    GroupState,
    Growth,
    MemberPhase,
    MemberState,
    known_lag,
    stall_ms,
)
from tests.groups import configured, topology
from tests.unit.statemachine.contexts import gives_up, moves, owns, step

A, B, C = TaskId(0, 0), TaskId(0, 1), TaskId(0, 2)
STATELESS = TaskId(1, 0)
GONE = TaskId(0, 50)
WARMING, REVOKING = MovementState.WARMING, MovementState.REVOKING


def group_state(*member_ids: str) -> GroupState:
    return step(*(member_ids or ("m1", "m2")), stateless=1).state


# The group


def test_group_without_a_configuration_has_the_default_settings():
    state = GroupState()
    assert (state.settings, state.phase, state.topology) == (DEFAULT_SETTINGS, GroupPhase.UNCONFIGURED, None)
    config = configured(num_standbys=1)
    actions.configure(state, config)
    assert state.settings is config.knobs


def test_phase_is_what_the_group_waits_for():
    state = group_state()
    phases = [state.phase]
    state.gathering_until_ms = 0
    phases.append(state.phase)
    state.members.clear()
    phases.append(state.phase)
    state.config = configured(led_by="external")
    assert [*phases, state.phase] == [GroupPhase.LEADING, GroupPhase.GATHERING, GroupPhase.EMPTY, GroupPhase.SHADOWING]


def test_topology_is_the_newest_one():
    state = GroupState(topologies={epoch: topology(epoch, stateful=1) for epoch in (2, 3, 1)})
    assert state.topology is state.topologies[3]


def test_newest_incarnation_is_that_of_a_member_or_of_a_fenced_one():
    state = group_state()
    state.fenced = {str(number): FencedIncarnation(name, number, 9, 1, 0, {A}) for name, number in (("m1", 4), ("m1", 3), ("m9", 7), ("m2", 0))}
    assert [state.newest_incarnation(name) for name in ("m1", "m2", "m9", "m8")] == [4, 1, 7, None]


def test_request_to_leave_waits_for_a_member_that_is_away():
    state = GroupState(now_ms=50, asked={"m1": None, "m2": 51, "m3": 50})
    assert [state.is_asked(name) for name in ("m1", "m2", "m3", "m4")] == [True, False, False, False]
    assert [state.is_to_be_asked(name) for name in ("m1", "m2", "m3", "m4")] == [False, True, False, False]


def test_crashes_are_recent_for_ten_minutes():
    crashes = Crashes(times=2, first_ms=0, changed_ms=5, until_ms=9)
    state = GroupState(now_ms=600_004, crashes={"m1": crashes, "m2": attrs.evolve(crashes, until_ms=None)})
    assert state.recent_crashes("m1") is crashes
    state.now_ms += 1
    assert [state.recent_crashes(name) for name in ("m1", "m3")] == [None, None]
    assert [state.is_crash_looping(name) for name in ("m1", "m2", "m3")] == [True, False, False]


# Tasks


def test_tasks_are_those_of_the_newest_topology():
    state = group_state()
    assert list(state.tasks()) == [*(TaskId(0, partition) for partition in range(6)), STATELESS]
    assert [state.has_task(task) for task in (TaskId(0, 5), TaskId(0, 6), STATELESS, TaskId(1, 1), TaskId(2, 0))] == [True, False, True, False, False]
    assert [state.is_stateful(task) for task in (A, STATELESS, TaskId(2, 0))] == [True, False, False]
    empty = GroupState()
    assert (dict(empty.tasks()), empty.has_task(A), empty.is_stateful(A)) == ({}, False, False)


def changelogs() -> GroupState:
    """Tasks with two changelogs, of which one was observed on partition 0 alone."""
    part = Subtopology(subtopology=0, partitions=2, stateful=True, source_topics=("a", "b"), changelog_topics=("log", "other"))
    state = GroupState(topologies={1: TopologyDeclared(epoch=1, subtopologies=(part,))})
    state.end_offsets = {"log": {0: 5, 1: 6}, "other": {0: 70}, "third": {0: 900}}
    state.growth = {"log": {0: Growth(0, 5), 1: Growth(0, 6)}, "other": {0: Growth(0, 70)}, "third": {0: Growth(0, 900)}}
    return state


def test_records_and_growth_are_summed_over_a_tasks_changelogs():
    state = changelogs()
    assert [state.records(task) for task in (A, B, GONE, STATELESS)] == [75, 6, 0, 0]
    assert [state.growth_records_per_s(task) for task in (A, B, GONE, STATELESS)] == [75, 6, 0, 0]


def test_source_lag_is_the_reported_one_or_the_sum_of_all_observed_ones():
    state = changelogs()
    part = state.tasks()[A]
    state.source_lags = {"a": {0: 5, 1: 6}, "b": {0: 0}}
    state.behind = {}
    assert [state.source_lag(task, part) for task in (A, B)] == [5, None]
    assert not state.knows_source_lags()
    state.behind = {A: 0, B: 9}
    assert [state.source_lag(task, part) for task in (A, B)] == [0, 9]
    assert state.knows_source_lags()
    without = attrs.evolve(part, source_topics=())
    assert [state.source_lag(task, without) for task in (A, C)] == [0, None]
    assert not GroupState().knows_source_lags()
    group = group_state()
    group.source_lags = {"in": dict.fromkeys(range(6), 1)}
    assert group.knows_source_lags()


# Members


def member(**fields: Any) -> MemberState:
    return attrs.evolve(group_state().members["m1"], **fields)


@pytest.mark.parametrize(
    ("own", "within_ms", "speed", "lags", "limit"),
    [
        (7, 500, 10_000, {A: 4_000}, 7),
        (0, 0, 0, {}, 0),
        (None, 0, 10_000, {A: 4_000}, 100),
        (None, 500, 0, {A: 4_000}, 100),
        (None, 500, 10_000, {A: 4_000}, 4_000),
        (None, 500, 10_000, {A: 50}, 100),
        (None, 500, 10_000, {A: 4_995, C: LagSentinel.UNKNOWN}, 4_995),
        (None, 500, 10_000, {A: 4_999}, 100),  # it grows by 3 until then
        (None, 500, 10_000, {STATELESS: 4_000}, 100),
        (None, 500, 10_000, {TaskId(0, 6): 4_000}, 100),
        (None, 500, 10_000, {TaskId(0, 5): 4_000}, 4_000),
        (None, 500, 10_000, {B: 4_000, A: 2_000}, 100),
        (None, 500, 10_000, {C: 4_000, A: 2_000}, 100),
    ],
)
def test_acceptable_lag_is_the_members_own_or_the_larger_of_the_groups(
    own: int | None, within_ms: int, speed: int, lags: dict[TaskId, Lag], limit: int
):
    """m1 runs B and gives up C."""
    state = group_state()
    actions.configure(state, configured(acceptable_recovery_lag=100, acceptable_recovery_ms=within_ms))
    state.growth = {"log": {0: Growth(0, 6)}}
    owns(state, "m1", B)
    gives_up(state, "m1", C)
    of = state.members["m1"]
    of.ready_lag_records, of.restore_records_per_s, of.lags = own, speed, lags
    assert state.acceptable_lag(of) == limit


def test_member_of_another_epoch_runs_what_that_epoch_has():
    state = group_state()
    actions.declare_topology(state, topology(2, stateful=9))
    old, newest, unknown = (member(topology_epoch=epoch) for epoch in (1, 2, 0))
    assert [state.runnable(each) for each in (old, newest, unknown)] == [{0: 6, 1: 1}, None, {}]
    assert GroupState().runnable(old) is None


@pytest.mark.parametrize(
    ("readiness", "lag", "ready", "caught_up", "awaits"),
    [
        ("word_and_lag", 100, False, False, True),
        ("word_and_lag", 101, False, False, False),
        ("word_and_lag", 100, True, True, False),
        ("word_and_lag", None, False, False, False),
        ("word_and_lag", LagSentinel.UNKNOWN, False, False, False),
        ("lag", 100, False, True, False),
        ("word_or_lag", 101, True, True, False),
    ],
)
def test_copy_is_caught_up_or_awaits_its_word(readiness: str, lag: Lag | None, ready: bool, caught_up: bool, awaits: bool):
    of = member(readiness=readiness, lags={} if lag is None else {A: lag}, ready=frozenset({A}) if ready else frozenset())
    assert (of.is_caught_up(A, 100), of.awaits_word(A, 100), of.follows) == (caught_up, awaits, readiness != "word_or_lag")


def test_member_does_not_know_of_a_grant_that_is_not_issued():
    of = member(issued_epoch=5, active={A: 5, B: 6})
    assert [of.is_untold(task) for task in (A, B, C)] == [False, True, False]
    assert not member(issued_epoch=0).is_untold(A), "it was not granted"
    assert [each.owns_nothing() for each in (of, member(), member(revoking={A: (1, 0)}))] == [False, True, False]


# Movements


def test_learners_of_a_task_are_those_that_will_take_it_over():
    state = group_state("m1", "m2", "m3")
    owns(state, "m1", A, B, C)
    moves(state, A, "m1", "m2", WARMING)
    moves(state, B, "m1", "m2", REVOKING)
    assert [state.learners(task) for task in (A, B, C)] == [("m2",), (), ()]
    state.members["m2"].standby = {B}
    assert state.learners(B) == ("m2",)
    moves(state, C, "m1", "m1", REVOKING)
    for name in ("m3", "m2"):
        actions.begin_warmup(state, state.members[name], C, caught_up=False)
    assert state.learners(C) == ("m2", "m3"), "a movement to its own source does not name the learner"


def test_owner_of_a_task_may_be_leaving():
    state = group_state()
    owns(state, "m1", A)
    owns(state, "m2", B)
    state.members["m1"].leaving = True
    assert [state.is_leaving_owner(task) for task in (A, B, C)] == [True, False, False]


def test_task_is_handed_over_by_a_revocation_or_an_eager_regrant():
    state = group_state()
    owns(state, "m1", A, B)
    moves(state, A, "m1", "m2", REVOKING)
    moves(state, B, "m1", "m2", WARMING)
    actions.add_eager_regrant(state.members["m1"], C, had_it=True)
    m1, m2 = state.members["m1"], state.members["m2"]
    assert [state.is_handed_over(m2, task) for task in (A, B, C)] == [True, False, False]
    assert [state.is_handed_over(m1, task) for task in (A, B, C)] == [False, False, True]


def test_phase_of_a_member_is_what_it_waits_for():
    state = group_state()
    m2 = state.members["m2"]
    assert state.member_phase(m2) is MemberPhase.STABLE
    for task, source, how in ((A, "m1", WARMING), (B, "m2", REVOKING), (C, None, REVOKING)):
        if source is not None:
            owns(state, source, task)
        actions.begin_movement(state, Movement(task=task, source=source, destination="m2", state=how))
    assert state.member_phase(m2) is MemberPhase.STABLE
    state.in_flight[A] = attrs.evolve(state.in_flight[A], state=REVOKING)
    assert state.member_phase(m2) is MemberPhase.UNRELEASED
    actions.revoke(state, m2, B)
    assert state.member_phase(m2) is MemberPhase.UNREVOKED


def test_back_off_of_a_stall_doubles_ten_times_at_most():
    settings = configured(warmup_stall_ms=1_000).knobs
    assert [stall_ms(settings, times) for times in (1, 2, 3, 10, 11, 12, 99)] == [1_000, 2_000, 4_000, 512_000, 1_024_000, 1_024_000, 1_024_000]


def test_known_lag_is_a_number():
    assert [known_lag(lag) for lag in (0, 7, None, LagSentinel.ACTIVE, LagSentinel.UNKNOWN)] == [0, 7, None, None, None]
