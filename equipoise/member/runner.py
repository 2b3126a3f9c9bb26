"""Runs one task under one grant, in the application's event loop: opens it, processes record by record, commits, and lets go.

Opening, with exactly_once: a producer with the transactional id ``group/task`` begins, which fences the former owner and ends what it had begun;
then the changelog is read to its end as it is now, committed records only; then the source is read from the group's committed offset. With
at_least_once there is nothing to fence, and the changelog says where the source goes on.

Each commit sends everything since the last one: outputs and changelog records, each with the fencing token, and the source's offset. Only what was
acknowledged goes to the store, which so is never ahead of its changelog.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import attrs

from equipoise.member.clients import TaskClients
from equipoise.member.context import SOURCES_KEY, State, TaskContext, pack_sources, read_sources
from equipoise.member.options import MemberOptions
from equipoise.member.stores import Change, StateStore
from equipoise.member.tokens import token_header
from events.log.kafka.clients import abandon_producer, call_off, stop_client
from events.tasks import TaskId

_LOG = logging.getLogger(__name__)
RETRY_S = 0.5

Handler = Callable[[Any, TaskContext], Awaitable[None] | None]
"""Gets each record (aiokafka's ConsumerRecord) and the task's context."""
Callback = Callable[[TaskContext], Awaitable[None] | None]


class Permit(Protocol):
    """What a runner asks of its member, from the application's thread."""

    def refusal(self, task: TaskId) -> str | None:
        """Why `task` may not be processed at this moment; None: it may."""

    async def take_stores(self, task: TaskId) -> Mapping[str, StateStore]:
        """Its stores, restored to the changelogs' end of now."""

    async def put_stores_back(self, task: TaskId) -> None:
        """It has stopped, or was never to have them."""

    def restored(self, task: TaskId) -> None:
        """It has its stores, and may process."""

    async def still_granted(self, task: TaskId, token: int) -> bool:
        """Whether, by a reading of the decisions that begins now, the grant holds."""

    def fenced(self, task: TaskId) -> None:
        """Kafka refused a write: somebody else has begun this task after us."""

    def stopped(self, task: TaskId) -> None:
        """Nothing is written any more: whoever waits for this task may begin."""

    def ended(self, task: TaskId, error: BaseException | None) -> None:
        """Nothing of this task is here any more. `error`: of the application's code."""


class _Refused(Exception):
    """The member may not process this task at this moment."""


class _Overtaken(Exception):
    """With at_least_once: somebody else has written to the changelog while this task ran here."""


@attrs.frozen
class _Written:
    """What a commit wrote to one changelog, from offset `first` up to before `end`."""

    changes: list[Change]
    first: int
    end: int


class TaskRunner:
    """One grant. `start` and `stop` are for the application's loop. `connected`: clients that were connected ahead."""

    def __init__(
        self,
        permit: Permit,
        group: str,
        task: TaskId,
        token: int,
        *,
        new_clients: Callable[[], TaskClients],
        connected: TaskClients | None,
        sources: tuple[str, ...],
        stateful: bool,
        options: MemberOptions,
        handler: Handler,
        on_assigned: Callback | None,
        on_revoked: Callback | None,
    ) -> None:
        self.task = task
        self.token = token
        self._permit = permit
        self._group = group
        self._new_clients = new_clients
        self._connected = connected
        self._sources = sources
        self._stateful = stateful
        self._options = options
        self._handler = handler
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._header = token_header(group, task, token)
        self._stopping = asyncio.Event()
        self._aborted = False
        self._letting_go = False
        """Nothing is processed any more, and nothing is there to abort."""
        self._job: asyncio.Task[None] | None = None
        self._producer: Any = None
        self._consumer: Any = None
        self._context: TaskContext | None = None
        self._positions: dict[Any, int] = {}
        """Source partition -> offset of the next record to process."""
        self._uncommitted = 0
        self._commit_at_s = 0.0
        self.processed = 0
        """Records that the handler was given so far. To be read from any thread."""
        self.busy_ns = 0
        """How long the handler has had them, what it waited for included. To be read from any thread."""

    @property
    def behind(self) -> int | None:
        """Records of its sources that are still to be processed, as far as the last fetches tell; None: that is not known. From any thread."""
        consumer, positions = self._consumer, dict(self._positions)
        if consumer is None or not positions or not consumer.assignment().issuperset(positions):
            return None
        ends = {tp: consumer.highwater(tp) for tp in positions}
        return None if None in ends.values() else sum(max(0, ends[tp] - position) for tp, position in positions.items())

    def start(self) -> None:
        self._job = asyncio.ensure_future(self._run())

    def stop(self, *, abort: bool) -> None:
        """Ends it: after the record at hand and a commit; with `abort` at once, and nothing more is written."""
        self._stopping.set()
        if abort and not self._aborted and not self._letting_go and self._job is not None:
            self._aborted = True
            self._job.cancel()

    # From the grant to its end

    async def _run(self) -> None:
        error: BaseException | None = None
        try:
            await self._live()
        except asyncio.CancelledError:
            self._aborted = True
        except Exception as raised:  # noqa: BLE001  # the application's code may raise anything; the member ends with it
            error, self._aborted = raised, True
        self._letting_go = True
        if self._aborted:
            await self._stop_writing()  # else the last commit has seen to it that nothing is under way
        if self._context is not None and self._on_revoked is not None:
            error = await self._tell_revoked(self._on_revoked, self._context) or error
        self._permit.stopped(self.task)  # what is left to do keeps nobody waiting
        try:
            await self._put_away()
        except Exception as raised:  # noqa: BLE001  # of a store; whatever it is, the member must hear that this task has ended
            error = error or raised
        self._permit.ended(self.task, error)

    async def _live(self) -> None:
        from aiokafka.errors import KafkaError, ProducerFenced

        while not self._stopping.is_set():
            try:
                await self._open()
                await self._process()
                return
            except _Refused as refused:
                _LOG.info("task %s: %s", self.task, refused)
                self._aborted = True
                return
            except (ProducerFenced, _Overtaken) as error:
                self._permit.fenced(self.task)
                _LOG.warning("task %s, token %d: another owner has begun: %r", self.task, self.token, error)
            except KafkaError as error:
                _LOG.warning("task %s begins anew: %r", self.task, error)
            self._aborted = True
            await self._stop_writing()
            await self._put_away()
            self._aborted = False
            await asyncio.sleep(RETRY_S)
            # Whoever begins anew fences whoever has begun meanwhile; so it must be sure that nobody has.
            if self._stopping.is_set() or not await self._permit.still_granted(self.task, self.token):
                return

    async def _open(self) -> None:
        from aiokafka import TopicPartition

        clients, self._connected = self._connected or self._new_clients(), None
        clients.connect()
        self._producer, self._consumer = clients.producer, clients.consumer
        await clients.begin()
        partitions = [TopicPartition(topic, self.task.partition) for topic in self._sources]
        committing = asyncio.ensure_future(asyncio.gather(*map(self._consumer.committed, partitions)))
        try:
            stores = await self._permit.take_stores(self.task) if self._stateful else {}
            committed = dict(zip(partitions, await committing, strict=True))
        finally:
            await call_off(committing)
        states = {topic: State(store) for topic, store in stores.items()}
        known = {} if self._options.transactional else read_sources(states)
        for tp in partitions:
            position = known.get((tp.topic, tp.partition), committed[tp])
            if position is None:
                place = self._consumer.beginning_offsets if self._options.auto_offset_reset == "earliest" else self._consumer.end_offsets
                position = (await place([tp]))[tp]
            self._consumer.seek(tp, position)
            self._positions[tp] = position
        self._consumer.resume(*partitions)
        self._permit.restored(self.task)
        self._may_go_on()
        begun, self._context = self._context is None, TaskContext(self.task, self.token, states)
        self._uncommitted, self._commit_at_s = 0, time.monotonic() + self._options.commit_interval_ms / 1_000
        if begun and self._on_assigned is not None:
            await _call(self._on_assigned, self._context)

    async def _process(self) -> None:
        while not self._stopping.is_set():
            for tp, records in (await self._next_batch()).items():
                for record in records:
                    if self._stopping.is_set() or not self._may_go_on():
                        break
                    given_ns = time.perf_counter_ns()
                    await _call(self._handler, record, self._context)
                    self.busy_ns += time.perf_counter_ns() - given_ns
                    self._positions[tp] = record.offset + 1
                    self.processed += 1
                    self._uncommitted += 1
                    if self._uncommitted >= self._options.most_uncommitted_records or time.monotonic() >= self._commit_at_s:
                        await self._commit()
            if time.monotonic() >= self._commit_at_s:
                await self._commit()
            if not self._may_go_on():
                break
        await self._commit()

    async def _next_batch(self) -> dict[Any, list[Any]]:
        wait_s = max(0.0, self._commit_at_s - time.monotonic()) if self._uncommitted else 1.0
        reading = asyncio.ensure_future(self._consumer.getmany(timeout_ms=int(wait_s * 1_000), max_records=self._options.most_uncommitted_records))
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((reading, stopping), return_when=asyncio.FIRST_COMPLETED)
            batch: dict[Any, list[Any]] = await reading if reading.done() else {}
            return batch
        finally:
            for each in (reading, stopping):
                each.cancel()
            await asyncio.gather(reading, stopping, return_exceptions=True)

    def _may_go_on(self) -> bool:
        """To be asked before each record, and before each commit. False: the task is to be closed, in order. Raises _Refused."""
        refusal = self._permit.refusal(self.task)
        if refusal is not None and refusal != "closing":
            raise _Refused(refusal)
        return refusal is None

    # Committing

    async def _commit(self) -> None:
        if self._uncommitted:
            self._may_go_on()  # what it is to close it still commits
            await (self._commit_transaction() if self._options.transactional else self._commit_plainly())
            self._uncommitted = 0
        # From its end: where commits take longer than the interval, each would otherwise hold a single record.
        self._commit_at_s = time.monotonic() + self._options.commit_interval_ms / 1_000

    async def _commit_transaction(self) -> None:
        await self._producer.begin_transaction()
        outputs = await self._send_outputs()
        written = await self._send_changes({})
        await asyncio.gather(*outputs)
        await self._producer.send_offsets_to_transaction(dict(self._positions), self._group)
        await self._producer.commit_transaction()
        self._to_stores(written)

    async def _commit_plainly(self) -> None:
        assert self._context is not None, "a task that processes was opened"
        sources = pack_sources({(tp.topic, tp.partition): offset for tp, offset in self._positions.items()})
        # The state may be ahead of no output: once the changelog says how far the source was read, nobody processes that again.
        await asyncio.gather(*await self._send_outputs())
        written = await self._send_changes(dict.fromkeys(self._context.states, (SOURCES_KEY, sources)))
        for topic, each in written.items():
            position = self._context.states[topic].store.position
            if each.first != position or each.end != position + len(each.changes):
                raise _Overtaken(f"{topic}/{self.task.partition} at {position}: wrote {len(each.changes)} records to {each.first}..{each.end - 1}")
        self._to_stores(written)
        await self._consumer.commit(dict(self._positions))

    async def _send_outputs(self) -> list[asyncio.Future[Any]]:
        """Each done when it is acknowledged."""
        context = self._context
        assert context is not None, "a task that processes was opened"
        return [await self._send_one(each.topic, each.value, each.key, each.partition, each.headers) for each in context.outputs]

    async def _send_changes(self, last: dict[str, Change]) -> dict[str, _Written]:
        """Changelog records, and `last` in each changelog. Returns when all are acknowledged, with what changelogs got."""
        context = self._context
        assert context is not None, "a task that processes was opened"
        logged: dict[str, tuple[list[Change], list[asyncio.Future[Any]]]] = {}
        for topic, state in context.states.items():
            changes = state.written() + ([last[topic]] if topic in last else [])
            if changes:
                logged[topic] = changes, [await self._send_one(topic, value, key, self.task.partition, ()) for key, value in changes]
        await asyncio.gather(*(future for _, futures in logged.values() for future in futures))
        return {topic: _Written(changes, futures[0].result().offset, futures[-1].result().offset + 1) for topic, (changes, futures) in logged.items()}

    async def _send_one(
        self, topic: str, value: bytes | None, key: bytes | None, partition: int | None, headers: tuple[tuple[str, bytes], ...]
    ) -> asyncio.Future[Any]:
        future: asyncio.Future[Any]
        future = await self._producer.send(topic, value, key=key, partition=partition, headers=[*headers, self._header])
        future.add_done_callback(_heard)
        return future

    def _to_stores(self, written: Mapping[str, _Written]) -> None:
        context = self._context
        assert context is not None, "a task that processes was opened"
        for topic, each in written.items():
            state = context.states[topic]
            state.store.apply(each.changes, position=each.end, token=self.token)
            state.committed()
        context.outputs.clear()

    # Letting go

    async def _stop_writing(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            await (abandon_producer(producer) if self._aborted else stop_client(producer))

    async def _put_away(self) -> None:
        consumer, self._consumer = self._consumer, None
        if self._stateful:
            await self._permit.put_stores_back(self.task)
        await self._stop_writing()
        if consumer is not None:
            await stop_client(consumer)
        if self._connected is not None:  # it was to stop before it had begun
            await self._connected.close()

    async def _tell_revoked(self, on_revoked: Callback, context: TaskContext) -> BaseException | None:
        try:
            await _call(on_revoked, context)
        except Exception as error:  # noqa: BLE001  # the application's code may raise anything
            return error
        return None


async def _call(function: Callable[..., Awaitable[None] | None], *arguments: Any) -> None:
    result = function(*arguments)
    if inspect.isawaitable(result):
        await result


def _heard(sent: asyncio.Future[Any]) -> None:
    """One of many sends may fail before anybody waits for the others."""
    if not sent.cancelled():
        sent.exception()
