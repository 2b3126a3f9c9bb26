"""A configuration that the leader's build cannot carry out: which worker refuses it, whom the
refusal binds, and when a group halts instead (L6).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import pytest

from equipoise.assignors import registry
from equipoise.events.codec import checksum_of, make_record
from equipoise.events.decisions import EventRejected, MemberExpired
from equipoise.events.errors import GroupHalted, InputError
from equipoise.events.facts import Fact, GroupConfigured, LogOpened, ProbingTick
from equipoise.events.records import DecisionRecord, Entry, FactRecord
from equipoise.statemachine.group_lead import StoredCheckpoint
from equipoise.statemachine.machine import AssignorLoader, GroupMachine
from equipoise.statemachine.partition import MachineFactory, PartitionLead, real_machine
from equipoise.statemachine.rejections import ASSIGNOR_UNAVAILABLE, refused_fact, rejection_text
from tests.groups import GROUP, SESSION_MS, configured, joined, topology

RUNNING = configured(initial_delay_ms=0)
TYPO = attrs.evolve(RUNNING, assignor="high_availabilty")
LEARNER = configured("learner", initial_delay_ms=0)


def lacking(*names: str) -> AssignorLoader:
    def load(name: str, version: int) -> Any:
        if name in names:
            raise InputError(f"{name} is not installed")
        return registry.load(name, version)

    return load


def build(load: AssignorLoader) -> MachineFactory:
    return lambda checkpoint: GroupMachine(load=load) if checkpoint is None else GroupMachine.restore(checkpoint, load=load)


LACKS = build(lacking("learner"))


def log(*facts: Fact, every_ms: int = 1_000) -> list[FactRecord]:
    """A running group, followed by these facts."""
    before: list[Fact] = [LogOpened(log_id="log-1"), RUNNING, topology(stateless=4), joined("m1")]
    return [
        make_record("" if isinstance(fact, LogOpened) else GROUP, offset, every_ms * offset, fact) for offset, fact in enumerate([*before, *facts])
    ]


def lead(
    records: list[FactRecord], factory: MachineFactory, published: Sequence[DecisionRecord] = (), **given: Any
) -> tuple[PartitionLead, list[DecisionRecord]]:
    """A worker that takes over from the log's start, and everything it publishes."""
    taken = PartitionLead(machine_factory=factory, **given)
    tell(taken, published)
    return taken, [decision for record in records for decision in taken.fold(record, 0)]


def tell(taken: PartitionLead, published: Sequence[DecisionRecord]) -> None:
    for each in published:
        taken.take_published(each.group, each.number, checksum_of(each), refused_fact(each.decision, each.caused_by))


def stored(records: list[FactRecord], decisions: list[DecisionRecord]) -> list[Entry]:
    """The log as read: each fact followed by its decisions."""
    entries: list[Entry] = []
    for record in records:
        entries += [record, *(each for each in decisions if each.caused_by == record.offset)]
    return entries


def refusals(decisions: list[DecisionRecord]) -> list[int]:
    return [each.caused_by for each in decisions if isinstance(each.decision, EventRejected) and each.decision.code == ASSIGNOR_UNAVAILABLE]


def code_of(taken: PartitionLead) -> str | None:
    halted = taken.groups[GROUP].halted
    return None if halted is None else halted.code


def config_of(taken: PartitionLead) -> GroupConfigured | None:
    return taken.groups[GROUP].machine.state.config


@pytest.mark.parametrize("wrong", [TYPO, attrs.evolve(RUNNING, behaviour_version=99), attrs.evolve(RUNNING, solver="ortools-1.0")])
def test_unavailable_configuration_is_refused_and_old_one_stays(wrong: GroupConfigured) -> None:
    taken, decisions = lead(log(wrong, joined("m2")), real_machine)
    assert refusals(decisions) == [4]
    assert config_of(taken) == RUNNING
    assert decisions[-1].caused_by == 5, "the join after it is answered"
    corrected = make_record(GROUP, 6, 6_000, attrs.evolve(RUNNING, knobs=configured(probing_interval_ms=9_000).knobs))
    taken.fold(corrected, 0)
    assert config_of(taken) == corrected.event
    assert code_of(taken) is None


