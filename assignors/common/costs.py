"""Costs of a target beyond changes of owner, counted in the same way for every assignor."""

from __future__ import annotations

from collections.abc import Mapping

from equipoise.assignors.common.indexed_problem import IndexedProblem
from equipoise.assignors.common.plan import PlanCost, StageCost
from equipoise.assignors.common.standby_goal import StandbyGoal
from equipoise.assignors.common.target import Target
from equipoise.events.tasks import TaskId


def restore_records(indexed: IndexedProblem, target: Mapping[TaskId, str]) -> int:
    """Records to be restored before the target is reached: by members that do not own the task yet
    and are not caught up.
    """
    records = 0
    for task in indexed.changes(target):
        if task in target and task not in indexed.class_of and not (indexed.tasks[task].stateful and indexed.caught_up(target[task], task)):
            records += indexed.records(target[task], task)
    for each in indexed.equivalence_classes:
        if each.first.stateful and indexed.eligible(each.first.id):
            records += sum(each.records)
    return records


def cross_rack(indexed: IndexedProblem, target: Mapping[TaskId, str]) -> int:
    """Source partitions whose replicas are all in other racks than the task's owner in the target;
    unknown racks do not count.
    """
    remote = 0
    known = {member: rack for member, rack in indexed.racks.of.items() if rack is not None}
    for task, owner in target.items() if known else ():
        if owner in known:
            for partition in indexed.tasks[task].source:
                remote += bool(partition.racks) and known[owner] not in partition.racks
    return remote


def rack_cost(indexed: IndexedProblem, now: Mapping[TaskId, str], target: Mapping[TaskId, str]) -> int:
    """Rack cost of running the tasks at the target, and of the moves that lead there from the
    owners of this plan.
    """
    racks = indexed.racks
    return racks.total(target) + sum(racks.move_cost(task) for task, owner in target.items() if task in now and now[task] != owner)


def rack_stages(indexed: IndexedProblem, now: Mapping[TaskId, str], target: Target, standbys: StandbyGoal | None) -> tuple[StageCost, ...]:
    """The stages with their cost and lower bound; empty where racks make no difference.

    The bound of the first stage is its cost if the solver proved the target optimal among equally
    balanced ones; otherwise the sum of the least cost of each task.
    """
    racks, stages = indexed.racks, []
    if racks.counts:
        cost = rack_cost(indexed, now, target.owner)
        stages.append(StageCost(name="active", cost=cost, lower_bound=cost if target.optimal else racks.least()))
    if racks.copies_count and standbys is not None:
        stages.append(standbys.stage)
    return tuple(stages)


def rack_lower_bound(stages: tuple[StageCost, ...], standbys: StandbyGoal | None) -> int:
    """Lower bound of all stages together: the sum of each stage's own."""
    return sum(standbys.least if stage.name == "standby" and standbys is not None else stage.lower_bound for stage in stages)


def plan_cost(
    indexed: IndexedProblem, now: Mapping[TaskId, str], target: Target, standbys: StandbyGoal | None, *, moves: int, bound: int, imbalance: int
) -> PlanCost:
    """The cost of a plan from `now` to the target. `bound`: of its `moves`. `standbys`: their goal,
    where racks matter to them.
    """
    stages = rack_stages(indexed, now, target, standbys)
    rack_bound = rack_lower_bound(stages, standbys)
    optimal = sum(stage.cost for stage in stages) == rack_bound if stages else target.optimal or moves == bound
    return PlanCost(
        moves=moves,
        moves_lower_bound=bound,
        restore_records=restore_records(indexed, target.owner),
        cross_rack=cross_rack(indexed, target.owner),
        imbalance=imbalance,
        optimal=optimal and not indexed.lacks_standbys and (standbys is None or standbys.within_steps),
        stages=stages,
        rack_cost_lower_bound=rack_bound,
    )
