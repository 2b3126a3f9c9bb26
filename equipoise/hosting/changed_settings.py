"""Settings of a group, changed by texts: ``name=value``, as a command line and a page of the
console give them.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from typing import Any

import attrs

from equipoise.events.errors import FieldError, InputError
from equipoise.events.settings import GroupSettings


def with_settings(settings: GroupSettings, changes: Iterable[str]) -> GroupSettings:
    """Returns `settings` with ``name=value`` changes applied; later changes win.

    A list is written with commas (``rack_aware_tags=zone,host``). An assignor's option is written
    ``options.name=value``; its value is a number, true, false, or else text.

    Raises InputError when a setting does not exist or a value is out of bounds.
    """
    changed: dict[str, Any] = {}
    options = dict(settings.options)
    for change in changes:
        name, equals, text = change.partition("=")
        if not equals:
            raise InputError(f"--set {change}: write it as name=value")
        if name.startswith("options."):
            options[name.removeprefix("options.")] = scalar(text)
        else:
            changed[name] = setting_value(name, text)
    try:
        return attrs.evolve(settings, **changed, options=options)
    except FieldError as error:
        raise InputError(f"--set {error.name}: {error.problem}") from None


def setting_value(name: str, text: str, *, option: str = "--set") -> Any:
    """The value that `text` gives the setting `name`, or an assignor's option ``options.NAME``.
    Raises InputError, which begins with `option`, when the value is of the wrong kind.
    """
    if name.startswith("options."):
        return scalar(text)
    names = [field.name for field in attrs.fields(GroupSettings) if field.name != "options"]
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        raise InputError(f"{option} {name}: no such setting; " + (f"did you mean {near[0]}?" if near else f"there are: {', '.join(names)}"))
    default = getattr(attrs.fields(GroupSettings), name).default
    if isinstance(default, tuple):
        return tuple(part for part in text.split(",") if part)
    if isinstance(default, str):
        return text
    try:
        return int(text.replace("_", ""))
    except ValueError:
        raise InputError(f"{option} {name}: {text!r} is not a whole number") from None


def capacity_of(text: str) -> tuple[str, int]:
    """The pattern of a ``client.id`` and the capacity of clients that fit it, of ``CLIENT_ID=N``.
    Raises InputError.
    """
    pattern, _, number = text.strip().rpartition("=")
    if not pattern or not number.isdecimal() or int(number) < 1:
        raise InputError(f"{text}: write it as CLIENT_ID=N, with N of 1 or more")
    return pattern, int(number)


def scalar(text: str) -> int | float | str | bool:
    """A number, true, false, or else text."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, int | float | bool) else text
