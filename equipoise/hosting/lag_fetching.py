"""What the leader of a consumer group asks the cluster before it deals: lags and loads, with a time
limit.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from aiokafka.errors import KafkaError
from aiokafka.structs import TopicPartition

from equipoise.hosting.source_lags import source_lags
from equipoise.kafka.connection import Connection, connection_to

_LOG = logging.getLogger(__name__)

RETRY_S = 0.1
PartitionLags = Mapping[tuple[str, int], int]
"""(topic, partition) -> records that the group has not read."""


class LagFetcher:
    """Fetches the lags of a group from a cluster: committed offsets, ends, and beginnings where
    nothing is committed and `auto_offset_reset` is not "latest"; one request each for all topics.
    """

    what = "lags"

    def __init__(self, *, group_id: str, connection: Connection | str, auto_offset_reset: str = "latest", timeout_s: float = 3.0) -> None:
        self.group_id = group_id
        self.auto_offset_reset = auto_offset_reset
        self.timeout_s = timeout_s
        self._connection = connection_to(connection) if isinstance(connection, str) else connection

    async def fetch(self, partitions: Iterable[tuple[str, int]]) -> PartitionLags:
        """The lags of `partitions`. Raises KafkaError, OSError or TimeoutError when the cluster
        does not answer within `timeout_s`.
        """
        async with asyncio.timeout(self.timeout_s):
            return await self._fetch(partitions)

    async def _fetch(self, partitions: Iterable[tuple[str, int]]) -> PartitionLags:
        clients = self._connection.clients
        admin, consumer = clients.admin(), clients.consumer()
        wanted = set(partitions)
        try:
            await admin.start()
            await consumer.start()
            return await _patiently(lambda: self._ask(admin, consumer, wanted))
        finally:
            await asyncio.gather(admin.stop(), consumer.stop())

    async def _ask(self, admin: Any, consumer: Any, wanted: set[tuple[str, int]]) -> PartitionLags:
        return await source_lags(admin, consumer, self.group_id, wanted, self.auto_offset_reset)

    def fetch_now(self, partitions: Iterable[tuple[str, int]]) -> PartitionLags | None:
        """The same for a caller that blocks its event loop. None: not available within `timeout_s`;
        a warning is logged.
        """
        found: list[PartitionLags] = []
        wanted = list(partitions)

        def run() -> None:
            try:
                found.append(asyncio.run(self.fetch(wanted)))
            except (KafkaError, OSError, TimeoutError) as error:
                _LOG.warning("group %s: cannot fetch %s (%s: %s); dealing by count alone", self.group_id, self.what, type(error).__name__, error)

        thread = threading.Thread(target=run, name=f"{self.what}-of-{self.group_id}", daemon=True)
        thread.start()
        thread.join(2 * self.timeout_s)  # what was begun is closed, too
        if thread.is_alive():
            _LOG.warning("group %s: fetching %s does not end; dealing by count alone", self.group_id, self.what)
        return found[0] if found else None


class LoadFetcher(LagFetcher):
    """Fetches the loads of partitions: the records that were written in the last `window_s`, by
    their timestamps, and those that the group has not read.
    """

    what = "loads"

    def __init__(
        self, *, group_id: str, connection: Connection | str, auto_offset_reset: str = "latest", timeout_s: float = 3.0, window_s: float = 300.0
    ) -> None:
        super().__init__(group_id=group_id, connection=connection, auto_offset_reset=auto_offset_reset, timeout_s=timeout_s)
        self.window_s = window_s

    async def _ask(self, admin: Any, consumer: Any, wanted: set[tuple[str, int]]) -> PartitionLags:
        lags = await source_lags(admin, consumer, self.group_id, wanted, self.auto_offset_reset)
        if not wanted:
            return lags
        since_ms = int((time.time() - self.window_s) * 1_000)
        places = [TopicPartition(topic, partition) for topic, partition in sorted(wanted)]
        firsts = await consumer.offsets_for_times(dict.fromkeys(places, since_ms))
        ends = await consumer.end_offsets(places)
        written = {(place.topic, place.partition): max(0, ends[place] - first) for place, first in firsts.items() if first is not None}
        return {place: lag + written.get(place, 0) for place, lag in lags.items()}


async def _patiently(ask: Callable[[], Awaitable[PartitionLags]]) -> PartitionLags:
    """Repeats `ask` on retriable errors (no coordinator yet, a leader election). The caller's
    timeout ends it.
    """
    while True:
        try:
            return await ask()
        except KafkaError as error:
            if not error.retriable:
                raise
        await asyncio.sleep(RETRY_S)
