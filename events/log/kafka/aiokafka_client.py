"""The clients of `client`, over aiokafka: each is aiokafka's own, started and stopped so that no
task keeps running and no connection stays open, whatever the brokers do.

aiokafka closes its connections last. When an earlier step fails, hangs on a silent broker or is
cancelled, connections stay open and a task that reconnects may keep running. There is no public way
to finish the shutdown. Only `topic_ids`, `leader_epochs`, this file and the other `aiokafka_` files
use aiokafka's internals.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from functools import partial
from itertools import chain, pairwise
from typing import Any

import aiokafka
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.admin.records_to_delete import RecordsToDelete
from aiokafka.client import CoordinationType
from aiokafka.conn import AIOKafkaConnection
from aiokafka.consumer.subscription_state import TopicPartitionState
from aiokafka.errors import (
    BrokerResponseError,
    ConcurrentTransactions,
    ConsumerStoppedError,
    GroupCoordinatorNotAvailableError,
    IllegalOperation,
    InvalidTimestampError,
    InvalidTopicError,
    KafkaConnectionError,
    KafkaError,
    MessageSizeTooLargeError,
    NodeNotReadyError,
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

from equipoise.events.log.kafka.aiokafka_fetcher import FairFetcher
from equipoise.events.log.kafka.aiokafka_log import hold_back_log
from equipoise.events.log.kafka.aiokafka_metadata import forbid_topic_creation
from equipoise.events.log.kafka.aiokafka_sessions import sending
from equipoise.events.log.kafka.aiokafka_structs import quick
from equipoise.events.log.kafka.client import (
    CLOSE_S,
    NO_EPOCH,
    Admin,
    BrokerFailures,
    ConsumedRecord,
    Consumer,
    LeaderEnd,
    NewTopic,
    Producer,
    SentBatch,
    TopicPartition,
    Unsent,
    not_sent_behind,
)
from equipoise.events.log.kafka.leader_epochs import epoch_ends, leader_ends
from equipoise.events.log.kafka.topic_ids import topic_ids


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
_LOG = logging.getLogger(__name__)
_ALREADY_EXISTS = 36  # Kafka's error TOPIC_ALREADY_EXISTS
_CREATE_TIMEOUT_MS = 30_000
_CONTROLLER_S = 5.0
"""How long to wait for brokers that name no controller."""
_WHOLE_START_S = 1.0
_AGAIN_S = 0.1
_MARKERS_S = 0.002
"""How soon to begin a transaction again while the markers of the former one are written."""
_ENDING: set[asyncio.Task[None]] = set()
"""Keeps tasks alive: a task without a reference may be collected before its end."""


class DeployedClients:
    """Makes clients, in the event loop that runs them. `connection`: aiokafka's options for the
    connection. Each method takes aiokafka's further options, too.
    """

    def __init__(self, connection: Mapping[str, Any]) -> None:
        self._connection = connection

    def consumer(self, *, group: str | None = None, read_committed: bool = False, rack: str | None = None, **options: Any) -> Consumer:
        """See `client.Clients`."""
        made: Consumer = DeployedConsumer(
            **self._connection, **{"enable_auto_commit": False, "auto_offset_reset": "none", **options}, group_id=group, client_rack=rack,
            isolation_level="read_committed" if read_committed else "read_uncommitted",
        )  # fmt: skip
        return made

    def producer(self, *, transactional_id: str | None = None, transaction_timeout_ms: int = 60_000, **options: Any) -> Producer:
        """See `client.Clients`."""
        made: Producer = DeployedProducer(
            **self._connection, **{"enable_idempotence": True, **options},
            transactional_id=transactional_id, transaction_timeout_ms=transaction_timeout_ms,
        )  # fmt: skip
        return made

    def hold_back_log(self, failures: BrokerFailures) -> AbstractContextManager[None]:
        """See `client.Clients`."""
        return hold_back_log(failures)

    def admin(self) -> Admin:
        """See `client.Clients`."""
        made: Admin = DeployedAdmin(**self._connection)
        return made


def unwrapped(error: KafkaError, topic: str) -> KafkaError:
    """The error of `topic` that aiokafka has made a text of, in an error of no kind; else `error`.
    """
    kind = getattr(aiokafka.errors, str(error.args[0]).partition("(")[0], None) if type(error) is KafkaError and error.args else None
    return kind(topic) if isinstance(kind, type) and issubclass(kind, KafkaError) else error


class DeployedConsumer(aiokafka.AIOKafkaConsumer):  # type: ignore[misc]  # aiokafka ships no types
    """`client.Consumer`. aiokafka insists on its own TopicPartition in some places."""

    def __init__(self, *topics: str, as_rows: bool = False, **options: Any) -> None:
        super().__init__(*topics, **options)
        self._as_rows = as_rows
        forbid_topic_creation(self._client)
        self._client.send = sending(self._client.send)

    def watch_metadata(self, heard: Callable[[], None]) -> None:
        self._client.cluster.add_listener(lambda cluster: heard())

    async def start(self) -> None:
        await _start(self, super().start, self.stop)
        FairFetcher.replace(self._fetcher, as_rows=self._as_rows)

    async def stop(self, *, within_s: float = CLOSE_S) -> None:
        await _stop(self, super().stop, within_s)

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        # aiokafka's own `assign` drops what was fetched of all partitions, and their positions.
        wanted = list(map(_theirs, partitions))
        subscription = self._subscription.subscription
        if subscription is None:
            super().assign(wanted)
            return
        assignment = subscription.assignment
        for place in assignment.tps.symmetric_difference(wanted):
            # An answer for a partition that is gone finds a state without position, and is dropped.
            assignment._tp_state[place] = TopicPartitionState(assignment)
            if self._fetcher is not None:
                self._fetcher._records.pop(place, None)
                self._fetcher._records.epochs.pop(place, None)
        assignment._topic_partitions = frozenset(wanted)
        subscription._topics = frozenset(place.topic for place in wanted)
        self._client.set_topics(list(subscription._topics))
        if self._fetcher is not None:
            self._fetcher._notify(self._fetcher._wait_consume_future)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        super().seek(partition, offset)
        self._fetcher._records.epochs.pop(partition, None)

    def hold_fetches(self, wait_ms: int) -> None:
        self._fetcher._fetch_max_wait_ms = wait_ms

    async def fetched(self) -> None:
        """Raises KafkaConnectionError when the consumer fetches nothing any more."""
        waiter, fetching = self._fetcher._create_fetch_waiter(), self._fetcher._fetch_task
        try:
            await asyncio.wait((waiter, fetching), return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not waiter.done():
                waiter.cancel()
        if fetching.done():
            raise KafkaConnectionError("the consumer fetches nothing any more")
        waiter.result()

    def ready(self) -> Set[TopicPartition]:
        return self._fetcher._records.keys()  # type: ignore[no-any-return]

    def take(self, partitions: Sequence[TopicPartition], most: int) -> Mapping[TopicPartition, Sequence[ConsumedRecord]]:
        """Raises ConsumerStoppedError."""
        if self._closed:
            raise ConsumerStoppedError
        self._coordinator.check_errors()
        taken: Mapping[TopicPartition, Sequence[ConsumedRecord]] = self._fetcher.take(partitions, most)
        return taken

    async def getmany(self, *partitions: TopicPartition, timeout_ms: int = 0, max_records: int | None = None) -> Any:
        return await super().getmany(*map(_theirs, partitions), timeout_ms=timeout_ms, max_records=max_records)

    def pause(self, *partitions: TopicPartition) -> None:
        super().pause(*map(_theirs, partitions))

    def resume(self, *partitions: TopicPartition) -> None:
        super().resume(*map(_theirs, partitions))

    def next_offset(self, partition: TopicPartition) -> int | None:
        state = self._state(partition)
        return None if state is None else state._position

    def highwater(self, partition: TopicPartition) -> int | None:
        state = self._state(partition)
        return None if state is None else state.highwater

    def _state(self, partition: TopicPartition) -> Any:
        subscription = self._subscription.subscription
        assignment = None if subscription is None else subscription.assignment
        return None if assignment is None else assignment.state_value(partition)

    async def committed(self, partition: TopicPartition) -> Any:
        try:
            return await super().committed(partition)
        except KafkaError as error:
            raise unwrapped(error, partition.topic) from error

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        await super().commit({_theirs(partition): offset for partition, offset in offsets.items()})

    async def leader_ends(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, LeaderEnd]:
        ends = await leader_ends(self._client, partitions, self._fetcher._isolation_level, self._request_timeout_ms / 1_000)
        if ends is None:
            ends = {place: LeaderEnd(offset, NO_EPOCH) for place, offset in (await self.end_offsets(partitions)).items()}
        return ends

    async def epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, int] | None:
        return await epoch_ends(self._client, epochs, self._request_timeout_ms / 1_000)

    def fetched_epoch(self, partition: TopicPartition) -> int:
        epochs: Mapping[tuple[str, int], int] = self._fetcher._records.epochs
        return epochs.get(partition, NO_EPOCH)

    async def topic_ids(self, topics: Sequence[str], leads: TopicPartition) -> tuple[str, ...] | None:
        return await topic_ids(self._client, topics, leads)

    def leader(self, partition: TopicPartition) -> tuple[str, int] | None:
        return _leader(self._client, partition)


class _QuietSender(Sender):  # type: ignore[misc]
    """Its routine ends at the first of its tasks that fails, and leaves the errors of others."""

    def _maybe_do_transactional_request(self) -> asyncio.Task[Any] | None:
        task: asyncio.Task[Any] | None = super()._maybe_do_transactional_request()
        if task is not None:
            task.add_done_callback(_retrieve_error)
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
        _retrieve_error(self._transaction_waiter)

    def fatal_error(self, exc: BaseException) -> None:
        super().fatal_error(exc)
        _retrieve_error(self._transaction_waiter)


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
                _retrieve_error(each._drain_waiter)


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
        await _start(self, super().start, self.stop)

    async def partitions_for(self, topic: str) -> Collection[int]:
        # aiokafka copies the numbers each time.
        numbers: Collection[int] = self.client.cluster._partitions.get(topic) or await super().partitions_for(topic)
        return numbers

    async def connect(self) -> None:
        transactional_id = self._txn_manager.transactional_id
        if transactional_id is None:
            await self.start()
        else:
            await _start(self, lambda: self.client.bootstrap(), self.abandon)  # noqa: PLW0108  # `_start` replaces it
            await self._sender._find_coordinator(CoordinationType.TRANSACTION, transactional_id)

    async def begin(self) -> None:
        if self._txn_manager.transactional_id is not None:
            await self._sender.start()  # requests the producer id, which fences the present owner of the transactional id

    def send_batches(self, partition: TopicPartition, records: Iterable[Unsent], most_bytes: int | None = None) -> list[SentBatch]:
        # aiokafka's `send_batch` waits until the partition's former batch is on its way.
        """See `client.Producer`."""
        accumulator, place = self._message_accumulator, _theirs(partition)
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
        return _leader(self.client, partition)

    async def stop(self, *, within_s: float = CLOSE_S) -> None:
        await _stop(self, super().stop, within_s)

    async def abandon(self) -> None:
        self._closed = True
        tasks = _cut(self)
        accumulator = self._message_accumulator
        accumulator._pending_batches = pending = _Pending(accumulator._pending_batches)
        for batch in [*chain.from_iterable(accumulator._batches.values()), *pending]:
            if isinstance(batch, _WholeBatch):
                batch.failure(ProducerClosed())
        await _ended(self, tasks)

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
            self._txn_manager.maybe_add_partition_to_txn(_theirs(each))

    async def send_offsets_to_transaction(self, offsets: Mapping[TopicPartition, int], group: str) -> None:
        await super().send_offsets_to_transaction({_theirs(partition): offset for partition, offset in offsets.items()}, group)


class DeployedAdmin(AIOKafkaAdminClient):  # type: ignore[misc]
    """`client.Admin`. For some seconds after a broker died the others still name it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        forbid_topic_creation(self._client)

    async def start(self) -> None:
        await _start(self, super().start, self.stop)

    async def stop(self, *, within_s: float = CLOSE_S) -> None:
        await _stop(self, super().close, within_s)

    async def create_topics(self, topics: Sequence[NewTopic]) -> dict[str, str]:
        answer = await super().create_topics(topics, timeout_ms=_CREATE_TIMEOUT_MS)
        return {name: message[0] if message else str(code) for name, code, *message in answer.topic_errors if code not in (0, _ALREADY_EXISTS)}

    async def topic_configs(self, topics: Sequence[str]) -> dict[str, dict[str, str]]:
        answers = await self.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic) for topic in topics])
        found = {}
        for code, _, _, topic, entries in (resource for answer in answers for resource in answer.resources):
            if code:
                raise for_code(code)(f"the settings of topic {topic} cannot be read")
            found[topic] = {entry[0]: entry[1] for entry in entries}
        return found

    async def set_topic_configs(self, topic: str, configs: Mapping[str, str]) -> None:
        for answer in await self.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, dict(configs))]):
            for code, message, *_ in answer.resources:
                if code:
                    raise for_code(code)(message)

    async def delete_records(self, before: Mapping[TopicPartition, int]) -> None:
        places = {_theirs(place): RecordsToDelete(before_offset=offset) for place, offset in before.items()}
        await super().delete_records(places, timeout_ms=_CREATE_TIMEOUT_MS)

    async def committed_offsets(self, group: str, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int | None]:
        """Raises KafkaError, GroupCoordinatorNotAvailableError while the offsets are not available.
        """
        found = await self.list_consumer_group_offsets(group, partitions=list(partitions))
        if not found.keys() >= set(partitions):  # aiokafka passes over an error of the whole answer, which then names no partition
            raise GroupCoordinatorNotAvailableError(f"the offsets of group {group} are not available now")
        return {partition: found[partition].offset if found[partition].offset >= 0 else None for partition in partitions}

    async def _send_to_controller(self, request: Any) -> Any:
        end_s = time.monotonic() + _CONTROLLER_S
        while self._client.cluster.controller is None:  # a broker that has just started names none
            if time.monotonic() > end_s:
                raise NodeNotReadyError("the brokers name no controller yet")
            await self._client.force_metadata_update()
            await asyncio.sleep(_AGAIN_S)
        return await super()._send_to_controller(request)

    async def _send_request(self, request: Any, node_id: int | None = None) -> Any:
        if node_id is not None:
            return await super()._send_request(request, node_id)
        gone: Exception = KafkaConnectionError("no broker is known")
        for broker in sorted(self._client.cluster.brokers(), key=lambda each: each.nodeId):
            try:
                return await super()._send_request(request, broker.nodeId)
            except (KafkaConnectionError, NodeNotReadyError) as error:
                gone = error
        raise gone


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


