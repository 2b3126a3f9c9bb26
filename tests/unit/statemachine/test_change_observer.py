"""Who watches a planned change stands beside the machine: its verdict is a fact, a leader that takes
over counts again, and builds that judge otherwise lead one group in turn.
"""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from equipoise.events.codec import checksum_of
from equipoise.events.decisions import ChangeJudged
from equipoise.events.facts import BaseRequested, ChangeMeasured, Fact, GroupConfigured, MemberLeft, ProbingTick
from equipoise.events.records import DecisionRecord, FactRecord
from equipoise.statemachine import partition
from equipoise.statemachine.group_lead import StoredCheckpoint
from equipoise.statemachine.partition import PartitionLead
from equipoise.statemachine.watched_change import OF_THIS_BUILD, UNDO_AGAIN_MS, ChangeObserver, Yardstick
from tests.groups import GROUP, Group
from tests.unit.statemachine.test_watched_change import expected, made_from, planned, with_settings

STRICT = attrs.evolve(OF_THIS_BUILD, allowance=dict.fromkeys(OF_THIS_BUILD.allowance, 0), near_records=0, rest_look_ms=1)
LENIENT = attrs.evolve(OF_THIS_BUILD, allowance=dict.fromkeys(OF_THIS_BUILD.allowance, 10**9), rest_look_ms=60_000)


class Log:
    """A group of three members whose facts leads of a partition fold, each as a worker does."""

    def __init__(self, **settings: Any) -> None:
        self.group = Group(watched=False).starts("m1", "m2", "m3", stateful=6, **settings)
        self.group.settles()
        for member in self.group.members.values():
            member.copies = {task: member.copies[task] for task in member.active}
        self.group.cycle()
        self.group.observer = None
        self.decisions: dict[int, DecisionRecord] = {}
        """By number."""
        self.checkpoints: list[StoredCheckpoint] = []

    @property
    def records(self) -> list[FactRecord]:
        return self.group.records

    def add(self, fact: Fact, after_ms: int = 0) -> None:
        self.group.fact(fact, after_ms)

    def lead(self, by: Yardstick = OF_THIS_BUILD) -> PartitionLead:
        """A worker that takes over and reads to the end."""
        lead = PartitionLead(opened=self.records[0])
        if self.checkpoints:
            lead.restore(self.checkpoints[-1])
            lead.position = self.checkpoints[-1].offset + 1
        lead.group(GROUP).observer = ChangeObserver(by)
        for number in sorted(self.decisions):
            lead.take_published(GROUP, number, checksum_of(self.decisions[number]))
        self.follow(lead)
        return lead

    def follow(self, lead: PartitionLead) -> None:
        """The worker folds what is there, publishes what it decides, and stores checkpoints."""
        for record in self.records[lead.position :]:
            for each in lead.fold(record, record.append_ms):
                self.decisions[each.number] = each
        group = lead.groups[GROUP]
        assert group.halted is None
        for ripe in lead.acknowledged(GROUP, group.machine.state.number):
            self.checkpoints.append(ripe)
            lead.stored(ripe)

    def judged(self) -> list[ChangeJudged]:
        return [each.decision for each in self.decisions.values() if isinstance(each.decision, ChangeJudged)]


def under_way(**settings: Any) -> Log:
    """Two tasks are on their way from m2, which left without a word."""
    log = Log(**settings)
    log.add(planned("restart", expected=(expected("unavailable_task_ms", 0, 500), expected("moves", 5, 9))))
    del log.group.members["m2"]
    log.add(MemberLeft(member_id="m2", incarnation=1), 1_000)
    for _ in range(2):
        log.add(ProbingTick(), 1_000)
    return log


def costs(lead: PartitionLead) -> dict[str, int]:
    found = lead.groups[GROUP].observer.costs(lead.groups[GROUP].machine.state)
    assert found is not None
    return found


