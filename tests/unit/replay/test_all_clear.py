"""What is shown of a group ends before the first fact that nobody has decided on."""

from __future__ import annotations

import pytest

from equipoise.events.decisions import AssignmentIssued
from equipoise.events.errors import InputError
from equipoise.events.records import DecisionRecord, Entry, FactRecord
from equipoise.events.tasks import TaskId
from equipoise.replay.explanation import explain, explain_decided
from equipoise.replay.replayer import Replayer
from tests.unit.replay.lived import lived

TASK = TaskId(0, 0)


def rounds() -> list[DecisionRecord]:
    return [each for each in lived() if isinstance(each, DecisionRecord) and isinstance(each.decision, AssignmentIssued)]


def without_decisions_from(offset: int) -> list[Entry]:
    return [each for each in lived() if not isinstance(each, DecisionRecord) or each.caused_by < offset]


def test_log_whose_decisions_are_all_written_is_explained_at_its_end() -> None:
    entries = list(lived())
    found = explain_decided(lambda: entries, TASK)
    assert found.grounds.complete.undecided is None
    assert found == explain(entries, TASK)


def test_log_without_its_last_decisions_is_explained_where_they_begin_to_be_missing() -> None:
    cut = rounds()[-1].caused_by
    entries = without_decisions_from(cut)
    found = explain_decided(lambda: entries, TASK)
    assert found.grounds.complete.undecided is not None
    assert found.grounds.complete.undecided.offset == cut
    assert found.grounds.complete.undecided.decisions == sum(isinstance(each, DecisionRecord) for each in lived()) - sum(
        isinstance(each, DecisionRecord) for each in entries
    )
    assert found.grounds.complete.undecided.append_ms == next(
        each.append_ms for each in lived() if isinstance(each, FactRecord) and each.offset == cut
    )
    before = explain(list(lived()), TASK, at_offset=cut - 1)
    assert (found.offset, found.row, found.moves) == (before.offset, before.row, before.moves)


def test_fact_with_some_of_its_decisions_is_not_decided_on() -> None:
    last = max(each.caused_by for each in rounds())
    numbers = [each.number for each in lived() if isinstance(each, DecisionRecord) and each.caused_by == last]
    assert len(numbers) > 1
    entries = [each for each in lived() if not isinstance(each, DecisionRecord) or each.number < numbers[-1]]
    found = explain_decided(lambda: entries, TASK).grounds.complete.undecided
    assert found is not None
    assert found.offset == last


def test_moment_that_was_asked_for_is_shown_as_it_would_have_been_decided() -> None:
    cut = rounds()[-1].caused_by
    found = explain_decided(lambda: without_decisions_from(cut), TASK, at_offset=cut)
    assert (found.offset, found.grounds.complete.undecided) == (cut, None)


def test_log_of_facts_alone_is_explained_to_its_end() -> None:
    facts = [each for each in lived() if not isinstance(each, DecisionRecord)]
    found = explain_decided(lambda: facts, TASK)
    assert found.grounds.complete.undecided is None
    assert found.offset == explain(list(lived()), TASK).offset


def test_end_that_lies_between_two_facts_of_the_group_is_no_end_of_the_log() -> None:
    facts = [each for each in lived() if not isinstance(each, DecisionRecord)]
    gap = [each for each in facts if each.offset != facts[-2].offset]
    replayer = Replayer()
    for _ in replayer.follow(gap, until_offset=facts[-2].offset):
        pass
    assert replayer.machine.state.last_offset == facts[-3].offset
    with pytest.raises(InputError, match="the log ends at offset"):
        list(Replayer().follow(gap, until_offset=facts[-1].offset + 1))
