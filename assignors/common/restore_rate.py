"""How long members take to restore, by the speeds they measured. Integers throughout, so that it
may decide.

A *span* is a stretch of time, counted in the records that the slowest member restores in it. So
spans compare as times do, they are as fine as records, and where all members are alike, or nobody
measured, a span is the number of records.
"""

from __future__ import annotations

from collections.abc import Mapping


class RestoreRates:
    """Speeds of a group's members, in records/s; 0: not measured. One that measured none is taken
    for the slowest that did.
    """

    def __init__(self, speeds: Mapping[str, int]) -> None:
        self.is_known = any(speeds.values())
        """Somebody measured a speed."""
        self.slowest = min((speed for speed in speeds.values() if speed > 0), default=1)
        self.speed = {member: speed or self.slowest for member, speed in speeds.items()}

    def longest_ms(self, work: Mapping[str, int]) -> int | None:
        """Until every member has restored its part of the work, in records; None: there is some,
        and nobody measured a speed.
        """
        if not any(work.values()):
            return 0
        return max(-(-records * 1_000 // self.speed[member]) for member, records in work.items()) if self.is_known else None

    def within(self, member: str, left_ms: int) -> int | None:
        """Records that the member restores in that time; None: nobody measured a speed."""
        return self.speed[member] * max(0, left_ms) // 1_000 if self.is_known else None

    def restore_time(self, member: str, records: int) -> int:
        """What the member needs to restore so many records, rounded up.

        Before: m1 restores 10,000/s, m2 40,000/s; both lack 8,000 records. After: 8,000 for m1,
        2,000 for m2.
        """
        return -(-records * self.slowest // self.speed[member])
