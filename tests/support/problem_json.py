"""`AssignmentProblem` from JSON. Errors name the field: ``$.members[0].lags["0_3"]``.

The converter reads the classes of `problem` themselves; the tables below say where JSON differs
from them. Tasks of a group of plain consumers are partitions of topics (`task_names`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from equipoise.assignors.common.problem import AssignmentProblem, MemberSpec, Memory, Movement, Partition, Task
from equipoise.assignors.common.source_lag import auto_offset_reset, partition_lag
from equipoise.assignors.common.task_names import TaskNames, TopicTask, name_topics
from equipoise.bridge.question import (
    Reader,
    array_reader,
    as_array,
    as_object,
    check_keys,
    check_unique,
    path_of,
    read_at,
    read_positive,
    read_text,
    read_whole,
    refuse,
    shown,
)
from equipoise.events.errors import FieldError
from equipoise.events.facts import MOST_WEIGHT, READINESS
from equipoise.events.fields import INT64_MAX, MOST_TASK_NUMBER
from equipoise.events.settings import MOST_TAG_KEY_CHARS, MOST_TAG_VALUE_CHARS, MOST_TAGS, GroupSettings
from equipoise.events.tasks import Lag, LagSentinel, TaskId, parse_task
from tests.support.json_classes import Field, fields_of, make_converter, read_rate
from tests.support.plan_json import PLAIN

KEYS: Mapping[Field, str] = {
    (MemberSpec, "drain_expired"): "drained",
    (MemberSpec, "previously_owned"): "home",
    (Task, "displaced"): "guest",
    (Task, "lag"): "",  # of a TopicTask alone
}
PROBLEM_KEYS: Mapping[str, bool] = {
    ("config" if field.name == "settings" else field.name): field.default is attrs.NOTHING for field in attrs.fields(AssignmentProblem)
}
"""Key of a problem -> whether it is required."""
OFFSETS = ("beginning", "end", "committed")
"""Keys of a topic's partition that take the place of its `lag`."""
_SENTINELS = {sentinel.value: sentinel for sentinel in LagSentinel}


def read_problem(content: Mapping[str, Any]) -> tuple[AssignmentProblem, TaskNames]:
    """The problem, and what its tasks are called. `content`: an object with the keys of
    PROBLEM_KEYS.

    Raises FieldError with the path within `content`.
    """
    settings = read_at(".config", _read_settings, content.get("config", {}))
    tasks, names = _read_topic_tasks(content, settings) if _names_topics(content) else _read_plain_tasks(content)
    references = _References(tasks, names)
    members = read_at(".members", references.read_members, content["members"])
    values = {
        field.name: read_at(f".{field.name}", references.converter.get_structure_hook(field.type), content[field.name], field.type)
        for field in fields_of(AssignmentProblem)
        if field.name in content and field.name not in ("tasks", "members")
    }
    return AssignmentProblem(tasks=tasks, members=members, settings=settings, **values), names


# ------------------------------------------------------------------------------ settings and tasks


def _read_settings(value: Any, _: Any = None) -> GroupSettings:
    """Values are checked by GroupSettings itself."""
    content = dict(as_object(value))
    check_keys(content, dict.fromkeys((field.name for field in attrs.fields(GroupSettings)), False))
    if isinstance(content.get("rack_aware_tags"), list):
        content["rack_aware_tags"] = tuple(content["rack_aware_tags"])
    try:
        return GroupSettings(**content)
    except FieldError as error:
        refuse(error.problem, f".{error.name}")


def _read_task_id(value: Any, _: Any = None) -> TaskId:
    try:
        return parse_task(value)
    except FieldError as error:
        refuse(error.problem)


def _read_weight(value: Any, _: Any = None) -> int:
    if read_whole(value) > MOST_WEIGHT:
        refuse(f"{value} is over {MOST_WEIGHT:,}; use a coarser unit for all partitions")
    return int(value)


def _read_racks(value: Any, _: Any = None) -> tuple[str, ...]:
    return tuple(sorted(set(array_reader(read_text)(value, None))))


