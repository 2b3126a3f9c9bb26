"""The simulated Kafka answers as a real broker does: the same random operations, answer for answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from functools import partial
from random import Random
from typing import Any

import pytest
from aiokafka import TopicPartition as TheirPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.client import AIOKafkaClient, CoordinationType
from aiokafka.errors import KafkaError, for_code
from aiokafka.protocol.offset import OffsetRequest
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.protocol.transaction import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from equipoise.kafka.client import Clients, NewTopic, TopicPartition
from equipoise.kafka.connection import Connection
from equipoise.kafka.consumer.requests import END
from equipoise.testing.simulated.connection import SimulatedClients
from equipoise.testing.simulated.kafka.cluster import Cluster
from equipoise.testing.simulated.kafka.partition_log import Batch
from equipoise.testing.simulated.virtual_loops import S_US, Scheduler, VirtualLoop
from tests.simulated.late_requests import LateRequests, Requests, Sent, expired_transaction
from tests.simulated.script import Script
from tests.support.cluster_faults import delete_topic

STEPS = 100
LATE_STEPS = 200
VIRTUAL_S = 36_000


class RealWorld:
    """A broker, of which only the topics of one prefix are touched."""

    def __init__(self, bootstrap: str, admin: AIOKafkaAdminClient) -> None:
        self.clients = Connection(bootstrap=bootstrap).clients
        self._admin = admin

    async def create(self, topic: NewTopic) -> None:
        while True:
            answer = await self._admin.create_topics([topic])
            if not answer.topic_errors[0][1]:
                break
            await asyncio.sleep(0.1)  # the former one is being deleted
        while topic.name not in await self._admin.list_topics():  # noqa: ASYNC110
            await asyncio.sleep(0.05)

    async def delete(self, topic: str) -> None:
        await self._admin.delete_topics([topic])
        while topic in await self._admin.list_topics():  # noqa: ASYNC110
            await asyncio.sleep(0.05)

    async def delete_records(self, place: TopicPartition, before: int) -> None:
        await self._admin.delete_records({TheirPartition(*place): RecordsToDelete(before)})


class SimulatedWorld:
    def __init__(self, cluster: Cluster) -> None:
        self.clients: Clients = SimulatedClients(cluster, "script")
        self._cluster = cluster

    async def create(self, topic: NewTopic) -> None:
        self._cluster.create_topic(topic.name, topic.num_partitions, topic.replication_factor, topic.topic_configs)

    async def delete(self, topic: str) -> None:
        delete_topic(self._cluster, topic)

    async def delete_records(self, place: TopicPartition, before: int) -> None:
        self._cluster.delete_records(place, before)


class RealRequests:
    """Sends requests to the only broker, by aiokafka's connection."""

    def __init__(self, client: AIOKafkaClient, world: RealWorld, prefix: str) -> None:
        self._client, self._world, self._prefix = client, world, prefix

    async def _ask(self, request: Any) -> Any:
        return await self._client.send(self._client.get_random_node(), request)

    async def init(self, transactional_id: str, timeout_ms: int = 60_000) -> tuple[str, int, int]:
        while True:
            answer = await self._ask(InitProducerIdRequest(self._id(transactional_id), timeout_ms))
            if not for_code(answer.error_code).retriable:
                return _name(answer.error_code), answer.producer_id, answer.producer_epoch
            with contextlib.suppress(KafkaError):
                await self._client.coordinator_lookup(CoordinationType.TRANSACTION, self._id(transactional_id))
            await asyncio.sleep(0.1)  # the coordinator is loading

    def _id(self, transactional_id: str) -> str | None:
        return f"{self._prefix}.{transactional_id}" if transactional_id else None

    async def add(self, transactional_id: str, producer_id: int, epoch: int, place: TopicPartition) -> str:
        request = AddPartitionsToTxnRequest(self._id(transactional_id), producer_id, epoch, [(place[0], [place[1]])])
        return _name((await self._ask(request)).errors[0][1][0][1])

    async def end(self, transactional_id: str, producer_id: int, epoch: int, commit: bool) -> str:
        return _name((await self._ask(EndTxnRequest(self._id(transactional_id), producer_id, epoch, commit))).error_code)

    async def commit_offset(self, transactional_id: str, producer_id: int, epoch: int, place: TopicPartition, offset: int) -> str:
        known, group = self._id(transactional_id), f"{self._prefix}.group"
        added = _name((await self._ask(AddOffsetsToTxnRequest(known, producer_id, epoch, group))).error_code)
        if added:
            return added
        while True:
            request = TxnOffsetCommitRequest(known, group, producer_id, epoch, [(place[0], [(place[1], offset, "")])])
            code = (await self._ask(request)).errors[0][1][0][1]
            if not for_code(code).retriable:
                return _name(code)
            with contextlib.suppress(KafkaError):
                await self._client.coordinator_lookup(CoordinationType.GROUP, group)
            await asyncio.sleep(0.1)

    async def produce(self, sent: Sent) -> str | int:
        is_transactional = bool(sent.transactional_id)
        batch = DefaultRecordBatchBuilder(2, 0, is_transactional, sent.producer_id, sent.epoch, sent.sequence, 10_000)
        for index in range(sent.count):
            batch.append(index, 1_700_000_000_000, None, b"x", [])
        request = ProduceRequest(self._id(sent.transactional_id), -1, 10_000, [(sent.place[0], [(sent.place[1], bytes(batch.build()))])])
        _, code, offset, *_ = (await self._ask(request)).topics[0][1][0]
        return _name(code) or int(offset)

    async def ends(self, places: list[TopicPartition]) -> list[tuple[int, int]]:
        by_level = [{partition: offset for partition, _, _, offset, *_ in await self._ends(places, level)} for level in (0, 1)]
        return [(by_level[0][place[1]], by_level[1][place[1]]) for place in places]

    async def _ends(self, places: list[TopicPartition], level: int) -> list[Any]:
        """(partition, code of an error, time, end) of each, at an isolation level."""
        answer = await self._ask(OffsetRequest(-1, level, [(places[0][0], [(place[1], -1) for place in places])]))
        return list(answer.topics[0][1])

    async def create(self, topic: str) -> None:
        """Returns when the broker leads the topic's partitions; metadata names it as their leader
        before.
        """
        await self._world.create(NewTopic(topic, 2, 1))
        while any(code for _, code, *_ in await self._ends([TopicPartition(topic, 0), TopicPartition(topic, 1)], 0)):  # noqa: ASYNC110
            await asyncio.sleep(0.05)

    async def create_again(self, topic: str) -> None:
        await self._world.delete(topic)
        await self.create(topic)


