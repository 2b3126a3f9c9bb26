"""Runs one task under one grant, in the application's event loop: opens it, processes records,
commits, and closes it.

Opening (docs/protocol.md#m6): the changelogs are restored to their ends, a fence is written to
each, and they are restored up to it. Then the sources are read from the positions in the
changelogs. With exactly_once a task without changelogs has a producer with the transactional id
``group/task``, which fences its former owner.

Each commit sends everything since the last one began: outputs, changelog records and source
positions, each with its origin, and the sources' offsets (with changelogs a moment later). With
exactly_once that is a transaction, together with other tasks. With at_least_once outputs need not
wait for it: they are sent when the task has nothing else to do. Only acknowledged changes go to the
store, so it is never ahead of its changelog. More records are processed meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

import attrs

from equipoise.events.errors import InputError
from equipoise.events.log.kafka.client import CLOSE_S, ConsumedRecord, Producer, SentBatch, TopicPartition, Unsent, acknowledged, call_off
from equipoise.events.tasks import TaskId
from equipoise.member.clients import TaskClients
from equipoise.member.context import State, TaskContext, pack_sources, read_sources
from equipoise.member.error_policy import ParkedTask
from equipoise.member.fencing import FENCE_KEY, GIVEN_BACK, SOURCES_KEY, ChangelogOwner, FencedStore, claim, fence_value
from equipoise.member.options import MemberOptions
from equipoise.member.origin import Origin
from equipoise.member.processing import Processing, Processor, call
from equipoise.member.sources import TaskSources
from equipoise.member.stores import Change
from equipoise.member.ticks import CommitTicks, CommitTurn
from equipoise.member.timers import Timers
from equipoise.member.transactions import TransactionPart
from equipoise.member.writer import TaskWriter, WrittenChanges
from equipoise.runtime import Runtime

_LOG = logging.getLogger(__name__)
RETRY_S = 0.5
IDLE_S = 5.0
GIVEN_BACK_S = 0.05
"""For so long the last transaction of an owner that has closed a task may not be visible yet."""
_OPENED = "a task that processes was opened"

Callback = Callable[[TaskContext], Awaitable[None] | None]


class Permit(Protocol):
    """What a runner needs of its member. Called from the application's thread."""

    def permit(self, task: TaskId) -> tuple[str | None, int]:
        """Why `task` may not be processed now (None: it may), and until when it may be processed
        without asking again (ms, CLOCK_BOOTTIME): for a moment, and never beyond the lease.
        """

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

    def failed(self, task: TaskId, error: Exception) -> None:
        """A request failed. The task opens again while it is granted."""

    def fenced(self, task: TaskId) -> None:
        """A write was refused or overtaken: a later owner has begun this task."""

    def parked(self, token: int, parked: ParkedTask) -> None:
        """A task handles nothing more, and keeps its grant."""

    def stopped(self, task: TaskId) -> None:
        """The task writes nothing any more: its next owner may begin."""

    def ended(self, task: TaskId, error: BaseException | None) -> None:
        """The task is closed. `error`: raised by the application's code or a store; None: none."""


@attrs.frozen
class _Commit:
    """What a commit writes. `outputs`: those of its transaction. With at_least_once they are `sent`
    already. `changes`: changelog topic -> its changes, then the source positions.
    """

    outputs: Mapping[TopicPartition, Sequence[Unsent]]
    sent: Sequence[SentBatch]
    changes: Mapping[str, Sequence[Change]]
    positions: Mapping[TopicPartition, int]


class _Refused(Exception):
    """The member may not process this task now."""