def _read_partition_number(value: Any, _: Any = None) -> int:
    if read_whole(value) > MOST_TASK_NUMBER:
        refuse(f"{value} is more than {MOST_TASK_NUMBER}")
    return int(value)


def _read_lag(value: Any, _: Any = None) -> Lag:
    if isinstance(value, str) and value in _SENTINELS:
        return _SENTINELS[value]
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= INT64_MAX:
        refuse(f'{shown(value)} is not a lag; use a number of records >= 0, "active" or "unknown"')
    return value


def _read_source_lag(value: Any, _: Any = None) -> int | None:
    lag = _read_lag(value)
    if lag is LagSentinel.ACTIVE:
        refuse('"active" is the lag of a copy; the lag of a partition is a number of records or "unknown"')
    return lag if isinstance(lag, int) else None


_TASKS = make_converter(
    {TaskId: _read_task_id},
    {
        (Task, "written_records_per_s"): read_rate,
        (Partition, "racks"): _read_racks,
        (Partition, "weight"): _read_weight,
        (TopicTask, "partition"): _read_partition_number,
        (TopicTask, "lag"): _read_source_lag,
        (TopicTask, "racks"): _read_racks,
        (TopicTask, "weight"): _read_weight,
    },
    KEYS,
)


def _read_plain_tasks(content: Mapping[str, Any]) -> tuple[tuple[Task, ...], TaskNames]:
    tasks: tuple[Task, ...] = read_at(".tasks", array_reader(_TASKS.get_structure_hook(Task)), content["tasks"])
    read_at(".tasks", _check_unique, [str(task.id) for task in tasks])
    return tasks, PLAIN


def _check_unique(names: list[str], _: Any = None) -> None:
    check_unique(names)


def _names_topics(content: Mapping[str, Any]) -> bool:
    """Returns whether a task or a member names a topic: it is a group of plain consumers."""

    def has(key: str, field: str) -> bool:
        items = content[key]
        return isinstance(items, list) and any(isinstance(item, dict) and field in item for item in items)

    return has("tasks", "topic") or has("members", "topics")


def _read_topic_tasks(content: Mapping[str, Any], settings: GroupSettings) -> tuple[tuple[Task, ...], TaskNames]:
    """Partitions of topics as tasks without state, and what they are called."""
    try:
        reset = auto_offset_reset(settings)
    except FieldError as error:
        refuse(error.problem, f".{error.field}")
    found = read_at(".tasks", array_reader(lambda value, _: _read_topic_task(value, reset)), content["tasks"])
    read_at(".tasks", _check_unique, [task.id for task in found])
    first: dict[tuple[str, int], int] = {}
    for index, task in enumerate(found):
        if first.setdefault((task.topic, task.partition), index) != index:
            other = first[task.topic, task.partition]
            refuse(f"partition {task.partition} of {task.topic!r} is $.tasks[{other}] too; name each once", f".tasks[{index}]")
    names = name_topics(found, dict(read_at(".members", array_reader(_read_subscription), content["members"])))
    tasks = tuple(
        Task(
            id=TaskId(names.topics[task.topic], task.partition),
            stateful=False,
            lag=task.lag,
            source=(Partition(topic=task.topic, partition=task.partition, racks=task.racks, weight=task.weight),),
        )
        for task in found
    )
    return tasks, names


_TOPIC_TASK_KEYS = {**{field.name: field.default is attrs.NOTHING for field in attrs.fields(TopicTask)}, **dict.fromkeys(OFFSETS, False)}


def _read_topic_task(value: Any, reset: str) -> TopicTask:
    content = as_object(value)
    check_keys(content, _TOPIC_TASK_KEYS)
    offsets = {key: content[key] for key in OFFSETS if key in content}
    if offsets and "lag" in content:
        refuse(f"{', '.join(OFFSETS)} give the lag too; leave one of the two out", ".lag")
    rest = {key: item for key, item in content.items() if key not in offsets}
    task: TopicTask = _TASKS.structure(rest, TopicTask)
    return attrs.evolve(task, lag=_lag_of_offsets(offsets, reset)) if offsets else task


