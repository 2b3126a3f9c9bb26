"""Clients that are closed while brokers answer nothing: nobody waits for a closed client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiokafka.errors import KafkaConnectionError, KafkaError, ProducerClosed, UnknownTopicOrPartitionError

from equipoise.kafka.bounded_waits import WireStopped
from equipoise.kafka.client import LATEST_S, NewTopic
from equipoise.testing.simulated.connection import SimulatedClients
from equipoise.testing.simulated.kafka.cluster import Cluster
from tests.simulated.test_kafka import TP, simulate

BROKERS = 3
TIMEOUT_S = 40.0
CLOSED = (ProducerClosed, WireStopped, KafkaConnectionError, asyncio.CancelledError)
"""How a wait ends with its client. A request in flight is cancelled with its connection."""
Ask = Callable[[Any], Awaitable[Any]]


async def _send_and_wait(client: Any) -> None:
    await client.send_and_wait("numbers", b"1", partition=0)


async def _commit(client: Any) -> None:
    await client.begin_transaction()
    await client.send("numbers", b"1", partition=0)
    await client.commit_transaction()


async def _send_offsets(client: Any) -> None:
    await client.begin_transaction()
    await client.send_offsets_to_transaction({TP: 1}, "group")


async def _get(client: Any) -> None:
    client.assign([TP])
    client.seek(TP, 0)
    await client.fetched()


async def _position(client: Any) -> None:
    client.assign([TP])
    await client.position(TP)


async def _commit_offsets(client: Any) -> None:
    client.assign([TP])
    await client.commit({TP: 1})


PRODUCER: list[Ask] = [
    lambda client: client.partitions_for("others"),
    lambda client: client.topic_ids(["others"], TP._replace(topic="others")),
    lambda client: client.leader_ends([TP]),
    lambda client: client.commit_offsets({TP: 1}, "group"),
    _send_and_wait,
]
CONSUMER: list[Ask] = [
    lambda client: client.end_offsets([TP]),
    lambda client: client.end_offsets([TP._replace(topic="others")]),
    lambda client: client.committed(TP),
    lambda client: client.topic_ids(["others"], TP._replace(topic="others")),
    _get,
    _position,
    _commit_offsets,
]
ADMIN: list[Ask] = [
    lambda client: client.create_topics([NewTopic("others", 1, 1)]),
    lambda client: client.describe_topics(["numbers"]),
    lambda client: client.committed_offsets("group", [TP]),
    lambda client: client.delete_records({TP: 1}),
]
WAITS: list[tuple[str, dict[str, Any], Ask]] = [
    *(("producer", {}, ask) for ask in PRODUCER),
    *(("producer", {"transactional_id": "x"}, ask) for ask in (*PRODUCER[:2], _commit, _send_offsets)),
    *(("consumer", {"group": "group", "auto_offset_reset": "earliest"}, ask) for ask in CONSUMER),
    *(("admin", {}, ask) for ask in ADMIN),
]


async def _silenced(cluster: Cluster, clients: SimulatedClients, kind: str, options: dict[str, Any]) -> Any:
    """A client that has started, and hears nothing more from any broker."""
    client = getattr(clients, kind)(**options)
    await client.start()
    cluster.network.cut.update(("test", broker) for broker in range(BROKERS))
    return client


@pytest.mark.parametrize("after_s", [0.0, 0.05, 10.0, TIMEOUT_S - 0.05, TIMEOUT_S + 0.05])
@pytest.mark.parametrize(("kind", "options", "ask"), WAITS)
def test_wait_when_its_client_is_closed_ends_at_once(kind: str, options: dict[str, Any], ask: Ask, after_s: float) -> None:
    async def test(cluster: Cluster, clients: SimulatedClients) -> None:
        client = await _silenced(cluster, clients, kind, options)
        asked = asyncio.ensure_future(ask(client))
        await asyncio.sleep(after_s)
        if asked.done():  # by its own timeout
            assert after_s > TIMEOUT_S - 1
            with pytest.raises(KafkaError):
                asked.result()
            return
        await (client.abandon() if kind == "producer" else client.stop(within_s=0.0))
        await asyncio.wait((asked,), timeout=1.0)
        assert asked.done(), "somebody still waits for the closed client"
        with pytest.raises(CLOSED):
            asked.result()

    simulate(test, brokers=BROKERS)


BEGINNINGS: list[tuple[str, dict[str, Any]]] = [("producer", {}), ("producer", {"transactional_id": "x"})]
LASTING = (_get,)
"""They wait for records, and last as long as their client."""
LATEST_ALL_S = LATEST_S + TIMEOUT_S + 5.0
"""The last request of a wait may have its own timeout yet."""


async def _ended_s(asked: asyncio.Future[Any]) -> float:
    """After how many seconds it has ended; its error names what was waited for, or the request."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    await asyncio.wait((asked,), timeout=2 * LATEST_ALL_S)
    assert asked.done(), "it waits for ever"
    return loop.time() - began_s


