"""Clients of tasks, which connect before their task is granted: connecting fences no owner, closing
them leaves no connection, and their number does not grow with tasks.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from equipoise.events.tasks import TaskId
from equipoise.kafka.client import TopicPartition, acknowledged
from equipoise.kafka.connection import Connection
from equipoise.kafka.consumer import core
from equipoise.kafka.started_clients import writer
from equipoise.member.copies.origin import Origin
from equipoise.member.options import MemberOptions
from equipoise.member.tasks.clients import MemberClients, TaskClients
from equipoise.member.tasks.writer import TaskWriter
from tests.live.test_applications import TASKS, read_all
from tests.live.test_restorer import make_topic, producing

TASK, OTHER = TaskId(0, 1), TaskId(0, 2)
New = Callable[[str, TaskId], TaskClients]


@pytest.fixture
async def shared(bootstrap: str, prefix: str) -> AsyncIterator[dict[str, MemberClients]]:
    """By guarantee."""
    made = {
        guarantee: MemberClients(Connection(bootstrap=bootstrap), prefix, MemberOptions(guarantee=guarantee), lambda: "m1/1")
        for guarantee in ("at_least_once", "exactly_once")
    }
    yield made
    for each in made.values():
        await each.close()


@pytest.fixture
async def clients(bootstrap: str, prefix: str, shared: dict[str, MemberClients]) -> New:
    """Returns a function that makes the clients of one task, whose topics exist."""
    await make_topic(bootstrap, f"{prefix}-in", 3)
    await make_topic(bootstrap, f"{prefix}-log", 3)

    def make(guarantee: str, task: TaskId = TASK, *, stateful: bool = True) -> TaskClients:
        options, changelogs = MemberOptions(guarantee=guarantee), (f"{prefix}-log",) if stateful else ()
        return TaskClients(shared[guarantee], prefix, task, options, sources=(f"{prefix}-in",), changelogs=changelogs)

    return make


@pytest.mark.smoke
async def test_begin_fences_the_owner_of_a_task_without_changelogs_and_connect_does_not(bootstrap: str, prefix: str, clients: Any) -> None:
    from aiokafka.errors import ProducerFenced

    place = TopicPartition(f"{prefix}-in", TASK.partition)
    async with producing(bootstrap, transactional_id=f"{prefix}/{TASK}") as owner:
        ahead = clients("exactly_once", stateful=False)
        await owner.begin_transaction()
        ahead.connect()
        await ahead._connecting
        await owner.send_and_wait(f"{prefix}-log", b"still mine", partition=TASK.partition)
        await owner.send_offsets_to_transaction({place: 7}, prefix)
        await owner.commit_transaction()
        mine = await ahead.begin()
        assert await ahead.sources.reader.consumer.committed(place) == 7
        await owner.begin_transaction()
        with pytest.raises(ProducerFenced):
            await owner.send_and_wait(f"{prefix}-log", b"not any more", partition=TASK.partition)
        await mine.begin_transaction()
        await mine.send_and_wait(f"{prefix}-log", b"mine", partition=TASK.partition)
        await mine.send_offsets_to_transaction({place: 9}, prefix, {place: "of mine"})
        await mine.commit_transaction()
        await mine.begin_transaction()
        await mine.send_and_wait(f"{prefix}-log", b"the markers of the former one are written", partition=TASK.partition)
        assert await ahead.sources.reader.consumer.committed_notes([place]) == {place: (9, "of mine")}
        await mine.commit_transaction()
        await ahead.close()


async def test_sources_are_read_from_where_they_are_placed(bootstrap: str, prefix: str, clients: Any) -> None:
    """Also while another task opens and closes, and whatever that one does not take."""
    places = {task: TopicPartition(f"{prefix}-in", task.partition) for task in (TASK, OTHER)}
    async with producing(bootstrap) as producer:
        for number in range(100):
            for place in places.values():
                await producer.send(place.topic, b"%d" % number, partition=place.partition)
    first, second = clients("at_least_once", TASK), clients("at_least_once", OTHER)
    await first.begin()
    assert first.sources.take(10) == {}
    first.sources.place({places[TASK]: 20}, {}, {})
    assert await values(first, 40) == [b"%d" % number for number in range(20, 60)]
    await second.begin()
    second.sources.place({places[OTHER]: 0}, {}, {})
    assert await values(first, 20) == [b"%d" % number for number in range(60, 80)]
    await second.close()
    again = clients("at_least_once", OTHER)
    await again.begin()
    again.sources.place({places[OTHER]: 90}, {}, {})
    assert await values(again, 10) == [b"%d" % number for number in range(90, 100)]
    assert await values(first, 20) == [b"%d" % number for number in range(80, 100)]
    for each in (first, again):
        await each.close()


async def test_partitions_that_are_behind_have_their_turns(bootstrap: str, prefix: str) -> None:
    places = [TopicPartition(f"{prefix}-{topic}", partition) for topic in "ab" for partition in range(10)]
    for topic in "ab":
        await make_topic(bootstrap, f"{prefix}-{topic}", 10)
    async with producing(bootstrap) as producer:
        for place in places:
            for _ in range(10):
                await producer.send_and_wait(place.topic, bytes(10_000), partition=place.partition)
    consumer = Connection(bootstrap=bootstrap).clients.consumer(fetch_max_bytes=30_000, max_partition_fetch_bytes=10_000)
    await consumer.start()
    consumer.assign(places)
    for place in places:
        consumer.seek(place, 0)
    taken: Counter[TopicPartition] = Counter()
    while min(taken.values(), default=0) < 10 or len(taken) < len(places):
        found = await consumer.getmany(timeout_ms=5_000)
        assert found
        taken.update({place: len(records) for place, records in found.items()})
        assert max(taken.values()) <= min(taken[place] for place in places) + 2
    await consumer.stop()


@pytest.mark.parametrize("read_committed", [False, True])
async def test_next_answer_is_fetched_while_one_is_taken(bootstrap: str, prefix: str, read_committed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = f"{prefix}-in"
    await make_topic(bootstrap, topic, 10)
    places = [TopicPartition(topic, partition) for partition in range(10)]
    async with producing(bootstrap) as producer:
        for place in places:
            for _ in range(2):
                await producer.send_and_wait(topic, bytes(9_000), partition=place.partition)
    consumer: Any = Connection(bootstrap=bootstrap).clients.consumer(
        read_committed=read_committed, fetch_max_bytes=30_000, max_partition_fetch_bytes=10_000
    )
    await consumer.start()
    monkeypatch.setattr(core, "PREFETCH_MS", 3_600_000.0)  # else it fetches on after 0.1 s
    consumer.assign(places)
    consumer.pause(*places)
    for place in places:
        consumer.seek(place, 0)
    consumer.resume(*places)
    await consumer.fetched()
    first = set(consumer.ready())
    assert len(first) == 3
    async with asyncio.timeout(20):
        while len(consumer.ready()) < 6:
            await consumer.fetched()
    assert first < set(consumer.ready())
    await asyncio.sleep(0.3)
    assert len(consumer.ready()) == 6, "it fetches one answer ahead"
    taken = 0
    async with asyncio.timeout(20):
        while taken < 20:
            taken += sum(map(len, (await consumer.getmany(timeout_ms=1_000)).values()))
    await consumer.stop()


async def values(of: TaskClients, count: int) -> list[bytes]:
    found: list[bytes] = []
    async with asyncio.timeout(20):
        while len(found) < count:
            for records in of.sources.take(min(7, count - len(found))).values():
                found += [record.value or b"" for record in records]
            if len(found) < count:
                await of.sources.wait(0.01)
    return found


async def test_tasks_with_the_same_source_read_it_each(bootstrap: str, prefix: str, clients: Any) -> None:
    async with producing(bootstrap) as producer:
        for number in range(5):
            await producer.send(f"{prefix}-in", b"%d" % number, partition=TASK.partition)
    both = clients("at_least_once", TASK), clients("at_least_once", TaskId(1, TASK.partition))
    for each in both:
        await each.begin()
        each.sources.place({TopicPartition(f"{prefix}-in", TASK.partition): 0}, {}, {})
    assert [await values(each, 5) for each in both] == [[b"0", b"1", b"2", b"3", b"4"]] * 2
    for each in both:
        await each.close()


async def test_record_that_is_refused_does_not_stop_other_tasks(bootstrap: str, prefix: str, clients: Any) -> None:
    from aiokafka.errors import MessageSizeTooLargeError

    await make_topic(bootstrap, f"{prefix}-small", 1, **{"max.message.bytes": "1000"})
    place = TopicPartition(f"{prefix}-small", 0)
    first, second = clients("at_least_once", TASK), clients("at_least_once", OTHER)
    poisoned, other = await first.begin(), await second.begin()
    assert poisoned is other
    for _ in range(2):
        await poisoned.partitions_for(place.topic)
        with pytest.raises(MessageSizeTooLargeError):
            await acknowledged(poisoned.send_batches(place, [(None, bytes(2_000), [], None)]))
        assert not list(poisoned.core.unended()), "one that is refused is forgotten"
        await acknowledged(other.send_batches(place, [(None, b"small", [], None)]))
        assert not list(poisoned.core.unended()), "one that is appended is forgotten"
    await first.stop_writing(failed=True, at_once=False)
    await first.close()
    assert await clients("at_least_once", TASK).begin() is not other
    await acknowledged(other.send_batches(place, [(None, b"small", [], None)]))
    await second.close()


async def test_records_are_sent_one_by_one_behind_batches_in_order(bootstrap: str, prefix: str) -> None:
    await make_topic(bootstrap, f"{prefix}-orders", TASKS)
    place = TopicPartition(f"{prefix}-orders", 0)
    async with writer(Connection(bootstrap=bootstrap)) as producer:
        await producer.partitions_for(place.topic)
        appended: list[Any] = []
        for number in range(3):
            sent = producer.send_batches(place, [(None, b"batch %d.%d" % (number, each), [], None) for each in range(100)], 1_000)
            assert len(sent) > 1
            single = await producer.send(place.topic, b"single %d" % number, partition=0)
            appended += [*(each.appended for each in sent), single]
        offsets = [(await each).offset for each in appended]
    assert offsets == sorted(offsets)
    values = [record.value for record in await read_all(bootstrap, place.topic, 303)]
    assert values == [each for number in range(3) for each in (*(b"batch %d.%d" % (number, part) for part in range(100)), b"single %d" % number)]


async def test_writer_finds_batches_that_a_topic_takes(bootstrap: str, prefix: str, clients: Any) -> None:
    from aiokafka.errors import MessageSizeTooLargeError

    await make_topic(bootstrap, f"{prefix}-small", 1, **{"max.message.bytes": "50000"})
    place = TopicPartition(f"{prefix}-small", 0)
    each = clients("at_least_once", TASK)
    writer = TaskWriter(await each.begin(), TASK, Origin(1, "log", prefix, str(TASK), 1), each.sizes)
    refused = 0
    while each.sizes.of(place.topic) > 50_000:
        with pytest.raises(MessageSizeTooLargeError):
            await acknowledged(await writer.send_outputs({place: [(None, bytes(1_000), [], None)] * 400}))
        refused += 1
    await acknowledged(sent := await writer.send_outputs({place: [(None, bytes(1_000), [], None)] * 400}))
    assert (refused, sum(batch.records for batch in sent)) == (3, 400)
    assert await writer.settled(0)
    with pytest.raises(MessageSizeTooLargeError):
        await acknowledged(await writer.send_outputs({place: [(None, bytes(size), [], None) for size in (60_000, *[1_000] * 100)]}))
    await acknowledged(sent := await writer.send_outputs({place: [(None, b"next", [], None)]}))
    assert [batch.appended.result().offset for batch in sent] == [400], "no record behind the one that was refused was appended"
    await each.close()


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
async def test_connections_do_not_grow_with_tasks(clients: Any, guarantee: str) -> None:
    first, *others = [clients(guarantee, TaskId(0, number)) for number in range(3)]
    await first.begin()
    before = _sockets()
    for each in others:
        await each.begin()
    assert _sockets() <= before
    for each in (first, *others):
        await each.close()


@pytest.mark.parametrize(("guarantee", "closed"), [("exactly_once", 1), ("at_least_once", 0)])
async def test_producer_beside_transactions_keeps_no_connection(clients: Any, monkeypatch: pytest.MonkeyPatch, guarantee: str, closed: int) -> None:
    """It writes again afterwards; the producer of plain commits is not closed between two."""
    monkeypatch.setattr("equipoise.member.tasks.clients.MAX_IDLE_MS", 1_500)
    first, second = clients(guarantee), clients(guarantee, OTHER)
    producer = await first._shared.producer()
    before = _sockets()
    await asyncio.sleep(3)
    assert before - _sockets() == closed
    await second.begin()
    await first._shared.release(producer, failed=False)
    await second.close()


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
@pytest.mark.parametrize("connected_for_s", [None, 0.0, 0.01, 1.0])
async def test_clients_of_a_task_that_is_not_granted_leave_no_connection(
    clients: Any, shared: dict[str, MemberClients], guarantee: str, connected_for_s: float | None
) -> None:
    before = _sockets()
    ahead = clients(guarantee)
    if connected_for_s is not None:
        ahead.connect()
        await asyncio.sleep(connected_for_s)
    await ahead.close()
    await shared[guarantee].close()
    async with asyncio.timeout(5):
        while _sockets() > before:  # noqa: ASYNC110  # transports close by themselves
            await asyncio.sleep(0.05)


def _sockets() -> int:
    folder = Path(f"/proc/{os.getpid()}/fd")
    return sum(os.readlink(each).startswith("socket:") for each in folder.iterdir() if each.is_symlink())
