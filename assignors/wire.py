"""The problem and the plan of `equipoise assign`, as JSON.

One object a line in, one a line out, keys in a fixed order. What is wrong with a problem is said in one line with its JSON path.

::

    {"assignor": "high_availability", "version": 1, "config": {"num_standbys": 1},
     "tasks": [{"id": "0_0", "stateful": true, "end_offset": 5000, "source": [{"topic": "t", "partition": 0, "racks": ["a"]}]}],
     "members": [{"id": "m1", "capacity": 2, "active": ["0_0"], "lags": {"0_0": "active"}}]}

Only `tasks` and `members` are required, in each task `id` and `stateful`, in each member `id`. `version` left out: the highest installed. A member
may also have `warmup`, `ready`, `home`, `subtopologies`, `drained` and `restore_records_per_s`, the problem `in_flight` (objects like the plan's
movements), `blocked` (pairs [task, member]), `now_ms`, `revocations` and `memory` (what the last plan said there) and `follow_up`, a task
`written_records_per_s` and `lost_since_ms`.

A group of plain consumers has partitions of topics for tasks: then each task has a name, `topic` and `partition`, and the `lag` of the group on it (a
number of records; "unknown", or left out, counts as 0), and a member may say to which `topics` it subscribes (left out: to all); see `topics`::

    {"assignor": "lag_aware", "config": {"options": {"cross_topic": true}},
     "tasks": [{"id": "t0-0", "topic": "t0", "partition": 0, "lag": 753}], "members": [{"id": "c1", "topics": ["t0"]}]}

A lag of `"active"` from a member that does not list the task as active is allowed: a zombie says so too. Its copy counts as one of unknown age.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

import attrs

from assignors import registry
from assignors.problem import (
    REASONS,
    AssignmentProblem,
    Member,
    MemberPlan,
    Memory,
    Movement,
    MovementState,
    Partition,
    Plan,
    PlanCost,
    Reason,
    Revocations,
    Task,
    records_text,
    traffic_text,
)
from assignors.racks import MOST_WEIGHT
from assignors.topics import PLAIN, Naming, TopicTask, naming_of
from assignors.validation import plan_faults
from events.errors import EquipoiseError, FieldError, InputError
from events.fields import INT64_MAX, MOST_TASK_NUMBER
from events.knobs import MOST_TAG_KEY_CHARS, MOST_TAG_VALUE_CHARS, MOST_TAGS, Knobs
from events.tasks import Lag, LagSentinel, TaskId, parse_task

_T = TypeVar("_T")
DEFAULT_ASSIGNOR = "high_availability"


def assign_line(line: str | bytes) -> str:
    """One problem in, one plan out, both one line of JSON. Raises InputError with the JSON path of what is wrong."""
    name, version, problem, naming = _question(line)
    assignor = registry.latest(name) if version is None else registry.load(name, version)
    try:
        plan = assignor.assign(problem)
    except FieldError as error:
        raise FieldError(f"$.{error.field}", error.problem) from error
    faults = plan_faults(problem, plan, assignor.guarantees)
    if faults:
        raise PlanUnsound(f"the plan of {assignor.name} {assignor.version} does not hold: {faults[0]}")
    return json.dumps(plan_json(plan, naming), ensure_ascii=False, separators=(",", ":"))


class PlanUnsound(EquipoiseError):
    """An assignor broke a promise of its own: a defect of the assignor, not of the problem."""

    exit_code = 1


def problem_of(line: str | bytes) -> tuple[str, int | None, AssignmentProblem]:
    """Assignor, its version (None: the highest), and the problem. Raises InputError with the JSON path of what is wrong."""
    return _question(line)[:3]


def _question(line: str | bytes) -> tuple[str, int | None, AssignmentProblem, Naming]:
    """The same, and what its tasks are called."""
    try:
        content = json.loads(line, object_pairs_hook=_object, parse_constant=_no_constant)
    except _Repeated as repeated:
        raise InputError(f"$: the key {str(repeated)!r} stands twice in one object; keep one") from None
    except RecursionError:
        raise InputError("$: nested too deep to be a problem") from None
    except ValueError as error:  # JSONDecodeError and UnicodeDecodeError are both of this kind
        raise InputError(f"$: not JSON ({error}); write one object a line") from None
    optional = ("assignor", "version", "config", "in_flight", "blocked", "now_ms", "revocations", "memory", "follow_up")
    fields = _Object("$", content, required=("tasks", "members"), optional=optional)
    name = fields.get("assignor", _text, DEFAULT_ASSIGNOR)
    version = fields.get("version", _whole, None)
    if version is None and name not in {known for known, _ in registry.available()}:
        fields.refuse("assignor", f"{name!r} is not installed; here are {', '.join(sorted({known for known, _ in registry.available()}))}")
    if version is not None and (name, version) not in registry.available():
        fields.refuse("version", f"{name} has no version {version} here; leave it out for the highest")
    knobs = _knobs("$.config", fields.content.get("config", {}))
    tasks, naming = _topic_tasks(fields) if _names_topics(fields) else _plain_tasks(fields)
    known = _Known(tasks, naming)
    members = fields.each("members", lambda path, value: _member(path, value, known))
    _unique("$.members", [member.id for member in members])
    _one_owner(members, naming)
    ids = frozenset(member.id for member in members)
    in_flight = fields.each("in_flight", lambda path, value: _movement(path, value, known, ids))
    _unique("$.in_flight", [naming.text(movement.task) for movement in in_flight])
    blocked = fields.each("blocked", lambda path, value: _blocked(path, value, known, ids))
    problem = AssignmentProblem(
        tasks=tasks,
        members=members,
        knobs=knobs,
        in_flight=in_flight,
        blocked=frozenset(blocked),
        now_ms=fields.get("now_ms", _whole, 0),
        revocations=fields.get("revocations", _revocations, Revocations()),
        follow_up=fields.get("follow_up", _flag, False),
        memory=fields.get("memory", lambda path, value: _memory(path, value, known), {}),
    )
    return name, version, problem, naming


# Reading


class _Repeated(Exception):
    """A key stands twice in one object."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for key, value in pairs:
        if key in content:
            raise _Repeated(key)
        content[key] = value
    return content


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON number")


