"""Reads what `equipoise.replay.sizing.autoscaling` needs of a group's log, for as long as it is
followed: what is older than some hours is forgotten.
"""

from __future__ import annotations

import attrs

from equipoise.events.records import DecisionRecord, FactRecord
from equipoise.replay.prediction.habits import Habits, HabitsReader
from equipoise.replay.sizing.demand import Demand, DemandReader
from equipoise.replay.sizing.policy import BUCKET_MS, LONGEST_S
from equipoise.statemachine.state import GroupState

KEPT_MS = LONGEST_S * 1_000 + 600_000
"""So much is known at least, and twice as much at most."""


@attrs.define
class _Readers:
    """Readers that have begun at `since_ms`."""

    habits: HabitsReader
    demand: DemandReader
    since_ms: int


class FollowingReader:
    """Takes the records of one group in stored order. `state`: as of `HabitsReader`; None: the log
    is read from its beginning.
    """

    def __init__(self, group: str, state: GroupState | None = None) -> None:
        self._group, self._state = group, state
        self._older: _Readers | None = None
        self._newer: _Readers | None = None

    def take(self, record: FactRecord | DecisionRecord) -> None:
        """Takes a record. Raises UnknownKindError for a kind that this build does not know."""
        if isinstance(record, FactRecord):
            self._turn(record.append_ms)
        for each in (self._older, self._newer):
            if each is not None:
                each.habits.take(record)
                each.demand.take(record)

    def _turn(self, now_ms: int) -> None:
        if self._newer is None or now_ms - self._newer.since_ms >= KEPT_MS:
            self._older, self._newer = self._newer, self._begun(now_ms)

    def _begun(self, since_ms: int) -> _Readers:
        newer = self._newer
        habits = HabitsReader(group=self._group, state=self._state) if newer is None else newer.habits.afresh()
        return _Readers(habits, DemandReader(group=self._group, bucket_ms=BUCKET_MS), since_ms)

    def read(self) -> tuple[Habits, Demand]:
        """Returns what the group does, and its loads."""
        readers = self._older or self._newer or self._begun(0)
        return readers.habits.habits(), readers.demand.demand()
