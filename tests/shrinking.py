"""Delta debugging (Zeller and Hildebrandt, 2002): the fewest faults with which a storm still fails
in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import attrs

from equipoise.events.errors import EquipoiseError, GroupHalted, InvariantBroken
from tests.storms import Setting, StormOutcome

T = TypeVar("T")


def fewest(items: Sequence[T], fails: Callable[[list[T]], bool]) -> list[T]:
    """A part of `items` with which it `fails`, and without any one of which it does not. `fails` of
    all `items` is taken for granted.
    """
    left, parts = list(items), 2
    if fails([]):
        return []
    while len(left) >= 2:
        size = -(-len(left) // parts)
        chunks = [left[at : at + size] for at in range(0, len(left), size)]
        without = [[item for other in chunks if other is not chunk for item in other] for chunk in chunks]
        smaller = next((each for each in (*chunks, *without) if len(each) < len(left) and fails(each)), None)
        if smaller is not None:
            left, parts = smaller, max(2, min(parts - 1, len(smaller)))
        elif size == 1:
            break
        else:
            parts = min(2 * parts, len(left))
    return left


def kind_of_failure(error: EquipoiseError | None) -> tuple[Any, ...] | None:
    """What two failures have in common when they are one; None: no failure."""
    if isinstance(error, InvariantBroken):
        return InvariantBroken, error.number
    if isinstance(error, GroupHalted):
        return GroupHalted, error.code
    return None if error is None else (error.__class__,)


def shrink(setting: Setting, run: Callable[[Setting], StormOutcome], *, tell: Callable[[str], None] = lambda line: None) -> StormOutcome:
    """The outcome of a storm with the fewest members, changes and faults that fails as `setting`
    does; its own outcome when it passes.
    """
    found = run(setting)
    wanted = kind_of_failure(found.error)
    if wanted is None:
        return found

    def of(parts: Sequence[Any]) -> Setting:
        return attrs.evolve(
            setting,
            faults=tuple(part for part in parts if part in setting.faults),
            changes=tuple(part for part in parts if part in setting.changes),
        )

    def fails(parts: list[Any]) -> bool:
        nonlocal found
        outcome = run(of(parts))
        if kind_of_failure(outcome.error) != wanted:
            return False
        found = outcome
        tell(f"fails with {len(parts)}: {outcome.error}")
        return True

    least = fewest([*setting.changes, *setting.faults], fails)
    found = run(of(least))
    return found
