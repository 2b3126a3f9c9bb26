"""What an assignor is told in `Knobs.options`, read and checked: errors name the option as
``config.options.<name>``.
"""

from __future__ import annotations

from collections.abc import Iterable

from equipoise.events.errors import FieldError
from equipoise.events.knobs import Knobs


def known_only(knobs: Knobs, assignor: str, known: Iterable[str] = ()) -> None:
    """Raises FieldError for an option that `assignor` does not have: a name that is ignored is most
    likely a slip.
    """
    unknown = sorted(knobs.options.keys() - set(known))
    if unknown:
        raise FieldError(f"config.options.{unknown[0]}", f"{assignor} has no such option; it has {', '.join(sorted(known)) or 'none'}")


def flag(knobs: Knobs, name: str) -> bool:
    """True or false, false if it is not there. Raises FieldError for anything else."""
    value = knobs.options.get(name, False)
    if not isinstance(value, bool):
        raise FieldError(f"config.options.{name}", f"{value!r} is neither true nor false")
    return value


def one_of(knobs: Knobs, name: str, values: tuple[str, ...]) -> str:
    """One of `values`, the first if it is not there. Raises FieldError for anything else."""
    value = knobs.options.get(name, values[0])
    if value not in values:
        raise FieldError(f"config.options.{name}", f"{value!r} is not one of {', '.join(values)}")
    return str(value)


def whole(knobs: Knobs, name: str, default: int) -> int:
    """A whole number >= 0. Raises FieldError for anything else."""
    value = knobs.options.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise FieldError(f"config.options.{name}", f"{value!r} is not a whole number >= 0")
    return value
