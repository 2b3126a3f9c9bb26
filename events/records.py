"""Records: events with their place in the log."""

from __future__ import annotations

import attrs

from equipoise.events.decisions import Decision
from equipoise.events.errors import UnknownKindError
from equipoise.events.facts import Fact


@attrs.frozen(slots=True)
class Record:
    """A fact in the log.

    `offset`: its place in the partition, dense from 0. `append_ms`: the log's own append time,
    never the sender's. `checksum`: CRC-32 of the stored form (see `equipoise.events.codec`).
    Readers construct it after checking all of these; it does not check them again.

    `refused`: the decisions say that a leader refused this configuration because its build lacked
    what it asks for, so every reader refuses it (docs/protocol.md#l6). It is no part of the stored
    fact.
    """

    group: str
    offset: int
    append_ms: int
    event: Fact
    checksum: int = 0
    refused: bool = False


@attrs.frozen(slots=True)
class DecisionRecord:
    """A decision in the log. Its id is (log_id, group, number); numbers are dense per group from 1
    (docs/protocol.md#l4).

    `caused_by`: offset of the fact; `index`: place among that fact's decisions, from 0;
    `fact_checksum`: checksum of that fact.
    """

    log_id: str
    group: str
    number: int
    caused_by: int
    index: int
    fact_checksum: int
    decision: Decision


@attrs.frozen(slots=True, kw_only=True)
class UnreadRecord:
    """A fact or a decision that is whole by its checksum and of a kind or version that this build
    does not know: its group's trouble alone.

    `partition`: None where a log does not say which it is of. `offset`: of the fact; of a decision,
    that of the fact that caused it. `number`: of the decision; None: it is a fact. `problem`: what
    is not known, with the fix.
    """

    group: str
    partition: int | None
    offset: int
    number: int | None
    kind: int
    version: int
    problem: str

    def must_not_be_of(self, group: str | None) -> None:
        """Raises UnknownKindError when it is of `group` (None: any): what follows in that group
        depends on it.
        """
        if group in (None, self.group):
            raise self.error()

    def error(self) -> UnknownKindError:
        """What ends the reading of this group."""
        what = "" if self.number is None else f"decision {self.number}: "
        where = "" if self.partition is None else f"partition {self.partition}, "
        return UnknownKindError(self.offset, f"{where}group {self.group!r}: {what}{self.problem}")


Entry = Record | DecisionRecord | UnreadRecord
"""What a log is read as: facts, each followed by the decisions it caused, in stored order."""


@attrs.frozen(slots=True)
class UnreadDecision:
    """A decision that stands in the log and that this build cannot read: of a kind, a version or
    with a value that it does not know.

    `binding`: it orders an incarnation to do something, namely `incarnation` of `member_id`, both
    None when it names nobody. `problem`: what is not known, as a sentence.
    """

    log_id: str
    group: str
    number: int
    kind: int
    version: int
    binding: bool
    member_id: str | None
    incarnation: int | None
    problem: str
