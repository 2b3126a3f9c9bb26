"""Folds the log of one group step by step, for readers that look at the state after each fact.

`Replayer` runs the machine that decides live. It also records the question and the answer of each
assignor call, because no decision names a movement that only waits for a slot.

`ConfigurationAnswers` finds out, before a configuration is folded, whether its leader refused it.
See docs/protocol.md#l6.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, cast

import attrs

from equipoise.assignors import AssignmentProblem, Assignor, DelegatingAssignor, Plan, registry
from equipoise.events import codec
from equipoise.events.decisions import Decision, MemberExpired
from equipoise.events.errors import DamagedError, InputError
from equipoise.events.facts import BaseRequested, GroupConfigured, LogOpened
from equipoise.events.records import BaseState, DecisionRecord, Entry, FactRecord, UnreadRecord
from equipoise.replay.all_clear import Undecided
from equipoise.replay.wording import groups_text
from equipoise.statemachine.machine import AssignorLoader, GroupMachine
from equipoise.statemachine.published import Match, compare
from equipoise.statemachine.rejections import refused_fact

MOST_UNCOMPARED = 100_000
"""Recomputed decisions kept until their stored copies arrive. The decisions of a worker that is
further behind its facts are not compared.
"""
MOST_HELD = 100_000
"""Entries of a group held back until its configuration is answered. After so many it counts as
accepted.
"""


@attrs.frozen(kw_only=True)
class AssignorCall:
    """One question to the assignor and its answer."""

    problem: AssignmentProblem
    plan: Plan


class RecordingAssignor(DelegatingAssignor):
    """An assignor, and what it was last asked."""

    def __init__(self, assignor: Assignor) -> None:
        super().__init__(assignor)
        self.last_call: AssignorCall | None = None

    def assign(self, problem: AssignmentProblem) -> Plan:
        plan = self.wrapped.assign(problem)
        self.last_call = AssignorCall(problem=problem, plan=plan)
        return plan


@attrs.frozen
class ReplayStep:
    """One fact, the decisions it caused, and the last assignor call it caused (None: no call)."""

    record: FactRecord
    decisions: list[DecisionRecord]
    assignor_call: AssignorCall | None
    base: BaseState | None = None
    """The state at which the log begins, in the first step of such a log. `record` is then the
    request of that state, which was folded before.
    """


class Replayer:
    """Folds the log of one group with the machine that decides live.

    `group`: None means the only group of the log.
    """

    def __init__(self, group: str | None = None, *, load: AssignorLoader = registry.load) -> None:
        self._group = group
        self._takes_any = group is None
        self._load = load
        self._recording: RecordingAssignor | None = None
        self.machine = GroupMachine(load=self._listen, any_solver=True)
        self.opened: LogOpened | None = None
        self.first_append_ms: int | None = None
        self.last_append_ms = 0
        self.facts = 0
        self.first_divergence: int | None = None
        """Offset of the first fact whose stored decisions differ from the recomputed ones; None:
        none so far. `verify` reports the differences.
        """
        self.base: BaseState | None = None
        """The state at which the log begins; None: it begins with its first record."""
        self._uncompared: deque[tuple[DecisionRecord, int]] = deque(maxlen=MOST_UNCOMPARED)
        """Recomputed decisions, and when their facts were appended."""
        self._is_decided = False
        self._answers = ConfigurationAnswers()

    @property
    def group(self) -> str:
        return self._group or ""

    @property
    def assignor(self) -> Assignor | None:
        """The group's current assignor; None before the first configuration."""
        return self._recording

    @property
    def undecided(self) -> Undecided | None:
        """Returns what nobody has decided on where the log was read to its end; None: all is
        decided, or the log has no decision at all, as one that was made of facts alone.
        """
        if not self._uncompared or not self._is_decided:
            return None
        first, append_ms = self._uncompared[0]
        return Undecided(first.caused_by, append_ms, len(self._uncompared))

    def _listen(self, name: str, version: int) -> Assignor:
        self._recording = RecordingAssignor(self._load(name, version))
        return self._recording

    def follow(self, entries: Iterable[Entry], *, until_offset: int | None = None) -> Iterator[ReplayStep]:
        """Steps the machine through `entries` up to and including the fact at `until_offset` (None:
        all), and yields each step after it was taken.

        Raises InputError when the group is not in the log, when no group was named and the log
        holds several, or when the log ends before `until_offset`; LogError when an entry cannot be
        read; GroupHalted when the machine halts.
        """
        last_offset = -1
        is_behind = False
        others: set[str] = set()
        for entry in entries:
            if isinstance(entry, DecisionRecord):
                if entry.group == self._group and (self.base is None or entry.number > self.base.number):
                    yield from self._known(self._answers.take(entry))
                continue
            if isinstance(entry, BaseState):
                if self._group is None or entry.group == self._group:
                    yield self._begin(entry)
                elif self._takes_any:
                    raise InputError(f"--group: the log holds several groups, {self._group!r} and {entry.group!r} among them; name one")
                else:
                    others.add(entry.group)
                continue
            if until_offset is not None and entry.offset > until_offset:
                is_behind = True
                break
            if self.base is not None and entry.group == self._group and entry.offset <= self.base.offset:
                continue
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
        if self.base is not None and until_offset is not None and until_offset < self.base.offset:
            begins = f"the log begins at the base at offset {self.base.offset}, which has all facts of the group up to there"
            raise InputError(f"--at: {begins}; name one from there on, or read the archive")
        if not self.facts and self.base is None:
            if self._group is None:
                raise InputError("the log holds no fact of any group; import or simulate one")
            raise InputError(f"--group: the log holds no fact of group {self._group!r}; {groups_text(others)}")
        if until_offset is not None and not is_behind and max(last_offset, -1 if self.base is None else self.base.offset) < until_offset:
            raise InputError(f"--at: the log ends at offset {last_offset}; name one up to that")

    def _begin(self, base: BaseState) -> ReplayStep:
        """Continues from the state at which the log begins. Raises InputError for a form that this
        build does not read.
        """
        self._group, self.base = base.group, base
        self.machine = GroupMachine.restore(base.state, load=self._listen, any_solver=True)
        self.first_append_ms = self.last_append_ms = base.append_ms
        return ReplayStep(FactRecord(base.group, base.offset, base.append_ms, BaseRequested()), [], None, base)

    def _known(self, entries: Iterable[Entry]) -> Iterator[ReplayStep]:
        for entry in entries:
            if isinstance(entry, FactRecord):
                yield self._step(entry)
            elif isinstance(entry, DecisionRecord):
                self._compare(entry)
            elif isinstance(entry, BaseState):
                continue
            elif entry.number is None:
                raise entry.error()
            else:
                list(self._decided(entry.number))
                self.first_divergence = entry.offset if self.first_divergence is None else self.first_divergence

    def _step(self, record: FactRecord) -> ReplayStep:
        if self._recording is not None:
            self._recording.last_call = None
        decisions = self.machine.step(record)
        self.facts += 1
        if self.first_append_ms is None:
            self.first_append_ms = record.append_ms
        self.last_append_ms = record.append_ms
        self._uncompared.extend((each, record.append_ms) for each in decisions)
        return ReplayStep(record, decisions, None if self._recording is None else self._recording.last_call)

    def _compare(self, stored: DecisionRecord) -> None:
        for recomputed in self._decided(stored.number):
            if self.first_divergence is None and stored != recomputed and compare(stored, recomputed) is Match.DIFFERENT:
                self.first_divergence = stored.caused_by

    def _decided(self, number: int) -> Iterator[DecisionRecord]:
        """The recomputed decisions up to this number, one of which is stored now."""
        self._is_decided = True
        while self._uncompared and self._uncompared[0][0].number <= number:
            yield self._uncompared.popleft()[0]