def test_refused_first_configuration_leaves_group_unconfigured() -> None:
    records = [make_record("", 0, 0, LogOpened(log_id="log-1")), make_record(GROUP, 1, 1, TYPO), make_record(GROUP, 2, 2, RUNNING)]
    taken, decisions = lead(records[:2], real_machine)
    assert refusals(decisions) == [1]
    assert config_of(taken) is None
    taken.fold(records[2], 0)
    assert config_of(taken) == RUNNING


def test_published_refusal_binds_a_build_with_the_assignor() -> None:
    records = log(LEARNER, joined("m2"))
    first, decisions = lead(records, LACKS)
    assert refusals(decisions) == [4]
    second, missing = lead(records, real_machine, decisions)
    assert missing == []
    assert second.groups[GROUP].confirmed == len(decisions)
    assert config_of(second) == RUNNING
    assert second.groups[GROUP].machine.snapshot() == first.groups[GROUP].machine.snapshot()


def test_build_with_the_assignor_accepts_an_unanswered_configuration() -> None:
    taken, decisions = lead(log(LEARNER), real_machine)
    assert refusals(decisions) == []
    assert config_of(taken) == LEARNER


@pytest.mark.parametrize("published_with", [1, 2])
def test_build_without_the_assignor_halts_at_an_accepted_configuration(published_with: int) -> None:
    """2: with the decisions of the configuration's own step; 1: with decisions that only a later
    fact caused, of which the first has the number of a refusal.
    """
    change = LEARNER if published_with == 1 else attrs.evolve(LEARNER, knobs=configured(initial_delay_ms=0, num_standbys=1).knobs)
    records = log(change, joined("m2"))
    _, decisions = lead(records, real_machine)
    assert decisions[-1].caused_by == 5
    refused_as = next(index for index, each in enumerate(decisions, 1) if each.caused_by >= 4)
    for published in (decisions[:refused_as], decisions):
        taken, missing = lead(records, LACKS, published)
        halted = taken.groups[GROUP].halted
        assert halted is not None
        assert (halted.group, halted.offset, halted.code, halted.problem) == (GROUP, 4, "assignor_missing", "learner is not installed")
        assert missing == []
        with pytest.raises(GroupHalted):
            taken.groups[GROUP].machine.snapshot()


def test_checkpoint_under_a_missing_assignor_halts() -> None:
    taken, _ = lead(log(LEARNER), real_machine)
    machine = taken.groups[GROUP].machine
    stored = StoredCheckpoint(group=GROUP, offset=4, number=machine.state.number, state=machine.snapshot())
    successor = PartitionLead(5, machine_factory=LACKS)
    successor.restore(stored)
    assert code_of(successor) == "assignor_missing"
    group = successor.groups[GROUP]
    assert (group.name, group.recovery_offset, group.last_published) == (GROUP, 5, stored.number)
    successor.take_published(GROUP, stored.number + 1, 0)
    assert successor.fold(log(LEARNER, joined("m2"))[5], 0) == []
    assert (code_of(successor), group.last_published) == ("assignor_missing", stored.number + 1)


def test_half_published_step_without_refusal_is_completed() -> None:
    """The configuration's record also expires m1, and the worker died between the two decisions."""
    steps = SESSION_MS // RUNNING.knobs.max_step_ms
    records = log(*[ProbingTick()] * (steps - 1), LEARNER, every_ms=RUNNING.knobs.max_step_ms)
    at = records[-1].offset
    _, decisions = lead(records, LACKS)
    of_step = [each for each in decisions if each.caused_by == at]
    assert isinstance(of_step[0].decision, MemberExpired)
    assert refusals(of_step) == [at]
    published = decisions[: decisions.index(of_step[1])]
    taken, missing = lead(records, LACKS, published)
    assert code_of(taken) is None
    assert missing == decisions[len(published) :]


