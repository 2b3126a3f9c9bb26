"""Runs one task under one grant, in the application's event loop: opens it, processes record by
record, commits, and lets go.

Opening (docs/protocol.md#m6): with exactly_once a producer with the transactional id ``group/task``
begins, which fences a former owner with that guarantee. The changelogs are restored to their ends.
Unless Kafka fences the former owner, a fence is written to each changelog, and they are restored up
to it. Then the sources are read from where the changelogs say.

Each commit sends everything since the last one: outputs, changelog records, how far the sources
were read, each with its origin, and the sources' offsets. Only what was acknowledged goes to the
store, which so is never ahead of its changelog.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import attrs

from equipoise.events.log.kafka.clients import abandon_producer, call_off, stop_client
from equipoise.events.tasks import TaskId
from equipoise.member.clients import TaskClients
from equipoise.member.context import State, TaskContext, pack_sources, read_sources
from equipoise.member.fencing import EXACTLY_ONCE, FENCE_KEY, SOURCES_KEY, ChangelogOwner, FencedStore, claim
from equipoise.member.options import MemberOptions
from equipoise.member.origin import Headers, Origin
from equipoise.member.stores import Change

_LOG = logging.getLogger(__name__)
RETRY_S = 0.5

Handler = Callable[[Any, TaskContext], Awaitable[None] | None]
"""Gets each record (aiokafka's ConsumerRecord) and the task's context."""
Callback = Callable[[TaskContext], Awaitable[None] | None]


class Permit(Protocol):
    """What a runner asks of its member, from the application's thread."""

    def refusal(self, task: TaskId) -> str | None:
        """Why `task` may not be processed at this moment; None: it may."""

    async def restore(self, task: TaskId) -> Mapping[str, ChangelogOwner | None]:
        """Restores its stores to the changelogs' ends of now. Returns the owner of each changelog
        there.
        """

    async def take_stores(self, task: TaskId, goals: Mapping[str, int]) -> Mapping[str, FencedStore]:
        """Its stores, restored at least up to `goals`: changelog topic -> offset of the record to
        apply next.
        """

    async def put_stores_back(self, task: TaskId) -> None:
        """It has stopped, or was never to have them."""

    async def prepare(self, task: TaskId) -> None:
        """Returns when the application has prepared it, if it does that."""

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
    """Somebody else has written to a changelog while this task ran here, or has fenced it."""


@attrs.frozen
class _WrittenChanges:
    """What a commit wrote to one changelog, from offset `first` up to before `end`."""

    changes: list[Change]
    headers: Headers
    first: int
    end: int


class TaskRunner:
    """One grant. `start` and `stop` are for the application's loop. `connected`: clients that were
    connected ahead.
    """

    def __init__(
        self,
        permit: Permit,
        log_id: str,
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
        self._origin = Origin(0, log_id, group, str(task), token)
        self._output_headers = self._origin.headers()
        self._origins: dict[str, Origin] = {}
        """Changelog topic -> the origin of what this task writes to it."""
        self._headers: dict[str, Headers] = {}
        """The same, as headers."""
        self._fence_is_due = False
        """The first transaction is to write the fences."""
        self._stores: Mapping[str, FencedStore] = {}
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
        """How long the handler has had them, what it waited for included. To be read from any
        thread.
        """

    @property
    def behind(self) -> int | None:
        """Records of its sources that are still to be processed, as far as the last fetches tell;
        None: that is not known. From any thread.
        """
        consumer, positions = self._consumer, dict(self._positions)
        if consumer is None or not positions or not consumer.assignment().issuperset(positions):
            return None
        ends = {tp: consumer.highwater(tp) for tp in positions}
        return None if None in ends.values() else sum(max(0, ends[tp] - position) for tp, position in positions.items())

    def start(self) -> None:
        self._job = asyncio.ensure_future(self._run())

    def stop(self, *, abort: bool) -> None:
        """ChangelogEnds it: after the record at hand and a commit; with `abort` at once, and nothing more is
        written.
        """
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
            # Whoever begins anew fences whoever has begun meanwhile; so it must be sure that nobody
            # has.
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
            self._stores = await self._take_stores(clients) if self._stateful else {}
            committed = dict(zip(partitions, await committing, strict=True))
        finally:
            await call_off(committing)
        states = {topic: State(each.store) for topic, each in self._stores.items()}
        known = read_sources(states)
        for tp in partitions:
            position = known.get((tp.topic, tp.partition), committed[tp])
            if position is None:
                place = self._consumer.beginning_offsets if self._options.auto_offset_reset == "earliest" else self._consumer.end_offsets
                position = (await place([tp]))[tp]
            self._consumer.seek(tp, position)
            self._positions[tp] = position
        await self._prepare()
        self._consumer.resume(*partitions)
        self._permit.restored(self.task)
        self._may_go_on()
        begun, self._context = self._context is None, TaskContext(self.task, self.token, states)
        self._uncommitted, self._commit_at_s = 0, time.monotonic() + self._options.commit_interval_ms / 1_000
        for topic, each in self._stores.items():
            stale = each.stale_changes()
            states[topic].write_again(stale)
            self._uncommitted += len(stale)
        if begun and self._on_assigned is not None:
            await _call(self._on_assigned, self._context)

    async def _prepare(self) -> None:
        """What nobody prepared before the grant. It may take minutes, and ends when the task is to
        stop. Raises _Refused.
        """
        preparing = asyncio.ensure_future(self._permit.prepare(self.task))
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((preparing, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not preparing.done():
                raise _Refused("closed before it was prepared")
            await preparing
        finally:
            for each in (preparing, stopping):
                each.cancel()
            await asyncio.gather(preparing, stopping, return_exceptions=True)

    async def _take_stores(self, clients: TaskClients) -> Mapping[str, FencedStore]:
        """Restores the changelogs and makes this grant their owner, so that nothing that a former
        owner still sends counts.
        """
        owners = await self._permit.restore(self.task)
        for topic, owner in owners.items():
            if owner is not None and owner.outranks(self._origin):
                raise _Overtaken(f"{topic}/{self.task.partition} belongs to token {owner.origin.token}")
        self._origins = {topic: claim(owner, self._origin) for topic, owner in owners.items()}
        self._headers = {topic: origin.headers() for topic, origin in self._origins.items()}
        self._fence_is_due = self._options.transactional and all(
            owner is not None and owner.is_fenced_by_kafka(clients.transactional_id) for owner in owners.values()
        )
        if self._fence_is_due:
            return await self._permit.take_stores(self.task, {})
        own = {clients.transactional_id} if self._options.transactional else set()
        former = {each.origin.transactional_id for each in owners.values() if each is not None and each.guarantee == EXACTLY_ONCE}
        for transactional_id in sorted(former - own):
            await clients.end_transactions(transactional_id)
        refusal = self._permit.refusal(self.task)
        if refusal not in (None, "closing", "restoring"):
            raise _Refused(refusal)
        stores = await self._permit.take_stores(self.task, await self._send_fences())
        for topic, each in stores.items():
            if each.fence.owner is None or each.fence.owner.origin != self._origins[topic]:
                raise _Overtaken(f"{topic}/{self.task.partition} belongs to {each.fence.owner}")
        return stores

    async def _send_fences(self) -> dict[str, int]:
        """Changelog topic -> offset behind the fence, for each, when all are acknowledged."""
        if self._options.transactional:
            await self._producer.begin_transaction()
        guarantee = self._options.guarantee.encode()
        sent = {topic: await self._send_change(topic, FENCE_KEY, guarantee) for topic in self._origins}
        await asyncio.gather(*sent.values())
        if self._options.transactional:
            await self._producer.commit_transaction()
        return {topic: future.result().offset + 1 for topic, future in sent.items()}

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
        """To be asked before each record, and before each commit. False: the task is to be closed,
        in order. Raises _Refused.
        """
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
        # From its end: where commits take longer than the interval, each would otherwise hold a
        # single record.
        self._commit_at_s = time.monotonic() + self._options.commit_interval_ms / 1_000

    async def _commit_transaction(self) -> None:
        await self._producer.begin_transaction()
        outputs = await self._send_outputs()
        written = await self._send_changes()
        await asyncio.gather(*outputs)
        await self._producer.send_offsets_to_transaction(dict(self._positions), self._group)
        await self._producer.commit_transaction()
        self._fence_is_due = False
        self._to_stores(written)

    async def _commit_plainly(self) -> None:
        # The state may be ahead of no output: once the changelog says how far the source was read,
        # nobody processes that again.
        await asyncio.gather(*await self._send_outputs())
        written = await self._send_changes()
        for topic, each in written.items():
            position = self._stores[topic].position
            if each.first != position or each.end != position + len(each.changes):
                raise _Overtaken(f"{topic}/{self.task.partition} at {position}: wrote {len(each.changes)} records to {each.first}..{each.end - 1}")
        self._to_stores(written)
        await self._consumer.commit(dict(self._positions))

    async def _send_outputs(self) -> list[asyncio.Future[Any]]:
        """Each done when it is acknowledged."""
        context = self._context
        assert context is not None, "a task that processes was opened"
        origin = self._output_headers
        return [await self._send(each.topic, each.value, each.key, each.partition, (*each.headers, *origin)) for each in context.outputs]

    async def _send_changes(self) -> dict[str, _WrittenChanges]:
        """Sends each changelog its changes, and at their end how far the sources were read. Returns
        when all are acknowledged.
        """
        context = self._context
        assert context is not None, "a task that processes was opened"
        sources = pack_sources({(tp.topic, tp.partition): offset for tp, offset in self._positions.items()})
        fence: list[Change] = [(FENCE_KEY, self._options.guarantee.encode())] if self._fence_is_due else []
        sent: dict[str, tuple[list[Change], list[asyncio.Future[Any]]]] = {}
        for topic, state in context.states.items():
            changes = [*fence, *state.written(), (SOURCES_KEY, sources)]
            sent[topic] = changes, [await self._send_change(topic, key, value) for key, value in changes]
        await asyncio.gather(*(future for _, futures in sent.values() for future in futures))
        return {
            topic: _WrittenChanges(changes, self._headers[topic], futures[0].result().offset, futures[-1].result().offset + 1)
            for topic, (changes, futures) in sent.items()
        }

    async def _send_change(self, topic: str, key: bytes, value: bytes | None) -> asyncio.Future[Any]:
        return await self._send(topic, value, key, self.task.partition, self._headers[topic])

    async def _send(self, topic: str, value: bytes | None, key: bytes | None, partition: int | None, headers: Headers) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = await self._producer.send(topic, value, key=key, partition=partition, headers=list(headers))
        future.add_done_callback(_heard)
        return future

    def _to_stores(self, written: Mapping[str, _WrittenChanges]) -> None:
        context = self._context
        assert context is not None, "a task that processes was opened"
        for topic, each in written.items():
            self._stores[topic].apply(((key, value, each.headers) for key, value in each.changes), position=each.end)
            context.states[topic].committed()
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
