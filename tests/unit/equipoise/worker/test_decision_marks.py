"""Where a worker that takes a partition over begins to read the decisions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.worker import decision_marks
from equipoise.worker.decision_marks import DecisionMarks


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> DecisionMarks:
    """Marks that remember every third decision."""
    monkeypatch.setattr(decision_marks, "MARK_EVERY", 3)
    return DecisionMarks()


def test_without_a_mark_all_decisions_are_read() -> None:
    marks = DecisionMarks()
    assert (marks.start_for(100), marks.answered_to) == (0, -1)


def test_first_decision_is_marked_and_then_one_of_three(few: DecisionMarks) -> None:
    for fact in range(1, 8):
        few.published(fact, 10 * fact)
    assert [few.start_for(recovery) for recovery in (1, 2, 4, 5, 8)] == [0, 10, 10, 40, 70]
    assert few.answered_to == 7


def test_decisions_of_one_fact_are_never_divided(few: DecisionMarks) -> None:
    for offset in range(7):
        few.published(5, offset)
    assert few.start_for(6) == 0


def test_what_was_reached_is_a_mark_once(few: DecisionMarks) -> None:
    few.reached(11, 40)
    few.reached(11, 50)
    assert (few.start_for(10), few.start_for(11)) == (0, 40)


def test_late_answer_to_an_earlier_fact_lowers_nothing(few: DecisionMarks) -> None:
    few.published(9, 1)
    few.published(4, 2)
    assert few.answered_to == 9


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=60), st.integers(0, 80))
def test_every_decision_of_later_facts_is_behind_the_start(steps: list[tuple[int, bool]], recovery: int) -> None:
    marks, fact = DecisionMarks(), 0
    decisions: list[int] = []
    for further, reached in steps:
        fact += further
        if reached and further:  # the decisions of all facts before this one are published
            marks.reached(fact, len(decisions))
        marks.published(fact, len(decisions))
        decisions.append(fact)
    start = marks.start_for(recovery)
    assert all(caused_by < recovery for caused_by in decisions[:start])