def _name(code: int) -> str:
    return for_code(code).__name__ if code else ""


class SimulatedRequests:
    """Calls the only broker."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def _ask(self, handler: Any, *arguments: Any) -> Any:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        handler(*arguments, self._cluster.brokers[0], future.set_result)
        return await future

    async def init(self, transactional_id: str, timeout_ms: int = 60_000) -> tuple[str, int, int]:
        answer = await self._ask(self._cluster.coordinators.init_producer_id, transactional_id or None, timeout_ms)
        return ("", *answer) if isinstance(answer, tuple) else (answer.__name__, -1, -1)

    async def add(self, transactional_id: str, producer_id: int, epoch: int, place: TopicPartition) -> str:
        return _class(await self._ask(self._cluster.coordinators.add_to_transaction, transactional_id, producer_id, epoch, [place], None))

    async def end(self, transactional_id: str, producer_id: int, epoch: int, commit: bool) -> str:
        return _class(await self._ask(self._cluster.coordinators.end_transaction, transactional_id, producer_id, epoch, commit))

    async def commit_offset(self, transactional_id: str, producer_id: int, epoch: int, place: TopicPartition, offset: int) -> str:
        coordinators = self._cluster.coordinators
        added = await self._ask(coordinators.add_to_transaction, transactional_id, producer_id, epoch, [], "group")
        if added is not None:
            return _class(added)
        return _class(await self._ask(coordinators.commit_in_transaction, transactional_id, producer_id, epoch, "group", {place: offset}))

    async def produce(self, sent: Sent) -> str | int:
        contents = [(None, b"x", (), 0)] * sent.count
        batch = Batch(sent.producer_id, sent.epoch, sent.sequence, bool(sent.transactional_id), contents, 100)
        answer = (await self._ask(self._cluster.produce, {sent.place: batch}, sent.transactional_id or None))[sent.place]
        return answer if isinstance(answer, int) else _class(answer)

    async def ends(self, places: list[TopicPartition]) -> list[tuple[int, int]]:
        found = [await self._ask(self._cluster.list_offsets, dict.fromkeys(places, END), committed) for committed in (False, True)]
        return [(found[0][place].offset, found[1][place].offset) for place in places]

    async def create_again(self, topic: str) -> None:
        delete_topic(self._cluster, topic)
        self._cluster.create_topic(topic, 2)


def _class(error: type[Exception] | None) -> str:
    return "" if error is None else error.__name__


async def on_a_broker(bootstrap: str, prefix: str, seed: int) -> list[str]:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    script = Script(RealWorld(bootstrap, admin), seed, prefix)
    try:
        return await script.play(STEPS)
    except BaseException:
        print("\n".join(script.seen))
        raise
    finally:
        await admin.close()


def in_virtual_time(seed: int, play: Callable[[Cluster], Coroutine[Any, Any, list[Any]]]) -> list[Any]:
    scheduler = Scheduler(seed)
    task = VirtualLoop(scheduler, "script").create_task(play(Cluster(scheduler, Random(seed))))
    try:
        scheduler.run(VIRTUAL_S * S_US, task.done)
        return task.result() if task.done() else ["it hangs"]
    finally:
        scheduler.dispose()


Late = Callable[[Requests], Coroutine[Any, Any, list[Any]]]


async def late_on_a_broker(bootstrap: str, prefix: str, play: Late) -> list[Any]:
    admin, client = AIOKafkaAdminClient(bootstrap_servers=bootstrap), AIOKafkaClient(bootstrap_servers=bootstrap)
    await admin.start()
    await client.bootstrap()
    world = RealWorld(bootstrap, admin)
    try:
        requests = RealRequests(client, world, prefix)
        await requests.create(f"{prefix}.late")
        return await play(requests)
    finally:
        await client.close()
        await admin.close()


async def late_simulated(cluster: Cluster, prefix: str, play: Late) -> list[Any]:
    cluster.create_topic(f"{prefix}.late", 2)
    return await play(SimulatedRequests(cluster))


SEEDS = [pytest.param(seed, marks=[pytest.mark.smoke, pytest.mark.new_kafka] if seed == 0 else []) for seed in range(4)]


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
async def test_simulated_kafka_answers_as_a_broker_does(seed: int, bootstrap: str, prefix: str) -> None:
    simulated = await asyncio.to_thread(in_virtual_time, seed, lambda cluster: Script(SimulatedWorld(cluster), seed, prefix).play(STEPS))
    assert simulated == await on_a_broker(bootstrap, prefix, seed)


@pytest.mark.parametrize("seed", SEEDS)
async def test_simulated_broker_answers_late_requests_as_a_broker_does(seed: int, bootstrap: str, prefix: str) -> None:
    async def play(requests: Requests) -> list[str]:
        return await LateRequests(requests, seed, f"{prefix}.late").play(LATE_STEPS)

    simulated = await asyncio.to_thread(in_virtual_time, seed, lambda cluster: late_simulated(cluster, prefix, play))
    assert simulated == await late_on_a_broker(bootstrap, prefix, play)


async def test_simulated_broker_expires_transactions_as_a_broker_does(bootstrap: str, prefix: str) -> None:
    play = partial(expired_transaction, topic=f"{prefix}.late")
    simulated = await asyncio.to_thread(in_virtual_time, 0, lambda cluster: late_simulated(cluster, prefix, play))
    assert simulated == await late_on_a_broker(bootstrap, prefix, play)


async def by_id(world: RealWorld | SimulatedWorld, topic: str) -> list[Any]:
    """What becomes of records for a topic whose id is given, before and after it is made again, and
    where the new one ends.
    """
    place, found = TopicPartition(topic, 0), list[Any]()
    await world.create(NewTopic(topic, 1, 1))
    async with contextlib.AsyncExitStack() as stack:
        reader = world.clients.consumer()
        await reader.start()
        stack.push_async_callback(reader.stop)
        reader.assign([place])
        ids = await reader.topic_ids([topic], place)
        assert ids is not None
        producer = world.clients.producer(topic_ids={topic: ids[0]}, request_timeout_ms=9_000)
        await producer.start()
        stack.push_async_callback(producer.stop)
        found.append((await producer.send_and_wait(topic, b"1", partition=0)).offset)
        await world.delete(topic)
        await world.create(NewTopic(topic, 1, 1))
        try:
            found.append((await producer.send_and_wait(topic, b"2", partition=0)).offset)
        except KafkaError as error:
            found.append(type(error).__name__)
        found.append((await reader.end_offsets([place]))[place])
    return found


@pytest.mark.smoke
@pytest.mark.new_kafka
async def test_record_for_a_topic_that_was_made_again_is_refused_as_by_a_broker(bootstrap: str, prefix: str) -> None:
    topic = f"{prefix}.by-id"
    simulated = await asyncio.to_thread(in_virtual_time, 0, lambda cluster: by_id(SimulatedWorld(cluster), topic))
    assert simulated == [0, "UnknownTopicIdError", 0]
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        assert await by_id(RealWorld(bootstrap, admin), topic) == simulated
    finally:
        await admin.close()
