"""Records as handlers send them."""

from __future__ import annotations

Output = tuple[str, bytes | None, bytes | None, int | None, tuple[tuple[str, bytes], ...], int | None]
"""One record to send: topic, value, key, partition (None: chosen by the key), headers, and the
timestamp in ms (None: the time of sending). A plain tuple, because Python's collector looks at it
only once.
"""
