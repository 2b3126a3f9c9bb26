"""Reads and checks the options of an assignor (`GroupSettings.options`). Errors name the option as
``config.options.<name>``.
"""

from __future__ import annotations

from collections.abc import Iterable

from equipoise.events.errors import FieldError
from equipoise.events.settings import GroupSettings


def known_only(settings: GroupSettings, assignor: str, known: Iterable[str] = ()) -> None:
    """Raises FieldError for an option that is not `known`: an ignored name is most likely a typo."""
    unknown = sorted(settings.options.keys() - set(known))
    if unknown:
        raise FieldError(f"config.options.{unknown[0]}", f"{assignor} has no such option; it has {', '.join(sorted(known)) or 'none'}")


def flag(settings: GroupSettings, name: str) -> bool:
    """The option as true or false; left out: false. Raises FieldError for anything else."""
    value = settings.options.get(name, False)
    if not isinstance(value, bool):
        raise FieldError(f"config.options.{name}", f"{value!r} is neither true nor false")
    return value


def one_of(settings: GroupSettings, name: str, values: tuple[str, ...]) -> str:
    """The option as one of `values`; left out: the first. Raises FieldError for anything else."""
    value = settings.options.get(name, values[0])
    if value not in values:
        raise FieldError(f"config.options.{name}", f"{value!r} is not one of {', '.join(values)}")
    return str(value)


def whole(settings: GroupSettings, name: str, default: int) -> int:
    """The option as a whole number >= 0. Raises FieldError for anything else."""
    value = settings.options.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise FieldError(f"config.options.{name}", f"{value!r} is not a whole number >= 0")
    return value
