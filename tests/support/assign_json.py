"""Problems as lines of JSON, and their plans: the form of recorded vectors and of the drivers of
Kafka's own assignors (`bench/java`).

Errors name the field by its JSON path. The keys of a plan are in a fixed order.

::

    {"assignor": "high_availability", "version": 1, "config": {"num_standbys": 1},
     "tasks": [{"id": "0_0", "stateful": true, "end_offset": 5000,
                "source": [{"topic": "t", "partition": 0, "racks": ["a"]}]}],
     "members": [{"id": "m1", "capacity": 2, "active": ["0_0"], "lags": {"0_0": "active"}}]}

Required are `tasks` and `members`, in each task `id` and `stateful`, in each member `id`. Without
`version` the highest installed one decides. Further keys are those of `AssignmentProblem`, `Task`,
`Member`, `Partition`, `Movement` and `Revocations`; `problem_json` lists the few whose names
differ. `in_flight` holds movements as a plan prints them, `blocked` pairs [task, member], and
`revocations` and `memory` come from the last plan.

The tasks of a group of plain consumers are partitions of topics. Each has a name (`id`), `topic`,
`partition`, and the group's `lag` on it: a number of records; "unknown", or left out, counts as 0.
Offsets may replace the lag: `end`, and `committed` or, where the group has committed nothing,
`beginning` and the option `auto_offset_reset`. A member may name the `topics` it subscribes to
(left out: all)::

    {"assignor": "lag_aware", "config": {"options": {"cross_topic": true}},
     "tasks": [{"id": "t0-0", "topic": "t0", "partition": 0, "lag": 753}],
     "members": [{"id": "c1", "topics": ["t0"]}]}

A member may report a lag of `"active"` for a task that it does not own, as a zombie does. Its copy
counts as one of unknown age.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from equipoise.assignors import registry
from equipoise.assignors.common.problem import AssignmentProblem
from equipoise.assignors.common.task_names import TaskNames
from equipoise.assignors.common.validation import plan_faults
from equipoise.bridge.question import as_object, check_keys, parse, read_at, read_text, read_whole, refuse
from equipoise.events.errors import EquipoiseError, FieldError
from tests.support.plan_json import plan_json
from tests.support.problem_json import PROBLEM_KEYS, read_problem

DEFAULT_ASSIGNOR = "high_availability"


class PlanUnsound(EquipoiseError):
    """A plan breaks an invariant or a guarantee of its assignor: a defect of the assignor."""

    exit_code = 1


def assign_line(line: str | bytes) -> str:
    """Answers one problem, a line of JSON, with its plan, a line of JSON.

    Raises InputError with the JSON path of what is wrong with the problem, and PlanUnsound when the
    plan breaks an invariant or a guarantee of its assignor. Raises FieldError, with the path of the
    field in the line's JSON.
    """
    name, version, problem, names = read_at("$", _read_question, parse(line))
    assignor = registry.latest(name) if version is None else registry.load(name, version)
    try:
        plan = assignor.assign(problem)
    except FieldError as error:
        raise FieldError(f"$.{error.field}", error.problem) from error
    faults = plan_faults(problem, plan, assignor.guarantees)
    if faults:
        raise PlanUnsound(f"the plan of {assignor.name} {assignor.version} does not hold: {faults[0]}")
    return json.dumps(plan_json(plan, names), ensure_ascii=False, separators=(",", ":"))


def problem_of(line: str | bytes) -> tuple[str, int | None, AssignmentProblem]:
    """Reads one problem: the name of its assignor, the version (None: the highest installed), and
    the problem. Raises InputError with the JSON path of what is wrong.
    """
    name, version, problem, _ = read_at("$", _read_question, parse(line))
    return name, version, problem


def _read_question(value: Any, _: Any = None) -> tuple[str, int | None, AssignmentProblem, TaskNames]:
    content = dict(as_object(value))
    check_keys(content, {"assignor": False, "version": False, **PROBLEM_KEYS})
    name, version = _read_assignor(content)
    problem, names = read_problem({key: item for key, item in content.items() if key in PROBLEM_KEYS})
    return name, version, problem, names


def _read_assignor(content: Mapping[str, Any]) -> tuple[str, int | None]:
    """Name and version of the assignor, checked against those installed."""
    name = read_at(".assignor", read_text, content.get("assignor", DEFAULT_ASSIGNOR))
    installed = registry.available()
    if "version" in content:
        version = read_at(".version", read_whole, content["version"])
        if (name, version) not in installed:
            refuse(f"{name} has no version {version} here; leave it out for the highest", ".version")
        return name, version
    if name not in {known for known, _ in installed}:
        refuse(f"{name!r} is not installed; here are {', '.join(sorted({known for known, _ in installed}))}", ".assignor")
    return name, None
