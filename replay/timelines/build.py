"""Builds the history of a group, as intervals, moves, rounds and curves, in one pass over its log.

Memory grows with the number of changes, not of records: lag curves are thinned to MOST_POINTS each.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Protocol

import attrs

from equipoise.assignors import registry
from equipoise.assignors.common.shares import outside_shares, shares_of, slack_of
from equipoise.events.decisions import AssignmentIssued, BalanceEvaluated, EventRejected, MemberExpired, RoundPlanned
from equipoise.events.facts import (
    AssignmentObserved,
    GroupRejoined,
    LagReported,
    LogOpened,
    MemberEnded,
    MemberJoined,
    MemberLeft,
    MemberUnchanged,
    RoundAsked,
    TopologyDeclared,
)
from equipoise.events.records import Entry
from equipoise.events.tasks import TaskId
from equipoise.replay.drawing.colours import colour_numbers
from equipoise.replay.history import History, MoveStory
from equipoise.replay.inputs_reader import marked_windows
from equipoise.replay.owners import Interval
from equipoise.replay.replayer import Replayer, ReplayStep
from equipoise.replay.silence import SilenceFinder
from equipoise.replay.timelines.values import CopyInterval, Lifeline, Round, Timeline, changes_owner
from equipoise.statemachine.machine import AssignorLoader, GroupMachine
from equipoise.statemachine.state import GroupState

MOST_POINTS = 512
"""Most points of one lag curve: more than a picture has pixels for it."""

RATE_POINTS = 20
"""Points of a lag curve by which the speed of a restore is told."""


def build_timeline(
    entries: Iterable[Entry], *, group: str | None = None, until_offset: int | None = None, load: AssignorLoader = registry.load
) -> Timeline:
    """Returns the history up to the fact at `until_offset` (None: all). Raises as `Replayer.follow`
    does.
    """
    replayer = Replayer(group, load=load)
    builder = TimelineBuilder(replayer)
    for step in replayer.follow(entries, until_offset=until_offset):
        builder.observe(step)
    return builder.timeline()


@attrs.define
class _OpenLife:
    capacity: int
    rack: str | None
    joined_ms: int
    heard_ms: int


@attrs.define
class _OpenCopy:
    kind: str
    from_ms: int
    ready_ms: int | None


class TimelineSource(Protocol):
    """Where the steps come from: a `Replayer`, or the machine of a live group."""

    machine: GroupMachine
    opened: LogOpened | None
    first_append_ms: int | None
    last_append_ms: int
    facts: int
    first_divergence: int | None


_UNNUMBERED = -1
"""Number of a member whose colour nobody has asked for yet."""


class TimelineBuilder:
    """Builds a timeline step by step. `timeline` may be called at any time, and again later.

    A live group need not hand in every fact: those with decisions, those that `observe` names, and
    the reports of members that restore are enough; then `silences` finds silent members by other
    means than their facts.
    """

    def __init__(self, source: TimelineSource, silences: SilenceFinder | None = None) -> None:
        self._replayer = source
        self._history = History(silences=silences)
        self._observes_all = silences is None
        self._numbers: dict[str, int] = {}
        self._tasks: dict[TaskId, bool] = {}
        self._lives: dict[tuple[str, int], _OpenLife] = {}
        """(member, incarnation) -> a life without an end so far."""
        self._lifelines: list[Lifeline] = []
        self._open_copies: dict[tuple[TaskId, str], _OpenCopy] = {}
        self._kept: dict[str, dict[TaskId, str]] = {}
        """Member -> task -> kind of the open copies."""
        self._copies: list[CopyInterval] = []
        self._rounds: list[Round] = []
        self._lags: dict[tuple[TaskId, str], list[tuple[int, int]]] = {}
        self._imbalance: list[tuple[int, int]] = []
        self._verdicts: list[tuple[int, str]] = []
        self._rejections = 0
        self._topology: TopologyDeclared | None = None

    @property
    def _state(self) -> GroupState:
        return self._replayer.machine.state

    def _begin(self, at_ms: int) -> None:
        """Begins with the members and copies of the state at which the log begins."""
        for member in sorted(self._state.members.values(), key=lambda member: as_people_sort(member.member_id)):
            life = _OpenLife(member.capacity, member.rack, at_ms, at_ms)
            self._lives[member.member_id, member.incarnation] = life
        self._note_change(at_ms)

    def observe(self, step: ReplayStep) -> None:
        state, record = self._state, step.record
        event, at_ms = record.event, record.append_ms
        moves_before = len(self._history.moves)
        self._history.observe(step, state)
        if step.base is not None:
            self._begin(at_ms)
            return
        changed = False
        for decided in step.decisions:
            decision = decided.decision
            if isinstance(decision, AssignmentIssued | RoundPlanned):
                changed = True
                self._note_round(at_ms, record.offset, decision)
            elif isinstance(decision, MemberExpired):
                changed = True
                silent_ms = None if self._observes_all else at_ms - decision.silent_ms
                self._end(decision.member_id, decision.incarnation, at_ms, decision.cause, silent_ms)
            elif isinstance(decision, BalanceEvaluated):
                self._verdicts.append((at_ms, decision.verdict))
            elif isinstance(decision, EventRejected):
                self._rejections += 1
        if isinstance(event, AssignmentObserved):
            changed = True
            moved = self._history.moves[moves_before:]
            self._rounds.append(
                Round(
                    append_ms=at_ms,
                    offset=record.offset,
                    generation=event.generation,
                    cause=event.cause,
                    moves=sum(map(changes_owner, moved)),
                    members=len(event.members),
                )
            )
            for ended in event.ended:
                self._end(ended.member_id, ended.incarnation, at_ms, ended.how, min(at_ms, ended.ended_ms))
        elif isinstance(event, RoundAsked):
            for member_id, incarnation in sorted(self._lives):
                member = state.members.get(member_id)
                if member is None or member.incarnation != incarnation:
                    self._end(member_id, incarnation, at_ms, "left")
        elif isinstance(event, MemberLeft):
            changed = True
            if event.member_id not in state.members:
                self._end(event.member_id, event.incarnation, at_ms, "left")
            elif state.is_away(event.member_id):
                self._end(event.member_id, event.incarnation, at_ms, "restarting")
        elif isinstance(event, MemberEnded):
            changed = True
            if event.member_id not in state.members:  # another leader's, which says nothing of it
                self._end(event.member_id, event.incarnation, at_ms, "proven_dead")
            elif state.is_away(event.member_id):
                self._end(event.member_id, event.incarnation, at_ms, "restarting")
        elif isinstance(event, MemberJoined):
            self._note_join(event, at_ms)
        elif isinstance(event, GroupRejoined):
            changed = True
            self._note_generation(event, at_ms)
        elif isinstance(event, LagReported | MemberUnchanged):
            self._note_report(event, at_ms)
        if changed:
            self._note_change(at_ms)

    def _note_round(self, at_ms: int, offset: int, issued: AssignmentIssued | RoundPlanned) -> None:
        if issued.part == 1:
            self._rounds.append(
                Round(
                    append_ms=at_ms,
                    offset=offset,
                    generation=issued.generation,
                    cause="asked" if isinstance(issued, RoundPlanned) else issued.cause,
                    moves=len(issued.moves),
                    members=len(issued.members),
                )
            )
        else:
            self._rounds[-1] = attrs.evolve(self._rounds[-1], moves=self._rounds[-1].moves + len(issued.moves))

    def _note_join(self, event: MemberJoined, at_ms: int) -> None:
        member = self._state.members.get(event.member_id)
        if member is not None and member.incarnation == event.incarnation:  # else it was rejected
            self._lives.setdefault((event.member_id, event.incarnation), _OpenLife(event.capacity, event.rack, at_ms, at_ms))
            if event.member_id not in self._numbers:
                self._number(event.member_id)

    def _note_generation(self, event: GroupRejoined, at_ms: int) -> None:
        """Who is not in the generation is away or has left."""
        here = {(each.member_id, each.incarnation): each for each in event.members}
        for member_id, incarnation in sorted(self._lives.keys() - here.keys()):
            self._end(member_id, incarnation, at_ms, "restarting" if self._state.is_away(member_id) else "left")
        for key, each in here.items():
            life = self._lives.setdefault(key, _OpenLife(each.capacity, each.rack, at_ms, at_ms))
            life.heard_ms = at_ms

    def _end(self, member_id: str, incarnation: int, at_ms: int, how: str, silent_ms: int | None = None) -> None:
        """`silent_ms` None: the time of its last report, unless it ended in order."""
        life = self._lives.pop((member_id, incarnation), None)
        if life is not None:
            silent_ms = life.heard_ms if silent_ms is None and how not in ("left", "restarting") else silent_ms
            self._lifelines.append(_lifeline((member_id, incarnation), life, at_ms, how, silent_ms))

    def _note_report(self, event: LagReported | MemberUnchanged, at_ms: int) -> None:
        state = self._state
        member = state.members.get(event.member_id)
        if member is None or member.incarnation != event.incarnation:
            return
        life = self._lives.get((event.member_id, event.incarnation))
        if life is not None:
            life.heard_ms = at_ms
        for task, lag in event.lags.items() if isinstance(event, LagReported) else ():
            if isinstance(lag, int) and (task, event.member_id) in self._open_copies:
                _add_point(self._lags.setdefault((task, event.member_id), []), at_ms, lag)
        for task, warmup in member.warmup.items():
            copy = self._open_copies.get((task, event.member_id))
            if copy is not None and copy.ready_ms is None and warmup.caught_up:
                copy.ready_ms = at_ms

    def _note_change(self, at_ms: int) -> None:
        """Called after a round, when copies, tasks and the balance may have changed."""
        state = self._state
        for member_id in sorted(state.members.keys() - self._numbers.keys(), key=as_people_sort):
            self._number(member_id)
        for member_id in self._kept.keys() | state.members.keys():
            self._note_copies(member_id, at_ms)
        if state.topology is not self._topology:
            self._topology = state.topology
            self._tasks.update({task: part.stateful for task, part in state.tasks().items()})
        if state.members:
            imbalance = _imbalance(state)
            if not self._imbalance or self._imbalance[-1][1] != imbalance:
                self._imbalance.append((at_ms, imbalance))

    def _note_copies(self, member_id: str, at_ms: int) -> None:
        """Closes the copies that the member is no longer assigned, and opens new ones."""
        member = self._state.members.get(member_id)
        now = {} if member is None else {**dict.fromkeys(member.standby, "standby"), **dict.fromkeys(member.warmup, "warmup")}
        before = self._kept.get(member_id, {})
        if now == before:
            return
        for task, kind in before.items():
            if now.get(task) != kind:
                self._close_copy((task, member_id), at_ms)
        for task, kind in now.items():
            if before.get(task) != kind:
                caught_up = member is not None and task in member.warmup and member.warmup[task].caught_up
                self._open_copies[task, member_id] = _OpenCopy(kind, at_ms, at_ms if caught_up else None)
                self._begin_curve((task, member_id), at_ms)
        self._kept[member_id] = now

    def _begin_curve(self, key: tuple[TaskId, str], at_ms: int) -> None:
        """A new copy begins at the lag that its member reported, or at the whole changelog."""
        state, (task, member_id) = self._state, key
        lag = state.members[member_id].lags.get(task)
        if lag is None:
            lag = state.records(task)
        if isinstance(lag, int):
            _add_point(self._lags.setdefault(key, []), at_ms, lag)

    def _close_copy(self, key: tuple[TaskId, str], at_ms: int) -> None:
        self._copies.append(_copy(key, self._open_copies.pop(key), at_ms))

    def _number(self, member_id: str) -> None:
        """A number that no member has, so that a forgotten member's colour is used again. It
        follows from the names alone, whoever joined first.
        """
        self._numbers[member_id] = _UNNUMBERED

    def _numbered(self) -> dict[str, int]:
        if _UNNUMBERED in self._numbers.values():
            self._numbers = colour_numbers(sorted(self._numbers, key=as_people_sort))
        return self._numbers

    @property
    def size(self) -> int:
        """Closed intervals, copies, movements and rounds that are kept."""
        return len(self._history.intervals) + len(self._copies) + len(self._history.moves) + len(self._rounds)

    @property
    def points(self) -> int:
        """Points of lag curves that are kept. Costs time in the number of copies."""
        return sum(map(len, self._lags.values()))

    def is_restoring(self, member_id: str) -> bool:
        """Returns whether the member's reports change the timeline: it restores a copy, or it
        restores or waits before it runs a task.
        """
        return self._history.is_starting(member_id) or "warmup" in self._kept.get(member_id, {}).values()

    def number_of(self, member_id: str) -> int:
        """The number by which the member has its colour."""
        if member_id not in self._numbers:
            self._number(member_id)
        return self._numbered()[member_id]

    def not_running(self) -> dict[TaskId, Interval]:
        """Tasks that no member runs now, with the interval so far."""
        return {each.task: each for each in self._history.not_running(self._replayer.last_append_ms + 1)}

    def moves_of(self, task: TaskId) -> list[MoveStory]:
        """The movements of one task, oldest first, with the one under way."""
        return [move for move in self._history.moves if move.task == task]

    def under_way(self, task: TaskId) -> MoveStory | None:
        """The movement of a task that has begun and not ended; None: none."""
        return self._history.under_way.get(task)

    def first_lag(self, task: TaskId, member_id: str) -> int | None:
        """Lag in records with which the member's copy began; None: there is none, or it is not
        known.
        """
        since = self._open_copies.get((task, member_id))
        points = self._lags.get((task, member_id), ())
        return None if since is None else max((lag for at_ms, lag in points if at_ms >= since.from_ms), default=None)

    def restored_records_per_s(self, task: TaskId, member_id: str) -> int | None:
        """Speed at which the member's copy came nearer, by its last reports; None: not known."""
        points = self._lags.get((task, member_id), ())[-RATE_POINTS:]
        if len(points) < 2 or points[-1][0] <= points[0][0] or points[0][1] <= points[-1][1]:
            return None
        return (points[0][1] - points[-1][1]) * 1_000 // (points[-1][0] - points[0][0])

    def forget_before(self, append_ms: int) -> None:
        """Drops what had ended by that time."""
        self._history.forget_before(append_ms)
        self._copies = [copy for copy in self._copies if copy.to_ms > append_ms]
        self._lifelines = [life for life in self._lifelines if (life.ended_ms or 0) > append_ms]
        self._rounds = [each for each in self._rounds if each.append_ms > append_ms]
        kept = {(copy.task, copy.member_id) for copy in self._copies} | self._open_copies.keys()
        self._lags = {key: points for key, points in self._lags.items() if key in kept}
        self._verdicts = [each for each in self._verdicts if each[0] > append_ms]
        last = [each for each in self._imbalance if each[0] <= append_ms][-1:]
        self._imbalance = [*((append_ms, level) for _, level in last), *(each for each in self._imbalance if each[0] > append_ms)]
        owners = {each.member_id for each in self._history.intervals} | {life.member_id for life in self._lifelines}
        alive = owners | {member_id for member_id, _ in self._lives} | self._state.members.keys()
        self._numbers = {member_id: number for member_id, number in self._numbers.items() if member_id in alive}

    def timeline(self) -> Timeline:
        """The timeline so far, with what goes on cut at the last record."""
        replayer, state = self._replayer, self._state
        end_ms = replayer.last_append_ms
        living = [_lifeline(who, life, None, "", None) for who, life in self._lives.items()]
        copies = [*self._copies, *(_copy(key, copy, end_ms) for key, copy in self._open_copies.items())]
        intervals = [*self._history.intervals, *self._history.open_intervals(end_ms)]
        tasks = {**self._tasks, **{task: part.stateful for task, part in state.tasks().items()}}
        config = state.config
        return Timeline(
            group=state.group,
            log_id=state.log_id,
            led_by="" if config is None else config.led_by,
            assignor="" if config is None else f"{config.assignor} {config.behaviour_version}",
            from_ms=replayer.first_append_ms or 0,
            to_ms=end_ms,
            facts=replayer.facts,
            tasks=dict(sorted(tasks.items())),
            lifelines=tuple(sorted([*self._lifelines, *living], key=lambda life: (life.member_id, life.joined_ms, life.incarnation))),
            numbers=dict(self._numbered()),
            intervals=tuple(sorted(intervals, key=lambda interval: (interval.task, interval.from_ms))),
            copies=tuple(sorted(copies, key=lambda copy: (copy.task, copy.from_ms, copy.member_id))),
            moves=tuple(sorted(self._history.moves, key=lambda move: (move.began_ms, move.task))),
            rounds=tuple(self._rounds),
            lags={key: tuple(points) for key, points in sorted(self._lags.items())},
            imbalance=tuple(self._imbalance),
            verdicts=tuple(self._verdicts),
            rejections=self._rejections,
            windows=marked_windows("" if replayer.opened is None else replayer.opened.manifest),
            first_divergence=replayer.first_divergence,
        )


