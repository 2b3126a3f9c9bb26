"""The smallest assignor: every task goes at once to the member that the configuration names."""

from __future__ import annotations

import attrs

from equipoise.assignors import AssignmentProblem, Guarantee, MemberPlan, MemberSpec, Movement, MovementState, Plan, PlanCost, Reason, Task
from equipoise.events.tasks import TaskId


class ScriptedAssignor:
    """`GroupSettings.options` maps a task's text form to a member. A task whose member is missing
    stays where it is, or goes to the first eligible member.

    No state is moved: it is for stateless tasks, for which the two phases of KIP-415, revoke and
    then assign, are enough.
    """

    name = "go_where_told"
    version = 1
    solver = ""
    guarantees = frozenset({Guarantee.ALWAYS_OWNED})

    def assign(self, problem: AssignmentProblem) -> Plan:
        members = sorted(problem.members, key=lambda member: member.id)
        owner = {task: member.id for member in members for task in member.active}
        carried = {movement.task: movement for movement in problem.in_flight}
        active: dict[str, list[TaskId]] = {member.id: [] for member in members}
        revoke: dict[str, list[TaskId]] = {member.id: [] for member in members}
        target: dict[str, list[TaskId]] = {member.id: [] for member in members}
        movements: list[Movement] = []
        reasons: dict[TaskId, Reason] = {}
        for task in sorted(problem.tasks, key=lambda task: task.id):
            now = owner.get(task.id)
            to = carried[task.id].destination if task.id in carried else self._destination(problem, members, task, now)
            if to is not None:
                target[to].append(task.id)
            if now is None and to is not None:
                active[to].append(task.id)
                reasons[task.id] = Reason(code="unowned")
            elif now is not None and now == to:
                active[now].append(task.id)
            elif now is not None:
                revoke[now].append(task.id)
                if to is not None:
                    movements.append(Movement(task=task.id, source=now, destination=to, state=MovementState.REVOKING))
                    reasons[task.id] = Reason(code="carried" if task.id in carried else "balance")
        plans = {member.id: MemberPlan(active=tuple(active[member.id]), revoke=tuple(revoke[member.id])) for member in members}
        cost = PlanCost(moves=len(movements), moves_lower_bound=0, restore_records=0, cross_rack=0, imbalance=0, optimal=False)
        return Plan(
            members=plans,
            target={member_id: tuple(tasks) for member_id, tasks in target.items()},
            movements=tuple(movements),
            reasons=reasons,
            probing=False,
            cost=cost,
        )

    def _destination(self, problem: AssignmentProblem, members: list[MemberSpec], task: Task, now: str | None) -> str | None:
        eligible = [member.id for member in members if not member.leaving and member.knows(task.id)]
        configured = problem.settings.options.get(str(task.id))
        if configured in eligible:
            return str(configured)
        if now in eligible:
            return now
        return eligible[0] if eligible else None


class OtherAssignor(ScriptedAssignor):
    """Every task goes to another eligible member than the one that the configuration names."""

    name = "go_elsewhere"
    guarantees = frozenset()

    def _destination(self, problem: AssignmentProblem, members: list[MemberSpec], task: Task, now: str | None) -> str | None:
        eligible = [member for member in members if member.id != problem.settings.options.get(str(task.id))]
        return super()._destination(attrs.evolve(problem, settings=attrs.evolve(problem.settings, options={})), eligible or members, task, now)


def load(name: str, version: int) -> ScriptedAssignor:
    """For `GroupMachine(load=...)`."""
    return OtherAssignor() if name == OtherAssignor.name else ScriptedAssignor()
