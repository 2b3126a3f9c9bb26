"""What a member says at INFO about its tasks."""

from __future__ import annotations

import logging

import pytest

from equipoise.events.tasks import LagSentinel, TaskId, ranges
from equipoise.member.session.task_log import IDLE_S, LAGS_WITHIN_S, Story

WHO = "group g: member m1"


def tasks(*partitions: int) -> list[TaskId]:
    return [TaskId(0, partition) for partition in partitions]


class Said:
    """A story, its clock and its lines."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO)
        self.now_s = 0.0
        self.story = Story(WHO, lambda: self.now_s)
        self._caplog = caplog

    def lines(self) -> list[str]:
        found = [record.getMessage().removeprefix(f"{WHO} ") for record in self._caplog.records]
        self._caplog.clear()
        return found


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Said:
    return Said(caplog)


@pytest.mark.parametrize(
    ("partitions", "text"), [((3,), "0_3"), ((0, 1, 2, 5), "0_0..2, 0_5"), ((5, 4), "0_4..5"), ((1, 3), "0_1, 0_3"), ((9, 10), "0_9..10"), ((), "")]
)
def test_ranges_join_consecutive_tasks(partitions: tuple[int, ...], text: str) -> None:
    assert ranges(tasks(*partitions)) == text


def test_ranges_end_with_a_subtopology() -> None:
    assert ranges([TaskId(1, 0), TaskId(0, 0), TaskId(1, 1), TaskId(0, 1)]) == "0_0..1, 1_0..1"


def test_decision_is_one_line_and_copies_are_another_once_their_lags_are_known(said: Said) -> None:
    said.story.joined(7)
    said.story.assigned(tasks(0, 1, 2), tasks(4, 5))
    said.story.look({TaskId(0, 4): 12_000}, tasks(0, 1, 2))
    assert said.lines() == ["joined, incarnation 7", "runs 0_0..2"]
    said.story.look({TaskId(0, 4): 12_000, TaskId(0, 5): 345}, tasks(0, 1, 2))
    said.story.look({TaskId(0, 4): 10_000, TaskId(0, 5): 0}, tasks(0, 1, 2))
    assert said.lines() == ["copies 0_4..5 (12,345 records left to restore)"]
    said.story.assigned(tasks(0, 1, 4), tasks(3))
    assert said.lines() == ["runs 0_4; gives up 0_2; copies no longer 0_5"]
    said.story.look({TaskId(0, 3): 0}, tasks(0, 1))
    said.story.assigned(tasks(0, 1, 4), tasks(3))
    said.story.look({TaskId(0, 3): 0}, tasks(0, 1, 4))
    said.story.ended(left=True)
    assert said.lines() == ["copies 0_3 (0 records left to restore)", "left"]


def test_task_that_is_granted_cold_says_what_it_restores(said: Said) -> None:
    said.story.assigned(tasks(0, 1, 2), ())
    said.story.look({}, ())
    said.story.look({TaskId(0, 0): LagSentinel.UNKNOWN, TaskId(0, 1): 2_000}, tasks(2))
    assert said.lines() == ["runs 0_0..2"]
    said.story.look({TaskId(0, 0): 1_000, TaskId(0, 1): 2_000}, tasks(2))
    said.story.look({TaskId(0, 0): 900, TaskId(0, 1): 400}, tasks(2))
    assert said.lines() == ["restores 0_0..1 first (3,000 records)"]


def test_new_task_without_records_says_nothing_of_restoring(said: Said) -> None:
    said.story.assigned(tasks(0), ())
    said.story.look({TaskId(0, 0): 1}, ())  # an opening task has a lag of at least 1
    said.story.look({}, tasks(0))
    assert said.lines() == ["runs 0_0"]


def test_copies_with_an_unknown_lag_are_said_after_a_while(said: Said) -> None:
    said.story.assigned((), tasks(0, 1))
    said.story.look({TaskId(0, 0): 10, TaskId(0, 1): LagSentinel.UNKNOWN}, ())
    said.now_s = LAGS_WITHIN_S + 1
    said.story.look({TaskId(0, 0): 10, TaskId(0, 1): LagSentinel.UNKNOWN}, ())
    assert said.lines() == ["copies 0_0..1 (at least 10 records left to restore)"]


def test_member_without_an_assignment_says_once_that_it_waits(said: Said) -> None:
    said.story.joined(7)
    said.story.look({}, ())
    assert said.lines() == ["joined, incarnation 7"]
    said.now_s = IDLE_S + 1
    for _ in range(3):
        said.story.look({}, ())
    assert said.lines() == ["waits for tasks: no worker leads the group, or the others run all tasks"]
    said.story.assigned((), ())
    said.now_s = 10 * IDLE_S
    said.story.look({}, ())
    assert said.lines() == []


def test_next_incarnation_says_again_what_it_runs(said: Said) -> None:
    said.story.assigned(tasks(0), tasks(1))
    said.story.ended(left=False)
    said.story.look({TaskId(0, 1): 5}, ())
    said.story.assigned(tasks(0), ())
    assert said.lines() == ["runs 0_0", "runs 0_0"]


def test_blocked_handlers_are_said_once_and_when_they_run_again(said: Said) -> None:
    for why in ("", "the application's loop has not run for 61 s", "the application's loop has not run for 64 s", "", ""):
        said.story.blocked(why)
    assert said.lines() == [
        f"{WHO}: the application's loop has not run for 61 s; its tasks stay here and handle nothing",
        f"{WHO}: its handlers and callbacks run again",
    ]
