"""Validators of event fields. Each raises FieldError with ``Class.field`` and the fix.

They are attrs validators, so no unsound event can be constructed, from Python or from bytes.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from typing import Any

import attrs

from equipoise.events.errors import FieldError
from equipoise.events.tasks import LagSentinel, TaskId

type_ = type
MOST_TEXT_CHARS = 1_000
INT64_MAX = 2**63 - 1
_INFINITY = float("inf")
MOST_TASK_NUMBER = 999_999_999
"""Highest sub-topology and partition number: the text form of a task has nine digits."""

APPENDED = {"appended": True}
"""Metadata of a field that was appended to a decision within its version
(`equipoise.events.codec`). It has a default and is not written while it has that value.
"""

Validator = Callable[[Any, "attrs.Attribute[Any]", Any], None]


def stored_name(kind: type) -> str:
    """The name of a class in error paths. A renamed class keeps its old name as `STORED_NAME`,
    because paths are stored in `Undecodable.field`.
    """
    return str(getattr(kind, "STORED_NAME", kind.__name__))


def _name(owner: object, attribute: attrs.Attribute[Any]) -> str:
    return f"{stored_name(owner.__class__)}.{attribute.name}"


def integer(least: int = 0, most: int = INT64_MAX) -> Validator:
    """Accepts an int, not a bool, within [least, most]."""

    def check(owner: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        if value.__class__ is not int or value < least or value > most:
            raise FieldError(_name(owner, attribute), f"{value!r:.80} is not a whole number from {least} to {most}")

    return check


def optional(inner: Validator) -> Validator:
    """Accepts None and what `inner` accepts."""

    def check(owner: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        if value is not None:
            inner(owner, attribute, value)

    return check


def text(least_chars: int = 1, most_chars: int = MOST_TEXT_CHARS) -> Validator:
    """Accepts a str of least_chars to most_chars characters that UTF-8 can encode."""

    def check(owner: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        if value.__class__ is not str or not least_chars <= len(value) <= most_chars:
            raise FieldError(_name(owner, attribute), f"{value!r:.80} is not a text of {least_chars} to {most_chars} characters")
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise FieldError(_name(owner, attribute), f"{value!r:.80} holds a lone surrogate, which UTF-8 cannot carry") from None

    return check


MOST_NAME_BYTES = 249
"""Longest new name in bytes, as Kafka limits the names of topics. Names in logs may be longer, up
to MOST_TEXT_CHARS.
"""


def check_name(field: str, value: Any) -> None:
    """Checks a new name of a group, a member, a rack or a topic. Raises FieldError, with `field`,
    when `value` is not valid. Names that already exist are checked by `text` only.
    """
    if value.__class__ is not str or not value:
        raise FieldError(field, f"{value!r:.80} is not a name; write a text of 1 to {MOST_NAME_BYTES} bytes")
    try:
        length = len(value.encode())
    except UnicodeEncodeError:
        raise FieldError(field, f"{value!r:.80} holds a lone surrogate, which UTF-8 cannot carry") from None
    if length > MOST_NAME_BYTES:
        raise FieldError(field, f"{value!r:.80} has {length} bytes; a name has at most {MOST_NAME_BYTES}")
    hidden = next((char for char in value if is_hidden(char)), None)
    if hidden is not None:
        raise FieldError(field, f"{value!r:.80} holds {hidden!r}, which is no visible character; leave control and format characters out")


def is_hidden(char: str) -> bool:
    """Returns whether a terminal obeys `char` or does not show it: a control character, a line
    break, a direction mark, a zero-width character.
    """
    return unicodedata.category(char) in _HIDDEN


_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def name(owner: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    """Accepts a new name: see `check_name`."""
    check_name(_name(owner, attribute), value)


def boolean(owner: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    """Accepts True and False."""
    if value is not True and value is not False:
        raise FieldError(_name(owner, attribute), f"{value!r:.80} is neither true nor false")


def one_of(*allowed: str) -> Validator:
    """Accepts one of the given texts."""

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
    """Accepts a TaskId."""
    _check_task(_name(owner, attribute), value)


def are_tasks(value: Any) -> bool:
    """Returns whether `task_set` accepts `value`. Fast, because every heartbeat is checked."""
    if value.__class__ is not tuple:
        return False
    last_subtopology, last_partition = -1, MOST_TASK_NUMBER  # no partition is behind that one: a sub-topology -1 has none
    for item in value:
        if item.__class__ is not TaskId:
            return False
        subtopology, partition = item
        if subtopology.__class__ is not int or partition.__class__ is not int:
            return False
        if subtopology != last_subtopology:
            if subtopology < last_subtopology:
                return False
            last_subtopology, last_partition = subtopology, -1
        if partition <= last_partition or partition > MOST_TASK_NUMBER:
            return False
        last_partition = partition
    return last_subtopology <= MOST_TASK_NUMBER


def task_set(owner: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    """Accepts a tuple of TaskIds in strictly rising order, the canonical form of a set."""
    if are_tasks(value):
        return
    if value.__class__ is not tuple:
        raise FieldError(_name(owner, attribute), f"{value!r:.80} is not a tuple of tasks")
    for index, item in enumerate(value):
        _check_task(f"{_name(owner, attribute)}[{index}]", item)
        if index and item <= value[index - 1]:
            raise FieldError(f"{_name(owner, attribute)}[{index}]", f"{item} after {value[index - 1]}: tasks must be in rising order, each once")


def are_lags(value: Any) -> bool:
    """Returns whether `lags` accepts `value`. Fast, because every heartbeat is checked."""
    if value.__class__ is not dict:
        return False
    for key, lag in value.items():
        if key.__class__ is not TaskId or ((lag.__class__ is not int or lag >> 63) and lag.__class__ is not LagSentinel):
            return False  # lag >> 63 is 0 from 0 to INT64_MAX, and nowhere else
    return True


def lags(owner: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    """Accepts a dict from TaskId to Lag: a number of records >= 0, or a LagSentinel.

    Checks only the class of the keys, because every heartbeat is checked. Their ranges are checked
    where they are encoded or decoded (`equipoise.events.tasks.PARSED_TASKS`,
    `equipoise.events.tasks.TASK_TEXTS`).
    """
    if are_lags(value):
        return
    if value.__class__ is not dict:
        raise FieldError(_name(owner, attribute), f"{value!r:.80} is not a mapping of task to lag")
    for key, lag in value.items():
        if key.__class__ is not TaskId:
            _check_task(f"{_name(owner, attribute)}[{key!s:.80}]", key)
        if not are_lags({key: lag}):
            raise FieldError(f"{_name(owner, attribute)}[{key}]", f"{lag!r:.80} is not a lag; use a number of records >= 0, 'active' or 'unknown'")


Attributes = list["attrs.Attribute[Any]"]
_VALIDATOR = "validator"


def validator_of(attribute: attrs.Attribute[Any]) -> Any:
    """The validator of an attribute."""
    return attribute.metadata.get(_VALIDATOR, attribute.validator)


def asked_by_the_class(_kind: type_, attributes: Attributes) -> Attributes:
    """attrs field_transformer for classes with very many instances: attrs calls no validator.

    The class checks all fields at once in its `__attrs_post_init__`, and calls `ask_each` only if a
    validator might refuse.
    """
    return [each.evolve(validator=None, metadata={**each.metadata, _VALIDATOR: each.validator}) for each in attributes]


def ask_each(owner: Any) -> None:
    """Calls the validators of all fields in order. Raises FieldError from the first that refuses."""
    for attribute in attrs.fields(owner.__class__):
        validator_of(attribute)(owner, attribute, getattr(owner, attribute.name))


def _within(field: str, key: object, error: FieldError) -> FieldError:
    """The error of an item, with its key in the path of the field."""
    return FieldError(f"{field}[{key!s:.80}]{error.field.removeprefix(field)}", error.problem)


def mapping_of(key: Validator, item: Validator, *, most_items: int | None = None) -> Validator:
    """Accepts a dict with at most `most_items` items whose keys and values pass their validators."""

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
    """Accepts a tuple of at most `most_items` items that each pass the validator and, if
    `distinct`, all differ.
    """

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
    """Accepts an instance of exactly this class."""

    def check(owner: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        if value.__class__ is not kind:
            raise FieldError(_name(owner, attribute), f"{value!r:.80} is not a {kind.__name__}")

    return check


def number(least: float = 0.0) -> Validator:
    """Accepts a finite float, or an int of 64 bits, >= least. It is always written as a float:
    `equipoise.events.forms.write_float`.
    """

    def check(owner: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        if (value.__class__ is not float and (value.__class__ is not int or value > INT64_MAX)) or not least <= value < _INFINITY:
            raise FieldError(_name(owner, attribute), f"{value!r:.80} is not a finite number >= {least}")

    return check


_option_text = text(0)
_option_integer = integer(-(2**63))


def scalar(owner: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    """Accepts an option of a third-party assignor: a bool, a text, an int of 64 bits or a finite
    float other than -0.0.
    """
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
    """attrs converter: returns the mapping in key order, nested mappings included, so that its repr
    does not depend on insertion order.
    """
    if value.__class__ is not dict or not value:
        return value
    try:
        return {key: sorted_mapping(value[key]) for key in sorted(value)}
    except TypeError:  # keys of several types: the validator names the one that is wrong
        return value