class _Overtaken(Exception):
    """Another owner has written to a changelog while this task ran here, or has fenced it."""


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
        ticks: CommitTicks,
        new_clients: Callable[[], TaskClients],
        connected: TaskClients | None,
        stateful: bool,
        options: MemberOptions,
        processor: Processor,
        on_assigned: Callback | None,
        on_revoked: Callback | None,
    ) -> None:
        self.task = task
        self.token = token
        self._permit = permit
        self._monotonic_s, self._boot_ms = runtime.monotonic_s, runtime.boot_ms
        self._permitted_until_ms = 0
        self._group = group
        self._new_clients = new_clients
        self._stateful = stateful
        self._options = options
        self._processor = processor
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._origin = Origin(0, log_id, group, str(task), token)
        self._gives_back = False
        """Whether the next commit is the last one."""
        self._is_refused = False
        """Whether a commit was refused: what was handled since then must not be committed."""
        self._former: set[str] = set()
        """Transactional ids of former owners whose transactions were ended."""
        self._next_offsets: dict[str, tuple[int, ...]] = {}
        """Changelog topic -> offsets that the next record may have, unless another process writes.
        """
        self._stores: Mapping[str, FencedStore] = {}
        self._stopping = asyncio.Event()
        self._aborted = self._called_off = False
        self._is_closing = False
        """Whether processing has ended, so that nothing is left to abort."""
        self._job: asyncio.Task[None] | None = None
        self._clients = connected
        self._writer: TaskWriter | None = None
        self._reading: TaskSources | None = None
        self._context: TaskContext | None = None
        self._processing: Processing | None = None
        self._timers = Timers(runtime.monotonic_s)
        self._positions: dict[TopicPartition, int] = {}
        """Source partition -> offset of the next record to process."""
        self._was_out_of_range = False
        """Whether a broker had no records at a source position."""
        self._uncommitted = 0
        self._sent: list[SentBatch] = []
        """Outputs of the next commit that are on their way."""
        self._last_sent: Sequence[SentBatch] = ()
        """The outputs that were sent last."""
        self._commit_by_s = 0.0
        """When a commit is due although more records wait."""
        self._turn = CommitTurn(ticks, self._wake)
        self._committing: asyncio.Future[None] | None = None
        """The commit that is under way, while more records are processed."""
        self._begun_s = 0.0
        self.processed = 0
        """Number of records given to the handler. Any thread may read it."""
        self.commits = 0
        """Number of commits. Any thread may read it."""
        self.busy_s = 0.0
        """Seconds spent in the handler, waits included. Any thread may read it."""

    @property
    def parked(self) -> ParkedTask | None:
        """Why the task handles nothing more; None: it does. Any thread may read it."""
        return None if self._processing is None else self._processing.parked

    @property
    def behind(self) -> int | None:
        """Source records still to be processed, by ends that are some seconds old at most; None:
        unknown. Any thread may read it.
        """
        reading, positions = self._reading, dict(self._positions)
        if reading is None or not positions:
            return None
        behind = 0
        for tp, position in positions.items():
            end = reading.end(tp)
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
        self._turn.come()  # its last commit waits for no other task
        if abort and not self._aborted and not self._is_closing and self._job is not None:
            self._aborted = self._called_off = True
            for each in (self._committing, self._job):
                if each is not None:
                    each.cancel()

    def _wake(self) -> None:
        if self._reading is not None:
            self._reading.wake()

    def _wake_if_more(self) -> None:
        if self._uncommitted:
            self._wake()

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
                _LOG.debug("task %s: %s", self.task, refused)
                self._aborted = True
                return
            except (ProducerFenced, _Overtaken) as error:
                failed = isinstance(error, KafkaError)
                self._permit.fenced(self.task)
                _LOG.warning("task %s, token %d: another owner has begun: %r", self.task, self.token, error)
            except KafkaError as error:
                self._was_out_of_range = isinstance(error, OffsetOutOfRangeError)
                failed = not self._was_out_of_range
                self._permit.failed(self.task, error)
            self._aborted = True
            await self._stop_writing(failed=failed)
            await self._close()
            self._aborted = False
            await asyncio.sleep(RETRY_S)
            # Reopening may fence a later owner, so the grant must still hold.
            if self._stopping.is_set() or not await self._permit.still_granted(self.task, self.token):
                return

    async def _open(self) -> None:
        self._gives_back = self._is_refused = False
        clients = self._clients = self._clients or self._new_clients()
        producer = await clients.begin()
        writer = self._writer = TaskWriter(producer, self.task, self._origin)
        reading = clients.sources
        placing = asyncio.ensure_future(asyncio.gather(*(reading.position(tp, self._options.auto_offset_reset) for tp in reading.partitions)))
        try:
            self._stores = await self._take_stores(clients, writer) if self._stateful else {}
            self._next_offsets = {topic: (each.position,) for topic, each in self._stores.items()}
            positions = dict(zip(reading.partitions, await placing, strict=True))
        finally:
            await call_off(placing)
        options = self._options
        keys, values = options.key_serde, options.value_serde
        states = {topic: State(each.store, options.state_key_serde or keys, options.state_serde or values) for topic, each in self._stores.items()}
        known = read_sources(states)
        self._positions = {tp: known.get((tp.topic, tp.partition), position) for tp, position in positions.items()}
        if self._was_out_of_range:
            self._positions = {tp: await self._not_deleted(reading, tp, position) for tp, position in self._positions.items()}
        await self._prepare()
        reading.place(self._positions)
        self._reading = reading
        self._permit.restored(self.task)
        self._may_go_on()
        begun, self._context = self._context is None, TaskContext(self.task, self.token, states, self._timers, keys, values)
        self._processing = Processing(
            self._processor, self._context, self._timers, group=self._group, policy=options.on_error, key_serde=keys, value_serde=values
        )
        self._uncommitted, self._sent, self._commit_by_s = 0, [], self._monotonic_s() + self._options.commit_interval_ms / 1_000
        for topic, each in self._stores.items():
            stale = each.stale_changes()
            states[topic].write_again(stale)
            self._uncommitted += len(stale)
        if begun and self._on_assigned is not None:
            await call(self._on_assigned, self._context)

    async def _not_deleted(self, reading: TaskSources, tp: TopicPartition, position: int) -> int:
        """Where to read on, if retention has deleted the record at `position`. When the partition
        ends before `position`, the broker leads no longer or lags behind, and the task reads from
        `position` again. Raises KafkaError.
        """
        begin = (await reading.reader.consumer.beginning_offsets([tp]))[tp]
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

    async def _take_stores(self, clients: TaskClients, writer: TaskWriter) -> Mapping[str, FencedStore]:
        """Restores the changelogs and makes this grant their owner: later records of former owners
        do not count.
        """
        own = "" if clients.transactions is None else clients.transactions.id
        looked_twice = False
        while True:
            owners = await self._permit.restore(self.task)
            for topic, owner in owners.items():
                if owner is not None and owner.outranks(self._origin):
                    raise _Overtaken(f"{topic}/{self.task.partition} belongs to token {owner.origin.token}")
            left_open = {owner.transactional_id for owner in owners.values() if owner is not None} - self._former - {"", own}
            if not left_open:
                break
            if not looked_twice:  # a task that was just given back shows that a moment later
                looked_twice = True
                await asyncio.sleep(GIVEN_BACK_S)
                continue
            for transactional_id in sorted(left_open):
                await clients.end_transactions(transactional_id)
            self._former |= left_open  # the owner after them may have been behind their transactions
        writer.origins = {topic: claim(owner, self._origin) for topic, owner in owners.items()}
        refusal, _ = self._permit.permit(self.task)
        if refusal not in (None, "closing", "restoring"):
            raise _Refused(refusal)
        stores = await self._permit.take_stores(self.task, await self._send_fences(clients, writer))
        for topic, each in stores.items():
            if each.fence.owner is None or each.fence.owner.origin != writer.origins[topic]:
                raise _Overtaken(f"{topic}/{self.task.partition} belongs to {each.fence.owner}")
        return stores

    async def _send_fences(self, clients: TaskClients, writer: TaskWriter) -> dict[str, int]:
        """Writes a fence to each changelog. Returns changelog topic -> offset behind the fence (and
        the end of its transaction), when all are acknowledged.
        """
        transactions = clients.transactions
        fence: list[Change] = [(FENCE_KEY, fence_value(None if transactions is None else transactions.id))]
        written: Mapping[str, WrittenChanges] = {}

        async def write(producer: Producer) -> None:
            nonlocal written
            writer.producer = producer
            written = await writer.append_changes(dict.fromkeys(writer.origins, fence))

        if transactions is None:
            await write(writer.producer)
        else:
            await transactions.commit(TransactionPart(self.task, write, {}))
        return {topic: self._behind(each) for topic, each in written.items()}

    def _behind(self, written: WrittenChanges) -> int:
        """Offset of the next record. Kafka ends a transaction with a marker in each partition."""
        return written.end + self._options.transactional

    # Processing

    async def _process(self) -> None:
        processing = self._processes()
        try:
            while not self._stopping.is_set():
                for tp, records in (await self._next_batch()).items():
                    await self._handle(tp, records)
                    if processing.parked is not None:
                        break
                await self._run_timers()
                if processing.parked is None and self._commit_is_due():
                    await self._commit()
                if processing.parked is not None:
                    await self._last_commit()
                    self._permit.parked(self.token, processing.parked)
                    await self._stopping.wait()
                    break
                if not self._may_go_on():
                    break
            self._gives_back = self._stateful and self._options.transactional
            await self._last_commit()
        except _Refused:
            await self._commit_over()  # it began with a permit; if it comes too late, it is fenced
            if not self._called_off:
                await acknowledged(self._sent)
            raise
        finally:
            committing, self._committing = self._committing, None
            if committing is not None:
                await call_off(committing)
            self._turn.leave()

    async def _last_commit(self) -> None:
        await self._commit_over()
        self._turn.come()
        self._uncommitted += self._gives_back
        await self._commit()
        await self._commit_over()
        await acknowledged(self._sent)  # if the commit was refused
        assert self._clients is not None, _OPENED
        await self._clients.flush_offsets()

    async def _handle(self, tp: TopicPartition, records: Sequence[ConsumedRecord]) -> None:
        """Gives the records to the application, as long as the task may go on."""
        processing = self._processes()
        most, done = self._options.most_uncommitted_records, 0
        self._begun_s = self._monotonic_s()
        while done < len(records) and processing.parked is None:
            if not self._is_permitted():
                self._note_busy()
                if self._commit_is_due():
                    await self._commit()
                await self._run_timers()
                await asyncio.sleep(0)  # a handler that never waits would hold up all other tasks
                self._begun_s = self._monotonic_s()
                if self._stopping.is_set() or processing.parked is not None or not self._may_go_on():
                    break
            handled = await processing.handle(records, done, min(len(records), done + max(1, most - self._uncommitted)), self._is_permitted)
            if handled:
                done += handled
                self._positions[tp] = records[done - 1].offset + 1
                self.processed += handled
                self._uncommitted += handled
            if processing.retry_in_s is not None:
                await self._wait_to_retry(processing.retry_in_s)
            elif self._uncommitted >= most:
                self._note_busy()
                await self._commit()
                self._begun_s = self._monotonic_s()
        self._note_busy()

    def _is_permitted(self) -> bool:
        return self._boot_ms() < self._permitted_until_ms

    async def _wait_to_retry(self, seconds: float) -> None:
        """Before a record is handled again. What was handled before it does not wait."""
        self._permitted_until_ms = 0
        if seconds:
            self._note_busy()
            await self._commit()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), seconds)
            self._begun_s = self._monotonic_s()

    async def _run_timers(self) -> None:
        if await self._processes().run_timers():
            self._uncommitted += 1

    def _note_busy(self) -> None:
        self.busy_s += self._monotonic_s() - self._begun_s

    async def _next_batch(self) -> Mapping[TopicPartition, Sequence[ConsumedRecord]]:
        """The next records. If there are none, the task waits for more, or for its turn to commit.
        """
        assert self._reading is not None, _OPENED
        found = await self._reading.take(self._options.most_uncommitted_records)
        if not found:
            if self._uncommitted:
                await self._send_early()
                self._turn.want()
            timer_s = self._timers.wait_s()
            await self._reading.wait(IDLE_S if timer_s is None else min(IDLE_S, timer_s))
            self._turn.withdraw()
        return found

    async def _send_early(self) -> None:
        """Sends the outputs so far. Not while others are on their way: a request for each would
        take longer. Nor during a commit: after a crash the outputs of one commit are repeated.
        """
        _, context = self._opened()
        is_committing = self._committing is not None and not self._committing.done()
        is_sending = not all(each.appended.done() for each in self._last_sent)
        if is_committing or is_sending or not context.outputs or self._options.transactional or self._is_refused:
            return
        try:
            await self._send_outputs()
        except InputError as error:
            self._park(error)
        else:
            self._last_sent[-1].appended.add_done_callback(lambda _: self._wake_if_more())

    async def _send_outputs(self) -> Mapping[TopicPartition, Sequence[Unsent]]:
        """Sends the outputs since the last call; with exactly_once it returns them for the
        transaction. Raises InputError when one of them is refused, _Refused, KafkaError.
        """
        writer, context = self._opened()
        outputs, context.outputs = context.outputs, []
        try:
            by_partition = await writer.by_partition(outputs)
        except asyncio.CancelledError:
            if self._called_off:
                raise
            raise _abandoned() from None
        if self._called_off:
            raise _Refused("called off")  # should a request have swallowed that
        self._may_go_on()  # raises _Refused; a closing task still commits
        if self._options.transactional:
            return by_partition
        self._last_sent = await writer.send_outputs(by_partition)
        self._sent += self._last_sent
        return {}

    def _may_go_on(self) -> bool:
        """Called at least each PERMIT_MS while records are processed, and before each commit.
        False: commit and close the task. Raises _Refused when the member may not process it.
        """
        refusal, self._permitted_until_ms = self._permit.permit(self.task)
        if refusal is not None and refusal != "closing":
            raise _Refused(refusal)
        return refusal is None

    # Committing

    def _commit_is_due(self) -> bool:
        """Raises what a commit has raised that was under way."""
        if self._committing is not None:
            if not self._committing.done():
                return False
            self._end_commit(self._committing)
        return self._turn.has_come or self._monotonic_s() >= self._commit_by_s

    async def _commit_over(self) -> None:
        """Returns when no commit is under way. Raises what it has raised."""
        if self._committing is not None:
            await asyncio.wait((self._committing,))
            self._end_commit(self._committing)

    def _end_commit(self, committing: asyncio.Future[None]) -> None:
        self._committing = None
        if committing.cancelled() and not self._called_off:
            raise _abandoned()
        try:
            committing.result()
        except InputError as error:
            self._park(error)

    async def _commit(self) -> None:
        """Begins a commit, after the end of the former one."""
        await self._commit_over()
        if self._uncommitted and not self._is_refused:
            await self._turn.wait()
            try:
                outputs = await self._send_outputs()
            except InputError as error:
                self._park(error)
                return
            _, context = self._opened()
            commit = _Commit(outputs, self._sent, self._changes(context), dict(self._positions))
            self._uncommitted, self._sent = 0, []
            self._turn.begin()
            self._committing = asyncio.ensure_future(self._write(commit))
        else:
            self._turn.leave()
            self._set_due()

    def _park(self, error: InputError) -> None:
        """Nothing since the last commit that succeeded is committed."""
        tp, position = max(self._positions.items(), key=lambda item: item[1])
        self._processes().park(tp.topic, tp.partition, position - 1, error)
        self._is_refused = True
        self._turn.leave()

    async def _write(self, commit: _Commit) -> None:
        try:
            await (self._commit_transaction if self._options.transactional else self._commit_plainly)(commit)
            self.commits += 1
            self._wake_if_more()
        except BaseException:
            self._wake()  # to raise it
            raise
        finally:
            self._set_due()
            self._turn.end()

    def _set_due(self) -> None:
        # Counted from the end of the commit: else slow commits would hold a single record each.
        self._commit_by_s = self._monotonic_s() + self._options.commit_interval_ms / 1_000

    async def _commit_transaction(self, commit: _Commit) -> None:
        writer, _ = self._opened()
        assert self._clients is not None, _OPENED
        assert self._clients.transactions is not None, _OPENED
        written: Mapping[str, WrittenChanges] = {}

        async def write(producer: Producer) -> None:
            nonlocal written
            writer.producer = producer
            sent = await writer.send_outputs(commit.outputs)
            written = await writer.append_changes(commit.changes)
            self._check_followed(written)
            await acknowledged(sent)

        offsets = {} if commit.changes else commit.positions
        await self._clients.transactions.commit(TransactionPart(self.task, write, offsets))
        self._to_stores(written)
        if written:
            self._clients.report_offsets(commit.positions, writer.producer)

    async def _commit_plainly(self, commit: _Commit) -> None:
        # Outputs first: once the changelog has the source positions, no record is processed again.
        writer, _ = self._opened()
        await acknowledged(commit.sent)
        written = await writer.append_changes(commit.changes)
        self._check_followed(written)
        self._to_stores(written)
        assert self._reading is not None, _OPENED
        assert self._clients is not None, _OPENED
        if written:
            self._clients.report_offsets(commit.positions, writer.producer)  # the next owner reads them in the changelogs
        else:
            await self._reading.reader.commit(commit.positions)

    def _opened(self) -> tuple[TaskWriter, TaskContext]:
        assert self._writer is not None, _OPENED
        assert self._context is not None, _OPENED
        return self._writer, self._context

    def _processes(self) -> Processing:
        assert self._processing is not None, _OPENED
        return self._processing

    def _changes(self, context: TaskContext) -> dict[str, list[Change]]:
        """Begins a commit. Returns what it writes to each changelog."""
        sources = pack_sources({(tp.topic, tp.partition): offset for tp, offset in self._positions.items()})
        fence: list[Change] = [(FENCE_KEY, GIVEN_BACK)] if self._gives_back else []
        return {topic: [*fence, *state.begin_commit(), (SOURCES_KEY, sources)] for topic, state in context.states.items()}

    def _check_followed(self, written: Mapping[str, WrittenChanges]) -> None:
        """Raises _Overtaken when another process has written to a changelog behind what is in the
        store.
        """
        for topic, each in written.items():
            known = self._next_offsets[topic]
            if each.first not in known or each.end != each.first + len(each.changes):
                raise _Overtaken(f"{topic}/{self.task.partition} at {known[0]}: wrote {len(each.changes)} records to {each.first}..{each.end - 1}")

    def _to_stores(self, written: Mapping[str, WrittenChanges]) -> None:
        _, context = self._opened()
        for topic, each in written.items():
            self._stores[topic].apply(((key, value, each.headers) for key, value in each.changes), position=each.end)
            # Kafka 4.3 leaves a marker out where a partition has no leader (KAFKA-20734): the
            # next one ends both transactions.
            self._next_offsets[topic] = self._behind(each), each.end
            context.states[topic].committed()

    # Closing

    async def _stop_writing(self, *, failed: bool = False) -> None:
        """After an abort. `failed`: what was sent could not be written."""
        writer, self._writer = self._writer, None
        if self._clients is not None:
            lost = failed and writer is not None and not self._options.transactional and not await writer.settled(CLOSE_S)
            await self._clients.stop_writing(failed=failed, at_once=self._called_off or lost)

    async def _close(self) -> None:
        self._reading = None
        if self._stateful:
            await self._permit.put_stores_back(self.task)
        clients, self._clients = self._clients, None
        if clients is not None:
            await clients.close()

    async def _call_on_revoked(self, on_revoked: Callback, context: TaskContext) -> BaseException | None:
        try:
            await call(on_revoked, context)
        except Exception as error:  # noqa: BLE001  # the application's code may raise anything
            return error
        return None


def _abandoned() -> Exception:
    from aiokafka.errors import KafkaConnectionError

    error: Exception = KafkaConnectionError("a request was cancelled, because the producer was abandoned")
    return error
