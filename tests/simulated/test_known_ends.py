"""A reading up to an end that was known ends, whatever becomes of the end and of the brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiokafka.errors import KafkaError, KafkaTimeoutError

from equipoise.events.errors import GapError, InputError
from equipoise.events.facts import LogOpened
from equipoise.folding.log_reading import PartitionReading
from equipoise.kafka.client import LATEST_S, Record
from equipoise.kafka.connection import Connection
from equipoise.kafka.known_ends import batches_before, looks_back
from equipoise.kafka.started_clients import reader
from equipoise.log.kafka.bases_reading import newest_base
from equipoise.log.kafka.fact_checks import fill_holes
from equipoise.log.kafka.log_topics import Topics
from equipoise.log.kafka.topic_making import KNOWN_S, described_topics
from equipoise.member.tasks.positions import PositionsReader
from equipoise.testing.simulated.connection import SimulatedClients, SimulatedConnection
from equipoise.testing.simulated.kafka.cluster import Cluster
from tests.simulated.test_kafka import TP, simulate, started_producer
from tests.support.cluster_faults import lose_tail

RECORDS = 40
Read = Callable[[Connection], Awaitable[object]]


async def _written(clients: SimulatedClients, topic: str = "numbers") -> None:
    producer = await started_producer(clients)
    for number in range(RECORDS):
        await producer.send_and_wait(topic, b"%d" % number, partition=0)
    await producer.stop()


async def _read_to(connection: Connection, end: int) -> list[int]:
    found: list[int] = []
    async with reader(connection, max_poll_records=5) as consumer:
        consumer.assign([TP])
        consumer.seek(TP, 0)
        async for batch in batches_before(consumer, TP, end):
            found += [each.offset for each in batch]
    return found


def test_batches_before_an_end_are_all_before_it() -> None:
    async def test(cluster: Cluster, clients: SimulatedClients) -> None:
        await _written(clients)
        assert await _read_to(SimulatedConnection(made=clients), 33) == list(range(33))

    simulate(test)


@pytest.mark.parametrize("what", ["the end is lost", "no broker answers"])
def test_reading_to_an_end_that_does_not_come_ends_with_an_error(what: str) -> None:
    async def test(cluster: Cluster, clients: SimulatedClients) -> None:
        await _written(clients)
        connection = SimulatedConnection(made=clients)
        async with reader(connection, max_poll_records=5) as consumer:
            end = (await consumer.end_offsets([TP]))[TP]
            if what == "the end is lost":
                lose_tail(cluster, TP, 10)
            else:
                cluster.network.cut.add(("test", 0))
            consumer.assign([TP])
            consumer.seek(TP, 0)
            began_s = asyncio.get_running_loop().time()
            with pytest.raises(KafkaTimeoutError, match="records of numbers/0 before offset 40, from"):
                async for _ in batches_before(consumer, TP, end):
                    pass
            assert LATEST_S <= asyncio.get_running_loop().time() - began_s <= LATEST_S + 10.0

    simulate(test)


def test_slow_reading_goes_on_as_long_as_records_come() -> None:
    async def test(cluster: Cluster, clients: SimulatedClients) -> None:
        await _written(clients)
        async with reader(SimulatedConnection(made=clients), max_poll_records=1) as consumer:
            consumer.assign([TP])
            consumer.seek(TP, 0)
            found = 0
            async for batch in batches_before(consumer, TP, RECORDS):
                found += len(batch)
                await asyncio.sleep(LATEST_S / 4)
            assert found == RECORDS

    simulate(test)


def test_looks_back_begin_nearer_to_the_beginning_each_time() -> None:
    assert list(looks_back(0, 1_000, 10)) == [990, 920, 360, 0]
    assert list(looks_back(995, 1_000, 10)) == [995]
    assert list(looks_back(7, 7, 10)) == []


async def _all(connection: Connection) -> None:
    opened = LogOpened(log_id="log", partitions=1)
    async for _ in PartitionReading(connection, Topics("equipoise"), opened, 0).records("numbers", 0):
        pass


READS: list[tuple[str, str, Read]] = [
    ("equipoise.bases", "the newest base", lambda connection: newest_base(connection, Topics("equipoise"), "log", 0)),
    ("numbers", "a hole", lambda connection: fill_holes(connection, 0, [Record(None, None, *TP, RECORDS, 0)])),
    ("numbers", "decisions", _all),
    ("group-positions", "positions", lambda connection: PositionsReader("group", lambda: connection.clients.consumer(read_committed=True)).read(0)),
]


@pytest.mark.parametrize("fetches", [0, 1])
@pytest.mark.parametrize(("topic", "what", "read"), READS)
def test_reader_of_brokers_that_fall_silent_behind_the_question_for_the_end_ends(
    topic: str, what: str, read: Read, fetches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`fetches`: that are answered."""

    async def test(cluster: Cluster, clients: SimulatedClients) -> None:
        if topic != "numbers":
            cluster.create_topic(topic, 6, 1, {})
        await _written(clients, topic)
        left, handle = fetches, cluster.fetch

        def silent(*arguments: Any) -> None:
            nonlocal left
            left -= 1
            if left >= 0:
                handle(*arguments)

        monkeypatch.setattr(cluster, "fetch", silent)
        asked = asyncio.ensure_future(read(SimulatedConnection(made=clients)))
        await asyncio.wait((asked,), timeout=3 * LATEST_S)
        assert asked.done(), "it reads for ever"
        if (error := asked.exception()) is not None:
            assert isinstance(error, KafkaError | InputError | GapError)
        else:
            assert fetches, "nothing was read"

    simulate(test)


def test_topic_without_a_leader_is_named() -> None:
    async def test(cluster: Cluster, clients: SimulatedClients) -> None:
        cluster.topics["numbers"].partitions[1].leader = -1
        admin = clients.admin()
        await admin.start()
        began_s = asyncio.get_running_loop().time()
        with pytest.raises(KafkaTimeoutError, match="a leader of numbers/1"):
            await described_topics(admin, ["numbers"])
        assert asyncio.get_running_loop().time() - began_s == pytest.approx(KNOWN_S, abs=1.0)
        await admin.stop()

    simulate(test)
