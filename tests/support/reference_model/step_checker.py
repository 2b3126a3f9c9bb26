"""Checks a machine after every step: the invariants, the timers, and restoring. Used by tests,
storms, scenarios and searches.

`StepChecker` judges facts and decisions with a `Validator` (invariants 1 to 6) and by their sizes
(9). It judges the machine itself for invariant 8: its derived parts equal those of a restored
machine, and a machine restored from the snapshot before a fact decides that fact alike.
"""

from __future__ import annotations

from equipoise.assignors import registry
from equipoise.events import codec
from equipoise.events.errors import GroupHalted, InvariantBroken
from equipoise.events.facts import LogOpened
from equipoise.events.records import DecisionRecord, FactRecord
from equipoise.statemachine.deadlines import timers_of
from equipoise.statemachine.machine import AssignorLoader, GroupMachine
from tests.support.reference_model.invariants import Validator


class StepChecker:
    """Call it with every fact of one group, its decisions, and the machine that has just folded it.
    Raises InvariantBroken.

    `whole_every`: see `Validator`. `restore_every`: every so many steps a machine is restored from
    the snapshot before a fact and folds that fact (1: at each step, 0: never). It costs two more
    snapshots and a second decision.
    """

    def __init__(self, *, load: AssignorLoader = registry.load, whole_every: int = 1, restore_every: int = 1) -> None:
        self.validator = Validator(load=load, whole_every=whole_every)
        self._load = load
        self._restore_every = restore_every
        self._restored: GroupMachine | None = None

    def __call__(self, record: FactRecord, decisions: list[DecisionRecord], machine: GroupMachine) -> None:
        restored, self._restored = self._restored, None
        check_sizes(record, decisions)
        self.validator.check(record, decisions, machine.state)
        check_timers(machine)
        if restored is not None:
            check_restored(restored, record, decisions, machine)
        if self._restore_every and self.validator.steps % self._restore_every == 0:
            self._restored = GroupMachine.restore(machine.snapshot(), load=self._load)


def check_sizes(record: FactRecord, decisions: list[DecisionRecord]) -> None:
    """Checks that a log can hold the fact and each of its decisions (docs/protocol.md#l8). Costs
    one encoding of each. Raises InvariantBroken 9.
    """
    for event in (record.event, *(each.decision for each in decisions)):
        if not codec.fits(event):
            problem = f"{event.__class__.__name__} has {codec.size_bytes(event)} bytes; an event has at most {codec.MOST_EVENT_BYTES}"
            raise InvariantBroken(9, f"at offset {record.offset} {problem}")


def check_timers(machine: GroupMachine) -> None:
    """Checks that the machine's timers are those that follow from its state. Costs time in the
    group's size. Raises InvariantBroken 8.
    """
    found, wanted = machine.timers(), set(timers_of(machine.state))
    if found != wanted:
        missing, extra = sorted(wanted - found), sorted(found - wanted)
        at = f"at offset {machine.state.last_offset}"
        raise InvariantBroken(8, f"{at} the heap of timers lacks {missing}, and has {extra} beyond the state's timers")
    next_ms = min((at_ms for at_ms, _, _ in wanted), default=None)
    if machine.next_deadline_ms != next_ms:
        raise InvariantBroken(8, f"at offset {machine.state.last_offset} the next deadline is {machine.next_deadline_ms}; the state says {next_ms}")


def check_restored(restored: GroupMachine, record: FactRecord, decisions: list[DecisionRecord], machine: GroupMachine) -> None:
    """Checks that `restored`, made from the snapshot before `record`, decides it as `machine` did
    and is in the same state afterwards. Raises InvariantBroken 8.
    """
    at = f"a machine restored before offset {record.offset}"
    try:
        again = restored.step(record)
    except GroupHalted as halted:
        raise InvariantBroken(8, f"{at} halts there ({halted.code}), and one that went on does not") from halted
    if again != decisions:
        raise InvariantBroken(8, f"{at} decides {again} there; one that went on decides {decisions}")
    if not isinstance(record.event, LogOpened) and restored.snapshot() != machine.snapshot():
        raise InvariantBroken(8, f"{at} is in another state afterwards than one that went on")
