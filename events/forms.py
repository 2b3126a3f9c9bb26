"""What the wire form and the readable form share: cattrs converters that leave every check to the
constructors.

By default cattrs converts ``"5"`` to 5 and ``1.0`` to 1. Here a value of the wrong type reaches the
constructor unchanged, and the constructor names its field.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import attrs
import cattrs

from equipoise.events.errors import FieldError
from equipoise.events.settings import Scalar
from equipoise.events.tasks import PARSED_TASKS, LagSentinel, TaskId

Reader = Callable[[Any, Any], Any]
"""(written form, type) -> value, as cattrs calls it."""
Writer = Callable[[Any], Any]
"""value -> written form."""


class MisshapenError(Exception):
    """A value has the wrong shape and no constructor would name it. The caller knows the field and
    raises UnsoundError instead.
    """


def as_is(value: Any, _: Any = None) -> Any:
    """Reads and writes a value unchanged; the constructor checks it."""
    return value


def columns(kind: Any) -> list[tuple[str, Any]]:
    """Returns the name and type of each field of an attrs class, in declared order."""
    attrs.resolve_types(kind)
    return [(attribute.name, attribute.type) for attribute in attrs.fields(kind)]


def appended(kind: Any) -> list[tuple[str, Any]]:
    """Returns the name and default of each field that was appended within the version of a class
    (`equipoise.events.fields.APPENDED`), in declared order. They are its last fields.
    """
    return [(attribute.name, attribute.default) for attribute in attrs.fields(kind) if attribute.metadata.get("appended")]


def write_float(value: float) -> float:
    """Returns the canonical float of a number that may be an int or -0.0 in Python, where 1 == 1.0
    and 0.0 == -0.0.
    """
    return float(value) + 0.0


def read_task(value: Any, _: Any = None) -> TaskId:
    """``"0_3"`` -> ``TaskId(0, 3)``. Raises MisshapenError."""
    if value.__class__ is not str:
        raise MisshapenError(f"{value!r:.80} is not a task id; write <sub-topology>_<partition>, as in 0_3")
    try:
        return PARSED_TASKS[value]
    except FieldError as error:
        raise MisshapenError(error.problem) from None


_SENTINELS = {sentinel.value: sentinel for sentinel in LagSentinel}


def read_lag(value: Any) -> Any:
    """``"active"`` and ``"unknown"`` -> their LagSentinel; anything else unchanged."""
    return _SENTINELS.get(value, value) if value.__class__ is str else value


# -------------------------------------------------------------------------------------------- types


def is_mapping_from(key: type) -> Callable[[Any], bool]:
    """Returns a predicate that is True for ``dict[key, ...]``."""
    return lambda kind: typing.get_origin(kind) is dict and typing.get_args(kind)[0] is key


def _is_exactly(wanted: Any) -> Callable[[Any], bool]:
    return lambda kind: bool(kind == wanted)


def _part_of_optional(kind: Any) -> Any:
    """X of ``X | None``, else None."""
    parts = typing.get_args(kind)
    if typing.get_origin(kind) not in (types.UnionType, typing.Union) or len(parts) != 2 or parts[1] is not types.NoneType:
        return None
    return parts[0]


def _is_tuple_of_any_length(kind: Any) -> bool:
    return typing.get_origin(kind) is tuple and typing.get_args(kind)[1:] == (Ellipsis,)


# --------------------------------------------------------------------------------------- converters

Form = tuple[type | Callable[[Any], bool], Callable[[cattrs.Converter, Any], Reader], Callable[[cattrs.Converter, Any], Writer]]
"""The types that a form is for, and the makers of its reader and writer."""


def simply(wanted: Any, reader: Reader, writer: Writer) -> Form:
    """The form of one type."""
    which = wanted if isinstance(wanted, type) else _is_exactly(wanted)
    return which, lambda _converter, _kind: reader, lambda _converter, _kind: writer


def make_converter(forms: Iterable[Form]) -> cattrs.Converter:
    """Returns a converter for plain values, optional values and tuples, and for `forms`. Later
    forms win.
    """
    converter = cattrs.Converter(detailed_validation=False)
    everywhere: tuple[Form, ...] = (
        *(simply(kind, as_is, as_is) for kind in (int, float, str, bool, Scalar)),
        (lambda kind: _part_of_optional(kind) is not None, _optional_reader, _optional_writer),
        (_is_tuple_of_any_length, _tuple_reader, _tuple_writer),
    )
    for which, make_reader, make_writer in (*everywhere, *forms):
        if isinstance(which, type):  # cattrs has its own hooks for int, str, ..., which coerce; only a hook for the very class wins over them
            converter.register_structure_hook(which, make_reader(converter, which))
            converter.register_unstructure_hook(which, make_writer(converter, which))
        else:
            converter.register_structure_hook_factory(which, partial(make_reader, converter))
            converter.register_unstructure_hook_factory(which, partial(make_writer, converter))
    return converter


def _optional_reader(converter: cattrs.Converter, kind: Any) -> Reader:
    inner = _part_of_optional(kind)
    read = converter.get_structure_hook(inner)
    if read is as_is:
        return as_is

    def read_optional(value: Any, _: Any = None) -> Any:
        return None if value is None else read(value, inner)

    return read_optional


def _optional_writer(converter: cattrs.Converter, kind: Any) -> Writer:
    write = converter.get_unstructure_hook(_part_of_optional(kind))
    return as_is if write is as_is else lambda value: None if value is None else write(value)


def _tuple_reader(converter: cattrs.Converter, kind: Any) -> Reader:
    inner = typing.get_args(kind)[0]
    read = converter.get_structure_hook(inner)

    def read_tuple(value: Any, _: Any = None) -> Any:
        if value.__class__ is not list:
            return value
        return tuple(value) if read is as_is else tuple([read(item, inner) for item in value])

    return read_tuple


def _tuple_writer(converter: cattrs.Converter, kind: Any) -> Writer:
    write = converter.get_unstructure_hook(typing.get_args(kind)[0])
    return list if write is as_is else lambda items: [write(item) for item in items]
