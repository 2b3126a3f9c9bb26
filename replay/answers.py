"""What a log's decisions say of its configurations, known before the configurations are folded
(docs/protocol.md#l6).

A configuration that a leader refused because its build lacked what it asks for is refused by every
reader, whatever that one has. The refusal is stored behind the fact, in a log that is read live
perhaps far behind it. So a reader holds the facts of a group back from a configuration on until a
decision shows what was answered: one that a later fact caused, or one of that fact other than
MemberExpired, which timers cause before the fact is judged.
"""

from __future__ import annotations

from collections import deque
from typing import Any, cast

import attrs

from equipoise.events import codec
from equipoise.events.decisions import Decision, MemberExpired
from equipoise.events.errors import DamagedError
from equipoise.events.facts import GroupConfigured
from equipoise.events.records import DecisionRecord, Entry, Record, UnreadRecord
from equipoise.statemachine.rejections import refused_fact

MOST_HELD = 100_000
"""Entries of a group held back until its configuration is answered; behind so many it counts as
accepted.
"""


class ConfigurationAnswers:
    """One group on its way through a log: hand each entry in, and get those that may be folded now,
    `Record.refused` filled in.
    """

    def __init__(self) -> None:
        self._held: deque[Entry] = deque()
        """From the first configuration on whose answer is not known."""
        self._unanswered: set[int] = set()
        """Configurations that count as accepted because nothing answered them within MOST_HELD
        entries.
        """

    def take(self, entry: Entry) -> list[Entry]:
        """Raises DamagedError for a refusal that comes too late to be heeded."""
        if isinstance(entry, DecisionRecord) or (isinstance(entry, UnreadRecord) and entry.number is not None):
            return self._take_decision(entry)
        if not self._held and not (isinstance(entry, Record) and isinstance(entry.event, GroupConfigured)):
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
            raise DamagedError(caused_by, f"its refusal, decision {entry.number}, stands over {MOST_HELD:,} records behind it; archive the log")
        known: list[Entry] = []
        while self._held and _answers(entry, caused_by, self._pending):
            known += self._release(attrs.evolve(self._pending, refused=refused == self._pending.offset))
        if self._held and caused_by >= self._pending.offset:
            self._held.append(entry)
        else:
            known.append(entry)
        return known

    @property
    def _pending(self) -> Record:
        return cast(Record, self._held[0])

    def _release(self, answered: Record) -> list[Entry]:
        """`answered` in the place of the first one, and what stands behind it, up to the next
        configuration.
        """
        self._held.popleft()
        known: list[Entry] = [answered]
        while self._held and not (isinstance(self._held[0], Record) and isinstance(self._held[0].event, GroupConfigured)):
            known.append(self._held.popleft())
        return known

    def rest(self) -> list[Entry]:
        """What is held back when the log ends: nobody has refused any of it."""
        rest = list(self._held)
        self._held.clear()
        return rest

    def save(self) -> list[Any]:
        """For `restore`: values that msgpack takes."""
        return [[_save(each) for each in self._held], sorted(self._unanswered)]

    @classmethod
    def restore(cls, saved: list[Any]) -> ConfigurationAnswers:
        answers = cls()
        held, unanswered = saved
        answers._held.extend(_restore(each) for each in held)
        answers._unanswered.update(unanswered)
        return answers


def _answers(decision: DecisionRecord | UnreadRecord, caused_by: int, configuration: Record) -> bool:
    if decision.group != configuration.group:
        return False
    if caused_by == configuration.offset:
        return isinstance(decision, DecisionRecord) and not isinstance(decision.decision, MemberExpired)
    return caused_by > configuration.offset


def _save(entry: Entry) -> list[Any]:
    if isinstance(entry, Record):
        return [True, [entry.group, entry.offset, entry.append_ms, entry.checksum], *codec.encode(entry.event)]
    assert isinstance(entry, DecisionRecord), "what cannot be read ends a verification, and is not saved"
    place = [entry.log_id, entry.group, entry.number, entry.caused_by, entry.index, entry.fact_checksum]
    return [False, place, *codec.encode(entry.decision)]


def _restore(saved: list[Any]) -> Entry:
    is_fact, place, *encoded = saved
    if is_fact:
        group, offset, append_ms, checksum = place
        return Record(group, offset, append_ms, codec.decode_lenient(*encoded), checksum)
    log_id, group, number, caused_by, index, fact_checksum = place
    return DecisionRecord(log_id, group, number, caused_by, index, fact_checksum, cast(Decision, codec.decode(*encoded)))
