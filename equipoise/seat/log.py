"""The log of one group that equipoise leads from the seat."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from equipoise.events.decisions import EventRejected
from equipoise.events.errors import EquipoiseError, InputError
from equipoise.events.facts import GroupConfigured, GroupRejoined, ProbingTick
from equipoise.events.records import DecisionRecord, Record
from equipoise.group_log import GroupLog, now_ms
from equipoise.seat.names import Names
from equipoise.statemachine.rejections import rejection_text


class SeatLog(GroupLog):
    """A group's log, with the names of its members."""

    def __init__(self, location: Path, group: str) -> None:
        self.names = Names()
        super().__init__(location, group)

    def folded(self, record: Record) -> None:
        if isinstance(record.event, GroupRejoined):
            self.names.learn(record.event)

    def configure(self, config: GroupConfigured) -> None:
        try:
            super().configure(config)
        except InputError as error:
            raise InputError(f"--set: {error}") from None

    @property
    def deals_by_lag(self) -> bool:
        return self._machine.deals_by_lag

    def rejoined(self, fact: GroupRejoined) -> None:
        """Appends a generation. Raises EquipoiseError, also when it is rejected: the state would
        not be what the members have.
        """
        decided = self.append(fact)
        rejected = [each.decision for each in decided if isinstance(each.decision, EventRejected)]
        if rejected:
            raise EquipoiseError(f"group {self.group}: generation {fact.generation} was rejected: {rejection_text(rejected[0], fact)}")

    def tick_if_due(self) -> list[DecisionRecord]:
        """Lets time pass when a deadline of the group is due."""
        state, due_ms = self.state, self._machine.next_deadline_ms
        if due_ms is None or state.last_append_ms is None or state.now_ms + now_ms() - state.last_append_ms < due_ms:
            return []
        return self.append(ProbingTick())

    def away(self) -> tuple[str, ...]:
        """Members that are waited for."""
        state = self.state
        return tuple(sorted(filter(state.is_away, state.restarts)))


def assigned_changes(decided: Iterable[DecisionRecord]) -> bool:
    """Whether decisions give a member other tasks than before."""
    return any(type(each.decision).__name__ in ("MemberAssigned", "MemberAssignedPart") for each in decided)
