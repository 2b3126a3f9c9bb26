"""What happened lately to the groups that a worker leads: sentences and a timeline for each, in
memory that is bounded for each group and for all of them together.

A fact costs time here only when something was decided on it, or when a copy that is being restored
came closer: `Recent.note` returns at once for all others.
"""

from __future__ import annotations

import re
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any

import attrs

from equipoise.console.paces import Paces
from equipoise.events.decisions import Checkpointed, EventRejected, MemberExpired, MemberWarned
from equipoise.events.facts import AssignmentObserved, BaseRequested, GroupRejoined, LagReported, LogOpened, MemberEnded, RoundAsked
from equipoise.events.records import BaseState, DecisionRecord, FactRecord
from equipoise.replay.known_changes import ChangeReader
from equipoise.replay.replayer import ReplayStep
from equipoise.replay.sentences import TOLD_FACTS, Sentence
from equipoise.replay.silence import SilenceFinder, SilentPeriod
from equipoise.replay.timelines import Timeline, TimelineBuilder
from equipoise.statemachine.machine import GroupMachine
from equipoise.statemachine.rejections import is_expected
from equipoise.statemachine.state import GroupState

MOST_SENTENCES = 1_000
"""Sentences kept of each group."""
MOST_CHANGES = 20
"""Changes kept of each group, the last."""
MOST_KEPT = 8_000
"""Intervals, copies, movements and rounds kept of each group, or four for each task if that is
more; then those of the older half of the time are dropped.
"""
MOST_IN_ALL = 200_000
"""Sentences, intervals and what else is kept of all groups together, each 0.2 to 0.7 kB; then
groups that have not changed for the longest time are forgotten.
"""
_OF_A_GROUP = 10
"""What a group costs that was only looked at, beside its tasks, in the same unit."""
_POINTS = 4
"""So many points of lag curves cost as much as a sentence."""
_WEIGHED_EVERY = 16
"""Reports of a group that restores, between two counts of what is kept of it."""
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
class SaidSentence:
    """A sentence (`shortened`) with its place. `number`: of the sentences of all groups, rising."""

    number: int
    group: str
    append_ms: int
    sentence: Sentence

    def document(self) -> dict[str, Any]:
        """JSON-ready."""
        said = self.sentence
        return {"id": self.number, "group": self.group, "ms": self.append_ms, "level": said.level, "text": said.text, **said.values}


def shortened(sentence: Sentence) -> Sentence:
    """As pages show it, so that one about many tasks takes no more memory than another."""
    text, values = sentence.text, {name: value for name, value in sentence.values.items() if value is not None and name != "group"}
    tasks = values.get("tasks", ())
    if len(tasks) > MOST_NAMED_TASKS:
        text, values["tasks"] = _TASKS.sub(f": {len(tasks):,} tasks ", text, count=1), []
    return Sentence(text[:MOST_CHARS], values, sentence.level)


class _Expiries(SilenceFinder):
    """Silent members by the leader's own word: not every fact of a member is observed here."""

    def note(self, record: FactRecord, decisions: Iterable[DecisionRecord], state: GroupState) -> list[SilentPeriod]:
        now_ms = record.append_ms
        ended = [each.decision for each in decisions if isinstance(each.decision, MemberExpired) and each.decision.cause != "revocation_timeout"]
        return [SilentPeriod(each.member_id, now_ms - each.silent_ms, now_ms, ended=True) for each in ended]


