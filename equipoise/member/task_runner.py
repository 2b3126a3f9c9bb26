"""Runs one task under one grant, in the application's event loop: opens it (`task_opening.py`),
processes records, commits, and closes it.

Each commit sends everything since the last one began: outputs, changelog records and source
positions, each with its origin, and the sources' offsets (with changelogs a moment later). With
exactly_once that is a transaction, together with other tasks. Outputs need not wait for its end:
with at_least_once they are sent when the task has nothing else to do, or has many of them; with
exactly_once a task that has nothing else to do begins a commit, and adds to it as long as its
transaction is open. More records are processed meanwhile (`open_task.py` writes the commit).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from equipoise.events.errors import InputError
from equipoise.events.tasks import TaskId
from equipoise.kafka.client import CLOSE_S, ConsumedRecord, SentBatch, TopicPartition, Unsent, acknowledged, call_off
from equipoise.member.callbacks import call
from equipoise.member.commit_ticks import CommitTicks, CommitTurn
from equipoise.member.error_policy import ParkedTask, error_text
from equipoise.member.failures import Failures
from equipoise.member.member_options import MemberOptions
from equipoise.member.open_task import Commit, OpenTask
from equipoise.member.origin import Origin
from equipoise.member.permit import OvertakenError, Permit, RefusedError
from equipoise.member.processing import MOST_AT_ONCE, Processor, parked
from equipoise.member.refusals import CommitRefusedError, ForGood, RefusedByBrokersError, TaskRefusals
from equipoise.member.sources import RecordsLostError, TopicReplacedError
from equipoise.member.stores import DamagedStoreError
from equipoise.member.task_clients import TaskClients
from equipoise.member.task_context import Callback, TaskContext
from equipoise.member.task_opening import TaskOpening
from equipoise.member.timers import Timers
from equipoise.member.turns import FEW_RECORDS, Turns
from equipoise.member.uncommitted import Uncommitted
from equipoise.member.writer import TaskWriter
from equipoise.runtime import Runtime

_LOG = logging.getLogger(__name__)
RETRY_S = 0.5
MOST_UNSENT = 4_000
"""Outputs that wait, with at_least_once, while more records are processed."""
SEND_S = 0.1
"""Longest time that outputs wait, with at_least_once, while more records are processed."""
BEHIND_S = 3.0
"""A task that has much to do commits that seldom: of a key that it counts ten times, one change is
written.
"""


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
        uncommitted: Uncommitted,
        turns: Turns,
        new_clients: Callable[[], TaskClients],
        connected: TaskClients | None,
        stateful: bool,
        options: MemberOptions,
        processor: Processor,
        on_assigned: Callback | None,
        on_revoked: Callback | None,
        failures: Failures | None = None,
    ) -> None:
        self.task = task
        self.token = token
        self._permit = permit
        self._monotonic_s, self._boot_ms = runtime.monotonic_s, runtime.boot_ms
        self._permitted_until_ms = 0
        self._new_clients = new_clients
        self._stateful = stateful
        self._options = options
        self._interval_s = options.commit_interval_s
        self._most_at_once = min(options.most_uncommitted_records, MOST_AT_ONCE)
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._origin = Origin(0, log_id, group, str(task), token)
        self._timers = Timers(runtime.monotonic_s)
        self._stopping = asyncio.Event()
        self._refusals = TaskRefusals(runtime.monotonic_s)
        self._sources, self._failures = processor.sources, failures or Failures()
        self._opening = TaskOpening(
            permit, group, task, self._origin, stateful=stateful, options=options, processor=processor, timers=self._timers,
            stopping=self._stopping, refusals=self._refusals, failures=self._failures,
        )  # fmt: skip
        self._to_park: BaseException | None = None
        """Why the task is parked as soon as it has opened again, before its first record."""
        self._parked: ParkedTask | None = None
        """Why it is parked although it cannot be opened."""
        self._aborted = self._called_off = False
        self._is_closing = False
        """Whether processing has ended, so that nothing is left to abort."""
        self._job: asyncio.Task[None] | None = None
        self._clients = connected
        self._writer: TaskWriter | None = None
        self._opened: OpenTask | None = None
        self._assigned: TaskContext | None = None
        """The context with which the task was opened last; None: it never was."""
        self._was_out_of_range = False
        """Whether a broker had no records at a source position, or has lost some before it."""
        self._uncommitted = 0
        self._of_member, self._turns = uncommitted, turns
        self._sent: list[SentBatch] = []
        """Outputs of the next commit that are on their way."""
        self._last_sent: Sequence[SentBatch] = ()
        """The outputs that were sent last."""
        self._commit_by_s = self._send_by_s = 0.0
        """When a commit is due, or outputs, although more records wait."""
        self._is_waiting = False
        """Whether it waits for records, and nothing has woken it but these."""
        self._turn = CommitTurn(ticks, self._turn_has_come)
        self._committing: asyncio.Future[None] | None = None
        """The commit that is under way, while more records are processed."""
        self._written_commit: Commit | None = None
        """What it writes, or the former one has written."""
        self._begun_s = 0.0
        self.processed = 0
        """Number of records given to the handler. Any thread may read it."""
        self.commits = 0
        """Number of commits. Any thread may read it."""
        self.busy_s = 0.0
        """Seconds spent in the handler, waits included. Any thread may read it."""

    @property
    def parked(self) -> ParkedTask | None:
        """Returns why the task handles nothing more; None: it does. Any thread may read it."""
        opened = self._opened
        return self._parked if opened is None else opened.processing.parked

    @property
    def behind(self) -> int | None:
        """Source records still to be processed, by ends that are some seconds old at most; None:
        unknown. Any thread may read it.
        """
        opened = self._opened
        return None if opened is None else opened.behind

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
        self._is_waiting = False
        if self._opened is not None:
            self._opened.reading.wake()

    def _wake_if_more(self) -> None:
        if self._uncommitted:
            self._wake()

    # From the grant to its end

    async def _run(self) -> None:
        error: BaseException | None = None
        try:
            try:
                await self._run_grant()
            except asyncio.CancelledError:
                self._aborted = True
            except BaseException as raised:  # noqa: BLE001  # the application's code may raise anything, and ends the member
                error, self._aborted = raised, True
            self._is_closing = True
            if self._aborted:
                await self._stop_writing()  # otherwise the last commit has waited for all sends
            if self._assigned is not None and self._on_revoked is not None:
                error = await self._call_on_revoked(self._on_revoked, self._assigned) or error
            self._permit.stopped(self.task)  # the next owner need not wait for the rest
            await self._close()
        except Exception as raised:  # noqa: BLE001  # a store failed to close; the member must still hear the end
            error = error or raised
        finally:
            self._permit.ended(self.task, error)

    async def _run_grant(self) -> None:
        from aiokafka.errors import KafkaError, OffsetOutOfRangeError, ProducerFenced

        while not self._stopping.is_set():
            try:
                await self._open()
                await self._process()
                return
            except RefusedError as refused:
                _LOG.debug("task %s: %s", self.task, refused)
                self._aborted = True
                return
            except (ProducerFenced, OvertakenError) as error:
                failed = isinstance(error, KafkaError)
                self._permit.fenced(self.task)
                _LOG.warning("task %s, token %d: another owner has begun: %r", self.task, self.token, error)
            except (TopicReplacedError, RecordsLostError) as error:
                failed, self._was_out_of_range = False, isinstance(error, RecordsLostError)
                _LOG.warning("task %s: opening it again: %s", self.task, error)
            except (KafkaError, CommitRefusedError) as raised:
                why = raised.error if isinstance(raised, CommitRefusedError) else raised
                self._was_out_of_range = isinstance(why, OffsetOutOfRangeError)
                failed = not self._was_out_of_range
                self._judge(why)
            except DamagedStoreError as error:
                failed = False
                await self._permit.give_up_stores(self.task, error)
            self._aborted = True
            await self._stop_writing(failed=failed)
            await self._close()
            if self._parked is not None:
                self._permit.parked(self.token, self._parked)
                await self._stopping.wait()
                return
            self._aborted = False
            await asyncio.sleep(RETRY_S)
            # Reopening may fence a later owner, so the grant must still hold.
            if self._stopping.is_set() or not await self._permit.still_granted(self.task, self.token):
                return

    def _judge(self, error: Exception) -> None:
        """After a request has failed. Raises RefusedByBrokersError when the member is to end."""
        refused = self._refusals.judge(error, None if self._writer is None else self._writer.sizes)
        if refused is ForGood.MEMBER:
            raise RefusedByBrokersError(error_text(error)) from error
        if refused is ForGood.TASK:
            if self._opened is None:
                self._parked = parked(self.task, *self._refusals.last, error)
                self._failures.note(self._parked.topic or self._sources[0], "parked")
            self._to_park = error
        elif refused is ForGood.RECORD:
            _LOG.info("task %s: what was put or sent since its last commit is refused, looking for the record: %s", self.task, error_text(error))
        else:
            self._permit.failed(self.task, error)

    async def _open(self) -> None:
        clients = self._clients = self._clients or self._new_clients()
        writer = self._writer = TaskWriter(await clients.begin(), self.task, self._origin, clients.sizes)
        opened = await self._opening.open(clients, writer, was_out_of_range=self._was_out_of_range)
        self._opened = opened
        self._permit.restored(self.task)
        self._may_go_on()
        begun, self._assigned = self._assigned is None, opened.context
        self._uncommitted, self._sent = opened.write_stale_again(), []
        place = self._refusals.last
        self._refusals.reopened(self._uncommitted)
        if self._to_park is not None:
            opened.processing.park(*place, self._to_park)
            self._uncommitted = 0  # it might be refused, too
        self._set_due()
        if begun and self._on_assigned is not None:
            await call(self._on_assigned, opened.context)

    @property
    def _open_task(self) -> OpenTask:
        assert self._opened is not None, "a task that processes was opened"
        return self._opened

    # Processing

    async def _process(self) -> None:
        processing, former = self._open_task.processing, self.processed
        try:
            while not self._stopping.is_set():
                if processing.parked is not None:
                    await self._last_commit()
                    self._permit.parked(self.token, processing.parked)
                    await self._stopping.wait()
                    break
                found = await self._next_batch()
                if not self._uncommitted and self._monotonic_s() >= self._commit_by_s:
                    self._set_due()  # after a rest what comes first is not overdue
                goes_on = True
                for tp, records in found.items():
                    goes_on = await self._handle(tp, records)
                    if not goes_on:
                        break
                if self._timers:
                    await self._run_timers()
                if processing.parked is None:
                    await self._write_if_due()
                else:
                    continue
                if not goes_on or not self._goes_on():
                    break
                if self.processed - former >= FEW_RECORDS:
                    await self._turns.next(self.processed - former)  # other tasks, fetches and answers come in between
                    former = self.processed
            await self._last_commit(gives_back=self._stateful and self._options.transactional)
        except RefusedError:
            await self._commit_over()  # it began with a permit; if it comes too late, it is fenced
            if not self._called_off:
                await acknowledged(self._sent)
            raise
        finally:
            committing, self._committing = self._committing, None
            if committing is not None:
                await call_off(committing)
            self._of_member.note(self.task, 0)
            self._turn.leave()

    async def _last_commit(self, *, gives_back: bool = False) -> None:
        self._turn.come()
        self._uncommitted += gives_back
        await self._commit(gives_back=gives_back)
        await self._commit_over()
        await acknowledged(self._sent)  # if the commit was refused

    async def _handle(self, tp: TopicPartition, records: Sequence[ConsumedRecord]) -> bool:
        """Gives the records to the application, as long as the task may go on. Returns whether it
        has handled all of them: otherwise nothing that comes after them may be handled.
        """
        opened = self._open_task
        processing = opened.processing
        most, done = self._most_uncommitted(opened), 0
        self._begun_s = self._monotonic_s()
        while done < len(records) and processing.parked is None:
            if not self._is_permitted():
                self._note_busy()
                await self._write_if_due()
                await self._run_timers()
                await asyncio.sleep(0)  # a handler that never waits would hold up all other tasks
                self._begun_s = self._monotonic_s()
                if self._stopping.is_set() or processing.parked is not None or not self._may_go_on():
                    break
            end = min(len(records), done + max(1, most - self._uncommitted))
            handled = await processing.handle(records, done, end, self._boot_ms, self._permitted_until_ms)
            if handled:
                done += handled
                opened.positions[tp] = records[done - 1].offset + 1
                self.processed += handled
                self._uncommitted += handled
                self._refusals.handled(tp, records[done - 1].offset, handled)
                self._of_member.note(self.task, self._uncommitted)
            if processing.retry_in_s is not None:
                await self._wait_to_retry(processing.retry_in_s)
            elif self._uncommitted >= most or self._of_member.is_next(self.task):
                self._note_busy()
                await self._commit()
                if self._refusals.most is not None:
                    await self._commit_over()
                    self._refusals.back_to_usual(self._options.most_uncommitted_records)
                    most = self._most_uncommitted(opened)
                self._begun_s = self._monotonic_s()
            elif self._of_member.is_full:
                self._note_busy()
                await self._of_member.until_not_full()
                self._begun_s = self._monotonic_s()
        self._note_busy()
        return done == len(records)

    def _most_uncommitted(self, opened: OpenTask) -> int:
        most = min(self._options.most_uncommitted_records, max(MOST_AT_ONCE, self._of_member.most_of_task(opened.reading.reader.partitions)))
        return most if self._refusals.most is None else min(most, self._refusals.most)

    def _is_permitted(self) -> bool:
        return self._boot_ms() < self._permitted_until_ms

    def _goes_on(self) -> bool:
        """Returns `_may_go_on`, asked again only when the last permit is over."""
        return self._is_permitted() or self._may_go_on()

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
        if await self._open_task.processing.run_timers():
            self._uncommitted += 1
            self._refusals.handled(None, -1, 1)
            if self._refusals.most is not None:
                await self._commit()
                await self._commit_over()

    def _note_busy(self) -> None:
        self.busy_s += self._monotonic_s() - self._begun_s

    async def _next_batch(self) -> Mapping[TopicPartition, Sequence[ConsumedRecord]]:
        """The next records. If there are none, the task waits for more, or for its turn to commit;
        a task that is known to have many soon waits for them, until a commit is due.
        """
        reading = self._open_task.reading
        found = reading.take(self._most_at_once)
        if not found:
            wait_s: float | None = None  # whatever it waits for wakes it
            if self._uncommitted >= FEW_RECORDS and (self._open_task.behind or 0) >= MOST_AT_ONCE:
                if not self._is_committing:  # its end wakes the task
                    wait_s = max(0.0, self._commit_by_s - self._monotonic_s())
            elif self._uncommitted and self._options.transactional:
                await self._commit_early()
            elif self._uncommitted:
                await self._send_early()
                self._turn.want()
            times_s = [each for each in (wait_s, self._timers.wait_s()) if each is not None]
            self._is_waiting = True
            await reading.wait(min(times_s, default=None))
            self._is_waiting = False
            self._turn.withdraw()
            if not self._stopping.is_set() and self._goes_on():
                found = reading.take(self._most_at_once)
        return found

    async def _write_if_due(self) -> None:
        if self._commit_is_due():
            await self._commit()
        elif not self._options.transactional and (len(self._open_task.context.outputs) >= MOST_UNSENT or self._monotonic_s() >= self._send_by_s):
            await self._send_early()

    async def _commit_early(self) -> None:
        """With exactly_once. During a commit that is not open the task waits for its end."""
        commit = self._open_commit
        if commit is not None or not self._is_committing:
            records = self._uncommitted + (0 if commit is None else commit.processed)
            await self._commit(is_due=records >= self._most_uncommitted(self._open_task))
        else:
            self._open_task.announce_commit()

    async def _send_early(self) -> None:
        """Sends the outputs so far. Few wait for those that are on their way: a request for each
        would take longer. None are sent during a commit: after a crash the outputs of one commit
        are repeated.
        """
        outputs = self._open_task.context.outputs
        if not outputs or self._is_committing:
            return
        if len(outputs) < MOST_UNSENT and not all(each.appended.done() for each in self._last_sent):
            return
        if self._send_at_once(self._open_task):
            return
        await self._send_outputs()
        self._last_sent[-1].appended.add_done_callback(self._send_rest)

    def _send_rest(self, _: asyncio.Future[Any]) -> None:
        """Sends what had to wait for other outputs, which are appended now."""
        opened = self._opened
        if opened is None or not opened.context.outputs or self._is_committing:
            return
        if not self._is_waiting or not self._send_at_once(opened):
            self._wake()

    def _send_at_once(self, opened: OpenTask) -> bool:
        """Sends the outputs of a task that waits, without waking it. Returns whether it has
        succeeded: otherwise the task is to try again, and raises what is wrong.
        """
        outputs = opened.context.outputs
        if self._stopping.is_set() or (outputs and self._options.transactional):
            return False
        try:
            if not self._goes_on():
                return False
        except RefusedError:
            return False
        if outputs:
            sent = opened.writer.send_at_once(outputs)
            self._note_sent(sent)
            for each in sent[-1:]:
                each.appended.add_done_callback(self._send_rest)
        return not outputs

    async def _send_outputs(self) -> dict[TopicPartition, list[Unsent]]:
        """Sends the outputs since the last call; with exactly_once it returns them for the
        transaction. Raises CommitRefusedError when one of them is refused, RefusedError,
        KafkaError.
        """
        writer, outputs = self._open_task.writer, self._open_task.context.outputs
        by_partition: dict[TopicPartition, list[Unsent]] = {}
        try:
            if outputs:
                by_partition = await writer.by_partition(outputs)
        except InputError as error:
            raise CommitRefusedError(error) from error
        except asyncio.CancelledError:
            if self._called_off:
                raise
            raise _abandoned() from None
        if self._called_off:
            raise RefusedError("called off")  # should a request have swallowed that
        self._goes_on()  # raises RefusedError; a closing task still commits
        if self._options.transactional:
            return by_partition
        self._note_sent(await writer.send_outputs(by_partition) if by_partition else [])
        return {}

    def _note_sent(self, sent: list[SentBatch]) -> None:
        self._last_sent = sent or self._last_sent
        self._sent += sent
        self._send_by_s = self._monotonic_s() + SEND_S

    def _may_go_on(self) -> bool:
        """Called at least each PERMIT_MS while records are processed, outputs are sent and commits
        begin. False: commit and close the task. Raises RefusedError when the member may not process
        it.
        """
        refusal, until_ms = self._permit.permit(self.task)
        self._permitted_until_ms = until_ms if refusal is None else 0
        if refusal is not None and refusal != "closing":
            raise RefusedError(refusal)
        return refusal is None

    # Committing

    def _commit_is_due(self) -> bool:
        """Raises what a commit has raised that was under way."""
        if self._is_committing:
            return False
        if self._committing is not None:
            self._end_commit(self._committing)
        return self._turn.has_come or self._monotonic_s() >= self._commit_by_s

    @property
    def _is_committing(self) -> bool:
        return self._committing is not None and not self._committing.done()

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
            raise CommitRefusedError(error) from error

    @property
    def _open_commit(self) -> Commit | None:
        """The commit that is under way, if more can be added to it."""
        commit = self._written_commit
        return commit if commit is not None and self._is_committing and commit.is_open else None

    async def _commit(self, *, gives_back: bool = False, is_due: bool = True) -> None:
        """Begins a commit, after the end of the former one, or adds to that if it is open.
        `gives_back`: the task is closed. `is_due`: see `OpenTask.begin_commit`.
        """
        commit = self._open_commit
        if commit is None:
            await self._commit_over()
        if not self._uncommitted:
            if commit is not None and is_due:
                self._open_task.hurry(commit)
            self._of_member.note(self.task, 0)
            self._turn.leave()
            self._set_due()
            return
        if not self._options.transactional or (is_due and commit is None):
            await self._turn.wait()
        outputs = await self._send_outputs()
        commit = self._open_commit  # it may have closed meanwhile
        if commit is not None:
            self._open_task.extend_commit(commit, outputs, gives_back=gives_back, is_due=is_due)
            self._note_commit(commit)
        else:
            await self._commit_over()
            self._begin_commit(outputs, gives_back=gives_back, is_due=is_due)

    def _begin_commit(self, outputs: dict[TopicPartition, list[Unsent]], *, gives_back: bool = False, is_due: bool = True) -> None:
        commit = self._written_commit = self._open_task.begin_commit(outputs, self._sent, gives_back=gives_back, is_due=is_due)
        self._turn.begin()
        self._committing = self._open_task.write(commit, self._commit_ended)
        self._note_commit(commit)

    def _note_commit(self, commit: Commit) -> None:
        commit.processed += self._uncommitted
        self._uncommitted, self._sent = 0, []
        if self._committing is not None:
            self._of_member.begin(self.task, self._committing)

    def _turn_has_come(self) -> None:
        """Begins the commit of a task that waits, without waking it."""
        if self._is_waiting and self._send_at_once(self._open_task):
            self._begin_commit({})
        else:
            self._wake()

    def _commit_ended(self, error: BaseException | None) -> None:
        if error is None:
            self.commits += 1
            if self._written_commit is not None:
                self._refusals.committed(self._written_commit.processed, self._written_commit.positions)
            self._wake_if_more()
        else:
            self._wake()  # to raise it
        self._set_due()
        self._turn.end()

    def _set_due(self) -> None:
        # Counted from the end of the commit: else slow commits would hold a single record each.
        opened = self._opened
        is_behind = opened is not None and (opened.behind or 0) >= self._most_uncommitted(opened)
        now_s = self._monotonic_s()
        self._send_by_s = now_s + SEND_S
        self._commit_by_s = now_s + (max(BEHIND_S, self._interval_s) if is_behind else self._interval_s)

    # Closing

    async def _stop_writing(self, *, failed: bool = False) -> None:
        """After an abort. `failed`: what was sent could not be written."""
        writer, self._writer = self._writer, None
        if self._clients is not None:
            lost = failed and writer is not None and not self._options.transactional and not await writer.settled(CLOSE_S)
            await self._clients.stop_writing(failed=failed, at_once=self._called_off or lost)

    async def _close(self) -> None:
        self._opened = None
        if self._stateful:
            await self._permit.put_stores_back(self.task)
        clients, self._clients = self._clients, None
        if clients is not None:
            if not self._aborted:
                await clients.flush_offsets()
            await clients.close()

    async def _call_on_revoked(self, on_revoked: Callback, context: TaskContext) -> BaseException | None:
        try:
            await call(on_revoked, context)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001  # the application's code may raise anything
            return error
        return None


def _abandoned() -> Exception:
    from aiokafka.errors import KafkaConnectionError

    error: Exception = KafkaConnectionError("a request was cancelled, because the producer was abandoned")
    return error
