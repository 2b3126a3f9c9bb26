"""The producer: `ProducerCore` over a `Wire`, in an event loop."""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from aiokafka.errors import (
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    NodeNotReadyError,
    ProducerClosed,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)

from equipoise.kafka.bounded_waits import WireStopped
from equipoise.kafka.broker_wire import Wire
from equipoise.kafka.client import CLOSE_S, LATEST_S, LeaderEnd, SentBatch, SentHeaders, TopicPartition, Unsent, late, partition_of_key, within
from equipoise.kafka.consumer import group_offsets, leader_questions
from equipoise.kafka.consumer.requests import END
from equipoise.kafka.core_shell import CoreShell
from equipoise.kafka.group_coordinators import GroupCoordinators, ask_any
from equipoise.kafka.producer.core import ProducerCore
from equipoise.kafka.producer.record_batches import RecordBatch
from equipoise.kafka.producer.requests import request_of
from equipoise.kafka.producer.sending_orders import FindCoordinator, InitProducerId, ProduceBatches, ProducerOptions, SendOrder
from equipoise.kafka.producer.states import ENDING, ProducerState

_LOG = logging.getLogger(__name__)
_CLOSING: set[asyncio.Future[None]] = set()
"""Keeps tasks alive: a task without a reference may be collected before its end."""


class AppendedAt(NamedTuple):
    """Where a record was appended: `client.AppendedRecord`."""

    topic: str
    partition: int
    offset: int
    append_ms: int = -1
    """By the broker's clock; -1: the topic keeps its senders' times."""


