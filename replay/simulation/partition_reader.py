"""A consumer of one partition, which reads by long polls and repeats a poll that is not answered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from equipoise.replay.simulation.process_network import NetworkEnd
from equipoise.replay.simulation.simulated_broker import Broker, SimulatedPartition


class PartitionReader:
    """Reads on from `position`. Calls `arrived(records, first position, reached end, sent_ms)` for
    every answer; `arrived` may `seek` back.
    """

    def __init__(
        self, owner: NetworkEnd, broker: Broker, topic: SimulatedPartition[Any], *, wait_ms: int, arrived: Callable[[list[Any], int, bool, int], None]
    ) -> None:
        self._owner = owner
        self._broker = broker
        self._topic = topic
        self._wait_ms = wait_ms
        self._arrived = arrived
        self._tag = 0
        self._sent_ms = 0
        self._open = False
        self._again_ms = 0
        """When the fetch under way is asked once more."""
        self._watched = False
        """Whether a timer looks for that time. One is enough: most fetches are answered."""
        self.position = 0
        self.skip_next = 0
        """Fault: that many records of the next answer that has more are lost, as after a consumer's
        rebalance.
        """
        self.stuck_until_ms = 0
        """Fault: until this time answers bring no records and do not reach the end."""

    def begin(self, position: int) -> None:
        self.position = position
        self._open = True
        self._ask()

    def end(self) -> None:
        self._open = False

    def seek(self, position: int) -> None:
        """Moves the next fetch to `position`."""
        self.position = position

    def _ask(self) -> None:
        if not self._open:
            return
        self._tag += 1
        owner = self._owner
        self._sent_ms = owner.engine.now_ms
        owner.network.send(owner.name, self._broker.fetch, owner.name, self._topic, self.position, self._wait_ms, self._comes, self._tag)
        self._again_ms = self._sent_ms + self._wait_ms + owner.network.settings.resend_after_ms
        if not self._watched:
            self._watched = True
            owner.after(self._again_ms - self._sent_ms, self._watch)

    def _watch(self) -> None:
        rests_ms = self._again_ms - self._owner.engine.now_ms
        if self._open and rests_ms > 0:
            self._owner.after(rests_ms, self._watch)
        else:
            self._watched = False
            self._ask()

    def _asked_long_ago(self, tag: int) -> None:
        if tag == self._tag:
            self._ask()

    def _comes(self, tag: int, records: list[Any], position: int, reached_end: bool) -> None:
        self._owner.run(self._take, tag, records, position, reached_end)

    def _take(self, tag: int, records: list[Any], position: int, reached_end: bool) -> None:
        if tag != self._tag or not self._open:
            return
        first = position - len(records)
        if self._owner.engine.now_ms < self.stuck_until_ms:
            position, first, records, reached_end = self.position, self.position, [], False
            self._owner.after(self._wait_ms, self._asked_long_ago, tag)
        elif self.skip_next and len(records) > 1:
            lost = min(self.skip_next, len(records) - 1)
            self.skip_next = 0
            records, first = records[lost:], first + lost
        self.position = position
        self._arrived(records, first, reached_end, self._sent_ms)
        if tag == self._tag and self._owner.engine.now_ms >= self.stuck_until_ms:
            self._ask()
