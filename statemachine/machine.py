"""GroupMachine turns one group's facts into decisions. Live, replay, what-if and tests all step
this class.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import attrs

from equipoise.assignors import Assignor, Guarantee, LoadBalance, PlanCost, check_settings, deals_by_lag, registry
from equipoise.events.codec import MOST_EVENT_BYTES, kind_of
from equipoise.events.decisions import Checkpointed, Decision, EventRejected
from equipoise.events.errors import EquipoiseError, GroupHalted, InputError, RepeatError
from equipoise.events.facts import BaseRequested, GroupConfigured, LogOpened
from equipoise.events.records import DecisionRecord, FactRecord
from equipoise.statemachine import actions, leader, requested_rounds, restarts, snapshots, watched_change
from equipoise.statemachine.deadlines import Deadlines, Key, Timer
from equipoise.statemachine.due import deadline_passed
from equipoise.statemachine.rejections import ASSIGNOR_UNAVAILABLE, Rejected
from equipoise.statemachine.state import GroupPhase, GroupState
from equipoise.statemachine.step_context import StepContext
from equipoise.statemachine.transitions import TRANSITIONS

AssignorLoader = Callable[[str, int], Assignor]


@attrs.frozen(kw_only=True)
class Evaluation:
    """Cost of the assignor's last plan, for metrics. It is not part of the state: a restored
    machine has none until its next round.
    """

    cost: PlanCost
    load: LoadBalance | None


class GroupMachine:
    """The leader of one group.

    `load`: finds an assignor by name and behaviour version (default: built-in ones and entry
    points); raises InputError for an unknown one. `any_solver`: folds a group that pins another
    solver version, which halts otherwise (docs/protocol.md#l6); `verify` uses this and judges
    differences accordingly. `most_event_bytes`: larger decisions are emitted in parts
    (docs/protocol.md#l8). Another value than the default changes decisions, so only tests and
    scenarios set it.
    """

    def __init__(self, *, load: AssignorLoader = registry.load, any_solver: bool = False, most_event_bytes: int = MOST_EVENT_BYTES) -> None:
        self.state = GroupState()
        self._deadlines = Deadlines(self.state)
        self._load = load
        self._any_solver = any_solver
        self._most_event_bytes = most_event_bytes
        self._assignor: Assignor | None = None
        self._context: StepContext | None = None
        """That of the last step, which left it untouched: the next one takes it. Most facts change
        no more than a lease or a lag, and to make a context takes longer than that.
        """
        self._record: FactRecord | None = None
        """The last fact."""
        self.last_evaluation: Evaluation | None = None
        self.halted: GroupHalted | None = None
        """Why the group halted; None: it did not."""

    def step(self, record: FactRecord) -> list[DecisionRecord]:
        """Folds one fact and returns the decisions that it causes, in order; usually none.

        Raises RepeatError when `record` does not come after the last one. Raises GroupHalted when
        the machine cannot decide for certain; every later step raises it again, and the caller
        continues from its last checkpoint. Any other exception is a defect and halts the group too.
        """
        if self.halted is not None:
            raise self.halted
        state = self.state
        if record.offset <= state.last_offset:
            raise RepeatError(record.offset, f"the group is at offset {state.last_offset} already")
        event = record.event
        if event.__class__ is LogOpened:
            actions.open_log(state, event.log_id, record.offset)
            return []
        if state.group and record.group != state.group:
            raise InputError(f"offset {record.offset}: a fact of group {record.group!r} was handed to the machine of group {state.group!r}")
        try:
            return self._fold(record)
        except Exception as error:
            # Half a step may have been taken, so the state is unusable.
            if isinstance(error, GroupHalted):
                self.halted = error
            else:
                self.halted = GroupHalted(state.group, record.offset, "defect", defect_text(error))
                self.halted.__cause__ = error
            raise

    def _fold(self, record: FactRecord) -> list[DecisionRecord]:
        state = self.state
        event = record.event
        last_append_ms, previous_offset = state.last_append_ms, state.last_offset
        actions.advance(state, record, 0 if last_append_ms is None else self._time_step_ms(last_append_ms, record.append_ms))
        context, self._context, self._record = self._context, None, record
        if context is None or context.state is not state:
            context = StepContext(state, self._deadlines, self._refusal, self._guarantees, self._most_event_bytes)
            context.deals_by_lag = self.deals_by_lag
        context.previous_offset = previous_offset
        for timer, key in self._deadlines.take_due():
            deadline_passed(context, timer, key)
        try:
            TRANSITIONS[state.phase][event.__class__](context, event)
            if event.__class__ is GroupConfigured:
                self._assignor = self._find_assignor(event, record.offset)
                context.deals_by_lag = self.deals_by_lag
        except Rejected as rejected:
            context.emitted.append(_rejection(record, rejected))
        if state.restarts or state.lent:
            restarts.go_on(context)
        if state.awaiting_lags:
            context.begin_if_lags_known()
        if context.observed is not None:
            self._decide(leader.propose, context, record)
            actions.observe_assignment(state, context.observed)
        elif context.round_asked is not None:
            self._decide(requested_rounds.answer, context, record)
        elif context.causes or context.changed or context.moves:
            self._lead(context, record)
        if state.change is not None:
            watched_change.judge_in_fold(context, state.change, event)
        settings = state.settings
        is_due = settings.checkpoint_every_records and (state.seq + 1) % settings.checkpoint_every_records == 0
        if is_due or event.__class__ is BaseRequested:
            context.emitted.append(self._checkpoint(len(context.emitted) + 1))
        if context.is_untouched():
            self._context = context
            return []
        return self._number(record, context.emitted) if context.emitted else []

    def _refusal(self, config: GroupConfigured) -> str | None:
        assert self._record is not None, "a fact is folded"
        return self._refusal_of(config, self._record)

    def _guarantees(self, config: GroupConfigured) -> frozenset[Guarantee]:
        return self._find_assignor(config, self.state.last_offset).guarantees

    def _time_step_ms(self, previous_append_ms: int, append_ms: int) -> int:
        """Returns how far group time moves: as far as the log's clock, at most max_step_ms
        (docs/protocol.md#l2).
        """
        passed_ms = append_ms - previous_append_ms
        return 0 if passed_ms <= 0 else min(passed_ms, self.state.settings.max_step_ms)

    def _find_assignor(self, config: GroupConfigured, offset: int) -> Assignor:
        group = self.state.group
        try:
            assignor = self._load(config.assignor, config.behaviour_version)
        except InputError as error:
            raise GroupHalted(group, offset, "assignor_missing", str(error)) from error
        problem = None if self._any_solver else registry.solver_problem(config.solver, assignor)
        if problem is not None:
            raise GroupHalted(group, offset, "solver_missing", problem)
        return assignor

    def _refusal_of(self, config: GroupConfigured, record: FactRecord) -> str | None:
        if record.refused:
            return ASSIGNOR_UNAVAILABLE
        try:
            assignor = self._find_assignor(config, record.offset)
            with leader.only_exceptions(assignor):
                check_settings(assignor, config.knobs)
        except InputError:
            return "knobs_refused"
        return None

    def lack(self, record: FactRecord) -> GroupHalted | None:
        """The error with which `step` would halt at this fact, because it is a configuration that
        needs what this build does not have; None: it would not halt for that.
        """
        if record.refused or not isinstance(record.event, GroupConfigured) or self.state.basis_problem(record.event):
            return None
        try:
            self._find_assignor(record.event, record.offset)
        except GroupHalted as halted:
            return halted
        return None

    def as_leader(self, record: FactRecord) -> FactRecord:
        """`record` as the first leader that answers it folds it: a configuration that needs what
        this build lacks is refused (docs/protocol.md#l6).
        """
        return record if self.lack(record) is None else attrs.evolve(record, refused=True)

    def _lead(self, context: StepContext, record: FactRecord) -> None:
        if self.state.phase is not GroupPhase.LEADING:
            return
        if context.causes:
            self._decide(leader.decide, context, record)
        leader.settle(context)
        leader.issue(context)

    def _decide(self, decide: Callable[[StepContext, Assignor, int], None], context: StepContext, record: FactRecord) -> None:
        assert self._assignor is not None, "a configured group has its assignor"
        try:
            decide(context, self._assignor, record.offset)
        except GroupHalted:
            raise
        except EquipoiseError as error:
            raise GroupHalted(self.state.group, record.offset, "assignor_failed", f"{self._assignor.name} could not decide: {error}") from error
        assert context.plan is not None, "the assignor was asked"
        self.last_evaluation = Evaluation(cost=context.plan.cost, load=context.plan.load)

    def _number(self, record: FactRecord, emitted: list[Decision]) -> list[DecisionRecord]:
        """Numbers the decisions densely per group and adds the fact that caused them
        (docs/protocol.md#l4).
        """
        state = self.state
        first = actions.number_decisions(state, len(emitted))
        return [
            DecisionRecord(state.log_id, state.group, first + index, record.offset, index, record.checksum, decision)
            for index, decision in enumerate(emitted)
        ]

    def _checkpoint(self, emitted: int) -> Checkpointed:
        """The hash of the state after this step, with `emitted` more decisions numbered."""
        checkpoint = snapshots.dump(attrs.evolve(self.state, number=self.state.number + emitted))
        return Checkpointed(state_sha256=hashlib.sha256(checkpoint).hexdigest(), seq=self.state.seq, form=snapshots.FORM)

    @property
    def deals_by_lag(self) -> bool:
        """Returns whether the group's assignor deals by lag, so that source lags must be observed
        (docs/protocol.md#d6).
        """
        return self._assignor is not None and deals_by_lag(self._assignor)

    @property
    def awaits_lags(self) -> bool:
        """Returns whether the first round waits for source lags, so that they should be observed
        soon.
        """
        return self.deals_by_lag and self.state.phase is GroupPhase.GATHERING and not self.state.knows_source_lags()

    @property
    def next_deadline_ms(self) -> int | None:
        """Group time of the next deadline, in ms: a ProbingTick is due then at the latest. None: no
        timer runs.
        """
        return self._deadlines.next_ms()

    def has_deadline_before(self, at_ms: int) -> bool:
        """Returns whether `next_deadline_ms` may be before this group time; costs less to ask.
        False: it is not.
        """
        return self._deadlines.may_be_before(at_ms)

    @property
    def rests(self) -> bool:
        """Returns whether nothing is under way or due in the group but the sessions of its members
        (docs/protocol.md#l11). Costs time in the group's size, at most.
        """
        state = self.state
        is_idle = state.phase is GroupPhase.LEADING and not (state.restarts or state.lent or state.in_flight or state.awaiting_lags or state.change)
        return is_idle and self._deadlines.are_all(Timer.SESSION)

    def timers(self) -> set[tuple[int, Timer, Key]]:
        """Every timer that runs, as (due time in group ms, timer, key). Costs time in the group's
        size; for tests.
        """
        return self._deadlines.running()

    def snapshot(self) -> bytes:
        """Canonical bytes of the state: equal states give equal bytes. Raises GroupHalted when the
        group is halted.
        """
        if self.halted is not None:
            raise self.halted
        return snapshots.dump(self.state)

    @classmethod
    def restore(
        cls, checkpoint: bytes, *, load: AssignorLoader = registry.load, any_solver: bool = False, most_event_bytes: int = MOST_EVENT_BYTES
    ) -> GroupMachine:
        """A machine that continues from a snapshot exactly as the one that made it.

        Raises InputError for bytes that are no snapshot or have another form, and GroupHalted when
        the group's assignor or solver is missing.
        """
        machine = cls(load=load, any_solver=any_solver, most_event_bytes=most_event_bytes)
        machine.state = snapshots.load(checkpoint)
        machine._deadlines = Deadlines(machine.state)
        if machine.state.config is not None:
            machine._assignor = machine._find_assignor(machine.state.config, machine.state.last_offset)
        return machine


def defect_text(error: Exception) -> str:
    """Class and message of an unexpected error, the message cut to 500 characters."""
    return f"{error.__class__.__name__}: {error!s:.500}"


def _rejection(record: FactRecord, rejected: Rejected) -> EventRejected:
    event = record.event
    return EventRejected(
        kind=kind_of(event),
        code=rejected.code,
        member_id=getattr(event, "member_id", None),
        incarnation=getattr(event, "incarnation", None),
        numbers=rejected.numbers,
    )