# ---------------------------------------------------------------------------- configuration answers


class ConfigurationAnswers:
    """Reads a group's log ahead of the fold: takes each entry and returns the entries that may be
    folded now, with `Record.refused` filled in.

    When a leader refuses a configuration because its build lacks what the configuration asks for,
    every reader refuses it, whatever its own build has. The refusal is stored behind the fact; in a
    log that is read live, perhaps far behind. So the group's facts are held back from a
    configuration on until a decision shows the answer: one that a later fact caused, or one of that
    fact other than MemberExpired, which timers cause before the fact is judged.
    """

    def __init__(self) -> None:
        self._held: deque[Entry] = deque()
        """Entries from the first unanswered configuration on."""
        self._unanswered: set[int] = set()
        """Offsets of configurations that count as accepted, because no decision answered them
        within MOST_HELD entries.
        """

    def take(self, entry: Entry) -> list[Entry]:
        """Takes the next entry; returns the entries that may be folded now, in order. Raises
        DamagedError when a refusal comes more than MOST_HELD entries behind its configuration.
        """
        if isinstance(entry, DecisionRecord) or (isinstance(entry, UnreadRecord) and entry.number is not None):
            return self._take_decision(entry)
        if not self._held and not (isinstance(entry, FactRecord) and isinstance(entry.event, GroupConfigured)):
            return [entry]
        self._held.append(entry)
        if len(self._held) <= MOST_HELD:
            return []
        self._unanswered.add(self._pending.offset)
        return self._release(self._pending)

    def _take_decision(self, entry: DecisionRecord | UnreadRecord) -> list[Entry]:
        caused_by = entry.caused_by if isinstance(entry, DecisionRecord) else entry.offset
        refused = refused_fact(entry.decision, caused_by) if isinstance(entry, DecisionRecord) else None
        if refused in self._unanswered:
            raise DamagedError(caused_by, f"its refusal, decision {entry.number}, is stored over {MOST_HELD:,} records behind it; archive the log")
        known: list[Entry] = []
        while self._held and _answers(entry, caused_by, self._pending):
            known += self._release(attrs.evolve(self._pending, refused=refused == self._pending.offset))
        if self._held and caused_by >= self._pending.offset:
            self._held.append(entry)
        else:
            known.append(entry)
        return known

    @property
    def _pending(self) -> FactRecord:
        return cast(FactRecord, self._held[0])

    def _release(self, answered: FactRecord) -> list[Entry]:
        """Removes and returns the held entries up to the next configuration; `answered` takes the
        place of the first.
        """
        self._held.popleft()
        known: list[Entry] = [answered]
        while self._held and not (isinstance(self._held[0], FactRecord) and isinstance(self._held[0].event, GroupConfigured)):
            known.append(self._held.popleft())
        return known

    def rest(self) -> list[Entry]:
        """The entries held back at the end of the log. No decision refused their configurations."""
        rest = list(self._held)
        self._held.clear()
        return rest

    def save(self) -> list[Any]:
        """State for `restore`, as values that msgpack can pack."""
        return [[_save(each) for each in self._held], sorted(self._unanswered)]

    @classmethod
    def restore(cls, saved: list[Any]) -> ConfigurationAnswers:
        answers = cls()
        held, unanswered = saved
        answers._held.extend(_restore(each) for each in held)
        answers._unanswered.update(unanswered)
        return answers


def _answers(decision: DecisionRecord | UnreadRecord, caused_by: int, configuration: FactRecord) -> bool:
    if decision.group != configuration.group:
        return False
    if caused_by == configuration.offset:
        return isinstance(decision, DecisionRecord) and not isinstance(decision.decision, MemberExpired)
    return caused_by > configuration.offset


def _save(entry: Entry) -> list[Any]:
    if isinstance(entry, FactRecord):
        return [True, [entry.group, entry.offset, entry.append_ms, entry.checksum], *codec.encode(entry.event)]
    assert isinstance(entry, DecisionRecord), "what cannot be read ends a verification, and is not saved"
    place = [entry.log_id, entry.group, entry.number, entry.caused_by, entry.index, entry.fact_checksum]
    return [False, place, *codec.encode(entry.decision)]


def _restore(saved: list[Any]) -> Entry:
    is_fact, place, *encoded = saved
    if is_fact:
        group, offset, append_ms, checksum = place
        return FactRecord(group, offset, append_ms, codec.decode_lenient(*encoded), checksum)
    log_id, group, number, caused_by, index, fact_checksum = place
    return DecisionRecord(log_id, group, number, caused_by, index, fact_checksum, cast(Decision, codec.decode(*encoded)))
