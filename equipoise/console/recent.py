"""What happened lately to the groups that a worker leads: sentences and a timeline for each, in
bounded memory.

A fact costs time here only when something was decided on it, or when a copy that is being restored
came closer: `Recent.note` returns at once for all others.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import attrs

from equipoise.events.decisions import Checkpointed, EventRejected, MemberExpired, MemberWarned
from equipoise.events.facts import AssignmentObserved, BaseRequested, GroupRejoined, LagReported, LogOpened, MemberEnded, RoundAsked
from equipoise.events.records import BaseState, DecisionRecord, Record
from equipoise.replay.replayer import ReplayStep
from equipoise.replay.sentences import TOLD_FACTS, Sentence
from equipoise.replay.silence import SilenceFinder, SilentPeriod
from equipoise.replay.timelines import Timeline, TimelineBuilder
from equipoise.statemachine.machine import GroupMachine
from equipoise.statemachine.rejections import is_expected
from equipoise.statemachine.state import GroupState

MOST_SENTENCES = 1_000
"""Sentences kept of each group."""
MOST_KEPT = 8_000
"""Intervals, copies, movements and rounds kept of each group, or four for each task if that is
more; then those of the older half of the time are dropped.
"""
KEPT_MS = 2 * 3_600_000
"""Longest time of which a timeline is kept."""
MOST_NAMED_TASKS = 8
"""Tasks that a sentence names on the pages; more are counted."""
MOST_CHARS = 2_000
"""Characters of a sentence on the pages."""
_TASKS = re.compile(r": (?:\d+_\d+(?:\.\.\d+)?, )*\d+_\d+(?:\.\.\d+)? ")
_UNSEEN = (Checkpointed, EventRejected, MemberWarned)
"""Decisions that change nothing in a timeline."""
_NOTED = TOLD_FACTS | {AssignmentObserved, GroupRejoined, MemberEnded, RoundAsked}


@attrs.frozen
class Said:
    """A sentence with its place. `number`: of the sentences of all groups, rising."""

    number: int
    group: str
    append_ms: int
    sentence: Sentence

    def document(self) -> dict[str, Any]:
        """JSON-ready."""
        values = {name: value for name, value in self.sentence.values.items() if value is not None and name != "group"}
        text, tasks = self.sentence.text, values.get("tasks", ())
        if len(tasks) > MOST_NAMED_TASKS:
            text = _TASKS.sub(f": {len(tasks):,} tasks ", text, count=1)
            values["tasks"] = []
        return {"id": self.number, "group": self.group, "ms": self.append_ms, "level": self.sentence.level, "text": text[:MOST_CHARS], **values}


class _Expiries(SilenceFinder):
    """Silent members by the leader's own word: not every fact of a member is observed here."""

    def note(self, record: Record, decisions: Iterable[DecisionRecord], state: GroupState) -> list[SilentPeriod]:
        now_ms = record.append_ms
        ended = [each.decision for each in decisions if isinstance(each.decision, MemberExpired) and each.decision.cause != "revocation_timeout"]
        return [SilentPeriod(each.member_id, now_ms - each.silent_ms, now_ms, ended=True) for each in ended]


