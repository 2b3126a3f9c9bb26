"""Is a published decision the recomputed one? The one comparison that workers, `verify` and every
other reader of a log use (docs/protocol.md#l5).

A published decision is a `DecisionRecord`, or its identity: what a worker keeps of it until it has
recomputed the same number.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable

import attrs

from equipoise.events import codec
from equipoise.events.decisions import Checkpointed
from equipoise.events.records import DecisionRecord
from equipoise.statemachine.snapshots import is_of_another_form

OTHER_FORM = "a state's hash in another form"
"""Identity of a published `Checkpointed` whose hash this build cannot compare."""


@attrs.frozen
class UnreadIdentity:
    """Identity of a published decision that this build cannot read, so it cannot have computed it.
    `problem`: why it cannot be read.
    """

    problem: str
    checksum: int


class Match(enum.Enum):
    """How a published decision compares with the recomputed one."""

    EQUAL = "equal"
    NOT_COMPARED = "not compared"
    """Both are hashes of the state after the same fact, in different forms
    (docs/protocol.md#l7).
    """
    UNREAD = "unread"
    """This build cannot read the published one."""
    DIFFERENT = "different"


def identity_of(record: DecisionRecord) -> Hashable:
    """Returns what a published decision has in common with its recomputed copy: its checksum, or
    OTHER_FORM.
    """
    return OTHER_FORM if is_of_another_form(record.decision) else codec.checksum_of(record)


def compare(published: DecisionRecord | Hashable, recomputed: DecisionRecord) -> Match:
    """Compares a published decision with the recomputed one: two records by their place and encoded
    bytes, an identity by its checksum.
    """
    if isinstance(published, DecisionRecord):
        return _compare_records(published, recomputed)
    if isinstance(published, UnreadIdentity):
        return Match.UNREAD
    if published == OTHER_FORM:
        return Match.NOT_COMPARED if isinstance(recomputed.decision, Checkpointed) else Match.DIFFERENT
    return Match.EQUAL if published == codec.checksum_of(recomputed) else Match.DIFFERENT


PLACE_FIELDS = ("log_id", "group", "number", "caused_by", "index", "fact_checksum")


def place_of(record: DecisionRecord) -> tuple[str, str, int, int, int, int]:
    """Where a decision is in its log, field by field as in PLACE_FIELDS."""
    return (record.log_id, record.group, record.number, record.caused_by, record.index, record.fact_checksum)


def _compare_records(published: DecisionRecord, recomputed: DecisionRecord) -> Match:
    if place_of(published) != place_of(recomputed):
        return Match.DIFFERENT
    theirs, ours = published.decision, recomputed.decision
    if codec.encode(theirs) == codec.encode(ours):
        return Match.EQUAL
    if isinstance(theirs, Checkpointed) and isinstance(ours, Checkpointed) and theirs.form != ours.form and theirs.seq == ours.seq:
        return Match.NOT_COMPARED
    return Match.DIFFERENT


class PublishedProblem(Exception):
    """A published decision is not the recomputed one. `code` and `problem` are those of the
    `GroupHalted` that follows.
    """

    def __init__(self, code: str, problem: str) -> None:
        super().__init__(problem)
        self.code = code
        self.problem = problem


class PublishedDecisions:
    """The published decisions of one group, from the last checkpoint on."""

    def __init__(self) -> None:
        self.last_number = 0
        """Highest number that is published; 0: none."""
        self.confirmed = 0
        """Recomputed decisions that equal the published ones."""
        self.not_compared = 0
        """Published hashes of the state in another form."""
        self._waiting: dict[int, DecisionRecord | Hashable] = {}
        """Published and not yet recomputed, by number."""

    @property
    def last_waiting(self) -> int:
        """Highest number that is published and not yet recomputed; 0: none."""
        return max(self._waiting, default=0)

    def acknowledge(self, number: int) -> None:
        """Every decision up to `number` is published."""
        self.last_number = max(self.last_number, number)

    def take(self, number: int, published: DecisionRecord | Hashable) -> None:
        """One published decision that was not recomputed yet. Raises PublishedProblem when an
        earlier copy of it differs.
        """
        known = self._waiting.setdefault(number, published)
        if known == OTHER_FORM:
            self._waiting[number] = published
        elif published not in (known, OTHER_FORM):
            raise PublishedProblem("published_differs", f"decision {number} is published twice, and the copies differ")

    def missing(self, recomputed: list[DecisionRecord]) -> list[DecisionRecord]:
        """The recomputed decisions that are not published, in order. Raises PublishedProblem when a
        published one differs, cannot be read, or is missing while later ones are published.
        """
        for index, decision in enumerate(recomputed):
            if not self._waiting:
                return recomputed[index:]
            if decision.number not in self._waiting:
                raise PublishedProblem("published_gap", f"decision {decision.number} is not published, and later ones are")
            self._confirm(self._waiting.pop(decision.number), decision)
        return []

    def _confirm(self, published: DecisionRecord | Hashable, decision: DecisionRecord) -> None:
        match = compare(published, decision)
        if match is Match.EQUAL:
            self.confirmed += 1
        elif match is Match.NOT_COMPARED:
            self.not_compared += 1
        elif isinstance(published, UnreadIdentity):
            raise PublishedProblem("event_unknown", f"decision {decision.number} is published and cannot be compared: {published.problem}")
        else:
            raise PublishedProblem("published_differs", f"decision {decision.number} is published and differs from the one computed")
