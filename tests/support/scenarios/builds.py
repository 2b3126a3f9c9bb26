"""The build that leads a scenario's group. It may lack an assignor or have a defective one, so that
scenarios can show halts (see docs/protocol.md, L6).
"""

from __future__ import annotations

import attrs

from equipoise.assignors import AssignmentProblem, Assignor, DelegatingAssignor, Movement, Plan, registry
from equipoise.events.errors import InputError

DEFECTS = ("none", "owner_twice", "gives_up", "other_ties")


class Build:
    """Loads assignors as the registry does, except for those it lacks."""

    def __init__(self) -> None:
        self.lacks: frozenset[str] = frozenset()
        self.defect = "none"
        """none; owner_twice: its plans give the first task to every member; gives_up: it raises;
        other_ties: it breaks ties as another solver may.
        """

    def load(self, name: str, version: int) -> Assignor:
        """Raises InputError for an assignor that is not in the build."""
        if name in self.lacks:
            raise InputError(f"assignor {name!r} version {version} is not in this build")
        return _Defective(registry.load(name, version), self)


class _Defective(DelegatingAssignor):
    """An assignor with the present defect of its build."""

    def __init__(self, assignor: Assignor, build: Build) -> None:
        super().__init__(assignor)
        self._build = build

    def assign(self, problem: AssignmentProblem) -> Plan:
        if not problem.members:
            return self.wrapped.assign(problem)  # only asks which settings the assignor supports
        if self._build.defect == "gives_up":
            raise InputError("the solver gave up")
        if self._build.defect == "other_ties":
            return _under_other_names(self.wrapped, problem)
        plan = self.wrapped.assign(problem)
        if self._build.defect == "none":
            return plan
        first = min(task.id for task in problem.tasks)
        members = {name: attrs.evolve(part, active=tuple(sorted({first, *part.active}))) for name, part in plan.members.items()}
        return attrs.evolve(plan, members=members)


def _under_other_names(assignor: Assignor, problem: AssignmentProblem) -> Plan:
    """Solves the problem under other member ids. Ids break ties, so the plan is equally good and
    often different.
    """
    prefix = "other-"

    def renamed(movement: Movement) -> Movement:
        source = None if movement.source is None else prefix + movement.source
        return attrs.evolve(movement, source=source, destination=prefix + movement.destination)

    def named_back(movement: Movement) -> Movement:
        source = None if movement.source is None else movement.source.removeprefix(prefix)
        return attrs.evolve(movement, source=source, destination=movement.destination.removeprefix(prefix))

    plan = assignor.assign(
        attrs.evolve(
            problem,
            members=tuple(attrs.evolve(member, id=prefix + member.id) for member in problem.members),
            in_flight=tuple(map(renamed, problem.in_flight)),
            blocked=frozenset((task, prefix + member_id) for task, member_id in problem.blocked),
        )
    )
    return attrs.evolve(
        plan,
        members={name.removeprefix(prefix): part for name, part in plan.members.items()},
        target={name.removeprefix(prefix): tasks for name, tasks in plan.target.items()},
        movements=tuple(map(named_back, plan.movements)),
    )
