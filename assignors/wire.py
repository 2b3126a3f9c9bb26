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

import attrs

from equipoise.assignors import registry
from equipoise.assignors.common import json_fields as read
from equipoise.assignors.common.plan_json import plan_json
from equipoise.assignors.common.problem import AssignmentProblem, Member, Memory, Movement, MovementState, Partition, Revocations, Task, TaskLoad
from equipoise.assignors.common.source_lag import auto_offset_reset, partition_lag
from equipoise.assignors.common.topics import PLAIN, Naming, TopicTask, naming_of
from equipoise.assignors.common.validation import plan_faults
from equipoise.events.errors import EquipoiseError, FieldError
from equipoise.events.facts import MOST_WEIGHT, READINESS
from equipoise.events.fields import INT64_MAX, MOST_TASK_NUMBER
from equipoise.events.settings import MOST_TAG_KEY_CHARS, MOST_TAG_VALUE_CHARS, MOST_TAGS, GroupSettings
from equipoise.events.tasks import Lag, LagSentinel, TaskId, parse_task

DEFAULT_ASSIGNOR = "high_availability"


def assign_line(line: str | bytes) -> str:
    """One problem in, one plan out, both one line of JSON. Raises InputError with the JSON path of
    what is wrong.
    """
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
    """Assignor, its version (None: the highest), and the problem. Raises InputError with the JSON
    path of what is wrong.
    """
    return _question(line)[:3]


def _question(line: str | bytes) -> tuple[str, int | None, AssignmentProblem, Naming]:
    """The same, and what its tasks are called."""
    allowed = ("assignor", "version", "config", "in_flight", "blocked", "now_ms", "revocations", "memory", "follow_up", "anew")
    fields = read.JsonObject("$", read.parsed(line), required=("tasks", "members"), optional=allowed)
    name = fields.get("assignor", read.text, DEFAULT_ASSIGNOR)
    version = fields.get("version", read.whole, None)
    if version is None and name not in {known for known, _ in registry.available()}:
        fields.refuse("assignor", f"{name!r} is not installed; here are {', '.join(sorted({known for known, _ in registry.available()}))}")
    if version is not None and (name, version) not in registry.available():
        fields.refuse("version", f"{name} has no version {version} here; leave it out for the highest")
    settings = _settings("$.config", fields.content.get("config", {}))
    tasks, naming = _topic_tasks(fields, settings) if _names_topics(fields) else _plain_tasks(fields)
    known = _Known(tasks, naming)
    members = fields.each("members", lambda path, value: _member(path, value, known))
    read.unique("$.members", [member.id for member in members])
    _one_owner(members, naming)
    ids = frozenset(member.id for member in members)
    in_flight = fields.each("in_flight", lambda path, value: _movement(path, value, known, ids))
    read.unique("$.in_flight", [naming.text(movement.task) for movement in in_flight])
    blocked = fields.each("blocked", lambda path, value: _blocked(path, value, known, ids))
    problem = AssignmentProblem(
        tasks=tasks,
        members=members,
        settings=settings,
        in_flight=in_flight,
        blocked=frozenset(blocked),
        now_ms=fields.get("now_ms", read.whole, 0),
        revocations=fields.get("revocations", _revocations, Revocations()),
        follow_up=fields.get("follow_up", read.flag, False),
        memory=fields.get("memory", lambda path, value: _memory(path, value, known), {}),
        anew=fields.get("anew", read.flag, False),
    )
    return name, version, problem, naming


def _short(path: str, value: object, most_chars: int) -> str:
    if len(read.text(path, value)) > most_chars:
        read.refuse(path, f"{read.shown(value)} is longer than {most_chars} characters")
    return read.text(path, value)


def _rack(path: str, value: object) -> str | None:
    return None if value is None else read.text(path, value)


def _weight(path: str, value: object) -> int:
    if read.whole(path, value) > MOST_WEIGHT:
        read.refuse(path, f"{value} is over {MOST_WEIGHT:,}; use a coarser unit for all partitions")
    return read.whole(path, value)


def _id(path: str, value: object) -> TaskId:
    try:
        return parse_task(value)  # type: ignore[arg-type]  # it says what is wrong with what is no text
    except FieldError as error:
        read.refuse(path, error.problem)


class _Known:
    """The tasks of the problem, by what they are called in it."""

    def __init__(self, tasks: tuple[Task, ...], naming: Naming) -> None:
        self.naming = naming
        self.ids = {naming.text(task.id): task.id for task in tasks}


def _known_id(path: str, value: object, known: _Known) -> TaskId:
    text = str(_id(path, value)) if known.naming is PLAIN else read.text(path, value)
    if text not in known.ids:
        read.refuse(path, f"there is no task {text} in $.tasks; add it there or leave it out here")
    return known.ids[text]


