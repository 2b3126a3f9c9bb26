"""Validators for event fields: each raises FieldError with ``Class.field`` and the fix.

They are attrs validators, so an event cannot be constructed unsound, from Python or from bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from events.errors import FieldError
from events.tasks import LagSentinel, TaskId

type_ = type
MOST_TEXT_CHARS = 1_000
INT64_MAX = 2**63 - 1
_INFINITY = float("inf")
MOST_TASK_NUMBER = 999_999_999
"""Highest sub-topology and partition number: the nine digits that the text form of a task has room for."""

Validator = Callable[[Any, "attrs.Attribute[Any]", Any], None]


def _name(owner: object, attribute: attrs.Attribute[Any]) -> str:
    return f"{owner.__class__.__name__}.{attribute.name}"


def integer(least: int = 0, most: int = INT64_MAX) -> Validator:
    """A true int (no bool) within [least, most]."""

    def check(owner: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        if value.__class__ is not int or value < least or value > most:
            raise FieldError(_name(owner, attribute), f"{value!r:.80} is not a whole number from {least} to {most}")

    return check


def optional(inner: Validator) -> Validator:
    """None, or what `inner` accepts."""

    def check(owner: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        if value is not None:
            inner(owner, attribute, value)

    return check


def text(least_chars: int = 1, most_chars: int = MOST_TEXT_CHARS) -> Validator:
    """A str of least_chars to most_chars characters, each one that UTF-8 can carry."""

    def check(owner: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        if value.__class__ is not str or not least_chars <= len(value) <= most_chars:
            raise FieldError(_name(owner, attribute), f"{value!r:.80} is not a text of {least_chars} to {most_chars} characters")
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise FieldError(_name(owner, attribute), f"{value!r:.80} holds a lone surrogate, which UTF-8 cannot carry") from None

    return check


def boolean(owner: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    """True or False."""
    if value is not True and value is not False:
        raise FieldError(_name(owner, attribute), f"{value!r:.80} is neither true nor false")


def one_of(*allowed: str) -> Validator:
    """One of a few texts."""

    def check(owner: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        if value.__class__ is not str or value not in allowed:
            raise FieldError(_name(owner, attribute), f"{value!r:.80} is not one of {', '.join(allowed)}")

    return check


def _check_task(field: str, value: Any) -> None:
    if (
        value.__class__ is not TaskId
        or value.subtopology.__class__ is not int
        or value.partition.__class__ is not int
        or not 0 <= value.subtopology <= MOST_TASK_NUMBER
        or not 0 <= value.partition <= MOST_TASK_NUMBER
    ):
        raise FieldError(field, f"{value!r:.80} is not a task; use TaskId(sub-topology, partition), both from 0 to {MOST_TASK_NUMBER}")


def task(owner: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    """One TaskId."""
    _check_task(_name(owner, attribute), value)


def task_set(owner: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    """A tuple of TaskIds in strictly rising order: canonical, so no task stands in it twice."""
    if value.__class__ is not tuple:
        raise FieldError(_name(owner, attribute), f"{value!r:.80} is not a tuple of tasks")
    last_subtopology = last_partition = -1
    for index, item in enumerate(value):  # spelled out, because every heartbeat passes here
        if item.__class__ is not TaskId:
            _check_task(f"{_name(owner, attribute)}[{index}]", item)
        subtopology, partition = item
        if (
            subtopology.__class__ is not int
            or partition.__class__ is not int
            or subtopology < 0
            or partition < 0
            or subtopology > MOST_TASK_NUMBER
            or partition > MOST_TASK_NUMBER
        ):
            _check_task(f"{_name(owner, attribute)}[{index}]", item)
        if subtopology <= last_subtopology and (subtopology < last_subtopology or partition <= last_partition):
            _check_task(f"{_name(owner, attribute)}[{index}]", item)
            raise FieldError(f"{_name(owner, attribute)}[{index}]", f"{item} after {value[index - 1]}: tasks must be in rising order, each once")
        last_subtopology, last_partition = subtopology, partition


def lags(owner: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    """dict TaskId -> Lag: a number of records >= 0, or a LagSentinel.

    Of the keys only the class is checked, because every heartbeat passes here; that their numbers are in range is checked where they meet the
    wire (`events.tasks.PARSED_TASKS`, `events.tasks.TASK_TEXTS`).
    """
    if value.__class__ is not dict:
        raise FieldError(_name(owner, attribute), f"{value!r:.80} is not a mapping of task to lag")
    for key, lag in value.items():
        if key.__class__ is not TaskId:
            _check_task(f"{_name(owner, attribute)}[{key!s:.80}]", key)
        if (lag.__class__ is not int or lag < 0 or lag > INT64_MAX) and lag.__class__ is not LagSentinel:
            raise FieldError(f"{_name(owner, attribute)}[{key}]", f"{lag!r:.80} is not a lag; use a number of records >= 0, 'active' or 'unknown'")


def _within(field: str, key: object, error: FieldError) -> FieldError:
    """The error of an item, with its key between the name of the field and what the error says of the place within the item."""
    return FieldError(f"{field}[{key!s:.80}]{error.field.removeprefix(field)}", error.problem)


def mapping_of(key: Validator, item: Validator, *, most_items: int | None = None) -> Validator:
    """A dict whose keys and values each pass their validator, of `most_items` at most."""

    def check(owner: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        if value.__class__ is not dict:
            raise FieldError(_name(owner, attribute), f"{value!r:.80} is not a mapping")
        if most_items is not None and len(value) > most_items:
            raise FieldError(_name(owner, attribute), f"has {len(value)} entries; {most_items} at most")
        for name, content in value.items():
            try:
                key(owner, attribute, name)
                item(owner, attribute, content)
            except FieldError as error:
                raise _within(_name(owner, attribute), name, error) from None

    return check


def tuple_of(item: Validator, *, most_items: int | None = None, distinct: bool = False) -> Validator:
    """A tuple whose items each pass the validator, of `most_items` at most, and no two the same if they are to be `distinct`."""

    def check(owner: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        if value.__class__ is not tuple:
            raise FieldError(_name(owner, attribute), f"{value!r:.80} is not a tuple")
        for index, content in enumerate(value):
            try:
                item(owner, attribute, content)
            except FieldError as error:
                raise _within(_name(owner, attribute), index, error) from None
        if most_items is not None and len(value) > most_items:
            raise FieldError(_name(owner, attribute), f"has {len(value)} items; {most_items} at most")
        if distinct and len(frozenset(value)) < len(value):
            raise FieldError(_name(owner, attribute), f"{value!r:.80} names one twice; name each once")

    return check


def instance_of(kind: type_) -> Validator:
    """An object of exactly this class."""

    def check(owner: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        if value.__class__ is not kind:
            raise FieldError(_name(owner, attribute), f"{value!r:.80} is not a {kind.__name__}")

    return check


def number(least: float = 0.0) -> Validator:
    """A finite float, or an int of 64 bits, >= least. (What is written is always a float: `events.forms.write_float`.)"""

    def check(owner: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        if (value.__class__ is not float and (value.__class__ is not int or value > INT64_MAX)) or not least <= value < _INFINITY:
            raise FieldError(_name(owner, attribute), f"{value!r:.80} is not a finite number >= {least}")

    return check


_option_text = text(0)
_option_integer = integer(-(2**63))


def scalar(owner: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    """An option of a third-party assignor: a bool, a text, an int of 64 bits or a finite float other than -0.0."""
    if value.__class__ is str:
        _option_text(owner, attribute, value)
    elif value.__class__ is int:
        _option_integer(owner, attribute, value)
    elif value.__class__ is float:
        if not abs(value) < float("inf") or str(value) == "-0.0":
            raise FieldError(_name(owner, attribute), f"{value!r} is not a finite number other than -0.0")
    elif value is not True and value is not False:
        raise FieldError(_name(owner, attribute), f"{value!r:.80} is not a number, text or truth value")


def sorted_mapping(value: Any) -> Any:
    """attrs converter: the same mapping in key order, mappings within it too, so that it reads the same whoever built it."""
    if value.__class__ is not dict or not value:
        return value
    try:
        return {key: sorted_mapping(value[key]) for key in sorted(value)}
    except TypeError:  # keys of several types: the validator names the one that is wrong
        return value
