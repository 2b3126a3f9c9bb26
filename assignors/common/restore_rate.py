"""How long members take to restore, by the rates they measured. Integers throughout, since
decisions depend on it.

A *restore time* is counted in the records that the slowest member restores in it. So restore times
compare as times do and are as fine as records. Where all members are equally fast, or none measured
a rate, it is the number of records.
"""

from __future__ import annotations

from collections.abc import Mapping

EQUALLY_SOON_MS, EQUALLY_SOON_RECORDS = 1_000, 1_000
"""Members count as ready equally soon when the later one needs at most so much more: milliseconds;
records while no rate was measured.
"""


class RestoreRates:
    """Restore rates of a group's members. `speeds`: records/s; 0: not measured, which counts as the
    slowest measured rate.
    """

    def __init__(self, speeds: Mapping[str, int]) -> None:
        self.is_known = any(speeds.values())
        """Whether any member measured its rate."""
        self.slowest = min((speed for speed in speeds.values() if speed > 0), default=1)
        self.speed = {member: speed or self.slowest for member, speed in speeds.items()}

    def longest_ms(self, work: Mapping[str, int]) -> int | None:
        """Milliseconds until every member has restored its part of `work` (records); None: there is
        work, and no rate was measured.
        """
        if not any(work.values()):
            return 0
        return max(-(-records * 1_000 // self.speed[member]) for member, records in work.items()) if self.is_known else None

    def within(self, member: str, left_ms: int) -> int | None:
        """Records that the member restores in `left_ms`; None: no rate was measured."""
        return self.speed[member] * max(0, left_ms) // 1_000 if self.is_known else None

    @property
    def equally_soon(self) -> int:
        """Restore time of EQUALLY_SOON_MS, or of EQUALLY_SOON_RECORDS."""
        return self.slowest * EQUALLY_SOON_MS // 1_000 if self.is_known else EQUALLY_SOON_RECORDS

    def restore_time(self, member: str, records: int) -> int:
        """Restore time of `records` on the member, rounded up.

        Before: m1 restores 10,000/s, m2 40,000/s; both lack 8,000 records. After: 8,000 for m1,
        2,000 for m2.
        """
        return -(-records * self.slowest // self.speed[member])
