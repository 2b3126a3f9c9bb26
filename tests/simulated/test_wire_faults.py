"""Clients before brokers whose answers and connections fail, for every request that they answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from random import Random

import pytest
from aiokafka.errors import ProducerFenced

from equipoise.kafka.client import TopicPartition
from equipoise.testing.simulated.connection import SimulatedClients
from equipoise.testing.simulated.kafka.broker_network import Ending
from equipoise.testing.simulated.kafka.cluster import Cluster
from tests.simulated.test_kafka import simulate, started_consumer, started_producer, values
from tests.support.cluster_faults import elect_leader

IN = TopicPartition("numbers", 0)
GROUP = "group"
PROCESS = "test"
TIMEOUT_MS = 1_000
COUNT = 60


def _passing(cluster: Cluster) -> None:
    cluster.passing.share = 0.3


def _ending(how: Ending, cluster: Cluster) -> None:
    cluster.network.ending[PROCESS] = how


def _throttled(cluster: Cluster) -> None:
    for each in cluster.brokers:
        each.throttle_ms = 300


def _expiring(cluster: Cluster) -> None:
    for each in cluster.brokers:
        each.session_us = 100_000


def _moving(cluster: Cluster) -> None:
    for each in cluster.every_partition():
        elect_leader(cluster, each)
    cluster.scheduler.call_later(1_500_000, _move_on, cluster)


def _move_on(cluster: Cluster) -> None:
    if cluster.election_us[0]:
        _moving(cluster)


def _calm(cluster: Cluster) -> None:
    cluster.passing.share, cluster.election_us = 0.0, (0, 1)
    cluster.network.ending.clear()
    for each in cluster.brokers:
        each.throttle_ms, each.session_us = 0, None


TROUBLES: dict[str, Callable[[Cluster], None]] = {
    "errors that pass": _passing,
    "half answers": partial(_ending, Ending.BREAKS),
    "hanging connections": partial(_ending, Ending.HANGS),
    "throttled": _throttled,
    "sessions end": _expiring,
    "all move": _moving,
}
seeded = pytest.mark.parametrize("seed", range(3))


@pytest.mark.parametrize("trouble", TROUBLES)
@seeded
def test_records_are_there_once_and_in_order_and_are_read_so(trouble: str, seed: int) -> None:
    async def test(cluster: Cluster, clients: SimulatedClients) -> None:
        cluster.tells_epochs = seed == 2
        producer = await started_producer(clients, request_timeout_ms=TIMEOUT_MS)
        consumer = await started_consumer(clients, request_timeout_ms=TIMEOUT_MS)
        reading = asyncio.ensure_future(values(consumer, wait_ms=20_000))
        sent = []
        for number in range(COUNT):
            if number == 10:
                TROUBLES[trouble](cluster)
            sent.append(await producer.send("numbers", b"%d" % number, partition=0))
            await asyncio.sleep(0.03)
        _calm(cluster)
        await producer.stop(within_s=60.0)
        assert [each.result().offset for each in sent] == sorted({each.result().offset for each in sent})
        assert await reading == [b"%d" % number for number in range(COUNT)]
        await consumer.stop()

    simulate(test, brokers=3, seed=seed)


@pytest.mark.parametrize("trouble", TROUBLES)
@seeded
def test_transactions_with_offsets_are_whole_and_committed_once(trouble: str, seed: int) -> None:
    async def test(cluster: Cluster, clients: SimulatedClients) -> None:
        producer = await started_producer(clients, transactional_id="t", request_timeout_ms=TIMEOUT_MS)
        random, expected = Random(seed), []
        for number in range(COUNT // 4):
            if number == 2:
                TROUBLES[trouble](cluster)
            await producer.begin_transaction()
            for _ in range(2):
                await producer.send("numbers", b"%d" % number, partition=0)
            await producer.send_offsets_to_transaction({IN: number + 1}, GROUP)
            if random.random() < 0.3:
                await producer.abort_transaction()
            else:
                await producer.commit_transaction()
                expected += [b"%d" % number] * 2
        _calm(cluster)
        await producer.stop()
        await asyncio.sleep(5.0)
        consumer = await started_consumer(clients, read_committed=True, group=GROUP)
        assert await values(consumer) == expected
        assert await consumer.committed(IN) == int(expected[-1]) + 1
        await consumer.stop()

    simulate(test, brokers=3, seed=seed)


@seeded
def test_offsets_of_a_group_are_never_forgotten(seed: int) -> None:
    async def test(cluster: Cluster, clients: SimulatedClients) -> None:
        consumer = await started_consumer(clients, group=GROUP)
        await consumer.commit({IN: 7})
        cluster.passing.share = 0.5
        assert [await consumer.committed(IN) for _ in range(20)] == [7] * 20
        await consumer.stop()

    simulate(test, brokers=3, seed=seed)


def test_transaction_that_has_expired_fences_its_producer_and_leaves_nothing() -> None:
    async def test(cluster: Cluster, clients: SimulatedClients) -> None:
        producer = await started_producer(clients, transactional_id="t")
        await producer.begin_transaction()
        await producer.send_and_wait("numbers", b"1", partition=0)
        cluster.coordinators.expire_all()
        await asyncio.sleep(1.0)
        with pytest.raises(ProducerFenced):
            await producer.commit_transaction()
        await producer.abandon()
        consumer = await started_consumer(clients, read_committed=True)
        assert await values(consumer) == []
        await consumer.stop()

    simulate(test, brokers=3)


def test_throttled_client_is_answered_at_once_and_heard_later() -> None:
    """As brokers since Kafka 2.0 have it (KIP-219)."""

    async def test(cluster: Cluster, clients: SimulatedClients) -> None:
        producer, loop = await started_producer(clients), asyncio.get_running_loop()
        cluster.brokers[0].throttle_ms = 2_000
        began_s, ends_s = loop.time(), []
        for _ in range(2):
            await producer.send_and_wait("numbers", b"1", partition=0)
            ends_s.append(loop.time() - began_s)
        assert ends_s[0] < 0.1
        assert 2.0 <= ends_s[1] < 2.1
        await producer.abandon()

    simulate(test)
