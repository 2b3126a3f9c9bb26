"""Consumers of a real broker fetch in sessions: nothing is named again that has not changed, and
nothing is missed when a session is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiokafka.errors import OffsetOutOfRangeError
from aiokafka.protocol.fetch import FetchRequest_v11

from equipoise.kafka.client import Record, TopicPartition, acknowledged
from equipoise.kafka.connection import Connection
from equipoise.kafka.consumer import leader_questions
from equipoise.kafka.consumer.core import ConsumerCore
from equipoise.kafka.consumer.reading_orders import Due, FetchOptions, FetchOrder
from equipoise.kafka.consumer.requests import SessionFetch
from equipoise.kafka.started_clients import writer
from tests.live.test_restorer import make_topic, producing

PARTITIONS = 20


class _Requests:
    """Those of one consumer, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.built: list[Any] = []
        build = SessionFetch.build

        def noted(request: SessionFetch, version: Any) -> Any:
            made = build(request, version)
            self.built.append(made)
            return made

        monkeypatch.setattr(SessionFetch, "build", noted)

    async def at_rest(self) -> None:
        """Returns after a request that names and drops nothing, built after this call."""
        count = len(self.built) + 1
        await _until(lambda: any(not made.topics and not made.forgotten_topics_data for made in self.built[count:]))

    @property
    def named(self) -> list[list[int]]:
        return [_partitions(made.topics) for made in self.built if made.topics]


async def _until(holds: Callable[[], bool]) -> None:
    for _ in range(2_000):
        if holds():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it does not hold after 20 s")


def _partitions(topics: Any) -> list[int]:
    return sorted(each[0] for _, partitions in topics for each in partitions)


@pytest.fixture
async def consumer(bootstrap: str, prefix: str, request: pytest.FixtureRequest) -> AsyncIterator[Any]:
    await make_topic(bootstrap, prefix, PARTITIONS)
    made: Any = Connection(bootstrap=bootstrap).clients.consumer(fetch_max_wait_ms=50, as_rows=getattr(request, "param", False))
    await made.start()
    places = [TopicPartition(prefix, partition) for partition in range(PARTITIONS)]
    await _place(made, places)
    await _until(lambda: all(made.highwater(place) is not None for place in places))  # a new topic has no leaders for a moment
    yield made
    await made.stop()


async def _place(consumer: Any, places: list[TopicPartition]) -> None:
    consumer.assign(places)
    for place in places:
        consumer.seek(place, 0)


async def _read(consumer: Any, count: int) -> list[tuple[int, int]]:
    """Partitions and offsets of the next records."""
    found: list[tuple[int, int]] = []
    async with asyncio.timeout(20):
        while len(found) < count:
            for place, records in (await consumer.getmany(timeout_ms=1_000)).items():
                found += [(place.partition, record.offset) for record in records]
    return found