def _refuse(path: str, problem: str) -> NoReturn:
    raise FieldError(path, problem)


class _Object:
    """A JSON object of known fields. Raises FieldError for what is unknown or missing."""

    def __init__(self, path: str, content: object, *, required: tuple[str, ...], optional: tuple[str, ...]) -> None:
        if not isinstance(content, dict):
            _refuse(path, f"{_shown(content)} is not an object")
        for key in content:
            if key not in required and key not in optional:
                _refuse(_at(path, key), f"unknown field; known are {', '.join(sorted((*required, *optional)))}")
        for key in required:
            if key not in content:
                _refuse(_at(path, key), "missing; it is required")
        self.path = path
        self.content: Mapping[str, Any] = content

    def get(self, key: str, read: Callable[[str, Any], _T], default: _T) -> _T:
        return read(_at(self.path, key), self.content[key]) if key in self.content else default

    def each(self, key: str, read: Callable[[str, Any], _T]) -> tuple[_T, ...]:
        return _list(_at(self.path, key), self.content.get(key, []), read)

    def refuse(self, key: str, problem: str) -> NoReturn:
        _refuse(_at(self.path, key), problem)


def _at(path: str, key: str) -> str:
    """The path of a field, as in ``$.members[0].lags["0_3"]``."""
    return f"{path}.{key}" if key.isascii() and key.isidentifier() else f"{path}[{json.dumps(key)}]"


def _shown(value: object) -> str:
    """The value as JSON, not too long for one line."""
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _list(path: str, value: object, read: Callable[[str, Any], _T]) -> tuple[_T, ...]:
    if not isinstance(value, list):
        _refuse(path, f"{_shown(value)} is not an array")
    return tuple(read(f"{path}[{index}]", item) for index, item in enumerate(value))


