"""The changes of one commit to a task's state in one changelog."""

from __future__ import annotations

from bisect import bisect_left, insort
from itertools import islice


class Changes(dict[bytes, bytes | None]):
    """Key -> value; None: deleted. Remove keys with `drop` only."""

    def __init__(self) -> None:
        self._sorted: list[bytes] = []
        """The first `len(self._sorted)` of its keys, in rising order."""

    def between(self, start: bytes, end: bytes | None) -> list[bytes]:
        """The keys from `start` to before `end` (None: to the last), in rising order."""
        keys = self._sorted
        new = len(self) - len(keys)
        if new > len(keys):
            keys[:] = sorted(self)
        else:
            for key in islice(reversed(self), new):  # a handler may read a range for each record
                insort(keys, key)
        return keys[bisect_left(keys, start) : None if end is None else bisect_left(keys, end)]

    def drop(self, key: bytes) -> None:
        """Removes a change, if it is there."""
        self.pop(key, None)
        self._sorted.clear()
