"""How the load of a host is divided among the tasks that it runs."""

from __future__ import annotations

from typing import Any

import pytest

from equipoise.events.facts import Load
from equipoise.events.fields import INT64_MAX
from equipoise.events.tasks import Lag, LagSentinel, TaskId
from equipoise.statemachine import actions
from equipoise.statemachine.loads import measured_loads
from equipoise.statemachine.state import GroupState, Growth, MeasuredLoad
from tests.groups import configured
from tests.unit.statemachine.contexts import step

A, B, STATELESS, GONE = TaskId(0, 0), TaskId(0, 1), TaskId(1, 0), TaskId(0, 50)


def group_state(*, held: tuple[TaskId, ...] = (A, B), capacity: int = 1, **known: Any) -> GroupState:
    """m1 holds these tasks; 10 s have passed, and the window is 40 s."""
    state = step("m1", stateless=1).state
    actions.configure(state, configured(load_window_ms=40_000))
    state.now_ms = 10_000
    state.members["m1"].held, state.members["m1"].capacity = held, capacity
    for name, value in known.items():
        setattr(state, name, value)
    return state


def divided(state: GroupState, **load: Any) -> dict[TaskId, tuple[int, int, int, int]]:
    """Task -> cpu, memory, disk, records/s."""
    found = measured_loads(state, state.members["m1"], Load(**load))
    assert {each.measured_ms for each in found.values()} <= {state.now_ms}
    return {task: (each.cpu, each.memory, each.disk, each.records_per_s) for task, each in found.items()}


def test_tasks_that_process_more_records_have_more_of_the_load():
    assert divided(group_state(capacity=2), cpu=0.5, memory=0.2, disk=0.1, tasks={A: 30, B: 10}) == {
        A: (750_000, 300_000, 150_000, 30),
        B: (250_000, 100_000, 50_000, 10),
    }


def test_processor_time_goes_by_busy_time_and_memory_by_what_is_kept():
    state = group_state(end_offsets={"log": {0: 100, 1: 300}})
    assert divided(state, cpu=0.8, memory=0.4, disk=0.2, tasks={A: 30, B: 10}, busy={A: 100, B: 900}) == {
        A: (80_000, 100_000, 50_000, 30),
        B: (720_000, 300_000, 150_000, 10),
    }


@pytest.mark.parametrize(("name", "place"), [("memory", 1), ("disk", 2)])
def test_memory_and_disk_go_by_what_is_kept_each_without_the_other(name: str, place: int) -> None:
    state = group_state(end_offsets={"log": {0: 100, 1: 300}})
    found = divided(state, tasks={A: 30, B: 10}, **{name: 0.4})
    assert (found[A][place], found[B][place]) == (100_000, 300_000)
    assert found[A][3] == 30


def test_without_records_per_task_load_goes_by_what_is_written():
    state = group_state(held=(A, B, STATELESS), growth={"log": {0: Growth(0, 10), 1: Growth(0, 30)}})
    assert divided(state, cpu=0.6, records_per_s=120.9) == {A: (100_000, 0, 0, 20), B: (300_000, 0, 0, 60), STATELESS: (200_000, 0, 0, 40)}
    state = group_state(held=(A, B, STATELESS), growth={"log": {0: Growth(0, 1), 1: Growth(0, 0)}})
    assert divided(state, cpu=0.6) == {A: (300_000, 0, 0, 0), B: (0, 0, 0, 0), STATELESS: (300_000, 0, 0, 0)}, "at least one record/s"


def test_task_that_is_never_busy_has_no_processor_time():
    assert {task: each[0] for task, each in divided(group_state(), cpu=0.8, tasks={A: 30, B: 10}, busy={A: 100}).items()} == {A: 800_000, B: 0}


def test_task_without_state_has_the_average_of_what_is_written_rounded_down():
    state = group_state(held=(A, B, STATELESS), growth={"log": {0: Growth(0, 10), 1: Growth(0, 31)}})
    assert divided(state, records_per_s=61.0) == {A: (0, 0, 0, 10), B: (0, 0, 0, 31), STATELESS: (0, 0, 0, 20)}