def _known_member(path: str, value: object, ids: frozenset[str]) -> str:
    member = read.text(path, value)
    if member not in ids:
        read.refuse(path, f"there is no member {member!r} in $.members")
    return member


def _lag(path: str, value: object) -> Lag:
    if value == "active":
        return LagSentinel.ACTIVE
    if value == "unknown":
        return LagSentinel.UNKNOWN
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= INT64_MAX:
        read.refuse(path, f'{read.shown(value)} is not a lag; use a number of records >= 0, "active" or "unknown"')
    return value


def _one_owner(members: tuple[Member, ...], naming: Naming) -> None:
    owner: dict[TaskId, int] = {}
    for index, member in enumerate(members):
        for place, task in enumerate(member.active):
            if owner.setdefault(task, index) != index:
                read.refuse(
                    f"$.members[{index}].active[{place}]",
                    f"{naming.text(task)} is active on {members[owner[task]].id!r} too ($.members[{owner[task]}]); one owner at most",
                )


def _settings(path: str, value: object) -> GroupSettings:
    known = tuple(field.name for field in attrs.fields(GroupSettings))
    given = dict(read.JsonObject(path, value, required=(), optional=known).content)
    if isinstance(given.get("rack_aware_tags"), list):
        given["rack_aware_tags"] = tuple(given["rack_aware_tags"])
    try:
        return GroupSettings(**given)
    except FieldError as error:
        raise FieldError(f"{path}.{error.field.removeprefix('Knobs.')}", error.problem) from None


def _racks(fields: read.JsonObject) -> tuple[str, ...]:
    return tuple(sorted(set(fields.each("racks", read.text))))


def _partition(path: str, value: object) -> Partition:
    fields = read.JsonObject(path, value, required=("topic", "partition"), optional=("racks", "weight"))
    return Partition(
        topic=fields.get("topic", read.text, ""),
        partition=fields.get("partition", read.whole, 0),
        racks=_racks(fields),
        weight=fields.get("weight", _weight, 1),
    )


def _task(path: str, value: object) -> Task:
    optional = ("end_offset", "source", "changelog", "written_records_per_s", "lost_since_ms", "guest", "load")
    fields = read.JsonObject(path, value, required=("id", "stateful"), optional=optional)
    return Task(
        id=_id(f"{path}.id", fields.content["id"]),
        stateful=read.flag(f"{path}.stateful", fields.content["stateful"]),
        end_offset=fields.get("end_offset", read.whole, 0),
        source=fields.each("source", _partition),
        changelog=fields.each("changelog", _partition),
        written_records_per_s=fields.get("written_records_per_s", read.speed, 0),
        lost_since_ms=None if fields.content.get("lost_since_ms") is None else fields.get("lost_since_ms", read.whole, 0),
        displaced=fields.get("guest", read.flag, False),
        load=None if fields.content.get("load") is None else fields.get("load", _load, None),
    )


def _load(path: str, value: object) -> TaskLoad:
    fields = read.JsonObject(path, value, required=(), optional=("cpu", "memory", "disk", "records_per_s"))
    return TaskLoad(**{name: fields.get(name, read.whole, 0) for name in fields.content})


def _plain_tasks(fields: read.JsonObject) -> tuple[tuple[Task, ...], Naming]:
    tasks = fields.each("tasks", _task)
    read.unique("$.tasks", [str(task.id) for task in tasks])
    return tasks, PLAIN


def _names_topics(fields: read.JsonObject) -> bool:
    """Tasks or members say topics, so it is a group of plain consumers."""

    def says(key: str, field: str) -> bool:
        listed = fields.content[key]
        return isinstance(listed, list) and any(isinstance(item, dict) and field in item for item in listed)

    return says("tasks", "topic") or says("members", "topics")


def _topic_tasks(fields: read.JsonObject, settings: GroupSettings) -> tuple[tuple[Task, ...], Naming]:
    """Partitions of topics as tasks without state, and how they are called."""
    reset = auto_offset_reset(settings)
    found = fields.each("tasks", lambda path, value: _topic_task(path, value, reset))
    read.unique("$.tasks", [task.id for task in found])
    place: dict[tuple[str, int], int] = {}
    for index, task in enumerate(found):
        first = place.setdefault((task.topic, task.partition), index)
        if first != index:
            read.refuse(f"$.tasks[{index}]", f"partition {task.partition} of {task.topic!r} is $.tasks[{first}] too; name each once")
    naming = naming_of(found, dict(fields.each("members", _subscription)))
    return (
        tuple(
            Task(
                id=TaskId(naming.topics[task.topic], task.partition),
                stateful=False,
                lag=task.lag,
                source=(Partition(topic=task.topic, partition=task.partition, racks=task.racks, weight=task.weight),),
            )
            for task in found
        ),
        naming,
    )


