"""How long members take to restore, by the speeds they measured. Integers throughout, so that it may decide.

A *span* is a stretch of time, counted in the records that the slowest member restores in it. So spans compare as times do, they are as fine as
records, and where all members are alike, or nobody measured, a span is the number of records.
"""

from __future__ import annotations

from collections.abc import Iterable

from assignors.problem import Member


class Pace:
    """Speeds of a group's members, in records/s. One that measured none is taken for the slowest that did."""

    def __init__(self, members: Iterable[Member]) -> None:
        speeds = {member.id: member.restore_records_per_s for member in members}
        self.slowest = min((speed for speed in speeds.values() if speed > 0), default=1)
        self.speed = {member: speed or self.slowest for member, speed in speeds.items()}

    def span(self, member: str, records: int) -> int:
        """What the member needs to restore so many records, rounded up.

        Before: m1 restores 10,000/s, m2 40,000/s; both lack 8,000 records. After: 8,000 for m1, 2,000 for m2.
        """
        return -(-records * self.slowest // self.speed[member])
