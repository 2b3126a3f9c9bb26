"""Copies a log in Kafka into a file, record by record: resumable, without duplicates.

A fact is copied together with its decisions, once it is *settled*: the topic has a decision of a
later fact, and workers write decisions in order (docs/protocol.md#l4). Facts after the last
decision wait for the next run or, when following, for the next pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain

import attrs

from equipoise.events.errors import InputError, LogError
from equipoise.events.facts import LogOpened
from equipoise.events.records import UnreadRecord
from equipoise.log import Log
from equipoise.log.kafka.envelope import StoredDecision
from equipoise.log.kafka.log import KafkaLog
from equipoise.log.rows import BaseRow, FactRow, Row, note_unread

_FACTS_A_TRANSACTION = 1_000
_NEVER = 2**63


@attrs.frozen(kw_only=True)
class Archived:
    """The result of one run."""

    facts: int
    decisions: int
    position: int
    """Offset of the next fact to copy."""
    waiting: int
    """Facts that are not settled yet."""
    held_by: str
    """The group that has halted, behind whose last decision nothing is copied; "": none has."""
    unread: tuple[UnreadRecord, ...]
    """The first copied record of each group that this build cannot read."""


def archive(
    source: KafkaLog,
    target: Log,
    *,
    facts_a_transaction: int = _FACTS_A_TRANSACTION,
    final: bool = False,
    advance: Callable[[int], None] = lambda records: None,
) -> Archived:
    """Copies the settled records of `source` that are not in `target`, which is open for appending.

    `facts_a_transaction`: larger values suit a target that makes a new file for each transaction.
    `final`: no worker leads the log any more, so every fact is settled, and is copied with the
    decisions that it has.

    Resumes after its last transaction when it was killed. Waits where a group has halted, in a log
    with a topic of bases. Raises InputError when `target` holds another log, or when `source` has
    several partitions and none is named; LogError when decisions came so late (of a group that had
    been halted) that they have no place left.
    """
    partition = source.only_partition()
    begin = target.position()
    _must_be_the_same(source, target)
    states: list[BaseRow] = []
    facts = decisions = 0
    batch: list[Settled] = []
    settled = Settling()
    unread: dict[str, UnreadRecord] = {}
    before = source.bases(partition, keep_states=False).halted
    settled.expect(source.late_decisions(partition, begin))
    halted: tuple[int, str] | None = (_NEVER, "") if final else None
    held_by = ""
    for each in chain(settled.over(_without_bases(source.rows(partition, begin), states)), settled.rest() if final else ()):
        # Read before the decisions' end and after: a worker says that a group has halted before it
        # decides on, and takes that back after it has published what was missing.
        if halted is None:
            found = {**source.bases(partition, keep_states=False).halted, **before}
            halted = min(((offset, group) for group, offset in found.items()), default=(_NEVER, ""))
        if each.fact.offset >= halted[0]:
            held_by = halted[1]
            break
        if states and each.fact.offset > 0:
            facts += len(batch)
            _write_bases(target, states, batch)
        batch.append(each)
        rows: list[Row] = [each.fact, *(stored.row for stored in each.decisions)]
        for row in rows:
            note_unread(row, partition, unread)
        if len(batch) >= facts_a_transaction:
            facts, decisions = facts + len(batch), decisions + _write(target, batch)
            advance(len(batch))
            batch.clear()
    if states:  # no fact behind them is settled
        facts += len(batch)
        _write_bases(target, states, batch)
    facts, decisions = facts + len(batch), decisions + _write(target, batch)
    advance(len(batch))
    return Archived(
        facts=facts, decisions=decisions, position=target.position(), waiting=len(settled.pending), held_by=held_by, unread=tuple(unread.values())
    )


def _without_bases(rows: Iterator[FactRow | StoredDecision | BaseRow], states: list[BaseRow]) -> Iterator[FactRow | StoredDecision]:
    """The facts and decisions; adds the states that the log begins with to `states`."""
    for row in rows:
        if isinstance(row, BaseRow):
            states.append(row)
        else:
            yield row


def _write_bases(target: Log, states: list[BaseRow], opening: list[Settled]) -> None:
    """Writes LogOpened and the states behind it, together."""
    with target.transaction():
        for settled in opening:
            target.append_row(settled.fact)
        for state in states:
            target.append_row(state)
    opening.clear()
    states.clear()


@attrs.frozen
class Settled:
    """A fact with all its decisions."""

    fact: FactRow
    decisions: list[StoredDecision]


class Settling:
    """Collects facts with their decisions until they are complete. `pending`: facts that wait.
    `numbers`: group -> number of its last decision.
    """

    def __init__(self) -> None:
        self.pending: list[Settled] = []
        self.numbers: dict[str, int] = {}
        self._late: dict[int, list[StoredDecision]] = {}
        """Fact -> its decisions, of a group that had halted."""
        self._known_late: set[tuple[str, int]] = set()

    def expect(self, late: Iterable[StoredDecision]) -> None:
        """Takes decisions that will come behind those of later facts, to put them to their facts."""
        for decision in late:
            self._late.setdefault(decision.row.caused_by, []).append(decision)
            self._known_late.add((decision.row.group, decision.row.number))

    def _settle(self, count: int) -> Iterator[Settled]:
        for settled in self.pending[:count]:
            settled.decisions.extend(self._late.pop(settled.fact.offset, ()))
            yield settled
        del self.pending[:count]

    def over(self, rows: Iterator[FactRow | StoredDecision]) -> Iterator[Settled]:
        """Raises LogError for an archive that must be made again."""
        for row in rows:
            if isinstance(row, FactRow):
                if row.offset == 0:
                    yield Settled(row, [])  # LogOpened causes no decision; so a partition without groups is archived, too
                else:
                    self.pending.append(Settled(row, []))
                continue
            decision = row.row
            if decision.number <= self.numbers.get(decision.group, 0):
                continue  # a second copy
            self.numbers[decision.group] = decision.number
            if (decision.group, decision.number) in self._known_late:
                continue
            if not self.pending or decision.caused_by < self.pending[0].fact.offset:
                problem = f"its decision {decision.number} of group {decision.group!r} came after later ones: the group had been halted"
                raise LogError(decision.caused_by, f"{problem}; make the archive again")
            first = self.pending[0].fact.offset
            self.pending[decision.caused_by - first].decisions.append(row)
            yield from self._settle(decision.caused_by - first)

    def rest(self) -> Iterator[Settled]:
        """Yields the facts that wait, when no further decision will come."""
        yield from self._settle(len(self.pending))


def _must_be_the_same(source: KafkaLog, target: Log) -> None:
    first = next(iter(target.read()), None)
    if first is not None and getattr(first, "event", None) != source.opened:
        named = first.event.log_id if isinstance(getattr(first, "event", None), LogOpened) else "?"  # type: ignore[union-attr] # just looked at
        raise InputError(f"{target.location}: holds log {named!r}, and {source.location} is {source.opened.log_id!r}; name another file")


def _write(target: Log, batch: list[Settled]) -> int:
    decisions = 0
    if batch:
        with target.transaction():
            for settled in batch:
                target.append_row(settled.fact)
                for stored in settled.decisions:
                    target.append_row(stored.row)
                decisions += len(settled.decisions)
    return decisions
