"""JSON documents read field by field: what is wrong with a value is said in one line with its path,
as ``$.members[0].lags["0_3"]``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

from equipoise.events.errors import FieldError, InputError
from equipoise.events.fields import INT64_MAX

_T = TypeVar("_T")


class _Repeated(Exception):
    """A key stands twice in one object."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for key, value in pairs:
        if key in content:
            raise _Repeated(key)
        content[key] = value
    return content


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON number")


def parsed(line: str | bytes) -> Any:
    """What stands in one line of JSON. Raises InputError when it is none, or a key stands twice in
    one object.
    """
    try:
        return json.loads(line, object_pairs_hook=_object, parse_constant=_no_constant)
    except _Repeated as repeated:
        raise InputError(f"$: the key {str(repeated)!r} stands twice in one object; keep one") from None
    except RecursionError:
        raise InputError("$: nested too deep to be a problem") from None
    except ValueError as error:  # JSONDecodeError and UnicodeDecodeError are both of this kind
        raise InputError(f"$: not JSON ({error}); write one object a line") from None


def refuse(path: str, problem: str) -> NoReturn:
    raise FieldError(path, problem)


class JsonObject:
    """A JSON object of known fields. Raises FieldError for what is unknown or missing."""

    def __init__(self, path: str, content: object, *, required: tuple[str, ...], optional: tuple[str, ...]) -> None:
        if not isinstance(content, dict):
            refuse(path, f"{shown(content)} is not an object")
        for key in content:
            if key not in required and key not in optional:
                refuse(at(path, key), f"unknown field; known are {', '.join(sorted((*required, *optional)))}")
        for key in required:
            if key not in content:
                refuse(at(path, key), "missing; it is required")
        self.path = path
        self.content: Mapping[str, Any] = content

    def get(self, key: str, read: Callable[[str, Any], _T], default: _T) -> _T:
        return read(at(self.path, key), self.content[key]) if key in self.content else default

    def each(self, key: str, read: Callable[[str, Any], _T]) -> tuple[_T, ...]:
        return listed(at(self.path, key), self.content.get(key, []), read)

    def refuse(self, key: str, problem: str) -> NoReturn:
        refuse(at(self.path, key), problem)


def at(path: str, key: str) -> str:
    """The path of a field, as in ``$.members[0].lags["0_3"]``."""
    return f"{path}.{key}" if key.isascii() and key.isidentifier() else f"{path}[{json.dumps(key)}]"


def shown(value: object) -> str:
    """The value as JSON, not too long for one line."""
    said = json.dumps(value)
    return said if len(said) <= 60 else f"{said[:57]}..."


def listed(path: str, value: object, read: Callable[[str, Any], _T]) -> tuple[_T, ...]:
    if not isinstance(value, list):
        refuse(path, f"{shown(value)} is not an array")
    return tuple(read(f"{path}[{index}]", item) for index, item in enumerate(value))


def text(path: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        refuse(path, f"{shown(value)} is not a text of one or more characters")
    if any("\ud800" <= letter <= "\udfff" for letter in value):
        refuse(path, f"{shown(value)} holds a lone surrogate, which UTF-8 cannot carry")
    return value


def flag(path: str, value: object) -> bool:
    if not isinstance(value, bool):
        refuse(path, f"{shown(value)} is neither true nor false")
    return value


def whole(path: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= INT64_MAX:
        refuse(path, f"{shown(value)} is not a whole number >= 0")
    return value


def positive(path: str, value: object) -> int:
    if whole(path, value) == 0:
        refuse(path, "0 is not a whole number >= 1")
    return whole(path, value)


def speed(path: str, value: object) -> int:
    """Whole records/s: decisions rest on it, so no fractions."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= INT64_MAX:
        refuse(path, f"{shown(value)} is not a number >= 0")
    return int(value)


def unique(path: str, ids: list[str]) -> None:
    seen: dict[str, int] = {}
    for index, name in enumerate(ids):
        if name in seen:
            refuse(f"{path}[{index}]", f"{name!r} stands at {path}[{seen[name]}] too; name each once")
        seen[name] = index
