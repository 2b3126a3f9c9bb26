"""The assignor protocol, the guarantees an assignor may declare, and a base class for wrappers."""

from __future__ import annotations

import enum
from typing import Protocol

from equipoise.assignors.common.plan import Plan
from equipoise.assignors.common.problem import AssignmentProblem
from equipoise.events.settings import GroupSettings


class Guarantee(enum.Enum):
    """Invariants that an assignor may declare; `plan_faults` checks those declared. Invariants 1,
    3, 6 and 8 bind every assignor.
    """

    ALWAYS_OWNED = 2
    """Every task with an eligible member has exactly one target owner, or an entry in
    lost_until_ms.
    """
    CAUGHT_UP_FIRST = 4
    """A stateful task is granted to a caught-up member while an eligible one lives."""
    COPIES_CAPPED = 5
    """Warm-ups stay within their caps, standbys within num_standbys."""
    CONVERGES = 7
    """With truthful reports the group reaches its balanced target within a stated bound and keeps
    it.
    """
    LEAVING_APART = 9
    """Extends COPIES_CAPPED: copies that take over from leaving members are outside the caps, as
    many as are restored before the drain timeout.
    """


class Assignor(Protocol):
    """Decides who runs what. Pure: no clock, no randomness, no environment, no memory between
    calls.
    """

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> int:
        """Behaviour version: rises when the plan of any problem changes."""

    @property
    def solver(self) -> str:
        """Name and version of the pinned solver; "": none."""

    @property
    def guarantees(self) -> frozenset[Guarantee]: ...
    def assign(self, problem: AssignmentProblem) -> Plan:
        """The plan for the problem. Raises InputError when it cannot take the problem; any other
        exception is a defect.
        """


def deals_by_lag(assignor: Assignor) -> bool:
    """Returns whether the assignor deals tasks by the lags of their sources (`Task.lag`): its
    attribute of this name. The leader then has the lags observed, waits for them before the first
    round, and accepts requests for a new deal. See docs/protocol.md#d11.
    """
    return bool(getattr(assignor, "deals_by_lag", False))


def check_settings(assignor: Assignor, settings: GroupSettings) -> None:
    """Asks the assignor about an empty group. Raises InputError when it does not take the settings."""
    assignor.assign(AssignmentProblem(tasks=(), members=(), settings=settings))


class DelegatingAssignor:
    """Base of assignors that forward to another one under its name, and record or change its
    problems or plans.
    """

    def __init__(self, assignor: Assignor) -> None:
        self.wrapped = assignor

    @property
    def name(self) -> str:
        return self.wrapped.name

    @property
    def version(self) -> int:
        return self.wrapped.version

    @property
    def solver(self) -> str:
        return self.wrapped.solver

    @property
    def guarantees(self) -> frozenset[Guarantee]:
        return self.wrapped.guarantees

    @property
    def deals_by_lag(self) -> bool:
        return deals_by_lag(self.wrapped)

    def assign(self, problem: AssignmentProblem) -> Plan:
        return self.wrapped.assign(problem)