class GroupRecent:
    """One group. A `Source` of its timeline."""

    def __init__(self, group: str, machine: GroupMachine, record: Record) -> None:
        self.group = group
        self.machine = machine
        self.opened: LogOpened | None = None
        self.first_append_ms: int | None = record.append_ms
        self.last_append_ms = record.append_ms
        self.facts = 0
        self.first_divergence: int | None = None
        self.last_offset = -1
        self.version = 0
        """Rises whenever a page would show something else."""
        self.rejections = 0
        """Without those that members in order cause."""
        self.sentences: deque[Said] = deque(maxlen=MOST_SENTENCES)
        self.builder = TimelineBuilder(self, _Expiries())
        base = BaseState(group=group, offset=record.offset, number=0, begins_offset=record.offset, append_ms=record.append_ms, state=b"")
        self.builder.observe(ReplayStep(Record(group, record.offset, record.append_ms, BaseRequested()), [], None, base))

    def timeline(self, now_ms: int) -> Timeline:
        """The timeline up to `now_ms`, by the broker's clock."""
        self.last_append_ms = max(self.last_append_ms, now_ms)
        return self.builder.timeline()

    def observe(self, record: Record, decisions: list[DecisionRecord], machine: GroupMachine) -> None:
        self.machine = machine
        self.last_append_ms = max(self.last_append_ms, record.append_ms)
        self.facts += 1
        self.version += 1
        self.rejections += unexpected(record, decisions, machine)
        if decisions and all(isinstance(each.decision, _UNSEEN) for each in decisions) and record.event.__class__ not in _NOTED:
            return
        self.builder.observe(ReplayStep(record, decisions, None))
        first_ms = self.first_append_ms or 0
        kept_ms = self.last_append_ms - first_ms
        if kept_ms > KEPT_MS * 5 // 4 or self.builder.size > max(MOST_KEPT, 4 * len(machine.state.owner)):
            self.first_append_ms = self.last_append_ms - min(KEPT_MS, kept_ms // 2)
            self.builder.forget_before(self.first_append_ms)


def unexpected(record: Record, decisions: Iterable[DecisionRecord], machine: GroupMachine) -> int:
    """Number of the decisions that reject the fact, which members in order do not cause."""
    rejections = [each.decision for each in decisions if isinstance(each.decision, EventRejected)]
    return sum(not is_expected(each, record.event, machine.state.topologies) for each in rejections)


class Recent:
    """All groups of one worker. `changed`: called with a group, and the new sentences about it."""

    def __init__(self) -> None:
        self._since_ms: dict[int, int] = {}
        """Partition -> since when it is led here, by the broker's clock."""
        self.groups: dict[str, GroupRecent] = {}
        self.changed: Callable[[str, list[Said]], None] = lambda group, said: None
        self._partitions: dict[str, int] = {}
        self._number = 0

    def forget(self, partition: int) -> None:
        """Forgets the groups of a partition that another worker leads from now on."""
        for group in [group for group, place in self._partitions.items() if place == partition]:
            del self._partitions[group]
            self.groups.pop(group, None)

    def lead(self, partition: int, now_ms: int) -> int:
        """Facts of a partition are noted from now on, which is `now_ms` by the broker's clock.
        Returns the number of the first of MOST_SENTENCES sentences that `recall` may give.
        """
        self._since_ms[partition] = now_ms
        first, self._number = self._number + 1, self._number + MOST_SENTENCES
        return first

    def recall(self, partition: int, first: int, told: Iterable[tuple[Record, Sequence[DecisionRecord], GroupMachine, Sequence[Sentence]]]) -> None:
        """What the log says of the time before `lead`, in its order: the sentences alone, because
        nothing says what members had then. `first`: what `lead` returned.
        """
        said: dict[str, list[Said]] = {}
        number = first - 1
        for record, decisions, machine, sentences in told:
            known = self.of(record.group, partition, machine)
            known.rejections += unexpected(record, decisions, machine)
            for sentence in sentences:
                number = min(number + 1, first + MOST_SENTENCES - 1)
                said.setdefault(record.group, []).append(Said(number, record.group, record.append_ms, sentence))
        for group, earlier in said.items():
            known = self.groups[group]
            known.sentences = deque([*earlier, *known.sentences], maxlen=MOST_SENTENCES)
            known.version += 1
            self.changed(group, [])

    def note(
        self, partition: int, record: Record, decisions: list[DecisionRecord], machine: GroupMachine, sentences: Sequence[Sentence]
    ) -> None:
        """Takes a fact that was folded, with its decisions and what is told of them."""
        event = record.event
        known = self.groups.get(record.group)
        is_nearer = isinstance(event, LagReported) and known is not None and known.builder.is_restoring(event.member_id)
        if not (decisions or is_nearer or event.__class__ in _NOTED):
            return
        if not record.group or (known is not None and record.offset <= known.last_offset):
            return  # of no group, or folded again by the next takeover session
        if known is None:
            known = self.of(record.group, partition, machine, record)
        known.last_offset = record.offset
        known.observe(record, decisions, machine)
        said = []
        for sentence in sentences:
            self._number += 1
            said.append(Said(self._number, record.group, record.append_ms, sentence))
        known.sentences += said
        self.changed(record.group, said)

    def of(self, group: str, partition: int, machine: GroupMachine, record: Record | None = None) -> GroupRecent:
        """What is known of a group; from now on, if nothing was noted yet."""
        known = self.groups.get(group)
        if known is None:
            state = machine.state
            since_ms = self._since_ms.get(partition, state.last_append_ms or 0)  # nothing was decided since, or it would be known
            record = record or Record(group, state.last_offset, since_ms, BaseRequested())
            known = self.groups[group] = GroupRecent(group, machine, record)
            self._partitions[group] = partition
        return known

    @property
    def last_number(self) -> int:
        """Number of the last sentence."""
        return self._number
