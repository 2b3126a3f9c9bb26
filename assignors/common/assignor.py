"""The assignor protocol, the guarantees an assignor may declare, and a base class for wrappers."""

from __future__ import annotations

import enum
from typing import Protocol

from equipoise.assignors.common.plan import Plan
from equipoise.assignors.common.problem import AssignmentProblem
from equipoise.events.settings import GroupSettings


class Guarantee(enum.Enum):
    """The invariants an assignor may declare; 1, 3, 6 and 8 bind every assignor. Checked where
    declared.
    """

    ALWAYS_OWNED = 2
    """Every task has exactly one target owner whenever an eligible member exists, or a stated
    lost_until_ms.
    """
    CAUGHT_UP_FIRST = 4
    """A stateful task is granted only to a caught-up member if one is alive and eligible."""
    COPIES_CAPPED = 5
    """Warm-ups never exceed their caps, standbys never the number asked for."""
    CONVERGES = 7
    """With truthful reports the balanced target is reached within a stated bound and kept."""
    LEAVING_APART = 9
    """Beside COPIES_CAPPED: copies that take over from leaving members are outside the caps, as
    many as are restored before the drain timeout.
    """


class Assignor(Protocol):
    """Who should run what. Pure: no clock, randomness, environment, or memory from call to call."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> int:
        """Behaviour version: rises when any problem gets another plan."""

    @property
    def solver(self) -> str:
        """Name and version of the pinned solver, or ""."""

    @property
    def guarantees(self) -> frozenset[Guarantee]: ...
    def assign(self, problem: AssignmentProblem) -> Plan:
        """Raises InputError on a problem it cannot take, never anything else but for a defect."""


def deals_by_lag(assignor: Assignor) -> bool:
    """Whether it deals tasks by the lags of their sources (`Task.lag`), as it says by an attribute
    of this name. Then the leader has the lags observed, waits for them before the first round
    (PROTOCOL D2), and takes requests for a new deal (PROTOCOL D11)."""
    return bool(getattr(assignor, "deals_by_lag", False))


def check_settings(assignor: Assignor, settings: GroupSettings) -> None:
    """Asks the assignor about an empty group. Raises InputError when it cannot take these settings,
    whatever the group.
    """
    assignor.assign(AssignmentProblem(tasks=(), members=(), settings=settings))


class DelegatingAssignor:
    """An assignor that passes for another one, whose questions or answers it looks at or changes.
    To be subclassed.
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
