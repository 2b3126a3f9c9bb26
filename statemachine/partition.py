"""A worker's part for one partition of the facts, without I/O and without a clock: every group of
the partition is folded, led and taken over here.

A host (the deployed worker, or a worker of the simulated cluster) hands in checkpoints, published
decisions, facts in order and acknowledgements. It gets back what to publish, which checkpoints to
store, and for which groups a tick is due.

::

    lead = PartitionLead()
    lead.restore(checkpoint) ...                 # the last of each group (docs/protocol.md#l7)
    lead.take_published(group, number, ...) ...  # from the decisions topic
    for fact in order:
        publish(lead.fold(fact, now_ms))         # only what is not published yet
    for checkpoint in lead.acknowledged(group, number):   # the broker has decisions up to `number`
        store(checkpoint)
        lead.stored(checkpoint)

Decisions that are published already are compared with the recomputed ones (docs/protocol.md#l5). A
group halts alone (docs/protocol.md#l6): its facts are skipped, and the other groups continue.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

import attrs

from equipoise.events import codec
from equipoise.events.decisions import Checkpointed
from equipoise.events.errors import GapError, GroupHalted, RepeatError
from equipoise.events.facts import (
    BaseRequested,
    ChangeMeasured,
    GroupConfigured,
    LogOpened,
    PartitionsObserved,
    ProbingTick,
    SilenceObserved,
)
from equipoise.events.records import DecisionRecord, FactRecord
from equipoise.statemachine.group_lead import GroupLead, StoredCheckpoint
from equipoise.statemachine.machine import GroupMachine, defect_text
from equipoise.statemachine.member_silence import PartitionClock
from equipoise.statemachine.published import PublishedProblem
from equipoise.statemachine.rejections import refused_fact
from equipoise.statemachine.ticks import RESTING_TICKS, TickQueue

V = TypeVar("V")

MachineFactory = Callable[[bytes | None], GroupMachine]
"""Makes a machine from checkpoint bytes; None: at the log's start."""

MOST_COUNTED_AGAIN = 50_000
"""A planned change puts checkpoints off for so many facts at most: they are folded in two seconds."""
_TICKS = (ProbingTick, SilenceObserved, GroupConfigured, ChangeMeasured)

Folded = Callable[[FactRecord, list[DecisionRecord], GroupMachine], None]
"""Called after each folded fact, with its decisions and the machine."""

Ends = Mapping[str, Mapping[int, int]]
"""Topic -> partition -> end offset, or records still to be read."""
Racks = Mapping[str, Mapping[int, tuple[str, ...]]]
"""Topic -> partition -> racks of its replicas."""


def real_machine(checkpoint: bytes | None) -> GroupMachine:
    """The machine that every path steps."""
    return GroupMachine() if checkpoint is None else GroupMachine.restore(checkpoint)


