"""Ranges of keys that are known to be empty, so that a handler that deletes from the front does not
pass over what it has deleted at each call.
"""

from __future__ import annotations

FEW_KEYS = 8
"""To pass over fewer costs less than to remember."""
MOST_GAPS = 4


class Gaps:
    """Ranges of a state without a key: each from its start to before its end."""

    def __init__(self) -> None:
        self.ends: dict[bytes, bytes] = {}
        """Start -> end."""

    def behind(self, start: bytes) -> bytes:
        """The first key from `start` on that may be there."""
        for first, end in self.ends.items():
            if first <= start < end:
                return end
        return start

    def found(self, start: bytes, end: bytes, passed: int) -> None:
        """Between these keys there is none; to see it, so many deleted ones were passed over."""
        if start >= end:
            return
        for first, last in list(self.ends.items()):
            if first <= start <= last:
                start = first
                del self.ends[first]
                passed = FEW_KEYS
        if passed >= FEW_KEYS:
            self.ends[start] = end
            if len(self.ends) > MOST_GAPS:
                del self.ends[next(iter(self.ends))]

    def put(self, key: bytes) -> None:
        """The key is there from now on."""
        for first, end in list(self.ends.items()):
            if first <= key < end:
                if first == key:
                    del self.ends[first]
                else:
                    self.ends[first] = key

    def forget(self) -> None:
        """Deleted keys may be back."""
        self.ends.clear()
