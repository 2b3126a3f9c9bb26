"""The measurement of the comparison with peers: from appends of inputs and answers to the cost of
an action.
"""

from __future__ import annotations

from typing import Any

from bench.peers.table import rows_of, summary_of
from bench.peers.waits import Answer, TaskWaits, cost_of

EVERY_MS = 100


def task(*parts: tuple[int, int, str], until_ms: int = 20_000) -> TaskWaits:
    """A task with an input each EVERY_MS. `parts`: (from, to, instance): the instance that answers
    open inputs at once between two times.
    """
    made = TaskWaits()
    for offset, at_ms in enumerate(range(0, until_ms, EVERY_MS)):
        made.asked(offset, at_ms)
    answered = 0
    for start_ms, stop_ms, instance in parts:
        for at_ms in range(start_ms, stop_ms, EVERY_MS):
            while answered * EVERY_MS <= at_ms:
                made.answered(answered, Answer(at_ms + 5, instance))
                answered += 1
    return made


def cost(*tasks: TaskWaits, touched: str = "", begin_ms: int = 1_000, end_ms: int = 19_000) -> Any:
    return cost_of(tasks, begin_ms, end_ms, touched=frozenset(touched.split()), settled=True)


def test_task_that_always_runs_costs_nothing() -> None:
    found = cost(task((0, 20_000, "a")))
    assert (found.unavailable_ms, found.tasks_still, found.moves, found.untouched_wait_ms, found.moved_wait_ms) == (0, 0, 0, 5, None)


def test_unavailable_time_counts_in_full() -> None:
    """No owner from 5,000 to 9,000: the input of 5,000 waits until 9,005."""
    assert task((0, 5_000, "a"), (9_000, 20_000, "a")).still(0, 20_000) == [(5_000, 9_005)]


def test_unavailable_time_of_at_most_a_second_is_not_counted() -> None:
    found = cost(task((0, 5_000, "a"), (5_900, 20_000, "b")))
    assert (found.unavailable_ms, found.moves, found.moved_wait_ms, found.untouched_wait_ms) == (0, 1, 905, None)


def test_queued_inputs_count_until_they_are_answered() -> None:
    """No owner from 5,000 to 8,000, then an answer each 50 ms: the input of 8,900 is the last that
    waits for over a second.
    """
    made = TaskWaits()
    for offset, at_ms in enumerate(range(0, 20_000, EVERY_MS)):
        made.asked(offset, at_ms)
        made.answered(offset, Answer(max(at_ms + 5, 8_000 + (at_ms - 5_000) // 2 if at_ms >= 5_000 else 0), "a"))
    assert made.still(0, 20_000) == [(5_000, 9_950)]


def test_unavailable_time_is_split_between_windows() -> None:
    made = task((0, 5_000, "a"), (9_000, 20_000, "b"))
    assert (made.still(0, 6_000), made.still(6_000, 20_000)) == ([], [(6_000, 9_005)])
    assert made.still(0, 6_500) == [(5_000, 6_500)]


def test_input_without_an_answer_waits_until_the_end() -> None:
    made = task((0, 5_000, "a"))
    assert made.still(0, 20_000) == [(5_000, 20_000)]
    assert made.open_for_ms(20_000) == 15_000


def test_skipped_input_waits_for_the_next_answer_and_is_reported() -> None:
    made = task((0, 20_000, "a"))
    made.answers[50] = None
    assert (made.waits(5_000, 5_100), made.still(0, 20_000), made.unanswered(0, 20_000)) == ([(5_000, 5_100)], [], 1)
    assert made.waits(5_000, 5_200)[0] == (5_000, 5_105)


def test_later_answers_do_not_count() -> None:
    made = task((0, 20_000, "a"))
    made.answered(3, Answer(9_000, "b"))
    assert (made.still(0, 20_000), made.repeated_ms, made.owner) == ([], [9_000], "b")


def test_answer_may_arrive_before_its_input() -> None:
    made = TaskWaits()
    made.answered(1, Answer(120, "a"))
    made.answered(0, Answer(110, "a"))
    assert made.open_for_ms(5_000) == 0
    made.asked(0, 100)
    made.asked(1, 105)
    assert made.waits(0, 1_000) == [(100, 110), (105, 120)]


def test_untouched_wait_ignores_members_that_the_action_changed() -> None:
    """The longest wait of tasks that did not move counts only members that the action left alone."""
    alone, restarted = task((0, 20_000, "b")), task((0, 5_000, "a"), (8_000, 20_000, "a"))
    found = cost(alone, restarted, touched="a")
    assert (found.untouched_wait_ms, found.longest_still_ms, found.tasks_still) == (5, 3_005, 1)


def step(action: str, settled: bool, **cost: int | None) -> dict[str, Any]:
    lasts_ms = 9_000 if settled else 60_000
    return {"action": action, "cost": {"settled": settled, "lasts_ms": lasts_ms, "unanswered": 0, "repeated": 0, **cost}}


def test_restarts_are_one_row() -> None:
    steps = [
        step(
            "restart",
            True,
            unavailable_ms=1_500,
            tasks_still=1,
            longest_still_ms=1_500,
            moves=2,
            moved_wait_ms=300,
            untouched_wait_ms=None,
            repeated=1,
        ),
        step("restart", False, unavailable_ms=2_000, tasks_still=2, longest_still_ms=2_000, moves=0, moved_wait_ms=None, untouched_wait_ms=90),
    ]
    _, rows = rows_of([{"system": "s", "steps": steps}])
    assert rows == [["s", "rolling restart of 2", 3.5, 3, 2.0, 2, 300, 90, "over 69", 1, 0]]


def test_summary_has_a_column_for_each_system() -> None:
    bounces = [step("restart", each > 0, unavailable_ms=1_500 * each) for each in range(3)]
    killed = step("kill", True, unavailable_ms=2_340)
    runs = [{"system": "s", "steps": bounces[:2]}, {"system": "t", "steps": [killed]}, {"system": "s", "steps": bounces[2:]}]
    columns, rows = summary_of(runs)
    assert columns == ("task-seconds without an answer", "s", "t")
    assert rows == [["rolling restart, each", "over 1.5", None], ["kill -9", None, "2.3"]]
