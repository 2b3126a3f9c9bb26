"""The wire form: an event as an array of its fields in declared order, built from values that both
msgpack and JSON can carry.

::

    in Python                   on the wire
    attrs class                 array of its fields, in declared order
    int, float, str, bool       unchanged (a float is always a float, and never -0.0)
    X or None                   X or null
    tuple of X                  array of X
    TaskId                      text ``"0_3"``
    set of tasks                ``[[sub-topology, [step, ...]], ...]``, sub-topologies rising
    mapping of task to lag      map of task text to a number, ``"active"`` or ``"unknown"``; keys in
                                the order of the tasks
    mapping of task to number   ``[[number, set of tasks], ...]``, numbers rising (holds: many
                                tasks, few numbers)
    mapping of text to X        map, keys rising
    mapping of number to X      ``[[key, X], ...]``, keys rising (JSON has only text keys)

A step (>= 1) is the distance from the partition before it, the first one from -1: partitions 0, 1,
2, 7 are ``[1, 1, 1, 5]``. The partitions of a member are close together and a step below 128 is one
byte, so 100,000 tasks fit into one event.

Equal events have equal wire forms. Reading is as strict: a form that no writer produces is refused,
with the field's name.
"""

from __future__ import annotations

import typing
from collections.abc import Callable
from math import copysign
from typing import Any

import attrs
import cattrs

from equipoise.events.errors import FieldError, UnsoundError
from equipoise.events.facts import LagReported
from equipoise.events.fields import stored_name
from equipoise.events.forms import (
    MisshapenError,
    Reader,
    Writer,
    appended,
    as_is,
    columns,
    is_mapping_from,
    make_converter,
    read_lag,
    read_task,
    simply,
    write_float,
)
from equipoise.events.tasks import MOST_KNOWN_TASKS, PARSED_TASKS, TASK_TEXTS, Lag, TaskId

_text = TASK_TEXTS.__getitem__
_NOTHING: list[Any] = []


def _read_float(wire: Any, _: Any = None) -> float:
    if wire.__class__ is not float or (wire == 0.0 and copysign(1.0, wire) < 0.0):
        raise MisshapenError(f"{wire!r:.80} is not a float other than -0.0")
    return wire


# -------------------------------------------------------------------------------------------- tasks


def _write_tasks(tasks: tuple[TaskId, ...]) -> list[Any]:
    groups: list[Any] = []
    steps: list[int] = []
    last_subtopology = last_partition = -1
    for subtopology, partition in tasks:
        if subtopology != last_subtopology:
            steps = []
            groups.append([subtopology, steps])
            last_subtopology, last_partition = subtopology, -1
        steps.append(partition - last_partition)
        last_partition = partition
    return groups


class _Partitions(dict[int, TaskId]):
    """Partition -> its task, for one sub-topology. A log names the same tasks again and again, and
    a lookup is twice as fast as making one.
    """

    kept = 0
    """Number of tasks kept, over all sub-topologies."""

    def __init__(self, subtopology: int) -> None:
        super().__init__()
        self._subtopology = subtopology

    def __missing__(self, partition: int) -> TaskId:
        task = TaskId(self._subtopology, partition)
        if _Partitions.kept < MOST_KNOWN_TASKS:
            _Partitions.kept += 1
            self[partition] = task
        return task


_SUBTOPOLOGIES: dict[int, _Partitions] = {}


def _partitions_of(subtopology: int) -> _Partitions:
    found = _SUBTOPOLOGIES.get(subtopology)
    if found is None:
        found = _Partitions(subtopology)
        if _Partitions.kept < MOST_KNOWN_TASKS:
            _SUBTOPOLOGIES[subtopology] = found
    return found


def _read_tasks(wire: Any, _: Any = None) -> tuple[TaskId, ...]:
    if wire.__class__ is not list:
        raise MisshapenError(f"{wire!r:.80} is not a set of tasks")
    if not wire:
        return ()
    tasks = []
    last_subtopology = -1
    for group in wire:
        if group.__class__ is not list or len(group) != 2:
            raise MisshapenError(f"{group!r:.80} is not a sub-topology and its steps")
        subtopology, steps = group
        if subtopology.__class__ is not int or subtopology <= last_subtopology or steps.__class__ is not list or not steps:
            raise MisshapenError(f"{group!r:.80} after sub-topology {last_subtopology}: sub-topologies must rise, each with its steps")
        last_subtopology = subtopology
        known = _partitions_of(subtopology)
        partition = -1
        for step in steps:
            if step.__class__ is not int or step < 1:
                raise MisshapenError(f"step {step!r:.80} is not a whole number >= 1")
            partition += step
            tasks.append(known[partition])
    return tuple(tasks)


