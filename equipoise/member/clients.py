"""The clients of one task: a producer for what it writes, a consumer of its sources.

Connecting takes longer than anything else in a hand-over, and needs no grant. So the clients of a
warm-up connect before its task is granted; only the request that fences the former owner waits for
the grant.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from equipoise.events.log.kafka.client import Consumer, Producer, TopicPartition, call_off
from equipoise.events.log.kafka.connection import Connection
from equipoise.events.tasks import TaskId
from equipoise.member.options import MemberOptions
from equipoise.member.origin import transactional_id

TRANSACTION_TIMEOUT_MS = 60_000
"""Kafka aborts an open transaction after this time. One is open only during a commit."""
RETRY_BACKOFF_MS = 20
"""The broker makes the next producer wait some milliseconds while it writes the markers of the
former owner's last transaction. The client would retry after 100 ms.
"""


class TaskClients:
    """The producer and the consumer of `task`. Belongs to the application's loop. Call `connect`,
    then `begin`; or `close` when the task is not granted. After `begin` the caller closes both
    clients.
    """

    def __init__(
        self, connection: Connection, group: str, task: TaskId, options: MemberOptions, *, sources: Sequence[str], changelogs: Sequence[str]
    ) -> None:
        self._connection, self._group, self._task, self._options = connection, group, task, options
        self._sources, self._changelogs = sources, changelogs
        self._connecting: asyncio.Task[None] | None = None
        self.producer: Producer
        self.consumer: Consumer
        """Reads the sources; it fetches nothing before it is placed and resumed."""

    @property
    def transactional_id(self) -> str:
        """The producer's transactional id, with exactly_once."""
        return transactional_id(self._group, str(self._task))

    def connect(self) -> None:
        """Begins to connect, unless that has begun."""
        if self._connecting is None:
            clients, options = self._connection.clients, self._options
            self.producer = self._new_producer(self.transactional_id if options.transactional else None)
            self.consumer = clients.consumer(
                group=self._group, read_committed=options.transactional, request_timeout_ms=options.request_timeout_ms, rack=options.rack,
            )  # fmt: skip
            self._connecting = asyncio.ensure_future(self._connect())

    def _new_producer(self, transactional_id: str | None) -> Producer:
        return self._connection.clients.producer(
            transactional_id=transactional_id, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            request_timeout_ms=self._options.request_timeout_ms, retry_backoff_ms=RETRY_BACKOFF_MS,
        )  # fmt: skip

    async def begin(self) -> None:
        """Returns when the producer may write. With exactly_once this fences the former owner.
        Raises KafkaError.
        """
        self.connect()
        assert self._connecting is not None, "it has just begun"
        await self._connecting
        await self.producer.begin()

    async def end_transactions(self, of: str) -> None:
        """Fences the producer with the transactional id `of`, and ends its transaction. Raises
        KafkaError.
        """
        producer = self._new_producer(of)
        await producer.start()
        await producer.abandon()

    async def close(self) -> None:
        """Closes both clients of a task that was never begun."""
        if self._connecting is not None:
            await call_off(self._connecting)
            await asyncio.gather(self.producer.abandon(), self.consumer.stop())

    async def _connect(self) -> None:
        jobs = [asyncio.ensure_future(job) for job in (self._connect_producer(), self._connect_consumer())]
        try:
            await asyncio.gather(*jobs)
        finally:
            await call_off(*jobs)

    async def _connect_producer(self) -> None:
        await self.producer.connect()
        for topic in self._changelogs:
            await self.producer.partitions_for(topic)

    async def _connect_consumer(self) -> None:
        await self.consumer.start()
        partitions = [TopicPartition(topic, self._task.partition) for topic in self._sources]
        self.consumer.assign(partitions)
        self.consumer.pause(*partitions)
        for tp in partitions:
            await self.consumer.committed(tp)  # finds the group's coordinator, and connects to it
