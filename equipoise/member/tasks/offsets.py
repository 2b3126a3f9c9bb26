"""Commits the group's offsets of tasks whose changelogs have them, for lag tools: now and then, all
tasks of a member together.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager

from equipoise.kafka.client import Producer, TopicPartition, call_off

_LOG = logging.getLogger(__name__)
EVERY_S = 1.0
FLUSH_S = 0.5
"""Longest wait for the offsets of a task that closes."""


class ReportedOffsets:
    """The offsets of one member that were not committed yet. Belongs to the application's loop.
    `other`: gives another producer, where that of the last report was closed meanwhile.
    """

    def __init__(self, group: str, other: Callable[[], AbstractAsyncContextManager[Producer]]) -> None:
        self._group, self._other = group, other
        self._offsets: dict[TopicPartition, int] = {}
        self._producer: Producer
        """Of the last report. It carries the requests, so that they need no connection of their
        own.
        """
        self._waiting: asyncio.Future[None] | None = None

    def report(self, offsets: Mapping[TopicPartition, int], producer: Producer) -> None:
        """Commits `offsets` within EVERY_S, or at `flush`. A failure is not raised."""
        self._offsets.update(offsets)
        self._producer = producer
        if self._waiting is None or self._waiting.done():
            self._waiting = asyncio.ensure_future(self._commit_later())

    async def flush(self, partitions: Iterable[TopicPartition]) -> None:
        """Commits the offsets of `partitions` now, if that takes no longer than FLUSH_S."""
        if offsets := {tp: self._offsets.pop(tp) for tp in partitions if tp in self._offsets}:
            committing = asyncio.ensure_future(self._commit(offsets))
            await asyncio.wait((committing,), timeout=FLUSH_S)
            await call_off(committing)

    async def stop(self) -> None:
        """Commits nothing any more."""
        if self._waiting is not None:
            await call_off(self._waiting)

    async def _commit_later(self) -> None:
        while self._offsets:
            await asyncio.sleep(EVERY_S)
            offsets, self._offsets = self._offsets, {}
            await self._commit(offsets)

    async def _commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        from aiokafka.errors import KafkaError

        from equipoise.kafka.bounded_waits import WireStopped

        if offsets:
            try:
                try:
                    await self._producer.commit_offsets(offsets, self._group)
                except WireStopped:  # the task that has reported them was opened again, or is parked
                    async with self._other() as producer:
                        await producer.commit_offsets(offsets, self._group)
            except KafkaError as error:
                _LOG.debug("group %s: committing offsets failed: %r", self._group, error)
