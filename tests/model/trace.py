"""Recorded logs as runs of the model (`tests.model.lease`), one for each task, with times in ms.

A log has the leader's half: facts with their times, and decisions. Each record is folded by the
model, which must then expire, fence, wait and hold exactly as the decisions say. The members' half
is chosen as dangerous as the log allows: an append is acknowledged at once, a decision is read at
once, a fetch reaches the end at every moment, but an incarnation never reads that it is out, and
runs on until its lease is over. A decision is taken as published when its fact was appended, so a
log whose worker was away for long is refused. What a member reports must be what it may run by
then. So "no two owners" is judged for the worst run that has this log, and not only for the run
that was recorded.

The processes of a task are the incarnations of all members that ever had it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import attrs

from equipoise.events.decisions import Decision, EventRejected, MemberAssigned, MemberExpired
from equipoise.events.facts import (
    GroupConfigured,
    LagReported,
    LeaveCancelled,
    LeaveIntended,
    MemberJoined,
    MemberLeft,
    TaskReady,
    TasksRevoked,
)
from equipoise.events.parts import whole
from equipoise.events.records import DecisionRecord, Record
from equipoise.events.tasks import TaskId
from tests.model.configurations import Configuration, Process
from tests.model.lease import FENCED, LIVE, NOT_STARTED, REVOKED, RUNS, TASK, Lease, NotAllowed, NotWaitedFor, TwoOwners

Step = tuple[Record, Sequence[Decision]]
Incarnation = tuple[str, int]
OF_A_MEMBER = (LagReported, LeaveCancelled, LeaveIntended, MemberLeft, TaskReady, TasksRevoked)


class Refused(Exception):
    """The log is no run of the model."""


@attrs.frozen
class Followed:
    """Runs of the model that were followed: one for each task, with so many actions in all."""

    tasks: int
    actions: int


def follow(records: Iterable[Record], decisions: Iterable[DecisionRecord]) -> Followed:
    """Follows one group's log from its first fact. Raises Refused."""
    by_cause: dict[int, list[Decision]] = {}
    for decided in decisions:
        by_cause.setdefault(decided.caused_by, []).append(decided.decision)
    steps = [(record, tuple(whole(by_cause.get(record.offset, [])))) for record in records]
    had: dict[TaskId, set[str]] = {}
    for _, decided_now in steps:
        for decision in decided_now:
            if isinstance(decision, MemberAssigned):
                for task in decision.active:
                    had.setdefault(task, set()).add(decision.member_id)
    actions = sum(_Run(task, steps, had[task]).follow() for task in sorted(had))
    return Followed(len(had), actions)


def _accepted(step: Step) -> bool:
    return not any(isinstance(decision, EventRejected) for decision in step[1])


