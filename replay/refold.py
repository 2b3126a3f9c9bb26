"""A group's log folded once more, with everything a reader may want to look at after each fact.

There is one machine and one path: readers watch it, they do not copy it. What the assignor was
asked and what it answered is heard on the way, so that a movement that only waits, which no
decision names, can be told too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

import attrs

from equipoise.assignors import AssignmentProblem, Assignor, Plan, WrappedAssignor, registry
from equipoise.events.errors import InputError
from equipoise.events.facts import LogOpened
from equipoise.events.records import DecisionRecord, Entry, Record, UnreadRecord
from equipoise.replay.answers import ConfigurationAnswers
from equipoise.replay.wording import groups_text
from equipoise.statemachine.machine import GroupMachine, Load

MOST_UNCOMPARED = 100_000
"""Recomputed decisions kept until the log's own copy of them comes by: a worker that is this far
behind its facts is not compared.
"""


@attrs.frozen(kw_only=True)
class Asked:
    """One question to the assignor and its answer."""

    problem: AssignmentProblem
    plan: Plan


class _Listening(WrappedAssignor):
    """An assignor, and what it was last asked."""

    def __init__(self, assignor: Assignor) -> None:
        super().__init__(assignor)
        self.asked: Asked | None = None

    def assign(self, problem: AssignmentProblem) -> Plan:
        plan = self.wrapped.assign(problem)
        self.asked = Asked(problem=problem, plan=plan)
        return plan


@attrs.frozen
class Step:
    """One fact, what it caused, and what the assignor was asked for it (None: nothing)."""

    record: Record
    decisions: list[DecisionRecord]
    asked: Asked | None


class Refold:
    """One group's machine on its way through a log.

    `group`: None = the only one in the log; with several, `follow` raises InputError that names
    them.
    """

    def __init__(self, group: str | None = None, *, load: Load = registry.load) -> None:
        self._group = group
        self._takes_any = group is None
        self._load = load
        self._listening: _Listening | None = None
        self.machine = GroupMachine(load=self._listen, any_solver=True)
        self.opened: LogOpened | None = None
        self.first_append_ms: int | None = None
        self.last_append_ms = 0
        self.facts = 0
        self.differs_at: int | None = None
        """Offset of the first fact whose stored decisions are not the recomputed ones. Then
        `verify` has more to say.
        """
        self._uncompared: deque[DecisionRecord] = deque(maxlen=MOST_UNCOMPARED)
        self._answers = ConfigurationAnswers()

    @property
    def group(self) -> str:
        return self._group or ""

    @property
    def assignor(self) -> Assignor | None:
        """The one that decides from here on; None before the configuration."""
        return self._listening

    def _listen(self, name: str, version: int) -> Assignor:
        self._listening = _Listening(self._load(name, version))
        return self._listening

    def follow(self, entries: Iterable[Entry], *, until_offset: int | None = None) -> Iterator[Step]:
        """Steps the machine through `entries`, up to and including the fact at `until_offset`
        (None: all), and yields each step after it was taken.

        Raises InputError when the group is not in the log, when it must be named, or when the log
        ends before `until_offset`; and what the log and the machine raise.
        """
        last_offset = -1
        others: set[str] = set()
        for entry in entries:
            if isinstance(entry, DecisionRecord):
                if entry.group == self._group:
                    yield from self._known(self._answers.take(entry))
                continue
            if until_offset is not None and entry.offset > until_offset:
                break
            if isinstance(entry, UnreadRecord):
                if entry.group == self._group:
                    yield from self._known(self._answers.take(entry))
                elif entry.number is None:
                    entry.must_not_be_of(self._group)
                    last_offset = entry.offset
                    others.add(entry.group)
                continue
            last_offset = entry.offset
            if isinstance(entry.event, LogOpened):
                self.opened = entry.event
                self.machine.step(entry)
                continue
            if self._group is None:
                self._group = entry.group
            elif entry.group != self._group:
                if self._takes_any:
                    raise InputError(f"--group: the log holds several groups, {self._group!r} and {entry.group!r} among them; name one")
                others.add(entry.group)
                continue
            yield from self._known(self._answers.take(entry))
        yield from self._known(self._answers.rest())
        if not self.facts:
            if self._group is None:
                raise InputError("the log holds no fact of any group; import or simulate one")
            raise InputError(f"--group: the log holds no fact of group {self._group!r}; {groups_text(others)}")
        if until_offset is not None and last_offset < until_offset:
            raise InputError(f"--at: the log ends at offset {last_offset}; name one up to that")

    def _known(self, entries: Iterable[Entry]) -> Iterator[Step]:
        for entry in entries:
            if isinstance(entry, Record):
                yield self._step(entry)
            elif isinstance(entry, DecisionRecord):
                self._compare(entry)
            elif entry.number is None:
                raise entry.error()
            elif self.differs_at is None:
                self.differs_at = entry.offset

    def _step(self, record: Record) -> Step:
        if self._listening is not None:
            self._listening.asked = None
        decisions = self.machine.step(record)
        self.facts += 1
        if self.first_append_ms is None:
            self.first_append_ms = record.append_ms
        self.last_append_ms = record.append_ms
        self._uncompared.extend(decisions)
        return Step(record, decisions, None if self._listening is None else self._listening.asked)

    def _compare(self, stored: DecisionRecord) -> None:
        if self.differs_at is not None:
            return
        if not self._uncompared:
            return
        if self._uncompared[0].number <= stored.number and self._uncompared.popleft() != stored:
            self.differs_at = stored.caused_by
