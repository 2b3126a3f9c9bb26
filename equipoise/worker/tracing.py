"""Sends each rebalance as one trace over OTLP/HTTP (setting `otlp_endpoint`, extra `otel`): a span
for the rebalance, and one below it for each warm-up, hand-over, restore and task without an owner.
Times are those of the log. A rebalance is sent when it has ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from importlib import metadata
from typing import Any

import attrs

from equipoise.assignors import MovementState
from equipoise.events.decisions import AssignmentIssued, MemberExpired
from equipoise.events.errors import InputError
from equipoise.events.facts import LagReported, TaskReady, TasksRevoked
from equipoise.events.records import DecisionRecord, FactRecord
from equipoise.events.tasks import LagSentinel, TaskId
from equipoise.replay.sentences import tell
from equipoise.replay.wording import cause_text
from equipoise.statemachine.state import GroupPhase, GroupState

_SEND_S = 2
"""Longest time for one request to the collector, retries included."""
_NS = 1_000_000
"""Nanoseconds in a millisecond."""


class Tracing:
    """Sends the rebalances of all groups that this worker leads. `endpoint`: URL of the collector.
    Other options of the exporter, such as headers, come from its variables, OTEL_EXPORTER_OTLP_...
    Raises InputError when the extra is not installed.
    """

    def __init__(self, endpoint: str) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError:
            raise InputError("otlp_endpoint: needs the extra: pip install 'equipoise[otel]'") from None
        version = metadata.version("equipoise")
        resource = Resource.create({"service.name": "equipoise-worker", "service.version": version})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(
            BatchSpanProcessor(
                OTLPSpanExporter(endpoint, timeout=_SEND_S),
                max_queue_size=4 * MOST_STEPS,
                schedule_delay_millis=1_000,
            )
        )
        self._tracer = self._provider.get_tracer("equipoise", version)
        self._groups: dict[str, RebalanceFollower] = {}
        self._last_ms: dict[str, int] = {}

    def folded(self, record: FactRecord, decisions: Sequence[DecisionRecord], state: GroupState) -> None:
        """Takes a fact that no worker had answered before, with its decisions. `state`: after it."""
        if not record.group:
            return
        follower = self._groups.get(record.group)
        if follower is None:
            follower = self._groups[record.group] = RebalanceFollower()
        self._last_ms[record.group] = record.append_ms
        if (ended := follower.fold(record, decisions, state)) is not None:
            self._send(ended)

    def forget(self, groups: Iterable[str]) -> None:
        """Another worker leads these groups now: sends what is known of their rebalances."""
        for group in groups:
            follower = self._groups.pop(group, None)
            if follower is not None and (ended := follower.abandon(self._last_ms.pop(group))) is not None:
                self._send(ended)

    def close(self) -> None:
        """Sends what waits. Blocks, for a few seconds where the collector does not answer."""
        self._provider.shutdown()

    def _send(self, rebalance: WorkerRebalance) -> None:
        from opentelemetry import trace

        known: dict[str, Any] = {
            "equipoise.group": rebalance.group,
            "equipoise.log_id": rebalance.log_id,
            "equipoise.offset": rebalance.offset,
            "equipoise.cause": cause_text(rebalance.cause) or "no round was needed",
            "equipoise.generation.first": rebalance.first_generation,
            "equipoise.generation.last": rebalance.last_generation,
            "equipoise.changes_of_owner": rebalance.changes_of_owner,
            "equipoise.expired": rebalance.expired or None,
            "equipoise.steps_left_out": rebalance.steps_left_out or None,
            "equipoise.taken_over": rebalance.taken_over or None,
            "equipoise.unfinished": not rebalance.is_finished or None,
        }
        attributes = {name: value for name, value in known.items() if value is not None}
        root = self._tracer.start_span(f"rebalance {rebalance.group}", start_time=rebalance.begin_ms * _NS, attributes=attributes)
        for at_ms, text in rebalance.said:
            root.add_event(text, timestamp=at_ms * _NS)
        context = trace.set_span_in_context(root)
        for timed in rebalance.steps:
            step = timed.step
            of_step = {
                "equipoise.group": rebalance.group,
                "equipoise.task": str(step.task),
                "equipoise.member": step.member,
                "equipoise.source": step.source,
                "equipoise.lag_records": timed.lag_records,
            }
            span = self._tracer.start_span(
                f"{step.kind} {step.task}",
                context,
                start_time=timed.begin_ms * _NS,
                attributes={name: value for name, value in of_step.items() if value is not None},
            )
            span.end(timed.end_ms * _NS)
        root.end(rebalance.end_ms * _NS)


# Rebalances of a group, from its facts and decisions: when one began and ended, and what it
# consisted of.

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
