"""Who should run what: the question an assignor is asked, its answer, and the built-in assignors.

What the author of an assignor needs comes from here, and each built-in assignor from a package of
its own::

    from equipoise.assignors import AssignmentProblem, Guarantee, MemberPlan, Plan
    from equipoise.assignors.common import options
    from equipoise.assignors.high_availability import HighAvailability

Names are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from equipoise._guard import check_package_name

if TYPE_CHECKING:
    from equipoise.assignors.common import options
    from equipoise.assignors.common.assignor import Assignor, DelegatingAssignor, Guarantee, check_settings, deals_by_lag
    from equipoise.assignors.common.plan import REASONS, LoadBalance, MemberPlan, Plan, PlanCost, Reason, StageCost
    from equipoise.assignors.common.problem import (
        AssignmentProblem,
        MemberSpec,
        Memory,
        Movement,
        MovementState,
        Partition,
        Revocations,
        Task,
        TaskLoad,
    )

check_package_name(__name__, "equipoise.assignors")

_PLACES = {
    "REASONS": "equipoise.assignors.common.plan",
    "AssignmentProblem": "equipoise.assignors.common.problem",
    "Assignor": "equipoise.assignors.common.assignor",
    "Guarantee": "equipoise.assignors.common.assignor",
    "LoadBalance": "equipoise.assignors.common.plan",
    "MemberSpec": "equipoise.assignors.common.problem",
    "MemberPlan": "equipoise.assignors.common.plan",
    "Memory": "equipoise.assignors.common.problem",
    "Movement": "equipoise.assignors.common.problem",
    "MovementState": "equipoise.assignors.common.problem",
    "Partition": "equipoise.assignors.common.problem",
    "Plan": "equipoise.assignors.common.plan",
    "PlanCost": "equipoise.assignors.common.plan",
    "Reason": "equipoise.assignors.common.plan",
    "Revocations": "equipoise.assignors.common.problem",
    "StageCost": "equipoise.assignors.common.plan",
    "Task": "equipoise.assignors.common.problem",
    "TaskLoad": "equipoise.assignors.common.problem",
    "DelegatingAssignor": "equipoise.assignors.common.assignor",
    "check_settings": "equipoise.assignors.common.assignor",
    "deals_by_lag": "equipoise.assignors.common.assignor",
}

__all__ = [
    "REASONS",
    "AssignmentProblem",
    "Assignor",
    "DelegatingAssignor",
    "Guarantee",
    "LoadBalance",
    "MemberPlan",
    "MemberSpec",
    "Memory",
    "Movement",
    "MovementState",
    "Partition",
    "Plan",
    "PlanCost",
    "Reason",
    "Revocations",
    "StageCost",
    "Task",
    "TaskLoad",
    "check_settings",
    "deals_by_lag",
    "options",
]


def __getattr__(name: str) -> Any:
    if name == "options":
        return importlib.import_module("equipoise.assignors.common.options")
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module 'equipoise.assignors' has no attribute {name!r}")
    return getattr(importlib.import_module(place), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