def _retrieve_error(sent: asyncio.Future[Any]) -> BaseException | None:
    """The error. Once retrieved, asyncio does not warn when nobody waits for it any more."""
    return None if sent.cancelled() else sent.exception()


def _leader(client: Any, partition: TopicPartition) -> tuple[str, int] | None:
    broker = client.cluster.broker_metadata(client.cluster.leader_for_partition(partition))
    return None if broker is None else (broker.host, broker.port)


def _theirs(partition: TopicPartition) -> Any:
    return aiokafka.TopicPartition(*partition)


# ------------------------------------------------------------------------------ starting and ending


async def _start(client: Any, start: Callable[[], Awaitable[None]], close: Callable[[], Awaitable[None]]) -> None:
    """Starts a client. Closes it if the start fails or is cancelled.

    A cancelled start is finished first, if brokers answer within a second. After that, only the
    connection over which it asks for the brokers of the cluster may stay open, until they answer or
    aiokafka's time for that is over.
    """
    connected = _connected(client)
    connected.bootstrap = partial(_bootstrap, client, connected.bootstrap)
    starting = asyncio.ensure_future(start())
    try:
        await asyncio.shield(starting)
    except BaseException:
        ending = asyncio.ensure_future(_call_off(client, starting, close))
        _ENDING.add(ending)
        ending.add_done_callback(_ENDING.discard)
        await asyncio.shield(ending)  # which goes on should this be called off once more
        raise


