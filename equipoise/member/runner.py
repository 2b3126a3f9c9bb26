"""Runs one task under one grant, in the application's event loop: opens it, processes records,
commits, and closes it.

Opening (docs/protocol.md#m6): with exactly_once, a producer starts with the transactional id
``group/task``, which fences a former owner that has the same guarantee. The changelogs are restored
to their ends. Unless Kafka has fenced the former owner, a fence is written to each changelog, and
they are restored up to it. Then the sources are read from the positions in the changelogs.

Each commit sends everything since the last one: outputs, changelog records and source positions,
each with its origin, and the sources' offsets. Only acknowledged changes go to the store, so it is
never ahead of its changelog.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

import attrs

from equipoise.events.log.kafka.client import ConsumedRecord, Consumer, Producer, TopicPartition, call_off
from equipoise.events.tasks import TaskId
from equipoise.member.clients import TaskClients
from equipoise.member.context import State, TaskContext, pack_sources, read_sources
from equipoise.member.fencing import EXACTLY_ONCE, FENCE_KEY, SOURCES_KEY, ChangelogOwner, FencedStore, claim
from equipoise.member.options import MemberOptions
from equipoise.member.origin import Headers, Origin
from equipoise.member.stores import Change
from equipoise.runtime import Runtime

_LOG = logging.getLogger(__name__)
RETRY_S = 0.5
_OPENED = "a task that processes was opened"

Handler = Callable[[Any, TaskContext], Awaitable[None] | None]
"""Called with each record (aiokafka's ConsumerRecord) and the task's context."""
Callback = Callable[[TaskContext], Awaitable[None] | None]


class Permit(Protocol):
    """What a runner needs of its member. Called from the application's thread."""

    def refusal(self, task: TaskId) -> str | None:
        """Why `task` may not be processed now; None: it may."""

    async def restore(self, task: TaskId) -> Mapping[str, ChangelogOwner | None]:
        """Restores the task's stores to the present ends of its changelogs. Returns changelog topic
        -> owner there; None: nobody has written to it.
        """

    async def take_stores(self, task: TaskId, goals: Mapping[str, int]) -> Mapping[str, FencedStore]:
        """Hands over the task's stores, restored at least up to `goals`: changelog topic -> offset
        of the record to apply next.
        """

    async def put_stores_back(self, task: TaskId) -> None:
        """Takes the stores back: the task has stopped, or never got them."""

    async def prepare(self, task: TaskId) -> None:
        """Returns when the application has prepared the task, or at once if it prepares none."""

    def restored(self, task: TaskId) -> None:
        """The task has its stores, and begins to process."""

    async def still_granted(self, task: TaskId, token: int) -> bool:
        """Whether the grant holds, by decisions read from now on."""

    def fenced(self, task: TaskId) -> None:
        """A write was refused or overtaken: a later owner has begun this task."""

    def stopped(self, task: TaskId) -> None:
        """The task writes nothing any more: its next owner may begin."""

    def ended(self, task: TaskId, error: BaseException | None) -> None:
        """The task is closed. `error`: raised by the application's code or a store; None: none."""


class _Refused(Exception):
    """The member may not process this task now."""


class _Overtaken(Exception):
    """Another owner has written to a changelog while this task ran here, or has fenced it."""


@attrs.frozen
class _WrittenChanges:
    """The records of one commit in one changelog, from offset `first` to before `end`."""

    changes: list[Change]
    headers: Headers
    first: int
    end: int


class TaskRunner:
    """Runs one grant. `start` and `stop` belong to the application's loop. `connected`: clients
    that were connected ahead; None: there are none.
    """

    def __init__(
        self,
        permit: Permit,
        runtime: Runtime,
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
        self._monotonic_s = runtime.monotonic_s
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
        """Changelog topic -> origin of this grant's records there."""
        self._headers: dict[str, Headers] = {}
        """The same as headers."""
        self._fence_is_due = False
        """Whether the first transaction has to write the fences."""
        self._stores: Mapping[str, FencedStore] = {}
        self._stopping = asyncio.Event()
        self._aborted = False
        self._is_closing = False
        """Whether processing has ended, so that nothing is left to abort."""
        self._job: asyncio.Task[None] | None = None
        self._producer: Producer | None = None
        self._consumer: Consumer | None = None
        self._context: TaskContext | None = None
        self._positions: dict[TopicPartition, int] = {}
        """Source partition -> offset of the next record to process."""
        self._was_out_of_range = False
        """Whether a broker had no records at a source position."""
        self._uncommitted = 0
        self._commit_at_s = 0.0
        self.processed = 0
        """Number of records given to the handler. Any thread may read it."""
        self.busy_s = 0.0
        """Seconds spent in the handler, waits included. Any thread may read it."""

    @property
    def behind(self) -> int | None:
        """Source records still to be processed, by the last fetches; None: unknown. Any thread may
        read it.
        """
        consumer, positions = self._consumer, dict(self._positions)
        if consumer is None or not positions:
            return None
        behind = 0
        for tp, position in positions.items():
            end = consumer.highwater(tp)
            if end is None:
                return None
            behind += max(0, end - position)
        return behind

    def start(self) -> None:
        """Begins to open and process the task."""
        self._job = asyncio.ensure_future(self._run())

    def stop(self, *, abort: bool) -> None:
        """Stops the task: after the record at hand and a commit, or with `abort` at once, without
        another write.
        """
        self._stopping.set()
        if abort and not self._aborted and not self._is_closing and self._job is not None:
            self._aborted = True
            self._job.cancel()

    # From the grant to its end

    async def _run(self) -> None:
        error: BaseException | None = None
        try:
            await self._run_grant()
        except asyncio.CancelledError:
            self._aborted = True
        except Exception as raised:  # noqa: BLE001  # the application's code may raise anything, and ends the member
            error, self._aborted = raised, True
        self._is_closing = True
        if self._aborted:
            await self._stop_writing()  # otherwise the last commit has waited for all sends
        if self._context is not None and self._on_revoked is not None:
            error = await self._call_on_revoked(self._on_revoked, self._context) or error
        self._permit.stopped(self.task)  # the next owner need not wait for the rest
        try:
            await self._close()
        except Exception as raised:  # noqa: BLE001  # a store failed to close; the member must still hear the end
            error = error or raised
        self._permit.ended(self.task, error)

    async def _run_grant(self) -> None:
        from aiokafka.errors import KafkaError, OffsetOutOfRangeError, ProducerFenced

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
                self._was_out_of_range = isinstance(error, OffsetOutOfRangeError)
                _LOG.warning("task %s failed, reopening it: %r", self.task, error)
            self._aborted = True
            await self._stop_writing()
            await self._close()
            self._aborted = False
            await asyncio.sleep(RETRY_S)
            # Reopening fences a later owner, so the grant must still hold.
            if self._stopping.is_set() or not await self._permit.still_granted(self.task, self.token):
                return

    async def _open(self) -> None:
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
            elif self._was_out_of_range:
                position = await self._not_deleted(tp, position)
            self._consumer.seek(tp, position)
            self._positions[tp] = position
        await self._prepare()
        self._consumer.resume(*partitions)
        self._permit.restored(self.task)
        self._may_go_on()
        begun, self._context = self._context is None, TaskContext(self.task, self.token, states)
        self._uncommitted, self._commit_at_s = 0, self._monotonic_s() + self._options.commit_interval_ms / 1_000
        for topic, each in self._stores.items():
            stale = each.stale_changes()
            states[topic].write_again(stale)
            self._uncommitted += len(stale)
        if begun and self._on_assigned is not None:
            await _call(self._on_assigned, self._context)

    async def _not_deleted(self, tp: TopicPartition, position: int) -> int:
        """Where to read on, if retention has deleted the record at `position`. A partition that
        ends before that belongs to a broker that leads no longer, or lags behind: one tries again.
        """
        assert self._consumer is not None, _OPENED
        begin = (await self._consumer.beginning_offsets([tp]))[tp]
        if begin > position:
            _LOG.error("task %s: records %d to %d of %s/%d were deleted before they were processed", self.task, position, begin - 1, *tp)
        return max(begin, position)

    async def _prepare(self) -> None:
        """Waits until the task is prepared, which may take minutes. Raises _Refused when the task
        stops first.
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
        """Restores the changelogs and makes this grant their owner: later records of former owners
        do not count.
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
        """Writes a fence to each changelog. Returns changelog topic -> offset behind the fence,
        when all are acknowledged.
        """
        producer = self._producer
        assert producer is not None, _OPENED
        if self._options.transactional:
            await producer.begin_transaction()
        guarantee = self._options.guarantee.encode()
        sent = {topic: await self._send_change(topic, FENCE_KEY, guarantee) for topic in self._origins}
        await asyncio.gather(*sent.values())
        if self._options.transactional:
            await producer.commit_transaction()
        return {topic: future.result().offset + 1 for topic, future in sent.items()}

    async def _process(self) -> None:
        while not self._stopping.is_set():
            for tp, records in (await self._next_batch()).items():
                for record in records:
                    if self._stopping.is_set() or not self._may_go_on():
                        break
                    given_s = self._monotonic_s()
                    await _call(self._handler, record, self._context)
                    self.busy_s += self._monotonic_s() - given_s
                    self._positions[tp] = record.offset + 1
                    self.processed += 1
                    self._uncommitted += 1
                    if self._uncommitted >= self._options.most_uncommitted_records or self._monotonic_s() >= self._commit_at_s:
                        await self._commit()
            if self._monotonic_s() >= self._commit_at_s:
                await self._commit()
            if not self._may_go_on():
                break
        await self._commit()

    async def _next_batch(self) -> Mapping[TopicPartition, Sequence[ConsumedRecord]]:
        wait_s = max(0.0, self._commit_at_s - self._monotonic_s()) if self._uncommitted else 1.0
        assert self._consumer is not None, _OPENED
        reading = asyncio.ensure_future(self._consumer.getmany(timeout_ms=int(wait_s * 1_000), max_records=self._options.most_uncommitted_records))
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((reading, stopping), return_when=asyncio.FIRST_COMPLETED)
            return await reading if reading.done() else {}
        finally:
            for each in (reading, stopping):
                each.cancel()
            await asyncio.gather(reading, stopping, return_exceptions=True)

    def _may_go_on(self) -> bool:
        """Called before each record and each commit. False: commit and close the task. Raises
        _Refused when the member may not process it.
        """
        refusal = self._permit.refusal(self.task)
        if refusal is not None and refusal != "closing":
            raise _Refused(refusal)
        return refusal is None

    # Committing

    async def _commit(self) -> None:
        if self._uncommitted:
            self._may_go_on()  # raises _Refused; a closing task still commits
            await (self._commit_transaction() if self._options.transactional else self._commit_plainly())
            self._uncommitted = 0
        # Counted from the end of the commit: else slow commits would hold a single record each.
        self._commit_at_s = self._monotonic_s() + self._options.commit_interval_ms / 1_000

    async def _commit_transaction(self) -> None:
        producer = self._producer
        assert producer is not None, _OPENED
        await producer.begin_transaction()
        outputs = await self._send_outputs()
        written = await self._send_changes()
        if self._fence_is_due:
            self._check_followed(written)
        await asyncio.gather(*outputs)
        await producer.send_offsets_to_transaction(dict(self._positions), self._group)
        await producer.commit_transaction()
        self._fence_is_due = False
        self._to_stores(written)

    async def _commit_plainly(self) -> None:
        # Outputs first: once the changelog has the source positions, no record is processed again.
        await asyncio.gather(*await self._send_outputs())
        written = await self._send_changes()
        self._check_followed(written)
        self._to_stores(written)
        assert self._consumer is not None, _OPENED
        await self._consumer.commit(dict(self._positions))

    def _check_followed(self, written: Mapping[str, _WrittenChanges]) -> None:
        """Raises _Overtaken when something was written to a changelog behind what is in the store:
        by another owner or, in the first transaction, before this task was opened. A broker that
        does not know yet that it leads no longer answers with an old end.
        """
        for topic, each in written.items():
            position = self._stores[topic].position
            if each.first != position or each.end != position + len(each.changes):
                raise _Overtaken(f"{topic}/{self.task.partition} at {position}: wrote {len(each.changes)} records to {each.first}..{each.end - 1}")

    async def _send_outputs(self) -> list[asyncio.Future[Any]]:
        """Sends all outputs. Each future is done when its record is acknowledged."""
        context = self._context
        assert context is not None, _OPENED
        origin = self._output_headers
        return [await self._send(each.topic, each.value, each.key, each.partition, (*each.headers, *origin)) for each in context.outputs]

    async def _send_changes(self) -> dict[str, _WrittenChanges]:
        """Sends each changelog its changes, then the source positions. Returns when all are
        acknowledged.
        """
        context = self._context
        assert context is not None, _OPENED
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
        assert self._producer is not None, _OPENED
        future = await self._producer.send(topic, value, key=key, partition=partition, headers=list(headers))
        future.add_done_callback(_retrieve_error)
        return future

    def _to_stores(self, written: Mapping[str, _WrittenChanges]) -> None:
        context = self._context
        assert context is not None, _OPENED
        for topic, each in written.items():
            self._stores[topic].apply(((key, value, each.headers) for key, value in each.changes), position=each.end)
            context.states[topic].committed()
        context.outputs.clear()

    # Closing

    async def _stop_writing(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            await (producer.abandon() if self._aborted else producer.stop())

    async def _close(self) -> None:
        consumer, self._consumer = self._consumer, None
        if self._stateful:
            await self._permit.put_stores_back(self.task)
        await self._stop_writing()
        if consumer is not None:
            await consumer.stop()
        if self._connected is not None:  # stopped before it was opened
            await self._connected.close()

    async def _call_on_revoked(self, on_revoked: Callback, context: TaskContext) -> BaseException | None:
        try:
            await _call(on_revoked, context)
        except Exception as error:  # noqa: BLE001  # the application's code may raise anything
            return error
        return None


async def _call(function: Callable[..., Awaitable[None] | None], *arguments: Any) -> None:
    result = function(*arguments)
    if inspect.isawaitable(result):
        await result


def _retrieve_error(sent: asyncio.Future[Any]) -> None:
    """Retrieves a send's error, so that asyncio does not warn when an earlier send failed first."""
    if not sent.cancelled():
        sent.exception()
