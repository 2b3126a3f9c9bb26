"""The producer, without I/O and without a clock: answers and times (ms) in, requests out.

`ProducerCore.due` returns what is to be sent now. Each of its orders ends with one call: `answered`
or `unanswered`. What has ended by then is in `take_ended`, and the states and errors of the
transaction are in `transaction`.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Iterator, Mapping
from math import inf
from typing import Any

from aiokafka import errors

from equipoise.kafka.client import SentHeaders, TopicPartition, Unsent, batch_bytes
from equipoise.kafka.producer.batch_queues import BatchQueues, LeaderOf
from equipoise.kafka.producer.record_batches import BatchMaker, RecordBatch
from equipoise.kafka.producer.sending_orders import DueToSend, ProduceBatches, ProducerOptions, SendOrder
from equipoise.kafka.producer.states import ProducerState
from equipoise.kafka.producer.transaction_manager import OffsetsCommit, TransactionManager

METADATA_AGAIN_MS = 100.0
"""Time between two requests for metadata while a partition has no leader."""
_NO_ID = {ProducerState.UNINITIALIZED, ProducerState.INITIALIZING, ProducerState.FATAL_ERROR}


class ProducerCore:
    """See the module."""

    def __init__(self, options: ProducerOptions) -> None:
        self.options = options
        self.transaction = TransactionManager(options)
        self._queues = BatchQueues(options.timeout_ms, options.retry_ms, options.topic_ids)
        self._maker = BatchMaker(options.most_bytes, options.compression, is_transactional=options.transactional_id is not None)
        self._leaders: LeaderOf = lambda place: None
        self._metadata_from_ms = -inf
        self._has_moved = False
        self._closed: Exception | None = None

    # What the host wants

    def append(
        self, place: TopicPartition, key: bytes | None, value: bytes | None, headers: SentHeaders, now_ms: float, wall_ms: int
    ) -> RecordBatch | None:
        """Appends a record to the last batch of its partition, or to a new one. Returns the batch;
        None: the last one is full, and is to be sent before. Raises MessageSizeTooLargeError, or
        why nothing can be sent.
        """
        self._check_can_send()
        size_bytes = batch_bytes(key, value, headers)
        if size_bytes > self.options.most_bytes:
            raise errors.MessageSizeTooLargeError(f"a record for {place[0]} has {size_bytes} bytes, more than {self.options.most_bytes}")
        batch = self._queues.last(place)
        if batch is None or batch.is_whole:
            batch = self._maker.open(place, self.options.batch_bytes, now_ms)
            self._queue((batch,))
        assert batch.encoder is not None, "it was not sent"
        if batch.encoder.fill(((key, value, headers, None),), wall_ms) is not None:
            return None
        batch.count = batch.encoder.count
        return batch

    def append_whole(
        self, place: TopicPartition, records: Iterable[Unsent], most_bytes: int | None, now_ms: float, wall_ms: int
    ) -> list[RecordBatch]:
        """Queues records for one partition, in as few batches as possible. Raises as `append`, and
        queues nothing then.
        """
        self._check_can_send()
        batches = self._maker.whole(place, records, most_bytes or self.options.batch_bytes, now_ms, wall_ms)
        self._queue(batches)
        return batches

    def _queue(self, batches: Collection[RecordBatch]) -> None:
        self._queues.add(batches)
        for each in batches:
            self.transaction.add(each.place)

    def _check_can_send(self) -> None:
        if self._closed is not None:
            raise copy.copy(self._closed)
        self.transaction.check_can_send()

    def add_offsets(self, group: str, offsets: Mapping[TopicPartition, int], notes: Mapping[TopicPartition, str] | None = None) -> OffsetsCommit:
        """Commits offsets with the transaction, and their metadata. Raises IllegalOperation, or the
        fatal error.
        """
        return self.transaction.add_offsets(group, offsets, notes or {})

    def close(self, error: Exception) -> None:
        """Nothing is sent any more: what has not ended fails with `error`."""
        if self._closed is None:
            self._closed = error
            self._queues.fail_all(error)

    def unended(self) -> Iterator[RecordBatch]:
        """Returns the batches that have not ended."""
        return self._queues.unended()

    def take_ended(self) -> list[RecordBatch]:
        """Returns the batches that have ended since the last call."""
        ended, self._queues.ended = self._queues.ended, []
        return ended

    # What is to be sent

    def heard(self, leaders: LeaderOf) -> None:
        """Metadata was heard. `leaders` is asked again for each batch."""
        self._leaders = leaders

    def due(self, now_ms: float) -> DueToSend:
        """Returns what is to be sent now. Each order has to be ended."""
        if self._closed is not None:
            return DueToSend((), asks_metadata=False, again_ms=inf)
        transaction = self.transaction
        orders: list[SendOrder] = []
        for place in [each for each in transaction.waiting if self._leaders(each) is None and not self._queues.has(each)]:
            del transaction.waiting[place]  # it was only expected, and would hold up all others while its topic is gone
        order, again_ms = transaction.due(now_ms, is_flushed=self._queues.is_empty)
        if order is not None:
            orders.append(order)
        has_unled = False
        if not self._queues.is_empty and transaction.state not in _NO_ID:
            batches, batches_ms, has_unled = self._queues.due(now_ms, self._leaders, transaction.producer, transaction.waiting)
            orders += batches
            again_ms = min(again_ms, batches_ms)
            self._fail_transaction()
        wants = has_unled or self._has_moved or transaction.has_moved
        asks = wants and now_ms >= self._metadata_from_ms
        if asks:
            self._has_moved = transaction.has_moved = False
            self._metadata_from_ms = now_ms + METADATA_AGAIN_MS
        if wants:
            again_ms = min(again_ms, self._metadata_from_ms)
        return DueToSend(orders, asks, again_ms)

    # What has become of it

    def answered(self, order: SendOrder, answer: Any, now_ms: float) -> None:
        """The broker has answered, with a response of aiokafka."""
        if isinstance(order, ProduceBatches):
            self._has_moved |= self._queues.answered(order, answer, now_ms)
            self._fail_transaction()
        else:
            self.transaction.answered(order, answer, now_ms)
            self._fail_batches()

    def unanswered(self, order: SendOrder, error: Exception, now_ms: float) -> None:
        """The order had no answer, for this reason."""
        if isinstance(order, ProduceBatches):
            self._has_moved = True
            self._queues.unanswered(order, error, now_ms)
            self._fail_transaction()
        else:
            self.transaction.unanswered(order, error, now_ms)
            self._fail_batches()

    def fail(self, error: Exception) -> None:
        """Nothing can be sent any more."""
        self.transaction.fail(error)
        self._fail_batches()

    def _fail_transaction(self) -> None:
        """A transaction without one of its batches is not to be committed."""
        for each in self._queues.ended:
            if each.error is not None:
                self.transaction.abort_for(each.error)
                if not self._queues.has(each.place):
                    self.transaction.waiting.pop(each.place, None)
        self._fail_batches()

    def _fail_batches(self) -> None:
        if self.transaction.state is ProducerState.FATAL_ERROR and not self._queues.is_empty:
            self._queues.fail_all(self.transaction.error or errors.KafkaError())