class PartitionLead:
    """All groups of one partition.

    `position`: offset of the next fact. `opened`: the log's first record, when reading begins after
    it. `answers`: its decisions are published, so it may refuse a configuration that asks for what
    this build lacks; a lead that only reads halts the group until a worker has answered.
    `resting_ticks`: how many ticks groups at rest get each second, together (docs/protocol.md#l11).
    """

    def __init__(
        self,
        position: int = 0,
        *,
        opened: FactRecord | None = None,
        answers: bool = True,
        resting_ticks: int = RESTING_TICKS,
        machine_factory: MachineFactory = real_machine,
        folded: Folded = lambda record, decisions, machine: None,
    ) -> None:
        self.position = position
        self.groups: dict[str, GroupLead] = {}
        self.awaiting_lags: set[str] = set()
        """Groups whose first round waits for source lags (docs/protocol.md#d2)."""
        self._clock = PartitionClock()
        self._clock_from = 0
        """Last fact of the newest state that this began with. Those before it move no clock: some
        members were heard behind them.
        """
        self._unplanned: dict[str, GroupLead] = {}
        """Groups whose next tick may have changed since `ticks_due`."""
        self._ticks = TickQueue(self.groups.get, resting_ticks)
        self._looks: list[tuple[int, str]] = []
        """Heap of when to look for silent members, and of which groups; out of date where a group
        says another time.
        """
        self._opened = opened
        self._answers = answers
        self._make_machine = machine_factory
        self._folded = folded

    # Taking over

    def restore(self, checkpoint: StoredCheckpoint) -> None:
        """Begins with a group's state. Raises InputError for bytes that are no checkpoint. Halts a
        group that this build cannot lead.
        """
        try:
            machine = self._make_machine(checkpoint.state)
        except GroupHalted as halted:
            group = self.groups[checkpoint.group] = GroupLead(checkpoint.group, GroupMachine(), self._clock)
            group.halted = halted
        else:
            group = self.groups[checkpoint.group] = GroupLead(checkpoint.group, machine, self._clock)
            group.begin_at_rest()
            self._note_lags(group)
        group.checkpoint_offset = checkpoint.offset
        self._clock_from = max(self._clock_from, checkpoint.offset)
        group.published.acknowledge(checkpoint.number)

    def take_published(self, group_name: str, number: int, published: DecisionRecord | Hashable, refused: int | None = None) -> None:
        """Takes a decision that is in the log, or its identity, and its `refused_fact`. Call it
        before the fact that caused the decision is folded.
        """
        group = self.group(group_name)
        group.published.acknowledge(number)
        if number <= group.machine.state.number or group.halted is not None:
            return
        if refused is not None:
            group.refused.add(refused)
        try:
            group.published.take(number, published)
        except PublishedProblem as found:
            self._halt(group, self.position, found.code, found.problem)

    def group(self, name: str, at_offset: int | None = None) -> GroupLead:
        """The lead of a group. An unknown group begins at the fact `at_offset` (None: the next
        one).
        """
        group = self.groups.get(name)
        if group is None:
            machine = self._make_machine(None)
            if self._opened is not None:
                machine.step(self._opened)
            group = self.groups[name] = GroupLead(name, machine, self._clock)
            group.from_offset = self.position if at_offset is None else at_offset
        return group

    # Folding

    def must_read_published(self, record: FactRecord) -> bool:
        """Returns whether the host must hand in all decisions published so far before it folds this
        next fact, because this build would refuse it, and another worker that leads the partition
        by now may have answered it otherwise.
        """
        return record.event.__class__ is GroupConfigured and self._own_refusal(self.group(record.group), record) is not None

    def _own_refusal(self, group: GroupLead, record: FactRecord) -> GroupHalted | None:
        """Returns why this worker refuses a fact that no published decision refuses; None: it does
        not.
        """
        if not self._answers or group.halted is not None or record.offset <= group.machine.state.last_offset or record.offset in group.refused:
            return None
        return group.machine.lack(record)

    def fold(self, record: FactRecord, now_ms: int) -> list[DecisionRecord]:
        """Folds the next fact and returns the decisions to publish, in order, without those that
        are published already. `now_ms`: the host's monotonic clock.

        Raises GapError and RepeatError when it is not the next fact. A halt raises nothing: see
        `GroupLead.halted`.
        """
        self._take_place(record.offset)
        if record.offset >= self._clock_from:
            self._clock.advance(record.append_ms)
        event = record.event
        if event.__class__ is LogOpened:
            self._opened = record
            for group in self.groups.values():
                if group.halted is None and group.machine.state.last_offset < record.offset:
                    self._folded(record, group.machine.step(record), group.machine)
            return []
        if not record.group:
            return []
        group = self.groups.get(record.group) or self.group(record.group, record.offset)
        machine = group.machine
        if group.halted is not None or record.offset <= machine.state.last_offset:
            return []
        if group.is_stored:
            group.unstored_offset = record.offset
        lack = self._own_refusal(group, record) if event.__class__ is GroupConfigured else None
        if lack is not None or record.offset in group.refused:
            group.refused.discard(record.offset)
            record = attrs.evolve(record, refused=True)
        try:
            decisions = machine.step(record)
        except Exception as error:  # noqa: BLE001 whatever it was, the machine is halted now, and so is the group: the others go on
            self._halt_for(group, record.offset, machine.halted or error)
            return []
        if lack is not None and _is_answered_otherwise(group, decisions):
            self._halt(group, record.offset, lack.code, lack.problem)
            return []
        self._folded(record, decisions, machine)
        group.observer.see(machine.state, record, decisions)
        missing = self._to_publish(group, record, decisions) if decisions else []
        if group.halted is not None:
            return []
        if event.__class__ in _TICKS:
            group.tick_under_way = False
        group.note(record, is_decided=bool(decisions))
        self._note_lags(group)
        group.folded_ms = now_ms
        self._unplanned[group.name] = group
        return missing

    def _note_lags(self, group: GroupLead) -> None:
        if group.machine.awaits_lags:
            self.awaiting_lags.add(group.name)
        else:
            self.awaiting_lags.discard(group.name)

    def _to_publish(self, group: GroupLead, record: FactRecord, decisions: list[DecisionRecord]) -> list[DecisionRecord]:
        """The decisions of a fact that are not published yet. Halts the group if one of them cannot
        be published, or a published one differs. Takes the checkpoint that they announce.
        """
        try:
            missing = group.published.missing(decisions)
            too_large = next((each for each in missing if not codec.fits(each.decision)), None)
        except PublishedProblem as found:
            self._halt(group, record.offset, found.code, found.problem)
            return []
        except Exception as error:  # noqa: BLE001 as above
            self._halt_for(group, record.offset, error)
            return []
        if too_large is not None:
            what = f"decision {too_large.number}, {too_large.decision.__class__.__name__}, has {codec.size_bytes(too_large.decision)} bytes"
            problem = f"{what}; an event has at most {codec.MOST_EVENT_BYTES}: a defect of equipoise, please report it"
            self._halt(group, record.offset, "decision_too_large", problem)
        if group.halted is None and any(isinstance(decision.decision, Checkpointed) for decision in decisions):
            self.take_checkpoint(group.name, is_base=isinstance(record.event, BaseRequested))
        return missing

    def pass_over(self, group_name: str, offset: int, code: str, problem: str) -> None:
        """Skips the next fact, which this build cannot read, and halts its group, because another
        build may read it (docs/protocol.md#l6).
        """
        self._take_place(offset)
        group = self.group(group_name, offset)
        if group.halted is None and offset > group.machine.state.last_offset:
            if group.is_stored:
                group.unstored_offset = offset
            self._halt(group, offset, code, problem)

    def halt_lost(self, group_name: str, offset: int, problem: str) -> None:
        """Halts a group of which the facts from `offset` on are lost, and something was decided on
        them.
        """
        group = self.group(group_name)
        if group.halted is None:
            self._halt(group, offset, "facts_lost", problem)

    def _take_place(self, offset: int) -> None:
        if offset < self.position:
            raise RepeatError(offset, f"was folded before; the next fact is {self.position}")
        if offset > self.position:
            raise GapError(self.position, f"is missing; the next record has offset {offset}")
        self.position += 1

    def _halt_for(self, group: GroupLead, offset: int, error: Exception) -> None:
        """Halts one group for its defect; the others continue."""
        cause: BaseException | None = error
        code, problem = "defect", defect_text(error)
        if isinstance(error, GroupHalted):
            offset, code, problem, cause = error.offset, error.code, error.problem, error.__cause__
        halted = self._halt(group, offset, code, problem)
        if code == "defect":
            halted.__cause__ = cause  # for the traceback in the worker's log

    def _halt(self, group: GroupLead, offset: int, code: str, problem: str) -> GroupHalted:
        halted = group.halted = group.machine.halted = GroupHalted(group.name, offset, code, problem)
        group.folded_ms = 0  # it has no tick any more
        group.waiting.clear()
        return halted

    # Checkpoints

    def take_checkpoint(self, group_name: str, *, is_base: bool = False) -> None:
        """Takes a checkpoint of the group, to be stored once its decisions are acknowledged
        (docs/protocol.md#l7). `is_base`: of `StoredCheckpoint`. Halts a group whose state cannot be
        written. Takes none, for a while, of a group of which a change is counted: the next leader
        counts it again from its plan on.
        """
        group = self.groups[group_name]
        state = group.machine.state
        since = group.observer.counts_since(state)
        if not is_base and since is not None and state.last_offset - since < MOST_COUNTED_AGAIN:
            return
        try:
            snapshot = group.machine.snapshot()
        except Exception as error:  # noqa: BLE001 as in `fold`
            self._halt_for(group, state.last_offset, error)
            return
        taken = StoredCheckpoint(group=group_name, offset=state.last_offset, number=state.number, state=snapshot, is_base=is_base)
        group.waiting.append(taken)

    def acknowledged(self, group_name: str, number: int) -> list[StoredCheckpoint]:
        """Every decision of the group up to `number` is in the log. Returns the checkpoints that
        may be stored now; call `stored` for each afterwards.
        """
        group = self.groups[group_name]
        group.published.acknowledge(number)
        ripe = [checkpoint for checkpoint in group.waiting if checkpoint.number <= group.last_published]
        del group.waiting[: len(ripe)]
        return ripe

    def stored(self, checkpoint: StoredCheckpoint) -> None:
        """The checkpoint is stored, so a worker that takes over finds it."""
        group = self.groups[checkpoint.group]
        group.checkpoint_offset = max(group.checkpoint_offset, checkpoint.offset)

    @property
    def recovery_offset(self) -> int:
        """The first fact that a worker needs to take the partition over from the stored
        checkpoints. A group of which nothing came since its own needs none that is there.
        """
        needed = (group.recovery_offset for group in self.groups.values() if group.halted is not None or not group.is_stored)
        return min(needed, default=self.position)

    # Ticks and end offsets

    def plan_ticks(self, now_ms: int) -> None:
        """Plans the tick of every group from now on, after a takeover that folded old facts."""
        for group in self.groups.values():
            group.folded_ms = now_ms
        self._unplanned.update(self.groups)

    def ticks_due(self, now_ms: int) -> list[str]:
        """Groups that need a tick now, each once until its tick was folded (`equipoise.statemachine
        .ticks`). What a tick says: `tick`. Costs time for groups of which facts came since the last
        call, not for those at rest.
        """
        for group in self._unplanned.values():
            self._watch(group)
            self._ticks.plan(group)
        self._unplanned.clear()
        return sorted([*self._too_silent(), *self._ticks.due(now_ms)])

    def tick(self, group_name: str) -> ProbingTick | SilenceObserved | GroupConfigured | ChangeMeasured:
        """The tick of a group that needs one (`GroupLead.tick`)."""
        return self.groups[group_name].tick()

    def _too_silent(self) -> list[str]:
        """Groups that do not know how long their members have been silent."""
        due = []
        while self._looks and self._looks[0][0] <= self._clock.now_ms:
            at_ms, name = heapq.heappop(self._looks)
            group = self.groups.get(name)
            if group is None or group.look_at_ms != at_ms:
                continue
            group.look_at_ms = None
            if not group.tick_under_way and isinstance(group.tick(), SilenceObserved):
                group.tick_under_way = True
                due.append(name)
            else:
                self._watch(group)
        return due

    def _watch(self, group: GroupLead) -> None:
        """Plans the next look at a group, unless one is planned."""
        if group.look_at_ms is None:
            look_at_ms = group.plan_look()
            if look_at_ms is not None:
                heapq.heappush(self._looks, (look_at_ms, group.name))

    def observe(self, group_name: str, ends: Ends, racks: Racks | None = None, source_lags: Ends | None = None) -> PartitionsObserved | None:
        """Returns what changed since the last call, as a fact; None: nothing (docs/protocol.md#d6).
        Of source lags: what the group does not know.
        """
        group = self.groups[group_name]
        changed_ends = _changed(group.observed_ends, ends)
        changed_racks = _changed(group.observed_racks, racks or {})
        known_lags = {topic: dict(lags) for topic, lags in group.machine.state.source_lags.items()}  # a group forgets them when it begins
        changed_lags = _changed(known_lags, source_lags or {})
        if not changed_ends and not changed_racks and not changed_lags:
            return None
        return PartitionsObserved(end_offsets=changed_ends, racks=changed_racks, source_lags=changed_lags)


def _is_answered_otherwise(group: GroupLead, decisions: list[DecisionRecord]) -> bool:
    """Returns whether published decisions show that another worker accepted what these decisions
    refuse.
    """
    refusals = [each.number for each in decisions if refused_fact(each.decision, each.caused_by) is not None]
    return bool(refusals) and group.published.last_waiting >= refusals[0]


def _changed(known: dict[str, dict[int, V]], now: Mapping[str, Mapping[int, V]]) -> dict[str, dict[int, V]]:
    """The values of `now` that `known` lacks or has otherwise; adds them to `known`."""
    changed: dict[str, dict[int, V]] = {}
    for topic, of_topic in now.items():
        for partition, value in of_topic.items():
            if known.setdefault(topic, {}).get(partition) != value:
                known[topic][partition] = value
                changed.setdefault(topic, {})[partition] = value
    return changed
