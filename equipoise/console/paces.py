"""Lag and rate of groups over the last hour, for the console's list."""

from __future__ import annotations

from collections import deque

from equipoise.events.records import FactRecord
from equipoise.statemachine.state import GroupState

MINUTES = 60
MOST_GROUPS = 10_000
"""Groups of a partition of which an hour is kept, each 5 kB at most."""
_MINUTE_MS = 60_000


def lag(state: GroupState) -> int | None:
    """Records of a group's sources that are still to be processed, as members report or the worker
    observes; None: nobody who lives has said.
    """
    topics = {topic for part in (() if state.topology is None else state.topology.subtopologies) for topic in part.source_topics}
    observed = [records for topic in topics for records in state.source_lags.get(topic, {}).values()]
    return sum(state.behind.values()) + sum(observed) if state.members and (state.behind or observed) else None


def rate(state: GroupState) -> int | None:
    """Records that a group handles in a second, as its members measured; None: none has."""
    measured = [state.loads[task].records_per_s for task in state.owner if task in state.loads]
    return sum(measured) if measured else None


class Paces:
    """The lag of each group at the beginning of each minute, by the append times of its facts."""

    def __init__(self) -> None:
        self._lags: dict[int, dict[str, deque[tuple[int, int | None]]]] = {}
        """Partition -> group -> (minute, lag)."""

    def note(self, partition: int, record: FactRecord, state: GroupState) -> None:
        """Takes a fact of a group. `state`: after it."""
        groups, minute = self._lags.setdefault(partition, {}), record.append_ms // _MINUTE_MS
        lags = groups.get(record.group)
        if lags is None:
            if len(groups) >= MOST_GROUPS:
                return
            lags = groups[record.group] = deque(maxlen=MINUTES)
        if not lags or lags[-1][0] < minute:
            lags.append((minute, lag(state)))

    def forget(self, partition: int) -> None:
        """Another worker leads this partition."""
        self._lags.pop(partition, None)

    def last_hour(self, partition: int, group: str, now_ms: int) -> list[int | None]:
        """Returns the lag in each of the last MINUTES minutes, the oldest first; None: unknown.
        `now_ms`: append time of the last fact.
        """
        first = now_ms // _MINUTE_MS - MINUTES + 1
        found: list[int | None] = [None] * MINUTES
        for minute, records in self._lags.get(partition, {}).get(group, ()):
            if 0 <= minute - first < MINUTES:
                found[minute - first] = records
        return found
