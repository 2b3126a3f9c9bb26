"""Aggregates: what a window keeps of the values that were added to it."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import attrs

from equipoise.events.errors import InputError

V = TypeVar("V")
"""A value that is added."""
A = TypeVar("A")
"""What is kept: anything that the serde of its state takes."""
R = TypeVar("R")
"""What comes out."""
N = TypeVar("N", int, float)


@attrs.frozen
class Aggregate(Generic[V, A, R]):
    """An aggregate of your own. `init()`: of no value. `add(kept, value)`. `merge(kept, kept)`: of
    two windows that become one, which sessions and sliding windows need. `result(kept)`.

    `add` and `merge` may change their first argument, and return it. Raises InputError when `init`
    returns one list, or another thing that can change, for all windows.
    """

    init: Callable[[], A]
    add: Callable[[A, V], A]
    merge: Callable[[A, A], A]
    result: Callable[[A], R]

    def __attrs_post_init__(self) -> None:
        first = self.init()
        if first.__hash__ is None and self.init() is first:
            raise InputError(f"Aggregate.init: it returns one {type(first).__name__} for all windows; return a new one, as in lambda: []")


def _same(kept: A) -> A:
    return kept


def aggregate(init: Callable[[], A], add: Callable[[A, V], A], merge: Callable[[A, A], A]) -> Aggregate[V, A, A]:
    """An aggregate whose result is what it keeps."""
    return Aggregate(init, add, merge, _same)


def count() -> Aggregate[Any, int, int]:
    """The number of values."""
    return Aggregate(int, lambda kept, value: kept + 1, lambda one, other: one + other, _same)


def sum(of: Callable[[V], N]) -> Aggregate[V, N, N]:
    """The sum of `of(value)`."""
    zero: Any = 0
    return Aggregate(lambda: zero, lambda kept, value: kept + of(value), lambda one, other: one + other, _same)


def _first_or(choose: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda kept, value: value if kept is None else kept if value is None else choose(kept, value)


def min(of: Callable[[V], R]) -> Aggregate[V, R | None, R]:
    """The least `of(value)`."""
    choose = _first_or(builtins.min)
    return Aggregate(lambda: None, lambda kept, value: choose(kept, of(value)), choose, _some)


def max(of: Callable[[V], R]) -> Aggregate[V, R | None, R]:
    """The greatest `of(value)`."""
    choose = _first_or(builtins.max)
    return Aggregate(lambda: None, lambda kept, value: choose(kept, of(value)), choose, _some)


def reduce(by: Callable[[V, V], V]) -> Aggregate[V, V | None, V]:
    """The first value, and then `by(kept, value)`."""
    choose = _first_or(by)
    return Aggregate(lambda: None, choose, choose, _some)


def _some(kept: R | None) -> R:
    assert kept is not None, "a window has a value"
    return kept
