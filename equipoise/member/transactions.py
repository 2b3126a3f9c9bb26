"""Transactions of a member, with exactly_once: one at a time, each with the commits of all tasks
that want one, up to a size. So requests and connections do not grow with tasks.

A transaction that fails for one task fails for all tasks in it. They continue from their last
commits, and the task that failed has transactions of its own for a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import attrs

from equipoise.events.log.kafka.client import Producer, TopicPartition, call_off
from equipoise.events.tasks import TaskId

GATHER_S = 0.002
"""How long a transaction waits for commits of other tasks, which were woken by the same tick."""
MOST_RECORDS = 50_000
"""Most records of a transaction of several tasks. All of them are queued at once."""
ALONE_S = 10.0
"""For how long a task whose commit has failed has transactions of its own."""


@attrs.frozen(eq=False)
class TransactionPart:
    """What one task commits, in so many records. `write`: sends it with the producer and returns
    when all of it is acknowledged and may be committed, or raises. `offsets`: of the sources.
    """

    task: TaskId
    records: int
    write: Callable[[Producer], Awaitable[None]]
    offsets: Mapping[TopicPartition, int]
    committed: asyncio.Future[None] = attrs.field(init=False, factory=lambda: asyncio.get_running_loop().create_future())

    def fail(self, error: BaseException) -> None:
        """`Transactions.commit` raises `error`."""
        if not self.committed.done():
            self.committed.set_exception(error)
            self.committed.exception()  # retrieved, should the task not wait any more


@attrs.frozen(eq=False)
class _Session:
    """A producer. `connecting`, `beginning`: the two halves of its start."""

    producer: Producer
    connecting: asyncio.Task[None]
    beginning: asyncio.Task[None] | None = None


class Transactions:
    """The transactions under one transactional id. Belongs to the application's loop. It connects
    when a task needs it, and again after a transaction has failed.
    """

    def __init__(self, transactional_id: str, group: str, new_producer: Callable[[str], Producer]) -> None:
        self.id = transactional_id
        self.users = 0
        """Number of tasks that have not given it back."""
        self._group = group
        self._new_producer = new_producer
        self._session: _Session | None = None
        self._waiting: list[TransactionPart] = []
        self._alone_until_s: dict[TaskId, float] = {}
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
            raise _abandoned()
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
                if starting.cancelled() and not _is_cancelled():
                    raise _abandoned() from None
            raise

    async def commit(self, part: TransactionPart) -> None:
        """Commits the part, in a transaction with others. When it raises, the part is not committed
        or, if the answer was lost, may be. Raises what `part.write` raises, KafkaError.
        """
        self._waiting.append(part)
        if self._running is None or self._running.done():
            self._running = asyncio.ensure_future(self._run())
        try:
            await part.committed
        finally:
            if part in self._waiting:
                self._waiting.remove(part)

    async def _run(self) -> None:
        while self._waiting:
            await asyncio.sleep(GATHER_S)
            parts = self._next()
            now_s = asyncio.get_running_loop().time()
            alone = [part for part in parts if self._alone_until_s.get(part.task, 0.0) > now_s]
            together = [part for part in parts if part not in alone]
            try:
                for each in (together, *([part] for part in alone)):
                    if each:
                        await self._transact(each)
            except BaseException:
                for part in parts:
                    part.fail(_abandoned())
                raise

    def _next(self) -> list[TransactionPart]:
        """Takes those that have waited the longest."""
        count, records = 0, 0
        while count < len(self._waiting) and (not count or records + self._waiting[count].records <= MOST_RECORDS):
            records += self._waiting[count].records
            count += 1
        taken, self._waiting = self._waiting[:count], self._waiting[count:]
        return taken

    async def _transact(self, parts: list[TransactionPart]) -> None:
        """One transaction. Raises nothing but a cancellation."""
        from aiokafka.errors import KafkaError, ProducerFenced

        writing: dict[TransactionPart, asyncio.Future[None]] = {}
        producer: Producer | None = None
        try:
            producer = await self.begin()
            await producer.begin_transaction()
            writing = {part: asyncio.ensure_future(part.write(producer)) for part in parts if not part.committed.done()}
            jobs = list(writing.values())
            if offsets := {tp: offset for part in writing for tp, offset in part.offsets.items()}:
                jobs.append(asyncio.ensure_future(producer.send_offsets_to_transaction(offsets, self._group)))
            try:
                done, _ = await asyncio.wait(jobs, return_when=asyncio.FIRST_EXCEPTION) if jobs else ((), ())
                for job in done:
                    if job.cancelled():
                        raise _abandoned()
                    job.result()
            finally:
                await call_off(*jobs)
            await producer.commit_transaction()
        except Exception as error:  # noqa: BLE001  # the tasks raise it
            await self._lose(producer)
            failed = {part: job.exception() for part, job in writing.items() if not job.cancelled()}
            of_all = not any(failed.values()) or isinstance(error, ProducerFenced) or (isinstance(error, KafkaError) and error.retriable)
            for part in parts:
                own = failed.get(part)
                if own is not None and not of_all:
                    self._alone_until_s[part.task] = asyncio.get_running_loop().time() + ALONE_S
                part.fail(own or (error if of_all else KafkaError(f"the transaction failed for another task: {error!r}")))
        else:
            for part in parts:
                self._alone_until_s.pop(part.task, None)
                if not part.committed.done():
                    part.committed.set_result(None)

    async def _lose(self, producer: Producer | None) -> None:
        """The next transaction has another producer, which ends the transaction of this one."""
        session = self._session
        if session is not None and session.producer is producer:
            self._session = None
            await session.producer.abandon()

    async def stop(self) -> None:
        """Disconnects, when nothing is left to commit."""
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
            part.fail(_abandoned())
        if session is not None:
            await _abandon(session)


async def _abandon(session: _Session) -> None:
    await call_off(*(each for each in (session.connecting, session.beginning) if each is not None))
    await session.producer.abandon()


def _abandoned() -> Exception:
    from aiokafka.errors import KafkaConnectionError

    error: Exception = KafkaConnectionError("the producer was abandoned")
    return error


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
