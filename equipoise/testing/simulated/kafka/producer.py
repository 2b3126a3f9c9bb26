"""The simulated producer. It behaves as aiokafka's, where hosts can see it: idempotent, in order
per partition, at most one request to a broker at a time.
"""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import attrs
from aiokafka import errors
from aiokafka.partitioner import DefaultPartitioner

from equipoise.kafka.aiokafka_producer import REFUSED
from equipoise.kafka.client import MOST_REQUEST_BYTES, SentBatch, SentHeaders, TopicPartition, Unsent, batch_bytes, not_sent_behind
from equipoise.testing.simulated.kafka.broker_network import Handler
from equipoise.testing.simulated.kafka.connected import ConnectedClient
from equipoise.testing.simulated.kafka.coordinators import GROUP, TRANSACTION
from equipoise.testing.simulated.kafka.partition_log import BATCH_OVERHEAD, RECORD_OVERHEAD, Batch, size_of
from equipoise.testing.simulated.kafka.simulated_kafka import Cluster

MAX_REQUEST_BYTES = MOST_REQUEST_BYTES
_MOST_OVERHEAD = 82
"""What the client adds to a record when it checks its size."""
TRANSACTION_BACKOFF_S = 0.02
_AGAIN = (
    errors.CoordinatorNotAvailableError,
    errors.NotCoordinatorError,
    errors.CoordinatorLoadInProgressError,
    errors.ConcurrentTransactions,
    errors.UnknownTopicOrPartitionError,
    errors.RequestTimedOutError,
)


class ProducedRecord(NamedTuple):
    """Where a record was appended."""

    topic: str
    partition: int
    offset: int


@attrs.define(eq=False)
class _PendingBatch:
    """A batch that is being filled, or sent. `stored`: what is sent, from the first attempt on."""

    place: TopicPartition
    created_us: int
    done: asyncio.Future[None]
    drained: asyncio.Future[None]
    contents: list[tuple[bytes | None, bytes | None, Any, int]] = attrs.field(factory=list)
    futures: list[asyncio.Future[ProducedRecord]] = attrs.field(factory=list)
    size: int = BATCH_OVERHEAD
    is_whole: bool = False
    """It takes no more records, and has one future: of its first record."""
    stored: Batch | None = None

    def succeed(self, offset: int) -> None:
        for index, future in enumerate(self.futures):
            if not future.done():
                future.set_result(ProducedRecord(*self.place, offset + index))
        self._end()

    def fail(self, error: Exception) -> None:
        for future in self.futures:
            if not future.done():
                future.set_exception(copy.copy(error))
        self._end()

    def _end(self) -> None:
        for future in (self.done, self.drained):
            if not future.done():
                future.set_result(None)


