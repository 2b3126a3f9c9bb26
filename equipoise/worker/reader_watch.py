"""Notices a reader of facts that returns none although the partition has some."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from equipoise.folding.log_reading import FactReader
from equipoise.worker.broker_answers import MOST_PASS_S, answered

_LOOK_AFTER_S = 2.5
"""After this time without a fact, the worker asks the brokers whether there is one to read. What
was there is to be read by the next look.
"""


class ReaderStalledError(Exception):
    """The reader returns no facts although the partition has some."""


class ReaderWatch:
    """Watches the reader of one takeover session. `read_s`: when a fact was last read, or none was
    found to read (monotonic, s).
    """

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self.read_s = 0.0
        self._seen_end = 0

    def note(self) -> None:
        """Notes that everything there was is read, or that nothing could be."""
        self.read_s = self._monotonic_s()

    async def look(self, facts: FactReader, position: int) -> None:
        """Asks the brokers where facts end, when none was read for some time. `position`: offset of
        the next fact to fold. Raises ReaderStalledError, KafkaError, TimeoutError.
        """
        if self._monotonic_s() - self.read_s <= _LOOK_AFTER_S:
            return
        position = max(position, await facts.position())
        if self._seen_end > position:
            raise ReaderStalledError(f"facts end at {self._seen_end}, and none from {position} on was read for {_LOOK_AFTER_S} s")
        self._seen_end = await answered(facts.end())
        self.note()

    async def sleep(self, sleep_s: float) -> None:
        """Sleeps. Time in which another callback blocked the loop does not count as time without a
        fact.
        """
        slept_s = self._monotonic_s()
        await asyncio.sleep(sleep_s)
        self.read_s += max(0.0, self._monotonic_s() - slept_s - MOST_PASS_S)
