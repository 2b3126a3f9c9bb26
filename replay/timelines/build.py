"""Builds the history of a group, as intervals, moves, rounds and curves, in one pass over its log.

Memory grows with the number of changes, not of records: lag curves are thinned to MOST_POINTS each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from equipoise.assignors import registry
from equipoise.assignors.common.shares import outside_shares, shares_of, slack_of
from equipoise.events.decisions import AssignmentIssued, BalanceEvaluated, EventRejected, MemberExpired, RoundPlanned
from equipoise.events.facts import (
    AssignmentObserved,
    GroupRejoined,
    LagReported,
    MemberEnded,
    MemberJoined,
    MemberLeft,
    MemberUnchanged,
    RoundAsked,
    TopologyDeclared,
)
from equipoise.events.records import Entry
from equipoise.events.tasks import TaskId
from equipoise.replay.history import Condition, History, Interval, MoveStory
from equipoise.replay.recorded_inputs import Window, marked_windows
from equipoise.replay.replayer import Replayer, ReplayStep
from equipoise.statemachine.machine import AssignorLoader
from equipoise.statemachine.state import GroupState

MOST_POINTS = 512
"""Most points of one lag curve: more than a picture has pixels for it."""


@attrs.frozen(kw_only=True)
class Lifeline:
    """One incarnation of a member. `ended_ms` None: it lives at the end. `silent_ms`: when it was
    last heard, if it ended without MemberLeft; else None.
    """

    member_id: str
    incarnation: int
    capacity: int
    rack: str | None
    joined_ms: int
    ended_ms: int | None
    silent_ms: int | None
    how: str
    """left, or the cause of MemberExpired, or the end that a recorded group observed; "" while it
    lives.
    """


@attrs.frozen(kw_only=True)
class CopyInterval:
    """A copy of a task that a member was assigned. `kind`: warmup or standby. `ready_ms`: when a
    warm-up was caught up; None: not.
    """

    task: TaskId
    member_id: str
    kind: str
    from_ms: int
    to_ms: int
    ready_ms: int | None


@attrs.frozen(kw_only=True)
class Round:
    """One generation."""

    append_ms: int
    offset: int
    generation: int
    cause: str
    moves: int
    """Movements it began, advanced, ended or cancelled; in a recorded group: tasks that got another
    owner.
    """
    members: int


@attrs.frozen(kw_only=True)
class Totals:
    """Costs of a stretch of time."""

    label: str
    from_ms: int
    to_ms: int
    moves: int
    """Changes of owner, intermediate ones included; a task may count several times. First
    placements do not count.
    """
    rounds: int
    stopped_ms: int
    """Task-milliseconds without a running owner, summed over tasks."""
    tasks_stopped: int
    longest_ms: int
    """Longest time that one task was without a running owner."""

    def document(self) -> dict[str, Any]:
        return attrs.asdict(self)


@attrs.frozen(kw_only=True)
class Timeline:
    """The history of one group. Times are wall time of the log, in ms."""

    group: str
    log_id: str
    led_by: str
    assignor: str
    from_ms: int
    to_ms: int
    facts: int
    tasks: Mapping[TaskId, bool]
    """Every task -> stateful."""
    lifelines: tuple[Lifeline, ...]
    intervals: tuple[Interval, ...]
    copies: tuple[CopyInterval, ...]
    moves: tuple[MoveStory, ...]
    rounds: tuple[Round, ...]
    lags: Mapping[tuple[TaskId, str], tuple[tuple[int, int], ...]]
    """(task, member) -> (append_ms, lag in records), of copies that the member was assigned."""
    imbalance: tuple[tuple[int, int], ...]
    """(append_ms, tasks outside their members' shares)."""
    verdicts: tuple[tuple[int, str], ...]
    rejections: int
    windows: tuple[Window, ...]
    first_divergence: int | None

    @property
    def caption(self) -> str:
        """Returns the definition of "without a running owner" for this log, which differs from that
        of a measurement in the cluster itself.
        """
        if self.led_by == "external":
            return "not running: in the log, which shows no restores; what was measured at the records themselves is longer"
        return (
            "not running: in the log, from a dead owner's last report to the first that shows the next one running; "
            "the silence itself, as simulate measures it, is shorter"
        )

    def totals(self, label: str = "all", from_ms: int | None = None, to_ms: int | None = None) -> Totals:
        """Returns the costs of [from_ms, to_ms). None: the log's own ends, the last moment
        included.
        """
        start_ms = self.from_ms if from_ms is None else from_ms
        end_ms = self.to_ms + 1 if to_ms is None else to_ms
        stretches = self.stopped(start_ms, end_ms)
        moved = [move for move in self.moves if changes_owner(move) and start_ms <= (move.ended_ms or 0) < end_ms]
        return Totals(
            label=label,
            from_ms=start_ms,
            to_ms=min(end_ms, self.to_ms),
            moves=len(moved),
            rounds=sum(start_ms <= each.append_ms < end_ms for each in self.rounds),
            stopped_ms=sum(to - since for of_task in stretches.values() for since, to in of_task),
            tasks_stopped=len(stretches),
            longest_ms=max((to - since for of_task in stretches.values() for since, to in of_task), default=0),
        )

    def stopped(self, from_ms: int, to_ms: int) -> dict[TaskId, list[tuple[int, int]]]:
        """Returns task -> stretches (from ms, to ms) without a running owner, joined where they
        touch. A stretch is in full in the result if its middle is in [from_ms, to_ms).

        A member counts as silent from its last fact on, which is up to a heartbeat before a kill.
        Tasks without a stretch are absent.
        """
        found: dict[TaskId, list[tuple[int, int]]] = {}
        for interval in self.intervals:  # by task and time
            if interval.condition is Condition.RUNNING:
                continue
            stretches = found.setdefault(interval.task, [])
            if stretches and stretches[-1][1] == interval.from_ms:
                stretches[-1] = (stretches[-1][0], interval.to_ms)
            else:
                stretches.append((interval.from_ms, interval.to_ms))
        inside = {task: [(since, to) for since, to in stretches if from_ms <= (since + to) // 2 < to_ms] for task, stretches in found.items()}
        return {task: stretches for task, stretches in inside.items() if stretches}

    def window_totals(self) -> list[Totals]:
        """Returns the costs of each marked window, or of the whole log when none is marked."""
        marked = [self.totals(window.label, window.start_ms, window.end_ms) for window in self.windows]
        return marked or [self.totals()]


def changes_owner(move: MoveStory) -> bool:
    """Returns whether the movement gave the task to another member than its last owner. A first
    placement does not.
    """
    return move.outcome == "granted" and move.source is not None and move.source != move.destination


def build_timeline(
    entries: Iterable[Entry], *, group: str | None = None, until_offset: int | None = None, load: AssignorLoader = registry.load
) -> Timeline:
    """Returns the history up to the fact at `until_offset` (None: all). Raises as `Replayer.follow`
    does.
    """
    replayer = Replayer(group, load=load)
    builder = _Builder(replayer)
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


class _Builder:
    def __init__(self, replayer: Replayer) -> None:
        self._replayer = replayer
        self._history = History()
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
        for member in self._state.members.values():
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
                self._end(decision.member_id, decision.incarnation, at_ms, decision.cause)
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
        copy = self._open_copies.pop(key)
        self._copies.append(CopyInterval(task=key[0], member_id=key[1], kind=copy.kind, from_ms=copy.from_ms, to_ms=at_ms, ready_ms=copy.ready_ms))

    def timeline(self) -> Timeline:
        replayer, state = self._replayer, self._state
        end_ms = replayer.last_append_ms
        for who in sorted(self._lives):
            self._lifelines.append(_lifeline(who, self._lives[who], None, "", None))
        for key in sorted(self._open_copies):
            self._close_copy(key, end_ms)
        self._history.finish(end_ms)
        self._tasks.update({task: part.stateful for task, part in state.tasks().items()})
        config = state.config
        return Timeline(
            group=state.group,
            log_id=state.log_id,
            led_by="" if config is None else config.led_by,
            assignor="" if config is None else f"{config.assignor} {config.behaviour_version}",
            from_ms=replayer.first_append_ms or 0,
            to_ms=end_ms,
            facts=replayer.facts,
            tasks=dict(sorted(self._tasks.items())),
            lifelines=tuple(sorted(self._lifelines, key=lambda life: (life.member_id, life.joined_ms, life.incarnation))),
            intervals=tuple(sorted(self._history.intervals, key=lambda interval: (interval.task, interval.from_ms))),
            copies=tuple(sorted(self._copies, key=lambda copy: (copy.task, copy.from_ms, copy.member_id))),
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