def _write_lags(lags: dict[TaskId, Lag]) -> dict[str, Any]:
    return {_text(task): lag if isinstance(lag, int) else lag.value for task, lag in sorted(lags.items(), key=_task_of)}


def _task_of(item: tuple[TaskId, Any]) -> TaskId:
    return item[0]


class _Rising(dict[tuple[str, ...], tuple[TaskId, ...]]):
    """Texts of tasks in rising order -> the tasks, filled on demand. The heartbeats of a member
    name the same tasks every few seconds.
    """

    kept = 0

    def __missing__(self, texts: tuple[str, ...]) -> tuple[TaskId, ...]:
        try:
            tasks = [PARSED_TASKS[text] for text in texts]
        except FieldError as error:
            raise MisshapenError(error.problem) from None
        if tasks != sorted(tasks):
            raise MisshapenError("tasks must be in rising order")
        takes = 8 + len(texts)  # besides its texts, as much as 8 of them
        if self.kept + takes > MOST_KEPT_TEXTS:
            self.clear()
            self.kept = 0
        self.kept += takes
        found = self[texts] = tuple(tasks)
        return found


MOST_KEPT_TEXTS = 300_000
"""Enough for 10,000 members with 20 copies each."""
RISING = _Rising()


def _read_lags(wire: Any, _: Any = None) -> dict[TaskId, Lag]:
    if wire.__class__ is not dict:
        raise MisshapenError(f"{wire!r:.80} is not a mapping of task to lag")
    return {task: lag if lag.__class__ is int else read_lag(lag) for task, lag in zip(RISING[tuple(wire)], wire.values(), strict=True)}


def _write_holds(holds: dict[TaskId, int]) -> list[Any]:
    by_number: dict[int, list[TaskId]] = {}
    for task in sorted(holds):
        by_number.setdefault(holds[task], []).append(task)
    return [[number, _write_tasks(tuple(by_number[number]))] for number in sorted(by_number)]


def _read_holds(wire: Any, _: Any = None) -> dict[TaskId, int]:
    holds: dict[TaskId, int] = {}
    if wire == _NOTHING:
        return holds
    for number, group in _read_pairs(wire):
        tasks = _read_tasks(group)
        if not tasks or not holds.keys().isdisjoint(tasks):
            raise MisshapenError(f"no task, or a task that has a number already, stands under {number}")
        holds.update(dict.fromkeys(tasks, number))
    return holds


# ----------------------------------------------------------------------------------------- mappings


def _read_pairs(wire: Any) -> list[Any]:
    """``[[key, value], ...]`` with whole-numbered keys, strictly rising from 0."""
    if wire.__class__ is not list:
        raise MisshapenError(f"{wire!r:.80} is not an array of pairs")
    last = -1
    for pair in wire:
        if pair.__class__ is not list or len(pair) != 2 or pair[0].__class__ is not int or pair[0] <= last:
            raise MisshapenError(f"{pair!r:.80} is not a pair with a whole number over {last} as key")
        last = pair[0]
    return wire


def _text_mapping_reader(converter: cattrs.Converter, kind: Any) -> Reader:
    inner = typing.get_args(kind)[1]
    read_value = converter.get_structure_hook(inner)

    def read(wire: Any, _: Any = None) -> Any:
        if wire.__class__ is not dict:
            raise MisshapenError(f"{wire!r:.80} is not a mapping")
        keys = list(wire)
        if not all(key.__class__ is str for key in keys) or keys != sorted(keys):
            raise MisshapenError("keys must be texts in rising order")
        return {key: read_value(value, inner) for key, value in wire.items()}

    return read


def _text_mapping_writer(converter: cattrs.Converter, kind: Any) -> Writer:
    write_value = converter.get_unstructure_hook(typing.get_args(kind)[1])
    return lambda mapping: {key: write_value(mapping[key]) for key in sorted(mapping)}


def _number_mapping_reader(converter: cattrs.Converter, kind: Any) -> Reader:
    inner = typing.get_args(kind)[1]
    read_value = converter.get_structure_hook(inner)

    def read(wire: Any, _: Any = None) -> Any:
        return {key: read_value(value, inner) for key, value in _read_pairs(wire)}

    return read


def _number_mapping_writer(converter: cattrs.Converter, kind: Any) -> Writer:
    write_value = converter.get_unstructure_hook(typing.get_args(kind)[1])
    return lambda mapping: [[key, write_value(mapping[key])] for key in sorted(mapping)]


# ------------------------------------------------------------------------------------------ classes


