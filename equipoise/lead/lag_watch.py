"""Watches how far the groups in which a process has seats are behind their topics."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from aiokafka import errors

from equipoise.events.errors import InputError
from equipoise.kafka.client import Admin, Consumer, TopicPartition
from equipoise.kafka.connection import Connection
from equipoise.kafka.started_clients import admin_client, reader
from equipoise.lead.seat.metadata import described_topics
from equipoise.lead.seat_status import SeatStatus

_LOG = logging.getLogger(__name__)
LOOK_S = 10.0
"""Between two looks at all of the groups."""


class LagWatch:
    """Keeps `lag_records` and `uncommitted` of these statuses, by connections that all groups of a
    process share. `statuses`: returns the present ones.
    """

    def __init__(self, connection: Connection, statuses: Callable[[], Iterable[SeatStatus]]) -> None:
        self._connection, self._statuses = connection, statuses
        self._said: dict[str, str] = {}
        """Group -> why its lag is not known, as it was logged."""

    async def run(self) -> None:
        """Looks until it is cancelled. What cannot be asked is not known, and asked again."""
        while True:
            try:
                async with admin_client(self._connection) as admin, reader(self._connection) as consumer:
                    while True:
                        for status in list(self._statuses()):
                            await self._look(admin, consumer, status)
                        await asyncio.sleep(LOOK_S)
            except Exception as error:  # noqa: BLE001  # whatever a client raises must not end what leads
                for status in self._statuses():
                    self._forget(status, error)
            await asyncio.sleep(LOOK_S)

    async def _look(self, admin: Admin, consumer: Consumer, status: SeatStatus) -> None:
        """Looks at one group. Without readers, its lag is that of all that it has ever committed."""
        if not (status.leads or status.stands_by):
            return
        topics = status.topics
        try:
            commits = await admin.committed_offsets(status.group, None)
            names = topics or {place.topic for place in commits}
            counts = (await described_topics(admin, names))[0].counts if names else {}
            there = {TopicPartition(topic, number) for topic, count in counts.items() for number in range(count)}
            committed = {place: at for place, at in commits.items() if at is not None and place in there}
            ends = await consumer.end_offsets(sorted(committed)) if committed else {}  # after the commits, which are never ahead of them then
        except (errors.KafkaError, InputError) as error:
            if getattr(error, "retriable", False):
                raise
            self._forget(status, error)
            return
        if topics != status.topics:
            return  # it is another generation's by now
        status.uncommitted = len(there - committed.keys()) if topics else None
        status.lag_records = sum(max(0, ends[place] - at) for place, at in committed.items()) if committed else None
        self._said.pop(status.group, None)

    def _forget(self, status: SeatStatus, error: Exception) -> None:
        status.lag_records = status.uncommitted = None
        text = f"{type(error).__name__} {error}"
        if self._said.get(status.group) != text:
            self._said[status.group] = text
            _LOG.warning("group %s: its lag is not known: %s", status.group, text)