def test_verdict_is_said_at_once_in_place_of_a_tick_and_once() -> None:
    log = under_way()
    lead = log.lead(STRICT)
    said = lead.tick(GROUP)
    assert isinstance(said, ChangeMeasured)
    assert (said.change_id, said.outcome, said.above) == ("c1", "too_much", ("unavailable_task_ms",))
    assert (said.unavailable_task_ms, costs(lead)["unavailable_task_ms"]) == (2_000, 4_000), "as it was when it became too much"
    lead.plan_ticks(5_000)
    assert lead.ticks_due(5_000) == [GROUP], "at once"
    assert lead.ticks_due(5_000) == [], "until it was read"
    log.add(said)
    log.follow(lead)
    assert [each.outcome for each in log.judged()] == ["too_much"]
    assert not isinstance(lead.tick(GROUP), ChangeMeasured)
    state = lead.groups[GROUP].machine.state
    assert (state.change, lead.groups[GROUP].observer.costs(state)) == (None, None)
    assert not lead.groups[GROUP].tick_under_way


def test_settings_that_are_refused_are_said_to_be() -> None:
    log = Log()
    log.add(planned())
    log.add(with_settings(log.group, max_step_ms=3_600_000))
    said = log.lead().tick(GROUP)
    assert isinstance(said, ChangeMeasured)
    assert (said.outcome, said.rest_ms) == ("refused", 0)


def test_change_that_nobody_measures_is_late() -> None:
    log = Log()
    log.add(planned("lead", expected=(expected("moves", 2, 3),), judge_within_ms=3_000))
    lead = log.lead()
    for late in (False, False, True):
        assert isinstance(lead.tick(GROUP), ProbingTick)
        log.add(ProbingTick(), 1_000)
        log.follow(lead)
        assert isinstance(lead.tick(GROUP), ChangeMeasured) == late
    said = lead.tick(GROUP)
    assert isinstance(said, ChangeMeasured)
    assert (said.outcome, said.moves, said.below) == ("late", 0, ()), "what it cost is not known"


@pytest.mark.parametrize("taken_over_after", [0, 1, 2, 3])
def test_leader_that_takes_over_counts_what_the_former_one_did(taken_over_after: int) -> None:
    log = under_way(checkpoint_every_records=1)
    place = len(log.records) - 4 + taken_over_after
    log.group.records, rest = log.records[:place], log.records[place:]
    first = log.lead()
    log.group.records += rest
    second = log.lead()
    log.follow(first)
    assert costs(first) == costs(second) == {"unavailable_task_ms": 4_000, "moves": 0, "rest_ms": 2_000}
    assert log.checkpoints[-1].offset < len(log.records) - 4, "the last one before the plan"
    assert first.recovery_offset <= len(log.records) - 4


def test_base_is_stored_whatever_is_counted_and_who_begins_there_says_less() -> None:
    log = under_way()
    lead = log.lead()
    log.add(BaseRequested())
    log.follow(lead)
    assert [each.is_base for each in log.checkpoints] == [True]
    later = log.lead()
    log.add(ProbingTick(), 1_000)
    log.follow(later)
    assert costs(later) == {"unavailable_task_ms": 0, "moves": 0, "rest_ms": 0}, "it has not seen it begin"


def test_observer_that_begins_in_the_midst_of_a_change_says_no_less() -> None:
    log = Log()
    log.add(planned(made_from=0, quiet_ms=2_000, expected=(expected("moves", 5, 9),)))
    whole, midway = ChangeObserver(), ChangeObserver()

    def see(*observers: ChangeObserver) -> None:
        for each in observers:
            each.see(log.group.state, log.records[-1], ())

    see(whole)
    assert (whole.counts_since(log.group.state), midway.counts_since(log.group.state)) == (len(log.records) - 1, None)
    log.add(attrs.evolve(made_from(log.group, 0, max_warmups=9), change_id="c1"))
    see(whole)
    log.add(ProbingTick(), 1_000)
    see(whole, midway)
    assert (midway.counts.begun_ms, whole.counts.begun_ms) == (log.group.state.now_ms, log.group.state.now_ms - 1_000), "it began before"
    assert midway.counts_since(log.group.state) is None
    for _ in range(2):
        log.group.cycle()
        see(whole, midway)
    assert whole.verdict is not None
    assert midway.verdict is not None
    assert (whole.verdict.outcome, whole.verdict.below) == ("at_rest", ("moves",))
    assert (midway.verdict.outcome, midway.verdict.below) == ("at_rest", ())
    log.add(planned("other"))
    see(whole)
    assert whole.counts_since(log.group.state) == len(log.records) - 1, "another change"
    assert [each.verdict for each in (whole,)] == [None]


