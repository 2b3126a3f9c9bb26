"""Strict JSON -> attrs classes, by cattrs, whose own hooks for `int`, `str` and the like would turn
``"5"`` into 5: here a value of the wrong type is refused.
"""

from __future__ import annotations

import enum
import functools
import operator
import types
import typing
from collections.abc import Mapping
from typing import Any

import attrs
import cattrs

from equipoise.bridge.question import (
    Reader,
    array_reader,
    as_object,
    check_keys,
    path_of,
    read_at,
    read_flag,
    read_text,
    read_whole,
    refuse,
    shown,
)
from equipoise.events.fields import INT64_MAX

Field = tuple[type, str]
"""A class and the name of one of its fields."""


def read_rate(value: Any, _: Any = None) -> int:
    """A number >= 0 per second, rounded down: decisions rest on it, so it has no fraction."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= INT64_MAX:
        refuse(f"{shown(value)} is not a number >= 0")
    return int(value)


def _read_enum(value: Any, kind: type[enum.Enum]) -> enum.Enum:
    allowed = [member.value for member in kind]
    if value not in allowed:
        refuse(f"{shown(value)} is not one of {', '.join(allowed)}")
    return kind(value)


def object_reader(
    converter: cattrs.BaseConverter, kind: type, of_field: Mapping[Field, Reader] | None = None, keys: Mapping[Field, str] | None = None
) -> Reader:
    """Of an attrs class: each field by its type, or by `of_field`, under its name or under its
    entry in `keys`; a field whose key is "" is never given.
    """
    fields = [(field, (keys or {}).get((kind, field.name), field.name)) for field in fields_of(kind)]
    known = {key: field.default is attrs.NOTHING for field, key in fields if key}
    readers = {
        key: (field.name, (of_field or {}).get((kind, field.name)) or converter.get_structure_hook(field.type), field.type)
        for field, key in fields
        if key
    }

    def read(value: Any, _: Any = None) -> Any:
        content = as_object(value)
        check_keys(content, known)
        values = {}
        for key, item in content.items():
            name, read_field, type_ = readers[key]
            values[name] = read_at(path_of(key), read_field, item, type_)
        return kind(**values)

    return read


@functools.cache
def fields_of(kind: Any) -> list[attrs.Attribute[Any]]:
    """The fields of an attrs class, with their types resolved."""
    attrs.resolve_types(kind)
    return list(attrs.fields(kind))


def _is_optional(kind: Any) -> bool:
    return isinstance(kind, types.UnionType) and typing.get_args(kind)[1:] == (types.NoneType,)


def make_converter(
    hooks: Mapping[Any, Reader], of_field: Mapping[Field, Reader] | None = None, keys: Mapping[Field, str] | None = None
) -> cattrs.BaseConverter:
    """A converter for attrs classes of plain values, optional values, arrays and enums. `hooks`:
    type -> its reader. `of_field`, `keys`: see `object_reader`.
    """
    converter = cattrs.BaseConverter(detailed_validation=False)

    def optional_of(kind: Any) -> Reader:
        inner = typing.get_args(kind)[0]
        read = converter.get_structure_hook(inner)

        def read_optional(value: Any, _: Any = None) -> Any:
            return None if value is None else read(value, inner)

        return read_optional

    def array_of(kind: Any) -> Reader:
        inner = typing.get_args(kind)[0]
        return array_reader(converter.get_structure_hook(inner), inner)

    converter.register_structure_hook_factory(attrs.has, lambda kind: object_reader(converter, kind, of_field, keys))
    converter.register_structure_hook_factory(_is_optional, optional_of)
    converter.register_structure_hook_factory(lambda kind: typing.get_args(kind)[1:] == (Ellipsis,), array_of)
    converter.register_structure_hook_factory(lambda kind: isinstance(kind, type) and issubclass(kind, enum.Enum), lambda _: _read_enum)
    for wanted, reader in {str: read_text, bool: read_flag, int: read_whole, **hooks}.items():
        if isinstance(wanted, type):  # cattrs has its own hooks for int, str, ...; only a hook for the very class wins over them
            converter.register_structure_hook(wanted, reader)
        else:
            converter.register_structure_hook_func(functools.partial(operator.eq, wanted), reader)
    return converter