def _class_reader(converter: cattrs.Converter, kind: Any) -> Reader:
    names = [name for name, _ in columns(kind)]
    fields = [(name, converter.get_structure_hook(type_), type_) for name, type_ in columns(kind)]
    changed = [field for field in fields if field[1] is not as_is]
    later = appended(kind)
    least = len(names) - len(later)
    shape = stored_name(kind)

    def read(wire: Any, _: Any = None) -> Any:
        if wire.__class__ is not list:
            raise UnsoundError("misshapen", shape, f"{wire!r:.80} is not an array of its {len(names)} fields")
        count = len(wire)
        if not least <= count <= len(names):
            raise UnsoundError("misshapen", shape, f"has {len(names)} fields; found {count}")
        if count > least and wire[-1] == later[count - least - 1][1]:
            raise UnsoundError("not_canonical", shape, f"ends with the default of {names[count - 1]}, which is not written")
        values = dict(zip(names, [*wire, *(default for _, default in later[count - least :])], strict=True))
        for name, read_field, type_ in changed:
            try:
                values[name] = read_field(values[name], type_)
            except MisshapenError as error:
                raise UnsoundError("unsound_field", f"{shape}.{name}", str(error)) from None
        return kind(**values)

    return read


def _class_writer(converter: cattrs.Converter, kind: Any) -> Writer:
    names = [name for name, _ in columns(kind)]
    hooks = [converter.get_unstructure_hook(type_) for _, type_ in columns(kind)]
    changed = [(index, hook) for index, hook in enumerate(hooks) if hook is not as_is]
    later = appended(kind)

    def write_all(event: Any) -> list[Any]:
        written = [getattr(event, name) for name in names]
        for index, write_field in changed:
            written[index] = write_field(written[index])
        return written

    return (lambda event: without_defaults(write_all(event), kind)) if later else write_all


def without_defaults(wire: list[Any], kind: type) -> list[Any]:
    """Returns the wire form of a `kind` without its trailing appended fields that have their
    defaults.
    """
    defaults = [default for _, default in appended(kind)]
    count = len(wire)
    least = len(attrs.fields(kind)) - len(defaults)
    while count > least and wire[count - 1] == defaults[count - least - 1]:
        count -= 1
    return wire[:count]


_converter = make_converter(
    [
        (attrs.has, _class_reader, _class_writer),
        (is_mapping_from(str), _text_mapping_reader, _text_mapping_writer),
        (is_mapping_from(int), _number_mapping_reader, _number_mapping_writer),
        simply(float, _read_float, write_float),
        simply(TaskId, read_task, _text),
        simply(tuple[TaskId, ...], _read_tasks, _write_tasks),
        simply(dict[TaskId, Lag], _read_lags, _write_lags),
        simply(dict[TaskId, int], _read_holds, _write_holds),
    ]
)

_read_any_report = _converter.get_structure_hook(LagReported)
_read_load = _converter.get_structure_hook(dict(columns(LagReported))["load"])


def _read_report(wire: Any, _: Any = None) -> LagReported:
    """Reads a report, the kind of nearly every record: without a loop over fields, with positional
    arguments; looks for the reason of a failure only when there is one.
    """
    try:
        member_id, incarnation, number, assignment_epoch, held, ready, lags, base, forgotten, leaving, load, preparing, failed = wire
        of_tasks = zip(RISING[tuple(lags)], lags.values())  # noqa: B905  as many of both
        return LagReported(
            member_id,
            incarnation,
            number,
            assignment_epoch,
            () if held == _NOTHING else _read_tasks(held),
            () if ready == _NOTHING else _read_tasks(ready),
            {task: lag if lag.__class__ is int else read_lag(lag) for task, lag in of_tasks},
            base,
            () if forgotten == _NOTHING else _read_tasks(forgotten),
            leaving,
            None if load is None else _read_load(load, None),
            {} if preparing == _NOTHING else _read_holds(preparing),
            () if failed == _NOTHING else _read_tasks(failed),
        )
    except (MisshapenError, TypeError, ValueError, AttributeError):
        return typing.cast(LagReported, _read_any_report(wire, LagReported))


_converter.register_structure_hook(LagReported, _read_report)


def reader(kind: type) -> Callable[[Any, Any], Any]:
    """Returns the function (wire form, kind) -> event. It raises FieldError, or UnsoundError where
    no constructor sees the problem.
    """
    return _converter.get_structure_hook(kind)


def writer(kind: type) -> Callable[[Any], list[Any]]:
    """Returns the function event -> wire form."""
    return _converter.get_unstructure_hook(kind)
