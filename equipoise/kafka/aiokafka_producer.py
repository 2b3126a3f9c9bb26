"""aiokafka's producer, as equipoise needs it: whole batches by partition, transactions that say
what failed, and compression where it pays.
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain, pairwise
from typing import Any

import aiokafka
from aiokafka.client import CoordinationType
from aiokafka.errors import (
    BrokerResponseError,
    ConcurrentTransactions,
    IllegalOperation,
    InvalidTimestampError,
    InvalidTopicError,
    KafkaConnectionError,
    MessageSizeTooLargeError,
    ProducerClosed,
    RecordListTooLargeError,
    TopicAuthorizationFailedError,
    for_code,
    kafka_errors,
)
from aiokafka.producer.message_accumulator import BatchBuilder, MessageAccumulator, MessageBatch
from aiokafka.producer.sender import AddPartitionsToTxnHandler, Sender
from aiokafka.producer.transaction_manager import TransactionManager
from aiokafka.protocol.commit import OffsetCommitRequest
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from equipoise.kafka.aiokafka_lifecycle import cut_connections, retrieve_error, start_client, stop_client, wait_for_end
from equipoise.kafka.aiokafka_metadata import aiokafkas_place, forbid_topic_creation, leader_address
from equipoise.kafka.aiokafka_structs import quick
from equipoise.kafka.client import (
    CLOSE_S,
    SentBatch,
    TopicPartition,
    Unsent,
    not_sent_behind,
)
from equipoise.kafka.topic_ids import topic_ids


class InvalidRecordError(BrokerResponseError):  # type: ignore[misc]
    """A broker refuses a record, for example one without a key in a compacted topic. aiokafka has
    no class for it, and would take it for an unknown error of the broker.
    """

    errno = 87
    message = "INVALID_RECORD"
    description = "a record is not valid for its topic"


kafka_errors.setdefault(InvalidRecordError.errno, InvalidRecordError)
REFUSED = (
    MessageSizeTooLargeError, RecordListTooLargeError, InvalidTopicError, TopicAuthorizationFailedError, InvalidTimestampError, InvalidRecordError,
)  # fmt: skip
"""Errors with which a broker refuses a batch for good."""
_MARKERS_S = 0.002
"""How soon to begin a transaction again while the markers of the former one are written."""


class _QuietSender(Sender):  # type: ignore[misc]
    """Its routine ends at the first of its tasks that fails, and leaves the errors of others."""

    def _maybe_do_transactional_request(self) -> asyncio.Task[Any] | None:
        task: asyncio.Task[Any] | None = super()._maybe_do_transactional_request()
        if task is not None:
            task.add_done_callback(retrieve_error)
        return task

    async def _do_add_partitions_to_txn(self, partitions: Any) -> Any:
        node_id = await self._find_coordinator(CoordinationType.TRANSACTION, self._txn_manager.transactional_id)
        return await _PromptAddition(self, partitions).do(node_id)


class _PromptAddition(AddPartitionsToTxnHandler):  # type: ignore[misc]
    """While the markers of the former transaction are written, which takes some milliseconds,
    aiokafka asks again each 20 ms.
    """

    def handle_response(self, answer: Any) -> float | None:
        backoff_s: float | None = super().handle_response(answer)
        is_early = any(code == ConcurrentTransactions.errno for _, partitions in answer.errors for _, code in partitions)
        return _MARKERS_S if is_early and backoff_s is not None else backoff_s


class _QuietTransactions(TransactionManager):  # type: ignore[misc]
    """Nobody waits for the end of a transaction that fails before its commit."""

    def error_transaction(self, exc: BaseException) -> None:
        super().error_transaction(exc)
        retrieve_error(self._transaction_waiter)

    def fatal_error(self, exc: BaseException) -> None:
        super().fatal_error(exc)
        retrieve_error(self._transaction_waiter)


class _QuickProduceRequest(ProduceRequest):  # type: ignore[misc]
    """A request that is encoded, and its answer decoded, by `aiokafka_structs`."""

    def build(self, request_struct_class: Any) -> Any:
        return super().build(quick(request_struct_class))


class _Pending(set[Any]):
    """Batches on their way. One that is to be sent again is not there, but aiokafka removes it."""

    def remove(self, batch: Any) -> None:
        self.discard(batch)


class _WholeBatch(MessageBatch):  # type: ignore[misc]
    """A batch of `send_batches`, which has all its records. Nobody waits until it is sent, so no
    future is kept for that.
    """

    behind: _WholeBatch | None = None
    """The next batch of the same call. Nothing behind a batch that failed is appended."""

    def __init__(self, place: Any, builder: BatchBuilder, producer: DeployedProducer) -> None:
        self._tp, self._builder, self._producer, self._msg_futures, self._retry_count = place, builder, producer, (), 0
        self._ttl, self._ctime = producer._message_accumulator._batch_ttl, time.monotonic()
        self.future = producer._loop.create_future()

    def set_producer_state(self, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        self._builder._set_producer_state(producer_id, producer_epoch, base_sequence)

    def take_sequence_numbers(self, transactions: Any) -> None:
        """Those that come next in its partition. `transactions`: None when the producer is not
        idempotent.
        """
        if transactions is not None:
            first = transactions.sequence_number(self._tp)
            transactions.increment_sequence_number(self._tp, self.record_count)
            self.set_producer_state(transactions.producer_id, transactions.producer_epoch, first)

    def remaining_linger(self) -> None:
        pass

    def drain_ready(self) -> None:
        self._retry_count += 1

    def done(self, *appended: Any) -> None:
        super().done(*appended)
        self._producer._message_accumulator._pending_batches.discard(self)

    def reset_drain(self) -> None:
        pass

    async def wait_drain(self, timeout: float | None = None) -> None:  # noqa: ASYNC109  # as aiokafka has it
        await asyncio.wait([self.future], timeout=timeout)

    def failure(self, exception: BaseException) -> None:
        if not self.future.done():
            self._producer._loop.call_soon(self._producer._failed, self, exception)  # aiokafka may go through its batches at the moment
            self.future.set_exception(exception)
            self.future.exception()  # retrieved, so that asyncio does not report it


class _Accumulator(MessageAccumulator):  # type: ignore[misc]
    """Sends a `_WholeBatch` without a callback of its own, which would forget it at its end in
    another pass of the loop.
    """

    def _pop_batch(self, tp: Any) -> Any:
        queue = self._batches[tp]
        batch = queue[0]
        if not isinstance(batch, _WholeBatch) or batch.retry_count:
            return super()._pop_batch(tp)
        queue.popleft()
        if not queue:
            del self._batches[tp]
        batch.take_sequence_numbers(self._txn_manager)
        batch.drain_ready()
        self._pending_batches.add(batch)
        return batch

    def fail_all(self, exception: BaseException) -> None:
        """Nobody waits until batches that were not sent yet are."""
        unsent = [each for batches in self._batches.values() for each in batches if not isinstance(each, _WholeBatch)]
        super().fail_all(exception)
        for each in unsent:
            if each._drain_waiter.done():
                retrieve_error(each._drain_waiter)


class _SparingBatch(BatchBuilder):  # type: ignore[misc]
    """A batch, of no transaction, that is compressed only if that makes it smaller. The compiled
    builder of aiokafka compresses each: a single small record grows by a fifth.
    """

    plain: Any
    """The same batch without compression."""
    _buffer: Any
    """What is sent; None: not built yet."""

    def append(self, *, timestamp: Any, key: bytes | None, value: bytes | None, headers: Any = ()) -> Any:
        added = super().append(timestamp=timestamp, key=key, value=value, headers=headers or [])
        if added is not None:
            self.plain.append(self._relative_offset - 1, timestamp, key=key, value=value, headers=headers or [])
        return added

    def _set_producer_state(self, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        super()._set_producer_state(producer_id, producer_epoch, base_sequence)
        self.plain.set_producer_state(producer_id, producer_epoch, base_sequence)

    def _build(self) -> Any:
        if self._buffer is None:
            compressed: Any = super()._build()
            self._buffer = self.plain.build() if self.plain.size() < len(compressed) else compressed
            del self.plain
        return self._buffer


class DeployedProducer(aiokafka.AIOKafkaProducer):  # type: ignore[misc]
    """`client.Producer`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        # aiokafka makes them itself, and takes none from outside.
        self._sender.__class__ = _QuietSender
        self._message_accumulator.__class__ = _Accumulator
        if self._txn_manager is not None:
            self._txn_manager.__class__ = _QuietTransactions
        # aiokafka would open another connection for transactions, whose requests wait for those of
        # the data anyway.
        client = self.client
        sends, readies = client.send, client.ready

        async def send(node_id: int, request: Any, *, group: Any = None) -> Any:
            if isinstance(request, ProduceRequest):
                request.__class__ = _QuickProduceRequest
            return await sends(node_id, request)

        async def ready(node_id: int, *, group: Any = None) -> Any:
            return await readies(node_id)

        client.send, client.ready = send, ready
        forbid_topic_creation(client)
        self._new_batch = self._message_accumulator.create_builder
        self._most_bytes = self._message_accumulator._batch_size
        if options.get("compression_type"):
            self._compress_sparingly()

    def _compress_sparingly(self) -> None:
        accumulator = self._message_accumulator
        create = accumulator.create_builder

        def create_builder(**serializers: Any) -> BatchBuilder:
            builder = create(**serializers)
            builder.__class__ = _SparingBatch
            builder.plain = DefaultRecordBatchBuilder(
                2, 0, is_transactional=0, producer_id=-1, producer_epoch=-1, base_sequence=0, batch_size=accumulator._batch_size
            )
            return builder

        accumulator.create_builder = create_builder

    async def start(self) -> None:
        await start_client(self, super().start, self.stop)

    async def partitions_for(self, topic: str) -> Collection[int]:
        # aiokafka copies the numbers each time.
        numbers: Collection[int] = self.client.cluster._partitions.get(topic) or await super().partitions_for(topic)
        return numbers

    async def connect(self) -> None:
        transactional_id = self._txn_manager.transactional_id
        if transactional_id is None:
            await self.start()
        else:
            await start_client(self, lambda: self.client.bootstrap(), self.abandon)  # noqa: PLW0108  # `start_client` replaces it
            await self._sender._find_coordinator(CoordinationType.TRANSACTION, transactional_id)

    async def begin(self) -> None:
        if self._txn_manager.transactional_id is not None:
            await self._sender.start()  # requests the producer id, which fences the present owner of the transactional id

    def send_batches(self, partition: TopicPartition, records: Iterable[Unsent], most_bytes: int | None = None) -> list[SentBatch]:
        # aiokafka's `send_batch` waits until the partition's former batch is on its way.
        """See `client.Producer`."""
        accumulator, place = self._message_accumulator, aiokafkas_place(partition)
        if accumulator._closed:
            raise ProducerClosed
        if accumulator._exception is not None:
            raise copy.copy(accumulator._exception)
        if self._txn_manager.transactional_id is not None and not self._txn_manager.is_in_transaction():
            raise IllegalOperation("Can't send messages while not in transaction")
        accumulator._batch_size = most_bytes or self._most_bytes
        now_ms = int(time.time() * 1_000)
        builders: list[BatchBuilder] = []
        rest = iter(records)
        unsent = next(rest, None)
        while unsent is not None:
            builders.append(self._new_batch())
            unsent = _fill(builders[-1], chain((unsent,), rest), now_ms)
        sizes = [each.size() for each in builders]
        for size_bytes in sizes:
            if size_bytes > self._max_request_size:
                raise MessageSizeTooLargeError(f"a record for {partition.topic} is larger than {self._max_request_size} bytes")
        batches: list[_WholeBatch] = []
        for each in builders:
            each.close()
            batches.append(_WholeBatch(place, each, self))
        if not batches:
            return []
        for batch, behind in pairwise(batches):
            batch.behind = behind
        self._txn_manager.maybe_add_partition_to_txn(place)
        accumulator._batches[place].extend(batches)
        accumulator._wakeup(accumulator._waiter_future)
        return [SentBatch(each.record_count, each.future, size_bytes) for each, size_bytes in zip(batches, sizes, strict=True)]

    def _failed(self, batch: _WholeBatch, error: BaseException) -> None:
        """A broker notes no sequence numbers of what it refuses for good: the next batch takes
        them. But not one of the same call, which would be appended without what was before it. It
        is still queued: one batch of a partition is on its way at a time.
        """
        if isinstance(error, REFUSED):
            self._txn_manager.increment_sequence_number(batch.tp, -batch.record_count)
        self._message_accumulator._pending_batches.discard(batch)
        queue, behind = self._message_accumulator._batches, batch.behind
        while behind is not None:
            if behind in queue.get(batch.tp, ()):
                queue[batch.tp].remove(behind)
                if not queue[batch.tp]:
                    del queue[batch.tp]
                behind.failure(not_sent_behind(error))
            behind = behind.behind

    async def topic_ids(self, topics: Sequence[str], leads: TopicPartition) -> tuple[str, ...] | None:
        return await topic_ids(self.client, topics, leads)

    def leader(self, partition: TopicPartition) -> tuple[str, int] | None:
        return leader_address(self.client, partition)

    async def stop(self, *, within_s: float = CLOSE_S) -> None:
        await stop_client(self, super().stop, within_s)

    async def abandon(self) -> None:
        self._closed = True
        tasks = cut_connections(self)
        accumulator = self._message_accumulator
        accumulator._pending_batches = pending = _Pending(accumulator._pending_batches)
        for batch in [*chain.from_iterable(accumulator._batches.values()), *pending]:
            if isinstance(batch, _WholeBatch):
                batch.failure(ProducerClosed())
        await wait_for_end(self, tasks)

    async def commit_offsets(self, offsets: Mapping[TopicPartition, int], group: str) -> None:
        """Raises KafkaError, KafkaConnectionError when no broker is known."""
        if self.client.get_random_node() is None:
            raise KafkaConnectionError("no broker is known")  # it is closed
        coordinator = await self.client.coordinator_lookup(CoordinationType.GROUP, group)
        topics: dict[str, list[tuple[int, int, str]]] = {}
        for (topic, partition), offset in offsets.items():
            topics.setdefault(topic, []).append((partition, offset, ""))
        answer = await self.client.send(coordinator, OffsetCommitRequest(group, -1, "", -1, list(topics.items())))
        for _, partitions in answer.topics:
            for _, code in partitions:
                if code:
                    raise for_code(code)

    async def begin_transaction(self, expected: Collection[TopicPartition] = ()) -> None:
        if self._txn_manager.has_pid():
            self._txn_manager.begin_transaction()  # aiokafka takes three passes of the loop
        else:
            await super().begin_transaction()
        for each in expected:
            self._txn_manager.maybe_add_partition_to_txn(aiokafkas_place(each))

    async def send_offsets_to_transaction(self, offsets: Mapping[TopicPartition, int], group: str) -> None:
        await super().send_offsets_to_transaction({aiokafkas_place(partition): offset for partition, offset in offsets.items()}, group)


def _fill(batch: BatchBuilder, records: Iterable[Unsent], now_ms: int) -> Unsent | None:
    """Appends records until there are no more, or there is no room: then it returns that record."""
    # Not `batch.append`, which costs a third more: nothing is to be serialized here.
    append, number = batch._builder.append, 0
    for key, value, headers, given_ms in records:
        if append(number, now_ms if given_ms is None else given_ms, key, value, headers) is None:
            batch._relative_offset = number
            return key, value, headers, given_ms
        number += 1
    batch._relative_offset = number
    return None
