"""Rebalances of a group, from its facts and decisions: when one began and ended, and what it
consisted of. `equipoise.worker.tracing` sends them as traces.

A rebalance lasts while a task has no owner, restores, moves, or waits for a warm-up slot, and has a
*step* for each of these with the time that it took. Times are append times of the log, so a step is
as long as the log knows: a member reports each 3 s or so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from equipoise.assignors import MovementState
from equipoise.events.decisions import AssignmentIssued, MemberExpired
from equipoise.events.facts import LagReported, TaskReady, TasksRevoked
from equipoise.events.records import DecisionRecord, FactRecord
from equipoise.events.tasks import LagSentinel, TaskId
from equipoise.replay.sentences import tell
from equipoise.statemachine.state import GroupPhase, GroupState

_REPORTS = frozenset({LagReported, TaskReady, TasksRevoked})
"""Facts without decisions that may begin or end a step."""
MOST_STEPS = 5_000
"""Steps that a rebalance remembers. The others are counted."""


@attrs.frozen
class Step:
    """Names one task and what `member` does with it. `kind`: ``warm-up`` (it restores a copy in
    order to take the task over), ``hand-over`` (it takes the task from `source`), ``restore`` (it
    restores before it runs the task), ``no owner`` (`member` and `source` are None).
    """

    kind: str
    task: TaskId
    member: str | None = None
    source: str | None = None


@attrs.frozen(kw_only=True)
class TimedStep:
    """A step with its times (ms since 1970) and the records that were left to restore at its
    begin; None: not known, or nothing to restore.
    """

    step: Step
    begin_ms: int
    end_ms: int
    lag_records: int | None


@attrs.define(kw_only=True)
class WorkerRebalance:
    """A rebalance. `offset`: of the fact with which it began. `cause`: of its first round; "": it
    has had none. `taken_over`: it began before this worker led the group. `is_finished`: False when
    another worker leads the group since. Times are ms since 1970.
    """

    group: str
    log_id: str
    offset: int
    begin_ms: int
    end_ms: int
    taken_over: bool
    cause: str = ""
    first_generation: int | None = None
    last_generation: int | None = None
    changes_of_owner: int = 0
    expired: list[str] = attrs.field(factory=list)
    steps: list[TimedStep] = attrs.field(factory=list)
    steps_left_out: int = 0
    said: list[tuple[int, str]] = attrs.field(factory=list)
    """Time and sentence of what was decided."""
    is_finished: bool = True


class RebalanceFollower:
    """Follows one group, fact by fact."""

    def __init__(self) -> None:
        self._open: dict[Step, tuple[int, int | None]] = {}
        """Step -> its begin, and the records left then."""
        self._now: WorkerRebalance | None = None
        self._is_first = True

    def fold(self, record: FactRecord, decisions: Sequence[DecisionRecord], state: GroupState) -> WorkerRebalance | None:
        """Takes a fact with its decisions. `state`: after it. Returns the rebalance that ends with
        it; None: none does.
        """
        is_first, self._is_first = self._is_first, False
        if not decisions and not is_first and record.event.__class__ not in _REPORTS:
            return None
        now_ms, taken_over = record.append_ms, is_first and not decisions
        steps = dict(_steps(state))
        ongoing = bool(steps) or (state.waiting > 0 and state.phase is GroupPhase.LEADING)
        if self._now is None:
            if not ongoing and not any(isinstance(each.decision, AssignmentIssued) and each.decision.moves for each in decisions):
                return None
            self._now = WorkerRebalance(
                group=record.group, log_id=state.log_id, offset=record.offset, begin_ms=now_ms, end_ms=now_ms, taken_over=taken_over
            )
        self._note(self._now, record, decisions)
        for step in [step for step in self._open if step not in steps]:
            self._end(self._now, step, now_ms)
        for step, lag in steps.items():
            self._open.setdefault(step, (now_ms, lag))
        return None if ongoing else self._finish(now_ms)

    def abandon(self, now_ms: int) -> WorkerRebalance | None:
        """Returns the rebalance under way, unfinished; None: none is."""
        if self._now is None:
            return None
        self._now.is_finished = False
        for step in list(self._open):
            self._end(self._now, step, now_ms)
        return self._finish(now_ms)

    def _note(self, rebalance: WorkerRebalance, record: FactRecord, decisions: Sequence[DecisionRecord]) -> None:
        rebalance.end_ms = record.append_ms
        rebalance.said += [(record.append_ms, said.text) for said in tell(record, decisions)]
        for each in decisions:
            decision = each.decision
            if isinstance(decision, MemberExpired):
                rebalance.expired.append(decision.member_id)
            elif isinstance(decision, AssignmentIssued):
                rebalance.cause = rebalance.cause or decision.cause
                rebalance.first_generation = decision.generation if rebalance.first_generation is None else rebalance.first_generation
                rebalance.last_generation = decision.generation
                rebalance.changes_of_owner += sum(move.state == "granted" and move.source != move.destination for move in decision.moves)

    def _end(self, rebalance: WorkerRebalance, step: Step, now_ms: int) -> None:
        begin_ms, lag = self._open.pop(step)
        if len(rebalance.steps) < MOST_STEPS:
            rebalance.steps.append(TimedStep(step=step, begin_ms=begin_ms, end_ms=now_ms, lag_records=lag))
        else:
            rebalance.steps_left_out += 1

    def _finish(self, now_ms: int) -> WorkerRebalance:
        assert self._now is not None, "a rebalance is under way"
        found, self._now = self._now, None
        found.end_ms = max(found.begin_ms, now_ms)
        return found


def _steps(state: GroupState) -> Iterator[tuple[Step, int | None]]:
    """Yields what is under way, with the records left to restore."""
    if state.phase is not GroupPhase.LEADING:
        return
    for member in state.members.values():
        for task in member.warmup:
            yield Step("warm-up", task, member.member_id), _records(member.lags.get(task))
    for task, movement in state.in_flight.items():
        if movement.state is MovementState.REVOKING:
            yield Step("hand-over", task, movement.destination, movement.source), None
    for task, part in state.tasks().items():
        owner = state.owner.get(task)
        if owner is None:
            yield Step("no owner", task), None
        elif part.stateful and not state.is_away(owner) and task in (holder := state.members[owner]).active:
            lag = holder.lags.get(task)
            if lag is not LagSentinel.ACTIVE:
                yield Step("restore", task, owner), _records(lag)


def _records(lag: object) -> int | None:
    return lag if isinstance(lag, int) else None
