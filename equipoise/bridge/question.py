"""The question of a round: a JSON document in version 1, read strictly. Errors name the field by
its JSON path.

A reader of a part knows nothing of the whole: it raises `FieldError` with the path from its own
value on, and each reader around it puts its own key or index in front::

    read_whole     ("", "-1 is not a whole number >= 0")
    object reader  (".end_offset", ...)
    array reader   ("[0].end_offset", ...)
    document       ("$.tasks[0].end_offset", ...)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import attrs

from equipoise.events.errors import FieldError, InputError
from equipoise.events.facts import MOST_TASKS
from equipoise.events.fields import INT64_MAX, MOST_NAME_BYTES, MOST_TASK_NUMBER, check_name
from equipoise.events.tasks import Lag, LagSentinel, TaskId, parse_task

Reader = Callable[[Any, Any], Any]
"""(JSON value, type) -> value, as cattrs calls it. Raises FieldError."""


class _RepeatedKeyError(Exception):
    """One object has the same key twice."""


def _object_of_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for key, value in pairs:
        if key in content:
            raise _RepeatedKeyError(key)
        content[key] = value
    return content


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON number")


def parse(line: str | bytes) -> Any:
    """Parses one line of JSON. Raises InputError when it is not JSON (NaN and Infinity are not), or
    when an object has a key twice.
    """
    try:
        return json.loads(line, object_pairs_hook=_object_of_pairs, parse_constant=_refuse_constant)
    except _RepeatedKeyError as repeated:
        raise InputError(f"$: one object has the key {str(repeated)!r} twice; keep one") from None
    except RecursionError:
        raise InputError("$: nested too deep to be a problem") from None
    except ValueError as error:  # JSONDecodeError and UnicodeDecodeError are both of this kind
        raise InputError(f"$: not JSON ({error}); write one object a line") from None


def path_of(key: str) -> str:
    """Returns how a key continues a path: ``.lags``, ``["0_3"]``."""
    return f".{key}" if key.isascii() and key.isidentifier() else f"[{json.dumps(key)}]"


def shown(value: object) -> str:
    """The value as JSON, in 60 characters at most."""
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def refuse(problem: str, path: str = "") -> NoReturn:
    """Raises FieldError for the value being read, or for what is at `path` within it."""
    raise FieldError(path, problem)


def read_at(path: str, read: Reader, value: object, kind: Any = None) -> Any:
    """Returns what `read` makes of the value at `path`, which its errors then begin with."""
    try:
        return read(value, kind)
    except FieldError as error:
        raise FieldError(path + error.field, error.problem) from None


# ------------------------------------------------------------------------------------- plain values


def read_text(value: Any, _: Any = None) -> str:
    """One or more characters, each of which UTF-8 can carry."""
    if not isinstance(value, str) or not value:
        refuse(f"{shown(value)} is not a text of one or more characters")
    if any("\ud800" <= letter <= "\udfff" for letter in value):
        refuse(f"{shown(value)} holds a lone surrogate, which UTF-8 cannot carry")
    return value


def read_flag(value: Any, _: Any = None) -> bool:
    if not isinstance(value, bool):
        refuse(f"{shown(value)} is neither true nor false")
    return value


def read_whole(value: Any, _: Any = None) -> int:
    """0 to 2**63 - 1."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= INT64_MAX:
        refuse(f"{shown(value)} is not a whole number >= 0")
    return value


def read_positive(value: Any, _: Any = None) -> int:
    """1 to 2**63 - 1."""
    if read_whole(value) == 0:
        refuse("0 is not a whole number >= 1")
    return int(value)


# ------------------------------------------------------------------------------ arrays and objects


def as_array(value: Any) -> list[Any]:
    """Raises FieldError unless the value is an array."""
    if not isinstance(value, list):
        refuse(f"{shown(value)} is not an array")
    return value


def as_object(value: Any, what: str = "an object") -> Mapping[str, Any]:
    """Raises FieldError unless the value is an object."""
    if not isinstance(value, dict):
        refuse(f"{shown(value)} is not {what}")
    return value