class SimulatedProducer(ConnectedClient):
    """Implements `equipoise.kafka.client.Producer`."""

    def __init__(
        self,
        cluster: Cluster,
        process: str,
        *,
        transactional_id: str | None = None,
        transaction_timeout_ms: int = 60_000,
        request_timeout_ms: int = 40_000,
        retry_backoff_ms: int = 100,
        max_batch_size: int = 16_384,
        compression_type: str | None = None,  # sizes are of what is not compressed, as the brokers' limits are here
    ) -> None:
        super().__init__(cluster, process, request_timeout_ms=request_timeout_ms, retry_backoff_ms=retry_backoff_ms)
        self._transactional_id = transactional_id
        self._id = transactional_id or ""
        self._transaction_timeout_ms = transaction_timeout_ms
        self._max_batch_bytes = max_batch_size
        self._producer_id, self._epoch = -1, -1
        self._sequences: dict[TopicPartition, int] = {}
        self._batches: dict[TopicPartition, deque[_PendingBatch]] = {}
        """Batches to send. The first may have been sent before."""
        self._sending: dict[int, list[_PendingBatch]] = {}
        """Broker -> batches of the request under way."""
        self._is_planned = False
        self._finding_leaders = False
        self._partitioner = DefaultPartitioner()
        self._failed: Exception | None = None
        """Why nothing can be sent any more."""
        self._state = "ready"
        """"ready", "open", "ending" or "failed": the transaction's."""
        self._added: dict[TopicPartition, None] = {}
        self._to_add: dict[TopicPartition, None] = {}
        self._group_added = ""
        self._offsets: deque[tuple[str, dict[TopicPartition, int], asyncio.Future[None]]] = deque()
        self._ended: asyncio.Future[None] | None = None
        self._commits = True
        self._work = asyncio.Event()

    # Beginning and end

    async def _start(self) -> None:
        await self._connect()
        await self._begin()

    async def connect(self) -> None:
        if self._transactional_id is None:
            await self.start()
            return
        try:
            await self._connect()
        except BaseException:
            self._close()
            raise

    async def _connect(self) -> None:
        await super()._start()
        if self._transactional_id is not None:
            await self._coordinator(TRANSACTION, self._transactional_id)

    async def begin(self) -> None:
        if self._transactional_id is not None:
            await self._begin()

    async def _begin(self) -> None:
        coordinators, wanted = self._cluster.coordinators, self._transactional_id
        handler = partial(coordinators.init_producer_id, wanted, self._transaction_timeout_ms)
        while True:
            if wanted is None:
                try:
                    answer = await self._ask(self._any_broker(), "InitProducerId", handler)
                except errors.KafkaError as error:
                    answer = error.__class__
            else:
                answer = await self._coordinated(TRANSACTION, wanted, "InitProducerId", handler)
            if isinstance(answer, tuple):
                break
            if not issubclass(answer, _AGAIN) and not answer.retriable:
                raise answer
            await asyncio.sleep(self._backoff_s)
            await self._refresh()
        self._producer_id, self._epoch = answer
        if wanted is not None:
            self._spawn(self._transact())

    async def _finish(self) -> None:
        """aiokafka waits for every batch, and not for an open transaction."""
        await self.flush()

    async def abandon(self) -> None:
        self._close()
        for batch in self._unsent():
            if batch.is_whole:
                batch.fail(errors.ProducerClosed())

    async def flush(self) -> None:
        if waiting := self._unsent():
            await asyncio.wait([batch.done for batch in waiting])

    def _unsent(self) -> list[_PendingBatch]:
        return [batch for batches in (*self._batches.values(), *self._sending.values()) for batch in batches if not batch.done.done()]

    # Records

    async def partitions_for(self, topic: str) -> set[int]:
        return await self._known_topic(topic)

    async def send_and_wait(
        self, topic: str, value: bytes | None, *, key: bytes | None = None, partition: int | None = None, headers: SentHeaders | None = None
    ) -> ProducedRecord:
        return await (await self.send(topic, value, key=key, partition=partition, headers=headers))

    async def send(
        self, topic: str, value: bytes | None, *, key: bytes | None = None, partition: int | None = None, headers: SentHeaders | None = None
    ) -> asyncio.Future[ProducedRecord]:
        """Raises as aiokafka's does."""
        assert value is not None or key is not None, "Need at least one: key or value"
        if topic not in self._counts:
            await self._known_topic(topic)
        if self._transactional_id is not None and self._state != "open":
            raise errors.IllegalOperation("Can't send messages while not in transaction")
        its_headers = tuple(headers or ())
        size = size_of(key, value, its_headers)
        if size + _MOST_OVERHEAD > MAX_REQUEST_BYTES:
            raise errors.MessageSizeTooLargeError(f"The message is {size + _MOST_OVERHEAD} bytes when serialized")
        if partition is None:
            partition = self._partition(topic, key)
        assert 0 <= partition < self._counts[topic], "Unrecognized partition"
        place = TopicPartition(topic, partition)
        batch = await self._batch_for(place, size + RECORD_OVERHEAD)
        future: asyncio.Future[ProducedRecord] = asyncio.get_running_loop().create_future()
        batch.contents.append((key, value, its_headers, self._cluster.now_ms()))
        batch.futures.append(future)
        batch.size += size + RECORD_OVERHEAD
        return future

    def _partition(self, topic: str, key: bytes | None) -> int:
        count = self._counts[topic]
        if key is None:
            return self._cluster.random.randrange(count)
        every = list(range(count))
        return int(self._partitioner(key, every, every))

    async def _batch_for(self, place: TopicPartition, size: int) -> _PendingBatch:
        """The batch that takes a record of this size. Waits while a full one is unsent."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + self._timeout_s
        while True:
            if self._is_closed:
                raise errors.ProducerClosed
            if self._failed is not None:
                raise copy.copy(self._failed)
            batches = self._batches.get(place)
            if not batches:
                break
            if batches[-1].stored is None and not batches[-1].is_whole and batches[-1].size + size <= self._max_batch_bytes:
                return batches[-1]
            await asyncio.wait((batches[-1].drained,), timeout=end_s - loop.time())
            if loop.time() >= end_s:
                raise errors.KafkaTimeoutError
        return self._new_batch(place)

    def _new_batch(self, place: TopicPartition) -> _PendingBatch:
        if self._transactional_id is not None and place not in self._added:
            self._to_add[place] = None
            self._work.set()
        loop = asyncio.get_running_loop()
        batch = _PendingBatch(place, self._cluster.scheduler.now_us, loop.create_future(), loop.create_future())
        self._batches.setdefault(place, deque()).append(batch)
        self._plan()
        return batch

    def send_batches(self, partition: TopicPartition, records: Iterable[Unsent], most_bytes: int | None = None) -> list[SentBatch]:
        """Raises as aiokafka's does."""
        if self._is_closed:
            raise errors.ProducerClosed
        if self._failed is not None:
            raise copy.copy(self._failed)
        if self._transactional_id is not None and self._state != "open":
            raise errors.IllegalOperation("Can't send messages while not in transaction")
        filled: list[tuple[int, list[tuple[bytes | None, bytes | None, Any, int]]]] = []
        for key, value, headers, given_ms in records:
            size = size_of(key, value, headers) + RECORD_OVERHEAD
            if size > MAX_REQUEST_BYTES:
                raise errors.MessageSizeTooLargeError(f"The message is {size} bytes when serialized")
            if not filled or filled[-1][0] + size > (most_bytes or self._max_batch_bytes):
                filled.append((BATCH_OVERHEAD, []))
            filled[-1][1].append((key, value, tuple(headers), self._cluster.now_ms() if given_ms is None else given_ms))
            filled[-1] = filled[-1][0] + size, filled[-1][1]
        batches: list[_PendingBatch] = []
        for size, contents in filled:
            batch = self._new_batch(TopicPartition(*partition))
            future: asyncio.Future[ProducedRecord] = asyncio.get_running_loop().create_future()
            future.add_done_callback(partial(self._settled, batches, len(batches)))
            batch.size, batch.contents, batch.futures, batch.is_whole = size, contents, [future], True
            batches.append(batch)
        return [
            SentBatch(len(each.contents), each.futures[0], batch_bytes(*each.contents[0][:3]) if len(each.contents) == 1 else each.size)
            for each in batches
        ]

    def _settled(self, batches: Sequence[_PendingBatch], number: int, sent: asyncio.Future[ProducedRecord]) -> None:
        error = None if sent.cancelled() else sent.exception()
        if error is None:
            return
        place = batches[number].place
        for behind in batches[number + 1 :]:
            if behind in self._batches.get(place, ()):
                self._batches[place].remove(behind)
                if not self._batches[place]:
                    del self._batches[place]
                behind.fail(not_sent_behind(error))

    # Sending

    def _plan(self) -> None:
        """Sends what there is, soon, so that a batch has all records of this turn of the loop."""
        if not self._is_planned and not self._is_closed:
            self._is_planned = True
            asyncio.get_running_loop().call_soon(self._send_batches)

    def _metadata_updated(self) -> None:
        self._plan()

    def _send_batches(self) -> None:
        self._is_planned = False
        if self._is_closed or self._failed is not None or self._producer_id < 0:
            return
        requests: dict[int, list[_PendingBatch]] = {}
        has_unknown = False
        for place in list(self._batches):
            leader = self._leader(place)
            if place in self._to_add or any(batch.place == place for batches in self._sending.values() for batch in batches):
                continue
            if leader is None or leader < 0:
                first = self._batches[place][0]
                if (self._cluster.scheduler.now_us - first.created_us) / 1_000_000 > self._timeout_s:
                    self._drained(first)
                    first.fail(errors.NotLeaderForPartitionError() if leader is None else errors.LeaderNotAvailableError())
                has_unknown = True
            elif leader not in self._sending:
                batch = self._batches[place][0]
                self._drained(batch)
                requests.setdefault(leader, []).append(batch)
        for broker, batches in requests.items():
            self._sending[broker] = batches
            handler = partial(self._cluster.produce, {batch.place: self._stored(batch) for batch in batches}, self._transactional_id)
            self._call(broker, "Produce", handler, partial(self._sent, broker))
        if has_unknown and not self._finding_leaders:
            self._finding_leaders = True
            self._spawn(self._find_leaders())

    def _drained(self, batch: _PendingBatch) -> None:
        batches = self._batches[batch.place]
        batches.popleft()
        if not batches:
            del self._batches[batch.place]
        if not batch.drained.done():
            batch.drained.set_result(None)

    def _stored(self, batch: _PendingBatch) -> Batch:
        """The batch as it is sent, with the same sequence number each time."""
        if batch.stored is None:
            sequence = self._sequences.get(batch.place, 0)
            self._sequences[batch.place] = (sequence + len(batch.contents)) % 2**31
            is_transactional = self._transactional_id is not None
            batch.stored = Batch(self._producer_id, self._epoch, sequence, is_transactional, tuple(batch.contents), batch.size)
        return batch.stored

    async def _find_leaders(self) -> None:
        await self._refresh()
        await asyncio.sleep(self._backoff_s)
        self._finding_leaders = False
        self._plan()

    def _sent(self, broker: int, answer: Any) -> None:
        """The broker has answered, or could not be asked."""
        again: list[_PendingBatch] = []
        if self._is_closed or isinstance(answer, asyncio.CancelledError):
            return
        if isinstance(answer, Exception):
            self._refresh()
        for batch in self._sending[broker]:
            result = answer if isinstance(answer, Exception) else answer[batch.place]
            if isinstance(result, int):
                batch.succeed(result)
                continue
            error: Any = result if isinstance(result, Exception) else result()
            if error.retriable:
                again.append(batch)
                if error.invalid_metadata:
                    self._refresh()
            else:
                if batch.is_whole and isinstance(error, REFUSED):
                    self._sequences[batch.place] -= len(batch.contents)
                batch.fail(errors.ProducerFenced() if isinstance(error, errors.InvalidProducerEpoch) else error)
        if again:
            self._spawn(self._send_again(broker, again))
            return
        del self._sending[broker]
        self._work.set()
        self._plan()

    async def _send_again(self, broker: int, again: list[_PendingBatch]) -> None:
        await asyncio.sleep(self._backoff_s)
        for batch in again:
            self._batches.setdefault(batch.place, deque()).appendleft(batch)
        if self._updating is not None and not self._updating.done():
            await asyncio.shield(self._updating)
        del self._sending[broker]
        self._plan()

    # Transactions

    async def begin_transaction(self, expected: Collection[TopicPartition] = ()) -> None:
        self._must_be_transactional()
        assert self._state == "ready", f"Invalid state transition {self._state}"
        self._state = "open"
        self._ended = asyncio.get_running_loop().create_future()
        self._to_add.update(dict.fromkeys(expected))
        self._work.set()

    async def commit_offsets(self, offsets: Mapping[TopicPartition, int], group: str) -> None:
        answer = await self._coordinated(GROUP, group, "OffsetCommit", partial(self._cluster.coordinators.commit_offsets, group, dict(offsets)))
        if answer is not None:
            raise answer

    async def send_offsets_to_transaction(self, offsets: Mapping[TopicPartition, int], group: str) -> None:
        """Raises as aiokafka's does."""
        self._must_be_transactional()
        if self._state != "open":
            raise errors.IllegalOperation("Not in the middle of a transaction")
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._offsets.append((group, dict(offsets), future))
        self._work.set()
        await asyncio.shield(future)

    async def commit_transaction(self) -> None:
        await self._end(commits=True)

    async def abort_transaction(self) -> None:
        """Not of the interface; for tests."""
        await self._end(commits=False)

    async def _end(self, *, commits: bool) -> None:
        self._must_be_transactional()
        assert self._state == "open", f"Invalid state transition {self._state}"
        assert self._ended is not None
        self._state, self._commits = "ending", commits
        self._work.set()
        await asyncio.shield(self._ended)

    def _must_be_transactional(self) -> None:
        if self._transactional_id is None:
            raise errors.IllegalOperation("You need to configure transaction_id to use transactions")

    async def _transact(self) -> None:
        """Sends the transaction's requests, one at a time, until the producer is fenced."""
        try:
            while True:
                if self._to_add:
                    places = list(self._to_add)
                    await self._transact_once(TRANSACTION, "AddPartitionsToTxn", self._adding(places, None))
                    for place in places:
                        self._to_add.pop(place, None)
                        self._added[place] = None
                    self._plan()
                elif self._offsets:
                    await self._commit_offsets()
                elif self._state == "ending":
                    await self._end_transaction()
                else:
                    self._work.clear()
                    await self._work.wait()
        except errors.KafkaError as error:
            self._fail_all(error if isinstance(error, errors.ProducerFenced) else errors.KafkaError("Unexpected error during batch delivery"))

    def _adding(self, places: list[TopicPartition], group: str | None) -> Handler:
        return partial(self._cluster.coordinators.add_to_transaction, self._id, self._producer_id, self._epoch, places, group)

    async def _commit_offsets(self) -> None:
        group, offsets, future = self._offsets[0]
        if not self._group_added:
            await self._transact_once(TRANSACTION, "AddOffsetsToTxn", self._adding([], group))
            self._group_added = group
        coordinators = self._cluster.coordinators
        handler = partial(coordinators.commit_in_transaction, self._id, self._producer_id, self._epoch, group, offsets)
        await self._transact_once(GROUP, "TxnOffsetCommit", handler, key=group)
        self._offsets.popleft()
        if not future.done():
            future.set_result(None)

    async def _end_transaction(self) -> None:
        await self.flush()
        if self._added or self._group_added:
            coordinators = self._cluster.coordinators
            handler = partial(coordinators.end_transaction, self._id, self._producer_id, self._epoch, self._commits)
            await self._transact_once(TRANSACTION, "EndTxn", handler)
        self._added.clear()
        self._group_added, self._state = "", "ready"
        assert self._ended is not None
        if not self._ended.done():
            self._ended.set_result(None)

    async def _transact_once(self, kind: str, name: str, handler: Handler, key: str = "") -> None:
        """Sends a request until it is answered. Raises ProducerFenced, KafkaError."""
        while True:
            answer = await self._coordinated(kind, key or self._id, name, handler)
            if answer is None:
                return
            if answer is errors.InvalidProducerEpoch:
                raise errors.ProducerFenced
            if not issubclass(answer, _AGAIN) and not answer.retriable:
                raise answer
            is_first = answer is errors.ConcurrentTransactions and not self._added and name == "AddPartitionsToTxn"
            await asyncio.sleep(TRANSACTION_BACKOFF_S if is_first else self._backoff_s)

    def _fail_all(self, error: Exception) -> None:
        self._failed, self._state = error, "failed"
        for batch in self._unsent():
            batch.fail(error)
        for _, _, future in self._offsets:
            if not future.done():
                future.set_exception(error)
                future.exception()
        self._offsets.clear()
        if self._ended is None or self._ended.done():
            self._ended = asyncio.get_running_loop().create_future()
        self._ended.set_exception(error)
        self._ended.exception()
