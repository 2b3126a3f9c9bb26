"""The batches of a producer, by partition: which are to be sent now, with their sequence numbers,
and what the answers make of them.

One batch of a partition is under way at a time, and one request to a broker, beside one that names
topics by their ids: so records stay in order whatever is sent again. A broker that gets a batch
again knows it by its sequence numbers, so a batch is sent until it is answered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from math import inf
from typing import Any

import attrs
from aiokafka import errors

from equipoise.kafka.client import TopicPartition, not_sent_behind
from equipoise.kafka.producer.errors import REFUSED, error_of
from equipoise.kafka.producer.record_batches import RecordBatch
from equipoise.kafka.producer.sending_orders import ProduceBatches, ProducerId

SEQUENCES = 2**31
"""Sequence numbers are below it, and begin again at 0."""
LeaderOf = Callable[[TopicPartition], tuple[int, int] | None]
"""Broker and epoch that lead a partition; None: none is known."""


@attrs.define(eq=False, slots=True)
class _WrittenBroker:
    is_asked: bool = False
    from_ms: float = 0.0


class BatchQueues:
    """`timeout_ms`: how long a batch waits for a leader. `retry_ms`: before it is sent again.
    `topic_ids`: of topics that are known by them.
    """

    def __init__(self, timeout_ms: float, retry_ms: float, topic_ids: Mapping[str, bytes]) -> None:
        self._timeout_ms, self._retry_ms, self._topic_ids = timeout_ms, retry_ms, topic_ids
        self._names: dict[bytes | str, str] = {each: topic for topic, each in topic_ids.items()}
        self._queues: dict[TopicPartition, deque[RecordBatch]] = {}
        """Batches that are not under way. Those before the last one take no more records."""
        self._flying: dict[TopicPartition, RecordBatch] = {}
        self._sequences: dict[TopicPartition, int] = {}
        self._resting: dict[TopicPartition, float] = {}
        """Partition -> time until which it rests after an error."""
        self._nodes: dict[tuple[int, bool], _WrittenBroker] = {}
        self.ended: list[RecordBatch] = []
        """Those that have ended since the host looked last."""

    @property
    def is_empty(self) -> bool:
        """Returns whether every batch has ended."""
        return not self._queues and not self._flying

    def unended(self) -> Iterator[RecordBatch]:
        """Returns the batches that have not ended."""
        yield from self._flying.values()
        for queue in self._queues.values():
            yield from queue

    def add(self, batches: Iterable[RecordBatch]) -> None:
        """Queues batches behind those of their partitions."""
        for each in batches:
            self._queues.setdefault(each.place, deque()).append(each)

    def last(self, place: TopicPartition) -> RecordBatch | None:
        """Returns the last batch of a partition that was not sent yet; None: there is none."""
        queue = self._queues.get(place)
        return queue[-1] if queue and queue[-1].sequence < 0 else None

    def has(self, place: TopicPartition) -> bool:
        """Returns whether a batch of this partition is queued."""
        return place in self._queues

    # What is to be sent

    def due(
        self, now_ms: float, leaders: LeaderOf, producer: ProducerId, waiting: Collection[TopicPartition]
    ) -> tuple[list[ProduceBatches], float, bool]:
        """Returns what is to be sent now, when to look again, and whether a leader is unknown.
        `waiting`: partitions that are not in the transaction yet.
        """
        by_node: dict[tuple[int, bool], list[RecordBatch]] = {}
        again_ms, has_unled = inf, False
        for place in list(self._queues):
            if place in self._flying:
                continue
            if place in waiting:
                if leaders(place) is None:  # its topic may be gone: coordinators refuse that for ever
                    again_ms = min(again_ms, self._expire(place, now_ms))
                continue
            rests_ms = self._resting.get(place)
            if rests_ms is not None and rests_ms > now_ms:
                again_ms = min(again_ms, rests_ms)
                continue
            leader = leaders(place)
            if leader is None:
                has_unled = True
                again_ms = min(again_ms, self._expire(place, now_ms))
                continue
            asked = leader[0], place[0] in self._topic_ids
            node = self._nodes.get(asked)
            if node is None:
                node = self._nodes[asked] = _WrittenBroker()
            if node.is_asked:
                continue
            if node.from_ms > now_ms:
                again_ms = min(again_ms, node.from_ms)
                continue
            self._resting.pop(place, None)
            by_node.setdefault(asked, []).append(self._take(place, producer))
        orders = []
        for asked, batches in by_node.items():
            self._nodes[asked].is_asked = True
            orders.append(ProduceBatches(asked[0], batches, by_id=asked[1]))
        return orders, again_ms, has_unled

    def _take(self, place: TopicPartition, producer: ProducerId) -> RecordBatch:
        batch = self._popped(place)
        if batch.sequence < 0:
            sequence = self._sequences.get(place, 0)
            batch.encode(*producer, sequence)
            self._sequences[place] = (sequence + batch.count) % SEQUENCES
        self._flying[place] = batch
        return batch

    def _popped(self, place: TopicPartition) -> RecordBatch:
        queue = self._queues[place]
        batch = queue.popleft()
        if not queue:
            del self._queues[place]
        return batch

    def _expire(self, place: TopicPartition, now_ms: float) -> float:
        """Fails the first batch when no broker has led its partition for too long. Returns when the
        first one fails then; `inf`: there is none.
        """
        while (queue := self._queues.get(place)) and queue[0].created_ms + self._timeout_ms <= now_ms:
            self._fail(self._popped(place), errors.LeaderNotAvailableError(f"{place[0]}/{place[1]} has no leader"))
        return queue[0].created_ms + self._timeout_ms if queue else inf

    # What has become of it

    def answered(self, order: ProduceBatches, answer: Any, now_ms: float) -> bool:
        """The broker has answered, with a response of aiokafka. Returns whether a leader may have
        moved.
        """
        node = self._nodes[order.node, order.by_id]
        node.is_asked, node.from_ms = False, now_ms + answer.throttle_time_ms
        found = {
            (self._names.get(topic, topic), fields[0]): (fields[1], fields[2], fields[3])
            for topic, partitions, *_ in answer.topics
            for fields in partitions
        }
        has_moved = False
        for batch in order.batches:
            if self._flying.get(batch.place) is not batch:
                continue  # failed meanwhile
            del self._flying[batch.place]
            code, offset, batch.append_ms = found.get(batch.place, (errors.UnknownError.errno, -1, -1))
            kind = errors.for_code(code)
            if not code or kind is errors.DuplicateSequenceNumber:  # appended before, and the broker has forgotten where
                self._end(batch, offset)
            elif kind.retriable:
                has_moved |= kind.invalid_metadata
                self._again(batch, kind(), now_ms)
            else:
                self._fail(batch, error_of(code, batch.place[0] if kind is errors.TopicAuthorizationFailedError else None))
        return has_moved

    def unanswered(self, order: ProduceBatches, error: Exception, now_ms: float) -> None:
        """The order had no answer: the batches are sent again, unless `error` does not pass."""
        node = self._nodes[order.node, order.by_id]
        node.is_asked, node.from_ms = False, now_ms + self._retry_ms
        for batch in order.batches:
            if self._flying.get(batch.place) is batch:
                del self._flying[batch.place]
                if getattr(error, "retriable", False):
                    self._again(batch, error, now_ms)
                else:
                    self._fail(batch, error)

    def fail_all(self, error: Exception) -> None:
        """Nothing can be sent any more."""
        batches = list(self.unended())
        self._queues.clear()
        self._flying.clear()
        for each in batches:
            self._end(each, -1, error)

    def _again(self, batch: RecordBatch, error: Exception, now_ms: float) -> None:
        batch.error = error
        self._queues.setdefault(batch.place, deque()).appendleft(batch)
        self._resting[batch.place] = now_ms + self._retry_ms

    def _fail(self, batch: RecordBatch, error: Exception) -> None:
        """The next batch takes the sequence numbers of one that was refused for good. But not one
        of the same call, which would be appended without what was before it.
        """
        if isinstance(error, REFUSED) and batch.sequence >= 0:
            self._sequences[batch.place] = batch.sequence
        self._end(batch, -1, error)
        behind = batch.behind
        while behind is not None:
            queue = self._queues.get(batch.place)
            if queue is not None and behind in queue:
                queue.remove(behind)
                if not queue:
                    del self._queues[batch.place]
                self._end(behind, -1, not_sent_behind(error))
            behind = behind.behind

    def _end(self, batch: RecordBatch, offset: int, error: Exception | None = None) -> None:
        batch.is_ended, batch.offset, batch.error = True, offset, error
        self.ended.append(batch)