def check_keys(content: Mapping[str, Any], known: Mapping[str, bool]) -> None:
    """Raises FieldError for a key that is not `known`, and for a required one that is missing.
    `known`: key -> whether it is required.
    """
    for key in content:
        if key not in known:
            refuse(f"unknown field; known are {', '.join(sorted(known))}", path_of(key))
    for key, required in known.items():
        if required and key not in content:
            refuse("missing; it is required", path_of(key))


def check_unique(names: list[str]) -> None:
    """Raises FieldError for the second of two equal names in an array."""
    if len(set(names)) < len(names):
        index, name = next((index, name) for index, name in enumerate(names) if name in names[:index])
        refuse(f"{name!r} repeats item [{names.index(name)}]; name each once", f"[{index}]")


def array_reader(read: Reader, kind: Any = None) -> Reader:
    """Of ``tuple[X, ...]``, where `read` reads an X."""

    def read_array(value: Any, _: Any = None) -> tuple[Any, ...]:
        return tuple([read_at(f"[{index}]", read, item, kind) for index, item in enumerate(as_array(value))])

    return read_array


VERSION = 1
MOST_BODY_BYTES = 8_000_000
"""Largest body: some 100,000 tasks with three copies each."""
MOST_PROCESSES = 10_000
MOST_RECORDS = 2**53 - 1
"""Highest number of records that every JSON reader keeps exact: more than any topic has."""
MOST_THREADS = 1_000_000
_SENTINELS = {-2: LagSentinel.ACTIVE, -3: LagSentinel.UNKNOWN}
"""Of Kafka Streams' offset sums."""


@attrs.frozen(kw_only=True)
class AskedPartition:
    """A partition that a task reads or writes. `racks`: those of its replicas; empty: not known."""

    topic: str
    partition: int
    racks: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class AskedTask:
    """A task of the application. `records`: at least so many are in its changelogs."""

    id: TaskId
    stateful: bool
    source: tuple[AskedPartition, ...]
    changelog: tuple[AskedPartition, ...]
    records: int = 0


@attrs.frozen(kw_only=True)
class AskedProcess:
    """One process (KIP-924 KafkaStreamsState). `active`, `standby`: tasks that it ran or kept
    copies of before this round. `lags`: task -> records that its copy lacks, of those.
    """

    id: str
    consumers: tuple[str, ...]
    threads: int
    rack: str | None
    tags: Mapping[str, str]
    active: tuple[TaskId, ...]
    standby: tuple[TaskId, ...]
    lags: Mapping[TaskId, Lag]


@attrs.frozen(kw_only=True)
class Question:
    """The state of an application in one round, and its own settings (KIP-924 AssignmentConfigs,
    under the names of Kafka Streams' settings).
    """

    round_id: str
    settings: Mapping[str, Any]
    tasks: tuple[AskedTask, ...]
    processes: tuple[AskedProcess, ...]


def read_question(body: bytes) -> Question:
    """Raises InputError with the JSON path of what is wrong."""
    return read_at("$", _question, parse(body))  # type: ignore[no-any-return]


def _question(value: Any, _: Any = None) -> Question:
    content = as_object(value)
    if content.get("version") != VERSION:
        refuse(f"{shown(content.get('version'))} is not {VERSION}, the version that this worker reads", ".version")
    check_keys(content, {"version": True, "round": True, "settings": False, "tasks": True, "processes": True})
    round_id = read_at(".round", _short_text, content["round"])
    tasks = read_at(".tasks", array_reader(_task), content["tasks"])
    if len(tasks) > MOST_TASKS:
        refuse(f"{len(tasks)} tasks; a group has at most {MOST_TASKS}", ".tasks")
    read_at(".tasks", _unique, [str(task.id) for task in tasks])
    processes = read_at(".processes", array_reader(_process), content["processes"])
    if not 0 < len(processes) <= MOST_PROCESSES:
        refuse(f"{len(processes)} processes; there must be 1 to {MOST_PROCESSES}", ".processes")
    read_at(".processes", _unique, [process.id for process in processes])
    known = {task.id: task for task in tasks}
    for index, process in enumerate(processes):
        for name in ("active", "standby", "lags"):
            for task in getattr(process, name):
                if task not in known:
                    refuse(f"{task} is not one of the tasks", f".processes[{index}].{name}")
                if name != "active" and not known[task].stateful:
                    refuse(f"{task} has no state, so nobody has a copy of it", f".processes[{index}].{name}")
    settings = read_at(".settings", lambda each, _: dict(as_object(each)), content.get("settings", {}))
    return Question(round_id=round_id, settings=settings, tasks=tasks, processes=processes)


