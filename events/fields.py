"""Validators for event fields: each raises FieldError with ``Class.field`` and the fix.

They are attrs validators, so an event cannot be constructed unsound, from Python or from bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from events.errors import FieldError
from events.tasks import LagSentinel, TaskId

type_ = type
MOST_TEXT_CHARS = 1_000
INT64_MAX = 2**63 - 1

Validator = Callable[[Any, "attrs.Attribute[Any]", Any], None]


def _name(owner: object, attribute: attrs.Attribute[Any]) -> str:
    return f"{owner.__class__.__name__}.{attribute.name}"


def integer(least: int = 0, most: int = INT64_MAX) -> Validator:
    """A true int (no bool) within [least, most]."""

    def check(owner: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        if value.__class__ is not int or value < least or value > most:
            raise FieldError(_name(owner, attribute), f"{value!r} is not a whole number from {least} to {most}")

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
        raise FieldError(_name(owner, attribute), f"{value!r} is neither true nor false")


def one_of(*allowed: str) -> Validator:
    """One of a few texts."""

    def check(owner: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        if value.__class__ is not str or value not in allowed:
            raise FieldError(_name(owner, attribute), f"{value!r} is not one of {', '.join(allowed)}")

    return check


def _check_task(field: str, value: Any) -> None:
    if value.__class__ is not TaskId or value.subtopology.__class__ is not int or value.partition.__class__ is not int or value.subtopology < 0 or value.partition < 0:
        raise FieldError(field, f"{value!r} is not a task; use TaskId(sub-topology, partition), both >= 0")


def task(owner: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    """One TaskId."""
    _check_task(_name(owner, attribute), value)


def task_set(owner: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    """A tuple of TaskIds in strictly rising order: canonical, so no task stands in it twice."""
    if not value and value.__class__ is tuple:
        return
    field = _name(owner, attribute)
    if value.__class__ is not tuple:
        raise FieldError(field, f"{value!r:.80} is not a tuple of tasks")
    previous: TaskId | None = None
    for index, item in enumerate(value):
        _check_task(f"{field}[{index}]", item)
        if previous is not None and item <= previous:
            raise FieldError(f"{field}[{index}]", f"{item} after {previous}: tasks must be in rising order, each once")
        previous = item


def lags(owner: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    """dict TaskId -> Lag: a number of records >= 0, or a LagSentinel."""
    if value.__class__ is not dict:
        raise FieldError(_name(owner, attribute), f"{value!r:.80} is not a mapping of task to lag")
    for key, lag in value.items():
        if key.__class__ is not TaskId:
            _check_task(f"{_name(owner, attribute)}[{key}]", key)
        if (lag.__class__ is not int or lag < 0 or lag > INT64_MAX) and lag.__class__ is not LagSentinel:
            raise FieldError(f"{_name(owner, attribute)}[{key}]", f"{lag!r} is not a lag; use a number of records >= 0, 'active' or 'unknown'")


def mapping_of(key: Validator, item: Validator) -> Validator:
    """A dict whose keys and values each pass their validator."""

    def check(owner: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        if value.__class__ is not dict:
            raise FieldError(_name(owner, attribute), f"{value!r:.80} is not a mapping")
        for name, content in value.items():
            try:
                key(owner, attribute, name)
                item(owner, attribute, content)
            except FieldError as error:
                raise FieldError(f"{_name(owner, attribute)}[{name}]", error.problem) from None

    return check


def tuple_of(item: Validator) -> Validator:
    """A tuple whose items each pass the validator."""

    def check(owner: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        if value.__class__ is not tuple:
            raise FieldError(_name(owner, attribute), f"{value!r:.80} is not a tuple")
        for index, content in enumerate(value):
            try:
                item(owner, attribute, content)
            except FieldError as error:
                raise FieldError(f"{_name(owner, attribute)}[{index}]", error.problem) from None

    return check


def instance_of(kind: type_) -> Validator:
    """An object of exactly this class."""

    def check(owner: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        if value.__class__ is not kind:
            raise FieldError(_name(owner, attribute), f"{value!r:.80} is not a {kind.__name__}")

    return check


def number(least: float = 0.0) -> Validator:
    """A finite int or float >= least."""

    def check(owner: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        if value.__class__ not in (int, float) or not least <= value < float("inf"):
            raise FieldError(_name(owner, attribute), f"{value!r} is not a finite number >= {least}")

    return check


def scalar(owner: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    """An option of a third-party assignor: int, float, str or bool."""
    if value.__class__ not in (int, float, str, bool):
        raise FieldError(_name(owner, attribute), f"{value!r} is not a number, text or truth value")


def sorted_mapping(value: Mapping[Any, Any]) -> dict[Any, Any]:
    """attrs converter: the same mapping in key order, so that equal events have equal bytes whoever built them."""
    return dict(sorted(value.items())) if value.__class__ is dict and len(value) > 1 else value  # type: ignore[return-value]
