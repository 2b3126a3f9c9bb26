"""The build that runs the group: it may lack an assignor, or have a defective one, so that halts can be played (PROTOCOL L6)."""

from __future__ import annotations

import attrs

from assignors import registry
from assignors.problem import AssignmentProblem, Assignor, Guarantee, Plan
from events.errors import InputError

DEFECTS = ("none", "owner_twice", "gives_up")


class Build:
    """Finds assignors as the registry does, but for what it is made to lack."""

    def __init__(self) -> None:
        self.lacks: frozenset[str] = frozenset()
        self.defect = "none"
        """none; owner_twice: its plans give the first task to every member; gives_up: it raises."""

    def load(self, name: str, version: int) -> Assignor:
        if name in self.lacks:
            raise InputError(f"assignor {name!r} version {version} is not in this build")
        return _Defective(registry.load(name, version), self)


class _Defective:
    """An assignor with the defect that its build has at the moment."""

    def __init__(self, assignor: Assignor, build: Build) -> None:
        self._assignor = assignor
        self._build = build

    @property
    def name(self) -> str:
        return self._assignor.name

    @property
    def version(self) -> int:
        return self._assignor.version

    @property
    def solver(self) -> str:
        return self._assignor.solver

    @property
    def guarantees(self) -> frozenset[Guarantee]:
        return self._assignor.guarantees

    def assign(self, problem: AssignmentProblem) -> Plan:
        if self._build.defect == "gives_up":
            raise InputError("the solver gave up")
        plan = self._assignor.assign(problem)
        if self._build.defect == "none":
            return plan
        first = min(task.id for task in problem.tasks)
        members = {name: attrs.evolve(part, active=tuple(sorted({first, *part.active}))) for name, part in plan.members.items()}
        return attrs.evolve(plan, members=members)
