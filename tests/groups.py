"""One group, one machine, truthful members and a validator: for tests of the machine alone.

`Group` appends facts and steps the machine; every step is judged. `Truthful` is a member that obeys
its assignments and reports the truth: it restores its copies, closes what is revoked, and reports.
Nothing is lost or late unless a test makes it so.
"""

from __future__ import annotations

import copy
from typing import Any, Self

import attrs

from equipoise.assignors import registry
from equipoise.events.codec import make_record
from equipoise.events.decisions import AssignmentIssued, Decision, EventRejected, MemberAssigned, MemberExpired, Move
from equipoise.events.facts import (
    Fact,
    GroupConfigured,
    LagReported,
    LogOpened,
    MemberJoined,
    MemberLeft,
    MemberUnchanged,
    PartitionsObserved,
    ProbingTick,
    RestartIntended,
    Subtopology,
    TopologyDeclared,
)
from equipoise.events.facts import Load as ReportedLoad
from equipoise.events.parts import whole
from equipoise.events.records import DecisionRecord, FactRecord
from equipoise.events.settings import GroupSettings
from equipoise.events.tasks import Lag, LagSentinel, TaskId
from equipoise.statemachine.machine import AssignorLoader, GroupMachine
from equipoise.statemachine.state import GroupState
from equipoise.statemachine.watched_change import ChangeObserver
from tests.support.reference_model.step_checker import StepChecker

GROUP = "orders"
LOG_OPENED = LogOpened(log_id="log-1")
SESSION_MS = 30_000
MARGIN_MS = 3_000
HEARTBEAT_MS = 3_000


def configured(assignor: str = "high_availability", led_by: str = "equipoise", version: int | None = None, **settings: Any) -> GroupConfigured:
    """A built-in assignor; None: the newest version."""
    found = registry.latest(assignor) if version is None else registry.load(assignor, version)
    return GroupConfigured(assignor=found.name, behaviour_version=found.version, solver=found.solver, led_by=led_by, knobs=GroupSettings(**settings))


def topology(epoch: int = 1, stateful: int = 0, stateless: int = 0) -> TopologyDeclared:
    """Stateful tasks 0_p with changelog "log", stateless tasks 1_p."""
    parts: list[Subtopology] = []
    if stateful:
        parts.append(Subtopology(subtopology=0, partitions=stateful, stateful=True, source_topics=("in",), changelog_topics=("log",)))
    if stateless:
        parts.append(Subtopology(subtopology=1, partitions=stateless, stateful=False, source_topics=("in",)))
    return TopologyDeclared(epoch=epoch, subtopologies=tuple(parts))


def joined(member_id: str, incarnation: int = 1, **fields: Any) -> MemberJoined:
    given: dict[str, Any] = {
        "session_timeout_ms": SESSION_MS,
        "lease_margin_ms": MARGIN_MS,
        "topology_epoch": 1,
        "join_nonce": f"{member_id}-{incarnation}",
    }
    return MemberJoined(member_id=member_id, incarnation=incarnation, **{**given, **fields})