def _lag_of_offsets(offsets: Mapping[str, Any], reset: str) -> int:
    """KIP-169 "Lag". A `committed` of null: the group has committed nothing."""
    if "end" not in offsets:
        refuse("is missing; the lag is the records up to it", ".end")
    beginning, end, committed = (None if offsets.get(key) is None else read_at(f".{key}", read_whole, offsets[key]) for key in OFFSETS)
    if committed is None and reset != "latest" and beginning is None:
        refuse('is missing; nothing is committed, and config.options.auto_offset_reset is not "latest"', ".beginning")
    return partition_lag(beginning=beginning, end=end, committed=committed, auto_offset_reset=reset)


def _read_subscription(value: Any, _: Any = None) -> tuple[str, tuple[str, ...] | None]:
    """A member's id and topics (None: all): what names need. The member is read when they are
    known.
    """
    content: Mapping[str, Any] = value if isinstance(value, dict) else {}
    topics = read_at(".topics", array_reader(read_text), content["topics"]) if "topics" in content else None
    return str(content.get("id")), topics


# ---------------------------------------------------------------- references to tasks and members


class _References:
    """Readers of what names tasks of the problem, and of what names members once these are read."""

    def __init__(self, tasks: Iterable[Task], names: TaskNames) -> None:
        self._names = names
        self._tasks = {names.text(task.id): task.id for task in tasks}
        self._members: frozenset[str] = frozenset()
        of_field: dict[Field, Reader] = {
            (MemberSpec, "capacity"): read_positive,
            (MemberSpec, "readiness"): _read_readiness,
            (MemberSpec, "reported"): self._read_reported,
            (MemberSpec, "restore_records_per_s"): read_rate,
            (Movement, "source"): self._read_source,
            (Movement, "destination"): self._read_member_id,
        }
        hooks: dict[Any, Reader] = {
            TaskId: self._read_task,
            tuple[TaskId, ...]: self._read_tasks,
            frozenset[TaskId]: lambda value, _: frozenset(self._read_tasks(value)),
            Mapping[TaskId, Lag]: self._read_lags,
            Mapping[str, str]: _read_tags,
            Mapping[int, int]: _read_subtopologies,
            frozenset[tuple[TaskId, str]]: lambda value, _: frozenset(array_reader(self._read_blocked)(value, None)),
            tuple[Movement, ...]: self._read_movements,
            Memory: self._read_memory,
        }
        keys = dict(KEYS)
        if names is not PLAIN:
            keys[MemberSpec, "subtopologies"] = "topics"
            of_field[MemberSpec, "subtopologies"] = lambda value, _: names.subscription(array_reader(read_text)(value, None))
        self.converter = make_converter(hooks, of_field, keys)

    def _read_task(self, value: Any, _: Any = None) -> TaskId:
        text = str(_read_task_id(value)) if self._names is PLAIN else read_text(value)
        if text not in self._tasks:
            refuse(f"there is no task {text} in $.tasks; add it there or leave it out here")
        return self._tasks[text]

    def _read_possibly_unknown(self, value: Any, _: Any = None) -> TaskId:
        """A task that the problem may no longer have; one of a topic is known by its name alone."""
        return _read_task_id(value) if self._names is PLAIN else self._read_task(value)

    def _read_tasks(self, value: Any, _: Any = None) -> tuple[TaskId, ...]:
        """In rising order, each once."""
        return tuple(sorted(self._read_distinct(value, self._read_task)))

    def _read_distinct(self, value: Any, read: Reader) -> tuple[TaskId, ...]:
        tasks: tuple[TaskId, ...] = array_reader(read)(value, None)
        check_unique([self._names.text(task) for task in tasks])
        return tasks

    def _read_reported(self, value: Any, _: Any = None) -> tuple[TaskId, ...] | None:
        return None if value is None else self._read_distinct(value, self._read_possibly_unknown)

    def _read_lags(self, value: Any, _: Any = None) -> dict[TaskId, Lag]:
        return {
            read_at(path_of(key), self._read_task, key): read_at(path_of(key), _read_lag, lag)
            for key, lag in as_object(value, "an object of task and lag").items()
        }

    def _read_member_id(self, value: Any, _: Any = None) -> str:
        if read_text(value) not in self._members:
            refuse(f"there is no member {value!r} in $.members")
        return str(value)

    def _read_source(self, value: Any, _: Any = None) -> str | None:
        return None if value is None else self._read_member_id(value)

    def _read_movements(self, value: Any, _: Any = None) -> tuple[Movement, ...]:
        movements: tuple[Movement, ...] = array_reader(self._read_movement)(value, None)
        check_unique([self._names.text(movement.task) for movement in movements])
        return movements

    def _read_movement(self, value: Any, _: Any = None) -> Movement:
        """A movement; `source` left out: the task has no owner."""
        movement: Movement = self.converter.structure({"source": None, **as_object(value)}, Movement)
        return movement

    def _read_blocked(self, value: Any, _: Any = None) -> tuple[TaskId, str]:
        if not isinstance(value, list) or len(value) != 2:
            refuse(f"{shown(value)} is not a pair [task, member]")
        return read_at("[0]", self._read_task, value[0]), read_at("[1]", self._read_member_id, value[1])

    def _read_memory(self, value: Any, _: Any = None) -> Memory:
        """Returns what a key holds is in its name (`Memory`)."""
        readers = {"_tasks": array_reader(self._read_possibly_unknown), "_members": array_reader(read_text)}
        return {
            key: read_at(path_of(key), next((read for ending, read in readers.items() if key.endswith(ending)), read_whole), item)
            for key, item in sorted(as_object(value).items())
        }

    def read_members(self, value: Any, _: Any = None) -> tuple[MemberSpec, ...]:
        """The members, whose ids may be named from here on."""
        found: tuple[MemberSpec, ...] = array_reader(self._read_member)(value, None)
        check_unique([member.id for member in found])
        owner: dict[TaskId, int] = {}
        for index, member in enumerate(found):
            for task in member.active:
                other = owner.setdefault(task, index)
                if other != index:
                    problem = f"{self._names.text(task)} is active on {found[other].id!r} too ($.members[{other}]); one owner at most"
                    refuse(problem, f"[{index}].active[{as_array(value[index]['active']).index(self._names.text(task))}]")
        self._members = frozenset(member.id for member in found)
        return found

    def _read_member(self, value: Any, _: Any = None) -> MemberSpec:
        member: MemberSpec = self.converter.structure(value, MemberSpec)
        for key, copies in (("standby", member.standby), ("warmup", member.warmup)):
            for task in copies:
                if task in member.active:
                    refuse(f"{self._names.text(task)} is active here; a member has no copy beside the task itself", f".{key}")
        return member