class GroupRecent:
    """One group. A `Source` of its timeline."""

    def __init__(self, group: str, machine: GroupMachine, record: FactRecord) -> None:
        self.group = group
        self.machine = machine
        self.opened: LogOpened | None = None
        self.weight = 0
        """What is kept of it, as last counted (`MOST_IN_ALL`)."""
        self._since_ms = record.append_ms
        self.first_append_ms: int | None = record.append_ms
        self.last_append_ms = record.append_ms
        self.facts = 0
        self.first_divergence: int | None = None
        self.last_offset = -1
        self.version = 0
        """Rises whenever a page would show something else."""
        self.rejections = 0
        """Without those that members in order cause."""
        self.sentences: deque[SaidSentence] = deque(maxlen=MOST_SENTENCES)
        self.changes = ChangeReader(group, MOST_CHANGES)
        self.changes.begin(machine.state)
        self.builder = TimelineBuilder(self, _Expiries())
        base = BaseState(group=group, offset=record.offset, number=0, begins_offset=record.offset, append_ms=record.append_ms, state=b"")
        self.builder.observe(ReplayStep(FactRecord(group, record.offset, record.append_ms, BaseRequested()), [], None, base))

    @property
    def said_since_ms(self) -> int:
        """From when on every sentence is known, by the broker's clock. `Recent.recall` may give
        some from before.
        """
        is_full = len(self.sentences) == self.sentences.maxlen
        return max(self._since_ms, self.sentences[0].append_ms) if is_full else self._since_ms

    def weigh(self) -> int:
        """Counts what is kept. Returns how much more that is than the last time."""
        before = self.weight
        kept = len(self.sentences) + len(self.changes) + self.builder.size + self.builder.points // _POINTS
        self.weight = _OF_A_GROUP + len(self.machine.state.owner) + kept
        return self.weight - before

    def timeline(self, now_ms: int) -> Timeline:
        """The timeline up to `now_ms`, by the broker's clock."""
        self.last_append_ms = max(self.last_append_ms, now_ms)
        return self.builder.timeline()

    def observe(self, record: FactRecord, decisions: list[DecisionRecord], machine: GroupMachine) -> None:
        self.machine = machine
        self.last_append_ms = max(self.last_append_ms, record.append_ms)
        self.facts += 1
        self.version += 1
        self.rejections += unexpected(record, decisions, machine)
        self.changes.take(record, [each.decision for each in decisions])
        if decisions and all(isinstance(each.decision, _UNSEEN) for each in decisions) and record.event.__class__ not in _NOTED:
            return
        self.builder.observe(ReplayStep(record, decisions, None))
        first_ms = self.first_append_ms or 0
        kept_ms = self.last_append_ms - first_ms
        if kept_ms > KEPT_MS * 5 // 4 or self.builder.size > max(MOST_KEPT, 4 * len(machine.state.owner)):
            self.first_append_ms = self.last_append_ms - min(KEPT_MS, kept_ms // 2)
            self.builder.forget_before(self.first_append_ms)


def unexpected(record: FactRecord, decisions: Iterable[DecisionRecord], machine: GroupMachine) -> int:
    """Number of the decisions that reject the fact, which members in order do not cause."""
    rejections = [each.decision for each in decisions if isinstance(each.decision, EventRejected)]
    return sum(not is_expected(each, record.event, machine.state.topologies) for each in rejections)


class Recent:
    """All groups of one worker. `changed`: called with a group, and the new sentences about it."""

    def __init__(self) -> None:
        self._since_ms: dict[int, int] = {}
        """Partition -> since when it is led here, by the broker's clock."""
        self.groups: OrderedDict[str, GroupRecent] = OrderedDict()
        """The groups of which something is kept, the one that changed last at the end."""
        self.changed: Callable[[str, list[SaidSentence]], None] = lambda group, said: None
        self.paces = Paces()
        self._partitions: dict[str, int] = {}
        self._dropped: dict[str, int] = {}
        """Group of which nothing is kept any more -> the last fact that was noted."""
        self._number = 0
        self._weight = 0

    def forget(self, partition: int) -> None:
        """Forgets the groups of a partition that another worker leads from now on."""
        self.paces.forget(partition)
        for group in [group for group, place in self._partitions.items() if place == partition]:
            del self._partitions[group]
            self._dropped.pop(group, None)
            known = self.groups.pop(group, None)
            self._weight -= 0 if known is None else known.weight

    def lead(self, partition: int, now_ms: int) -> int:
        """Facts of a partition are noted from now on, which is `now_ms` by the broker's clock.
        Returns the number of the first of MOST_SENTENCES sentences that `recall` may give.
        """
        self._since_ms[partition] = now_ms
        first, self._number = self._number + 1, self._number + MOST_SENTENCES
        return first

    def recall(
        self, partition: int, first: int, told: Iterable[tuple[FactRecord, Sequence[DecisionRecord], GroupMachine, Sequence[Sentence]]]
    ) -> None:
        """What the log says of the time before `lead`, in its order: sentences and changes, because
        nothing says what members had then. `first`: what `lead` returned. A group of which nothing
        is kept any more stays so.
        """
        said: dict[str, list[SaidSentence]] = {}
        changes: dict[str, ChangeReader] = {}
        number = first - 1
        for record, decisions, machine, sentences in told:
            if record.group in self._dropped:
                continue
            known = self.of(record.group, partition, machine)
            known.rejections += unexpected(record, decisions, machine)
            changes.setdefault(record.group, ChangeReader(record.group, MOST_CHANGES)).take(record, [each.decision for each in decisions])
            for sentence in sentences:
                number = min(number + 1, first + MOST_SENTENCES - 1)
                said.setdefault(record.group, []).append(SaidSentence(number, record.group, record.append_ms, shortened(sentence)))
        for group, earlier in said.items():
            recalled = self.groups.get(group)
            if recalled is not None:
                recalled.sentences = deque([*earlier, *recalled.sentences], maxlen=MOST_SENTENCES)
                recalled.changes.recall(changes[group].changes())
                recalled.version += 1
                self._weight += recalled.weigh()
                self.changed(group, [])
        self._bound()

    def note(self, partition: int, record: FactRecord, decisions: list[DecisionRecord], machine: GroupMachine, sentences: Sequence[Sentence]) -> None:
        """Takes a fact that was folded, with its decisions and what is told of them."""
        event = record.event
        self.paces.note(partition, record, machine.state)
        known = self.groups.get(record.group)
        is_nearer = isinstance(event, LagReported) and known is not None and known.builder.is_restoring(event.member_id)
        if not (decisions or is_nearer or event.__class__ in _NOTED):
            return
        if not record.group or record.offset <= (self._dropped.get(record.group, -1) if known is None else known.last_offset):
            return  # of no group, or folded again by the next takeover session
        if known is None:
            known = self.of(record.group, partition, machine, record)
        known.last_offset = record.offset
        known.observe(record, decisions, machine)
        said = []
        for sentence in sentences:
            self._number += 1
            said.append(SaidSentence(self._number, record.group, record.append_ms, shortened(sentence)))
        known.sentences += said
        self.groups.move_to_end(record.group)
        if decisions or said or not known.version % _WEIGHED_EVERY:
            self._weight += known.weigh()
            self._bound()
        self.changed(record.group, said)

    def of(self, group: str, partition: int, machine: GroupMachine, record: FactRecord | None = None) -> GroupRecent:
        """Returns what is known of a group; from now on, if nothing was noted yet, or is kept any
        more.
        """
        known = self.groups.get(group)
        if known is None:
            known = self._begin(group, partition, machine, record)
            self._keep(known, partition)
            self._bound()
        return known

    def glance(self, group: str, partition: int, machine: GroupMachine) -> GroupRecent | None:
        """The same, for a list of all groups: no other group is forgotten for it. None: nothing is
        kept of this one.
        """
        known = self.groups.get(group)
        if known is None and self._weight + _OF_A_GROUP + len(machine.state.owner) <= MOST_IN_ALL:
            known = self.of(group, partition, machine)
            self.groups.move_to_end(group, last=False)
        return known

    def latest(self, most: int, group: str = "") -> list[SaidSentence]:
        """The last sentences of a group, or of all groups, by number."""
        chosen = self.groups.values() if not group else [self.groups[group]] if group in self.groups else []
        by_last = sorted((known.sentences for known in chosen if known.sentences), key=lambda said: -said[-1].number)
        found = [each for sentences in by_last[:most] for each in islice(reversed(sentences), most)]
        return sorted(found, key=lambda each: each.number)[-most:]

    def led_since_ms(self, partition: int) -> int | None:
        """Since when this partition is led here, by the broker's clock; None: it is not."""
        return self._since_ms.get(partition)

    @property
    def last_number(self) -> int:
        """Number of the last sentence."""
        return self._number

    def _begin(self, group: str, partition: int, machine: GroupMachine, record: FactRecord | None) -> GroupRecent:
        state = machine.state
        since_ms = state.last_append_ms or 0
        if group not in self._dropped:  # nothing was decided since it is led here, or it would be known
            since_ms = self._since_ms.get(partition, since_ms)
        if record is not None:
            return GroupRecent(group, machine, record)
        known = GroupRecent(group, machine, FactRecord(group, state.last_offset, since_ms, BaseRequested()))
        known.last_offset = state.last_offset
        return known

    def _keep(self, known: GroupRecent, partition: int) -> None:
        self.groups[known.group] = known
        self._partitions[known.group] = partition
        self._dropped.pop(known.group, None)
        self._weight += known.weigh()

    def _bound(self) -> None:
        """Forgets what was decided in groups that have not changed for the longest time."""
        while self._weight > MOST_IN_ALL and len(self.groups) > 1:
            group, known = self.groups.popitem(last=False)
            self._weight -= known.weight
            self._dropped[group] = known.last_offset