def _imbalance(state: GroupState) -> int:
    """Returns the tasks outside their members' shares, as assignors count them: over all tasks, and
    over those with state where there are both kinds.
    """
    topology = state.topology
    sizes = {} if topology is None else {part.subtopology: part for part in topology.subtopologies}
    every: Counter[str] = Counter()
    stateful: Counter[str] = Counter()
    for member in state.members.values():
        for task in (*member.active, *member.revoking):
            part = sizes.get(task.subtopology)
            if part is not None and task.partition < part.partitions:
                every[member.member_id] += 1
                stateful[member.member_id] += part.stateful
    staying = [member_id for member_id, member in state.members.items() if not member.leaving]
    looping = {member_id for member_id in staying if state.is_crash_looping(member_id)}
    if len(looping) == len(staying):
        looping.clear()  # there is nobody else
    members = [(member.member_id, member.capacity, member.leaving or member.member_id in looping) for member in state.members.values()]
    tasks = sum(part.partitions for part in sizes.values())
    with_state = sum(part.partitions for part in sizes.values() if part.stateful)
    factor = state.settings.balance_factor
    kinds = [(tasks, every), (with_state, stateful)] if 0 < with_state < tasks else [(tasks, every)]
    return sum(outside_shares(shares_of(members, count, slack_of(members, count, factor, having)), having) for count, having in kinds)


def _copy(key: tuple[TaskId, str], copy: _OpenCopy, to_ms: int) -> CopyInterval:
    return CopyInterval(task=key[0], member_id=key[1], kind=copy.kind, from_ms=copy.from_ms, to_ms=to_ms, ready_ms=copy.ready_ms)


def as_people_sort(name: str) -> tuple[list[tuple[int, int, str]], str]:
    """Sort key that puts m2 before m10."""
    return [(0, int(part), "") if part.isascii() and part.isdecimal() else (1, 0, part) for part in re.split(r"([0-9]+)", name)], name


def _lifeline(who: tuple[str, int], life: _OpenLife, ended_ms: int | None, how: str, silent_ms: int | None) -> Lifeline:
    return Lifeline(
        member_id=who[0],
        incarnation=who[1],
        capacity=life.capacity,
        rack=life.rack,
        joined_ms=life.joined_ms,
        ended_ms=ended_ms,
        silent_ms=silent_ms,
        how=how,
    )


def _add_point(points: list[tuple[int, int]], at_ms: int, lag: int) -> None:
    """Adds a point. At twice MOST_POINTS every second point is dropped, except the last."""
    points.append((at_ms, lag))
    if len(points) >= 2 * MOST_POINTS:
        del points[-2::-2]
