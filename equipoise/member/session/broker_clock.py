"""Knows what the brokers' clocks say, by what they have answered to a member's facts. Says in the
log, once, that this machine's clock is off, or that brokers refuse its time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from equipoise.events.tasks import TaskId

_LOG = logging.getLogger(__name__)

MOST_APART_MS = 60_000
"""Clocks that are further apart than this are said to be off."""
EXPLAINS_MS = 1_800_000
"""Clocks that are further apart than this explain why a time is refused: brokers take what is up to
an hour ahead, unless a topic has another limit.
"""
MOST_TAKEN_MS = 10_000
"""An answer that took longer says too little about the broker's clock."""


class BrokerClock:
    """The clock of the broker that leads the partition of the group's facts. `boot_ms`: a clock
    that is never set. `wall_us`: this machine's clock. Any thread may call it, but for the last
    three methods.
    """

    def __init__(self, boot_ms: Callable[[], int], wall_us: Callable[[], int]) -> None:
        self._boot_ms, self._wall_us = boot_ms, wall_us
        self._apart_ms: int | None = None
        self._sent_ms = 0
        """When the record of the last answer was sent."""
        self._doubt_ms: int | None = None
        """Since when a comparison is waited for; None: for none."""
        self._is_off = False
        self._waiting: set[TaskId] = set()

    def note(self, append_ms: int, sent_ms: int) -> None:
        """A broker has just appended a record, at this time of its clock; -1: it does not say.
        `sent_ms`: time of `boot_ms` when the record was sent.
        """
        now_ms = self._boot_ms()
        if append_ms < 0 or now_ms - sent_ms > MOST_TAKEN_MS:
            return
        self._apart_ms, self._sent_ms = append_ms - now_ms, sent_ms
        was_off, self._is_off = self._is_off, abs(self._wall_us() // 1_000 - append_ms) > MOST_APART_MS
        if self._is_off and not was_off:
            _LOG.warning("this machine's clock is off: %s. Set the clock", self._ahead())
        elif was_off and not self._is_off:
            _LOG.warning("this machine's clock agrees with the brokers' again")

    def now_ms(self) -> int | None:
        """Returns its time, in ms since 1970; None: no broker has said it yet."""
        apart_ms = self._apart_ms
        return None if apart_ms is None else apart_ms + self._boot_ms()

    @property
    def trouble(self) -> str:
        """Returns what is wrong, as a sentence; "": nothing is. Any thread may call it."""
        if self._waiting:
            return "brokers do not take records with the time of its machine's clock, and tasks wait for that; set the clock"
        return f"the clock of its machine is off by more than {MOST_APART_MS // 1_000} s; set the clock" if self._is_off else ""

    def _ahead_ms(self) -> int | None:
        broker_ms = self.now_ms()
        return None if broker_ms is None else self._wall_us() // 1_000 - broker_ms

    def _ahead(self) -> str:
        ahead_ms = self._ahead_ms()
        if ahead_ms is None:
            return "the brokers' time is unknown yet"
        ahead_s = round(ahead_ms / 1_000)
        return f"it is {abs(ahead_s):,} s {'behind' if ahead_s < 0 else 'ahead of'} the brokers'"

    # What it refuses. Only the application's loop calls these.

    def explains(self) -> bool:
        """Returns whether clocks may be why brokers refuse the time of a record: they are far
        apart, or were not compared since this was asked.
        """
        ahead_ms, now_ms = self._ahead_ms(), self._boot_ms()
        if ahead_ms is None:
            return False
        if self._doubt_ms is None or now_ms - self._doubt_ms > MOST_APART_MS:
            self._doubt_ms = now_ms
        return abs(ahead_ms) > EXPLAINS_MS or self._sent_ms <= self._doubt_ms

    def refused(self, task: TaskId, topic: str) -> None:
        """Brokers have refused what `task` wrote to `topic` with the present time."""
        if not self._waiting:
            _LOG.error(
                "the brokers refuse records for %s with the time of this machine's clock: %s. Set the clock, or the topic's message.timestamp.* "
                "settings. No record is left out: the tasks wait",
                topic or "a topic",
                self._ahead(),
            )
        self._waiting.add(task)

    def over(self, task: TaskId, *, is_committed: bool) -> None:
        """The task has committed, or has ended."""
        if task in self._waiting:
            self._waiting.discard(task)
            if is_committed and not self._waiting:
                _LOG.warning("the brokers take records with this machine's time again: the tasks go on")
