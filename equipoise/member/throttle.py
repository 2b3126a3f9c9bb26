"""A limit on what is restored per second."""

from __future__ import annotations

import time
from collections.abc import Callable

BURST_S = 0.1
"""What was not used for longer than this is lost, so that a restore after a quiet time does not
begin with a flood.
"""
CATCH_UP_S = 2.0
"""But not while there was more to take all along, and this machine was too slow for a moment: that
is made up for.
"""
LEAST_RECORDS = 16


class Throttle:
    """Records and bytes, each per second; None: no limit. What was taken beyond the limit is waited
    for afterwards.
    """

    def __init__(self, records_per_s: float | None = None, bytes_per_s: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = [(limit, which) for which, limit in enumerate((records_per_s, bytes_per_s)) if limit is not None]
        self.counts_bytes = bytes_per_s is not None
        self._clock = clock
        self._free_s = clock() - BURST_S
        """When everything taken so far is paid for."""
        self._record_bytes = 100.0
        self._more = False
        """Since the last take there was more to take."""

    def taken(self, records: int, size_bytes: int, *, more: bool = False) -> None:
        """`more`: there is more to take already."""
        if not self._limits or not records:
            return
        if self.counts_bytes:
            self._record_bytes = size_bytes / records
        paid_s = max(self._free_s, self._clock() - (CATCH_UP_S if self._more else BURST_S))
        self._more = more
        self._free_s = paid_s + max((records, size_bytes)[which] / limit for limit, which in self._limits)

    def wait_s(self) -> float:
        """How long to wait before the next take; 0: not at all."""
        return max(0.0, self._free_s - self._clock()) if self._limits else 0.0

    def most_records(self, otherwise: int) -> int:
        """How many records one take should have at most: what a burst allows."""
        each = [limit * BURST_S / (1.0, self._record_bytes)[which] for limit, which in self._limits]
        return max(LEAST_RECORDS, min(otherwise, *map(int, each))) if each else otherwise
