"""Kinds of argument values: how each is read, and how the reference names it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable
from typing import Any

import attrs

from equipoise.events.errors import FieldError, InputError
from equipoise.events.tasks import Lag, LagSentinel, TaskId, parse_task

_MOST_IN_RANGE = 100_000
_MEMBER_RANGE = re.compile(r"(?P<stem>.*?)(?P<first>[0-9]+)\.\.(?P=stem)(?P<last>[0-9]+)")


@attrs.frozen
class ValueKind:
    """A kind of value. `example`: its form in the reference. `read` raises InputError with the
    problem.
    """

    example: str
    read: Callable[[str], Any]


def _whole(text: str) -> int:
    if not re.fullmatch(r"-?[0-9][0-9_]*", text):
        raise InputError(f"{text!r} is not a whole number")
    return int(text.replace("_", ""))


def _yes_no(text: str) -> bool:
    if text not in ("yes", "no"):
        raise InputError(f"{text!r} is neither yes nor no")
    return text == "yes"


def _items(text: str) -> list[str]:
    """``(a,b)`` -> a, b; ``a`` -> a; ``()`` -> nothing."""
    inner = text[1:-1] if text.startswith("(") and text.endswith(")") else text
    return [item for item in inner.split(",") if item]


def _task_range(text: str) -> list[TaskId]:
    """``0_3`` is one task, ``0_3..5`` are three."""
    first, dots, last = text.partition("..")
    task = parse_task(first)
    if not dots:
        return [task]
    if not last.isdecimal() or not task.partition <= int(last) < task.partition + _MOST_IN_RANGE:
        raise InputError(f"{text!r} is not a range of tasks; write 0_3..5 for 0_3, 0_4 and 0_5")
    return [TaskId(task.subtopology, partition) for partition in range(task.partition, int(last) + 1)]


def _once(tasks: Iterable[TaskId]) -> tuple[TaskId, ...]:
    found = sorted(tasks)
    for before, task in itertools.pairwise(found):
        if before == task:
            raise InputError(f"task {task} is given twice")
    return tuple(found)


def _tasks(text: str) -> tuple[TaskId, ...]:
    return _once(task for item in _items(text) for task in _task_range(item))


def _by_task(text: str, read_value: Callable[[str], Any]) -> dict[TaskId, Any]:
    pairs: list[tuple[TaskId, Any]] = []
    for item in _items(text):
        tasks, colon, value = item.partition(":")
        if not colon:
            raise InputError(f"{item!r} has no value; write <task>:<value>, as in 0_3:5000")
        pairs += [(task, read_value(value)) for task in _task_range(tasks)]
    _once(task for task, _ in pairs)
    return dict(sorted(pairs))


def _lag(text: str) -> Lag:
    for sentinel in LagSentinel:
        if text == sentinel.value:
            return sentinel
    return _whole(text)


def _by_name(text: str, read_value: Callable[[str], Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for item in _items(text):
        name, colon, value = item.partition(":")
        if not colon or not name or name in found:
            raise InputError(f"{item!r}: write <name>:<value>, each name once")
        found[name] = read_value(value)
    return found


def _option(text: str) -> int | str | bool:
    """yes or no, a whole number, or else text."""
    for read in (_yes_no, _whole):
        try:
            return read(text)
        except InputError:
            continue
    return text


def _by_number(text: str, read_value: Callable[[str], Any]) -> dict[int, Any]:
    return {_whole(name): value for name, value in _by_name(text, read_value).items()}


def member_range(text: str) -> list[str]:
    """``m1..m3`` -> m1, m2, m3; anything else is one name. Raises InputError for a range without an
    end.
    """
    match = _MEMBER_RANGE.fullmatch(text)
    if match is None:
        return [text]
    first, last = int(match["first"]), int(match["last"])
    if not first <= last < first + _MOST_IN_RANGE:
        raise InputError(f"{text!r} is not a range of members; write m1..m3 for m1, m2 and m3")
    return [f"{match['stem']}{number}" for number in range(first, last + 1)]


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for item in _items(text) for name in member_range(item))


def one_of(*allowed: str) -> ValueKind:
    """One of a few words."""

    def read(text: str) -> str:
        if text not in allowed:
            raise InputError(f"{text!r} is not one of {', '.join(allowed)}")
        return text

    return ValueKind("|".join(allowed), read)


WHOLE = ValueKind("N", _whole)
YES_NO = ValueKind("yes|no", _yes_no)
TEXT = ValueKind("text", str)
NAMES = ValueKind("(m1,m2..m4)", _names)
TASKS = ValueKind("(0_0,0_3..5)", _tasks)
LAGS = ValueKind("(0_0:active,0_1:5000,0_2..5:unknown)", lambda text: _by_task(text, _lag))
ENDS = ValueKind("(0_0:5000,0_1..3:0)", lambda text: _by_task(text, _whole))
PAIRS = ValueKind("(zone:z1,cluster:c2)", lambda text: _by_name(text, str))
OPTIONS = ValueKind("(cross_topic:yes,most:5)", lambda text: _by_name(text, _option))
PARTITIONS = ValueKind("(0:5000,1:200)", lambda text: _by_number(text, _whole))
RACKS = ValueKind("(0:a|b,1:a)", lambda text: _by_number(text, lambda racks: tuple(racks.split("|"))))
SIZES = ValueKind("(0:3,1:60)", lambda text: _by_number(text, _whole))
NUMBER_BY_MEMBER = ValueKind("(m1:2,m2:5000)", lambda text: _by_name(text, _whole))
BY_MEMBER = ValueKind("(m1:0_0|0_1,m2:0_2)", lambda text: _by_name(text, lambda tasks: _tasks(",".join(tasks.split("|")))))


def tasks_text(tasks: Iterable[TaskId]) -> str:
    """``(0_0,0_1,1_0..59)``: runs of four and more tasks as ranges, as the directives take them."""
    parts: list[str] = []
    run: list[TaskId] = []
    for task in [*sorted(tasks), None]:
        if task is not None and run and task == TaskId(run[-1].subtopology, run[-1].partition + 1):
            run.append(task)
            continue
        parts += [f"{run[0]}..{run[-1].partition}"] if len(run) >= 4 else map(str, run)
        run = [] if task is None else [task]
    return f"({','.join(parts)})"


def read_value(kind: ValueKind, text: str) -> Any:
    """`text` as a value of `kind`. Raises InputError."""
    try:
        return kind.read(text)
    except FieldError as error:
        raise InputError(error.problem) from None