_OFFSETS = ("beginning", "end", "committed")


def _topic_task(path: str, value: object, auto_offset_reset: str) -> TopicTask:
    fields = read.JsonObject(path, value, required=("id", "topic", "partition"), optional=("lag", *_OFFSETS, "racks", "weight"))
    partition = fields.get("partition", read.whole, 0)
    if partition > MOST_TASK_NUMBER:
        fields.refuse("partition", f"{partition} is more than {MOST_TASK_NUMBER}")
    topic = fields.get("topic", read.text, "")
    return TopicTask(
        id=fields.get("id", read.text, ""),
        topic=topic,
        partition=partition,
        lag=_lag_of_offsets(fields, auto_offset_reset) if fields.content.keys() & set(_OFFSETS) else fields.get("lag", _source_lag, None),
        racks=_racks(fields),
        weight=fields.get("weight", _weight, 1),
    )


def _lag_of_offsets(fields: read.JsonObject, auto_offset_reset: str) -> int:
    """KIP-169 "Lag", from what brokers say."""
    if "lag" in fields.content:
        fields.refuse("lag", f"is said by {', '.join(_OFFSETS)} too; leave one of the two out")
    if "end" not in fields.content:
        fields.refuse("end", "is missing; the lag is the records up to it")
    beginning, end, committed = (None if fields.content.get(name) is None else fields.get(name, read.whole, 0) for name in _OFFSETS)
    if committed is None and auto_offset_reset != "latest" and beginning is None:
        fields.refuse("beginning", 'is missing; nothing is committed, and config.options.auto_offset_reset does not say "latest"')
    return partition_lag(beginning=beginning, end=end, committed=committed, auto_offset_reset=auto_offset_reset)


def _source_lag(path: str, value: object) -> int | None:
    lag = _lag(path, value)
    if lag is LagSentinel.ACTIVE:
        read.refuse(path, '"active" is said by who keeps a copy; a partition\'s lag is a number of records or "unknown"')
    return lag if isinstance(lag, int) else None


def _subtopologies(path: str, content: object) -> dict[int, int]:
    """Of a member's topology: sub-topology -> number of partitions."""
    if not isinstance(content, dict):
        read.refuse(path, f"{read.shown(content)} is not an object of sub-topology and number of partitions, as in {{\"0\": 6}}")
    found: dict[int, int] = {}
    for key, partitions in content.items():
        if not (key.isascii() and key.isdigit() and str(int(key)) == key and int(key) <= MOST_TASK_NUMBER):
            read.refuse(path, f"{read.shown(key)} is not the number of a sub-topology")
        found[int(key)] = read.positive(read.at(path, key), partitions)
    return found


def _subscription(path: str, value: object) -> tuple[str, tuple[str, ...] | None]:
    """Only what names need; the rest of the member is read, and checked, when they are known."""
    content: Mapping[str, Any] = value if isinstance(value, dict) else {}
    topics = read.listed(f"{path}.topics", content["topics"], read.text) if "topics" in content else None
    return str(content.get("id")), topics


_JSON_KEYS = {"drain_expired": "drained", "previously_owned": "home"}
"""Fields of a member whose JSON key is not their name."""
_MEMBER_KEYS = tuple(_JSON_KEYS.get(field.name, field.name) for field in attrs.fields(Member) if field.name not in ("id", "subtopologies"))