async def _bootstrap(client: Any, bootstrap: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """aiokafka loses its connection if this is cancelled while it waits for the answer."""
    asking = asyncio.ensure_future(bootstrap())
    try:
        await asyncio.shield(asking)
    except asyncio.CancelledError:
        _ENDING.add(asking)
        asking.add_done_callback(partial(_end_bootstrap, client))
        raise


def _end_bootstrap(client: Any, asking: asyncio.Task[None]) -> None:
    _ENDING.discard(asking)
    _retrieve_error(asking)
    _cut(client)


async def _call_off(client: Any, starting: asyncio.Future[None], close: Callable[[], Awaitable[None]]) -> None:
    await asyncio.wait((starting,), timeout=_WHOLE_START_S)
    starting.cancel()
    await close()
    await _ended(client, [starting])


async def _stop(client: Any, stop: Callable[[], Awaitable[None]], within_s: float) -> None:
    """Stops a client. When cancelled, stops it at once."""
    # In a task of its own: closing a client during a request may raise CancelledError, which must
    # not look like a cancellation of the caller.
    stopping = asyncio.ensure_future(stop())
    try:
        await asyncio.wait((stopping,), timeout=within_s)
        if stopping.done() and not stopping.cancelled() and stopping.exception() is not None:
            _LOG.debug("a client was not closed cleanly: %r", stopping.exception())
    finally:
        stopping.cancel()
        tasks = _cut(client)
        client._closed = True  # if stopping was called off before it began, the client would say so when it is collected
    await _ended(client, [*tasks, stopping])


def _cut(client: Any) -> list[asyncio.Task[Any]]:
    """Ends all tasks and connections as far as possible without waiting. Returns the tasks that
    still have to end.
    """
    connected = _connected(client)
    connected.cluster._brokers.clear()  # so that nothing reconnects
    connected.cluster._bootstrap_brokers.clear()
    connected._conns = _OfStopped(connected._conns)
    running = [task for task in (connected._sync_task, *_tasks(client)) if task is not None and not task.done()]
    for task in running:
        task.cancel()
    for connection in list(connected._conns.values()):
        writer = connection._writer
        connection.close()
        if writer is not None:
            writer.transport.abort()  # closing waits until the broker has taken what was written
    return running


class _OfStopped(dict[Any, AIOKafkaConnection]):
    """Connections of a stopped client. What a question in flight still connects is closed."""

    def __setitem__(self, node: Any, connection: AIOKafkaConnection) -> None:
        connection.close()
        super().__setitem__(node, connection)


def _connected(client: Any) -> Any:
    return client.client if hasattr(client, "client") else client._client


async def _ended(client: Any, tasks: Sequence[asyncio.Future[Any]]) -> None:
    end_s = time.monotonic() + CLOSE_S
    while (running := [task for task in tasks if not task.done()]) and time.monotonic() < end_s:
        await asyncio.wait(running, timeout=_AGAIN_S)
        for task in running:
            task.cancel()  # a sender that is called off calls off one of its requests at a time
        _cut(client)
    _cut(client)  # what the last of them opened on its way
    for task in tasks:
        if task.done() and not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not report it


def _tasks(client: Any) -> Iterator[asyncio.Task[Any] | None]:
    fetcher, coordinator, sender = (getattr(client, name, None) for name in ("_fetcher", "_coordinator", "_sender"))
    if fetcher is not None:
        yield fetcher._fetch_task
        yield from fetcher._pending_tasks
    for name in ("_coordination_task", "_heartbeat_task", "_commit_refresh_task", "_reset_committed_task"):
        yield getattr(coordinator, name, None)
    yield getattr(sender, "sender_task", None)
