"""What the parts of one transaction write, and when: over a producer that does as the test says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from aiokafka.errors import KafkaError, MessageSizeTooLargeError, ProducerClosed

from equipoise.events.log.kafka.client import Producer, SentBatch, TopicPartition, Unsent
from equipoise.events.tasks import TaskId
from equipoise.member.transactions import TransactionPart, Transactions

FIRST, SECOND = TaskId(0, 0), TaskId(0, 1)
OUT = TopicPartition("out", 0)
SOON_S = 1.0


class GivenProducer:
    """Begins and commits at once. `under_way`: fails when this is abandoned."""

    def __init__(self) -> None:
        self.under_way: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_committed = False

    async def connect(self) -> None:
        pass

    async def begin(self) -> None:
        pass

    async def begin_transaction(self, expected: Any) -> None:
        pass

    async def commit_transaction(self) -> None:
        self.is_committed = True

    async def abandon(self) -> None:
        if not self.under_way.done():
            self.under_way.set_exception(ProducerClosed())
            self.under_way.exception()  # retrieved: few tests wait for it
        await asyncio.sleep(0.01)


def transactions_of(producer: Any, *, open_s: float = 0.0) -> Transactions:
    """The first transaction is open for `open_s`, unless a part is due or fails."""
    shared = Transactions("group/m1/1", "group", lambda _: producer, 0.1)
    shared._open_until_s = asyncio.get_running_loop().time() + open_s
    return shared


class Outputs:
    """The outputs of a part. `queued`: what was queued, call by call. `knows`: whether they can be
    queued at once.
    """

    def __init__(self, task: TaskId, *, is_due: bool = False, knows: bool = True) -> None:
        self.queued: list[list[bytes | None]] = []
        self.sent: list[SentBatch] = []
        self.knows = knows
        self.refused: Exception | None = None
        self.may_write = asyncio.Event()
        self.part = TransactionPart(task, 1, self._write, self._write, self._queue, is_due=is_due)

    def add(self, value: bytes) -> None:
        records: list[Unsent] = self.part.outputs.setdefault(OUT, [])
        records.append((None, value, [], None))

    def appended(self, number: int) -> None:
        self.sent[number].appended.set_result(None)

    def failed(self, number: int) -> None:
        self.sent[number].appended.set_exception(MessageSizeTooLargeError())

    def _take(self) -> None:
        taken, self.part.outputs = self.part.outputs, {}
        self.queued.append([value for _, value, _, _ in taken[OUT]])

    def _queue(self, part: TransactionPart, producer: Producer) -> Sequence[SentBatch] | None:
        if self.refused is not None:
            raise self.refused
        if not self.knows:
            return None
        self._take()
        self.sent.append(SentBatch(1, asyncio.get_running_loop().create_future()))
        return self.sent[-1:]

    async def _write(self, part: TransactionPart, producer: Producer) -> None:
        while part.outputs:
            self._take()
            await self.may_write.wait()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(SOON_S):
        while not holds():  # noqa: ASYNC110  # nothing tells it
            await asyncio.sleep(0.001)


async def test_outputs_wait_for_those_that_are_on_their_way_until_the_transaction_closes() -> None:
    producer = GivenProducer()
    shared, outputs = transactions_of(producer, open_s=60), Outputs(FIRST)
    outputs.add(b"1")
    commit = asyncio.ensure_future(shared.commit(outputs.part))
    await until(lambda: outputs.queued == [[b"1"]])
    for value in (b"2", b"3"):
        outputs.add(value)
        shared.extended(outputs.part)
    assert outputs.queued == [[b"1"]]
    outputs.appended(0)
    await until(lambda: outputs.queued == [[b"1"], [b"2", b"3"]])
    outputs.add(b"4")
    outputs.part.is_due = True
    shared.extended(outputs.part)
    await until(lambda: outputs.queued[2:] == [[b"4"]])
    assert outputs.part.is_closed
    outputs.appended(2)
    await asyncio.sleep(0.01)
    assert not producer.is_committed
    outputs.appended(1)
    await asyncio.wait_for(commit, SOON_S)
    assert producer.is_committed


async def test_outputs_of_a_topic_that_the_producer_does_not_know_hold_up_those_behind_them() -> None:
    producer = GivenProducer()
    shared, outputs = transactions_of(producer, open_s=60), Outputs(FIRST, knows=False)
    outputs.add(b"1")
    commit = asyncio.ensure_future(shared.commit(outputs.part))
    await until(lambda: outputs.queued == [[b"1"]])
    outputs.knows = True
    outputs.add(b"2")
    shared.extended(outputs.part)
    assert outputs.queued == [[b"1"]]
    outputs.may_write.set()
    await until(lambda: outputs.queued == [[b"1"], [b"2"]])
    outputs.part.is_due = True
    shared.extended(outputs.part)
    await asyncio.wait_for(commit, SOON_S)


@pytest.mark.parametrize("how", ["fails", "fails before more", "is refused"])
async def test_output_that_fails_ends_the_transaction_at_once_and_for_its_task(how: str) -> None:
    shared = transactions_of(GivenProducer(), open_s=60)
    outputs, others = Outputs(FIRST), Outputs(SECOND)
    commits = [asyncio.ensure_future(shared.commit(each.part)) for each in (outputs, others)]
    await asyncio.sleep(0.01)
    if how == "is refused":
        outputs.refused = MessageSizeTooLargeError()
    outputs.add(b"1")
    shared.extended(outputs.part)
    if how != "is refused":
        outputs.failed(0)
    if how == "fails before more":
        outputs.add(b"2")
        shared.extended(outputs.part)
    errors = await asyncio.wait_for(asyncio.gather(*commits, return_exceptions=True), SOON_S)
    assert [type(error) for error in errors] == [MessageSizeTooLargeError, KafkaError]
    assert shared._alone_until_s.keys() == {FIRST}


async def test_failed_commit_of_one_task_leaves_the_others_together() -> None:
    """What they have under way fails too, as their producer is abandoned."""
    producer = GivenProducer()

    async def wait(*_: Any) -> None:
        await producer.under_way

    async def refused(*_: Any) -> None:
        raise MessageSizeTooLargeError

    shared = transactions_of(producer)
    changes: dict[str, dict[bytes, bytes | None]] = {"log": {b"k": b"1"}}
    parts = [TransactionPart(task, 1, write, write, changes=changes) for task, write in ((FIRST, wait), (SECOND, refused))]
    errors = await asyncio.gather(*map(shared.commit, parts), return_exceptions=True)
    assert [type(error) for error in errors] == [KafkaError, MessageSizeTooLargeError]
    assert shared._alone_until_s.keys() == {SECOND}