def test_without_any_measure_all_tasks_have_equal_parts():
    assert divided(group_state(held=(A, B, STATELESS)), cpu=0.6) == dict.fromkeys((A, B, STATELESS), (200_000, 0, 0, 0))
    assert divided(group_state(held=(STATELESS,)), cpu=0.6) == {STATELESS: (600_000, 0, 0, 0)}


def test_task_without_state_keeps_nothing():
    state = group_state(held=(A, STATELESS), end_offsets={"log": {0: 100}})
    assert divided(state, memory=0.5) == {A: (0, 500_000, 0, 0), STATELESS: (0, 0, 0, 0)}


def test_task_that_the_report_leaves_out_is_not_measured():
    assert divided(group_state(), cpu=0.5, tasks={A: 30, GONE: 70}) == {A: (500_000, 0, 0, 30)}
    assert divided(group_state(held=(A, GONE)), cpu=0.5) == {A: (500_000, 0, 0, 0)}
    assert divided(group_state(held=()), cpu=0.5, tasks={A: 30}) == {}


@pytest.mark.parametrize("load", [{"cpu": 0.5}, {"memory": 0.5}, {"disk": 0.5}, {"records_per_s": 5.0}, {"tasks": {A: 0}}])
def test_any_part_of_a_load_is_a_measurement(load: dict[str, Any]):
    assert A in divided(group_state(), **load)


@pytest.mark.parametrize("load", [{}, {"restored_records_per_s": 5.0}, {"behind": {A: 5}}, {"cpu": 0.0}])
def test_report_without_a_load_measures_nothing(load: dict[str, Any]):
    assert divided(group_state(), **load) == {}


def test_member_that_restores_is_not_measured():
    state = group_state()
    of = state.members["m1"]
    idle: dict[TaskId, Lag] = {A: 0, B: LagSentinel.ACTIVE, GONE: 9}
    reports: list[tuple[dict[TaskId, Lag], bool]] = [(idle, True), ({A: 1}, False), ({A: LagSentinel.UNKNOWN}, False)]
    for lags, measured in reports:
        of.lags = lags
        assert bool(divided(state, cpu=0.5)) is measured
    of.lags = {}
    actions.begin_warmup(state, of, GONE, caught_up=False)
    assert divided(state, cpu=0.5) == {}


@pytest.mark.parametrize(("share", "cpu"), [(1.0, 1_000_000), (999.5, 999_500_000), (1_000.0, 10**9), (1_001.0, 10**9), (0.0000019, 1)])
def test_share_of_a_host_is_capped(share: float, cpu: int):
    assert divided(group_state(held=(A,)), cpu=share) == {A: (cpu, 0, 0, 0)}


def test_records_per_second_are_capped():
    assert divided(group_state(held=(A,)), records_per_s=1e30) == {A: (0, 0, 0, INT64_MAX)}


@pytest.mark.parametrize(
    ("measured_ms", "before", "now", "after"),
    [
        (0, 400, 800, 500),  # a quarter of the window
        (0, 800, 400, 700),
        (5_000, 400, 800, 450),
        (10_000, 400, 800, 400),  # no time has passed
        (-30_000, 400, 800, 800),  # the whole window
        (-90_000, 400, 800, 800),
        (0, 400, 401, 401),  # rounded away from 0
        (0, 401, 400, 400),
        (0, 400, 400, 400),
        (0, 400, 405, 402),
    ],
)
def test_measurement_moves_the_average_by_the_time_that_has_passed(measured_ms: int, before: int, now: int, after: int):
    state = group_state(held=(A,), loads={A: MeasuredLoad(measured_ms, 0, 0, 0, before)})
    assert divided(state, tasks={A: now}) == {A: (0, 0, 0, after)}


def test_each_part_has_an_average_of_its_own():
    state = group_state(held=(A,), loads={A: MeasuredLoad(0, 100_000, 200_000, 300_000, 400)})
    assert divided(state, cpu=0.5, memory=0.4, disk=0.3, tasks={A: 800}) == {A: (200_000, 250_000, 300_000, 500)}