def _text(path: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        _refuse(path, f"{_shown(value)} is not a text of one or more characters")
    if any("\ud800" <= letter <= "\udfff" for letter in value):
        _refuse(path, f"{_shown(value)} holds a lone surrogate, which UTF-8 cannot carry")
    return value


def _short(path: str, value: object, most_chars: int) -> str:
    if len(_text(path, value)) > most_chars:
        _refuse(path, f"{_shown(value)} is longer than {most_chars} characters")
    return _text(path, value)


def _rack(path: str, value: object) -> str | None:
    return None if value is None else _text(path, value)


def _flag(path: str, value: object) -> bool:
    if not isinstance(value, bool):
        _refuse(path, f"{_shown(value)} is neither true nor false")
    return value


def _whole(path: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= INT64_MAX:
        _refuse(path, f"{_shown(value)} is not a whole number >= 0")
    return value


def _positive(path: str, value: object) -> int:
    if _whole(path, value) == 0:
        _refuse(path, "0 is not a whole number >= 1")
    return _whole(path, value)


def _weight(path: str, value: object) -> int:
    if _whole(path, value) > MOST_WEIGHT:
        _refuse(path, f"{value} is over {MOST_WEIGHT:,}; use a coarser unit for all partitions")
    return _whole(path, value)


def _speed(path: str, value: object) -> int:
    """Whole records/s: decisions rest on it, so no fractions."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= INT64_MAX:
        _refuse(path, f"{_shown(value)} is not a number >= 0")
    return int(value)


def _id(path: str, value: object) -> TaskId:
    try:
        return parse_task(value)  # type: ignore[arg-type]  # it says what is wrong with what is no text
    except FieldError as error:
        _refuse(path, error.problem)


class _Known:
    """The tasks of the problem, by what they are called in it."""

    def __init__(self, tasks: tuple[Task, ...], naming: Naming) -> None:
        self.naming = naming
        self.ids = {naming.text(task.id): task.id for task in tasks}


def _known_id(path: str, value: object, known: _Known) -> TaskId:
    text = str(_id(path, value)) if known.naming is PLAIN else _text(path, value)
    if text not in known.ids:
        _refuse(path, f"there is no task {text} in $.tasks; add it there or leave it out here")
    return known.ids[text]


def _known_member(path: str, value: object, ids: frozenset[str]) -> str:
    member = _text(path, value)
    if member not in ids:
        _refuse(path, f"there is no member {member!r} in $.members")
    return member


def _lag(path: str, value: object) -> Lag:
    if value == "active":
        return LagSentinel.ACTIVE
    if value == "unknown":
        return LagSentinel.UNKNOWN
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= INT64_MAX:
        _refuse(path, f'{_shown(value)} is not a lag; use a number of records >= 0, "active" or "unknown"')
    return value


def _unique(path: str, ids: list[str]) -> None:
    seen: dict[str, int] = {}
    for index, name in enumerate(ids):
        if name in seen:
            _refuse(f"{path}[{index}]", f"{name!r} stands at {path}[{seen[name]}] too; name each once")
        seen[name] = index


def _one_owner(members: tuple[Member, ...], naming: Naming) -> None:
    owner: dict[TaskId, int] = {}
    for index, member in enumerate(members):
        for place, task in enumerate(member.active):
            if owner.setdefault(task, index) != index:
                _refuse(
                    f"$.members[{index}].active[{place}]",
                    f"{naming.text(task)} is active on {members[owner[task]].id!r} too ($.members[{owner[task]}]); one owner at most",
                )


def _knobs(path: str, value: object) -> Knobs:
    known = tuple(field.name for field in attrs.fields(Knobs))
    given = dict(_Object(path, value, required=(), optional=known).content)
    if isinstance(given.get("rack_aware_tags"), list):
        given["rack_aware_tags"] = tuple(given["rack_aware_tags"])
    try:
        return Knobs(**given)
    except FieldError as error:
        raise FieldError(f"{path}.{error.field.removeprefix('Knobs.')}", error.problem) from None


def _partition(path: str, value: object) -> Partition:
    fields = _Object(path, value, required=("topic", "partition"), optional=("racks", "weight"))
    return Partition(
        topic=fields.get("topic", _text, ""),
        partition=fields.get("partition", _whole, 0),
        racks=tuple(sorted(set(fields.each("racks", _text)))),
        weight=fields.get("weight", _weight, 1),
    )


def _task(path: str, value: object) -> Task:
    optional = ("end_offset", "source", "changelog", "written_records_per_s", "lost_since_ms")
    fields = _Object(path, value, required=("id", "stateful"), optional=optional)
    return Task(
        id=_id(f"{path}.id", fields.content["id"]),
        stateful=_flag(f"{path}.stateful", fields.content["stateful"]),
        end_offset=fields.get("end_offset", _whole, 0),
        source=fields.each("source", _partition),
        changelog=fields.each("changelog", _partition),
        written_records_per_s=fields.get("written_records_per_s", _speed, 0),
        lost_since_ms=None if fields.content.get("lost_since_ms") is None else fields.get("lost_since_ms", _whole, 0),
    )


def _plain_tasks(fields: _Object) -> tuple[tuple[Task, ...], Naming]:
    tasks = fields.each("tasks", _task)
    _unique("$.tasks", [str(task.id) for task in tasks])
    return tasks, PLAIN


def _names_topics(fields: _Object) -> bool:
    """Tasks or members say topics, so it is a group of plain consumers."""

    def says(key: str, field: str) -> bool:
        listed = fields.content[key]
        return isinstance(listed, list) and any(isinstance(item, dict) and field in item for item in listed)

    return says("tasks", "topic") or says("members", "topics")


def _topic_tasks(fields: _Object) -> tuple[tuple[Task, ...], Naming]:
    """Partitions of topics as tasks without state, and how they are called."""
    found = fields.each("tasks", _topic_task)
    _unique("$.tasks", [task.id for task in found])
    place: dict[tuple[str, int], int] = {}
    for index, task in enumerate(found):
        first = place.setdefault((task.topic, task.partition), index)
        if first != index:
            _refuse(f"$.tasks[{index}]", f"partition {task.partition} of {task.topic!r} is $.tasks[{first}] too; name each once")
    naming = naming_of(found, dict(fields.each("members", _subscription)))
    return (
        tuple(
            Task(
                id=TaskId(naming.topics[task.topic], task.partition),
                stateful=False,
                lag=task.lag,
                source=(Partition(topic=task.topic, partition=task.partition),),
            )
            for task in found
        ),
        naming,
    )


def _topic_task(path: str, value: object) -> TopicTask:
    fields = _Object(path, value, required=("id", "topic", "partition"), optional=("lag",))
    partition = fields.get("partition", _whole, 0)
    if partition > MOST_TASK_NUMBER:
        fields.refuse("partition", f"{partition} is more than {MOST_TASK_NUMBER}")
    topic = fields.get("topic", _text, "")
    return TopicTask(id=fields.get("id", _text, ""), topic=topic, partition=partition, lag=fields.get("lag", _source_lag, None))


def _source_lag(path: str, value: object) -> int | None:
    lag = _lag(path, value)
    if lag is LagSentinel.ACTIVE:
        _refuse(path, '"active" is said by who keeps a copy; a partition\'s lag is a number of records or "unknown"')
    return lag if isinstance(lag, int) else None


def _subscription(path: str, value: object) -> tuple[str, tuple[str, ...] | None]:
    """Only what names need; the rest of the member is read, and checked, when they are known."""
    content: Mapping[str, Any] = value if isinstance(value, dict) else {}
    topics = _list(f"{path}.topics", content["topics"], _text) if "topics" in content else None
    return str(content.get("id")), topics


_MEMBER_FIELDS = tuple(field.name for field in attrs.fields(Member) if field.name not in ("id", "subtopologies"))


def _member(path: str, value: object, known: _Known) -> Member:
    naming = known.naming
    fields = _Object(path, value, required=("id",), optional=(*_MEMBER_FIELDS, "subtopologies" if naming is PLAIN else "topics"))

    def tasks(key: str) -> tuple[TaskId, ...]:
        found = fields.each(key, lambda at, item: _known_id(at, item, known))
        _unique(f"{path}.{key}", [naming.text(task) for task in found])
        return tuple(sorted(found))

    def subtopologies() -> frozenset[int] | None:
        if naming is not PLAIN:
            return frozenset(naming.topics[topic] for topic in fields.each("topics", _text)) if "topics" in fields.content else None
        return frozenset(fields.each("subtopologies", _whole)) if fields.content.get("subtopologies") is not None else None

    def lags(at: str, content: object) -> dict[TaskId, Lag]:
        if not isinstance(content, dict):
            _refuse(at, f"{_shown(content)} is not an object of task and lag")
        return {_known_id(_at(at, key), key, known): _lag(_at(at, key), lag) for key, lag in content.items()}

    def tags(at: str, content: object) -> dict[str, str]:
        if not isinstance(content, dict):
            _refuse(at, f"{_shown(content)} is not an object of tag and value")
        if len(content) > MOST_TAGS:
            _refuse(at, f"has {len(content)} tags; {MOST_TAGS} at most")
        return {_short(at, key, MOST_TAG_KEY_CHARS): _short(_at(at, key), tag, MOST_TAG_VALUE_CHARS) for key, tag in content.items()}

    def reported(at: str, content: object) -> tuple[TaskId, ...] | None:
        if content is None:
            return None
        found = _list(at, content, _id) if naming is PLAIN else _list(at, content, lambda place, item: _known_id(place, item, known))
        _unique(at, [naming.text(task) for task in found])
        return found

    member = Member(
        id=_text(f"{path}.id", fields.content["id"]),
        capacity=fields.get("capacity", _positive, 1),
        rack=fields.get("rack", _rack, None),
        tags=fields.get("tags", tags, {}),
        leaving=fields.get("leaving", _flag, False),
        drained=fields.get("drained", _flag, False),
        subtopologies=subtopologies(),
        active=tasks("active"),
        standby=tasks("standby"),
        warmup=tasks("warmup"),
        lags=fields.get("lags", lags, {}),
        ready=frozenset(tasks("ready")),
        home=frozenset(tasks("home")),
        reported=fields.get("reported", reported, None),
        restore_records_per_s=fields.get("restore_records_per_s", _speed, 0),
    )
    for key, held in (("standby", member.standby), ("warmup", member.warmup)):
        for task in held:
            if task in member.active:
                _refuse(f"{path}.{key}", f"{naming.text(task)} is active here; a member has no copy beside the task itself")
    return member


def _movement(path: str, value: object, known: _Known, ids: frozenset[str]) -> Movement:
    fields = _Object(path, value, required=("task", "destination", "state"), optional=("source",))
    state = fields.content["state"]
    allowed = [each.value for each in MovementState]
    if state not in allowed:
        _refuse(f"{path}.state", f"{_shown(state)} is not one of {', '.join(allowed)}")
    source = fields.content.get("source")
    return Movement(
        task=_known_id(f"{path}.task", fields.content["task"], known),
        source=None if source is None else _known_member(f"{path}.source", source, ids),
        destination=_known_member(f"{path}.destination", fields.content["destination"], ids),
        state=MovementState(state),
    )


def _blocked(path: str, value: object, known: _Known, ids: frozenset[str]) -> tuple[TaskId, str]:
    if not isinstance(value, list) or len(value) != 2:
        _refuse(path, f"{_shown(value)} is not a pair [task, member]")
    return _known_id(f"{path}[0]", value[0], known), _known_member(f"{path}[1]", value[1], ids)


def _revocations(path: str, value: object) -> Revocations:
    fields = _Object(path, value, required=(), optional=("times", "since_ms", "until_ms"))
    since_ms = None if fields.content.get("since_ms") is None else fields.get("since_ms", _whole, 0)
    return Revocations(times=fields.get("times", _whole, 0), since_ms=since_ms, until_ms=fields.get("until_ms", _whole, 0))


def _memory(path: str, value: object, known: _Known) -> Memory:
    """Tasks in it may be gone from the problem, where they go by their own ids."""
    if not isinstance(value, dict):
        _refuse(path, f"{_shown(value)} is not an object")

    def task(at: str, item: object) -> TaskId:
        return _id(at, item) if known.naming is PLAIN else _known_id(at, item, known)

    memory: dict[str, int | tuple[str, ...] | tuple[TaskId, ...]] = {}
    for key, item in sorted(value.items()):
        if key.endswith("_tasks"):
            memory[key] = _list(_at(path, key), item, task)
        elif key.endswith("_members"):
            memory[key] = _list(_at(path, key), item, _text)
        else:
            memory[key] = _whole(_at(path, key), item)
    return memory


# Writing


def plan_json(plan: Plan, naming: Naming = PLAIN) -> dict[str, Any]:
    """The plan as plain lists and objects, keys in their fixed order, members and tasks in rising order; but `active` as the plan has it."""
    cost = plan.cost
    return {
        "members": {member: _member_json(part, naming) for member, part in plan.members.items()},
        "target": {member: _texts(tasks, naming) for member, tasks in plan.target.items()},
        "movements": [
            {"task": naming.text(each.task), "source": each.source, "destination": each.destination, "state": each.state.value}
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
        "reasons": reason_texts(plan, naming),
        "unique": plan.unique,
        "imbalance_now": plan.imbalance_now,
        "lost_until_ms": {naming.text(task): until_ms for task, until_ms in plan.lost_until_ms.items()},
        "revocations": attrs.asdict(plan.revocations),
        "memory": {key: value if isinstance(value, int) else [_memory_text(item, naming) for item in value] for key, value in plan.memory.items()},
    }


def _memory_text(item: str | TaskId, naming: Naming) -> str:
    return naming.text(item) if isinstance(item, TaskId) else item


def _rack_cost_json(cost: PlanCost) -> dict[str, Any]:
    """Nothing where racks make no difference."""
    if not cost.stages:
        return {}
    return {
        "rack_cost": cost.rack_cost,
        "rack_cost_lower_bound": cost.rack_cost_lower_bound,
        "stages": [{"stage": stage.name, "cost": stage.cost, "lower_bound": stage.lower_bound} for stage in cost.stages],
    }


def _member_json(part: MemberPlan, naming: Naming) -> dict[str, list[str]]:
    lists = {"active": part.active, "standby": part.standby, "warmup": part.warmup, "revoke": part.revoke}
    return {key: _texts(tasks, naming) for key, tasks in lists.items()}


def _texts(tasks: tuple[TaskId, ...], naming: Naming) -> list[str]:
    return [naming.text(task) for task in tasks]


def reason_texts(plan: Plan, naming: Naming = PLAIN) -> dict[str, str]:
    """Task -> its reason in words: what it waits for or why it moves, and why that was wanted."""
    moving = {movement.task: movement for movement in plan.movements}
    holder = {task: member for member, part in plan.members.items() for task in (*part.active, *part.revoke)}
    texts: dict[str, str] = {}
    for task, reason in plan.reasons.items():
        movement = moving.get(task)
        source = movement.source if movement is not None else holder.get(task)
        destination = movement.destination if movement is not None else holder.get(task)
        codes = [reason.code] if reason.because in (None, reason.code) else [reason.code, reason.because or ""]
        texts[naming.text(task)] = "; ".join(_rendered(code, reason, source, destination) for code in codes)
    return texts


def _rendered(code: str, reason: Reason, source: str | None, destination: str | None) -> str:
    template = REASONS.get(code, code)
    return template.format(
        source=source or "nobody",
        destination=destination or "nobody",
        records=records_text(reason.lag_records),
        traffic=traffic_text(reason.rack_costs),
    )
