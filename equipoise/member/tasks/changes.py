"""Changes to keys whose ranges are read in order, while more is changed."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import islice


class Changes(dict[bytes, bytes | None]):
    """Key -> value; None: deleted. Remove keys with `drop` only."""

    def __init__(self) -> None:
        self._sorted: list[bytes] = []
        """The first `len(self._sorted)` of its keys, in rising order."""
        self._readers = 0
        """Number of iterators over `_sorted`, which must not change under them."""

    def between(self, start: bytes, end: bytes | None) -> Iterator[bytes]:
        """The keys from `start` to before `end` (None: to the last), in rising order: those that
        are there at the first step. Costs as much as is taken.
        """
        keys = self._ordered()
        index, last = bisect_left(keys, start), len(keys) if end is None else bisect_left(keys, end)
        self._readers += 1
        try:
            while index < last:
                yield keys[index]
                index += 1
        finally:
            self._readers -= 1

    def _ordered(self) -> list[bytes]:
        new = len(self) - len(self._sorted)
        if new > len(self._sorted):
            self._sorted = sorted(self)
        elif new:
            keys = self._own_list()
            for key in islice(reversed(self), new):  # a handler may read a range for each record
                insort(keys, key)
        return self._sorted

    def _own_list(self) -> list[bytes]:
        """The sorted keys, to be changed."""
        if self._readers:
            self._sorted = self._sorted.copy()
        return self._sorted

    def drop(self, key: bytes) -> None:
        """Removes a change, if it is there."""
        if key not in self:
            return
        del self[key]
        index = bisect_left(self._sorted, key)
        if index < len(self._sorted) and self._sorted[index] == key:
            del self._own_list()[index]