class Group:
    """A growing log and the machine that folds it. A `StepChecker` judges every step unless
    `watched` is False.
    """

    def __init__(self, load: AssignorLoader = registry.load, *, watched: bool = True) -> None:
        self.load = load
        self.machine = GroupMachine(load=load)
        self.checker: StepChecker | None = StepChecker(load=load) if watched else None
        self.observer: ChangeObserver | None = ChangeObserver()
        """That of a leader, whose verdict follows at once; None: nobody judges."""
        self.append_ms = 1_000_000
        self.records: list[FactRecord] = []
        self.decisions: list[DecisionRecord] = []
        self.members: dict[str, Truthful] = {}
        self.fact(LOG_OPENED)

    @property
    def state(self) -> GroupState:
        return self.machine.state

    def fact(self, event: Fact, after_ms: int = 0) -> list[Decision]:
        """Appends one fact, `after_ms` later on the broker's clock, and returns its decisions."""
        self.append_ms += after_ms
        record = make_record("" if isinstance(event, LogOpened) else GROUP, len(self.records), self.append_ms, event)
        record = self.machine.as_leader(record)
        self.records.append(record)
        decided = self.machine.step(record)
        if self.checker is not None:
            self.checker(record, decided, self.machine)
        self.decisions += decided
        decisions = [each.decision for each in decided]
        for decision in decisions:
            for member in self.members.values():
                member.inbox.append(decision)
        if self.observer is None:
            return decisions
        self.observer.see(self.state, record, decided)
        verdict = self.observer.verdict
        return decisions if verdict is None else [*decisions, *self.fact(verdict)]

    def tick(self, after_ms: int = 1_000) -> list[Decision]:
        return self.fact(ProbingTick(), after_ms)

    def pass_ms(self, duration_ms: int) -> list[Decision]:
        """Appends ticks, at most max_step_ms apart, until this much group time has passed."""
        decisions: list[Decision] = []
        while duration_ms > 0:
            step_ms = min(duration_ms, self.state.settings.max_step_ms)
            decisions += self.tick(step_ms)
            duration_ms -= step_ms
        return decisions

    def starts(self, *member_ids: str, stateful: int = 0, stateless: int = 0, end_offset: int = 50_000, **settings: Any) -> Self:
        """Configures the group with these tasks and lets these members join at once."""
        self.fact(configured(**{"initial_delay_ms": 0, **settings}))
        self.fact(topology(stateful=stateful, stateless=stateless))
        if stateful:
            self.fact(PartitionsObserved(end_offsets={"log": dict.fromkeys(range(stateful), end_offset)}))
        for member_id in member_ids:
            self.join(member_id)
        return self

    def join(self, member_id: str, incarnation: int = 1, *, restores: int = 1_000_000, **fields: Any) -> Truthful:
        """A truthful member joins. `restores`: records that it restores of each copy between two
        reports.
        """
        member = self.members[member_id] = Truthful(self, member_id, incarnation, restores)
        lags: dict[TaskId, Lag] = fields.get("lags", {})
        member.copies = {task: lag for task, lag in lags.items() if isinstance(lag, int)}
        member.answer = self.fact(joined(member_id, incarnation, **fields))
        return member

    def cycle(self, *late: str) -> list[Decision]:
        """Every member except the `late` ones reads its decisions and reports once, within
        HEARTBEAT_MS.
        """
        reporting = [member for member_id, member in sorted(self.members.items()) if member_id not in late]
        decisions: list[Decision] = []
        for member in reporting:
            every_ms = HEARTBEAT_MS // len(reporting)
            most_ms = min(every_ms, self.state.settings.max_step_ms)
            decisions += self.pass_ms(every_ms - most_ms)
            decisions += member.reports(after_ms=most_ms)
        return decisions

    def settles(self, most_cycles: int = 100) -> int:
        """Runs cycles until the verdict is "balanced" and no member has anything left to read or
        do. Returns their number.
        """
        for cycle in range(most_cycles):
            if self.is_settled():
                return cycle
            self.cycle()
        raise AssertionError(f"not settled after {most_cycles} cycles: {self.state.verdict}")

    def is_settled(self) -> bool:
        state = self.state
        busy = any(member.revoking or member.warmup or member.leaving for member in state.members.values())
        behind = any(member.is_behind() or member.leaving for member in self.members.values())
        return state.verdict is not None and state.verdict[0] == "balanced" and not busy and not behind and not state.in_flight

    def owners(self) -> dict[TaskId, str]:
        """Task -> the member that runs it, as the members see it."""
        return {task: member.member_id for member in self.members.values() for task in member.active}

    def moves(self, state: str | None = None) -> list[Move]:
        issued = [each.decision for each in self.decisions if isinstance(each.decision, AssignmentIssued)]
        return [move for each in issued for move in each.moves if state in (None, move.state)]


