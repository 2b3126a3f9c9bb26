"""The first deal of a simulated group: every task and every copy goes where it is now. From then on
the group's own assignor decides.
"""

from __future__ import annotations

from equipoise.assignors import AssignmentProblem, Assignor, Guarantee, MemberPlan, Plan, PlanCost, Reason, registry
from equipoise.assignors.common.assignor import DelegatingAssignor
from equipoise.replay.prediction.present import PresentGroup
from equipoise.statemachine.machine import GroupMachine


class FirstDeal:
    """Makes the machines of one simulated group. Until `is_over` their assignor answers with the
    group as it is now, for the members that are there.
    """

    def __init__(self, present: PresentGroup) -> None:
        self.present = present
        self.is_over = False

    def machine(self, checkpoint: bytes | None) -> GroupMachine:
        """Returns a machine, as `equipoise.statemachine.partition.real_machine` does."""
        return GroupMachine(load=self.load) if checkpoint is None else GroupMachine.restore(checkpoint, load=self.load)

    def load(self, name: str, version: int) -> Assignor:
        """Returns the assignor, behind this deal. Raises InputError when it is not installed."""
        return _PlacedAsNow(self, registry.load(name, version))


class _PlacedAsNow(DelegatingAssignor):
    """Answers for another assignor until the first deal is over."""

    def __init__(self, deal: FirstDeal, assignor: Assignor) -> None:
        super().__init__(assignor)
        self._deal = deal

    @property
    def guarantees(self) -> frozenset[Guarantee]:
        # The group may be in the middle of something, which is then as it is.
        return self.wrapped.guarantees if self._deal.is_over else frozenset()

    def assign(self, problem: AssignmentProblem) -> Plan:
        present = self._deal.present
        members = {member.member_id: member for member in present.members}
        ids = [member.id for member in problem.members]
        tasks = {task.id for task in problem.tasks}
        has_owners = all(present.owners.get(task) in members for task in tasks)
        is_as_now = all(owner == present.owners.get(task) for task, owner in problem.owner.items())
        if self._deal.is_over or not has_owners or not is_as_now or not members.keys() >= set(ids):
            return self.wrapped.assign(problem)
        owned = {name: tuple(task for task in sorted(tasks) if present.owners[task] == name) for name in sorted(ids)}
        return Plan(
            members={name: MemberPlan(active=owned[name], standby=tuple(sorted(members[name].standbys & tasks))) for name in owned},
            target=owned,
            movements=(),
            reasons={task: Reason(code="carried") for task in sorted(tasks) if present.owners[task] in owned},
            probing=True,
            cost=PlanCost(moves=0, moves_lower_bound=0, restore_records=0, cross_rack=0, imbalance=0, optimal=False),
            revocations=present.revocations,
            memory=present.memory,
        )
