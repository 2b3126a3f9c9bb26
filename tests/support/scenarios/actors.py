"""Models of a scenario's members. Each knows what a truthful member would report, which is the
default of every report.
"""

from __future__ import annotations

import attrs

from equipoise.events.decisions import MemberAssigned
from equipoise.events.facts import LagReported, Load, MemberJoined
from equipoise.events.tasks import Lag, LagSentinel, TaskId


@attrs.define(kw_only=True)
class Actor:
    """One incarnation of a member. `lags`: its copies on disk and the tasks it runs. `granted`: the
    last assignment it was sent.
    """

    member_id: str
    incarnation: int
    session_timeout_ms: int
    lags: dict[TaskId, Lag]
    granted: MemberAssigned | None = None
    applied_epoch: int = 0
    held: tuple[TaskId, ...] = ()
    ready: tuple[TaskId, ...] = ()
    leaving: bool = False
    report_number: int = -1
    load: Load | None = None
    holds_end_ms: dict[TaskId, int] = attrs.field(factory=dict)
    """Task taken by force -> group time at which its hold is over, counted from the report that
    first applied the grant.
    """

    def report(self, **replaced: object) -> LagReported:
        """The next full report, with the fields in `replaced` changed."""
        self.report_number = number = int(replaced.pop("number", self.report_number + 1))  # type: ignore[call-overload]
        fields = {
            "assignment_epoch": self.applied_epoch,
            "held": self.held,
            "ready": self.ready,
            "lags": dict(sorted(self.lags.items())),
            "leaving": self.leaving,
            "load": self.load,
            **replaced,
        }
        return LagReported(member_id=self.member_id, incarnation=self.incarnation, number=number, **fields)  # type: ignore[arg-type]

    def take_back(self, before: Actor) -> None:
        """Restores the state before a report that was rejected. Only the report number stays used."""
        self.applied_epoch, self.held, self.ready = before.applied_epoch, before.held, before.ready
        self.lags, self.leaving, self.load = before.lags, before.leaving, before.load
        self.report_number = max(self.report_number, before.report_number)

    def apply(self, now_ms: int, stateful: frozenset[int], whole: dict[TaskId, int]) -> None:
        """Applies the last assignment: runs granted tasks (after the hold), keeps copies, closes
        revoked tasks.

        `stateful`: sub-topologies with state. `whole`: end offsets; a new copy starts that far
        behind.
        """
        granted = self.granted
        if granted is None:
            return
        if granted.assignment_epoch != self.applied_epoch:
            for task, hold_ms in granted.hold_ms.items():
                self.holds_end_ms.setdefault(task, now_ms + hold_ms)
            self.holds_end_ms = {task: end_ms for task, end_ms in self.holds_end_ms.items() if task in granted.active}
        self.applied_epoch = granted.assignment_epoch
        self.held = tuple(task for task in granted.active if self.holds_end_ms.get(task, 0) <= now_ms)
        for task in [task for task, lag in self.lags.items() if lag is LagSentinel.ACTIVE and task not in granted.active]:
            self.lags[task] = 0  # what it ran is on its disk, up to the last record
        for task in self.held:
            if task.subtopology in stateful:
                self.lags[task] = LagSentinel.ACTIVE
        for task in (*granted.standby, *granted.warmup):
            self.lags.setdefault(task, whole.get(task, DEFAULT_END_OFFSET))
        self.declare()

    def declare(self) -> None:
        """Declares every kept copy ready that is restored to the last record."""
        granted = self.granted
        kept = () if granted is None else (*granted.standby, *granted.warmup)
        self.ready = tuple(sorted(task for task in kept if task in self.ready or self.lags.get(task) == 0))

    def restore(self, records: int) -> None:
        """Restores `records` records of each copy it keeps."""
        granted = self.granted
        if granted is None:
            return
        for task in (*granted.standby, *granted.warmup):
            lag = self.lags.get(task)
            if isinstance(lag, int):
                self.lags[task] = max(0, lag - records)
        self.declare()


DEFAULT_END_OFFSET = 100_000
"""Records in a changelog without an observed end offset: ten times the default acceptable lag."""


def joined(fact: MemberJoined) -> Actor:
    """The actor of a new incarnation."""
    return Actor(member_id=fact.member_id, incarnation=fact.incarnation, session_timeout_ms=fact.session_timeout_ms, lags=dict(fact.lags))