@attrs.define
class Truthful:
    """A member that obeys its assignments, one report at a time."""

    group: Group
    member_id: str
    incarnation: int
    restores: int
    epoch: int = 0
    number: int = -1
    active: dict[TaskId, int] = attrs.field(factory=dict)
    """Task -> fencing token."""
    copies: dict[TaskId, int] = attrs.field(factory=dict)
    """Task -> records its copy is behind; running tasks included."""
    keeps: set[TaskId] = attrs.field(factory=set)
    leaving: bool = False
    restart: RestartIntended | None = None
    """Sent before each report."""
    released: bool = False
    ended: bool = False
    load: ReportedLoad | None = None
    """The load in each of its reports."""
    reported: LagReported | None = None
    """Its last report."""
    inbox: list[Decision] = attrs.field(factory=list)
    answer: list[Decision] = attrs.field(factory=list)
    """The decisions that its last fact caused."""

    def is_behind(self) -> bool:
        return any(isinstance(decision, MemberAssigned | MemberExpired) and self._is_mine(decision) for decision in whole(self.inbox))

    def _is_mine(self, decision: Any) -> bool:
        return bool(decision.member_id == self.member_id and decision.incarnation == self.incarnation)

    def reads(self) -> None:
        """Applies its decisions: closes tasks that are no longer active, opens new ones, keeps the
        assigned copies.
        """
        inbox, self.inbox = self.inbox, []
        for decision in whole(inbox):
            if isinstance(decision, MemberAssigned) and self._is_mine(decision):
                self.epoch = decision.assignment_epoch
                self.active = dict(zip(decision.active, decision.tokens, strict=True))
                self.keeps = {*decision.standby, *decision.warmup}
                self.released = decision.released
                for task in sorted({*self.active, *self.keeps}):
                    if task.subtopology == 0:
                        self.copies.setdefault(task, self.end_offset(task))
            elif isinstance(decision, MemberExpired) and self._is_mine(decision):
                self.ended = True
                self.active = {}

    def end_offset(self, task: TaskId) -> int:
        return self.group.state.end_offsets.get("log", {}).get(task.partition, 0)

    def report(self) -> LagReported:
        """The complete report of this moment."""
        self.number += 1
        self.reported = self._report()
        return self.reported

    def unchanged(self) -> MemberUnchanged | None:
        """That its last report still holds; None: it does not."""
        if self.reported is None or self._report() != self.reported:
            return None
        return MemberUnchanged(member_id=self.member_id, incarnation=self.incarnation, report=self.number)

    def _report(self) -> LagReported:
        lags: dict[TaskId, Lag] = {}
        for task in sorted(self.copies):
            behind = self.copies[task]
            lags[task] = LagSentinel.ACTIVE if task in self.active and behind == 0 else behind
        return LagReported(
            member_id=self.member_id,
            incarnation=self.incarnation,
            number=self.number,
            assignment_epoch=self.epoch,
            held=tuple(sorted(self.active)),
            ready=tuple(sorted(task for task in self.keeps if self.copies.get(task) == 0)),
            lags=lags,
            leaving=self.leaving,
            load=self.load,
        )

    def reports(self, after_ms: int = 0) -> list[Decision]:
        """Reads, restores and reports; sends MemberLeft once it is released."""
        self.reads()
        if self.ended:
            del self.group.members[self.member_id]
            return []
        self.restores_copies()
        if self.released:
            del self.group.members[self.member_id]
            return self.group.fact(MemberLeft(member_id=self.member_id, incarnation=self.incarnation), after_ms)
        self.answer = [] if self.restart is None else self.group.fact(self.restart)
        self.answer += self.group.fact(self.report(), after_ms)
        return self.answer

    def restores_copies(self) -> None:
        """Brings every assigned copy nearer; a lost copy starts over."""
        for task in sorted({*self.keeps, *self.active}):
            if task.subtopology == 0:
                self.copies[task] = max(0, self.copies.get(task, self.end_offset(task)) - self.restores)

    def restarts(self, back_within_ms: int | None = None, *, wait_turn: bool = True) -> None:
        """Wants to restart; it says so before each report."""
        self.restart = RestartIntended(member_id=self.member_id, incarnation=self.incarnation, back_within_ms=back_within_ms, wait_turn=wait_turn)

    def leaves(self) -> None:
        """Wants to leave; its next report says so."""
        self.leaving = True


def all_but_time_and_leases(machine: GroupMachine) -> dict[str, Any]:
    """The state without what any record changes: time, place, the lease of the sender, whether
    member or fenced incarnation, and what a change has cost so far.
    """
    state = copy.deepcopy(machine.state)
    state.change = None
    for member in state.members.values():
        member.last_heard_ms = 0
    for fenced in state.fenced.values():
        fenced.last_heard_ms = 0
    state.now_ms = state.last_append_ms = state.last_offset = state.seq = state.number = 0
    return attrs.asdict(state, recurse=False, filter=lambda field, _: bool(field.eq))


def rejections(decisions: list[Decision]) -> list[str]:
    return [decision.code for decision in decisions if isinstance(decision, EventRejected)]


def assigned(decisions: list[Decision]) -> dict[str, MemberAssigned]:
    """The last assignment of each member."""
    return {decision.member_id: decision for decision in whole(decisions) if isinstance(decision, MemberAssigned)}


def tasks(*texts: str) -> tuple[TaskId, ...]:
    """tasks("0_1", "0_0") -> the two, in rising order."""
    return tuple(sorted(TaskId(*map(int, text.split("_"))) for text in texts))
