"""What an assignor is told in `Knobs.options`, read and checked: errors name the option as
``config.options.<name>``.
"""

from __future__ import annotations

from collections.abc import Iterable

from equipoise.events.errors import FieldError
from equipoise.events.settings import GroupSettings


def known_only(settings: GroupSettings, assignor: str, known: Iterable[str] = ()) -> None:
    """Raises FieldError for an option that `assignor` does not have: a name that is ignored is most
    likely a slip.
    """
    unknown = sorted(settings.options.keys() - set(known))
    if unknown:
        raise FieldError(f"config.options.{unknown[0]}", f"{assignor} has no such option; it has {', '.join(sorted(known)) or 'none'}")


def flag(settings: GroupSettings, name: str) -> bool:
    """True or false, false if it is not there. Raises FieldError for anything else."""
    value = settings.options.get(name, False)
    if not isinstance(value, bool):
        raise FieldError(f"config.options.{name}", f"{value!r} is neither true nor false")
    return value


def one_of(settings: GroupSettings, name: str, values: tuple[str, ...]) -> str:
    """One of `values`, the first if it is not there. Raises FieldError for anything else."""
    value = settings.options.get(name, values[0])
    if value not in values:
        raise FieldError(f"config.options.{name}", f"{value!r} is not one of {', '.join(values)}")
    return str(value)


def whole(settings: GroupSettings, name: str, default: int) -> int:
    """A whole number >= 0. Raises FieldError for anything else."""
    value = settings.options.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise FieldError(f"config.options.{name}", f"{value!r} is not a whole number >= 0")
    return value
