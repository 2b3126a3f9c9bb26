"""Plans as JSON, and the reasons in them as sentences."""

from __future__ import annotations

from typing import Any

import attrs

from equipoise.assignors.common.plan import REASONS, MemberPlan, Plan, PlanCost, Reason, records_text
from equipoise.assignors.common.task_names import TaskNames
from equipoise.events.tasks import TaskId

PLAIN = TaskNames()


def plan_json(plan: Plan, names: TaskNames = PLAIN) -> dict[str, Any]:
    """The plan as lists and objects: keys in their fixed order, members and tasks in rising order,
    `active` in the order of the plan.
    """
    cost = plan.cost
    return {
        "members": {member: _member_json(part, names) for member, part in plan.members.items()},
        "target": {member: _texts(tasks, names) for member, tasks in plan.target.items()},
        "movements": [
            {"task": names.text(each.task), "source": each.source, "destination": each.destination, "state": each.state.value}
            for each in plan.movements
        ],
        "probing": plan.probing,
        "cost": {
            "moves": cost.moves,
            "moves_lower_bound": cost.moves_lower_bound,
            "restore_records": cost.restore_records,
            "cross_rack": cost.cross_rack,
            "imbalance": cost.imbalance,
            "optimal": cost.optimal,
            **_rack_cost_json(cost),
        },
        "reasons": reason_texts(plan, names),
        "unique": plan.unique,
        "imbalance_now": plan.imbalance_now,
        "lost_until_ms": {names.text(task): until_ms for task, until_ms in plan.lost_until_ms.items()},
        "revocations": attrs.asdict(plan.revocations),
        "memory": {key: value if isinstance(value, int) else [_memory_text(item, names) for item in value] for key, value in plan.memory.items()},
        **({} if plan.load is None else {"load": attrs.asdict(plan.load)}),
    }


def _memory_text(item: str | TaskId, names: TaskNames) -> str:
    return names.text(item) if isinstance(item, TaskId) else item


def _rack_cost_json(cost: PlanCost) -> dict[str, Any]:
    """Empty where racks make no difference."""
    if not cost.stages:
        return {}
    return {
        "rack_cost": cost.rack_cost,
        "rack_cost_lower_bound": cost.rack_cost_lower_bound,
        "stages": [{"stage": stage.name, "cost": stage.cost, "lower_bound": stage.lower_bound} for stage in cost.stages],
    }


def _member_json(part: MemberPlan, names: TaskNames) -> dict[str, list[str]]:
    lists = {"active": part.active, "standby": part.standby, "warmup": part.warmup, "revoke": part.revoke}
    return {key: _texts(tasks, names) for key, tasks in lists.items()}


def _texts(tasks: tuple[TaskId, ...], names: TaskNames) -> list[str]:
    return [names.text(task) for task in tasks]


def reason_texts(plan: Plan, names: TaskNames = PLAIN) -> dict[str, str]:
    """Task -> its reason as text: what it waits for or why it moves, and why the move is wanted."""
    moving = {movement.task: movement for movement in plan.movements}
    holder = {task: member for member, part in plan.members.items() for task in (*part.active, *part.revoke)}
    texts: dict[str, str] = {}
    for task, reason in plan.reasons.items():
        movement = moving.get(task)
        source = movement.source if movement is not None else holder.get(task)
        destination = movement.destination if movement is not None else holder.get(task)
        codes = [reason.code] if reason.because in (None, reason.code) else [reason.code, reason.because or ""]
        texts[names.text(task)] = "; ".join(_rendered(code, reason, source, destination) for code in codes)
    return texts


def _rendered(code: str, reason: Reason, source: str | None, destination: str | None) -> str:
    template = REASONS.get(code, code)
    return template.format(
        source=source or "nobody",
        destination=destination or "nobody",
        records=records_text(reason.lag_records),
        traffic=traffic_text(reason.rack_costs),
    )


def traffic_text(rack_costs: tuple[int, int] | None) -> str:
    """`` (traffic 20 before, 0 after)``; None: nothing."""
    return "" if rack_costs is None else f" (traffic {rack_costs[0]:,} before, {rack_costs[1]:,} after)"
