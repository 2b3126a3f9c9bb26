"""The log that a worker leads: opens it, and notices when its topics hold another one."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from equipoise.events.facts import LogOpened
from equipoise.hosting.runtime import Runtime
from equipoise.kafka.broker_watch import BrokerWatch
from equipoise.kafka.client import Consumer, within
from equipoise.kafka.started_clients import NotNowError, reaching, reader
from equipoise.log.kafka.log_opening import NotThereError, open_partitions
from equipoise.log.kafka.log_topics import MUST_BE
from equipoise.log.kafka.topic_making import ensure_topics, partition_count
from equipoise.worker.broker_answers import answered
from equipoise.worker.observer import Observer
from equipoise.worker.settings import WorkerSettings

_LOG = logging.getLogger(__name__)
_RETRY_S = 0.5
_BROKER_START_S = 60.0
"""How long a starting worker waits for brokers that answer but are not ready yet."""
CHECK_LOG_S = 2.0
"""Time between two checks that the log's topics are still the same, for a worker without
partitions. Also the longest wait for such a check.
"""


class LedLog:
    """The log of `settings`' topics. `opened`: its first record; None before `open`. `topic_ids`:
    ids of its topics; None: the brokers give topics no ids. `is_replaced`: the topics hold another
    log, or none.
    """

    def __init__(self, settings: WorkerSettings, observer: Observer, brokers: BrokerWatch, runtime: Runtime) -> None:
        self._settings, self._observer, self._brokers, self._runtime = settings, observer, brokers, runtime
        self.opened: LogOpened | None = None
        self.topic_ids: tuple[str, ...] | None = None
        self.is_replaced = False
        self.asked_s = 0.0
        """When the last request about the log began that the brokers have answered (monotonic, s).
        """
        self._missing = 0
        """How often in a row the topics were missing."""

    @property
    def id(self) -> str:
        """The id of the log; "" before `open`."""
        return "" if self.opened is None else self.opened.log_id

    def note_replaced(self) -> None:
        """Notes that a partition's host has found another log."""
        self.is_replaced = True

    async def open_with_retries(self) -> None:
        """Opens the log, makes missing topics, and retries while brokers restart. Raises
        InputError.
        """
        end_s = self._runtime.monotonic_s() + _BROKER_START_S
        while True:
            try:
                await self.open(make=True)
                return
            except NotNowError as error:
                if self._runtime.monotonic_s() > end_s:
                    raise
                _LOG.warning("%s; retrying", error)
            await asyncio.sleep(_RETRY_S)

    async def open(self, *, make: bool) -> None:
        """Reads which log the topics hold, and opens one if they are empty. `make`: creates missing
        topics; else NotThereError is raised for them. Raises InputError.
        """
        settings, topics = self._settings, self._settings.topics
        if make or all([await partition_count(settings, topics.name_of(what)) for what in MUST_BE]):
            await ensure_topics(settings, topics, partitions=settings.partitions, replication=settings.replication, bases=settings.has_retention)
        else:
            raise NotThereError(f"the topics of {topics.prefix} are gone: start another worker, or this one again, to make a new log")
        async with reader(settings) as consumer, within("topics of the log that stay the same"):
            while True:
                ids = await self._ask_topic_ids(consumer)
                self.asked_s = self._runtime.monotonic_s()
                self.opened = await open_partitions(settings, topics, new_id=self._runtime.unique())
                if await self._ask_topic_ids(consumer) == ids:
                    break
        self.topic_ids = ids

    async def _ask_topic_ids(self, consumer: Consumer) -> tuple[str, ...] | None:
        """Retries, because brokers learn of new topics one after the other. Raises InputError."""
        from aiokafka.errors import KafkaError

        end_s = self._runtime.monotonic_s() + CHECK_LOG_S
        while True:
            with reaching(self._settings):
                try:
                    return await self._settings.topics.ids(consumer)
                except KafkaError:
                    if self._runtime.monotonic_s() > end_s:
                        raise
            await asyncio.sleep(_RETRY_S)

    async def check(self) -> None:
        """Asks whether the topics are still those of the log, and sets `is_replaced`."""
        from aiokafka.errors import UnknownTopicOrPartitionError

        missing, self._missing = self._missing, 0
        asked_s = self._runtime.monotonic_s()
        try:
            same = await answered(self._observer.log_topic_ids(self._settings.topics), CHECK_LOG_S) == self.topic_ids
        except UnknownTopicOrPartitionError:  # a broker that starts may not know the topics yet: ask once more
            self.is_replaced = self.is_replaced or missing > 0
            self._missing = missing + 1
            return
        except Exception as error:  # noqa: BLE001 the brokers are down: the next check asks again
            self._brokers.noted("cannot read the topics' ids", error)
            _LOG.debug("cannot read the topics' ids: %r", error)
            with contextlib.suppress(Exception):
                await self._observer.close()
            return
        self.asked_s = asked_s
        self._brokers.answered(asked_s)
        self.is_replaced = self.is_replaced or not same