@pytest.mark.parametrize(("kind", "options", "ask"), [each for each in WAITS if each[2] not in LASTING])
def test_wait_for_brokers_that_never_answer_ends_with_an_error(kind: str, options: dict[str, Any], ask: Ask) -> None:
    async def test(cluster: Cluster, clients: SimulatedClients) -> None:
        client = await _silenced(cluster, clients, kind, options)
        asked = asyncio.ensure_future(ask(client))
        assert await _ended_s(asked) <= LATEST_ALL_S
        with pytest.raises(KafkaError):
            asked.result()

    simulate(test, brokers=BROKERS)


@pytest.mark.parametrize("at_s", [0.0, 0.02, 1.0])
@pytest.mark.parametrize(("kind", "options"), BEGINNINGS)
def test_start_with_brokers_that_fall_silent_ends_with_an_error(kind: str, options: dict[str, Any], at_s: float) -> None:
    async def test(cluster: Cluster, clients: SimulatedClients) -> None:
        client = getattr(clients, kind)(**options)
        await client.wire.start()  # what comes after is said by brokers that it knows
        asked = asyncio.ensure_future(client.start())
        await asyncio.sleep(at_s)
        if asked.done():
            return
        cluster.network.cut.update(("test", broker) for broker in range(BROKERS))
        assert await _ended_s(asked) <= LATEST_ALL_S
        with pytest.raises(KafkaError):
            asked.result()

    simulate(test, brokers=BROKERS)


@pytest.mark.parametrize("late_s", [5.0, TIMEOUT_S, LATEST_S - 5.0])
@pytest.mark.parametrize(("kind", "options", "ask"), [each for each in WAITS if each[2] not in LASTING])
def test_wait_for_brokers_that_answer_late_ends(kind: str, options: dict[str, Any], ask: Ask, late_s: float) -> None:
    async def test(cluster: Cluster, clients: SimulatedClients) -> None:
        client = await _silenced(cluster, clients, kind, options)
        asked = asyncio.ensure_future(ask(client))
        await asyncio.sleep(late_s)
        cluster.network.cut.clear()
        assert late_s + await _ended_s(asked) <= LATEST_ALL_S
        if asked.exception() is not None:
            assert isinstance(asked.exception(), KafkaError)

    simulate(test, brokers=BROKERS)


def test_partitions_of_topic_when_no_metadata_comes_end_with_the_request_timeout() -> None:
    async def test(cluster: Cluster, clients: SimulatedClients) -> None:
        client = await _silenced(cluster, clients, "producer", {})
        began_s = asyncio.get_running_loop().time()
        with pytest.raises(UnknownTopicOrPartitionError):
            await client.partitions_for("others")
        assert asyncio.get_running_loop().time() - began_s == pytest.approx(TIMEOUT_S, abs=0.5)

    simulate(test, brokers=BROKERS)
