"""Counts what the tasks of a member drop, by whom and why."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

COUNTED = "equipoise_member_dropped_records_total"


class DropReason(enum.StrEnum):
    """Names why a record was dropped. In brackets: who drops it."""

    LATE = "late"
    """It came later than the grace (the name of the window or join). It has no pair and no window
    any more. A record that waits for a partner in vain is no drop: an inner join has nothing to say
    of such a record, and the other joins return it.
    """
    NULL_KEY = "null_key"
    """It has no key, and so no place (the name of the window, join or table)."""
    SKIPPED = "skipped"
    """Its handler or serde failed (the source topic), with `ErrorPolicy.skip`."""
    DEAD_LETTERED = "dead_lettered"
    """The same with `ErrorPolicy.dead_letter`."""
    EXPIRED = "expired"
    """Retention deleted it before it was handled (the source topic). Offsets are counted, so gaps
    too.
    """
    AHEAD = "ahead"
    """Its time is too far ahead of the brokers' clock: it moves no stream time (`stream time`), and
    is not handed on. The record itself has its effect.
    """


OF_SOURCES = DropReason.SKIPPED, DropReason.DEAD_LETTERED, DropReason.EXPIRED
STREAM_TIME = "stream time"


class Dropped(NamedTuple):
    """A record that a window, join or table has dropped. `what`: who, for people. `at_ms`: its
    time; None: it was given without.
    """

    by: str
    what: str
    reason: DropReason
    key: Any
    at_ms: int | None


class Drops:
    """Counts what the tasks of one member drop: when the call of the handler that dropped a record
    has not failed, or the record was left out. A record that is handled again, because its commit
    failed, counts again. `sources`: processor and source topic, which are counted from 0 on, so
    that a rate sees the first ones.
    """

    def __init__(self, sources: Iterable[tuple[str, str]] = ()) -> None:
        self._counts: Counter[tuple[str, str, str]] = Counter()
        for processor, topic in sources:
            self.begin(processor, topic, OF_SOURCES)
            self.begin(processor, STREAM_TIME, (DropReason.AHEAD,))

    def begin(self, processor: str, by: str, reasons: Iterable[DropReason]) -> None:
        """Counts from 0 on what somebody may drop."""
        for reason in reasons:
            self._counts.setdefault((processor, by, reason.value), 0)

    @property
    def counts(self) -> Mapping[tuple[str, str, str], int]:
        """Processor, who drops, reason -> number of records. Any thread may read it."""
        return self._counts.copy()

    def note(self, processor: str, by: str, reason: DropReason, records: int = 1) -> bool:
        """Counts records. Returns whether they are the first here, which the log is to name."""
        kind = processor, by, reason.value
        is_first = not self._counts[kind]
        self._counts[kind] += records
        return is_first
