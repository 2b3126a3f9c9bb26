"""Opens a task under one grant (docs/protocol.md#m6): the changelogs are restored to their ends, a
fence is written to each, and they are restored up to it. Then the sources are read from the
offsets in the changelogs.

With exactly_once, transactions that a former owner may have left open are ended before the fences
are written. Where the former owner has given the task back, the fences are part of the first
commit. A task without changelogs has a producer with the transactional id ``group/task``,
which fences its former owner.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from itertools import chain, count
from typing import Any, TypeVar

from equipoise.events.fields import INT64_MAX
from equipoise.events.tasks import TaskId
from equipoise.kafka.client import Producer, SentBatch, TopicPartition, call_off, within
from equipoise.member.copies.fencing import FENCE_KEY, FencedStore, Owners, claim, fence_value
from equipoise.member.copies.origin import Origin
from equipoise.member.options import MemberOptions
from equipoise.member.tasks.clients import TaskClients
from equipoise.member.tasks.context import State, TaskContext
from equipoise.member.tasks.drops import DropReason
from equipoise.member.tasks.failures import Failures
from equipoise.member.tasks.open_task import OpenTask
from equipoise.member.tasks.placing import SourcePlacing
from equipoise.member.tasks.processing import Processing, Processor
from equipoise.member.tasks.refusals import TaskRefusals
from equipoise.member.tasks.runner_protocol import NOT_ADOPTED, OvertakenError, Permit, RefusedError
from equipoise.member.tasks.source_order import SourceOrder
from equipoise.member.tasks.sources import TaskSources, TopicReplacedError
from equipoise.member.tasks.timers import IntervalTimers
from equipoise.member.tasks.transactions import TransactionPart
from equipoise.member.tasks.writer import TaskWriter

T = TypeVar("T")
_LOG = logging.getLogger(__name__)
GIVEN_BACK_S = 0.05
"""For so long the last transaction of an owner that has closed a task may not be visible yet."""


class TaskOpening:
    """Opens a task, again after each failure. `origin`: of the grant, with epoch 0. `stopping`: the
    task is to stop. `clock`: seconds, rising.
    """

    def __init__(
        self,
        permit: Permit,
        group: str,
        task: TaskId,
        origin: Origin,
        *,
        stateful: bool,
        options: MemberOptions,
        processor: Processor,
        timers: IntervalTimers,
        stopping: asyncio.Event,
        refusals: TaskRefusals,
        failures: Failures,
        clock: Callable[[], float],
    ) -> None:
        self._permit = permit
        self._group = group
        self._task = task
        self._origin = origin
        self._stateful = stateful
        self._options = options
        self._processor = processor
        self._timers = timers
        self._stopping = stopping
        self._refusals, self._failures = refusals, failures
        self.order = SourceOrder(processor.inputs, options.max_idle_ms / 1_000, clock) if processor.inputs[1:] else None
        """Of several sources; None: there is one."""
        self._stops: asyncio.Future[Any]
        """Ends when the task is to stop, while it opens."""
        self._former: set[str] = set()
        """Transactional ids of former owners whose transactions were ended."""
        self._reading: TaskSources | None = None
        """Those of the last time it was opened."""
        self._said_to_end: dict[TopicPartition, int] = {}
        """Source partition -> end before the task's offset that was logged."""
        self._fences_later = options.transactional
        """Whether the fences may be part of the first commit."""

    async def open(self, clients: TaskClients, writer: TaskWriter, *, was_out_of_range: bool) -> OpenTask:
        """Returns when the task may process. `was_out_of_range`: a broker had no records at a
        source offset when it was open before. Raises RefusedError, OvertakenError,
        TopicReplacedError, KafkaError.
        """
        self._stops = asyncio.ensure_future(self._stopping.wait())
        try:
            return await self._open(clients, writer, was_out_of_range=was_out_of_range)
        finally:
            self._stops.cancel()

    async def _open(self, clients: TaskClients, writer: TaskWriter, *, was_out_of_range: bool) -> OpenTask:
        options, reading = self._options, clients.sources
        topics = [*self._processor.sources, *(self._processor.state if self._stateful else ())]
        asking = asyncio.ensure_future(reading.reader.topic_ids(topics, reading.partitions[0]))
        try:
            stores, fence = await self._take_stores(clients, writer) if self._stateful else ({}, None)
            topic_ids = await self._unless_stopping("placed", asking)
        finally:
            await call_off(asking)
        for topic, each in stores.items():
            if each.copied is not None and each.copied.topic_id not in ("", topic_ids.get(topic, each.copied.topic_id)):
                raise TopicReplacedError(f"changelog {topic} was deleted and made again")
        keys, values = options.key_serde, options.value_serde
        states = {
            topic: State(
                each.store,
                options.state_key_serde or keys,
                options.state_serde or values,
                topic=topic,
                sizes=clients.sizes,
                headers=list(writer.origins[topic].headers),
            )
            for topic, each in stores.items()
        }
        placing = SourcePlacing(
            self._group,
            self._task,
            self._origin,
            options,
            processor=self._processor.name,
            is_shared=clients.shares_sources,
            topic_ids=topic_ids,
        )
        stale = {key for each in stores.values() for key in each.fence.stale_keys}
        finding = placing.continue_in(clients, states, stale) if states else placing.take(clients, writer)
        offsets = await self._unless_stopping("placed", finding)
        epochs = placing.epochs | ({} if self._reading is None else self._reading.epochs_at(offsets, topic_ids))
        if was_out_of_range:
            offsets = {tp: await self._not_deleted(reading, tp, offset, epochs) for tp, offset in offsets.items()}
        preparing = self._permit.prepare(self._task)
        if preparing is not None:
            await self._unless_stopping("prepared", preparing)
        reading.place(offsets, topic_ids, epochs, self.order)
        self._reading = reading
        context = TaskContext(self._task, self._origin.token, states, self._timers, keys, values, writer.headers, clients.sizes)
        context.look_up_latest = partial(self._latest_ms, clients)
        processing = Processing(
            self._processor,
            context,
            self._timers,
            group=self._group,
            policy=options.on_error,
            key_serde=keys,
            value_serde=values,
            refused=self._refusals.records,
            failures=self._failures,
        )
        task = OpenTask(
            self._task,
            transactional=options.transactional,
            clients=clients,
            writer=writer,
            stores=stores,
            context=context,
            processing=processing,
            offsets=offsets,
            placing=placing,
            fence=fence,
        )
        if placing.is_incomplete:
            await task.write(task.begin_commit({}, []), lambda error: None)
        return task

    def _latest_ms(self, clients: TaskClients) -> int:
        now_ms = clients.clock.now_ms()
        return INT64_MAX if now_ms is None else now_ms + self._options.max_ahead_ms

    async def _not_deleted(self, reading: TaskSources, tp: TopicPartition, offset: int, epochs: dict[TopicPartition, int]) -> int:
        """Where to read on, if retention has deleted the record at `offset`, or an unclean
        election has lost what was before it: where the leader epoch in `epochs` ends now. The epoch
        is then removed there. When the partition ends before `offset` and no epoch is known, the
        broker leads no longer or lags behind, or records are lost; the task reads from `offset`
        again. Raises KafkaError.
        """
        consumer = reading.reader.consumer
        begin = (await consumer.beginning_offsets([tp]))[tp]
        if begin > offset:
            epochs.pop(tp, None)
            self._failures.drops.note(self._processor.label(self._task.subtopology), tp.topic, DropReason.EXPIRED, begin - offset)
            _LOG.error("task %s: records %d to %d of %s/%d were deleted before they were processed", self._task, offset, begin - 1, *tp)
            return begin
        if tp in epochs:
            end = (await consumer.epoch_ends({tp: epochs[tp]}) or {tp: offset})[tp]
            if 0 <= end < offset:
                del epochs[tp]
                _LOG.error(
                    "task %s: brokers have lost records %d to %d of %s/%d, which were processed: reading on at offset %d",
                    self._task,
                    end,
                    offset - 1,
                    *tp,
                    end,
                )
                return end
        end = (await consumer.end_offsets([tp]))[tp]
        if end < offset and self._said_to_end.get(tp) != end:
            self._said_to_end[tp] = end
            _LOG.warning(
                "task %s: %s/%d ends at offset %d, and the task is at offset %d: it processes nothing of it until it is as long. If that stays so, "
                "brokers have lost records",
                self._task,
                *tp,
                end,
                offset,
            )
        return offset

    async def _unless_stopping(self, what: str, waiting: Awaitable[T]) -> T:
        """Waits for what may take minutes. Raises RefusedError when the task stops first."""
        awaited = asyncio.ensure_future(waiting)
        try:
            await asyncio.wait((awaited, self._stops), return_when=asyncio.FIRST_COMPLETED)
            if awaited.done():
                return awaited.result()
            raise RefusedError(f"closed before it was {what}")
        finally:
            await call_off(awaited)

    async def _take_stores(self, clients: TaskClients, writer: TaskWriter) -> tuple[Mapping[str, FencedStore], bytes | None]:
        """Restores the changelogs and makes this grant their owner: later records of former owners
        do not count. Returns also the fence that the first commit has to write; None: it is
        written.
        """
        own = "" if clients.transactions is None else clients.transactions.id
        fence = fence_value(own or None)
        for looks in count():
            owners, stores = await self._unless_stopping("restored", self._permit.restore(self._task, self._are_given_back))
            for topic, owner in owners.items():
                if owner is not None and owner.outranks(self._origin):
                    raise OvertakenError(f"{topic}/{self._task.partition} belongs to token {owner.origin.token}")
            left_open = {owner.transactional_id for owner in owners.values() if owner is not None} - self._former - {"", own}
            if not left_open:
                break
            if not looks:  # a task that was just given back shows that a moment later
                await asyncio.sleep(GIVEN_BACK_S)
                continue
            for transactional_id in sorted(left_open):
                await clients.end_transactions(transactional_id)
            self._former |= left_open  # the owner after them may have been behind their transactions
        writer.origins = {topic: claim(owner, self._origin) for topic, owner in owners.items()}
        refusal, _ = self._permit.permit(self._task)
        if refusal not in (None, "closing", "restoring", NOT_ADOPTED):
            raise RefusedError(refusal)
        self._fences_later = False  # not again, if another process has written
        if stores is not None:
            return stores, fence
        goals = await self._send_fences(clients, writer, fence)
        stores = await self._unless_stopping("restored", self._permit.take_stores(self._task, goals))
        for topic, each in stores.items():
            if each.fence.owner is None or each.fence.owner.origin != writer.origins[topic]:
                raise OvertakenError(f"{topic}/{self._task.partition} belongs to {each.fence.owner}")
        return stores, None

    def _are_given_back(self, owners: Owners) -> bool:
        """Returns whether the fences may be part of the first commit."""
        if not self._fences_later:
            return False
        return all(owner is not None and owner.has_given_back and not owner.outranks(self._origin) for owner in owners.values())

    async def _send_fences(self, clients: TaskClients, writer: TaskWriter, fence: bytes) -> dict[str, int]:
        """Writes the fence to each changelog. Returns changelog topic -> offset behind it (and the
        end of its transaction), when all are acknowledged.
        """
        fences: dict[str, dict[bytes, bytes | None]] = {topic: {FENCE_KEY: fence} for topic in writer.origins}
        if clients.transactions is None:
            written = await writer.append_changes(fences, is_own=True)
        else:
            queued: dict[str, list[SentBatch]] = {}

            def queue(part: TransactionPart, producer: Producer) -> Sequence[SentBatch]:
                writer.use(producer)
                part.changes = {}
                queued.update(writer.queue_changes(fences, is_own=True))
                return list(chain.from_iterable(queued.values()))

            part = TransactionPart(self._task, len(fences), queue_changes=queue, changes=dict(fences))
            clients.transactions.add(part)
            async with within(f"the fences of task {self._task}"):
                await part.committed
            written = writer.written(queued)
        return {topic: each.behind(transactional=self._options.transactional) for topic, each in written.items()}
