"""Spans of time of which an answer is wanted. What happened before is folded as well, so that the
state is right; only what is reported is cut.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator

import attrs

from equipoise.events.errors import InputError
from equipoise.events.facts import LogOpened
from equipoise.events.records import Entry, FactRecord

AFTER_MS = 86_400_000
"""Read beyond a span, so that what began in it is known to its end: that a member was silent shows
when it is removed.
"""


@attrs.frozen
class Span:
    """[from_ms, until_ms) of wall time of the log. None: without that end. Raises InputError when
    it is empty.
    """

    from_ms: int | None = None
    until_ms: int | None = None

    def __attrs_post_init__(self) -> None:
        if self.from_ms is not None and self.until_ms is not None and self.from_ms >= self.until_ms:
            raise InputError("--until: is not later than --from; name a later time")

    def has(self, ms: int) -> bool:
        """Returns whether it is in the span."""
        return (self.from_ms is None or self.from_ms <= ms) and (self.until_ms is None or ms < self.until_ms)

    def touches(self, from_ms: int, until_ms: int | None) -> bool:
        """Returns whether what lasted so long was there in the span. `until_ms` None: it goes on."""
        is_late = self.until_ms is not None and from_ms >= self.until_ms
        return not is_late and (self.from_ms is None or until_ms is None or until_ms >= self.from_ms)

    @property
    def last_day(self) -> str | None:
        """Returns the last day (UTC) of which records are read, as ``2026-11-23``; None: all."""
        return None if self.until_ms is None else dt.datetime.fromtimestamp((self.until_ms + AFTER_MS) / 1_000, dt.UTC).date().isoformat()


ALWAYS = Span()


class SpanReader:
    """Yields the entries that an answer for a span needs. `facts`: of groups, in the span, so far."""

    def __init__(self, entries: Iterable[Entry], span: Span) -> None:
        self._entries, self._span = entries, span
        self.facts = 0

    def __iter__(self) -> Iterator[Entry]:
        end_ms = None if self._span.until_ms is None else self._span.until_ms + AFTER_MS
        for entry in self._entries:
            if isinstance(entry, FactRecord):
                if end_ms is not None and entry.append_ms >= end_ms:
                    return
                self.facts += self._span.has(entry.append_ms) and not isinstance(entry.event, LogOpened)
            yield entry
