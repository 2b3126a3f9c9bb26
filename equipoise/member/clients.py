"""The clients of one task: a producer for what it writes, a consumer of its sources.

Connecting takes longer than anything else in a hand-over, and needs no grant. So the clients of a
warm-up connect before its task is granted; only the request that fences the former owner waits for
the grant.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import attrs

from equipoise.events.log.kafka.clients import abandon_producer, call_off, start_client, stop_client
from equipoise.events.log.kafka.connection import Connection
from equipoise.events.tasks import TaskId
from equipoise.member.options import MemberOptions
from equipoise.member.origin import transactional_id

TRANSACTION_TIMEOUT_MS = 60_000
"""Kafka aborts an open transaction after this time. One is open only during a commit."""
RETRY_BACKOFF_MS = 20
"""The broker makes the next producer wait some milliseconds while it writes the markers of the
former owner's last transaction. aiokafka would retry after 100 ms.
"""


@attrs.frozen
class _ProducerStart:
    """The first half of a transactional producer's start. The second half requests the producer id,
    which fences the present owner of the transactional id.
    """

    producer: Any

    @property
    def client(self) -> Any:
        return self.producer.client

    async def start(self) -> None:
        await self.producer.client.bootstrap()

    async def stop(self) -> None:
        await abandon_producer(self.producer)


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
        self.producer: Any = None
        self.consumer: Any = None
        """Reads the sources; it fetches nothing before it is placed and resumed."""

    @property
    def transactional_id(self) -> str:
        """The producer's transactional id, with exactly_once."""
        return transactional_id(self._group, str(self._task))

    def connect(self) -> None:
        """Begins to connect, unless that has begun."""
        from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

        if self._connecting is None:
            connection, options = self._connection.options(), self._options
            writing: dict[str, Any] = {"enable_idempotence": True}
            if options.transactional:
                writing = self._transactional(self.transactional_id)
            timeout_ms = options.request_timeout_ms
            self.producer = AIOKafkaProducer(**connection, **writing, request_timeout_ms=timeout_ms, retry_backoff_ms=RETRY_BACKOFF_MS)
            self.consumer = AIOKafkaConsumer(
                **connection, group_id=self._group, enable_auto_commit=False, auto_offset_reset=options.auto_offset_reset,
                isolation_level="read_committed" if options.transactional else "read_uncommitted", request_timeout_ms=timeout_ms,
                client_rack=options.rack,
            )  # fmt: skip
            self._connecting = asyncio.ensure_future(self._connect())

    async def begin(self) -> None:
        """Returns when the producer may write. With exactly_once this fences the former owner.
        Raises KafkaError.
        """
        self.connect()
        assert self._connecting is not None, "it has just begun"
        await self._connecting
        if self._options.transactional:
            await self.producer._sender.start()

    async def end_transactions(self, of: str) -> None:
        """Fences the producer with the transactional id `of`, and ends its transaction. Raises
        KafkaError.
        """
        from aiokafka import AIOKafkaProducer

        timeout_ms = self._options.request_timeout_ms
        producer = AIOKafkaProducer(
            **self._connection.options(), **self._transactional(of), request_timeout_ms=timeout_ms, retry_backoff_ms=RETRY_BACKOFF_MS
        )
        await start_client(producer)
        await abandon_producer(producer)

    @staticmethod
    def _transactional(of: str) -> dict[str, Any]:
        return {"transactional_id": of, "transaction_timeout_ms": TRANSACTION_TIMEOUT_MS}

    async def close(self) -> None:
        """Closes both clients of a task that was never begun."""
        if self._connecting is not None:
            await call_off(self._connecting)
            await asyncio.gather(abandon_producer(self.producer), stop_client(self.consumer))

    async def _connect(self) -> None:
        jobs = [asyncio.ensure_future(job) for job in (self._connect_producer(), self._connect_consumer())]
        try:
            await asyncio.gather(*jobs)
        finally:
            await call_off(*jobs)

    async def _connect_producer(self) -> None:
        if self._options.transactional:
            from aiokafka.client import CoordinationType

            await start_client(_ProducerStart(self.producer))
            await self.producer._sender._find_coordinator(CoordinationType.TRANSACTION, self.transactional_id)
        else:
            await start_client(self.producer)
        for topic in self._changelogs:
            await self.producer.partitions_for(topic)

    async def _connect_consumer(self) -> None:
        from aiokafka import TopicPartition

        await start_client(self.consumer)
        partitions = [TopicPartition(topic, self._task.partition) for topic in self._sources]
        self.consumer.assign(partitions)
        self.consumer.pause(*partitions)
        for tp in partitions:
            await self.consumer.committed(tp)  # finds the group's coordinator, and connects to it
