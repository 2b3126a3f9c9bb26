"""The log of one group that equipoise leads from the seat."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from equipoise.events.decisions import EventRejected
from equipoise.events.errors import EquipoiseError, InputError
from equipoise.events.facts import GroupConfigured, GroupRejoined, PartitionsObserved, ProbingTick
from equipoise.events.records import DecisionRecord, FactRecord
from equipoise.hosting.runtime import DEPLOYED, Runtime
from equipoise.lead.group_log import GroupLog
from equipoise.lead.seat.names import Names
from equipoise.log.storage import StorageLock
from equipoise.statemachine.rejections import rejection_text


class SeatLog(GroupLog):
    """A group's log, with the names of its members. Raises InputError when another process has it:
    a seat that cannot write its log could not lead when it is needed.
    """

    def __init__(self, location: Path, group: str, runtime: Runtime = DEPLOYED) -> None:
        self.names = Names()
        refusal = f"{location}: another process leads group {group!r} with this log; give each seat a log of its own"
        self._lock = StorageLock(location.with_name(f".{location.name}.lock"), refusal, location)
        try:
            super().__init__(location, group, runtime.wall_us, runtime.unique)
        except BaseException:
            self._lock.release()
            raise

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._lock.release()

    def folded(self, record: FactRecord) -> None:
        if isinstance(record.event, GroupRejoined):
            self.names.learn(record.event)

    def configure(self, config: GroupConfigured) -> None:
        """Raises InputError for settings that the group cannot have."""
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

    def is_due(self) -> bool:
        """Returns whether a deadline of the group is due."""
        state, due_ms = self.state, self._machine.next_deadline_ms
        return due_ms is not None and state.last_append_ms is not None and state.now_ms + self.now_ms() - state.last_append_ms >= due_ms

    def tick(self, lags: Mapping[tuple[str, int], int]) -> list[DecisionRecord]:
        """Lets time pass. `lags`: records behind now, where the assignor deals by them, as what is
        decided must not go by those of the last generation.
        """
        return self.append(PartitionsObserved(source_lags=by_topic(lags)) if lags else ProbingTick())

    def away(self) -> tuple[str, ...]:
        """Members that are waited for."""
        state = self.state
        return tuple(sorted(filter(state.is_away, state.restarts)))


def by_topic(lags: Mapping[tuple[str, int], int]) -> dict[str, dict[int, int]]:
    """Topic -> partition -> its lag."""
    found: dict[str, dict[int, int]] = {}
    for (topic, partition), lag in sorted(lags.items()):
        found.setdefault(topic, {})[partition] = lag
    return found


def assigned_changes(decided: Iterable[DecisionRecord]) -> bool:
    """Returns whether decisions give a member other tasks than before."""
    return any(type(each.decision).__name__ in ("MemberAssigned", "MemberAssignedPart") for each in decided)
