from __future__ import annotations

from typing import Any

import pytest

from equipoise.events.errors import FieldError
from equipoise.events.tasks import TASK_TEXTS, LagSentinel, TaskId, parse_task, ranges, tasks_text


@pytest.mark.parametrize(
    ("tasks", "text"),
    [
        ([], ""),
        ([(0, 0)], "0_0"),
        ([(0, 1), (0, 0)], "0_0..1"),
        ([(1, 2), *((0, number) for number in range(6)), (0, 7)], "0_0..5, 0_7, 1_2"),
        ([(0, 5), (1, 6)], "0_5, 1_6"),
    ],
)
def test_ranges_join_consecutive_tasks_of_a_subtopology(tasks: list[tuple[int, int]], text: str) -> None:
    assert ranges(TaskId(*task) for task in tasks) == text


def test_tasks_text_keeps_the_given_order() -> None:
    assert tasks_text([TaskId(0, 1), TaskId(0, 0)]) == "(0_1,0_0)"


@pytest.mark.parametrize("text", ["", "0", "0_", "_1", "0_-1", "01_1", "0_1 ", "٣_1", 7, None, b"0_1"])
def test_text_that_is_no_task_is_refused(text: Any) -> None:
    with pytest.raises(FieldError, match="is not a task id; write <sub-topology>_<partition>, as in 0_3"):
        parse_task(text)


def test_task_out_of_range_has_no_text() -> None:
    with pytest.raises(FieldError):
        TASK_TEXTS[TaskId(-1, 0)]


def test_text_and_task_are_each_others() -> None:
    task = TaskId(12, 345)
    assert (parse_task("12_345"), TASK_TEXTS[task]) == (task, "12_345")


def test_sentinels_show_their_names() -> None:
    assert repr(LagSentinel.ACTIVE) == "ACTIVE"
