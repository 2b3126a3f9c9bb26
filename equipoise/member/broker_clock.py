"""Knows what the brokers' clocks say, by what they have answered to a member's facts."""

from __future__ import annotations

from collections.abc import Callable


class BrokerClock:
    """The clock of the broker that leads the partition of the group's facts. `boot_ms`: a clock
    that is never set. Any thread may call it.
    """

    def __init__(self, boot_ms: Callable[[], int]) -> None:
        self._boot_ms = boot_ms
        self._apart_ms: int | None = None

    def note(self, append_ms: int) -> None:
        """A broker has just appended a record, at this time of its clock; -1: it does not say."""
        if append_ms >= 0:
            self._apart_ms = append_ms - self._boot_ms()

    def now_ms(self) -> int | None:
        """Returns its time, in ms since 1970; None: no broker has said it yet."""
        apart_ms = self._apart_ms
        return None if apart_ms is None else apart_ms + self._boot_ms()