class WireProducer(CoreShell):
    """`client.Producer`."""

    def __init__(self, wire: Wire, options: ProducerOptions) -> None:
        super().__init__(wire)
        self.core = ProducerCore(options)
        self._options = options
        self._partitions: dict[str, Collection[int]] = {}
        """Those of topics that were asked for, by the last metadata."""
        self._groups = GroupCoordinators(wire, apart=False)
        self._turn = 0
        """Rises with each record without a key."""

    # Beginning and end

    async def start(self, *, within_s: float | None = None) -> None:
        await self.connect(within_s)
        await self.begin()

    async def connect(self, within_s: float | None = None) -> None:
        await self._connect(within_s)
        self.core.transaction.connect()
        if self.core.transaction.is_transactional:
            await self._or_close(self._until("the coordinator of its transactions", lambda: self.core.transaction.has_coordinator))
        else:
            await self.begin()

    async def begin(self) -> None:
        if self.core.transaction.state is ProducerState.UNINITIALIZED:
            self.core.transaction.initialize()
            self._plan()
        await self._or_close(self._until("its producer id", lambda: self.core.transaction.state is not ProducerState.INITIALIZING))

    async def _or_close(self, starting: Coroutine[Any, Any, None]) -> None:
        try:
            await starting
        except BaseException:
            closing = asyncio.ensure_future(self.abandon())
            _CLOSING.add(closing)
            closing.add_done_callback(_CLOSING.discard)
            await asyncio.shield(closing)  # which goes on should this be called off once more
            raise

    async def stop(self, *, within_s: float = CLOSE_S) -> None:
        try:
            async with asyncio.timeout(within_s):
                await self.flush()
        except TimeoutError:
            pass
        finally:
            await self._close(within_s)

    async def abandon(self) -> None:
        await self._close(0.0)

    async def _close(self, within_s: float) -> None:
        was_closed, self._is_closed = self._is_closed, True
        self.core.close(ProducerClosed())
        self._settle()
        await self._disconnect(was_closed, within_s)

    # Records

    async def partitions_for(self, topic: str) -> Collection[int]:
        """Raises TopicAuthorizationFailedError, UnknownTopicOrPartitionError when the topic is not
        there for the request timeout, ProducerClosed.
        """
        known = self._partitions.get(topic)
        if known is None:
            known = self._partitions[topic] = await self._ask_partitions(topic)
        return known

    async def _ask_partitions(self, topic: str) -> Collection[int]:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self._options.timeout_ms / 1_000
        try:
            await self.wire.know((topic,))
        except WireStopped:
            raise ProducerClosed from None
        while (found := self.wire.partitions(topic)) is None:
            if self._is_closed:
                raise ProducerClosed
            if self.wire.is_hidden(topic):
                raise TopicAuthorizationFailedError(topic)
            if loop.time() >= until_s:
                raise UnknownTopicOrPartitionError(topic)
            await asyncio.sleep(self._options.retry_ms / 1_000)
            await asyncio.wait((self.wire.refresh(),), timeout=max(0.0, until_s - loop.time()))
        return found

    async def send(
        self, topic: str, value: bytes | None, *, key: bytes | None = None, partition: int | None = None, headers: SentHeaders | None = None
    ) -> asyncio.Future[Any]:
        """Waits while the last batch of the partition is full. Raises KafkaTimeoutError when none
        of it is sent for the request timeout, ValueError for a partition that does not exist.
        """
        numbers = self._partitions.get(topic) or await self.partitions_for(topic)
        if partition is None:
            partition = self._choose(key, len(numbers))
        elif partition not in numbers:
            raise ValueError(f"partition: topic {topic} has no partition {partition}, only 0 to {len(numbers) - 1}")
        place, until_s = TopicPartition(topic, partition), asyncio.get_running_loop().time() + self._options.timeout_ms / 1_000
        while True:
            batch = self.core.append(place, key, value, headers or [], self._now_ms, self.wire.wall_ms())
            self._plan()
            if batch is not None:
                return self._waiter(batch)
            if not await self._change(until_s - asyncio.get_running_loop().time()):
                late: Exception = KafkaTimeoutError()
                raise late

    def _choose(self, key: bytes | None, count: int) -> int:
        if key is not None:
            return partition_of_key(key, count)
        self._turn += 1
        return self._turn % count

    async def send_and_wait(
        self, topic: str, value: bytes | None, *, key: bytes | None = None, partition: int | None = None, headers: SentHeaders | None = None
    ) -> AppendedAt:
        sent = await self.send(topic, value, key=key, partition=partition, headers=headers)
        async with within(f"the acknowledgement of a record of topic {topic}"):
            appended: AppendedAt = await sent
        return appended

    def send_batches(self, partition: TopicPartition, records: Iterable[Unsent], most_bytes: int | None = None) -> list[SentBatch]:
        batches = self.core.append_whole(TopicPartition(*partition), records, most_bytes, self._now_ms, self.wire.wall_ms())
        self._plan()
        return [SentBatch(each.count, self._waiter(each), each.size_bytes) for each in batches]

    def _waiter(self, batch: RecordBatch) -> asyncio.Future[AppendedAt]:
        assert self._loop is not None
        waiter: asyncio.Future[AppendedAt] = self._loop.create_future()
        batch.waiters.append(waiter)
        return waiter

    def _settle(self) -> None:
        """Tells what has ended."""
        ended = self.core.take_ended()
        for batch in ended:
            (topic, partition), offset, error = batch.place, batch.offset, batch.error
            for number, waiter in enumerate(batch.waiters):
                if waiter.done():
                    continue
                if error is None:
                    waiter.set_result(AppendedAt(topic, partition, offset + number, batch.append_ms))
                else:
                    waiter.set_exception(copy.copy(error))
                    waiter.exception()  # retrieved, so that asyncio does not report it
        if ended:
            self._wake()

    async def flush(self) -> None:
        waiting = [batch.waiters[-1] for batch in self.core.unended()]
        if waiting:
            await asyncio.wait(waiting, timeout=LATEST_S)

    async def leader_ends(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, LeaderEnd]:
        within_s = self._options.timeout_ms / 1_000
        return await leader_questions.offsets(self.wire, dict.fromkeys(partitions, END), within_s, read_committed=True)

    # Offsets, and transactions

    async def commit_offsets(self, offsets: Mapping[TopicPartition, int], group: str) -> None:
        """Raises KafkaError."""
        await group_offsets.commit(self._groups, group, offsets)

    async def begin_transaction(self, expected: Collection[TopicPartition] = ()) -> None:
        """Raises IllegalOperation without a transactional id, IllegalStateError, KafkaError."""
        self.core.transaction.begin([TopicPartition(*each) for each in expected])
        self._plan()

    async def send_offsets_to_transaction(
        self, offsets: Mapping[TopicPartition, int], group: str, notes: Mapping[TopicPartition, str] | None = None
    ) -> None:
        """Raises IllegalOperation outside of a transaction, KafkaError."""
        commit = self.core.add_offsets(group, {TopicPartition(*place): offset for place, offset in offsets.items()}, notes)
        self._plan()
        await self._until(f"the offsets of group {group} in its transaction", lambda: commit.is_ended)
        if commit.error is not None:
            raise copy.copy(commit.error)

    async def commit_transaction(self) -> None:
        """Raises IllegalOperation, IllegalStateError, and why the transaction was not committed."""
        await self._end(commits=True)

    async def abort_transaction(self) -> None:
        """Not of the interface: hosts abandon a producer with a transaction that they do not want.
        Raises as `commit_transaction`.
        """
        await self._end(commits=False)

    async def _end(self, *, commits: bool) -> None:
        transaction = self.core.transaction
        transaction.end(commits=commits)
        self._plan()
        await self._until("the end of its transaction", lambda: transaction.state not in ENDING)
        if transaction.state is ProducerState.ABORTABLE_ERROR and transaction.error is not None:
            raise copy.copy(transaction.error)

    # Requests

    @property
    def _now_ms(self) -> float:
        """Raises ProducerClosed before the start."""
        if self._loop is None:
            raise ProducerClosed("the producer was not started")
        return self._loop.time() * 1_000

    def _heard(self) -> None:
        self._partitions.clear()
        if not self._is_closed:
            self.core.heard(self.wire.leader_of)
            self._plan()

    def _send_due(self) -> None:
        self._is_planned = False
        if self._is_closed:
            return
        state = self.core.transaction.state
        try:
            due = self.core.due(self._now_ms)
        except Exception as error:  # noqa: BLE001  # whoever waits would wait for ever
            self.core.fail(error)
            due = self.core.due(self._now_ms)
        self._settle()
        self._send(due)
        if due.orders or self.core.transaction.state is not state:
            self._wake()

    async def _carry_out(self, order: SendOrder) -> None:
        try:
            try:
                answer = await self._ask(order)
            except KafkaError as error:
                # In aiokafka's words, so that `aiokafka_log` knows them.
                if isinstance(order, ProduceBatches):
                    _LOG.warning("Got error produce response: %s", error)
                else:
                    _LOG.warning("Cannot send %r to %s: %r", type(order).__name__, getattr(order, "node", None), error)
                self.core.unanswered(order, error, self._now_ms)
            else:
                self.core.answered(order, answer, self._now_ms)
                if isinstance(order, ProduceBatches):
                    _log_repeated(order)
        except asyncio.CancelledError:
            if not self._is_closed:  # by the client library, as when a connection is closed
                self.core.unanswered(order, KafkaConnectionError("the request was cancelled"), self._now_ms)
                self._plan()
            raise
        except Exception as error:  # noqa: BLE001  # an error of this client: whoever waits would wait for ever
            self.core.fail(error)
        if not isinstance(order, ProduceBatches):
            self._wake()
        self._send_due()

    async def _ask(self, order: SendOrder) -> Any:
        request = request_of(order, self._options)
        if not isinstance(order, FindCoordinator | InitProducerId):
            return await self.wire.send(order.node, request)
        if isinstance(order, InitProducerId):
            return await (ask_any(self.wire, request) if order.node is None else self.wire.send(order.node, request))
        answer = await ask_any(self.wire, request)
        if not answer.error_code and not await self.wire.ready(answer.coordinator_id):
            raise NodeNotReadyError(f"coordinator {answer.coordinator_id}")
        return answer

    async def _until(self, what: str, holds: Callable[[], bool]) -> None:
        """Returns when `holds` does. Raises the fatal error, ProducerClosed, after LATEST_S
        KafkaTimeoutError, which names `what` was waited for.
        """
        transaction, now_s = self.core.transaction, asyncio.get_running_loop().time
        until_s = now_s() + LATEST_S
        while not self._is_closed:
            if transaction.state is ProducerState.FATAL_ERROR:
                raise copy.copy(transaction.error or KafkaError())
            if holds():
                return
            if not await self._change(until_s - now_s()):
                raise late(f"{what} (transactional id {self._options.transactional_id})", LATEST_S)
        raise ProducerClosed


def _log_repeated(order: ProduceBatches) -> None:
    for each in order.batches:
        if not each.is_ended and each.error is not None:
            _LOG.warning("Got error produce response on topic-partition %s, retrying. Error: %s", each.place, each.error)
