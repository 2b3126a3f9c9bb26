"""Strict JSON -> attrs classes, by cattrs. Errors name the field by its JSON path.

A reader of a part knows nothing of the whole: it raises `FieldError` with the path from its own
value on, and each reader around it puts its own key or index in front::

    read_whole     ("", "-1 is not a whole number >= 0")
    object reader  (".end_offset", ...)
    array reader   ("[0].end_offset", ...)
    document       ("$.tasks[0].end_offset", ...)

cattrs' own hooks for `int`, `str` and the like would turn ``"5"`` into 5; here a value of the wrong
type is refused.
"""

from __future__ import annotations

import enum
import functools
import json
import operator
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import attrs
import cattrs

from equipoise.events.errors import FieldError, InputError
from equipoise.events.fields import INT64_MAX

Reader = Callable[[Any, Any], Any]
"""(JSON value, type) -> value, as cattrs calls it. Raises FieldError."""
Field = tuple[type, str]
"""A class and the name of one of its fields."""


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
