"""Iterators over state, which end before what they read is closed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

from equipoise.events.errors import InputError


class KeptReading:
    """Passes on what `found` yields, until `end`. `next` raises InputError after that, which says
    `why`.
    """

    __slots__ = ("__weakref__", "_found", "_why")

    def __init__(self, found: Iterator[Any], why: str) -> None:
        self._found, self._why = found, why

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._found)

    def end(self) -> None:
        """Lets go of what is read."""
        self._found = _EndedReading(self._why)


class _EndedReading:
    def __init__(self, why: str) -> None:
        self._why = why

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> NoReturn:
        raise InputError(self._why)


def end_all(readings: list[KeptReading]) -> None:
    """Ends them, and forgets them."""
    for each in readings:
        each.end()
    readings.clear()
