"""Runs one task under one grant, in the application's event loop: opens it (`opening.py`),
processes records, commits, and closes it.

Each commit sends everything since the last one began: outputs, changelog records and source
offsets, each with its origin, and the group's offsets (with changelogs a moment later). With
exactly_once that is a transaction, together with other tasks. More records are processed meanwhile.
When it commits, and sends outputs before that, is in `commit_schedule.py`; `open_task.py` writes
the commit.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from math import inf

from equipoise.events.errors import EquipoiseError
from equipoise.events.tasks import TaskId
from equipoise.hosting.runtime import Runtime
from equipoise.kafka.client import CLOSE_S, ConsumedRecord, TopicPartition
from equipoise.member.copies.origin import Origin
from equipoise.member.copies.stores import DamagedStoreError
from equipoise.member.options import MemberOptions
from equipoise.member.tasks.callbacks import call
from equipoise.member.tasks.clients import TaskClients
from equipoise.member.tasks.commit_schedule import FEW_RECORDS, CommitInput, CommitOrder, CommitTicks, Uncommitted
from equipoise.member.tasks.context import Callback, State, TaskContext
from equipoise.member.tasks.error_policy import FailedTask, error_text, place_of
from equipoise.member.tasks.failures import Failures
from equipoise.member.tasks.fatal_errors import begin_job, call_off_job, is_cancelled, settled
from equipoise.member.tasks.loop_turns import Turns
from equipoise.member.tasks.open_task import OpenTask, TaskCommits
from equipoise.member.tasks.opening import TaskOpening
from equipoise.member.tasks.processing import MOST_AT_ONCE, Processor, parked
from equipoise.member.tasks.refusals import CommitRefusedError, ForGood, RefusedByBrokersError, TaskRefusals, blames_record, is_clock_refused
from equipoise.member.tasks.runner_protocol import HeldPermit, OvertakenError, Permit, RefusedError
from equipoise.member.tasks.source_order import Run
from equipoise.member.tasks.sources import RecordsLostError, TopicReplacedError
from equipoise.member.tasks.timers import IntervalTimers
from equipoise.member.tasks.writer import TaskWriter

_LOG = logging.getLogger(__name__)
RETRY_S = 0.5
LONG_S = 60.0
"""A task that waits so long for its producer, its handler, or a commit that is due, is in trouble."""


class TaskState(enum.Enum):
    """The life of a task under one grant."""

    CREATED = "was granted"
    OPENING = "is restored and fenced"
    RUNNING = "processes records"
    PARKED = "handles nothing more, and keeps its grant"
    FAILED = "stops, to be opened again"
    RETRYING = "waits to be opened again"
    CLOSING = "closes"
    CLOSED = "is over"


TASK_STATES: Mapping[TaskState, frozenset[TaskState]] = {
    TaskState.CREATED: frozenset((TaskState.OPENING, TaskState.CLOSING)),
    TaskState.OPENING: frozenset((TaskState.RUNNING, TaskState.FAILED, TaskState.CLOSING)),
    TaskState.RUNNING: frozenset((TaskState.PARKED, TaskState.FAILED, TaskState.CLOSING)),
    TaskState.PARKED: frozenset((TaskState.FAILED, TaskState.CLOSING)),
    TaskState.FAILED: frozenset((TaskState.RETRYING, TaskState.PARKED, TaskState.CLOSING)),
    TaskState.RETRYING: frozenset((TaskState.OPENING, TaskState.CLOSING)),
    TaskState.CLOSING: frozenset((TaskState.CLOSED,)),
    TaskState.CLOSED: frozenset(),
}
"""State -> those that may follow it."""
BUSY_S = 0.005
"""Handlers that took longer since then let tasks that open or close go first."""
_ABORTABLE = frozenset((TaskState.OPENING, TaskState.RUNNING, TaskState.PARKED, TaskState.RETRYING))
"""States with something to abort. The others end by themselves, without another record."""


class WrongTaskStateError(EquipoiseError):
    """A task was to go to a state that cannot follow its own: a defect."""


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
        self._monotonic_s, self._boot_ms, self._commit_interval_s = runtime.monotonic_s, runtime.boot_ms, options.commit_interval_s
        self._held = HeldPermit(permit, task, runtime.boot_ms)
        self._new_clients = new_clients
        self._stateful = stateful
        self._options = options
        self._most_at_once = min(options.most_uncommitted_records, MOST_AT_ONCE)
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._origin = Origin(0, log_id, group, str(task), token)
        self._timers = IntervalTimers(runtime.monotonic_s, lambda: runtime.wall_us() // 1_000)
        self._stopping = asyncio.Event()
        self._refusals = TaskRefusals(runtime.monotonic_s)
        self._sources, self._failures = processor.sources, failures or Failures()
        self._opening = TaskOpening(
            permit,
            group,
            task,
            self._origin,
            stateful=stateful,
            options=options,
            processor=processor,
            timers=self._timers,
            stopping=self._stopping,
            refusals=self._refusals,
            failures=self._failures,
            clock=runtime.monotonic_s,
        )
        self.state = TaskState.CREATED
        self._to_park: BaseException | None = None
        """Why the task is parked as soon as it has opened again, before its first record."""
        self._parked: FailedTask | None = None
        """Why it is parked although it cannot be opened."""
        self._called_off = False
        self._job: asyncio.Task[None] | None = None
        self._clients = connected
        self._writer: TaskWriter | None = None
        self._opened: OpenTask | None = None
        self._commits: TaskCommits | None = None
        """Of the task that is open, or was."""
        self._assigned: TaskContext | None = None
        """The context with which the task was opened last; None: it never was."""
        self._was_out_of_range = False
        """Whether a broker had no records at a source position, or has lost some before it."""
        self._of_member, self._ticks, self._turns = uncommitted, ticks, turns
        self._begun_s = 0.0
        self._writer_since_s = inf
        """Since when it waits for a producer that may write; inf: it does not."""
        self.processed = 0
        """Number of records given to the handler. Any thread may read it."""
        self.commits = 0
        """Number of commits. Any thread may read it."""
        self.busy_s = 0.0
        """Seconds spent in the handler, waits included. Any thread may read it."""
        self._gave_way_s = 0.0
        """As `busy_s`, when it let others go first."""

    @property
    def parked(self) -> FailedTask | None:
        """Returns why the task handles nothing more; None: it does. Any thread may read it."""
        opened = self._opened
        return self._parked if opened is None else opened.processing.parked

    def trouble(self, now_s: float) -> str:
        """Returns what the task has waited for longer than LONG_S; "": nothing. Any thread may call
        it.
        """
        if now_s - self._writer_since_s > LONG_S:
            return f"task {self.task} waits for its producer, and processes nothing; the member's log says why"
        commits = self._commits
        if commits is not None and now_s - commits.begun_s > LONG_S + self._commit_interval_s:
            return f"task {self.task} waits for the end of a commit; the member's log says why"
        opened = self._opened
        awaits = None if opened is None else opened.processing.awaits
        if awaits is not None and now_s - awaits[0] > LONG_S:
            place = place_of(awaits[1].topic, awaits[1].partition, awaits[1].offset)
            return f"task {self.task} waits for its handler for over {LONG_S:.0f} s, with {place}; give the handler a timeout of its own"
        return ""

    @property
    def states(self) -> Mapping[str, State] | None:
        """Returns changelog topic -> state; None: the task is not open."""
        opened = self._opened
        return None if opened is None else opened.context.states

    @property
    def behind(self) -> int | None:
        """Source records still to be processed, by ends that are some seconds old at most; None:
        unknown. Any thread may read it.
        """
        opened = self._opened
        return None if opened is None else opened.behind

    @property
    def out_of_order(self) -> int:
        """Number of records that came behind later ones of another source. Any thread may read it."""
        return 0 if self._opening.order is None else self._opening.order.out_of_order

    def start(self) -> None:
        """Begins to open and process the task."""
        self._job = begin_job(self._run())

    def stop(self, *, abort: bool) -> None:
        """Stops the task: after the record at hand and a commit, or with `abort` at once, without
        another write.
        """
        self._stopping.set()
        if self.state not in (TaskState.CLOSING, TaskState.CLOSED):
            self._turns.hurry(self)
        if self._commits is not None:
            self._commits.come()
        if abort and not self._called_off and self.state in _ABORTABLE and self._job is not None:
            self._called_off = True
            if self._commits is not None:
                self._commits.call_off()
            call_off_job(self._job)

    def _go_to(self, state: TaskState) -> None:
        if state not in TASK_STATES[self.state]:
            raise WrongTaskStateError(f"task {self.task} cannot go from {self.state.name} to {state.name}")
        self.state = state

    # From the grant to its end

    async def _run(self) -> None:
        error: BaseException | None = None
        in_order = False
        try:
            try:
                in_order = await self._run_grant()
            except asyncio.CancelledError:
                if not is_cancelled():
                    _LOG.error("task %s: the application has cancelled an asyncio task of the member's; opening this task again", self.task)
                    await settled()
            except BaseException as raised:  # noqa: BLE001  # the application's code may raise anything, and ends the member
                error = raised
            self._go_to(TaskState.CLOSING)
            if not in_order:
                await self._stop_writing()  # otherwise the last commit has waited for all sends
            if self._assigned is not None and self._on_revoked is not None:
                error = await self._call_on_revoked(self._on_revoked, self._assigned) or error
            self._turns.hurried(self)
            self._permit.stopped(self.task)  # the next owner need not wait for the rest
            await self._close(in_order=in_order)
        except Exception as raised:  # noqa: BLE001  # a store failed to close; the member must still hear the end
            error = error or raised
        finally:
            self._turns.hurried(self)
            if self._clients is not None:
                self._clients.clock.over(self.task, is_committed=False)
            self._go_to(TaskState.CLOSED)
            self._permit.ended(self.task, error)

    async def _run_grant(self) -> bool:
        """Returns at the end of the grant whether the task has written all that it had."""
        from aiokafka.errors import KafkaError, OffsetOutOfRangeError, ProducerFenced

        self._turns.hurry(self)  # once: a task that brokers keep from opening must not hold up the others again and again
        while not self._stopping.is_set():
            self._go_to(TaskState.OPENING)
            try:
                await self._open()
                self._go_to(TaskState.RUNNING)
                await self._process()
                return True
            except RefusedError as refused:
                _LOG.debug("task %s: %s", self.task, refused)
                return False
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
            self._go_to(TaskState.FAILED)
            await self._stop_writing(failed=failed)
            await self._close(in_order=False)
            if self._parked is not None:
                await self._stay_parked(self._parked)
                return False
            self._go_to(TaskState.RETRYING)
            await asyncio.sleep(RETRY_S)
            # Reopening may fence a later owner, so the grant must still hold.
            if self._stopping.is_set() or not await self._permit.still_granted(self.task, self.token):
                break
        return True

    def _judge(self, error: Exception) -> None:
        """After a request has failed. Raises RefusedByBrokersError when the member is to end."""
        is_time = type(error).__name__ == "InvalidTimestampError" and blames_record(error)
        if is_time and self._clients is not None and self._clients.clock.explains():
            vars(error).update(is_of_record=False, is_either=True)
        refused = self._refusals.judge(error, None if self._writer is None else self._writer.sizes)
        if refused is ForGood.MEMBER:
            raise RefusedByBrokersError(error_text(error)) from error
        if refused is ForGood.TASK:
            if self._opened is None:
                self._parked = parked(self.task, *self._refusals.last, error, self._failures)
                self._failures.note(self._parked.topic or self._sources[0], "parked")
            self._to_park = error
        elif refused is ForGood.RECORD:
            _LOG.info("task %s: what was put or sent since its last commit is refused, looking for the record: %s", self.task, error_text(error))
        elif is_clock_refused(error) and not vars(error).get("is_either") and self._clients is not None:
            self._clients.clock.refused(self.task, str(vars(error).get("topic", "")))
        else:
            self._permit.failed(self.task, error)

    async def _open(self) -> None:
        clients = self._clients = self._clients or self._new_clients()
        self._writer_since_s = min(self._writer_since_s, self._monotonic_s())
        writer = self._writer = TaskWriter(await clients.begin(), self.task, self._origin, clients.sizes)
        self._writer_since_s = inf
        opened = await self._opening.open(clients, writer, was_out_of_range=self._was_out_of_range)
        self._opened = opened
        self._permit.restored(self.task)
        self._held.ask()
        begun, self._assigned = self._assigned is None, opened.context
        stale, place = opened.write_stale_again(), self._refusals.last
        self._refusals.reopened(stale)
        if self._to_park is not None:
            opened.processing.park(*place, self._to_park)
            stale = 0  # it might be refused, too
        await opened.processing.begin(self._on_assigned if begun else None)
        opened.context.end_call()
        options = self._options
        commits = self._commits = TaskCommits(
            opened,
            self._held,
            self._ticks,
            self._of_member,
            transactional=options.transactional,
            interval_s=options.commit_interval_s,
            stopping=self._stopping,
            monotonic_s=self._monotonic_s,
            most=self._most_uncommitted,
            committed=self._committed,
        )
        commits.processed(stale)
        commits.schedule.set_due(self._monotonic_s())

    @property
    def _open_task(self) -> tuple[OpenTask, TaskCommits]:
        assert self._opened is not None, "a task that processes was opened"
        assert self._commits is not None, "it has a schedule then"
        return self._opened, self._commits

    def _most_uncommitted(self) -> int:
        opened, _ = self._open_task
        most = min(self._options.most_uncommitted_records, max(MOST_AT_ONCE, self._of_member.most_of_task(opened.reading.reader.partitions)))
        return most if self._refusals.most is None else min(most, self._refusals.most)

    def _committed(self, records: int, offsets: Mapping[TopicPartition, int]) -> None:
        self.commits += 1
        self._refusals.committed(records, offsets)
        if self._clients is not None:
            self._clients.clock.over(self.task, is_committed=True)

    @property
    def is_committing(self) -> bool:
        """Returns whether a commit is under way."""
        return self._commits is not None and self._commits.schedule.is_committing

    # Processing

    async def _stay_parked(self, parked: FailedTask) -> None:
        """Returns when the task is to stop: an operator looks at it meanwhile."""
        self._go_to(TaskState.PARKED)
        self._permit.parked(self.token, parked)
        await self._stopping.wait()

    async def _process(self) -> None:
        opened, commits = self._open_task
        processing, former = opened.processing, self.processed
        try:
            while not self._stopping.is_set():
                if processing.parked is not None:
                    await self._last_commit()
                    await self._stay_parked(processing.parked)
                    break
                found = await self._next_batch()
                if found and not self.processed and not self._stopping.is_set():
                    self._turns.hurried(self)
                commits.tell(CommitInput.LOOKED)
                goes_on = True
                for tp, records in found:
                    goes_on = await self._handle(tp, records)
                    if not goes_on:
                        break
                if self._timers:
                    await self._run_timers()
                if processing.parked is None:
                    await commits.at(CommitInput.BATCH_OVER)
                else:
                    continue
                if not goes_on or not self._held.goes_on():
                    break
                if self.processed - former >= FEW_RECORDS:
                    await self._turns.next(self.processed - former)  # other tasks, fetches and answers come in between
                    former = self.processed
            await self._last_commit(gives_back=self._stateful and self._options.transactional)
        except RefusedError:
            await commits.over()  # it began with a permit; if it comes too late, it is fenced
            await commits.acknowledged()
            raise
        finally:
            await commits.close()

    async def _last_commit(self, *, gives_back: bool = False) -> None:
        _, commits = self._open_task
        commits.come()
        if gives_back:
            commits.processed(1)
        await commits.commit(gives_back=gives_back)
        await commits.over()
        await commits.acknowledged()  # if the commit was refused

    async def _next_batch(self) -> Collection[Run]:
        """The next records. If there are none, the task waits for more, or for its turn to commit;
        a task that is known to have many soon waits for them, until a commit is due.
        """
        opened, commits = self._open_task
        found = opened.reading.runs(self._most_at_once)
        if not found:
            if opened.behind == 0 and not self._stopping.is_set():
                self._turns.hurried(self)
            await commits.at(CommitInput.NOTHING_TO_READ)
            times_s = [each for each in (self._timers.wait_s(), opened.reading.look_again_s) if each is not None]
            await commits.wait(min(times_s, default=None))
            if not self._stopping.is_set() and self._held.goes_on():
                found = opened.reading.runs(self._most_at_once)
        return found

    async def _handle(self, tp: TopicPartition, records: Sequence[ConsumedRecord]) -> bool:
        """Gives the records to the application, as long as the task may go on. Returns whether it
        has handled all of them: otherwise nothing that comes after them may be handled.
        """
        opened, commits = self._open_task
        processing, schedule, done = opened.processing, commits.schedule, 0
        self._begun_s = self._monotonic_s()
        while done < len(records) and processing.parked is None:
            if not self._held.is_valid:
                self._note_busy()
                await commits.at(CommitInput.BATCH_OVER)
                await self._run_timers()
                await asyncio.sleep(0)  # a handler that never waits would hold up all other tasks
                if self.busy_s - self._gave_way_s > BUSY_S:
                    self._gave_way_s = self.busy_s
                    await self._turns.give_way(self)
                self._begun_s = self._monotonic_s()
                if self._stopping.is_set() or processing.parked is not None or not self._held.ask():
                    break
            end = min(len(records), done + max(1, self._most_uncommitted() - schedule.records))
            handled = await processing.handle(records, done, end, self._boot_ms, self._held.until_ms)
            if handled:
                done += handled
                opened.offsets[tp] = records[done - 1].offset + 1
                self.processed += handled
                self._refusals.handled(tp, records[done - 1].offset, handled)
            order = commits.processed(handled)
            if processing.retry_in_s is not None:
                await self._wait_to_retry(processing.retry_in_s)
            elif order is not CommitOrder.NOTHING:
                self._note_busy()
                await (self._commit_whole() if order is CommitOrder.COMMIT else commits.hold_back())
                self._begun_s = self._monotonic_s()
        self._note_busy()
        return done == len(records)

    async def _commit_whole(self) -> None:
        """Begins a commit. While a refused record is looked for, returns at its end."""
        _, commits = self._open_task
        await commits.commit()
        if self._refusals.most is not None:
            await commits.over()
            self._refusals.back_to_usual(self._options.most_uncommitted_records)

    async def _wait_to_retry(self, seconds: float) -> None:
        """Before a record is handled again. What was handled before it does not wait."""
        self._held.until_ms = 0
        if seconds:
            self._note_busy()
            await self._open_task[1].commit()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), seconds)
            self._begun_s = self._monotonic_s()

    async def _run_timers(self) -> None:
        opened, commits = self._open_task
        if await opened.processing.run_timers():
            commits.processed(1)
            self._refusals.handled(None, -1, 1)
            if self._refusals.most is not None:
                await commits.commit()
                await commits.over()

    def _note_busy(self) -> None:
        self.busy_s += self._monotonic_s() - self._begun_s

    # Closing

    async def _stop_writing(self, *, failed: bool = False) -> None:
        """After an abort. `failed`: what was sent could not be written."""
        writer, self._writer = self._writer, None
        if self._clients is not None:
            lost = failed and writer is not None and not self._options.transactional and not await writer.settled(CLOSE_S)
            await self._clients.stop_writing(failed=failed, at_once=self._called_off or lost)

    async def _close(self, *, in_order: bool) -> None:
        self._opened = None
        if self._stateful:
            await self._permit.put_stores_back(self.task)
        clients, self._clients = self._clients, None
        if clients is not None:
            if in_order:
                await clients.flush_offsets()
            await clients.close()

    async def _call_on_revoked(self, on_revoked: Callback, context: TaskContext) -> BaseException | None:
        try:
            await call(on_revoked, context)
            context.end_call()
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001  # the application's code may raise anything
            return error
        return None