class _Run:
    """The run of the model for one task of a log."""

    def __init__(self, task: TaskId, steps: Sequence[Step], members: set[str]) -> None:
        self.task = task
        self.steps = steps
        self.index: dict[Incarnation, int] = {}
        processes: list[Process] = []
        latest: dict[str, int] = {}
        numbers = {name: number for number, name in enumerate(sorted(members))}
        most_step_ms = 1
        self.facts: dict[Incarnation, deque[int]] = {}
        for step in steps:
            record, fact = step[0], step[0].event
            if isinstance(fact, GroupConfigured):
                most_step_ms = max(most_step_ms, fact.knobs.max_step_ms)
            elif isinstance(fact, MemberJoined) and fact.member_id in numbers and _accepted(step):
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
            elif isinstance(fact, OF_A_MEMBER):
                self.facts.setdefault((fact.member_id, fact.incarnation), deque()).append(record.append_ms)
        given = Configuration(processes=tuple(processes), jumps=len(steps), step=1, raised=most_step_ms + 1, moves=True, crashes=True, closes=True)
        self.model = Lease(given)
        self.model.owner = self.model.none
        self.pieces_ms = max(1, min((process.session - process.margin for process in processes), default=1) // 2)
        self.tokens: dict[int, int] = {}
        self.epochs: dict[int, int] = {}
        """Process -> the epoch of the last change of the task there."""
        self.actions = 0

    def follow(self) -> int:
        before_ms: int | None = None
        for step in self.steps:
            record = step[0]
            passed_ms = 0 if before_ms is None else record.append_ms - before_ms
            before_ms = record.append_ms
            try:
                self._pass(max(0, passed_ms))
                self._step(step)
            except NotAllowed as error:
                raise Refused(f"offset {record.offset}, {self.task}: {error}") from error
            except (TwoOwners, NotWaitedFor) as error:
                raise Refused(f"offset {record.offset}, {self.task}: {error}") from error
        return self.actions

    def _do(self, action: Callable[..., None], *arguments: int) -> None:
        self.actions += 1
        try:
            action(*arguments)
        except NotAllowed:
            raise NotAllowed(f"{action.__name__}{arguments} is not allowed") from None

    def _pass(self, duration_ms: int) -> None:
        """Time passes, and every process keeps its reader at the end, unless it would read its own
        end. More than a whole session without a record is taken for a jump of the clock, which ends
        no lease.
        """
        longest_ms = max((process.session for process in self.model.processes), default=1)
        if duration_ms > longest_ms:
            self._do(self.model.jump)
            return
        while duration_ms > 0:
            piece_ms = min(duration_ms, self.pieces_ms) if any(at.runs == RUNS for at in self.model.at) else duration_ms
            duration_ms -= piece_ms
            self._do(self.model.time, min(piece_ms, longest_ms))
            self._read()

    def _read(self) -> None:
        """Every process reads what changes what it runs, and nothing that ends it."""
        model = self.model
        for i, at in enumerate(model.at):
            if at.runs != RUNS:
                continue
            wanted = 0
            while wanted < len(at.unread) and (at.unread[wanted] == REVOKED or at.unread[wanted] >= TASK):
                wanted += 1
            if wanted or (not at.unread and at.seen):
                self._do(model.ask, i)
                self._do(model.serve, i, wanted)
                self._do(model.arrive, i)

    def _step(self, step: Step) -> None:
        record, decisions = step
        fact, model = record.event, self.model
        before = {i for i in model.everyone if model.at[i].known == LIVE}
        if model.since:
            self._do(model.tick)
        for decision in decisions:
            if isinstance(decision, MemberExpired) and decision.cause == "revocation_timeout" and self._of(decision) is not None:
                self._do(model.expel, self._of(decision))  # type: ignore[arg-type]
        self._appended(fact, record.append_ms, accepted=_accepted(step))
        if not (isinstance(fact, MemberLeft) and _accepted(step)):
            self._expired(decisions, {i for i in before if model.at[i].known != LIVE})
        for decision in decisions:
            if isinstance(decision, MemberAssigned):
                self._assigned(decision)
        self._read()

    def _of(self, named: Any) -> int | None:
        return self.index.get((named.member_id, named.incarnation))

    def _appended(self, fact: Any, append_ms: int, *, accepted: bool) -> None:
        model = self.model
        if isinstance(fact, GroupConfigured) and accepted:
            self._do(model.configure, fact.knobs.max_step_ms)
            if model.most != fact.knobs.max_step_ms:
                raise NotAllowed("max_step_ms exceeds a margin")
            return
        i = self._of(fact) if isinstance(fact, (MemberJoined, *OF_A_MEMBER)) else None
        if i is None:
            return
        at = model.at[i]
        if isinstance(fact, MemberJoined):
            if not accepted or at.runs != NOT_STARTED:
                return
            if fact.ended_incarnation is not None:
                self._died(fact.member_id, fact.ended_incarnation)
            self._do(model.start, i)
        else:
            self.facts[fact.member_id, fact.incarnation].popleft()
            if at.runs != RUNS and not at.batch and not accepted:
                return  # of a process that is known to be dead: it came late, and changes nothing
            self._said(i, fact, accepted=accepted)
        self._do(model.append, i)
        if isinstance(fact, MemberJoined) and at.known != LIVE:
            raise NotAllowed("the model rejects the join")
        if at.runs == RUNS:
            self._do(model.acknowledge, i)
            upcoming = self.facts.get((fact.member_id, fact.incarnation))
            if upcoming and upcoming[0] - append_ms >= model.lasts(i):
                self._do(model.send, i, 0)  # it comes when the lease is over, so it was sent before

    def _died(self, member_id: str, incarnation: int) -> None:
        dead = self.index.get((member_id, incarnation))
        if dead is not None and self.model.at[dead].runs == RUNS:
            self._do(self.model.crash, dead)

    def _said(self, i: int, fact: Any, *, accepted: bool) -> None:
        """Brings the process's fact on its way, and compares what it says with what the process may
        run.
        """
        model, at = self.model, self.model.at[i]
        says = 0
        if isinstance(fact, LagReported | TasksRevoked) and accepted and model.owner == i and fact.assignment_epoch >= self.epochs[i]:
            holds = self.task in fact.held if isinstance(fact, LagReported) else self.task not in fact.tasks
            if model.revoking:
                says = int(not holds)
            elif holds:
                if at.grant != 1:
                    raise NotAllowed("it runs the task before its hold is over")
                says = 1
        if isinstance(fact, MemberLeft):
            if at.runs == RUNS and not at.batch:
                self._do(model.close, i)
        elif not at.batch:
            self._do(model.send, i, says)

    def _expired(self, decisions: Sequence[Decision], out: set[int]) -> None:
        """The incarnations that the leader says are out are those that are `out` in the model."""
        said = {self._of(decision) for decision in decisions if isinstance(decision, MemberExpired)}
        if out - said:
            raise NotAllowed(f"{len(out - said)} members expire in the model, and the leader does not say so")
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

