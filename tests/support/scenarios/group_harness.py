"""The harness for a single group: a log, the machine that leads the group, and the shadow replicas
that must agree with it.
"""

from __future__ import annotations

from equipoise.events import codec
from equipoise.events.errors import GroupHalted, InvariantBroken
from equipoise.events.facts import Fact, LogOpened
from equipoise.events.records import DecisionRecord, FactRecord
from equipoise.statemachine.machine import GroupMachine
from tests.support.reference_model.invariants import check_snapshot_replay
from tests.support.reference_model.step_checker import StepChecker
from tests.support.scenarios.builds import Build
from tests.support.scenarios.shadow_replicas import disagreement, shadow_replicas

GROUP = "group"
LOG_ID = "scenario"
MOST_SPLITS = 25
"""Most facts of a log that is folded again from every split. The restored replica splits every log
after each fact anyway.
"""


class GroupHarness:
    """One group's log from its first record on. `append` is the only way to change anything."""

    def __init__(self, log_id: str = LOG_ID) -> None:
        self.log_id = log_id
        self.build = Build()
        self.machine = GroupMachine(load=self.build.load)
        self._replicas = shadow_replicas(self.build.load)
        self._checker: StepChecker | None = StepChecker(load=self.build.load, restore_every=0)  # the restored replica does that
        self.records: list[FactRecord] = []
        self.decisions: list[DecisionRecord] = []
        self.disagreements: list[str] = []
        self.halted: GroupHalted | None = None
        self._last_good = b""
        self.append_ms = 0
        self.records.append(codec.make_record("", 0, 0, LogOpened(log_id=log_id)))
        self._fold(self.records[0])

    def append(self, fact: Fact) -> list[DecisionRecord]:
        """Appends the fact at `append_ms` and folds it as the group's leader. When the group halts,
        `halted` says why and nothing is decided.
        """
        record = codec.make_record(GROUP, len(self.records), self.append_ms, fact)
        if self.halted is None:
            record = self.machine.as_leader(record)
        self.records.append(record)
        return self._fold(record)

    def _fold(self, record: FactRecord) -> list[DecisionRecord]:
        decisions: list[DecisionRecord] = []
        try:
            decisions = self.machine.step(record)
            self._last_good = self.machine.snapshot()
        except GroupHalted as error:
            self.halted = error
        self.decisions += decisions
        if self.halted is None:
            self._judge(record, decisions)
        for replica in self._replicas:
            found = disagreement(self.machine, decisions, self.halted, replica, record)
            if found:
                self.disagreements.append(f"#{self.machine.state.seq} {found}")
        return decisions

    def _judge(self, record: FactRecord, decisions: list[DecisionRecord]) -> None:
        """Checks the step. Only the first broken invariant is reported."""
        if self._checker is None:
            return
        try:
            self._checker(record, decisions, self.machine)
        except InvariantBroken as broken:
            self._checker = None
            self.disagreements.append(f"#{self.machine.state.seq} {broken}")

    def follow(self, record: FactRecord, decided: list[DecisionRecord]) -> list[DecisionRecord]:
        """Folds a fact that another machine appended and decided on, and reports differences."""
        self.records.append(record)
        self.append_ms = record.append_ms
        decisions = self._fold(record)
        if decisions != decided:
            self.disagreements.append(f"#{self.machine.state.seq} the worker decided {decided}, this machine {decisions}")
        return decisions

    def restart(self) -> tuple[bool, list[tuple[Fact, list[DecisionRecord]]]]:
        """Another process takes over from the last good snapshot.

        Returns whether the restored bytes are the same, and the facts that were folded again.
        """
        self.machine = GroupMachine.restore(self._last_good, load=self.build.load)
        same = self.machine.snapshot() == self._last_good
        if self.halted is not None:
            self.halted = None
            for replica in self._replicas:
                replica.forget_halt(self._last_good)
        again = [(record.event, self._fold(record)) for record in self.records[self.machine.state.last_offset + 1 :]]
        return same, again

    def check_every_split(self) -> None:
        """``fold(all) == fold(checkpoint, tail)`` at every split point, byte for byte (invariant
        8).
        """
        try:
            check_snapshot_replay(self.records, load=self.build.load, most_splits=MOST_SPLITS)
        except InvariantBroken as broken:
            self.disagreements.append(str(broken))
