"""A worker's part for one partition, without a broker: several groups, checkpoints, comparison of
published decisions, ticks.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.events.codec import checksum_of, make_record
from equipoise.events.decisions import Checkpointed
from equipoise.events.errors import GapError, RepeatError
from equipoise.events.facts import BaseRequested, Fact, LagReported, LogOpened, MemberLeft, PartitionsObserved, ProbingTick, Undecodable
from equipoise.events.records import DecisionRecord, FactRecord
from equipoise.statemachine.group_lead import GroupLead, StoredCheckpoint
from equipoise.statemachine.machine import GroupMachine
from equipoise.statemachine.partition import PartitionLead
from equipoise.statemachine.published import OTHER_FORM, UnreadIdentity, identity_of
from equipoise.statemachine.ticks import PlannedTick
from tests.groups import configured, joined, topology

CONFIG = configured(checkpoint_every_records=4, initial_delay_ms=500, max_step_ms=1_000)


def history() -> list[FactRecord]:
    """Two groups in one partition, with a record of no group between them."""
    facts: list[tuple[str, Fact]] = [("", LogOpened(log_id="log-1"))]
    for group in ("a", "b"):
        facts += [(group, CONFIG), (group, topology(stateful=4))]
    facts += [("a", joined("m1")), ("b", joined("m1")), ("", Undecodable(code="no_group", length_bytes=1, crc32=1))]
    for number in range(6):
        facts += [("a", MemberLeft(member_id="nobody", incarnation=number)), ("b", ProbingTick())]
    return [make_record(group, offset, 1_000 * offset, fact) for offset, (group, fact) in enumerate(facts)]


def folded(lead: PartitionLead, records: list[FactRecord]) -> list[DecisionRecord]:
    return [decision for record in records for decision in lead.fold(record, 0)]


def snapshots(lead: PartitionLead) -> dict[str, bytes]:
    return {name: group.machine.snapshot() for name, group in lead.groups.items()}


def test_groups_of_one_partition_are_led_side_by_side() -> None:
    lead = PartitionLead()
    decisions = folded(lead, history())
    assert lead.position == len(history())
    for group in ("a", "b"):
        assert [each.number for each in decisions if each.group == group] == list(range(1, lead.groups[group].machine.state.number + 1))
    assert {each.log_id for each in decisions} == {"log-1"}
    with pytest.raises(RepeatError):
        lead.fold(history()[3], 0)
    with pytest.raises(GapError):
        lead.fold(make_record("a", lead.position + 1, 0, ProbingTick()), 0)


def test_group_that_begins_later_is_of_the_log_that_was_opened_before() -> None:
    assert {each.log_id for each in folded(PartitionLead(1, opened=history()[0]), history()[1:])} == {"log-1"}


@pytest.mark.parametrize("published", range(0, 25, 3))
def test_takeover_publishes_the_missing_decisions_alone(published: int) -> None:
    first = PartitionLead()
    decisions = folded(first, history())
    second = PartitionLead()
    for decision in decisions[:published]:
        second.take_published(decision.group, decision.number, checksum_of(decision))
    assert folded(second, history()) == decisions[published:]
    assert sum(group.confirmed for group in second.groups.values()) == min(published, len(decisions))
    assert snapshots(first) == snapshots(second)


def test_fold_from_any_checkpoint_equals_the_fold_from_the_start() -> None:
    whole = PartitionLead()
    decisions: list[DecisionRecord] = []
    stored: list[StoredCheckpoint] = []
    for record in history():
        missing = whole.fold(record, 0)
        decisions += missing
        for decision in missing:
            for checkpoint in whole.acknowledged(decision.group, decision.number):
                stored.append(checkpoint)
                whole.stored(checkpoint)
    assert len(stored) == sum(isinstance(decision.decision, Checkpointed) for decision in decisions) > 2
    for checkpoint in stored:
        later = PartitionLead(0, opened=history()[0])
        later.restore(checkpoint)
        for decision in decisions:
            later.take_published(decision.group, decision.number, checksum_of(decision))
        assert folded(later, history()) == []
        assert snapshots(later) == snapshots(whole)
        assert later.groups[checkpoint.group].confirmed == whole.groups[checkpoint.group].machine.state.number - checkpoint.number
    newest = {checkpoint.group: checkpoint for checkpoint in stored}
    assert whole.recovery_offset == min(record.offset for record in history() if record.group and record.offset > newest[record.group].offset)
    late = PartitionLead(whole.recovery_offset, opened=history()[0])
    for checkpoint in newest.values():
        late.restore(checkpoint)
    folded(late, history()[whole.recovery_offset :])
    assert snapshots(late) == snapshots(whole)


def test_clock_moves_behind_the_newest_state_alone() -> None:
    """In facts before it members seem silent that were heard since."""
    whole, stored = PartitionLead(), []
    for record in history():
        for decision in whole.fold(record, 0):
            stored += whole.acknowledged(decision.group, decision.number)
    assert whole._clock.now_ms == history()[-1].append_ms
    later = PartitionLead()
    for checkpoint in reversed(stored):
        later.restore(checkpoint)
    folded(later, history())
    newest = max(checkpoint.offset for checkpoint in stored)
    assert 0 < newest < len(history()) - 1
    assert later._clock.now_ms == history()[-1].append_ms - history()[newest].append_ms


def test_unreadable_published_decision_halts_its_group_when_compared() -> None:
    whole = PartitionLead()
    decisions = folded(whole, history())
    newer = next(each for each in decisions if each.group == "a" and each.number == 3)

    def taking_over(*checkpoints: StoredCheckpoint) -> PartitionLead:
        lead = PartitionLead(0, opened=history()[0])
        for checkpoint in checkpoints:
            lead.restore(checkpoint)
        for each in decisions:
            unread = UnreadIdentity("MemberAssigned version 2 is not known to this build", 17)
            lead.take_published(each.group, each.number, unread if each is newer else checksum_of(each))
        folded(lead, history())
        return lead

    lead = taking_over()
    halted = lead.groups["a"].halted
    assert halted is not None
    assert (halted.code, halted.offset) == ("event_unknown", newer.caused_by)
    assert "decision 3 is published and cannot be compared: MemberAssigned version 2" in str(halted)
    assert (lead.groups["b"].halted, lead.groups["b"].machine.snapshot()) == (None, snapshots(whole)["b"])
    whole.take_checkpoint("a")
    (checkpoint,) = whole.acknowledged("a", whole.groups["a"].machine.state.number)[-1:]
    behind = taking_over(checkpoint)
    assert behind.groups["a"].halted is None
    assert snapshots(behind) == snapshots(whole)


def test_checkpoint_waits_for_its_decisions() -> None:
    lead = PartitionLead()
    decisions = [each for each in folded(lead, history()) if each.group == "a"]
    taken = [each for each in decisions if isinstance(each.decision, Checkpointed)]
    assert lead.acknowledged("a", taken[0].number - 1) == []
    (checkpoint,) = lead.acknowledged("a", taken[0].number)
    assert (checkpoint.offset, lead.groups["a"].checkpoint_offset) == (taken[0].caused_by, -1)
    lead.stored(checkpoint)
    assert lead.groups["a"].checkpoint_offset == checkpoint.offset
    assert lead.recovery_offset == lead.groups["b"].from_offset  # it has none


def test_checkpoint_after_a_takeover_is_stored_at_once() -> None:
    """Every decision up to the checkpoint that it began with is published."""
    first = PartitionLead()
    folded(first, history())
    first.take_checkpoint("a")
    number = first.groups["a"].machine.state.number
    checkpoint = first.acknowledged("a", number)[-1]
    second = PartitionLead(first.position, opened=history()[0])
    second.restore(checkpoint)
    assert second.groups["a"].last_published == number
    second.take_checkpoint("a")
    assert [each.number for each in second.acknowledged("a", 0)] == [number]


def test_published_hash_of_another_form_is_counted_as_not_compared() -> None:
    whole = PartitionLead()
    decisions = folded(whole, history())
    older = {
        each.number: attrs.evolve(each, decision=Checkpointed(state_sha256="0" * 64, seq=each.decision.seq, form=0))
        for each in decisions
        if isinstance(each.decision, Checkpointed) and each.group == "a"
    }

    def published(*, twice: bool = False) -> PartitionLead:
        lead = PartitionLead()
        for each in decisions:
            other = older.get(each.number, each) if each.group == "a" else each
            for copy in (other, each) if twice else (other,):
                lead.take_published(copy.group, copy.number, identity_of(copy))
        return lead

    lead = published()
    assert folded(lead, history()) == []
    assert snapshots(lead) == snapshots(whole)
    assert lead.groups["a"].not_compared == len(older) > 0 == lead.groups["b"].not_compared
    assert lead.groups["a"].confirmed == whole.groups["a"].machine.state.number - len(older)

    lead = published(twice=True)  # by two workers of different forms: the comparable copy counts
    assert folded(lead, history()) == []
    assert (lead.groups["a"].not_compared, lead.groups["a"].confirmed) == (0, whole.groups["a"].machine.state.number)

    lead = PartitionLead()
    lead.take_published("a", 1, OTHER_FORM)  # in the place of another decision
    folded(lead, history())
    assert lead.groups["a"].halted is not None
    assert lead.groups["a"].halted.code == "published_differs"


@pytest.mark.parametrize(("what", "code"), [("differs", "published_differs"), ("twice", "published_differs"), ("gap", "published_gap")])
def test_published_decision_that_was_not_computed_halts_its_group_alone(what: str, code: str) -> None:
    decisions = folded(PartitionLead(), history())
    of_a = [each for each in decisions if each.group == "a"]
    lead = PartitionLead()
    if what == "differs":
        lead.take_published("a", 1, 0)
    elif what == "twice":
        lead.take_published("a", 2, 1)
        lead.take_published("a", 2, 2)
    else:
        lead.take_published("a", 2, checksum_of(of_a[1]))
    assert [each for each in folded(lead, history()) if each.group == "a"] == []
    halted = lead.groups["a"].halted
    assert halted is not None
    assert halted.code == code
    assert lead.groups["b"].halted is None
    assert lead.groups["b"].machine.state.number == sum(each.group == "b" for each in decisions) > 0
    assert lead.position == len(history())
    assert lead.ticks_due(10**9) == ["b"]


def test_unreadable_fact_halts_its_group_until_another_build_reads_it() -> None:
    lead = PartitionLead()
    folded(lead, history())
    lead.pass_over("a", lead.position, "event_unknown", "kind 77")
    assert lead.groups["a"].halted is not None
    assert lead.fold(make_record("a", lead.position, 0, ProbingTick()), 0) == []
    assert lead.fold(make_record("b", lead.position, 10**6, MemberLeft(member_id="x", incarnation=1)), 0)


@pytest.mark.parametrize("is_readable", [True, False])
def test_group_that_halts_at_its_first_fact_is_needed_from_that_fact_on(is_readable: bool) -> None:
    lead = PartitionLead(answers=False)
    folded(lead, history())
    for name in ("a", "b"):
        lead.take_checkpoint(name)
        for checkpoint in lead.acknowledged(name, lead.groups[name].machine.state.number):
            lead.stored(checkpoint)
    first = lead.position
    assert lead.recovery_offset > 1
    if is_readable:
        lead.fold(make_record("c", first, 0, attrs.evolve(CONFIG, assignor="of_a_newer_build")), 0)
    else:
        lead.pass_over("c", first, "event_unknown", "kind 77")
    assert lead.groups["c"].halted is not None
    for offset in range(first + 1, first + 5):
        lead.fold(make_record("a", offset, 0, ProbingTick()), 0)
    lead.take_checkpoint("a")
    for checkpoint in lead.acknowledged("a", lead.groups["a"].machine.state.number):
        lead.stored(checkpoint)
    assert lead.groups["c"].recovery_offset == first


def test_due_tick_is_named_once_until_it_is_folded() -> None:
    lead = PartitionLead()
    folded(lead, history())
    lead.plan_ticks(5_000)
    assert lead.ticks_due(5_000) == []
    assert lead.ticks_due(6_000) == ["a", "b"]
    assert lead.ticks_due(60_000) == []
    lead.fold(make_record("a", lead.position, 10**6, ProbingTick()), 6_000)
    assert lead.ticks_due(60_000) == ["a"]


@pytest.mark.parametrize(("b_from_ms", "due"), [(249, ["a", "b"]), (250, ["a", "b"]), (251, ["a"])])
def test_ticks_of_several_groups_go_together_unless_a_deadline_is_near(b_from_ms: int, due: list[str]) -> None:
    lead = PartitionLead()
    folded(lead, history())
    lead.plan_ticks(0)
    lead.fold(make_record("b", lead.position, 1, ProbingTick()), b_from_ms)
    planned = [group.planned for group in lead.groups.values()]
    assert planned == [PlannedTick(1_000, 750, rests=False), PlannedTick(1_000 + b_from_ms, 750 + b_from_ms, rests=False)]
    assert lead.ticks_due(999) == []
    assert lead.ticks_due(1_000) == due
    assert lead.ticks_due(1_000 + b_from_ms) == sorted({"a", "b"} - {*due})


def test_tick_at_a_deadline_is_not_sent_earlier_and_one_between_a_quarter_of_a_step() -> None:
    lead = PartitionLead()
    for fact in (configured(initial_delay_ms=501, max_step_ms=1_001), topology(stateful=4), joined("m1")):
        lead.fold(make_record("a", lead.position, 0, fact), 7)
    assert lead.groups["a"].planned == PlannedTick(508, 508, rests=False)
    lead.fold(make_record("a", lead.position, 501, ProbingTick()), 508)
    assert lead.groups["a"].planned == PlannedTick(1_509, 1_259, rests=False)


def test_settings_on_which_nothing_is_decided_are_followed_by_a_tick_whatever_the_heartbeats() -> None:
    """Nothing else in the log shows that they were read: such a group never ticks."""
    lead = PartitionLead()
    config = attrs.evolve(CONFIG, knobs=attrs.evolve(CONFIG.knobs, checkpoint_every_records=0))
    for at_ms, fact in ((0, config), (0, topology(stateful=4)), (0, joined("m1")), (501, ProbingTick())):
        lead.fold(make_record("a", lead.position, at_ms, fact), at_ms)
    changed = attrs.evolve(config, knobs=attrs.evolve(config.knobs, max_warmups=7))
    assert lead.fold(make_record("a", lead.position, 502, changed), 502) == []
    due: list[int] = []
    for now_ms in range(503, 520):
        lead.fold(make_record("a", lead.position, now_ms, LagReported("m1", 1, number=now_ms, assignment_epoch=1)), now_ms)
        if lead.ticks_due(now_ms) == ["a"]:
            due.append(now_ms)
            assert lead.tick("a") == ProbingTick()
        if now_ms == 510:
            lead.fold(make_record("a", lead.position, now_ms, ProbingTick()), now_ms)
    assert due == [503]


@pytest.mark.parametrize("how", ["empty", "halted"])
def test_group_that_becomes_empty_or_halts_has_no_tick_any_more(how: str) -> None:
    lead = PartitionLead()
    for fact in (CONFIG, topology(stateful=4), joined("m1")):
        lead.fold(make_record("a", lead.position, 0, fact), 0)
    assert lead.groups["a"].planned is not None
    if how == "empty":
        lead.fold(make_record("a", lead.position, 0, MemberLeft(member_id="m1", incarnation=1)), 0)
    else:
        lead.pass_over("a", lead.position, "event_unknown", "kind 77")
    assert lead.groups["a"].planned is None
    assert lead.ticks_due(10**9) == []


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 700), st.booleans()), max_size=30))
def test_ticks_are_due_as_a_look_at_every_group_says(steps: list[tuple[str, int, bool]]) -> None:
    lead, now_ms = PartitionLead(), 0
    for name in "abc":
        for fact in (CONFIG, topology(stateful=4), joined("m")):
            lead.fold(make_record(name, lead.position, 0, fact), now_ms)
    for name, passed_ms, is_tick in steps:
        now_ms += passed_ms
        lead.fold(make_record(name, lead.position, now_ms, ProbingTick() if is_tick else PartitionsObserved(end_offsets={})), now_ms)
        waiting = {group.name: group.planned for group in lead.groups.values() if group.planned is not None and not group.tick_under_way}
        is_one_due = any(planned.at_ms <= now_ms for planned in waiting.values())
        early = sorted(name for name, planned in waiting.items() if planned.from_ms <= now_ms)
        assert lead.ticks_due(now_ms) == (early if is_one_due else [])


def test_observe_returns_changed_values_alone() -> None:
    lead = PartitionLead()
    folded(lead, history())
    ends = {"log": {0: 5, 1: 7}}
    assert lead.observe("a", ends, {"log": {0: ("r1",)}}) == PartitionsObserved(end_offsets=ends, racks={"log": {0: ("r1",)}})
    assert lead.observe("a", ends, {"log": {0: ("r1",)}}) is None
    assert lead.observe("a", {"log": {0: 5, 1: 8}}) == PartitionsObserved(end_offsets={"log": {1: 8}})
    assert lead.observe("b", ends) == PartitionsObserved(end_offsets=ends)


# One group's defect halts that group alone (L8)


class CannotBeWritten(GroupMachine):
    """A defect: the state of group "a" cannot be written as a checkpoint."""

    def snapshot(self) -> bytes:
        if self.state.group == "a":
            raise OverflowError("an integer is too large")
        return super().snapshot()


def test_state_that_cannot_be_written_halts_its_group_alone() -> None:
    lead = PartitionLead(machine_factory=lambda checkpoint: CannotBeWritten())
    unhashed = attrs.evolve(CONFIG, knobs=attrs.evolve(CONFIG.knobs, checkpoint_every_records=0))
    facts = [unhashed if each.event == CONFIG else each.event for each in history()]
    folded(lead, [make_record(each.group, each.offset, each.append_ms, fact) for each, fact in zip(history(), facts, strict=True)])
    assert all(group.halted is None for group in lead.groups.values())
    for name in ("a", "b"):
        lead.take_checkpoint(name)
    halted = lead.groups["a"].halted
    assert halted is not None
    assert (halted.offset, halted.code, halted.problem) == (lead.position - 2, "defect", "OverflowError: an integer is too large")
    assert lead.groups["b"].halted is None
    assert len(lead.groups["b"].waiting) == 1
    assert lead.fold(make_record("a", lead.position, 10**6, ProbingTick()), 0) == []


def test_decision_above_the_size_limit_halts_its_group_before_publishing() -> None:
    lead = PartitionLead(machine_factory=lambda checkpoint: GroupMachine(most_event_bytes=10**9))
    names = "a" * 500, "b" * 500
    facts: list[tuple[str, Fact]] = [("", LogOpened(log_id="log-1"))]
    for group, tasks in (("big", 4_000), ("small", 4)):
        facts += [(group, configured(initial_delay_ms=0)), (group, topology(stateless=tasks)), (group, joined(names[0]))]
    facts += [("small", joined(names[1])), ("big", joined(names[1]))]
    decided = folded(lead, [make_record(group, offset, 1_000 * offset, fact) for offset, (group, fact) in enumerate(facts)])
    halted = lead.groups["big"].halted
    assert halted is not None
    assert (halted.code, halted.offset) == ("decision_too_large", 3)
    assert re.match("decision 2, AssignmentIssued, has 2[0-9]{6} bytes; an event has at most 1000000", halted.problem)
    assert [each for each in decided if each.group == "big"] == []
    assert lead.groups["small"].halted is None
    assert len([each for each in decided if each.group == "small" and each.caused_by == 7]) > 1


# What a lead keeps of each group


def running(**settings: Any) -> list[FactRecord]:
    """One group with a member, from offset 1 on; the last fact is at 1_003 ms."""
    facts: list[tuple[str, Fact]] = [("", LogOpened(log_id="log-1"))]
    facts += [("a", configured(**{"initial_delay_ms": 0, **settings})), ("a", topology(stateless=2)), ("a", joined("m1"))]
    return [make_record(group, offset, 1_000 + offset, fact) for offset, (group, fact) in enumerate(facts)]


def checkpointed(records: list[FactRecord]) -> StoredCheckpoint:
    lead = PartitionLead()
    folded(lead, records)
    lead.take_checkpoint("a")
    (checkpoint,) = lead.acknowledged("a", lead.groups["a"].machine.state.number)
    return checkpoint


def test_decisions_of_before_the_checkpoint_are_not_compared() -> None:
    checkpoint = checkpointed(running())
    lead = PartitionLead(4, opened=running()[0])
    lead.restore(checkpoint)
    assert (lead.groups["a"].checkpoint_offset, lead.groups["a"].recovery_offset) == (3, 4)
    for number in range(1, checkpoint.number + 1):
        lead.take_published("a", number, 0, refused=3)
    assert (lead.groups["a"].published.last_waiting, lead.groups["a"].refused) == (0, set())
    lead.take_published("a", checkpoint.number + 1, 0, refused=4)
    assert (lead.groups["a"].published.last_waiting, lead.groups["a"].refused) == (checkpoint.number + 1, {4})
    assert lead.groups["a"].last_published == checkpoint.number + 1


def test_decisions_of_a_halted_group_are_acknowledged_and_not_compared() -> None:
    lead = PartitionLead(1)
    lead.pass_over("a", 1, "event_unknown", "kind 77")
    lead.take_published("a", 5, 0, refused=7)
    assert (lead.groups["a"].last_published, lead.groups["a"].published.last_waiting, lead.groups["a"].refused) == (5, 0, set())


def test_copies_that_differ_halt_the_group_at_the_next_fact() -> None:
    lead = PartitionLead(3)
    lead.take_published("a", 1, 10)
    lead.take_published("a", 1, 11)
    halted = lead.groups["a"].halted
    assert halted is not None
    assert (halted.group, halted.offset, halted.code, halted.problem) == (
        "a",
        3,
        "published_differs",
        "decision 1 is published twice, and the copies differ",
    )
    assert lead.groups["a"].machine.halted is halted


def test_opened_log_reaches_groups_that_have_not_folded_it() -> None:
    seen: list[tuple[int, str, str]] = []

    def hears(record: FactRecord, decisions: list[DecisionRecord], machine: GroupMachine) -> None:
        seen.append((record.offset, machine.state.group, machine.state.log_id))

    lead = PartitionLead(4, opened=running()[0], folded=hears)
    lead.restore(checkpointed(running()))
    lead.group("b")
    lead.pass_over("c", 4, "event_unknown", "kind 77")
    assert lead.fold(make_record("", 5, 0, LogOpened(log_id="log-2")), 0) == []
    assert [(offset, log_id) for offset, _, log_id in seen] == [(5, "log-2"), (5, "log-2")]
    ahead = PartitionLead(0, folded=hears)
    seen.clear()
    ahead.restore(checkpointed(running()))
    ahead.fold(running()[0], 0)
    assert seen == [], "the checkpoint is of a later fact"
    ahead.group("d")
    assert ahead.groups["d"].machine.state.log_id == "log-1"


def test_each_fact_is_heard_with_its_decisions_and_its_machine() -> None:
    seen: list[tuple[int, list[int], bool]] = []
    lead = PartitionLead(
        folded=lambda record, decisions, machine: seen.append(
            (record.offset, [each.number for each in decisions], machine is lead.groups["a"].machine)
        )
    )
    decisions = folded(lead, [*running(), make_record("", 4, 0, Undecodable(code="no_group", length_bytes=1, crc32=1))])
    assert [offset for offset, _, is_its in seen if is_its] == [1, 2, 3]
    assert [number for _, numbers, _ in seen for number in numbers] == [each.number for each in decisions]
    assert set(lead.groups) == {"a"}


@pytest.mark.parametrize(
    ("offset", "error", "text"),
    [(1, RepeatError, "offset 1: was folded before; the next fact is 2"), (3, GapError, "offset 2: is missing; the next record has offset 3")],
)
def test_fact_out_of_order_is_named(offset: int, error: type[Exception], text: str) -> None:
    lead = PartitionLead()
    folded(lead, running()[:2])
    with pytest.raises(error, match=text):
        lead.fold(make_record("a", offset, 0, ProbingTick()), 0)
    with pytest.raises(error, match=text):
        lead.pass_over("a", offset, "event_unknown", "kind 77")
    assert lead.position == 2


def test_first_halt_of_a_group_stays() -> None:
    lead = PartitionLead(1)
    lead.pass_over("a", 1, "event_unknown", "kind 77")
    lead.pass_over("a", 2, "event_unknown", "kind 78")
    halted = lead.groups["a"].halted
    assert halted is not None
    assert (halted.group, halted.offset, halted.code, halted.problem) == ("a", 1, "event_unknown", "kind 77")
    assert lead.position == 3


def test_unreadable_fact_of_before_the_checkpoint_does_not_halt() -> None:
    for first, halts in ((3, False), (4, True)):
        lead = PartitionLead(first)
        lead.restore(checkpointed(running()))
        lead.pass_over("a", first, "event_unknown", "kind 77")
        assert (lead.groups["a"].halted is not None) is halts


class Fails(GroupMachine):
    """A defect: a member that joins as m9 ends the step."""

    def step(self, record: FactRecord) -> list[DecisionRecord]:
        if record.event == joined("m9"):
            raise ZeroDivisionError("a defect")
        return super().step(record)


def test_defect_of_a_step_halts_with_its_cause() -> None:
    lead = PartitionLead(machine_factory=lambda checkpoint: Fails())
    folded(lead, running())
    lead.take_checkpoint("a")
    assert lead.fold(make_record("a", 4, 2_000, joined("m9")), 0) == []
    group = lead.groups["a"]
    assert group.halted is not None
    assert (group.halted.offset, group.halted.code, group.halted.problem) == (4, "defect", "ZeroDivisionError: a defect")
    assert isinstance(group.halted.__cause__, ZeroDivisionError)
    assert (group.tick_at_ms, group.waiting, lead.acknowledged("a", 10**6)) == (None, [], [])
    assert lead.fold(make_record("a", 5, 2_000, ProbingTick()), 0) == []


def test_decision_that_cannot_be_compared_halts_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(recomputed: list[DecisionRecord]) -> list[DecisionRecord]:
        raise ZeroDivisionError("a defect") from ValueError("its own cause")

    lead = PartitionLead()
    folded(lead, running())
    monkeypatch.setattr(lead.groups["a"].published, "missing", fails)
    assert lead.fold(make_record("a", 4, 2_000, joined("m2")), 0) == []
    halted = lead.groups["a"].halted
    assert halted is not None
    assert (halted.offset, halted.code, halted.problem) == (4, "defect", "ZeroDivisionError: a defect")
    assert isinstance(halted.__cause__, ZeroDivisionError)


# Checkpoints


def test_checkpoints_ripen_in_order_as_decisions_are_acknowledged() -> None:
    lead = PartitionLead()
    folded(lead, running())
    taken = []
    for place, member_id in enumerate(("m2", "m3")):
        folded(lead, [make_record("a", 4 + place, 2_000, joined(member_id))])
        lead.take_checkpoint("a")
        taken.append(lead.groups["a"].waiting[-1])
    assert [(each.group, each.offset, each.number) for each in taken] == [("a", 4, taken[0].number), ("a", 5, lead.groups["a"].machine.state.number)]
    assert taken[1].state == lead.groups["a"].machine.snapshot()
    assert lead.acknowledged("a", taken[0].number) == taken[:1]
    assert lead.acknowledged("a", taken[1].number - 1) == []
    assert lead.acknowledged("a", taken[1].number) == taken[1:]
    assert lead.groups["a"].waiting == []


def test_new_lead_of_a_group_needs_the_log_from_its_start_and_no_tick() -> None:
    group = GroupLead("a", GroupMachine())
    assert (group.recovery_offset, group.last_published, group.tick_at_ms, group.halted) == (0, 0, None, None)


def test_checkpoint_of_the_first_fact_of_the_log_is_a_checkpoint() -> None:
    lead = PartitionLead(0, opened=running()[0])
    lead.fold(make_record("a", 0, 1_000, configured()), 0)
    assert lead.recovery_offset == 0
    lead.stored(StoredCheckpoint(group="a", offset=0, number=0, state=b""))
    assert lead.recovery_offset == 1


def test_checkpoint_stored_late_takes_nothing_back() -> None:
    lead = PartitionLead()
    assert lead.recovery_offset == 0
    folded(lead, running())
    assert lead.recovery_offset == 1, "the group's first fact"
    checkpoint = checkpointed(running())
    for offset in (3, 2):
        lead.stored(attrs.evolve(checkpoint, offset=offset))
    assert (lead.groups["a"].checkpoint_offset, lead.recovery_offset) == (3, 4)


def test_partition_is_needed_from_the_first_fact_that_any_group_needs() -> None:
    lead = PartitionLead()
    folded(lead, [*running(), make_record("b", 4, 2_000, joined("m1")), make_record("b", 5, 2_000, joined("m1"))])
    lead.stored(attrs.evolve(checkpointed(running()), offset=5))
    assert (lead.groups["b"].from_offset, lead.recovery_offset) == (4, 4)


def test_group_that_is_silent_since_its_checkpoint_needs_nothing_of_the_others() -> None:
    """A group that nobody runs any more does not make each takeover read the log of years."""
    lead = PartitionLead()
    folded(lead, [*running(), *(make_record("b", offset, 2_000, joined("m1")) for offset in range(4, 9))])
    lead.stored(checkpointed(running()))
    assert lead.recovery_offset == lead.groups["b"].from_offset == 4
    lead.stored(attrs.evolve(checkpointed(running()), group="b", offset=7))
    assert lead.recovery_offset == 8
    lead.stored(attrs.evolve(checkpointed(running()), group="b", offset=8))
    assert lead.recovery_offset == lead.position == 9
    folded(lead, [make_record("a", 9, 3_000, joined("m2"))])
    assert lead.recovery_offset == 9, "it has said something again"
    folded(lead, [make_record("a", 10, 3_000, joined("m3"))])
    assert lead.recovery_offset == 9
    lead.stored(attrs.evolve(checkpointed(running()), offset=9))
    assert lead.recovery_offset == 10
    lead.pass_over("b", 11, "newer", "of another build")
    folded(lead, [make_record("a", 12, 3_000, joined("m4"))])
    lead.stored(attrs.evolve(checkpointed(running()), offset=12))
    assert lead.recovery_offset == 11, "another build may read what this one skips"


# Ticks


@pytest.mark.parametrize(("initial_delay_ms", "in_ms"), [(0, 700), (500, 500)])
def test_tick_is_due_at_the_next_deadline_or_after_the_longest_step(initial_delay_ms: int, in_ms: int) -> None:
    lead = PartitionLead()
    for record in running(max_step_ms=700, initial_delay_ms=initial_delay_ms):
        lead.fold(record, 50)
    assert lead.groups["a"].tick_at_ms == 50 + in_ms
    lead.plan_ticks(80)
    assert lead.groups["a"].tick_at_ms == 80 + in_ms


def test_tick_of_an_overdue_deadline_is_in_a_millisecond() -> None:
    lead = PartitionLead()
    folded(lead, running())
    lead.groups["a"].machine.state.now_ms += 10**9
    lead.plan_ticks(80)
    assert lead.groups["a"].tick_at_ms == 81


def test_empty_group_needs_no_tick() -> None:
    lead = PartitionLead()
    folded(lead, running())
    folded(lead, [make_record("a", 4, 2_000, MemberLeft(member_id="m1", incarnation=1))])
    assert (lead.groups["a"].tick_at_ms, lead.ticks_due(10**12)) == (None, [])


def test_halted_group_gets_no_tick_after_a_takeover() -> None:
    lead = PartitionLead()
    folded(lead, running())
    lead.pass_over("a", 4, "event_unknown", "kind 77")
    lead.plan_ticks(80)
    assert (lead.groups["a"].tick_at_ms, lead.ticks_due(10**12)) == (None, [])


def test_tick_that_is_under_way_ends_with_a_tick_alone() -> None:
    lead = PartitionLead()
    folded(lead, running())
    at_ms = lead.groups["a"].tick_at_ms
    assert at_ms is not None
    assert (lead.ticks_due(at_ms - 1), lead.ticks_due(at_ms)) == ([], ["a"])
    lead.fold(make_record("a", 4, 2_000, joined("m2")), 0)
    assert lead.ticks_due(10**12) == []
    lead.fold(make_record("a", 5, 2_000, ProbingTick()), 0)
    assert lead.ticks_due(10**12) == ["a"]


def test_source_lags_are_observed_where_the_group_does_not_know_them() -> None:
    lead = PartitionLead()
    folded(lead, running())
    lags = {"in": {0: 5, 1: 6}}
    for _ in range(2):
        assert lead.observe("a", {}, None, lags) == PartitionsObserved(source_lags=lags), "they count when the group has folded them"
    folded(lead, [make_record("a", 4, 2_000, PartitionsObserved(source_lags={"in": {0: 5}}))])
    assert lead.observe("a", {}, {}, lags) == PartitionsObserved(source_lags={"in": {1: 6}})
    assert lead.groups["a"].machine.state.source_lags == {"in": {0: 5}}
    assert lead.observe("a", {}, {"in": {0: ("r1",)}}, {"in": {0: 5}}) == PartitionsObserved(racks={"in": {0: ("r1",)}})


def test_only_a_configuration_that_this_build_lacks_asks_for_what_is_published() -> None:
    lead = PartitionLead()
    folded(lead, running())
    missing = attrs.evolve(CONFIG, assignor="of_a_newer_build")
    for fact, asks in ((missing, True), (CONFIG, False), (joined("m2"), False)):
        assert lead.must_read_published(make_record("a", 4, 2_000, fact)) is asks
    assert not lead.must_read_published(make_record("a", 3, 2_000, missing)), "it was folded before"
    assert lead.must_read_published(make_record("new", 4, 2_000, missing))
    assert lead.groups["new"].from_offset == 4


def test_base_that_is_asked_for_is_the_state_behind_the_request() -> None:
    lead = PartitionLead()
    folded(lead, history())
    for group in ("a", "b"):
        (decision,) = lead.fold(make_record(group, lead.position, 20_000, BaseRequested()), 0)
        assert isinstance(decision.decision, Checkpointed)
        state = lead.groups[group].machine.state
        assert lead.groups[group].waiting[-1].is_base
        (*_, ripe) = lead.acknowledged(group, decision.number)
        assert (ripe.offset, ripe.number, ripe.is_base) == (lead.position - 1, state.number, True)
        assert hashlib.sha256(ripe.state).hexdigest() == decision.decision.state_sha256
    assert not any(each.is_base for each in checkpoints_of(history()))


def checkpoints_of(records: list[FactRecord]) -> list[StoredCheckpoint]:
    lead = PartitionLead()
    folded(lead, records)
    return [checkpoint for group in lead.groups.values() for checkpoint in group.waiting]


def test_request_of_a_base_changes_what_a_tick_would() -> None:
    asked, ticked = PartitionLead(), PartitionLead()
    for lead, fact in ((asked, BaseRequested()), (ticked, ProbingTick())):
        folded(lead, history())
        lead.fold(make_record("a", lead.position, 20_000, fact), 0)
    assert attrs.evolve(asked.groups["a"].machine.state, number=0) == attrs.evolve(ticked.groups["a"].machine.state, number=0)
    assert asked.groups["a"].tick_at_ms == ticked.groups["a"].tick_at_ms