def test_group_halted_under_an_older_build_refuses_and_reads_on() -> None:
    """The older build published nothing after the mistaken configuration, however many facts
    followed.
    """
    corrected = configured(initial_delay_ms=0, probing_interval_ms=9_000)
    records = log(TYPO, joined("m2"), corrected)
    _, before = lead(records[:4], real_machine)
    taken, missing = lead(records, real_machine, before)
    assert code_of(taken) is None
    assert refusals(missing) == [4]
    assert config_of(taken) == corrected
    assert sorted(taken.groups[GROUP].machine.state.members) == ["m1", "m2"]


def test_reader_halts_until_a_leader_has_answered() -> None:
    records = log(LEARNER)
    taken, _ = lead(records, LACKS, answers=False)
    assert code_of(taken) == "assignor_missing"
    _, decisions = lead(records, LACKS)
    again, _ = lead(records, LACKS, decisions, answers=False)
    assert code_of(again) is None
    assert config_of(again) == RUNNING


def test_leader_reads_published_before_it_refuses() -> None:
    """A paused worker wakes and reads a configuration that its successor has accepted in the
    meantime.
    """
    records = log(LEARNER, joined("m2"))
    _, decisions = lead(records, real_machine)
    woken, _ = lead(records[:4], LACKS)
    assert not woken.must_read_published(attrs.evolve(records[4], event=RUNNING)), "it has that assignor"
    assert woken.must_read_published(records[4])
    tell(woken, decisions)
    assert woken.fold(records[4], 0) == []
    assert code_of(woken) == "assignor_missing"


def test_leader_does_not_reread_known_refusals() -> None:
    records = log(LEARNER)
    _, decisions = lead(records, LACKS)
    successor = PartitionLead(machine_factory=LACKS)
    tell(successor, decisions)
    for record in records:
        assert not successor.must_read_published(record)
        successor.fold(record, 0)
    assert successor.groups[GROUP].refused == set(), "the refusal is folded"


def test_machine_halts_without_its_assignor_and_refuses_a_marked_record() -> None:
    record = log(LEARNER)[4]
    with pytest.raises(GroupHalted, match="learner is not installed"):
        GroupMachine(load=lacking("learner")).step(record)
    marked = attrs.evolve(record, refused=True)
    assert GroupMachine(load=lacking("learner")).as_leader(record) == marked
    assert GroupMachine().as_leader(record) == record
    lack = GroupMachine(load=lacking("learner")).lack(record)
    assert lack is not None
    assert (lack.offset, lack.code, lack.problem) == (4, "assignor_missing", "learner is not installed")
    assert GroupMachine(load=lacking("learner")).lack(marked) is None
    with_it, without_it = GroupMachine(), GroupMachine(load=lacking("learner"))
    assert with_it.step(marked) == without_it.step(marked)
    assert with_it.snapshot() == without_it.snapshot()


def test_explanation_names_the_lacking_assignor() -> None:
    refused = EventRejected(kind=2, code=ASSIGNOR_UNAVAILABLE)
    assert rejection_text(refused, TYPO).endswith("did you mean 'high_availability'?")
    assert "did you mean" not in rejection_text(refused, attrs.evolve(RUNNING, assignor="nothing_like_it"))
    assert "here are high_availability version 1" in rejection_text(refused, attrs.evolve(RUNNING, behaviour_version=99))
    assert "pinned to solver 'ortools-1.0'" in rejection_text(refused, attrs.evolve(RUNNING, solver="ortools-1.0"))
    assert "install it on every worker" in rejection_text(refused, LEARNER), "the worker that answered lacked the assignor"