def _read_readiness(value: Any, _: Any = None) -> str:
    if value not in READINESS:
        refuse(f"{shown(value)} is not one of {', '.join(READINESS)}")
    return str(value)


def _read_tags(value: Any, _: Any = None) -> dict[str, str]:
    """KIP-708 limits."""
    content = as_object(value, "an object of tag and value")
    if len(content) > MOST_TAGS:
        refuse(f"has {len(content)} tags; {MOST_TAGS} at most")
    return {_short_text(key, MOST_TAG_KEY_CHARS): read_at(path_of(key), _short_text, tag, MOST_TAG_VALUE_CHARS) for key, tag in content.items()}


def _short_text(value: Any, most_chars: int) -> str:
    if len(read_text(value)) > most_chars:
        refuse(f"{shown(value)} is longer than {most_chars} characters")
    return str(value)


def _read_subtopologies(value: Any, _: Any = None) -> dict[int, int]:
    """Sub-topology -> its number of partitions."""
    content = as_object(value, 'an object of sub-topology and number of partitions, as in {"0": 6}')
    for key in content:
        if not (key.isascii() and key.isdigit() and str(int(key)) == key and int(key) <= MOST_TASK_NUMBER):
            refuse(f"{shown(key)} is not the number of a sub-topology")
    return {int(key): read_at(path_of(key), read_positive, partitions) for key, partitions in content.items()}
