"""Records: events with their place in the log."""

from __future__ import annotations

import attrs

from equipoise.events.decisions import Decision
from equipoise.events.errors import UnknownKindError
from equipoise.events.facts import Fact


@attrs.frozen(slots=True)
class FactRecord:
    """A fact with its place in the log.

    `offset`: place in the partition, dense from 0. `append_ms`: append time by the log's clock,
    never the sender's. `checksum`: CRC-32 of the stored form (`equipoise.events.codec`). Readers
    check all three before they construct a record; the constructor does not check them again.

    `refused`: the decisions show that a leader refused this configuration because its build lacked
    what the configuration asks for, so every reader refuses it (docs/protocol.md#l6). Not part of
    the stored fact.
    """

    group: str
    offset: int
    append_ms: int
    event: Fact
    checksum: int = 0
    refused: bool = False


@attrs.frozen(slots=True)
class DecisionRecord:
    """A decision with its place in the log. Its id is (log_id, group, number). Numbers are dense
    per group from 1 (docs/protocol.md#l4).

    `caused_by`: offset of the fact. `index`: place among the decisions of that fact, from 0.
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
    """A fact or a decision with a correct checksum whose kind or version this build does not know.
    It affects only its group.

    `partition`: None where the log does not name it. `offset`: of the fact, or of the fact that
    caused the decision. `number`: of the decision; None: it is a fact. `problem`: what is unknown,
    with the fix.
    """

    group: str
    partition: int | None
    offset: int
    number: int | None
    kind: int
    version: int
    problem: str

    def must_not_be_of(self, group: str | None) -> None:
        """Raises UnknownKindError if the record is of `group` (None: any), because later records of
        that group depend on it.
        """
        if group in (None, self.group):
            raise self.error()

    def error(self) -> UnknownKindError:
        """Returns the error that ends the reading of this group."""
        what = "" if self.number is None else f"decision {self.number}: "
        where = "" if self.partition is None else f"partition {self.partition}, "
        return UnknownKindError(self.offset, f"{where}group {self.group!r}: {what}{self.problem}")


@attrs.frozen(slots=True, kw_only=True)
class BaseState:
    """The state of a group at which a log begins (docs/protocol.md#l10). Such entries come between
    LogOpened and the first fact.

    `offset`: the last fact in the state; later ones of the group that are before it in the log are
    part of it, too. `number`: of the last decision by then; 0: none. `begins_offset`, `append_ms`:
    the log's first fact, and the time of the base. `state`: a snapshot, in any form.
    """

    group: str
    offset: int
    number: int
    begins_offset: int
    append_ms: int
    state: bytes


Entry = FactRecord | DecisionRecord | UnreadRecord | BaseState
"""What a log is read as: facts, each followed by its decisions, in stored order. A log that begins
at a base has the states of its groups before.
"""


@attrs.frozen(slots=True)
class UnreadDecision:
    """A stored decision that this build cannot read, because it does not know the kind, the version
    or a value.

    `binding`: it orders `incarnation` of `member_id` to do something; both are None when it names
    no member. `problem`: what is unknown, as a sentence.
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
