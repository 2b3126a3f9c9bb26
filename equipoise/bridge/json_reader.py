"""Strict JSON, part by part. Errors name the field by its JSON path.

A reader of a part knows nothing of the whole: it raises `FieldError` with the path from its own
value on, and each reader around it puts its own key or index in front::

    read_whole     ("", "-1 is not a whole number >= 0")
    object reader  (".end_offset", ...)
    array reader   ("[0].end_offset", ...)
    document       ("$.tasks[0].end_offset", ...)

A value of the wrong type is refused: ``"5"`` is no number.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from equipoise.events.errors import FieldError, InputError
from equipoise.events.fields import INT64_MAX

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