def _member(path: str, value: object, known: _Known) -> Member:
    naming = known.naming
    fields = read.JsonObject(path, value, required=("id",), optional=(*_MEMBER_KEYS, "subtopologies" if naming is PLAIN else "topics"))

    def tasks(key: str) -> tuple[TaskId, ...]:
        found = fields.each(key, lambda at, item: _known_id(at, item, known))
        read.unique(f"{path}.{key}", [naming.text(task) for task in found])
        return tuple(sorted(found))

    def subtopologies() -> dict[int, int] | None:
        if naming is not PLAIN:
            return naming.subscription(fields.each("topics", read.text)) if "topics" in fields.content else None
        content = fields.content.get("subtopologies")
        return None if content is None else _subtopologies(f"{path}.subtopologies", content)

    def lags(at: str, content: object) -> dict[TaskId, Lag]:
        if not isinstance(content, dict):
            read.refuse(at, f"{read.shown(content)} is not an object of task and lag")
        return {_known_id(read.at(at, key), key, known): _lag(read.at(at, key), lag) for key, lag in content.items()}

    def tags(at: str, content: object) -> dict[str, str]:
        if not isinstance(content, dict):
            read.refuse(at, f"{read.shown(content)} is not an object of tag and value")
        if len(content) > MOST_TAGS:
            read.refuse(at, f"has {len(content)} tags; {MOST_TAGS} at most")
        return {_short(at, key, MOST_TAG_KEY_CHARS): _short(read.at(at, key), tag, MOST_TAG_VALUE_CHARS) for key, tag in content.items()}

    def readiness(at: str, content: object) -> str:
        if content not in READINESS:
            read.refuse(at, f"{read.shown(content)} is not one of {', '.join(READINESS)}")
        return str(content)

    def reported(at: str, content: object) -> tuple[TaskId, ...] | None:
        if content is None:
            return None
        found = read.listed(at, content, _id) if naming is PLAIN else read.listed(at, content, lambda place, item: _known_id(place, item, known))
        read.unique(at, [naming.text(task) for task in found])
        return found

    member = Member(
        id=read.text(f"{path}.id", fields.content["id"]),
        capacity=fields.get("capacity", read.positive, 1),
        rack=fields.get("rack", _rack, None),
        tags=fields.get("tags", tags, {}),
        leaving=fields.get("leaving", read.flag, False),
        drain_expired=fields.get("drained", read.flag, False),
        drain_deadline_ms=fields.get("drain_deadline_ms", lambda at, content: None if content is None else read.whole(at, content), None),
        eager=fields.get("eager", read.flag, False),
        crash_looping=fields.get("crash_looping", read.flag, False),
        subtopologies=subtopologies(),
        active=tasks("active"),
        standby=tasks("standby"),
        warmup=tasks("warmup"),
        lags=fields.get("lags", lags, {}),
        ready=frozenset(tasks("ready")),
        readiness=fields.get("readiness", readiness, "word_or_lag"),
        ready_lag_records=fields.get("ready_lag_records", lambda at, content: None if content is None else read.whole(at, content), None),
        previously_owned=frozenset(tasks("home")),
        reported=fields.get("reported", reported, None),
        restore_records_per_s=fields.get("restore_records_per_s", read.speed, 0),
    )
    for key, held in (("standby", member.standby), ("warmup", member.warmup)):
        for task in held:
            if task in member.active:
                read.refuse(f"{path}.{key}", f"{naming.text(task)} is active here; a member has no copy beside the task itself")
    return member


def _movement(path: str, value: object, known: _Known, ids: frozenset[str]) -> Movement:
    fields = read.JsonObject(path, value, required=("task", "destination", "state"), optional=("source",))
    state = fields.content["state"]
    allowed = [each.value for each in MovementState]
    if state not in allowed:
        read.refuse(f"{path}.state", f"{read.shown(state)} is not one of {', '.join(allowed)}")
    source = fields.content.get("source")
    return Movement(
        task=_known_id(f"{path}.task", fields.content["task"], known),
        source=None if source is None else _known_member(f"{path}.source", source, ids),
        destination=_known_member(f"{path}.destination", fields.content["destination"], ids),
        state=MovementState(state),
    )


def _blocked(path: str, value: object, known: _Known, ids: frozenset[str]) -> tuple[TaskId, str]:
    if not isinstance(value, list) or len(value) != 2:
        read.refuse(path, f"{read.shown(value)} is not a pair [task, member]")
    return _known_id(f"{path}[0]", value[0], known), _known_member(f"{path}[1]", value[1], ids)


def _revocations(path: str, value: object) -> Revocations:
    fields = read.JsonObject(path, value, required=(), optional=("times", "since_ms", "until_ms"))
    since_ms = None if fields.content.get("since_ms") is None else fields.get("since_ms", read.whole, 0)
    return Revocations(times=fields.get("times", read.whole, 0), since_ms=since_ms, until_ms=fields.get("until_ms", read.whole, 0))


def _memory(path: str, value: object, known: _Known) -> Memory:
    """Tasks in it may be gone from the problem, where they go by their own ids."""
    if not isinstance(value, dict):
        read.refuse(path, f"{read.shown(value)} is not an object")

    def task(at: str, item: object) -> TaskId:
        return _id(at, item) if known.naming is PLAIN else _known_id(at, item, known)

    memory: dict[str, int | tuple[str, ...] | tuple[TaskId, ...]] = {}
    for key, item in sorted(value.items()):
        if key.endswith("_tasks"):
            memory[key] = read.listed(read.at(path, key), item, task)
        elif key.endswith("_members"):
            memory[key] = read.listed(read.at(path, key), item, read.text)
        else:
            memory[key] = read.whole(read.at(path, key), item)
    return memory
