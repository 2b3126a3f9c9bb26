"""Values of scenario arguments: printed values can be read, ranges expand, and unclear text is
refused.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.events.errors import InputError
from equipoise.events.tasks import LagSentinel, TaskId
from tests.support.scenarios.argument_values import (
    BY_MEMBER,
    ENDS,
    LAGS,
    NAMES,
    RACKS,
    TASKS,
    YES_NO,
    ValueKind,
    member_range,
    read_value,
    tasks_text,
)

A_TASK = st.builds(TaskId, st.integers(0, 3), st.integers(0, 30))


@given(st.sets(A_TASK))
def test_tasks_are_read_as_they_are_printed(tasks: set[TaskId]) -> None:
    assert read_value(TASKS, tasks_text(tasks)) == tuple(sorted(tasks))


def test_runs_of_four_and_more_are_ranges() -> None:
    assert tasks_text([TaskId(0, 0), TaskId(0, 1), TaskId(0, 2), TaskId(1, 0)]) == "(0_0,0_1,0_2,1_0)"
    assert tasks_text([TaskId(0, number) for number in (0, 1, 2, 3, 5)]) == "(0_0..3,0_5)"


def test_values_by_task_take_ranges() -> None:
    assert read_value(LAGS, "(0_0..1:active,1_0:5)") == {TaskId(0, 0): LagSentinel.ACTIVE, TaskId(0, 1): LagSentinel.ACTIVE, TaskId(1, 0): 5}
    assert read_value(ENDS, "0_3:1_000") == {TaskId(0, 3): 1000}
    assert read_value(BY_MEMBER, "(m1:0_0|0_2,m2:)") == {"m1": (TaskId(0, 0), TaskId(0, 2)), "m2": ()}
    assert read_value(RACKS, "(0:a|b,1:a)") == {0: ("a", "b"), 1: ("a",)}


def test_members_take_ranges() -> None:
    assert member_range("m8..m11") == ["m8", "m9", "m10", "m11"]
    assert read_value(NAMES, "(a,m1..m2)") == ("a", "m1", "m2")
    assert member_range("m1") == ["m1"]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (TASKS, "(0_0,0_0)"),
        (TASKS, "0_3..2"),
        (TASKS, "00_1"),
        (LAGS, "(0_0)"),
        (LAGS, "(0_0:soon)"),
        (LAGS, "(0_0:1,0_0..1:2)"),
        (RACKS, "(a:b)"),
        (NAMES, "m3..m1"),
        (YES_NO, "maybe"),
    ],
)
def test_unclear_value_is_refused(kind: ValueKind, text: str) -> None:
    with pytest.raises(InputError):
        read_value(kind, text)
