"""Simulated storms, recorded so that the model can follow them (`tests.model.trace`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from equipoise.events.facts import Fact, MemberLeft
from equipoise.events.records import DecisionRecord, FactRecord
from equipoise.replay.simulation.member_process import ReplayedProcess
from equipoise.replay.simulation.simulated_broker import Broker
from equipoise.statemachine.machine import GroupMachine
from tests.model.trace import Followed, Happened, follow


class Recording:
    """A judge of `tests.storms.run_storm` that keeps the log and when it came to be."""

    def __init__(self) -> None:
        self.records: list[FactRecord] = []
        self.decisions: list[DecisionRecord] = []
        self._happened: list[Happened] = []

    def __call__(self, record: FactRecord, decisions: list[DecisionRecord], machine: GroupMachine) -> None:
        self.records.append(record)
        self.decisions += decisions

    @contextmanager
    def on(self) -> Iterator[None]:
        """Run the storm within."""
        append_fact, append_decision, say = Broker.append_fact, Broker._append_decision, ReplayedProcess._say

        def fact_appended(broker: Broker, event: Fact) -> FactRecord:
            record = append_fact(broker, event)
            self._happened.append(Happened(broker.engine.now_ms, offset=record.offset))
            return record

        def decision_appended(broker: Broker, record: DecisionRecord) -> None:
            append_decision(broker, record)
            self._happened.append(Happened(broker.engine.now_ms, number=record.number))

        def said(process: ReplayedProcess, fact: Fact) -> None:
            if not isinstance(fact, MemberLeft):  # a process that is over may still say so
                self._happened.append(Happened(process.engine.now_ms, sender=(process.member_id, process.incarnation)))
            say(process, fact)

        with (
            mock.patch.object(Broker, "append_fact", fact_appended),
            mock.patch.object(Broker, "_append_decision", decision_appended),
            mock.patch.object(ReplayedProcess, "_say", said),
        ):
            yield

    def follow(self, which: int | None = None) -> Followed:
        """Follows it with the model. What was appended and never folded is left out."""
        folded = {record.offset for record in self.records}
        return follow(self.records, self.decisions, [each for each in self._happened if each.offset in folded or each.offset < 0], which=which)
