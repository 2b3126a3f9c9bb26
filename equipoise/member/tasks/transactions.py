"""Transactions of a member, with exactly_once: one at a time, each with the commits of all tasks
that want one, up to a size. So requests and connections do not grow with tasks.

A transaction is open for a while, in which tasks may add to their commits. Then it closes: when all
that they write is acknowledged it is committed. What comes while one closes has to wait, and each
end is a marker in each partition, so it stays open for sixteen times as long as the former one took
to close (`commit_schedule.TransactionSchedule`).

Outputs are written at once, because others wait for them. Changes to changelogs, which nobody reads
before the end, are written when most of the time is over: few remain for the time of closing.

When a task has more by then, the next transaction begins before anyone hears of the end: each task
writes to its store then, which takes longer than to begin one.

A transaction that fails for one task fails for all tasks in it. They continue from their last
commits, and the task that failed has transactions of its own for a while.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import attrs

from equipoise.events.tasks import TaskId
from equipoise.kafka.client import CLOSE_S, Producer, SentBatch, TopicPartition, Unsent, call_off, within
from equipoise.member.tasks.commit_schedule import TransactionSchedule, TransactionState
from equipoise.member.tasks.fatal_errors import is_cancelled
from equipoise.member.tasks.refusals import ForGood, refused_by
from equipoise.member.tasks.writer import partitions_of

TOLD_AT_ONCE = 8
"""How many tasks hear of a commit before the loop looks for what has arrived. Each of them writes
to its store.
"""

Queue = Callable[["TransactionPart", Producer], Sequence[SentBatch]]


@attrs.define(eq=False)
class TransactionPart:
    """The commit of one task, of `records`. `outputs`, `changes` (by changelog topic): what is
    still to be written. `queue_outputs`, `queue_changes`: takes that and queues it with the
    producer, which knows the topics; called again when there is more. `check`: raises when what was
    appended must not be committed. `ended`: called when the part is committed, with None, or has
    failed, with the error, right before `committed` says so; what it raises then, `committed`
    raises. `offsets`: of the sources. `is_due`: the transaction is to close now. `closes`: called
    when it closes.
    """

    task: TaskId
    records: int
    queue_outputs: Queue = attrs.field(default=lambda part, producer: ())
    queue_changes: Queue = attrs.field(default=lambda part, producer: ())
    check: Callable[[], None] = attrs.field(default=lambda: None)
    ended: Callable[[BaseException | None], None] = attrs.field(default=lambda error: None)
    outputs: dict[TopicPartition, list[Unsent]] = attrs.field(factory=dict)
    changes: dict[str, dict[bytes, bytes | None]] = attrs.field(factory=dict)
    offsets: Mapping[TopicPartition, int] = attrs.field(factory=dict)
    notes: Mapping[TopicPartition, str] = attrs.field(init=False, factory=dict)
    """What is committed beside the offsets, as their metadata."""
    is_due: bool = True
    closes: Callable[[], None] = attrs.field(default=lambda: None)
    outputs_under_way: int = attrs.field(init=False, default=0)
    """Number of batches with outputs that are queued and not acknowledged."""
    written_to: set[TopicPartition] = attrs.field(init=False, factory=set)
    """Partitions with outputs of the part."""
    is_closed: bool = attrs.field(init=False, default=False)
    """Whether nothing may be added any more."""
    committed: asyncio.Future[None] = attrs.field(init=False, factory=lambda: asyncio.get_running_loop().create_future())
    """Its end. Cancelled: nobody waits for it any more, and `ended` is not called."""

    def succeed(self) -> None:
        """It is committed."""
        if not self.committed.done():
            try:
                self.ended(None)
            except Exception as error:  # noqa: BLE001  # a store failed; `committed` raises it
                self.fail(error)
            else:
                self.committed.set_result(None)

    def fail(self, error: BaseException) -> None:
        """`committed` raises `error`."""
        self.is_closed = True
        if not self.committed.done():
            self.ended(error)
            self.committed.set_exception(error)
            self.committed.exception()  # retrieved, should the task not wait any more


@attrs.frozen(eq=False)
class _Session:
    """A producer. `topics`: those that it knows. `connecting`, `beginning`: the two halves of its
    start.
    """

    producer: Producer
    connecting: asyncio.Task[None]
    beginning: asyncio.Task[None] | None = None
    topics: set[str] = attrs.field(factory=set)


class _OpenTransaction:
    """A transaction that was begun, with a producer that knows `topics`."""

    def __init__(self, producer: Producer, topics: set[str]) -> None:
        self._producer = producer
        self._topics = topics
        self.parts: dict[TransactionPart, None] = {}
        """A set in the order in which they came."""
        self.asking: dict[TransactionPart, asyncio.Task[None]] = {}
        """Parts with topics that the producer does not know, and the jobs that ask for these."""
        self._under_way = 0
        """Number of jobs and batches that must end before the commit."""
        self._failed: dict[TransactionPart | None, BaseException] = {}
        """Part -> its error; None: of the whole transaction."""
        self._changed = asyncio.Event()

    def write(self, part: TransactionPart) -> None:
        """Writes the outputs that the part has, and all if it is due. Adds it, if it is new."""
        self.parts[part] = None
        part.written_to.update(part.outputs)
        self._write(part, changes=part.is_due)

    def write_changes(self) -> None:
        """Writes the changes that the parts have."""
        for part in self.parts:
            self._write(part, changes=True)

    def close(self) -> None:
        """Writes the rest of each part. Nothing may be added after this."""
        for part in self.parts:
            part.is_closed = True
            if not part.committed.done():
                part.closes()
        self.write_changes()

    def _write(self, part: TransactionPart, *, changes: bool) -> None:
        """Queues the part's outputs, and its changes. Until the transaction closes, outputs wait
        for former ones of the part that are on their way: a request for each would take longer.
        """
        if part in self.asking or part in self._failed:
            return
        if not self._knows_topics(part):
            self.asking[part] = job = asyncio.ensure_future(self._ask(part))
            self.needs(job, part)
            return
        try:
            if part.outputs and (part.is_closed or not part.outputs_under_way):
                for each in part.queue_outputs(part, self._producer):
                    part.outputs_under_way += 1
                    self._under_way += 1
                    each.appended.add_done_callback(partial(self._outputs_appended, part))
            if part.changes and changes:
                for each in part.queue_changes(part, self._producer):
                    self.needs(each.appended, part)
        except Exception as error:  # noqa: BLE001  # `errors` returns it
            self._fail(part, error)

    def _knows_topics(self, part: TransactionPart) -> bool:
        return part.changes.keys() <= self._topics and all(place.topic in self._topics for place in part.outputs)

    async def _ask(self, part: TransactionPart) -> None:
        for topic in dict.fromkeys([*(place.topic for place in part.outputs), *part.changes]):
            await partitions_of(self._producer, topic)
            self._topics.add(topic)
        del self.asking[part]
        self._write(part, changes=part.is_due or part.is_closed)

    def needs(self, future: asyncio.Future[Any], part: TransactionPart | None = None) -> None:
        """The commit waits for the future, and fails when it does. `part`: whose it is."""
        self._under_way += 1
        future.add_done_callback(partial(self._settled, part))

    def _outputs_appended(self, part: TransactionPart, appended: asyncio.Future[Any]) -> None:
        part.outputs_under_way -= 1
        self._settled(part, appended)
        if part.outputs and not part.is_closed:
            self._write(part, changes=False)

    def _settled(self, part: TransactionPart | None, future: asyncio.Future[Any]) -> None:
        self._under_way -= 1
        if future.cancelled():
            self._fail(None, abandoned())
        elif (error := future.exception()) is not None:
            self._fail(part, error)
        elif not self._under_way:
            self._changed.set()

    def _fail(self, part: TransactionPart | None, error: BaseException) -> None:
        self._failed.setdefault(part, error)
        self._changed.set()

    def errors(self) -> dict[TransactionPart, BaseException]:
        """Part that has failed -> its error."""
        return {part: error for part, error in self._failed.items() if part is not None}

    def look(self) -> None:
        """A part is due."""
        self._changed.set()

    async def until(self, at: Callable[[], float]) -> None:
        """Returns at the time (of the loop, s) that `at` returns then, or when a part has failed."""
        loop = asyncio.get_running_loop()
        while (at_s := at()) > loop.time() and not self._failed:
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(at_s):
                    await self._changed.wait()

    async def written(self) -> None:
        """Returns when everything is acknowledged and may be committed. Raises why not."""
        async with within("the records of a transaction"):
            while self._under_way and not self._failed:
                self._changed.clear()
                await self._changed.wait()
        for part in self.parts:
            if self._failed:
                break
            try:
                part.check()
            except Exception as error:  # noqa: BLE001  # it is raised below
                self._fail(part, error)
        if self._failed:
            raise next(iter(self._failed.values()))


class Transactions:
    """The transactions under one transactional id. Belongs to the application's loop. It connects
    when a task needs it, and again after a transaction has failed. `most_open_s`: how long one is
    open at most, when no part is due.
    """

    def __init__(self, transactional_id: str, group: str, new_producer: Callable[[str], Producer], most_open_s: float) -> None:
        self.id = transactional_id
        self.users = 0
        """Number of tasks that have not given it back."""
        self._group = group
        self._new_producer = new_producer
        self.schedule = TransactionSchedule(most_open_s)
        self._session: _Session | None = None
        self._waiting: list[TransactionPart] = []
        self._open: _OpenTransaction | None = None
        """The transaction that other parts may come to."""
        self._outputs: set[TopicPartition] = set()
        """Partitions with outputs of the last transaction."""
        self._expected: Sequence[TopicPartition] = ()
        """Those of the last two, which the next one begins with. Of changelogs each record counts,
        and a marker would look like another owner's.
        """
        self._committed: list[TransactionPart] = []
        """Parts whose tasks have not heard yet that they are committed."""
        self._announced: set[TaskId] = set()
        """Tasks that wait for the end of this transaction with more to commit."""
        self._running: asyncio.Task[None] | None = None

    async def connect(self) -> Producer:
        """Returns when it is connected. Fences nobody. Raises KafkaError."""
        if self._session is None:
            producer = self._new_producer(self.id)
            self._session = _Session(producer, asyncio.ensure_future(producer.connect()))
        session = self._session
        await self._started(session, session.connecting)
        return session.producer

    async def begin(self) -> Producer:
        """Returns when it may write. Fences former producers with the same transactional id. Raises
        KafkaError.
        """
        await self.connect()
        session = self._session
        if session is None:
            raise abandoned()
        if session.beginning is None:
            session = self._session = attrs.evolve(session, beginning=asyncio.ensure_future(session.producer.begin()))
        assert session.beginning is not None, "it has just begun"
        await self._started(session, session.beginning)
        return session.producer

    async def _started(self, session: _Session, starting: asyncio.Task[None]) -> None:
        try:
            await asyncio.shield(starting)
        except BaseException:
            if starting.done():
                await self._lose(session.producer)
                if starting.cancelled() and not is_cancelled():
                    raise abandoned() from None
            raise

    def add(self, part: TransactionPart) -> None:
        """Commits the part, in a transaction with others. `part.committed` is its end. When that
        raises, the part is not committed or, if the answer was lost, may be. It raises what the
        part raises, KafkaError.
        """
        self._waiting.append(part)
        self._admit()
        if self._running is None or self._running.done():
            self._running = asyncio.ensure_future(self._run())

    def announce(self, task: TaskId) -> None:
        """The task has more to commit when the transaction that closes now is over: the next one
        begins at once.
        """
        if self._open is None and self._running is not None and not self._running.done():
            self._announced.add(task)

    def extended(self, part: TransactionPart) -> None:
        """The part, which was not closed, has more to send, or is due now."""
        if self._open is not None:
            if part in self._open.parts:
                self._open.write(part)
            if part.is_due:
                self._open.look()

    def _admit(self) -> None:
        """The open transaction takes the parts that may be in it."""
        if self._open is not None:
            for part in self._take(self._open.parts):
                self._open.write(part)
                if part.is_due:
                    self._open.look()

    def _take(self, present: Collection[TransactionPart]) -> list[TransactionPart]:
        waiting = [part for part in self._waiting if not part.committed.done()]  # without those that were called off
        taken = self.schedule.taken(waiting, present, asyncio.get_running_loop().time())
        self._waiting = [part for part in waiting if part not in taken]
        return taken

    async def _run(self) -> None:
        while self._waiting or self._announced:
            self._announced.clear()
            await self._transact(self._take(()))

    async def _transact(self, parts: Sequence[TransactionPart]) -> None:
        """One transaction, of these parts and those that come while it is open. Raises nothing but
        a cancellation.
        """
        from aiokafka.errors import KafkaError, ProducerFenced

        loop, schedule = asyncio.get_running_loop(), self.schedule
        schedule.go_to(TransactionState.BEGINNING, loop.time())
        transaction: _OpenTransaction | None = None
        producer: Producer | None = None
        committing_offsets: asyncio.Future[None] | None = None
        try:
            try:
                producer = await self.begin()
                await producer.begin_transaction(self._expected)
            finally:
                self._tell_committed()
            transaction = self._open = _OpenTransaction(producer, self._topics_of(producer))
            schedule.go_to(TransactionState.OPEN, loop.time())
            for part in parts:
                if not part.committed.done():
                    transaction.write(part)
            self._admit()
            until = partial(self._until_s, transaction)
            await transaction.until(until)
            schedule.go_to(TransactionState.WRITING, loop.time())
            transaction.write_changes()
            await transaction.until(until)
            schedule.go_to(TransactionState.CLOSING, loop.time())
            self._open = None
            transaction.close()
            if offsets := {tp: offset for part in transaction.parts for tp, offset in part.offsets.items()}:
                notes = {tp: note for part in transaction.parts for tp, note in part.notes.items()}
                committing_offsets = asyncio.ensure_future(producer.send_offsets_to_transaction(offsets, self._group, notes))
                transaction.needs(committing_offsets)
            await transaction.written()
            await producer.commit_transaction()
        except Exception as error:  # noqa: BLE001  # the tasks raise it
            self._open = None  # what comes from now on is for the next one
            failed = {} if transaction is None else transaction.errors()
            passes = isinstance(error, KafkaError) and error.retriable and refused_by(error) is ForGood.NOTHING
            of_all = not failed or isinstance(error, ProducerFenced) or passes
            schedule.failed(loop.time(), () if of_all else (part.task for part in failed))
            self._outputs, self._expected = set(), ()  # one of them may be gone
            await self._lose(producer)
            for part in _all_parts(parts, transaction):
                part.fail(failed.get(part) or (error if of_all else KafkaError(f"the transaction failed for another task: {error!r}")))
            if not of_all:
                with contextlib.suppress(KafkaError):
                    await self.begin()  # ends it: nobody reads past its records before
        except BaseException:
            schedule.failed(loop.time(), ())
            for part in _all_parts(parts, transaction):
                part.fail(abandoned())
            raise
        else:
            schedule.committed(loop.time())
            outputs = {place for part in transaction.parts for place in part.written_to}
            self._outputs, self._expected = outputs, sorted(outputs | self._outputs)
            self._committed += sorted(transaction.parts, key=lambda part: part.task not in self._announced)
            if not self._announced:
                self._tell_committed()
        finally:
            self._open = None
            jobs = [] if transaction is None else [*transaction.asking.values()]
            await call_off(*jobs, *([] if committing_offsets is None else [committing_offsets]))

    def _tell_committed(self) -> None:
        told, self._committed = self._committed[:TOLD_AT_ONCE], self._committed[TOLD_AT_ONCE:]
        for part in told:
            part.succeed()
        if self._committed:
            asyncio.get_running_loop().call_soon(self._tell_committed)

    def _until_s(self, transaction: _OpenTransaction) -> float:
        return self.schedule.until_s(chain(transaction.parts, self._waiting))

    def _topics_of(self, producer: Producer) -> set[str]:
        session = self._session
        return set() if session is None or session.producer is not producer else session.topics

    async def _lose(self, producer: Producer | None) -> None:
        """The next transaction has another producer, which ends the transaction of this one."""
        session = self._session
        if session is not None and session.producer is producer:
            self._session = None
            await session.producer.abandon()

    async def stop(self) -> None:
        """Disconnects, when nothing is left to commit."""
        if self._running is not None and not self._running.done():
            self.schedule.open_until_s = 0.0
            if self._open is not None:
                self._open.look()
            await asyncio.wait((self._running,), timeout=CLOSE_S)
            await call_off(self._running)
        session, self._session = self._session, None
        if session is None:
            return
        if session.beginning is not None and session.beginning.done():
            await session.producer.stop()
        else:
            await _abandon(session)

    async def abandon(self) -> None:
        """Disconnects at once: what was not sent is never sent. Commits that wait raise
        KafkaConnectionError.
        """
        session, self._session = self._session, None
        if self._running is not None:
            await call_off(self._running)
        for part in self._waiting:
            part.fail(abandoned())
        if session is not None:
            await _abandon(session)


async def _abandon(session: _Session) -> None:
    await call_off(*(each for each in (session.connecting, session.beginning) if each is not None))
    await session.producer.abandon()


def abandoned() -> Exception:
    """Returns the error of what a producer that was abandoned had not written."""
    from aiokafka.errors import KafkaConnectionError

    error: Exception = KafkaConnectionError("the producer was abandoned")
    return error


def _all_parts(parts: Iterable[TransactionPart], transaction: _OpenTransaction | None) -> Iterable[TransactionPart]:
    return dict.fromkeys([*parts, *(() if transaction is None else transaction.parts)])
