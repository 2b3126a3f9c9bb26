"""The log of one group that is led in this process: its facts, and the decisions of the machine
that leads every group.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from equipoise.events.decisions import EventRejected
from equipoise.events.errors import InputError
from equipoise.events.facts import Fact, GroupConfigured, LogOpened
from equipoise.events.records import DecisionRecord, FactRecord
from equipoise.log import open_log
from equipoise.statemachine.machine import GroupMachine
from equipoise.statemachine.rejections import rejection_text
from equipoise.statemachine.state import GroupState

_LOG = logging.getLogger(__name__)


class GroupLog:
    """One group's log, open for appending, and its machine. `location`: a file that `open_log`
    takes; it is made when it is missing. `wall_us`, `unique`: see
    `equipoise.hosting.runtime.Runtime`. Raises InputError for a log of another group.
    """

    def __init__(self, location: Path, group: str, wall_us: Callable[[], int], unique: Callable[[], str]) -> None:
        self.group = group
        self._wall_us, self._unique = wall_us, unique
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
            if not isinstance(entry, FactRecord):
                continue
            if entry.group not in ("", self.group):
                raise InputError(f"{self._log.location}: is the log of group {entry.group!r}; name another file for {self.group!r}")
            self._machine.step(entry)
            self.folded(entry)
        if is_empty:
            self._machine.step(self._log.append_fact("", self.now_ms(), LogOpened(log_id=self._unique())))

    def folded(self, record: FactRecord) -> None:
        """Called with each fact that was there when the log was opened."""

    @property
    def state(self) -> GroupState:
        return self._machine.state

    def now_ms(self) -> int:
        """Returns the time (ms since 1970) that a fact has which is appended now."""
        return self._wall_us() // 1_000

    def configure(self, config: GroupConfigured) -> None:
        """Appends the configuration unless it is in force. Raises InputError when it is refused."""
        if self.state.config == config:
            return
        for decided in self.append(config):
            if isinstance(decided.decision, EventRejected):
                raise InputError(f"the settings were refused: {rejection_text(decided.decision, config)}")

    def append(self, *facts: Fact) -> list[DecisionRecord]:
        """Appends facts and what they cause, all or none. Raises EquipoiseError when the log cannot
        be written, or the machine halts; it must not be used any more then.
        """
        decided: list[DecisionRecord] = []
        with self._log.transaction():
            for fact in facts:
                record = self._log.append_fact(self.group, self.now_ms(), fact)
                caused = self._machine.step(record)
                self._log.append_decisions(caused)
                self._warn(fact, caused)
                decided += caused
        return decided

    def _warn(self, fact: Fact, caused: Iterable[DecisionRecord]) -> None:
        for each in caused:
            if isinstance(each.decision, EventRejected):
                _LOG.warning("group %s: %s was rejected: %s", self.group, type(fact).__name__, rejection_text(each.decision, fact))

    def close(self) -> None:
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
