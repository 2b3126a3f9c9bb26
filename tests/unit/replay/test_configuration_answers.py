"""Readers of a log learn whether a configuration was refused before they fold it: the refusal is
stored right behind the fact, far behind it, or too far.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from equipoise.events.codec import make_record
from equipoise.events.decisions import Decision, EventRejected, MemberExpired
from equipoise.events.errors import DamagedError
from equipoise.events.facts import GroupConfigured, ProbingTick
from equipoise.events.records import DecisionRecord, Entry, FactRecord
from equipoise.replay import replayer as replayer_module
from equipoise.replay.inputs_reader import read_recorded_inputs
from equipoise.replay.recorded_inputs import ConfigurationChanged
from equipoise.replay.replayer import ConfigurationAnswers, Replayer
from equipoise.replay.verification import GroupVerifier, Verdict, verify
from equipoise.statemachine.partition import real_machine
from equipoise.statemachine.rejections import ASSIGNOR_UNAVAILABLE
from tests.groups import GROUP, configured, joined
from tests.unit.statemachine.test_refused_configuration import LACKS, LEARNER, RUNNING, TYPO, lacking, lead, log, stored

REFUSAL = EventRejected(kind=2, code=ASSIGNOR_UNAVAILABLE)
EXPIRED = MemberExpired(member_id="m1", incarnation=1, cause="session_timeout", silent_ms=1, hold_ms=0)


def fact(offset: int, event: GroupConfigured | ProbingTick) -> FactRecord:
    return make_record(GROUP, offset, offset, event)


def decision(number: int, caused_by: int, event: Decision) -> DecisionRecord:
    return DecisionRecord("log-1", GROUP, number, caused_by, 0, 0, event)


def refused_of(entries: list[Entry]) -> dict[int, bool]:
    return {entry.offset: entry.refused for entry in entries if isinstance(entry, FactRecord)}


def test_facts_wait_until_a_decision_shows_the_answer() -> None:
    answers = ConfigurationAnswers()
    assert refused_of(answers.take(fact(1, ProbingTick()))) == {1: False}
    assert answers.take(fact(2, LEARNER)) == []
    assert answers.take(fact(3, ProbingTick())) == []
    early = decision(1, 1, EXPIRED)
    assert answers.take(early) == [early], "of an earlier fact: it says nothing, and need not wait"
    assert answers.take(decision(2, 2, EXPIRED)) == [], "timers come before the fact is judged"
    refusal = decision(3, 2, REFUSAL)
    known = answers.take(refusal)
    assert refused_of(known) == {2: True, 3: False}
    assert known[-1] == refusal
    assert answers.rest() == []


@pytest.mark.parametrize("caused_by", [2, 4])
def test_configuration_with_another_decision_is_accepted(caused_by: int) -> None:
    answers = ConfigurationAnswers()
    for each in (fact(2, LEARNER), fact(3, ProbingTick()), fact(4, ProbingTick())):
        assert answers.take(each) == []
    known = answers.take(decision(1, caused_by, EventRejected(kind=2, code="knobs_refused")))
    assert refused_of(known) == {2: False, 3: False, 4: False}


def test_two_configurations_get_their_own_answers() -> None:
    answers = ConfigurationAnswers()
    for each in (fact(2, TYPO), fact(3, ProbingTick()), fact(4, LEARNER), fact(5, ProbingTick())):
        answers.take(each)
    assert refused_of(answers.take(decision(1, 2, REFUSAL))) == {2: True, 3: False}
    assert refused_of(answers.rest()) == {4: False, 5: False}


def test_refusal_too_late_is_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replayer_module, "MOST_HELD", 3)
    answers = ConfigurationAnswers()
    for offset, event in ((2, LEARNER), (3, ProbingTick()), (4, ProbingTick())):
        assert answers.take(fact(offset, event)) == []
    assert refused_of(answers.take(fact(5, ProbingTick()))) == {2: False, 3: False, 4: False, 5: False}
    for each in (answers, ConfigurationAnswers.restore(answers.save())):
        with pytest.raises(DamagedError, match="decision 1, is stored over 3 records behind"):
            each.take(decision(1, 2, REFUSAL))


def refused(*, late: bool) -> list[Entry]:
    """A log led by a build that lacks the learner. `late`: all decisions from the refusal on are
    stored at the end.
    """
    records = log(LEARNER, joined("m2"), configured(initial_delay_ms=0, probing_interval_ms=9_000))
    _, decisions = lead(records, LACKS)
    behind = [each for each in decisions if late and each.caused_by >= 4]
    return [*stored(records, [each for each in decisions if each not in behind]), *behind]


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("load", [lacking(), lacking("learner")])
def test_verify_recorded_refusal_is_identical(load: Callable[[str, int], object], late: bool) -> None:
    found = verify(refused(late=late), load=load).groups[0]  # type: ignore[arg-type]
    assert (found.verdict, found.problem, found.not_yet_written) == (Verdict.IDENTICAL, "", 0)


def test_group_verifier_restored_while_holding_facts_goes_on() -> None:
    entries = refused(late=True)
    group = GroupVerifier(GROUP)
    group.machine.step(entries[0])  # type: ignore[arg-type]
    for entry in entries[1:]:
        group.take(entry)
        group = GroupVerifier.restore(group.save())
    assert group.answer() == verify(entries).groups[0]
    assert group.answer().verdict is Verdict.IDENTICAL


def test_verify_unanswered_configuration_without_the_assignor_cannot_verify() -> None:
    found = verify(log(LEARNER), load=lacking("learner")).groups[0]
    assert found.verdict is Verdict.CANNOT_VERIFY
    assert "learner is not installed" in found.problem


def test_verify_applied_configuration_without_the_assignor_cannot_verify() -> None:
    records = log(LEARNER, joined("m2"))
    decisions = lead(records, real_machine)[1]
    entries = stored(records, decisions)
    assert verify(entries).verdict is Verdict.IDENTICAL
    assert verify(entries, load=lacking("learner")).verdict is Verdict.CANNOT_VERIFY


@pytest.mark.parametrize("late", [False, True])
def test_refused_configuration_is_never_in_force(late: bool) -> None:
    entries = refused(late=late)
    replayer = Replayer()
    offsets = [step.record.offset for step in replayer.follow(entries)]
    assert offsets == [1, 2, 3, 4, 5, 6]
    assert replayer.first_divergence is None
    config = replayer.machine.state.config
    assert config is not None
    assert config.assignor == "high_availability"
    recorded = read_recorded_inputs(entries)
    changes = [each.config.assignor for each in recorded.happenings if isinstance(each, ConfigurationChanged)]
    assert recorded.start.config == RUNNING
    assert changes == ["high_availability"]


def test_replayer_until_offset_ends_there() -> None:
    replayer = Replayer()
    assert [step.record.offset for step in replayer.follow(refused(late=False), until_offset=4)][-1] == 4
    assert replayer.machine.state.last_offset == 4