async def test_fetches_name_what_has_changed(bootstrap: str, prefix: str, consumer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = _Requests(monkeypatch)
    await requests.at_rest()
    requests.built.clear()
    async with producing(bootstrap) as producer:
        await producer.send_and_wait(prefix, b"1", partition=7)
        assert await _read(consumer, 1) == [(7, 0)]
        await requests.at_rest()
        assert requests.named == [[7]]
        consumer.pause(TopicPartition(prefix, 3))
        await producer.send_and_wait(prefix, b"2", partition=3)
        await producer.send_and_wait(prefix, b"3", partition=4)
        assert await _read(consumer, 1) == [(4, 0)]
        consumer.resume(TopicPartition(prefix, 3))
        assert await _read(consumer, 1) == [(3, 0)]


async def test_nothing_is_missed_when_the_broker_has_dropped_the_session(
    bootstrap: str, prefix: str, consumer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = _Requests(monkeypatch)
    await requests.at_rest()
    session_id = requests.built[-1].session_id

    class Ends(SessionFetch):
        def build(self, _: Any) -> Any:
            return FetchRequest_v11(-1, 0, 0, 1, 0, session_id, -1, [], [], "")

    async with producing(bootstrap) as producer:
        other: Any = Connection(bootstrap=bootstrap).clients.consumer()
        await other.start()
        node, _ = consumer.wire.leader_of(TopicPartition(prefix, 0))
        await other.wire.send(node, Ends(FetchOrder(node, session_id, -1, 0, {}, ()), FetchOptions()))
        await other.stop()
        for partition in (2, 5):
            await producer.send_and_wait(prefix, b"1", partition=partition)
        assert sorted(await _read(consumer, 2)) == [(2, 0), (5, 0)]
    await _until(lambda: list(range(PARTITIONS)) in requests.named)  # both may have come with the fetch that was on its way
    await requests.at_rest()


async def test_end_of_a_partition_that_is_assigned_again_is_known(
    bootstrap: str, prefix: str, consumer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with producing(bootstrap) as producer:
        await producer.send_and_wait(prefix, b"1", partition=1)
    assert await _read(consumer, 1) == [(1, 0)]
    requests = _Requests(monkeypatch)
    await requests.at_rest()
    places = [TopicPartition(prefix, partition) for partition in range(PARTITIONS)]
    consumer.assign(places[2:])
    consumer.assign(places)
    for place in places[:2]:
        consumer.seek(place, place.partition)
    await _until(lambda: [consumer.highwater(place) for place in places[:2]] == [0, 1])


async def test_partition_that_is_resumed_and_paused_again_keeps_nothing_busy(prefix: str, consumer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    place = TopicPartition(prefix, 3)
    consumer.pause(place)
    requests = _Requests(monkeypatch)
    await requests.at_rest()
    looks = 0
    look = ConsumerCore.due

    def counted(core: ConsumerCore, now_ms: float) -> Due:
        nonlocal looks
        looks += 1
        return look(core, now_ms)

    monkeypatch.setattr(ConsumerCore, "due", counted)
    consumer.resume(place)
    consumer.pause(place)
    await asyncio.sleep(1)
    assert 2 <= looks <= 100, "a fetch waits for 50 ms"


async def test_records_that_nobody_takes_hold_up_no_other_partition(bootstrap: str, prefix: str, consumer: Any) -> None:
    idle, busy = TopicPartition(prefix, 0), TopicPartition(prefix, 1)
    async with producing(bootstrap) as producer:
        await producer.send_and_wait(prefix, b"1", partition=idle.partition)
        await _until(lambda: idle in consumer.ready())
        for offset in range(5):
            await producer.send_and_wait(prefix, b"1", partition=busy.partition)
            await _until(lambda: busy in consumer.ready())
            assert [record.offset for record in consumer.take((busy,), 10)[busy]] == [offset]
    assert [record.offset for record in consumer.take((idle,), 10)[idle]] == [0]


async def test_take_returns_no_more_than_asked_for_and_raises_an_error_after_what_was_before_it(bootstrap: str, prefix: str, consumer: Any) -> None:
    first, second = (TopicPartition(prefix, partition) for partition in (0, 1))
    consumer.pause(first, second)
    await asyncio.sleep(0.3)  # a fetch that was under way finds something, too
    async with producing(bootstrap) as producer:
        for place in (first, second, first, second):
            await producer.send_and_wait(prefix, b"1", partition=place.partition)
        consumer.resume(first, second)
        await _until(lambda: {first, second} <= consumer.ready())
        taken = consumer.take((first, second), 3)
        assert {place: [record.offset for record in records] for place, records in taken.items()} == {first: [0, 1], second: [0]}
        assert [record.offset for record in consumer.take((first, second), 3)[second]] == [1]
        consumer.seek(second, 7)
        await producer.send_and_wait(prefix, b"1", partition=first.partition)
        await _until(lambda: {first, second} <= consumer.ready())
        assert list(consumer.take((first, second), 3)) == [first]
        with pytest.raises(OffsetOutOfRangeError):
            consumer.take((first, second), 3)
        consumer.seek(second, 1)
        await _until(lambda: second in consumer.ready())
        assert [record.offset for record in consumer.take((first, second), 3)[second]] == [1]


@pytest.mark.parametrize("consumer", [True], indirect=True)
async def test_rows_hold_what_was_written(bootstrap: str, prefix: str, consumer: Any) -> None:
    place, first, second = TopicPartition(prefix, 1), [("by", b"a")], [("by", b"b"), ("x", b"")]
    written = [(b"k", b"1", first), (b"l", b"2", first), (b"k", None, second), (None, b"3", [])]
    async with writer(Connection(bootstrap=bootstrap)) as producer:
        await producer.partitions_for(prefix)
        await acknowledged(producer.send_batches(place, [(key, value, headers, None) for key, value, headers in written]))
    await _until(lambda: place in consumer.ready())
    rows = consumer.take((place,), 10)[place]
    assert rows == [(key, value, tuple(headers), offset) for offset, (key, value, headers) in enumerate(written)]


@pytest.mark.parametrize("consumer", [False, True], indirect=True, ids=["records", "rows"])
@pytest.mark.parametrize("how", ["getmany", "take"])
async def test_reading_goes_on_within_a_batch(bootstrap: str, prefix: str, consumer: Any, how: str) -> None:
    place = TopicPartition(prefix, 1)
    async with writer(Connection(bootstrap=bootstrap), compression_type="gzip") as producer:
        await producer.partitions_for(prefix)
        await acknowledged(producer.send_batches(place, [(None, b"%d" % number, [], None) for number in range(10)]))

    async def read(most: int) -> list[int]:
        await _until(lambda: place in consumer.ready())
        found = await consumer.getmany(place, max_records=most) if how == "getmany" else consumer.take((place,), most)
        return [record.offset if isinstance(record, Record) else record[3] for record in found.get(place, ())]

    await _until(lambda: place in consumer.ready())
    assert consumer.take((place,), 0) == {}
    assert [(await read(most), await consumer.position(place)) for most in (4, 1)] == [([0, 1, 2, 3], 4), ([4], 5)]
    consumer.seek(place, 7)
    await _until(lambda: place not in consumer.ready())
    assert (await read(2), await consumer.position(place)) == ([7, 8], 9)
    assert (await read(2), await consumer.position(place)) == ([9], 10)


async def test_getmany_waits_as_long_as_it_is_told(bootstrap: str, prefix: str, consumer: Any) -> None:
    place, loop = TopicPartition(prefix, 1), asyncio.get_running_loop()
    begun_s = loop.time()
    assert await consumer.getmany(place, timeout_ms=300) == {}
    assert loop.time() - begun_s >= 0.3
    reading = asyncio.ensure_future(consumer.getmany(place, timeout_ms=60_000))
    async with producing(bootstrap) as producer:
        await producer.send_and_wait(prefix, b"1", partition=2)
        await _until(lambda: TopicPartition(prefix, 2) in consumer.ready())
        assert not reading.done(), "that is another partition"
        await producer.send_and_wait(prefix, b"2", partition=1)
    assert {found: [record.value for record in records] for found, records in (await reading).items()} == {place: [b"2"]}


async def test_first_question_about_a_topic_waits_for_nothing_but_its_answer(bootstrap: str, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    await make_topic(bootstrap, prefix, PARTITIONS)
    async with producing(bootstrap) as producer:  # the broker leads the partition then
        await producer.send_and_wait(prefix, b"1", partition=3)
    consumer: Any = Connection(bootstrap=bootstrap).clients.consumer()
    await consumer.start()
    try:
        monkeypatch.setattr(leader_questions, "AGAIN_S", 3_600)
        async with asyncio.timeout(20):
            assert await consumer.end_offsets([TopicPartition(prefix, 3)]) == {TopicPartition(prefix, 3): 1}
    finally:
        await consumer.stop()