def test_checkpoints_are_put_off_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition, "MOST_COUNTED_AGAIN", 4)
    log = under_way(checkpoint_every_records=1)
    plan = len(log.records) - 4
    lead = log.lead()
    assert log.checkpoints[-1].offset == plan - 1
    log.add(ProbingTick(), 1_000)
    log.follow(lead)
    assert log.checkpoints[-1].offset == plan + 4


@pytest.mark.parametrize("order", [(STRICT, LENIENT), (LENIENT, STRICT)], ids=["strict first", "lenient first"])
@pytest.mark.parametrize("checkpoints", [0, 1])
def test_builds_that_judge_otherwise_lead_one_group_in_turn(order: tuple[Yardstick, Yardstick], checkpoints: int) -> None:
    """In the fold a constant that was tuned gave other decisions, and halted the group."""
    log = Log(checkpoint_every_records=checkpoints)
    before = log.group.state.config
    log.add(planned(or_undo=True, made_from=0, expected=(expected("rest_ms", 0, 0),)))
    log.add(attrs.evolve(made_from(log.group, 0, num_standbys=1), change_id="c1"))
    for member in log.group.members.values():
        member.restores, member.copies = 1_000, {task: member.copies[task] for task in member.active}
    said: list[tuple[int, Fact]] = []
    for turn in range(30):
        lead = log.lead(order[turn % 2])
        log.group.cycle()
        log.follow(lead)
        while isinstance(told := lead.tick(GROUP), ChangeMeasured | GroupConfigured):
            said.append((turn % 2, told))
            log.add(told)
            log.follow(lead)
    assert [type(fact) for _, fact in said] == [ChangeMeasured, GroupConfigured]
    assert all(order[turn] is STRICT for turn, _ in said), "the other one would have let it be"
    assert [(each.outcome, each.undone) for each in log.judged()] == [("too_much", True)]
    assert log.group.state.config == before
    assert log.decisions == {each.number: each for each in log.group.decisions}


def test_change_after_which_all_members_are_gone_is_judged_and_undone() -> None:
    log = Log()
    lead = log.lead()
    log.add(planned(or_undo=True, most_unavailable_task_ms=100))
    log.add(with_settings(log.group, max_warmups=3))
    for name in ("m1", "m2", "m3"):
        log.add(MemberLeft(member_id=name, incarnation=1))
    log.add(ProbingTick(), 1_000)
    log.follow(lead)
    group = lead.groups[GROUP]
    for kind in (ChangeMeasured, GroupConfigured):
        assert group.tick_at_ms == log.records[-1].append_ms
        said = group.tick()
        assert isinstance(said, kind)
        log.add(said)
        log.follow(lead)
    assert (group.tick_at_ms, group.machine.state.change) == (None, None)


def test_refusal_of_an_undo_counts_for_a_while_and_for_its_change() -> None:
    log, observer = Log(), ChangeObserver()
    log.add(planned())
    state = log.group.state
    assert state.change is not None
    state.change, state.now_ms = attrs.evolve(state.change, undoes=True), 10**6
    for refused_ms, undoes in ((10**6 - UNDO_AGAIN_MS + 1, False), (10**6 - UNDO_AGAIN_MS, True)):
        observer._refused_ms = refused_ms
        assert observer.undoes(state) is undoes
    state.change = None
    observer.see(state, log.records[-1], ())
    assert observer._refused_ms is None


def test_defect_of_the_judgement_keeps_no_group_from_being_led(monkeypatch: pytest.MonkeyPatch) -> None:
    """The change ends without costs, and the defect is said once."""
    log = under_way()
    monkeypatch.setattr("equipoise.statemachine.watched_change._followed", broken)
    lead = log.lead()
    observer = lead.groups[GROUP].observer
    assert isinstance(observer.take_failure(), ZeroDivisionError)
    assert observer.take_failure() is None
    assert lead.groups[GROUP].halted is None
    log.add(ProbingTick(), 1_000)
    log.follow(lead)
    assert observer.verdict is not None
    log.add(observer.verdict)
    log.follow(lead)
    assert [(each.outcome, each.moves, each.below) for each in log.judged()] == [("late", 0, ())]
    assert lead.groups[GROUP].machine.state.change is None
    assert lead.groups[GROUP].observer.verdict is None
    assert observer.take_failure() is None


def broken(*_: object) -> None:
    raise ZeroDivisionError
