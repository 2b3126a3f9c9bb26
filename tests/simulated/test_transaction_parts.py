"""What the parts of one transaction write, and when: over a producer that does as the test says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from aiokafka.errors import KafkaConnectionError, KafkaError, MessageSizeTooLargeError, ProducerClosed, UnknownTopicOrPartitionError

from equipoise.events.tasks import TaskId
from equipoise.kafka.client import Producer, SentBatch, TopicPartition, Unsent
from equipoise.member.tasks.transactions import TransactionPart, Transactions

FIRST, SECOND = TaskId(0, 0), TaskId(0, 1)
OUT, LOG = TopicPartition("out", 0), "log"
SOON_S = 1.0


class GivenProducer:
    """Begins and commits at once. `under_way`: fails when this is abandoned. `may_answer`: until
    this is set, it says nothing of topics. `asked`: for which it was asked.
    """

    def __init__(self) -> None:
        self.under_way: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_committed = False
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.asked: list[str] = []

    async def partitions_for(self, topic: str) -> set[int]:
        self.asked.append(topic)
        await self.may_answer.wait()
        if topic not in (OUT.topic, LOG):
            raise UnknownTopicOrPartitionError
        return {0}

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
    shared.schedule.open_until_s = asyncio.get_running_loop().time() + open_s
    return shared


class Part:
    """A part and what of it was queued: `queued` the outputs, `changes` the changes, call by call;
    `sent` all batches.
    """

    def __init__(self, task: TaskId, *, is_due: bool = False) -> None:
        self.queued: list[list[bytes | None]] = []
        self.changes: list[dict[bytes, bytes | None]] = []
        self.sent: list[SentBatch] = []
        self.refused: Exception | None = None
        self.overtaken: Exception | None = None
        self.ended: list[BaseException | None] = []
        self.part = TransactionPart(task, 1, self._queue_outputs, self._queue_changes, self._check, self.ended.append, is_due=is_due)

    def add(self, value: bytes, place: TopicPartition = OUT) -> None:
        records: list[Unsent] = self.part.outputs.setdefault(place, [])
        records.append((None, value, [], None))

    def put(self, value: bytes, topic: str = LOG) -> None:
        self.part.changes.setdefault(topic, {})[b"k"] = value

    def appended(self, number: int) -> None:
        self.sent[number].appended.set_result(None)

    def failed(self, number: int) -> None:
        self.sent[number].appended.set_exception(MessageSizeTooLargeError())

    def _queue_outputs(self, part: TransactionPart, producer: Producer) -> Sequence[SentBatch]:
        taken, part.outputs = part.outputs, {}
        self.queued.append([value for _, value, _, _ in taken[OUT]])
        return self._send()

    def _queue_changes(self, part: TransactionPart, producer: Producer) -> Sequence[SentBatch]:
        taken, part.changes = part.changes, {}
        self.changes.append(taken[LOG])
        return self._send()

    def _send(self) -> Sequence[SentBatch]:
        if self.refused is not None:
            raise self.refused
        self.sent.append(SentBatch(1, asyncio.get_running_loop().create_future()))
        return self.sent[-1:]

    def _check(self) -> None:
        assert all(each.appended.done() for each in self.sent)
        if self.overtaken is not None:
            raise self.overtaken


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(SOON_S):
        while not holds():  # noqa: ASYNC110  # nothing tells it
            await asyncio.sleep(0.001)


async def test_outputs_wait_for_those_that_are_on_their_way_until_the_transaction_closes() -> None:
    producer = GivenProducer()
    shared, outputs = transactions_of(producer, open_s=60), Part(FIRST)
    outputs.add(b"1")
    shared.add(outputs.part)
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
    await asyncio.wait_for(outputs.part.committed, SOON_S)
    assert producer.is_committed
    assert outputs.ended == [None]


async def test_outputs_of_a_topic_that_the_producer_does_not_know_hold_up_those_behind_them() -> None:
    producer = GivenProducer()
    producer.may_answer.clear()
    shared, outputs = transactions_of(producer, open_s=60), Part(FIRST)
    outputs.add(b"1")
    shared.add(outputs.part)
    await until(lambda: producer.asked == ["out"])
    outputs.add(b"2")
    shared.extended(outputs.part)
    outputs.part.is_due = True
    shared.extended(outputs.part)
    await until(lambda: outputs.part.is_closed)
    assert (outputs.queued, producer.asked, producer.is_committed) == ([], ["out"], False)
    producer.may_answer.set()
    await until(lambda: outputs.queued == [[b"1", b"2"]])
    outputs.appended(0)
    await asyncio.wait_for(outputs.part.committed, SOON_S)
    again = Part(FIRST, is_due=True)
    again.add(b"3")
    shared.add(again.part)
    await until(lambda: again.queued == [[b"3"]])
    assert producer.asked == ["out"], "it knows the topic by now"
    again.appended(0)
    await asyncio.wait_for(again.part.committed, SOON_S)


async def test_changes_are_written_late_and_at_once_when_the_part_is_due() -> None:
    producer = GivenProducer()
    shared, late, due = transactions_of(producer, open_s=0.2), Part(FIRST), Part(SECOND)
    for each in (late, due):
        each.put(b"1")
        each.add(b"1")
        shared.add(each.part)
    await until(lambda: late.queued == due.queued == [[b"1"]])
    await asyncio.sleep(0.05)
    assert late.changes == due.changes == []
    due.part.is_due = True
    shared.extended(due.part)
    assert due.changes == [{b"k": b"1"}]
    await until(lambda: late.changes == [{b"k": b"1"}])
    assert late.part.is_closed, "with the one that is due"
    for each in (late, due):
        each.appended(0)
        assert not producer.is_committed
        each.appended(1)
    await asyncio.wait_for(asyncio.gather(late.part.committed, due.part.committed), SOON_S)


async def test_changes_of_a_part_that_nobody_waits_for_are_written_when_most_of_the_time_is_over() -> None:
    producer = GivenProducer()
    shared, part = transactions_of(producer, open_s=0.2), Part(FIRST)
    part.put(b"1")
    shared.add(part.part)
    await until(lambda: part.changes == [{b"k": b"1"}])
    assert not part.part.is_closed
    part.put(b"2")
    shared.extended(part.part)
    assert part.changes == [{b"k": b"1"}]
    await until(lambda: part.changes == [{b"k": b"1"}, {b"k": b"2"}])
    assert part.part.is_closed
    part.appended(1)
    part.appended(0)
    await asyncio.wait_for(part.part.committed, SOON_S)


@pytest.mark.parametrize("how", ["fails", "fails before more", "is refused", "has no topic", "is overtaken"])
async def test_output_that_fails_ends_the_transaction_at_once_and_for_its_task(how: str) -> None:
    producer = GivenProducer()
    shared = transactions_of(producer, open_s=60)
    outputs, others = Part(FIRST), Part(SECOND)
    for each in (outputs, others):
        shared.add(each.part)
    await asyncio.sleep(0.01)
    if how == "is refused":
        outputs.refused = MessageSizeTooLargeError()
    if how == "is overtaken":
        outputs.overtaken = MessageSizeTooLargeError()
        outputs.part.is_due = True
    outputs.add(b"1", TopicPartition("gone", 0) if how == "has no topic" else OUT)
    shared.extended(outputs.part)
    if how == "is overtaken":
        await until(lambda: bool(outputs.sent))
        outputs.appended(0)
    elif how.startswith("fails"):
        await until(lambda: bool(outputs.sent))
        outputs.failed(0)
    if how == "fails before more":
        outputs.add(b"2")
        shared.extended(outputs.part)
    ends = [each.part.committed for each in (outputs, others)]
    errors = await asyncio.wait_for(asyncio.gather(*ends, return_exceptions=True), SOON_S)
    assert [type(error) for error in errors] == [UnknownTopicOrPartitionError if how == "has no topic" else MessageSizeTooLargeError, KafkaError]
    assert shared.schedule.alone_until_s.keys() == {FIRST}
    assert [outputs.ended, others.ended] == [[error] for error in errors]
    assert not producer.is_committed
    assert len(outputs.queued) <= 1


async def test_batch_of_an_abandoned_producer_fails_all_parts() -> None:
    producer = GivenProducer()
    shared, first, second = transactions_of(producer, open_s=60), Part(FIRST), Part(SECOND)
    for each in (first, second):
        each.add(b"1")
        shared.add(each.part)
    await until(lambda: bool(first.sent and second.sent))
    first.sent[0].appended.cancel()
    errors = await asyncio.wait_for(asyncio.gather(first.part.committed, second.part.committed, return_exceptions=True), SOON_S)
    assert [type(error) for error in errors] == [KafkaConnectionError, KafkaConnectionError]


async def test_failed_commit_of_one_task_leaves_the_others_together() -> None:
    """What they have under way fails too, as their producer is abandoned."""
    producer = GivenProducer()
    shared, waits, refused = transactions_of(producer), Part(FIRST, is_due=True), Part(SECOND, is_due=True)
    refused.refused = MessageSizeTooLargeError()
    for each in (waits, refused):
        each.put(b"1")
        shared.add(each.part)
    errors = await asyncio.gather(waits.part.committed, refused.part.committed, return_exceptions=True)
    assert [type(error) for error in errors] == [KafkaError, MessageSizeTooLargeError]
    assert shared.schedule.alone_until_s.keys() == {SECOND}


async def test_part_whose_store_fails_after_the_commit_says_so() -> None:
    producer = GivenProducer()
    shared, part = transactions_of(producer), Part(FIRST, is_due=True)
    ends: list[BaseException | None] = []

    def ended(error: BaseException | None) -> None:
        ends.append(error)
        if error is None:
            raise OSError("no space left")

    part.part.ended = ended
    shared.add(part.part)
    with pytest.raises(OSError, match="no space left"):
        await asyncio.wait_for(part.part.committed, SOON_S)
    assert producer.is_committed
    assert [type(error) for error in ends] == [type(None), OSError]


async def test_part_that_was_called_off_before_its_transaction_is_not_in_it() -> None:
    producer = GivenProducer()
    shared, called_off, other = transactions_of(producer), Part(FIRST, is_due=True), Part(SECOND, is_due=True)
    for each in (called_off, other):
        each.add(b"1")
        shared.add(each.part)
    called_off.part.committed.cancel()
    await until(lambda: bool(other.sent))
    other.appended(0)
    await asyncio.wait_for(other.part.committed, SOON_S)
    assert (called_off.queued, called_off.ended) == ([], [])
