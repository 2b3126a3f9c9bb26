"""A limit on what is restored per second."""

from __future__ import annotations

from collections.abc import Callable

from equipoise.hosting.runtime import DEPLOYED

BURST_S = 0.1
"""Unused allowance is kept for this time only, so that a restore after a quiet time does not begin
with a flood.
"""
CATCH_UP_S = 2.0
"""The same while there was more to take all along: a slow moment of this machine is made up for."""
LEAST_RECORDS = 16
"""Smallest limit that `most_records` returns."""


class Throttle:
    """Limits records and bytes per second; None: no limit. A take beyond the limit makes the next
    one wait.
    """

    def __init__(
        self, records_per_s: float | None = None, bytes_per_s: float | None = None, clock: Callable[[], float] = DEPLOYED.monotonic_s
    ) -> None:
        self._limits = [(limit, which) for which, limit in enumerate((records_per_s, bytes_per_s)) if limit is not None]
        self.counts_bytes = bytes_per_s is not None
        self._clock = clock
        self._free_s = clock() - BURST_S
        """When everything taken so far is within the limits."""
        self._record_bytes = 100.0
        self._more = False
        """Whether there was more to take at the last take."""

    def taken(self, records: int, size_bytes: int, *, more: bool = False) -> None:
        """Notes a take of `records` with `size_bytes`. `more`: there is more to take already."""
        if not self._limits or not records:
            return
        if self.counts_bytes:
            self._record_bytes = size_bytes / records
        paid_s = max(self._free_s, self._clock() - (CATCH_UP_S if self._more else BURST_S))
        self._more = more
        self._free_s = paid_s + max((records, size_bytes)[which] / limit for limit, which in self._limits)

    def wait_s(self) -> float:
        """Seconds to wait before the next take."""
        return max(0.0, self._free_s - self._clock()) if self._limits else 0.0

    def most_records(self, otherwise: int) -> int:
        """Most records for one take: what BURST_S allows; `otherwise`: the result without limits."""
        each = [limit * BURST_S / (1.0, self._record_bytes)[which] for limit, which in self._limits]
        return max(LEAST_RECORDS, min(otherwise, *map(int, each))) if each else otherwise
