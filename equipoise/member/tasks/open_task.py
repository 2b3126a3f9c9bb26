"""A task that was opened: what it reads, keeps and writes, how one commit is written, and how the
orders of its schedule (`commit_schedule.py`) are carried out.

With exactly_once a commit is part of a transaction. With at_least_once its outputs may have been
sent before; the changelogs follow when they are acknowledged. Only acknowledged changes go to the
store, so it is never ahead of its changelog.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import chain
from math import inf
from typing import Any

import attrs

from equipoise.events.errors import InputError
from equipoise.events.tasks import TaskId
from equipoise.kafka.client import Producer, SentBatch, TopicPartition, Unsent, acknowledged, call_off
from equipoise.member.copies.fencing import FENCE_KEY, GIVEN_BACK, SOURCE_TOPICS_KEY, SOURCES_KEY, FencedStore
from equipoise.member.tasks.clients import TaskClients
from equipoise.member.tasks.commit_schedule import (
    AT_LEAST_ONCE,
    EXACTLY_ONCE,
    CommitInput,
    CommitOrder,
    CommitSchedule,
    CommitTicks,
    Uncommitted,
)
from equipoise.member.tasks.context import TaskContext, pack_sources
from equipoise.member.tasks.placing import SourcePlacing
from equipoise.member.tasks.processing import Processing
from equipoise.member.tasks.refusals import CommitRefusedError
from equipoise.member.tasks.runner_protocol import HeldPermit, OvertakenError, RefusedError
from equipoise.member.tasks.sources import TaskSources
from equipoise.member.tasks.transactions import TransactionPart, abandoned
from equipoise.member.tasks.writer import TaskWriter, WrittenChanges
from equipoise.replay.wording import counted


@attrs.define(eq=False)
class Commit:
    """Contents of a commit. `sent`: outputs that are sent already. `changes`: changelog topic ->
    all changes and, when they are written, the source offsets. `queued`, `written`: what was
    queued for the changelogs, and appended to them. With exactly_once, `part`: of its transaction.
    """

    sent: list[SentBatch]
    changes: Mapping[str, dict[bytes, bytes | None]]
    offsets: dict[TopicPartition, int]
    part: TransactionPart | None = None
    queued: dict[str, list[SentBatch]] = attrs.field(factory=dict)
    written: Mapping[str, WrittenChanges] = attrs.field(factory=dict)

    @property
    def is_open(self) -> bool:
        """Returns whether `OpenTask.extend_commit` may add to it: one that is due takes no more."""
        return self.part is not None and not self.part.is_closed and not self.part.is_due


class OpenTask:
    """A task that was opened. `stores`: changelog topic -> store. `offsets`: source partition ->
    offset of the next record to process. `placing`: where its offsets are written.
    `fence`: what the first commit has to write under FENCE_KEY; None: that is written.
    """

    def __init__(
        self,
        task: TaskId,
        *,
        transactional: bool,
        clients: TaskClients,
        writer: TaskWriter,
        stores: Mapping[str, FencedStore],
        context: TaskContext,
        processing: Processing,
        offsets: dict[TopicPartition, int],
        placing: SourcePlacing,
        fence: bytes | None = None,
    ) -> None:
        self.writer = writer
        self.reading: TaskSources = clients.sources
        self.context = context
        self.processing = processing
        self.offsets = offsets
        self._task = task
        self._transactional = transactional
        self._clients = clients
        self._stores = stores
        self._placing = placing
        self._fence = fence
        context.behind = lambda: self.behind
        self._next_offsets: dict[str, tuple[int, ...]] = {topic: (each.offset,) for topic, each in stores.items()}
        """Changelog topic -> offsets that the next record may have, unless another process writes.
        """

    @property
    def behind(self) -> int | None:
        """Source records still to be processed, by ends that are some seconds old at most; None:
        unknown. Any thread may read it.
        """
        behind: int | None = None
        for tp, offset in list(self.offsets.items()):
            records = self.reading.behind(tp, offset)
            if records is None:
                return None
            behind = (behind or 0) + records
        return behind

    def write_stale_again(self) -> int:
        """Adds to the next commit what a former owner has overwritten in the changelogs too late.
        Returns the number of keys.
        """
        stale = {topic: each.stale_changes() for topic, each in self._stores.items()}
        for topic, changes in stale.items():
            self.context.states[topic].write_again(changes)
        return sum(map(len, stale.values()))

    def begin_commit(
        self, outputs: dict[TopicPartition, list[Unsent]], sent: list[SentBatch], *, gives_back: bool = False, is_due: bool = True
    ) -> Commit:
        """A commit of everything since the former one, which is over. `gives_back`: it is the last
        one. `is_due`: with exactly_once, it does not wait for more; nor does one with a fence,
        because until it is over nobody knows whose transaction it is.
        """
        is_due |= self._fence is not None
        own = self._fence_to_write(gives_back=gives_back)
        if not self._transactional:
            own[SOURCES_KEY] = self._sources(self.offsets)
        if self._placing.source_topics is not None:  # behind the offsets: who has these only reads records again
            own[SOURCE_TOPICS_KEY], self._placing.source_topics = self._placing.source_topics, None
        commit = Commit(sent, {topic: state.begin_commit(own) for topic, state in self.context.states.items()}, dict(self.offsets))
        if self._transactional:
            part = commit.part = TransactionPart(
                self._task,
                _number(outputs, commit.changes),
                self._queue_outputs,
                partial(self._queue_changes, commit),
                partial(self._check, commit),
                offsets={} if commit.changes else commit.offsets,
                is_due=is_due,
            )
            part.outputs = outputs
            part.changes = {topic: changes if is_due else dict(changes) for topic, changes in commit.changes.items()}
            self._note_place(commit, part)
        return commit

    def extend_commit(self, commit: Commit, outputs: Mapping[TopicPartition, list[Unsent]], *, gives_back: bool = False, is_due: bool = True) -> None:
        """Adds everything since the last call, or the begin of the commit, which is open."""
        part, own = _part(commit), self._fence_to_write(gives_back=gives_back)
        changes = {topic: state.extend_commit(own) for topic, state in self.context.states.items()}
        for topic, more in changes.items():
            part.changes.setdefault(topic, {}).update(more)
        self._note_place(commit, part)
        commit.offsets.update(self.offsets)
        for place, records in outputs.items():
            part.outputs.setdefault(place, []).extend(records)
        part.records += _number(outputs, changes)
        self._extended(part, is_due=is_due)

    def hurry(self, commit: Commit) -> None:
        """The commit, which is open, is due now."""
        self._extended(_part(commit), is_due=True)

    def announce_commit(self) -> None:
        """There will be another one when the one that is under way is over."""
        if self._clients.transactions is not None:
            self._clients.transactions.announce(self._task)

    def _extended(self, part: TransactionPart, *, is_due: bool) -> None:
        part.is_due |= is_due
        if self._clients.transactions is not None:
            self._clients.transactions.extended(part)

    def _fence_to_write(self, *, gives_back: bool) -> dict[bytes, bytes]:
        fence, self._fence = GIVEN_BACK if gives_back else self._fence, None
        return {} if fence is None else {FENCE_KEY: fence}

    def _note_place(self, commit: Commit, part: TransactionPart) -> None:
        """A task without changelogs writes its offsets when its transaction closes."""
        if not commit.changes:
            part.changes.setdefault(self._placing.place.topic, {})
            part.written_to.add(self._placing.place)

    def _sources(self, offsets: Mapping[TopicPartition, int]) -> bytes:
        """Also of sources that the task read before: it may read them again."""
        return pack_sources({**self._placing.kept, **offsets}, {**self._placing.kept_epochs, **self.reading.epochs})

    def _records(self, offsets: Mapping[TopicPartition, int], transactional_id: str) -> list[Unsent]:
        return self._placing.records(offsets, self.reading.epochs, transactional_id)

    def write(self, commit: Commit, ended: Callable[[BaseException | None], None], closes: Callable[[], None] = lambda: None) -> asyncio.Future[None]:
        """Writes the commit. The future ends when that is acknowledged and in the stores; it raises
        KafkaError, InputError, OvertakenError. `ended` is called with the error, or None, right
        before the end; `closes` when its transaction takes no more.
        """
        if not self._transactional:
            return asyncio.ensure_future(self._commit_plainly(commit, ended))
        transactions, part = self._clients.transactions, _part(commit)
        assert transactions is not None, "a task with exactly_once was opened"
        part.ended, part.closes = partial(self._transaction_ended, commit, ended), closes
        transactions.add(part)
        return part.committed

    def _transaction_ended(self, commit: Commit, ended: Callable[[BaseException | None], None], error: BaseException | None) -> None:
        commit.part = None  # which leads back to the commit: its changes would stay in memory until garbage is collected
        if error is None:
            self._to_stores(commit)
            if commit.written:
                self._clients.report_offsets(commit.offsets, self.writer.producer)
            elif not commit.changes:
                self._placing.keep(self._clients, commit.offsets, self.reading.epochs)
        ended(error)

    def _queue_outputs(self, part: TransactionPart, producer: Producer) -> Sequence[SentBatch]:
        self.writer.use(producer)
        outputs, part.outputs = part.outputs, {}
        return self.writer.queue_outputs(outputs)

    def _queue_changes(self, commit: Commit, part: TransactionPart, producer: Producer) -> Sequence[SentBatch]:
        self.writer.use(producer)
        changes, part.changes = part.changes, {}
        if not commit.changes:
            assert self._clients.transactions is not None, "a task with exactly_once was opened"
            part.notes = self._placing.notes(commit.offsets, self.reading.epochs)
            return self.writer.queue_outputs({self._placing.place: self._records(commit.offsets, self._clients.transactions.id)}, is_own=True)
        sources = self._sources(commit.offsets)
        for topic, each in changes.items():
            each[SOURCES_KEY] = commit.changes[topic][SOURCES_KEY] = sources
        queued = self.writer.queue_changes(changes)
        for topic, batches in queued.items():
            commit.queued.setdefault(topic, []).extend(batches)
        return list(chain.from_iterable(queued.values()))

    def _check(self, commit: Commit) -> None:
        commit.written = self.writer.written(commit.queued)
        self._check_followed(commit.written)

    async def _commit_plainly(self, commit: Commit, ended: Callable[[BaseException | None], None]) -> None:
        try:
            # Outputs first: once the changelog has the offsets, no record is processed again.
            await acknowledged(commit.sent)
            if commit.changes:
                commit.written = await self.writer.append_changes(commit.changes)
                try:
                    self._check_followed(commit.written)
                except OvertakenError:
                    await self._withdraw(commit)
                    raise
                self._to_stores(commit)
            else:
                await acknowledged(await self.writer.send_outputs({self._placing.place: self._records(commit.offsets, "")}, is_own=True))
                self._placing.keep(self._clients, commit.offsets, self.reading.epochs)
            self._clients.report_offsets(commit.offsets, self.writer.producer)  # the next owner reads them elsewhere
        except BaseException as error:
            ended(error)
            raise
        ended(None)

    async def _withdraw(self, commit: Commit) -> None:
        """Removes the commit from changelogs that were made again: its few changes, and offsets,
        would be taken for the whole state.
        """
        ids = await self.reading.reader.topic_ids(list(commit.changes), self.reading.partitions[0])
        copied = {topic: self._stores[topic].copied for topic in commit.changes}
        again = [topic for topic, each in copied.items() if each is not None and each.topic_id not in ("", ids.get(topic, each.topic_id))]
        if again:
            await self.writer.append_changes({topic: dict.fromkeys(commit.changes[topic]) for topic in again})

    def _check_followed(self, written: Mapping[str, WrittenChanges]) -> None:
        """Raises OvertakenError when another process has written to a changelog behind what is in
        the store, or between the records of this commit.
        """
        for topic, each in written.items():
            known = self._next_offsets[topic]
            if each.first not in known or each.end != each.first + each.records:
                place = f"{topic}/{self._task.partition} at {known[0]}"
                raise OvertakenError(f"{place}: wrote {counted(each.records, 'record')} to {each.first}..{each.end - 1}")

    def _to_stores(self, commit: Commit) -> None:
        for topic, last in commit.written.items():
            self._stores[topic].apply_written(commit.changes[topic], last.headers, offset=last.end)
            # Kafka 4.3 leaves a marker out where a partition has no leader (KAFKA-20734): the
            # next one ends both transactions.
            self._next_offsets[topic] = last.behind(transactional=self._transactional), last.end


LONGEST_WAIT_S = 1.0
"""Commits that take longer, because one broker does not answer, hold up other tasks no longer."""


class TaskCommits:
    """Carries out the orders of an open task's schedule. `most`: returns how many records one
    commit takes at most. `committed`: called with the number of records and the source offsets of
    each commit that is over.
    """

    def __init__(
        self,
        task: OpenTask,
        permit: HeldPermit,
        ticks: CommitTicks,
        of_member: Uncommitted,
        *,
        transactional: bool,
        interval_s: float,
        stopping: asyncio.Event,
        monotonic_s: Callable[[], float],
        most: Callable[[], int],
        committed: Callable[[int, Mapping[TopicPartition, int]], None],
    ) -> None:
        self._task, self._permit, self._stopping, self._monotonic_s = task, permit, stopping, monotonic_s
        self._transactional, self._most, self._committed = transactional, most, committed
        self.schedule = CommitSchedule(EXACTLY_ONCE if transactional else AT_LEAST_ONCE, interval_s, self, ticks, of_member, self._turn_came)
        self._turn = asyncio.Event()
        self._sent: list[SentBatch] = []
        """Outputs of the next commit that are on their way."""
        self._last_sent: Sequence[SentBatch] = ()
        """The outputs that were sent last."""
        self._commit: Commit | None = None
        """The commit that is under way, or the former one."""
        self._committing: asyncio.Future[None] | None = None
        """Its end, while more records are processed."""
        self.begun_s = inf
        """When it has begun; inf: none is under way."""
        self._is_called_off = False

    # What the schedule asks

    @property
    def unsent(self) -> int:
        return len(self._task.context.outputs)

    @property
    def is_acknowledged(self) -> bool:
        return all(each.appended.done() for each in self._last_sent)

    @property
    def behind(self) -> int | None:
        return self._task.behind

    @property
    def most(self) -> int:
        return self._most()

    # What the task tells

    def tell(self, heard: CommitInput) -> CommitOrder:
        return self.schedule.tell(heard, self._monotonic_s())

    def processed(self, records: int) -> CommitOrder:
        return self.schedule.processed(records, self._monotonic_s())

    async def at(self, heard: CommitInput) -> None:
        """Tells that, and does what is ordered. Raises what a commit or a send has raised."""
        order = self.tell(heard)
        if order is CommitOrder.COMMIT:
            await self.commit()
        elif order is CommitOrder.COMMIT_EARLY:
            await self.commit(is_due=False)
        elif order is CommitOrder.SEND and not self._send_at_once():
            await self._send_outputs()
            self._last_sent[-1].appended.add_done_callback(self._acknowledged)
        elif order is CommitOrder.ANNOUNCE:
            self._task.announce_commit()
        elif order is CommitOrder.AWAIT_END:
            await self.over()

    async def wait(self, most_s: float | None) -> None:
        """Returns when there may be more records, the task is woken, or after `most_s`."""
        self.tell(CommitInput.WAITS)
        times_s = [each for each in (self.schedule.wait_s(self._monotonic_s()), most_s) if each is not None]
        await self._task.reading.wait(min(times_s, default=None))
        self.schedule.woken()

    def come(self) -> None:
        """Its last commit waits for no other task."""
        self.schedule.come(self._monotonic_s())

    def call_off(self) -> None:
        """Nothing more is written."""
        self._is_called_off = True
        if self._committing is not None:
            self._committing.cancel()

    async def hold_back(self) -> None:
        """Returns when tasks of the member may process more, or after LONGEST_WAIT_S."""
        of_member = self.schedule.of_member
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LONGEST_WAIT_S):
                while of_member.is_held_back:
                    over = asyncio.Event()
                    of_member.held_back.append(over.set)
                    await over.wait()

    async def commit(self, *, gives_back: bool = False, is_due: bool = True) -> None:
        """Begins a commit, after the end of the former one, or adds to that if it is open.
        `gives_back`: the task is closed. `is_due`: see `OpenTask.begin_commit`. Raises what the
        former commit has raised, CommitRefusedError when an output is refused, RefusedError,
        KafkaError.
        """
        asked = CommitInput.ASKED_DUE if is_due else CommitInput.ASKED
        while (order := self.tell(asked)) is CommitOrder.AWAIT_TURN or order is CommitOrder.AWAIT_END:
            if order is CommitOrder.AWAIT_TURN:
                self._turn.clear()
                await self._turn.wait()
            else:
                await self.over()
        if order is CommitOrder.HURRY and self._commit is not None:
            self._task.hurry(self._commit)
            self.tell(CommitInput.ADDED_DUE)
        if order is not CommitOrder.TAKE_OUTPUTS:
            return
        outputs = await self._send_outputs()
        while (order := self.tell(CommitInput.READY)) is CommitOrder.AWAIT_END:
            await self.over()
        if order is CommitOrder.EXTEND and self._commit is not None:
            self._task.extend_commit(self._commit, outputs, gives_back=gives_back, is_due=is_due)
            self.tell(CommitInput.ADDED_DUE if is_due else CommitInput.ADDED)
        else:
            self._begin(outputs, gives_back=gives_back, is_due=is_due)

    def _begin(self, outputs: dict[TopicPartition, list[Unsent]], *, gives_back: bool = False, is_due: bool = True) -> None:
        commit = self._commit = self._task.begin_commit(outputs, self._sent, gives_back=gives_back, is_due=is_due)
        self._sent = []
        self.tell(CommitInput.BEGUN if commit.is_open else CommitInput.BEGUN_DUE)
        self.begun_s = self._monotonic_s()
        self._committing = self._task.write(commit, self._ended, self._closes)

    def _closes(self) -> None:
        self.tell(CommitInput.TRANSACTION_CLOSES)

    def _ended(self, error: BaseException | None) -> None:
        self.begun_s = inf
        if error is None and self._commit is not None:
            self._committing = None
            self._committed(self.schedule.in_commit, self._commit.offsets)
        if self.tell(CommitInput.ENDED if error is None else CommitInput.FAILED) is CommitOrder.WAKE:
            self.wake()

    async def over(self) -> None:
        """Returns when no commit is under way. Raises what it has raised."""
        committing = self._committing
        if committing is None:
            return
        if not committing.done():
            await asyncio.wait((committing,))
        self._committing = None
        if committing.cancelled() and not self._is_called_off:
            raise abandoned()
        try:
            committing.result()
        except InputError as error:
            raise CommitRefusedError(error) from error

    async def acknowledged(self) -> None:
        """Returns when the outputs of the next commit are. Raises why they were not taken."""
        if not self._is_called_off:
            await acknowledged(self._sent)

    async def close(self) -> None:
        """Calls off the commit that is under way."""
        committing, self._committing, self.begun_s = self._committing, None, inf
        if committing is not None:
            await call_off(committing)
        self.tell(CommitInput.LEFT)

    # Without waking the task

    def wake(self) -> None:
        self.schedule.is_waiting = False
        self._task.reading.wake()

    def _turn_came(self, order: CommitOrder) -> None:
        self._turn.set()
        if order is CommitOrder.BEGIN_NOW and self._send_at_once():
            self._begin({})
        elif order is not CommitOrder.NOTHING:
            self.wake()

    def _acknowledged(self, _: asyncio.Future[Any]) -> None:
        order = self.tell(CommitInput.ACKNOWLEDGED)
        if order is CommitOrder.WAKE or (order is CommitOrder.SEND_NOW and not self._send_at_once()):
            self.wake()

    def _send_at_once(self) -> bool:
        """Sends the outputs of a task that waits. Returns whether it has succeeded: otherwise the
        task is to try again, and raises what is wrong.
        """
        outputs = self._task.context.outputs
        if self._stopping.is_set():
            return False
        try:
            if not self._permit.goes_on():
                return False
        except RefusedError:
            return False
        if outputs:
            sent = self._task.writer.send_at_once(outputs)
            self._note_sent(sent)
            for each in sent[-1:]:
                each.appended.add_done_callback(self._acknowledged)
        return not outputs

    async def _send_outputs(self) -> dict[TopicPartition, list[Unsent]]:
        """Sends the outputs since the last call; with exactly_once it returns them for the
        transaction. Raises CommitRefusedError when one of them is refused, RefusedError,
        KafkaError.
        """
        writer, outputs = self._task.writer, self._task.context.outputs
        by_partition: dict[TopicPartition, list[Unsent]] = {}
        try:
            if outputs:
                by_partition = await writer.by_partition(outputs)
        except InputError as error:
            raise CommitRefusedError(error) from error
        except asyncio.CancelledError:
            if self._is_called_off:
                raise
            raise abandoned() from None
        if self._is_called_off:
            raise RefusedError("called off")  # should a request have swallowed that
        self._permit.goes_on()  # raises RefusedError; a closing task still commits
        if self._transactional:
            return by_partition
        self._note_sent(await writer.send_outputs(by_partition) if by_partition else [])
        return {}

    def _note_sent(self, sent: list[SentBatch]) -> None:
        self._last_sent = sent or self._last_sent
        self._sent += sent
        self.schedule.sent(self._monotonic_s())


def _part(commit: Commit) -> TransactionPart:
    assert commit.part is not None, "its transaction is not over"
    return commit.part


def _number(*records: Mapping[Any, Collection[Any]]) -> int:
    return sum(len(each) for by_place in records for each in by_place.values())
