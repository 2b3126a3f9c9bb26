"""Copies a log into another form, record by record: resumable, without duplicates, with unchanged
bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

import attrs

from equipoise.events.errors import InputError, LogError
from equipoise.events.facts import LogOpened
from equipoise.events.records import FactRecord, UnreadRecord
from equipoise.log import Log
from equipoise.log.rows import DecisionRow, FactRow, note_unread
from equipoise.log.stored import StoredLog

_ROWS_A_TRANSACTION = 200_000


@attrs.frozen(kw_only=True)
class Copied:
    """The result of one copy."""

    facts: int
    decisions: int
    position: int
    """Offset of the next fact to copy."""
    unread: tuple[UnreadRecord, ...]
    """The first copied record of each group that this build cannot read."""


def copy_log(source: StoredLog, target: Log, *, advance: Callable[[int], None] = lambda records: None) -> Copied:
    """Copies the records of `source` that are not in `target`, which is open for appending.

    Resumes after its last transaction when it was killed. Raises InputError when `target` holds
    another log, and what reading raises.
    """
    _must_be_the_same(source, target)
    facts = decisions = 0
    unread: dict[str, UnreadRecord] = {}
    rows = source.checked_rows(source.before(target.position()))
    while True:
        seen = 0
        with target.transaction():
            for row, _ in islice(rows, _ROWS_A_TRANSACTION):
                seen += 1
                if target.append_row(row):
                    note_unread(row, source.partition, unread)
                    facts, decisions = facts + isinstance(row, FactRow), decisions + isinstance(row, DecisionRow)
        advance(seen)
        if not seen:
            return Copied(facts=facts, decisions=decisions, position=target.position(), unread=tuple(unread.values()))


def _must_be_the_same(source: Log, target: Log) -> None:
    theirs, ours = _opening(target), _opening(source)
    if ours is None:
        raise LogError(0, f"{source.location}: the log is empty, so there is nothing to copy; import or simulate one")
    if theirs is not None and theirs != ours:
        raise InputError(f"{target.location}: holds log {theirs.log_id!r}, and {source.location} is {ours.log_id!r}; name another place")


def _opening(log: Log) -> LogOpened | None:
    first = next(iter(log.read()), None)
    return first.event if isinstance(first, FactRecord) and isinstance(first.event, LogOpened) else None
