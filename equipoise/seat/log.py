"""The log of one group that equipoise leads from the seat: its facts, and the decisions of the same
machine that leads every group.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from equipoise.events.decisions import EventRejected
from equipoise.events.errors import EquipoiseError, InputError
from equipoise.events.facts import Fact, GroupConfigured, GroupRejoined, LogOpened, ProbingTick
from equipoise.events.log import open_log
from equipoise.events.records import DecisionRecord, Record
from equipoise.seat.names import Names
from equipoise.statemachine.machine import GroupMachine
from equipoise.statemachine.state import GroupState

log = logging.getLogger(__name__)


class SeatLog:
    """One group's log, open for appending, and its machine. `location`: a file that `open_log`
    takes; it is made when it is missing. Raises InputError for a log of another group.
    """

    def __init__(self, location: Path, group: str) -> None:
        self.group = group
        self.names = Names()
        self._machine = GroupMachine()
        self._log = open_log(location, "a")
        try:
            self._fold()
        except BaseException:
            self._log.close()
            raise

    def _fold(self) -> None:
        is_empty = True
        for entry in self._log.read():
            is_empty = False
            if not isinstance(entry, Record):
                continue
            if entry.group not in ("", self.group):
                raise InputError(f"--log {self._log.location}: is the log of group {entry.group!r}; name another file for {self.group!r}")
            self._machine.step(entry)
            if isinstance(entry.event, GroupRejoined):
                self.names.learn(entry.event)
        if is_empty:
            self._machine.step(self._log.append_fact("", _now_ms(), LogOpened(log_id=uuid.uuid4().hex)))

    @property
    def state(self) -> GroupState:
        return self._machine.state

    @property
    def deals_by_lag(self) -> bool:
        return self._machine.deals_by_lag

    def configure(self, config: GroupConfigured) -> None:
        """Appends the configuration unless it is in force. Raises InputError when it is refused."""
        if self.state.config == config:
            return
        for decided in self.append(config):
            if isinstance(decided.decision, EventRejected):
                raise InputError(f"--set: the settings were refused: {decided.decision.code}")

    def append(self, fact: Fact) -> list[DecisionRecord]:
        """Appends a fact and what it causes. Raises EquipoiseError when the log cannot be written,
        or the machine halts.
        """
        with self._log.transaction():
            record = self._log.append_fact(self.group, _now_ms(), fact)
            decided = self._machine.step(record)
            self._log.append_decisions(decided)
        for each in decided:
            if isinstance(each.decision, EventRejected):
                log.warning("group %s: %s was rejected: %s", self.group, type(fact).__name__, each.decision.code)
        return decided

    def rejoined(self, fact: GroupRejoined) -> None:
        """Appends a generation. Raises EquipoiseError, also when it is rejected: the state would
        not be what the members have.
        """
        decided = self.append(fact)
        rejected = [each.decision for each in decided if isinstance(each.decision, EventRejected)]
        if rejected:
            raise EquipoiseError(f"group {self.group}: generation {fact.generation} was rejected: {rejected[0].code}")

    def tick_if_due(self) -> list[DecisionRecord]:
        """Lets time pass when a deadline of the group is due."""
        state, due_ms = self.state, self._machine.next_deadline_ms
        if due_ms is None or state.last_append_ms is None or state.now_ms + _now_ms() - state.last_append_ms < due_ms:
            return []
        return self.append(ProbingTick())

    def away(self) -> tuple[str, ...]:
        """Members that are waited for."""
        state = self.state
        return tuple(sorted(filter(state.is_away, state.restarts)))

    def close(self) -> None:
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def assigned_changes(decided: Iterable[DecisionRecord]) -> bool:
    """Whether decisions give a member other tasks than before."""
    return any(type(each.decision).__name__ in ("MemberAssigned", "MemberAssignedPart") for each in decided)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