def _unique(names: list[str], _: Any = None) -> None:
    check_unique(names)


def _name(value: Any, _: Any = None) -> str:
    """Reads a new name (docs/protocol.md#l8)."""
    try:
        check_name("", value)
    except FieldError as error:
        refuse(error.problem)
    return str(value)


def _short_text(value: Any, _: Any = None) -> str:
    text = read_text(value)
    if len(text) > MOST_NAME_BYTES:
        refuse(f"a text of {len(text)} characters; at most {MOST_NAME_BYTES}")
    return text


def _number(most: int, least: int = 0) -> Reader:
    """A reader of a whole number from `least` to `most`."""

    def read(value: Any, _: Any = None) -> int:
        number = read_positive(value) if least else read_whole(value)
        if number > most:
            refuse(f"{shown(value)} is not a whole number from {least} to {most}")
        return number

    return read


def _task_id(value: Any, _: Any = None) -> TaskId:
    try:
        return parse_task(read_text(value))
    except FieldError:
        refuse(f"{shown(value)} is not a task id; write <sub-topology>_<partition>, as in 0_3")


def _partition(value: Any, _: Any = None) -> AskedPartition:
    content = as_object(value)
    check_keys(content, {"topic": True, "partition": True, "racks": False})
    return AskedPartition(
        topic=read_at(".topic", _name, content["topic"]),
        partition=read_at(".partition", _number(MOST_TASK_NUMBER), content["partition"]),
        racks=tuple(sorted(set(read_at(".racks", array_reader(_name), content.get("racks", []))))),
    )


def _task(value: Any, _: Any = None) -> AskedTask:
    content = as_object(value)
    check_keys(content, {"id": True, "stateful": True, "source": False, "changelog": False, "records": False})
    return AskedTask(
        id=read_at(".id", _task_id, content["id"]),
        stateful=read_at(".stateful", read_flag, content["stateful"]),
        source=read_at(".source", array_reader(_partition), content.get("source", [])),
        changelog=read_at(".changelog", array_reader(_partition), content.get("changelog", [])),
        records=read_at(".records", _number(MOST_RECORDS), content.get("records", 0)),
    )


def _tasks(value: Any, _: Any = None) -> tuple[TaskId, ...]:
    tasks = array_reader(_task_id)(value, None)
    check_unique([str(task) for task in tasks])
    return tuple(sorted(tasks))


def _lag(value: Any, _: Any = None) -> Lag:
    if value.__class__ is int and value in _SENTINELS:
        return _SENTINELS[value]
    return int(_number(MOST_RECORDS)(value, None))


def _lags(value: Any, _: Any = None) -> dict[TaskId, Lag]:
    return {read_at(path_of(key), _task_id, key): read_at(path_of(key), _lag, lag) for key, lag in as_object(value).items()}


def _texts(value: Any, _: Any = None) -> dict[str, str]:
    return {key: read_at(path_of(key), _short_text, text) for key, text in as_object(value).items()}


def _process(value: Any, _: Any = None) -> AskedProcess:
    content = as_object(value)
    known = {"id": True, "consumers": False, "threads": True, "rack": False, "tags": False, "active": False, "standby": False, "lags": False}
    check_keys(content, known)
    rack = content.get("rack")
    active = read_at(".active", _tasks, content.get("active", []))
    return AskedProcess(
        id=read_at(".id", _name, content["id"]),
        consumers=tuple(sorted(read_at(".consumers", array_reader(_name), as_array(content.get("consumers", []))))),
        threads=read_at(".threads", _number(MOST_THREADS, 1), content["threads"]),
        rack=None if rack is None else read_at(".rack", _name, rack),
        tags=read_at(".tags", _texts, content.get("tags", {})),
        active=active,
        standby=read_at(".standby", _tasks, content.get("standby", [])),
        lags=read_at(".lags", _lags, content.get("lags", {})),
    )
