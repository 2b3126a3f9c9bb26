"""Logs as runs of the model (`tests.model.lease`), one for each task, with times in ms.

A log has the leader's half: facts with their times, and decisions. Each record is folded by the
model, which must then expire, fence, wait and hold exactly as the decisions say. The members' half
is chosen as dangerous as the log allows: an append is acknowledged at once, a decision is read as
soon as it is published, a fetch reaches the end at every moment, but an incarnation never reads
that it is out, and runs on until its lease is over. What a member reports must be what it may run
by then. So "no two owners" is judged for the worst run that has this log, and not only for the run
that was recorded.

A log does not say when its decisions were published, nor by how much the broker's clock jumped.
Where that is known (`Happened`), time is the world's, and no incarnation may send anything once its
lease is over. Otherwise time is the broker's clock, a
decision is published as soon as its fact is appended, and a log whose worker was away for long is
refused.

The processes of a task are the incarnations of all members that ever had it. While something else
leads the group, only the fenced incarnations from before are followed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import attrs

from equipoise.events.decisions import Decision, EventRejected, MemberAssigned, MemberExpired
from equipoise.events.errors import EquipoiseError
from equipoise.events.facts import (
    GroupConfigured,
    LagReported,
    LeaveCancelled,
    LeaveIntended,
    MemberEnded,
    MemberJoined,
    MemberLeft,
    MemberUnchanged,
    RestartIntended,
    SilenceObserved,
    TaskParked,
    TaskReady,
    TasksRevoked,
    TroublesReported,
)
from equipoise.events.parts import whole
from equipoise.events.records import DecisionRecord, FactRecord
from equipoise.events.tasks import TaskId
from tests.model.configurations import Configuration, Process
from tests.model.lease import FENCED, LIVE, NOT_STARTED, OUT, OVER, RUNS, At, Lease, NotAllowed, NotWaitedFor, TwoOwners

Incarnation = tuple[str, int]
OF_A_MEMBER = (
    LagReported,
    LeaveCancelled,
    LeaveIntended,
    MemberLeft,
    MemberUnchanged,
    RestartIntended,
    TaskParked,
    TaskReady,
    TasksRevoked,
    TroublesReported,
)


class Refused(EquipoiseError):
    """The log is no run of the model."""


@attrs.frozen
class Happened:
    """At `time_ms` of the world, the fact at this offset was appended, the decision of this number
    was published, or this incarnation sent a fact that only a living one sends.
    """

    time_ms: int
    offset: int = -1
    number: int = -1
    sender: Incarnation | None = None


@attrs.frozen
class Followed:
    """Runs of the model that were followed: one for each task, with so many actions in all."""

    tasks: int
    actions: int


@attrs.frozen
class Step:
    """A fact and its decisions. `numbers`: incarnation -> the last decision that names it."""

    record: FactRecord
    decisions: Sequence[Decision]
    numbers: dict[Incarnation, int]

    @property
    def accepted(self) -> bool:
        return not any(isinstance(decision, EventRejected) for decision in self.decisions)

    @property
    def waits_for_its_return(self) -> bool:
        """Whether whoever ended with this fact is to be back (docs/protocol.md#m12)."""
        return not any(isinstance(decision, MemberExpired) and decision.cause == "proven_dead" for decision in self.decisions)


def follow(
    records: Iterable[FactRecord], decisions: Iterable[DecisionRecord], happened: Iterable[Happened] = (), *, which: int | None = None
) -> Followed:
    """Follows one group's log from its first fact. `happened`: all of it, in order; or nothing.
    `which`: one of the tasks, counted round; None: all. Raises Refused.
    """
    by_cause: dict[int, list[DecisionRecord]] = {}
    for decided in decisions:
        by_cause.setdefault(decided.caused_by, []).append(decided)
    steps = {record.offset: _step(record, by_cause.get(record.offset, [])) for record in records}
    had: dict[TaskId, set[str]] = {}
    for step in steps.values():
        for decision in step.decisions:
            if isinstance(decision, MemberAssigned):
                for task in decision.active:
                    had.setdefault(task, set()).add(decision.member_id)
    happened, tasks = tuple(happened), sorted(had)
    if which is not None and tasks:
        tasks = [tasks[which % len(tasks)]]
    return Followed(len(tasks), sum(_Run(task, steps, had[task], happened).follow() for task in tasks))


def _step(record: FactRecord, decided: Sequence[DecisionRecord]) -> Step:
    numbers: dict[Incarnation, int] = {}
    for each in decided:
        member_id, incarnation = getattr(each.decision, "member_id", None), getattr(each.decision, "incarnation", None)
        if member_id is not None and incarnation is not None:
            numbers[member_id, incarnation] = each.number
    return Step(record, tuple(whole([each.decision for each in decided])), numbers)


class _Run:
    """The run of the model for one task of a log."""

    def __init__(self, task: TaskId, steps: dict[int, Step], members: set[str], happened: Sequence[Happened]) -> None:
        self.task = task
        self.steps = steps
        self.happened = happened
        self.index: dict[Incarnation, int] = {}
        processes: list[Process] = []
        latest: dict[str, int] = {}
        numbers = {name: number for number, name in enumerate(sorted(members))}
        most_step_ms = 1
        is_led = True
        for step in steps.values():
            fact = step.record.event
            if isinstance(fact, GroupConfigured) and step.accepted:
                most_step_ms = max(most_step_ms, fact.knobs.max_step_ms)
                is_led = fact.led_by == "equipoise"
            elif is_led and isinstance(fact, MemberJoined) and fact.member_id in numbers and step.accepted:
                self.index[fact.member_id, fact.incarnation] = len(processes)
                processes.append(
                    Process(
                        member=numbers[fact.member_id],
                        session=fact.session_timeout_ms,
                        margin=fact.lease_margin_ms,
                        suspect=True,
                        starts=True,
                        proof=fact.ended_incarnation is not None and fact.ended_incarnation == latest.get(fact.member_id),
                    )
                )
                latest[fact.member_id] = fact.incarnation
        given = Configuration(
            processes=tuple(processes),
            jumps=len(steps),
            step=1,
            raised=most_step_ms + 1,
            moves=True,
            crashes=True,
            closes=True,
            witness=True,
            trails=True,
        )
        self.incarnations = {i: incarnation for incarnation, i in self.index.items()}
        self.model = Lease(given)
        self.model.owner, self.model.late = self.model.none, True
        self.longest_ms = max((process.session for process in processes), default=1)
        self.tokens: dict[int, int] = {}
        self.epochs: dict[int, int] = {}
        """Process -> the epoch of the last change of the task there."""
        self.unpublished: deque[tuple[int, int]] = deque()
        """(number of a decision, process that it tells something), in order."""
        self.actions = 0

    def follow(self) -> int:
        time_ms: int | None = None
        append_ms: int | None = None
        for each in self.happened or self._by_the_log():
            step = self.steps.get(each.offset)
            place = f"{each.time_ms} ms" if step is None else f"offset {each.offset}"
            try:
                self._pass(0 if time_ms is None else each.time_ms - time_ms)
                time_ms = each.time_ms
                if each.sender is not None:
                    self._sent(each.sender)
                elif step is None:
                    self._publish(each.number)
                else:
                    if self.happened:
                        self._set_clock(0 if append_ms is None else max(0, step.record.append_ms - append_ms))
                    append_ms = step.record.append_ms
                    self._step(step)
            except (NotAllowed, TwoOwners, NotWaitedFor) as error:
                raise Refused(f"{place}, {self.task}: {error}") from error
        return self.actions

    def _by_the_log(self) -> Iterator[Happened]:
        """Time by the broker's clock. More than a whole session without a record is taken for a
        jump of that clock, which ends no lease.
        """
        time_ms, append_ms = 0, None
        for offset, step in self.steps.items():
            passed_ms = 0 if append_ms is None else max(0, step.record.append_ms - append_ms)
            append_ms = step.record.append_ms
            if passed_ms > self.longest_ms:
                self._do(self.model.jump)
            else:
                time_ms += passed_ms
            yield Happened(time_ms, offset=offset)
            for number in step.numbers.values():
                yield Happened(time_ms, number=number)

    def _do(self, action: Callable[..., None], *arguments: int) -> None:
        self.actions += 1
        try:
            action(*arguments)
        except NotAllowed:
            raise NotAllowed(f"{action.__name__}{arguments} is not allowed") from None

    def _pass(self, duration_ms: int) -> None:
        """Time passes, and every process keeps its reader at the end, unless it would read its own
        end.
        """
        model = self.model
        while duration_ms > 0:
            piece_ms = duration_ms
            for i, at in enumerate(model.at):
                if at.runs == RUNS and not self._reads_its_end(at):
                    if at.seen + piece_ms >= model.lasts(i):
                        self._fetch(i)
                    piece_ms = max(1, min(piece_ms, model.lasts(i) - 1 - at.seen))
            duration_ms -= piece_ms
            self._do(model.time, piece_ms)

    def _set_clock(self, since_ms: int) -> None:
        """The broker's clock has moved by this much since the last append, whatever time passed."""
        if since_ms < self.model.since:
            self._do(self.model.back, since_ms)
        elif since_ms > self.model.since:
            self._do(self.model.jump, since_ms)

    def _sent(self, sender: Incarnation) -> None:
        i = self.index.get(sender)
        if i is not None and self.model.at[i].runs == OVER:
            raise NotAllowed(f"{sender} sends a fact, and its lease is over")

    def _publish(self, number: int) -> None:
        while self.unpublished and self.unpublished[0][0] <= number:
            i = self.unpublished.popleft()[1]
            self._fetch(i)
            self.model.at[i].pending = max(0, self.model.at[i].pending - 1)
            self._fetch(i)

    def _reads_its_end(self, at: At) -> bool:
        return OUT in at.unread[: len(at.unread) - at.pending]

    def _fetch(self, i: int) -> None:
        """The process reads all that is published, unless its end is among that."""
        model, at = self.model, self.model.at[i]
        if at.runs == RUNS and not self._reads_its_end(at):
            self._do(model.ask, i)
            self._do(model.serve, i, len(at.unread) - at.pending)
            self._do(model.arrive, i)

    def _step(self, step: Step) -> None:
        fact, model = step.record.event, self.model
        live = {i for i in model.everyone if model.at[i].known == LIVE}
        unread = [len(at.unread) for at in model.at]
        expelled = [
            i
            for decision in step.decisions
            if isinstance(decision, MemberExpired) and decision.cause == "revocation_timeout" and (i := self._of(decision)) is not None
        ]
        if model.since and not any(model.is_due(i) for i in expelled):
            self._do(model.tick)
        if expelled:
            self._do(model.expel, *expelled)
        model.spared = tuple(expelled)
        self._appended(fact, accepted=step.accepted)
        is_gone = isinstance(fact, MemberLeft) or (isinstance(fact, MemberEnded) and step.waits_for_its_return)
        if not (is_gone and step.accepted):
            self._expired(step.decisions, {i for i in live if model.at[i].known != LIVE})
        for decision in step.decisions:
            if isinstance(decision, MemberAssigned):
                self._assigned(decision)
        model.spared = ()
        for i, before in enumerate(unread):
            at = model.at[i]
            for _ in range(len(at.unread) - before):
                number = step.numbers.get(self.incarnations[i])
                if number is None:
                    raise NotAllowed(f"the model tells {self.incarnations[i]} something, and no decision names it")
                self.unpublished.append((number, i))

    def _of(self, named: Any) -> int | None:
        return self.index.get((named.member_id, named.incarnation))

    def _appended(self, fact: Any, *, accepted: bool) -> None:
        model = self.model
        if isinstance(fact, GroupConfigured) and accepted:
            self._do(model.configure, fact.knobs.max_step_ms)
            if model.most != fact.knobs.max_step_ms:
                raise NotAllowed("max_step_ms exceeds a margin")
            return
        if isinstance(fact, SilenceObserved) and accepted:
            for n, (member_id, _) in self.incarnations.items():
                self._do(model.told, n, fact.silent_ms.get(member_id, 0))
            return
        i = self._of(fact) if isinstance(fact, (MemberEnded, MemberJoined, *OF_A_MEMBER)) else None
        if i is None:
            return
        at = model.at[i]
        if isinstance(fact, MemberEnded):
            self._died(fact.member_id, fact.incarnation)
            if accepted and at.known in (LIVE, FENCED):  # else it is waited for because of other tasks
                self._do(model.prove, i)
            return
        if isinstance(fact, MemberJoined):
            if not accepted or at.runs != NOT_STARTED:
                return
            if fact.ended_incarnation is not None:
                self._died(fact.member_id, fact.ended_incarnation)
            self._do(model.start, i)
        else:
            self._said(i, fact, accepted=accepted)
        self._do(model.append, i)
        if isinstance(fact, MemberJoined) and at.known != LIVE:
            raise NotAllowed("the model rejects the join")
        if at.runs == RUNS:
            self._do(model.acknowledge, i)

    def _died(self, member_id: str, incarnation: int) -> None:
        dead = self.index.get((member_id, incarnation))
        if dead is not None and self.model.at[dead].runs == RUNS:
            self._do(self.model.crash, dead)

    def _said(self, i: int, fact: Any, *, accepted: bool) -> None:
        """Brings the process's fact on its way, and compares what it says with what the process may
        run.
        """
        model, at = self.model, self.model.at[i]
        if isinstance(fact, MemberLeft):
            self._do(model.close, i)
            return
        says = 0
        if isinstance(fact, LagReported | TasksRevoked) and accepted and model.owner == i and fact.assignment_epoch >= self.epochs[i]:
            holds = isinstance(fact, LagReported) and self.task in fact.held
            if model.revoking:
                says = int(self.task in fact.tasks if isinstance(fact, TasksRevoked) else not holds)
            elif holds:
                if not (at.last_held if at.runs == OVER else at.grant == 1):
                    raise NotAllowed("it runs the task before its hold is over")
                says = 1
        self._do(model.send, i, says)

    def _expired(self, decisions: Sequence[Decision], out: set[int]) -> None:
        """The incarnations that the leader says are out are those that are `out` in the model."""
        said = {self._of(decision) for decision in decisions if isinstance(decision, MemberExpired)}
        if out - said:
            raise NotAllowed(f"{sorted(self.incarnations[i] for i in out - said)} expire in the model, and the leader does not say so")
        for decision in decisions:
            i = self._of(decision) if isinstance(decision, MemberExpired) else None
            if i is not None and isinstance(decision, MemberExpired):
                at = self.model.at[i]
                if at.known == LIVE:
                    raise NotAllowed(f"{decision.member_id} expires ({decision.cause}), and the model still counts it as a member")
                if at.known == FENCED and decision.hold_ms != self.model.waits(i):
                    raise NotAllowed(f"{decision.member_id} expires with a hold of {decision.hold_ms} ms; the model waits {self.model.waits(i)}")
                self.epochs.pop(i, None)

    def _assigned(self, decision: MemberAssigned) -> None:
        i, model = self._of(decision), self.model
        if i is None:
            return
        if model.at[i].known != LIVE:
            raise NotAllowed(f"{decision.member_id} is assigned tasks, and the model does not count it as a member")
        tokens = dict(zip(decision.active, decision.tokens, strict=True))
        if self.task in tokens:
            hold_ms = decision.hold_ms.get(self.task, 0)
            if hold_ms != model.hold:
                raise NotAllowed(f"{decision.member_id} is granted the task with a hold of {hold_ms} ms; the model's hold is {model.hold}")
            if self.tokens.get(i) != tokens[self.task]:
                if tokens[self.task] <= max(self.tokens.values(), default=0):
                    raise NotAllowed("the token does not rise")
                self.tokens[i], self.epochs[i] = tokens[self.task], decision.assignment_epoch
                self._do(model.give, i)
        elif model.owner == i and not model.revoking:
            if self.task not in decision.revoke:
                raise NotAllowed(f"{decision.member_id} loses the task without being asked to give it up")
            self.epochs[i] = decision.assignment_epoch
            self._do(model.move)
