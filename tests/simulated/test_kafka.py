"""The simulated Kafka by itself, in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import pytest
from aiokafka.errors import (
    KafkaConnectionError,
    KafkaError,
    MessageSizeTooLargeError,
    OffsetOutOfRangeError,
    ProducerClosed,
    ProducerFenced,
    UnknownTopicOrPartitionError,
)

from equipoise.kafka.bounded_waits import WireStopped
from equipoise.kafka.client import Clients, NewTopic, TopicPartition, acknowledged
from equipoise.kafka.consumer.shell import WireConsumer
from equipoise.kafka.producer.shell import WireProducer
from equipoise.testing.simulated.connection import SimulatedClients
from equipoise.testing.simulated.kafka.cluster import Cluster
from equipoise.testing.simulated.virtual_loops import S_US, Scheduler, VirtualLoop
from tests.support.cluster_faults import (
    compact,
    delete_topic,
    elect_leader,
    heal_broker,
    isolate_broker,
    kill_broker,
    lose_tail,
    pause_broker,
    resume_broker,
    start_broker,
)

TP = TopicPartition("numbers", 0)
_IMPLEMENTED: type[Clients] = SimulatedClients
Test = Callable[[Cluster, SimulatedClients], Coroutine[Any, Any, None]]


def simulate(test: Test, *, seed: int = 1, brokers: int = 1, most_s: float = 3_600.0) -> Cluster:
    """Runs `test` in virtual time, with the topic "numbers" on all brokers."""
    scheduler = Scheduler(seed)
    cluster = Cluster(scheduler, Random(seed), brokers=brokers)
    cluster.create_topic("numbers", 2, brokers, {"min.insync.replicas": str(max(1, brokers - 1))})
    loop = VirtualLoop(scheduler, "test")
    task = loop.create_task(test(cluster, SimulatedClients(cluster, "test")))
    try:
        scheduler.run(int(most_s * S_US), task.done)
        assert task.done(), "it hangs"
        task.result()
        assert not scheduler.errors
    finally:
        scheduler.dispose()
    return cluster


async def started_producer(clients: SimulatedClients, **options: Any) -> WireProducer:
    producer = clients.producer(**options)
    await producer.start()
    return producer


async def started_consumer(clients: SimulatedClients, offset: int = 0, **options: Any) -> WireConsumer:
    consumer = clients.consumer(**options)
    await consumer.start()
    consumer.assign([TP])
    consumer.seek(TP, offset)
    return consumer


async def values(consumer: WireConsumer, *, wait_ms: int = 2_000) -> list[bytes | None]:
    """What comes until nothing comes for `wait_ms`."""
    found: list[bytes | None] = []
    while records := await consumer.getmany(timeout_ms=wait_ms):
        found += [record.value for each in records.values() for record in each]
    return found


def test_records_come_back_in_order_with_offsets_and_times() -> None:
    async def test(cluster: Cluster, clients: SimulatedClients) -> None:
        producer, consumer = await started_producer(clients), await started_consumer(clients)
        sent = [await producer.send("numbers", b"%d" % number, key=b"k", partition=0, headers=[("h", b"x")]) for number in range(3_000)]
        assert [(await each).offset for each in sent] == list(range(3_000))
        found: list[Any] = []
        while len(found) < 3_000:
            found += [each for batch in (await consumer.getmany(timeout_ms=1_000, max_records=700)).values() for each in batch]
        assert [(each.offset, each.value, each.key, each.headers) for each in found] == [(n, b"%d" % n, b"k", (("h", b"x"),)) for n in range(3_000)]
        assert await consumer.position(TP) == 3_000
        assert await consumer.end_offsets([TP]) == {TP: 3_000}
        assert await consumer.beginning_offsets([TP]) == {TP: 0}
        for client in (producer, consumer):
            await client.stop()

    simulate(test)


def test_fetch_whose_answer_is_full_leaves_the_other_partitions_to_the_next_one() -> None:
    async def test(cluster: Cluster, clients: SimulatedClients) -> None:
        producer, places = await started_producer(clients), [TP, TopicPartition("numbers", 1)]
        await producer.partitions_for("numbers")
        consumer = clients.consumer(fetch_max_bytes=1_000)
        await consumer.start()
        consumer.assign(places)
        await acknowledged(batch for place in places for batch in producer.send_batches(place, [(None, bytes(900), [], None)] * 3))
        for place in places:
            consumer.seek(place, 0)
        await consumer.fetched()
        assert len(consumer.ready()) == 1
        assert len(await values(consumer)) == 6

    simulate(test)


def test_same_seed_gives_the_same_run() -> None:
    async def test(cluster: Cluster, clients: SimulatedClients) -> None:
        producer, consumer = await started_producer(clients), await started_consumer(clients)
        for number in range(50):
            await producer.send("numbers", b"%d" % number, partition=number % 2)
            if number == 20:
                kill_broker(cluster, 0)
        assert len(await values(consumer, wait_ms=10_000)) == 25
        assert cluster.scheduler.now_us > 0

    steps = [simulate(test, seed=seed, brokers=3).scheduler.now_us for seed in (1, 1, 2)]
    assert steps[0] == steps[1] != steps[2]


def test_consumer_out_of_range_raises_once_per_fetch() -> None:
    async def test(cluster: Cluster, clients: SimulatedClients) -> None:
        producer, consumer = await started_producer(clients), await started_consumer(clients, 7)
        for _ in range(5):
            await producer.send_and_wait("numbers", b"x", partition=0)
        with pytest.raises(OffsetOutOfRangeError) as raised:
            await consumer.getmany(timeout_ms=1_000)
        assert raised.value.args[0] == {TP: 7}
        cluster.delete_records(TP, 3)
        consumer.seek(TP, 2)
        with pytest.raises(OffsetOutOfRangeError):
            await consumer.getmany(timeout_ms=1_000)
        consumer.seek(TP, 3)
        assert len(await values(consumer)) == 2

    simulate(test)


def test_record_over_the_topics_limit_fails_and_leaves_the_partition_to_later_ones() -> None:
    async def test(cluster: Cluster, clients: SimulatedClients) -> None:
        cluster.topics["numbers"].configs["max.message.bytes"] = "1000"
        producer = await started_producer(clients)
        await producer.send_and_wait("numbers", b"x", partition=0)
        with pytest.raises(MessageSizeTooLargeError):
            await producer.send_and_wait("numbers", b"x" * 1_000, partition=0)
        assert (await producer.send_and_wait("numbers", b"x", partition=0)).offset == 1
        with pytest.raises(MessageSizeTooLargeError):
            await producer.send("numbers", b"x" * 2**20, partition=0)

    simulate(test)


def test_batches_keep_their_order_and_are_appended_whole() -> None:
    async def test(cluster: Cluster, clients: SimulatedClients) -> None:
        producer, consumer = await started_producer(clients, max_batch_size=1_000), await started_consumer(clients)
        await producer.partitions_for("numbers")
        records = [(b"k", b"%d" % number, [("h", b"x")], None if number else 5) for number in range(300)]
        batches = [*producer.send_batches(TP, records[:250]), *producer.send_batches(TP, records[250:]), *producer.send_batches(TP, [])]
        await acknowledged(batches)
        assert len(batches) > 5
        offset = 0
        for batch in batches:
            assert batch.appended.result().offset == offset
            offset += batch.records
        assert await values(consumer) == [b"%d" % number for number in range(300)]

    simulate(test)


def test_refused_batch_leaves_the_partition_to_later_ones() -> None:
    async def test(cluster: Cluster, clients: SimulatedClients) -> None:
        cluster.topics["numbers"].configs["max.message.bytes"] = "1000"
        producer = await started_producer(clients)
        await producer.partitions_for("numbers")
        for value in (b"1", b"x" * 1_000, b"2"):
            with contextlib.suppress(MessageSizeTooLargeError):
                await acknowledged(producer.send_batches(TP, [(None, value, [], None)]))
        consumer = await started_consumer(clients)
        assert await values(consumer) == [b"1", b"2"]
        await consumer.stop()

    simulate(test)


def test_assigned_partitions_keep_their_positions_beside_new_ones() -> None:
    async def test(cluster: Cluster, clients: SimulatedClients) -> None:
        producer, consumer = await started_producer(clients), await started_consumer(clients)
        fetched = asyncio.ensure_future(consumer.fetched())
        for number in range(10):
            await producer.send_and_wait("numbers", b"%d" % number, partition=number % 2)
        await fetched
        assert list(consumer.ready()) == [TP]
        assert len((await consumer.getmany(max_records=1))[TP]) == 1
        other = TopicPartition("numbers", 1)
        consumer.assign([TP, other])
        consumer.seek(other, 3)
        assert set(await values(consumer)) == {b"2", b"4", b"6", b"8", b"7", b"9"}

    simulate(test)


def test_batches_with_a_record_that_is_too_large_are_not_sent() -> None:
    async def test(cluster: Cluster, clients: SimulatedClients) -> None:
        producer = await started_producer(clients)
        await producer.partitions_for("numbers")
        with pytest.raises(MessageSizeTooLargeError):
            producer.send_batches(TP, [(None, b"small", [], None), (None, b"x" * 2**20, [], None)])
        assert (await producer.send_and_wait("numbers", b"x", partition=0)).offset == 0
        await producer.abandon()
        with pytest.raises(ProducerClosed):
            producer.send_batches(TP, [(None, b"small", [], None)])

    simulate(test)


def test_topic_created_again_has_another_id_and_begins_at_0() -> None:
    async def test(cluster: Cluster, clients: SimulatedClients) -> None:
        producer, consumer = await started_producer(clients), await started_consumer(clients)
        for _ in range(3):
            await producer.send_and_wait("numbers", b"x", partition=0)
        assert len(await values(consumer)) == 3
        before = await consumer.topic_ids(["numbers"], TP)
        delete_topic(cluster, "numbers")
        with pytest.raises(UnknownTopicOrPartitionError):
            await consumer.topic_ids(["numbers"], TP)
        cluster.create_topic("numbers")
        assert await consumer.topic_ids(["numbers"], TP) != before
        with pytest.raises(OffsetOutOfRangeError):
            await consumer.getmany(timeout_ms=5_000)
        assert (await producer.send_and_wait("numbers", b"y", partition=0)).offset == 0

    simulate(test)


def test_admin_creates_a_topic_on_the_brokers_that_it_is_told() -> None:
    async def test(cluster: Cluster, clients: SimulatedClients) -> None:
        admin = clients.admin()
        await admin.start()
        topic = NewTopic("placed", -1, -1, replica_assignments={0: [2, 1], 1: [1]})
        assert await admin.create_topics([topic, NewTopic("wide", 1, 4)]) == {"wide": "InvalidReplicationFactorError"}
        placed, wide = await admin.describe_topics(["placed", "wide"])
        assert [(each["leader"], each["replicas"]) for each in placed["partitions"]] == [(2, [2, 1]), (1, [1])]
        assert wide["error_code"]

    simulate(test, brokers=3)


def test_no_broker_raises_connection_error() -> None:
    async def test(cluster: Cluster, clients: SimulatedClients) -> None:
        kill_broker(cluster, 0)
        for client in (clients.admin(), clients.consumer(), clients.producer()):
            with pytest.raises(KafkaConnectionError):
                await client.start()
            await client.stop()

    simulate(test)


@pytest.mark.parametrize("how", ["kill", "pause", "isolate"])
@pytest.mark.parametrize("seed", range(10))
def test_nothing_acknowledged_is_lost_or_doubled_when_brokers_fail(how: str, seed: int) -> None:
    async def test(cluster: Cluster, clients: SimulatedClients) -> None:
        producer = await started_producer(clients, request_timeout_ms=3_000)
        sent = []
        for number in range(300):
            sent.append(await producer.send("numbers", b"%d" % number, partition=0))
            await asyncio.sleep(0.02)
            broker = number // 100
            if number % 100 == 10:
                {"kill": kill_broker, "pause": pause_broker, "isolate": isolate_broker}[how](cluster, broker)
            if number % 100 == 80:
                {"kill": start_broker, "pause": resume_broker, "isolate": heal_broker}[how](cluster, broker)
        await producer.stop(within_s=60.0)
        offsets = [each.result().offset for each in sent]
        assert len(set(offsets)) == 300
        consumer = await started_consumer(clients, request_timeout_ms=3_000)
        found = await values(consumer, wait_ms=10_000)
        assert found == [b"%d" % number for number in range(300)]

    simulate(test, brokers=3, seed=seed)


async def transact(producer: WireProducer, *numbers: int, commit: bool = True) -> None:
    await producer.begin_transaction()
    for number in numbers:
        await producer.send("numbers", b"%d" % number, partition=0)
    await (producer.commit_transaction() if commit else producer.abort_transaction())


def test_transactions_are_read_whole_or_not_at_all() -> None:
    async def test(cluster: Cluster, clients: SimulatedClients) -> None:
        producer = await started_producer(clients, transactional_id="t")
        committed, every = await started_consumer(clients, read_committed=True), await started_consumer(clients)
        await transact(producer, 1, 2)
        await transact(producer, 3, 4, commit=False)
        await transact(producer, 5)
        await producer.begin_transaction()
        await producer.send_and_wait("numbers", b"6", partition=0)
        assert await values(committed) == [b"1", b"2", b"5"]
        assert await values(every) == [b"1", b"2", b"3", b"4", b"5", b"6"]
        assert await committed.position(TP) == 8  # behind three markers
        assert (await committed.end_offsets([TP]))[TP] == 8
        assert (await every.end_offsets([TP]))[TP] == 9
        assert committed.last_stable_offset(TP) == 8
        await producer.send_offsets_to_transaction({TP: 11}, "group")
        reader = clients.consumer(group="group")
        await reader.start()
        assert await reader.committed(TP) is None
        await producer.commit_transaction()
        await asyncio.sleep(0.1)
        assert await reader.committed(TP) == 11

    simulate(test)


def test_second_producer_of_a_transactional_id_fences_the_first() -> None:
    async def test(cluster: Cluster, clients: SimulatedClients) -> None:
        first = await started_producer(clients, transactional_id="t")
        await first.begin_transaction()
        await first.send_and_wait("numbers", b"1", partition=0)
        second = await started_producer(clients, transactional_id="t")
        with pytest.raises(ProducerFenced):
            await first.send_and_wait("numbers", b"2", partition=0)
        with pytest.raises(ProducerFenced):
            await first.commit_transaction()
        await transact(second, 3)
        consumer = await started_consumer(clients, read_committed=True)
        assert await values(consumer) == [b"3"]
        await consumer.stop()

    simulate(test)


def test_transaction_that_is_open_too_long_is_aborted() -> None:
    async def test(cluster: Cluster, clients: SimulatedClients) -> None:
        producer = await started_producer(clients, transactional_id="t", transaction_timeout_ms=5_000)
        await producer.begin_transaction()
        await producer.send_and_wait("numbers", b"1", partition=0)
        consumer = await started_consumer(clients, read_committed=True)
        assert (await consumer.end_offsets([TP]))[TP] == 0
        await asyncio.sleep(16.0)
        assert (await consumer.end_offsets([TP]))[TP] == 2
        with pytest.raises(ProducerFenced):
            await producer.commit_transaction()

    simulate(test)


def test_late_request_of_a_fenced_producer_is_refused() -> None:
    async def test(cluster: Cluster, clients: SimulatedClients) -> None:
        slow = SimulatedClients(cluster, "slow")
        first = await started_producer(slow, transactional_id="t")
        await transact(first, 1)
        await first.begin_transaction()
        await first.send_and_wait("numbers", b"2", partition=0)
        cluster.network.slow_us["slow"] = 5_000_000
        await first.send("numbers", b"3", partition=0)
        await asyncio.sleep(1.0)
        await first.abandon()
        second = await started_producer(clients, transactional_id="t")
        await transact(second, 4)
        await asyncio.sleep(10.0)
        consumer = await started_consumer(clients)
        assert await values(consumer) == [b"1", b"2", b"4"]
        await consumer.stop()

    simulate(test)


def test_late_request_of_an_idempotent_producer_arrives() -> None:
    async def test(cluster: Cluster, clients: SimulatedClients) -> None:
        slow = SimulatedClients(cluster, "slow")
        producer = await started_producer(slow)
        await producer.partitions_for("numbers")
        cluster.network.slow_us["slow"] = 5_000_000
        future = await producer.send("numbers", b"1", partition=0)
        await asyncio.sleep(1.0)
        await producer.abandon()
        consumer = await started_consumer(clients)
        assert await values(consumer) == []
        await asyncio.sleep(3.0)
        assert await values(consumer) == [b"1"]
        with pytest.raises(ProducerClosed):
            future.result()

    simulate(test)


def test_isolated_leader_answers_with_an_old_end() -> None:
    async def test(cluster: Cluster, clients: SimulatedClients) -> None:
        consumer, producer = await started_consumer(clients), await started_producer(clients, request_timeout_ms=2_000)
        await producer.send_and_wait("numbers", b"1", partition=0)
        assert await consumer.end_offsets([TP]) == {TP: 1}
        isolate_broker(cluster, 0)
        await asyncio.sleep(4.0)
        await producer.send_and_wait("numbers", b"2", partition=0)
        assert await consumer.end_offsets([TP]) == {TP: 1}
        heal_broker(cluster, 0)
        assert await consumer.end_offsets([TP]) == {TP: 2}

    simulate(test, brokers=3)


def test_lost_tail_gives_the_offsets_again() -> None:
    async def test(cluster: Cluster, clients: SimulatedClients) -> None:
        producer, consumer = await started_producer(clients), await started_consumer(clients)
        for number in range(5):
            await producer.send_and_wait("numbers", b"%d" % number, partition=0)
        assert len(await values(consumer)) == 5
        lose_tail(cluster, TP, 2)
        with pytest.raises(OffsetOutOfRangeError):
            await consumer.getmany(timeout_ms=1_000)
        other = await started_producer(clients)
        assert (await other.send_and_wait("numbers", b"5", partition=0)).offset == 3

    simulate(test)


def test_committed_offsets_survive_the_coordinator() -> None:
    async def test(cluster: Cluster, clients: SimulatedClients) -> None:
        consumer, admin = await started_consumer(clients, group="group", request_timeout_ms=2_000), clients.admin()
        await admin.start()
        await consumer.commit({TP: 5})
        for broker in range(3):
            kill_broker(cluster, broker)
            assert await consumer.committed(TP) == 5 + broker
            await consumer.commit({TP: 6 + broker})
            start_broker(cluster, broker)
            await asyncio.sleep(2.0)
        assert await admin.committed_offsets("group", [TP, TopicPartition("numbers", 1)]) == {TP: 8, TopicPartition("numbers", 1): None}

    simulate(test, brokers=3)


def test_broker_clocks_date_records() -> None:
    async def test(cluster: Cluster, clients: SimulatedClients) -> None:
        cluster.create_topic("dated", configs={"message.timestamp.type": "LogAppendTime"})
        cluster.brokers[0].clock_ms = 3_600_000
        producer, consumer = await started_producer(clients), await started_consumer(clients)
        consumer.assign([TopicPartition("dated", 0)])
        consumer.seek(TopicPartition("dated", 0), 0)
        await producer.send_and_wait("dated", b"x", partition=0)
        (record,) = (await consumer.getmany(timeout_ms=1_000))[TopicPartition("dated", 0)]
        assert record.timestamp_type == 1
        assert 3_590_000 < record.timestamp_ms - cluster.now_ms() < 3_610_000

    simulate(test)


def test_compaction_leaves_holes() -> None:
    async def test(cluster: Cluster, clients: SimulatedClients) -> None:
        producer = await started_producer(clients)
        for number in range(6):
            await producer.send_and_wait("numbers", b"%d" % number, key=b"%d" % (number % 2), partition=0)
        compact(cluster, TP, 5)
        consumer = await started_consumer(clients)
        assert await values(consumer) == [b"3", b"4", b"5"], "the last ones of both keys among those that are compacted, and the rest"
        assert await consumer.position(TP) == 6

    simulate(test)


def test_transaction_whose_marker_is_compacted_away_stays_committed_when_the_partition_is_cut_off() -> None:
    async def test(cluster: Cluster, clients: SimulatedClients) -> None:
        producer = clients.producer(transactional_id="t")
        await producer.start()
        for value in (b"former", b"last"):
            await producer.begin_transaction()
            await producer.send_and_wait("numbers", value, key=b"key", partition=0)
            await producer.commit_transaction()
        await (await started_producer(clients)).send_and_wait("numbers", b"lost", partition=0)
        log = cluster.topics["numbers"].partitions[0].log
        compact(cluster, TP, 4)
        log.truncate(4)
        assert [each.value for each in log.records] == [b"last"]
        assert log.last_stable_offset == log.end == 4

    simulate(test)


def test_stopped_consumer_raises_and_ends_what_is_asked() -> None:
    async def test(cluster: Cluster, clients: SimulatedClients) -> None:
        consumer = await started_consumer(clients)
        pause_broker(cluster, 0)
        asking = asyncio.ensure_future(consumer.end_offsets([TP]))
        waiting = asyncio.ensure_future(consumer.getmany(timeout_ms=100_000))
        await asyncio.sleep(1.0)
        await consumer.stop()
        await asyncio.wait((asking, waiting), timeout=1.0)
        assert isinstance(asking.exception(), WireStopped)
        assert waiting.result() == {}

    simulate(test)


@pytest.mark.parametrize("seed", range(6))
def test_marker_that_is_lost_with_a_leader_is_written_again(seed: int) -> None:
    async def test(cluster: Cluster, clients: SimulatedClients) -> None:
        producer, log = await started_producer(clients, transactional_id="t"), cluster.topics["numbers"].partitions[0].log
        await producer.begin_transaction()
        await producer.send_and_wait("numbers", b"1", partition=0)
        cluster.replicate_us = (500_000, 500_000)
        await producer.commit_transaction()
        while log.end == 1:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        elect_leader(cluster, cluster.topics["numbers"].partitions[0])
        await asyncio.sleep(10.0)
        assert log.last_stable_offset == log.end > 1
        consumer = await started_consumer(clients, read_committed=True)
        assert await values(consumer) == [b"1"]
        await consumer.stop()

    simulate(test, brokers=3, seed=seed)


@pytest.mark.parametrize("seed", range(20))
def test_transactions_are_whole_when_brokers_and_producers_fail(seed: int) -> None:
    """Every transaction that was committed is read once, in whole; of the others those at most
    whose commit has raised.
    """
    random = Random(seed)
    committed: list[int] = []
    unknown: set[int] = set()

    async def write(clients: SimulatedClients, count: int) -> None:
        producer = None
        for number in range(count):
            try:
                if producer is None:
                    producer = await started_producer(clients, transactional_id="t", transaction_timeout_ms=20_000, request_timeout_ms=2_000)
                unknown.add(number)
                await transact(producer, number, number)
                unknown.discard(number)
                committed.append(number)
            except KafkaError:
                assert producer is not None
                await producer.abandon()
                producer = None
            if producer is not None and random.random() < 0.1:
                await producer.begin_transaction()
                await producer.send("numbers", b"999", partition=0)
                await asyncio.sleep(random.random() * 0.01)
                await producer.abandon()
                producer = None
        if producer is not None:
            await producer.stop()

    async def test(cluster: Cluster, clients: SimulatedClients) -> None:
        writing = asyncio.ensure_future(write(clients, 200))
        while not writing.done():
            await asyncio.sleep(random.random() * 3)
            broker = random.randrange(3)
            fail, mend = random.choice([(kill_broker, start_broker), (pause_broker, resume_broker), (isolate_broker, heal_broker)])
            fail(cluster, broker)
            await asyncio.sleep(random.random() * 6)
            mend(cluster, broker)
            await asyncio.sleep(1.0)
        await writing
        await asyncio.sleep(60.0)
        consumer = await started_consumer(clients, read_committed=True, request_timeout_ms=2_000)
        found = await values(consumer, wait_ms=10_000)
        await consumer.stop()
        numbers = [int(each or b"") for each in found]
        assert numbers[::2] == numbers[1::2]
        assert 999 not in numbers
        assert sorted(set(numbers[::2])) == numbers[::2]
        assert set(committed) <= set(numbers) <= set(committed) | unknown

    simulate(test, brokers=3, seed=seed)
