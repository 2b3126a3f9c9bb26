"""The clients of a member's tasks: one consumer for all of them, and one producer. With
exactly_once a task without changelogs has a producer of its own, which fences its former owner.

Connecting takes longer than anything else in a hand-over, and needs no grant. So the clients of a
warm-up connect before its task is granted; only the request that fences a former owner waits for
the grant.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from equipoise.events.tasks import TaskId
from equipoise.kafka.client import MOST_IDLE_MS, Producer, TopicPartition, call_off
from equipoise.kafka.connection import Connection
from equipoise.kafka.throttling import QUOTAS
from equipoise.member.copies.origin import Origin, transactional_id
from equipoise.member.options import MemberOptions
from equipoise.member.session.broker_clock import BrokerClock
from equipoise.member.tasks.offsets import ReportedOffsets
from equipoise.member.tasks.positions import Position, Positions, PositionsReader, StoredPosition, place_of, write_plainly
from equipoise.member.tasks.sizes import BATCH_BYTES, RecordSizes
from equipoise.member.tasks.sources import SourceReader, TaskSources
from equipoise.member.tasks.transactions import Transactions

if TYPE_CHECKING:
    from equipoise.member.session.adoption import Adoption

_LOG = logging.getLogger(__name__)
TRANSACTION_TIMEOUT_MS = 60_000
"""Kafka aborts an open transaction after this time. One is open for a commit interval at most."""
MAX_IDLE_MS = 10_000
"""The connection to the group's coordinator, and that for positions, are closed when they were not
used for so long: when all tasks have opened, and have changelogs.
"""
FETCH_BYTES = 4 * 2**20
"""Largest answer to a fetch. Two of them are in memory, and one more twice while it is read.
Nothing else is done while it is parsed.
"""
RETRY_BACKOFF_MS = 20
"""The broker makes the next producer wait some milliseconds while it writes the markers of the
former owner's last transaction. The client would retry after 100 ms.
"""


NOTE_S = 1.0
"""Where the positions of tasks with state are is noted together for all that open by then."""


@attrs.define(eq=False)
class _SharedProducer:
    producer: Producer
    starting: asyncio.Task[None]
    users: int = 0


class MemberClients:
    """The clients that all tasks of one member share. Belongs to the application's loop. They
    connect when the first task needs them, and again after they have failed. `incarnation` returns
    the present one, as ``<member>/<incarnation>``.
    """

    def __init__(self, connection: Connection, group: str, options: MemberOptions, incarnation: Callable[[], str]) -> None:
        self._connection, self._group, self._options = connection, group, options
        self.throttling = connection.clients.throttling
        self._readers: list[SourceReader] = []
        self._present: _SharedProducer | None = None
        """The producer for tasks that open now. Others may still use a former one."""
        self._producers: dict[Producer, _SharedProducer] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._incarnation = incarnation
        self._transactions: Transactions | None = None
        """Those of the present incarnation."""
        self._fencing: dict[str, asyncio.Task[None]] = {}
        self._positions = PositionsReader(
            group,
            lambda: connection.clients.consumer(
                read_committed=True, request_timeout_ms=options.request_timeout_ms, connections_max_idle_ms=MAX_IDLE_MS
            ),
        )
        self._unsaid: dict[int, dict[tuple[str, TopicPartition], tuple[Position, Origin]]] = {}
        """Partition of tasks -> positions that are still to be written."""
        self._writing: asyncio.Task[None] | None = None
        self.offsets = ReportedOffsets(group, self._shared_producer)
        self.sizes = RecordSizes()
        self.clock = BrokerClock(lambda: 0, lambda: 0)
        """The brokers' clock, by what the member knows; here: unknown."""
        self.adoption: Adoption | None = None
        """The consumer group whose place the members take; None: none."""

    def new_producer(self, transactional_id: str | None) -> Producer:
        """A producer of its own, which is not started. Beside one for transactions it only fences
        changelogs and notes positions, and keeps no connection between these.
        """
        is_beside = transactional_id is None and self._options.transactional
        return self._connection.clients.producer(
            transactional_id=transactional_id,
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            request_timeout_ms=self._options.request_timeout_ms,
            retry_backoff_ms=RETRY_BACKOFF_MS,
            max_batch_size=BATCH_BYTES,
            connections_max_idle_ms=MAX_IDLE_MS if is_beside else MOST_IDLE_MS,
        )

    # The producer

    async def producer(self) -> Producer:
        """The shared producer, started, until `release`. Raises KafkaError."""
        if self._present is None:
            producer = self.new_producer(None)
            self._present = self._producers[producer] = _SharedProducer(producer, asyncio.ensure_future(producer.start()))
        shared = self._present
        shared.users += 1
        try:
            await asyncio.shield(shared.starting)
        except BaseException:
            has_failed = shared.starting.done() and (shared.starting.cancelled() or shared.starting.exception() is not None)
            await self.release(shared.producer, failed=has_failed)
            raise
        return shared.producer

    @contextlib.asynccontextmanager
    async def _shared_producer(self) -> AsyncIterator[Producer]:
        producer = await self.producer()
        try:
            yield producer
        finally:
            await self.release(producer, failed=False)

    async def release(self, producer: Producer, *, failed: bool) -> None:
        """A task writes nothing any more. `failed`: one of its sends has failed, so that tasks that
        open from now on get another producer: an idempotent producer that has lost a batch may
        never send another one to that partition.
        """
        shared = self._producers.get(producer)
        if shared is None:
            return  # abandoned meanwhile
        shared.users -= 1
        if failed and shared is self._present:
            self._present = None
        if not shared.users and shared is not self._present:
            await self._abandon(shared)

    async def abandon_producers(self) -> None:
        """All tasks of the member stop at once: what was not sent is never sent."""
        for shared in list(self._producers.values()):
            await self._abandon(shared)

    async def _abandon(self, shared: _SharedProducer) -> None:
        self._producers.pop(shared.producer, None)
        if self._present is shared:
            self._present = None
        await call_off(shared.starting)
        await shared.producer.abandon()

    # Transactions

    def transactions(self, of: TaskId | None) -> Transactions:
        """Returns the transactions of a task without changelogs, or those that all other tasks
        share (None), until `release_transactions`.
        """
        if of is not None:
            return self._new_transactions(transactional_id(self._group, str(of)))
        wanted = f"{self._group}/{self._incarnation()}"
        if self._transactions is None or self._transactions.id != wanted:
            former, self._transactions = self._transactions, self._new_transactions(wanted)
            if former is not None and not former.users:
                self._end(former.abandon())
        self._transactions.users += 1
        return self._transactions

    def _new_transactions(self, transactional_id: str) -> Transactions:
        return Transactions(transactional_id, self._group, self.new_producer, self._options.commit_interval_s)

    async def release_transactions(self, transactions: Transactions, *, at_once: bool) -> None:
        """A task commits nothing any more. `at_once`: what it has not sent is never sent, and if it
        shares the transactions, all tasks of the member stop.
        """
        transactions.users -= 1
        if at_once:
            await transactions.abandon()
        elif transactions is not self._transactions and transactions.users <= 0:
            await transactions.stop()

    async def end_transactions(self, of: str) -> None:
        """Fences the producer with the transactional id `of`, once for all tasks that ask at the
        same time. Raises KafkaError.
        """
        ending = self._fencing.get(of)
        if ending is None:
            ending = self._fencing[of] = asyncio.ensure_future(self._fence(of))
            ending.add_done_callback(lambda _: self._fencing.pop(of))
        await asyncio.shield(ending)

    async def _fence(self, transactional_id: str) -> None:
        producer = self.new_producer(transactional_id)
        await producer.start()
        await producer.abandon()

    # The topic of positions

    async def read_positions(self, partition: int, at_least: int = 0) -> Positions:
        """Reads the positions of tasks with this partition. Raises KafkaError."""
        return await self._positions.read(partition, at_least)

    def keep_positions(self, processor: str, committed: Mapping[TopicPartition, StoredPosition]) -> None:
        """See `PositionsReader.keep`."""
        self._positions.keep(processor, committed)

    async def write_positions(self, partition: int, records: Mapping[tuple[str, TopicPartition], tuple[Position, Origin]]) -> None:
        """Stores positions of a task with state, outside of transactions, where others are stored.
        Raises KafkaError.
        """
        if not records:
            return
        known, producer, failed = await self._positions.read(partition), await self.producer(), True
        try:
            await write_plainly(producer, place_of(self._group, partition), records, known)
            failed = False
        finally:
            await self.release(producer, failed=failed)

    def note_positions(self, partition: int, records: Mapping[tuple[str, TopicPartition], tuple[Position, Origin]]) -> None:
        """The same, soon: the positions are in a changelog anyhow. A failure is not raised."""
        self._unsaid.setdefault(partition, {}).update(records)
        if self._writing is None or self._writing.done():
            self._writing = asyncio.ensure_future(self._write_unsaid())

    async def _write_unsaid(self) -> None:
        from aiokafka.errors import KafkaError

        await asyncio.sleep(NOTE_S)
        while self._unsaid:
            partition, records = self._unsaid.popitem()
            try:
                await self.write_positions(partition, records)
            except KafkaError as error:
                _LOG.debug("group %s: positions were not noted: %r", self._group, error)

    # The consumer

    def sources(self, partitions: Sequence[TopicPartition]) -> TaskSources:
        """The sources of a task, until `leave`."""
        for reader in self._readers:
            if reader.failure is None and reader.is_free(partitions):
                return reader.add(partitions)
        consumer = self._connection.clients.consumer(
            group=self._group,
            read_committed=True,
            request_timeout_ms=self._options.request_timeout_ms,
            rack=self._options.rack,
            connections_max_idle_ms=MAX_IDLE_MS,
            fetch_max_bytes=FETCH_BYTES,
        )
        self._readers.append(SourceReader(consumer))
        return self._readers[-1].add(partitions)

    @property
    def source_partitions(self) -> dict[str, int]:
        """Source topic -> number of its partitions, as far as metadata was heard. Any thread may
        read it.
        """
        found: dict[str, int] = {}
        for reader in list(self._readers):
            for topic, count in reader.counts.items():
                found[topic] = max(found.get(topic, 0), count)
        return found

    def troubles(self, now_s: float) -> list[str]:
        """Returns what holds up the tasks from outside, as sentences. Any thread may call it.
        `now_s`: by the time of its event loop.
        """
        found = [each for reader in list(self._readers) for each in reader.troubles]
        found += [self.clock.trouble] if self.clock.trouble else []
        return found if self.throttling.held_up_s(now_s) is None else [*found, f"quotas of the brokers hold it back; {QUOTAS}"]

    def leave(self, sources: TaskSources) -> None:
        """The task reads nothing any more."""
        reader = sources.reader
        reader.remove(sources)
        if reader.is_empty and reader.failure is not None and reader in self._readers:
            self._readers.remove(reader)
            self._end(reader.stop())

    def _end(self, closing: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(closing)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Disconnects, after all tasks have closed."""
        await self.offsets.stop()
        await call_off(*self._fencing.values(), *([] if self._writing is None else [self._writing]))
        await self._positions.stop()
        await asyncio.gather(*(reader.stop() for reader in self._readers), *self._closing, return_exceptions=True)
        for shared in list(self._producers.values()):
            if shared.starting.done():
                await shared.producer.stop()
            await self._abandon(shared)
        if self._transactions is not None:
            await self._transactions.stop()


class TaskClients:
    """The producer and the sources of `task`. Belongs to the application's loop. Call `connect`,
    then `begin`, and `close` at the end. `changelogs`: those that the task writes.
    """

    def __init__(
        self,
        shared: MemberClients,
        group: str,
        task: TaskId,
        options: MemberOptions,
        *,
        sources: Sequence[str],
        changelogs: Sequence[str],
        shares_sources: bool = False,
    ) -> None:
        self._shared, self._group, self._task, self._options = shared, group, task, options
        self._topics, self._changelogs = sources, changelogs
        self.shares_sources = shares_sources
        """Whether another processor of the group reads one of them."""
        self._connecting: asyncio.Task[None] | None = None
        self.producer: Producer | None = None
        """With at_least_once."""
        self.transactions: Transactions | None = None
        """With exactly_once."""
        self.sources: TaskSources
        """Reads nothing before it is placed."""

    def connect(self) -> None:
        """Begins to connect, unless that has begun."""
        if self._connecting is None:
            self.sources = self._shared.sources([TopicPartition(topic, self._task.partition) for topic in self._topics])
            self._connecting = asyncio.ensure_future(self._connect())

    async def begin(self) -> Producer:
        """The producer, when it may write. With exactly_once and without changelogs this fences the
        former owner. Raises KafkaError.
        """
        self.connect()
        assert self._connecting is not None, "it has just begun"
        await asyncio.shield(self._connecting)
        if self.transactions is not None:
            return await self.transactions.begin()
        assert self.producer is not None, "it is connected"
        return self.producer

    @property
    def clock(self) -> BrokerClock:
        """Returns the one of all tasks: see `MemberClients.clock`."""
        return self._shared.clock

    @property
    def sizes(self) -> RecordSizes:
        """The limits that all tasks of the member share."""
        return self._shared.sizes

    @property
    def adopts(self) -> bool:
        """Returns whether the members take the place of a consumer group."""
        return self._shared.adoption is not None

    async def adopted(self) -> Mapping[TopicPartition, int]:
        """Where the consumers of the group have read to whose place the members take, once they
        have left; empty: there is no such group.
        """
        return {} if self._shared.adoption is None else await self._shared.adoption.offsets(self.sources.partitions)

    async def read_positions(self, partition: int, at_least: int = 0) -> Positions:
        """See `MemberClients.read_positions`."""
        return await self._shared.read_positions(partition, at_least)

    def keep_positions(self, processor: str, committed: Mapping[TopicPartition, StoredPosition]) -> None:
        """See `PositionsReader.keep`."""
        self._shared.keep_positions(processor, committed)

    async def write_positions(self, partition: int, records: Mapping[tuple[str, TopicPartition], tuple[Position, Origin]]) -> None:
        """See `MemberClients.write_positions`."""
        await self._shared.write_positions(partition, records)

    def note_positions(self, partition: int, records: Mapping[tuple[str, TopicPartition], tuple[Position, Origin]]) -> None:
        """See `MemberClients.note_positions`."""
        self._shared.note_positions(partition, records)

    async def end_transactions(self, of: str) -> None:
        """Fences the producer with the transactional id `of`, and ends its transaction. Raises
        KafkaError.
        """
        await self._shared.end_transactions(of)

    def report_offsets(self, offsets: Mapping[TopicPartition, int], producer: Producer) -> None:
        """Commits the group's offsets for lag tools, within a second. A failure is not raised."""
        self._shared.offsets.report(offsets, producer)

    async def flush_offsets(self) -> None:
        """Commits those of the task now."""
        await self._shared.offsets.flush(self.sources.partitions)

    async def stop_writing(self, *, failed: bool, at_once: bool) -> None:
        """Gives the producer back before the end. `failed`: something sent could not be written.
        `at_once`: all tasks of the member stop, and what they have not sent is never sent.
        """
        producer, self.producer = self.producer, None
        transactions, self.transactions = self.transactions, None
        if transactions is not None:
            await self._shared.release_transactions(transactions, at_once=at_once or not self._changelogs)
        elif at_once:
            await self._shared.abandon_producers()
        elif producer is not None:
            await self._shared.release(producer, failed=failed)

    async def close(self) -> None:
        """Closes both clients, also before they are connected. Everything sent is acknowledged."""
        if self._connecting is None:
            return
        await call_off(self._connecting)
        self._connecting = None
        if self.transactions is not None:
            await self._shared.release_transactions(self.transactions, at_once=False)
            self.transactions = None
        await self.stop_writing(failed=False, at_once=False)
        self._shared.leave(self.sources)

    async def _connect(self) -> None:
        jobs = [asyncio.ensure_future(job) for job in (self._connect_producer(), self.sources.reader.start())]
        try:
            await asyncio.gather(*jobs)
        finally:
            await call_off(*jobs)

    async def _connect_producer(self) -> None:
        if self._options.transactional:
            self.transactions = self._shared.transactions(None if self._changelogs else self._task)
            producer = await self.transactions.connect()
        else:
            producer = self.producer = await self._shared.producer()
        for topic in self._changelogs:
            await producer.partitions_for(topic)
