"""What the assignor needs of aiokafka's group coordinator beyond the interface of assignors: ends
of changelogs before it assigns, rebalances at its own request, and more frequent heartbeats.

Everything here runs in the thread of Faust's consumer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from equipoise.faust.layout import Ends

_LOG = logging.getLogger(__name__)
ENDS_S = 5.0
"""Longest wait for end offsets. A rebalance waits meanwhile."""


class FaustCoordinator:
    """The coordinator of one consumer. `before_assignment` is awaited before the assignor is asked.

    `heartbeat_ms`: a member learns from a heartbeat that a rebalance has begun, and the others
    stand still until it does. So they are at most that far apart, even if the application's
    `broker_heartbeat_interval` is longer. `fetch_wait_ms`: the broker answers requests of a
    connection in order, so whatever a rebalance asks waits for the last fetch. Faust has 1,500 ms
    for it, and no setting. 0: what Faust has.
    """

    def __init__(self, consumer: Any, before_assignment: Callable[[], Awaitable[None]], *, heartbeat_ms: int, fetch_wait_ms: int) -> None:
        self.consumer = consumer
        self._coordinator = consumer._coordinator
        self._timer: asyncio.Task[None] | None = None
        if heartbeat_ms:
            self._coordinator._heartbeat_interval_ms = min(heartbeat_ms, self._coordinator._heartbeat_interval_ms)
        if fetch_wait_ms:
            consumer._fetcher._fetch_max_wait_ms = min(fetch_wait_ms, consumer._fetcher._fetch_max_wait_ms)
        stock = self._coordinator._perform_assignment

        async def perform_assignment(response: Any) -> Any:
            await before_assignment()
            return await stock(response)

        self._coordinator._perform_assignment = perform_assignment

    @property
    def generation(self) -> int:
        return int(self._coordinator.generation)

    @property
    def member_id(self) -> str:
        return str(self._coordinator.member_id)

    async def ends(self, partitions: Iterable[tuple[str, int]]) -> Ends:
        """End offsets. Raises KafkaError or TimeoutError."""
        wanted = [TopicPartition(topic, number) for topic, number in partitions]
        if not wanted:
            return {}
        async with asyncio.timeout(ENDS_S):
            found = await self.consumer.end_offsets(wanted)
        return {(place.topic, place.partition): int(end) for place, end in found.items()}

    def highwater(self, topic: str, partition: int) -> int | None:
        """The end of a partition that is being read, as of the last fetch; None: not fetched yet."""
        try:
            found: int | None = self.consumer.highwater(TopicPartition(topic, partition))
        except (KafkaError, AssertionError):
            return None  # it is not assigned any more
        return found

    def run(self, work: Awaitable[None] | None) -> None:
        """Runs `work` until the next call, or to its end. Only one at a time."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if work is None else asyncio.ensure_future(work)

    def ask(self, reason: str) -> None:
        """Has the group rebalance."""
        _LOG.info("asks for a rebalance: %s", reason)
        self._coordinator.request_rejoin()
