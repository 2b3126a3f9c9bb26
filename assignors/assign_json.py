"""The problem and the plan of `equipoise assign`, as JSON.

One object a line in, one a line out, keys in a fixed order. What is wrong with a problem is said in
one line with its JSON path.

::

    {"assignor": "high_availability", "version": 1, "config": {"num_standbys": 1},
     "tasks": [{"id": "0_0", "stateful": true, "end_offset": 5000, "source": [{"topic": "t", "partition": 0, "racks": ["a"]}]}],
     "members": [{"id": "m1", "capacity": 2, "active": ["0_0"], "lags": {"0_0": "active"}}]}

Only `tasks` and `members` are required, in each task `id` and `stateful`, in each member `id`.
`version` left out: the highest installed. A member may also have `warmup`, `ready`, `readiness`
(what `ready` is worth; left out: "word_or_lag"), `ready_lag_records` (a limit of its own), `home`,
`subtopologies` (those of its topology with their number of partitions, ``{"0": 6}``; left out: it
can run every task), `drained`, `drain_deadline_ms`, `eager`, `reported` and
`restore_records_per_s`, the problem `in_flight` (objects like the plan's movements), `blocked`
(pairs [task, member]), `now_ms`, `revocations` and `memory` (what the last plan said there),
`follow_up` and `anew`, a task `written_records_per_s`, `lost_since_ms` and `guest`.

A group of plain consumers has partitions of topics for tasks: then each task has a name, `topic`
and `partition`, and the `lag` of the group on it (a number of records; "unknown", or left out,
counts as 0) or the offsets that say it: `end`, and `committed` or, where the group has committed
nothing, `beginning` and the option `auto_offset_reset`. A member may say to which `topics` it
subscribes (left out: to all); see `topics`::

    {"assignor": "lag_aware", "config": {"options": {"cross_topic": true}},
     "tasks": [{"id": "t0-0", "topic": "t0", "partition": 0, "lag": 753}], "members": [{"id": "c1", "topics": ["t0"]}]}

A lag of `"active"` from a member that does not list the task as active is allowed: a zombie says so
too. Its copy counts as one of unknown age.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from equipoise.assignors import registry
from equipoise.assignors.common.json_reader import as_object, check_keys, parse, read_at, read_text, read_whole, refuse
from equipoise.assignors.common.plan_json import plan_json
from equipoise.assignors.common.problem import AssignmentProblem
from equipoise.assignors.common.problem_json import PROBLEM_KEYS, read_problem
from equipoise.assignors.common.task_names import TaskNames
from equipoise.assignors.common.validation import plan_faults
from equipoise.events.errors import EquipoiseError, FieldError

DEFAULT_ASSIGNOR = "high_availability"


class PlanUnsound(EquipoiseError):
    """An assignor broke a promise of its own: a defect of the assignor, not of the problem."""

    exit_code = 1


def assign_line(line: str | bytes) -> str:
    """Answers one problem, a line of JSON, with its plan, a line of JSON.

    Raises InputError with the JSON path of what is wrong with the problem, and PlanUnsound when the
    plan breaks an invariant or a guarantee of its assignor.
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
    """Its name and version, checked against what is installed."""
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
