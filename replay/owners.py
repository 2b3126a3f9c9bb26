"""Follows who runs each task of a group, and when nobody does, as the group's log shows it. What
`timeline`, `explain`, the console and the worker's metrics say of that is from here.

::

    running   the owner was granted the task, and no record shows that it does not run it
    starting  granted, but the owner waits for a hold, restores state first, or has not read it
    silent    the owner was silent for longer than its lease, until the leader noticed
    nobody    no owner

All but ``running`` are *without a running owner* (`equipoise.replay.numbers`).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence

import attrs

from equipoise.events.facts import (
    AssignmentObserved,
    LagReported,
    MemberJoined,
    MemberLeft,
    MemberUnchanged,
    RoundAsked,
    Subtopology,
    TopologyDeclared,
)
from equipoise.events.records import DecisionRecord, FactRecord
from equipoise.events.tasks import LagSentinel, TaskId
from equipoise.replay.numbers import counted_ms, joined
from equipoise.replay.silence import SilenceFinder, SilentPeriod
from equipoise.statemachine.state import GroupPhase, GroupState

FAR_BEHIND = 10_000
"""Lag in records above which a copy takes a while to restore, whatever lag the group accepts."""


class Condition(enum.Enum):
    """The condition of a task during one interval."""

    RUNNING = "running"
    STARTING = "starting"
    SILENT = "silent"
    NOBODY = "nobody"


@attrs.frozen(kw_only=True)
class Interval:
    """One condition of one task over [`from_ms`, `to_ms`), in wall time of the log. `member_id`
    None: no owner.
    """

    task: TaskId
    member_id: str | None
    condition: Condition
    from_ms: int
    to_ms: int
    offset: int
    """Offset of the fact that began it."""
    generation: int


def joined_stretches(intervals: Iterable[Interval]) -> dict[TaskId, list[tuple[int, int]]]:
    """Returns task -> stretches (from ms, to ms) without a running owner, joined where they touch.
    `intervals`: by task and time. Tasks without a stretch are absent.
    """
    return joined((each.task, each.from_ms, each.to_ms) for each in intervals if each.condition is not Condition.RUNNING)


class Owners:
    """Follows the owners of a group, fact by fact.

    `only`: follow this task; None: all tasks. `silences`: finds silent members; None: by the times
    of their facts, all of which are observed. `intervals`: those that are over; the caller may
    empty it.
    """

    def __init__(self, only: TaskId | None = None, silences: SilenceFinder | None = None) -> None:
        self._only = only
        self.intervals: list[Interval] = []
        self._open: dict[TaskId, Interval] = {}
        """What goes on; `Interval.to_ms` says nothing there."""
        self._topology: TopologyDeclared | None = None
        self._tasks: dict[TaskId, None] = {}
        """The followed tasks of the current topology."""
        self._last_owner: dict[TaskId, str] = {}
        self._silences = SilenceFinder() if silences is None else silences
        self._starting: dict[str, set[TaskId]] = {}
        self._unread: dict[str, dict[TaskId, int]] = {}
        """Member -> task that it was granted and can run at once -> epoch of that assignment, until a
        report shows that it has read it.
        """
        self._not_running: set[TaskId] = set()
        """Tasks whose current interval is without a running owner."""
        self._begun_sum_ms = 0
        """Sum of when those began."""
        self._over_ms = 0
        """Task-milliseconds without a running owner that are over."""

    def begin(self, record: FactRecord, state: GroupState) -> None:
        """Begins with a stored state, as of `record`."""
        self._silences.begin(state, record.append_ms)
        self._note_owners(record, state, {})
        self._unread.clear()

    def see(self, record: FactRecord, decisions: Sequence[DecisionRecord], state: GroupState) -> list[tuple[TaskId, str | None, str]]:
        """Takes a fact that was folded. `state`: after it. Returns the tasks that got an owner, with
        the last one and the new one.
        """
        event = record.event
        silences = self._silences.note(record, decisions, state)
        if silences:
            self._cut({silence.member_id: silence for silence in silences if not silence.ended})
        # In a group that something else leads, owners are known from its rounds only.
        shadowing = state.phase is GroupPhase.SHADOWING
        by_rounds = isinstance(event, AssignmentObserved | RoundAsked)
        changed: list[tuple[TaskId, str | None, str]] = []
        if by_rounds if shadowing else decisions or isinstance(event, MemberLeft | MemberJoined | TopologyDeclared):
            changed = self._note_owners(record, state, {silence.member_id: silence.from_ms for silence in silences if silence.ended})
        if isinstance(event, LagReported) and self._starting.get(event.member_id):
            member = state.members.get(event.member_id)
            if member is not None and member.incarnation == event.incarnation:
                self._note_started(record, state, event.member_id)
        if isinstance(event, LagReported | MemberUnchanged) and event.member_id in self._unread:
            self._note_read(record, state, event.member_id)
        return changed

    def stopped_ms(self, at_ms: int) -> int:
        """Returns the task-milliseconds without a running owner, until `at_ms`."""
        return self._over_ms + len(self._not_running) * at_ms - self._begun_sum_ms

    def open_intervals(self, at_ms: int) -> list[Interval]:
        """Returns what goes on, as if it ended at that time."""
        return [interval for task in sorted(self._open) for interval in self._ended(task, at_ms)]

    def not_running(self, at_ms: int) -> list[Interval]:
        """Returns those of them in which no member runs the task, in rising order."""
        return [interval for task in sorted(self._not_running) for interval in self._ended(task, at_ms)]

    def is_starting(self, member_id: str) -> bool:
        """Returns whether the member was granted tasks that no report shows as running yet."""
        return bool(self._starting.get(member_id))

    def finish(self, at_ms: int) -> None:
        """Ends all open intervals at the end of the log."""
        for task in sorted(self._open):
            self._close(task, at_ms)
        self._open.clear()

    def _cut(self, silences: Mapping[str, SilentPeriod]) -> None:
        """Marks the tasks of these members as silent for the period, and running after it."""
        for task, now in list(self._open.items()) if silences else ():
            silence = silences.get(now.member_id or "")
            if silence is not None:
                self._close(task, silence.to_ms, silence.from_ms)
                self._set(task, attrs.evolve(now, from_ms=max(now.from_ms, silence.to_ms)))

    def _note_owners(self, record: FactRecord, state: GroupState, fell_silent_ms: Mapping[str, int]) -> list[tuple[TaskId, str | None, str]]:
        """`fell_silent_ms`: member -> wall time of its last fact, for members that this step ends."""
        gone: list[TaskId] = []
        changed: list[tuple[TaskId, str | None, str]] = []
        if state.topology is not self._topology:
            self._topology = state.topology
            tasks = state.tasks() if self._only is None else [self._only] if state.has_task(self._only) else []
            self._tasks = dict.fromkeys(tasks)
            gone = sorted(self._open.keys() - self._tasks.keys())
        had_a_round = state.generation > 0 or state.phase in (GroupPhase.LEADING, GroupPhase.SHADOWING)
        for task in self._tasks:
            owner = state.owner.get(task)
            if owner is not None and state.is_away(owner):
                owner = None  # it waits for that member, and nobody runs it (docs/protocol.md#m12)
            now = self._open.get(task)
            if now is None and owner is None and not had_a_round:
                continue
            if now is None or now.member_id != owner or owner in fell_silent_ms:  # the same member may have rejoined as another incarnation
                if owner is not None:
                    changed.append((task, self._last_owner.get(task), owner))
                self._change_owner(record, state, task, owner, fell_silent_ms)
        for task in gone:
            self._close(task, record.append_ms)
            del self._open[task]
        return changed

    def _change_owner(self, record: FactRecord, state: GroupState, task: TaskId, owner: str | None, fell_silent_ms: Mapping[str, int]) -> None:
        before = self._open.get(task)
        if before is not None:
            silent_ms = None if before.member_id is None else fell_silent_ms.get(before.member_id)
            self._close(task, record.append_ms, silent_ms)
        condition = Condition.NOBODY
        if owner is not None:
            condition = _first_condition(state, task, owner)
            if condition is Condition.STARTING:
                self._starting.setdefault(owner, set()).add(task)
            elif state.phase is not GroupPhase.SHADOWING:
                self._unread.setdefault(owner, {})[task] = state.members[owner].issued_epoch
            self._last_owner[task] = owner
        began_ms, generation = record.append_ms, state.generation
        begun = Interval(
            task=task, member_id=owner, condition=condition, from_ms=began_ms, to_ms=began_ms, offset=record.offset, generation=generation
        )
        self._set(task, begun)

    def _note_started(self, record: FactRecord, state: GroupState, member_id: str) -> None:
        """Notes tasks that the member's report shows as running after a restore or a hold."""
        member = state.members[member_id]
        starting = self._starting[member_id]
        for task in sorted(starting):
            now = self._open.get(task)
            if now is None or now.member_id != member_id:
                starting.discard(task)
                continue
            part = part_of(state, task)
            runs = task in member.held and (part is None or not part.stateful or member.lags.get(task) in (LagSentinel.ACTIVE, 0))
            if runs:
                starting.discard(task)
                self._close(task, record.append_ms)
                self._set(task, attrs.evolve(now, condition=Condition.RUNNING, from_ms=record.append_ms, offset=record.offset))

    def _note_read(self, record: FactRecord, state: GroupState, member_id: str) -> None:
        """Notes whether the member has read what it was granted. Where no worker lived, a decision
        is published long after the fact that it follows from, and until then nobody runs the task.
        """
        member, unread = state.members.get(member_id), self._unread[member_id]
        for task, epoch in list(unread.items()):
            now = self._open.get(task)
            if member is None or now is None or now.member_id != member_id:
                del unread[task]
            elif member.applied_epoch >= epoch:
                del unread[task]
                if now.condition is Condition.STARTING and task not in self._starting.get(member_id, ()):
                    self._close(task, record.append_ms)
                    self._set(task, attrs.evolve(now, condition=Condition.RUNNING, from_ms=record.append_ms, offset=record.offset))
            elif now.condition is Condition.RUNNING and counted_ms(record.append_ms - now.from_ms):
                self._set(task, attrs.evolve(now, condition=Condition.STARTING))
        if not unread:
            del self._unread[member_id]

    def _set(self, task: TaskId, begun: Interval) -> None:
        """Begins the next interval of a task, or has the current one been another."""
        self._open[task] = begun
        if begun.condition is not Condition.RUNNING:
            self._not_running.add(task)
            self._begun_sum_ms += begun.from_ms

    def _close(self, task: TaskId, at_ms: int, silent_ms: int | None = None) -> None:
        for interval in self._ended(task, at_ms, silent_ms):
            self.intervals.append(interval)
            if interval.condition is not Condition.RUNNING:
                self._over_ms += interval.to_ms - interval.from_ms
        if task in self._not_running:
            self._not_running.discard(task)
            self._begun_sum_ms -= self._open[task].from_ms

    def _ended(self, task: TaskId, at_ms: int, silent_ms: int | None = None) -> Iterator[Interval]:
        """The open interval as if it ended now. `silent_ms`: time from which the owner was silent;
        None: it was not.
        """
        now = self._open[task]
        ends = [(now.condition, now.from_ms, at_ms)]
        if silent_ms is not None and silent_ms < at_ms:
            silent_ms = max(now.from_ms, silent_ms)
            ends = [(now.condition, now.from_ms, silent_ms), (Condition.SILENT, silent_ms, at_ms)]
        for condition, from_ms, to_ms in ends:
            if from_ms < to_ms:
                yield attrs.evolve(now, condition=condition, from_ms=from_ms, to_ms=to_ms)


def _first_condition(state: GroupState, task: TaskId, owner: str) -> Condition:
    """The first condition of a granted task. A ready, near copy starts at once, and so does a task
    with empty changelogs. Other tasks start when a report shows it.

    Restore times are unknown in a group that something else leads.
    """
    part = part_of(state, task)
    if state.phase is GroupPhase.SHADOWING:
        return Condition.RUNNING
    if task in state.holds:
        return Condition.STARTING
    if part is None or not part.stateful:
        return Condition.RUNNING
    ends = [state.end_offsets.get(topic, {}).get(task.partition) for topic in part.changelog_topics]
    if not any(end is None or end > 0 for end in ends):
        return Condition.RUNNING
    member = state.members[owner]
    near = member.is_caught_up(task, min(FAR_BEHIND, state.acceptable_lag(member)))
    return Condition.RUNNING if near or member.lags.get(task) is LagSentinel.ACTIVE else Condition.STARTING


def part_of(state: GroupState, task: TaskId) -> Subtopology | None:
    """Returns the sub-topology of a task; None: the topology has none like it."""
    topology = state.topology
    return None if topology is None else next((part for part in topology.subtopologies if part.subtopology == task.subtopology), None)
