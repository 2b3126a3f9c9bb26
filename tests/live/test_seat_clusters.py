"""`equipoise lead` where the cluster is more than one open broker: with passwords and rights, with
racks, and when the coordinator's broker dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from aiokafka.admin import NewTopic
from aiokafka.errors import KafkaError

from equipoise.kafka.connection import Connection
from equipoise.kafka.consumer_groups import ConsumerGroup
from equipoise.operations.doctor.access import Acl
from tests.live.group_clients import GroupClient, confluent_kafka_command, java_command
from tests.live.kafka import admin_client
from tests.live.seat_process import SeatProcess
from tests.live.secured import SecuredBroker, secured_broker
from tests.live.test_restorer import until
from tools.brokers import Brokers

PARTITIONS = 6
ALL = set(range(PARTITIONS))
SOON = {"heartbeat_interval_ms": "500", "session_timeout_ms": "6000"}
RIGHTS = [Acl("Group", "orders", "Read"), Acl("Group", "orders", "Describe"), Acl("Topic", "orders", "Describe")]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    with secured_broker(tmp_path_factory.mktemp("tls"), "seat") as broker:
        broker.allow("seat", RIGHTS)
        yield broker


@pytest.fixture(scope="module")
def brokers() -> Iterator[Brokers]:
    with Brokers(3, **{"broker.session.timeout.ms": "6000"}) as running:
        yield running


@contextlib.contextmanager
def client(
    bootstrap: str, group: str, name: str, command: Callable[[], list[str]] = confluent_kafka_command, **settings: str
) -> Iterator[GroupClient]:
    started = GroupClient(command(), group, bootstrap_servers=bootstrap, group_id=group, client_id=name, **{**SOON, **settings})
    try:
        yield started
    finally:
        started.close()


@contextlib.contextmanager
def seat_of(bootstrap: str, group: str, folder: Path, *options: str, **environment: str) -> Iterator[SeatProcess]:
    started = SeatProcess(bootstrap, group, folder / "seat.db", *options, **environment)
    try:
        yield started
    finally:
        started.end(signal.SIGKILL)


def shared(*clients: GroupClient) -> bool:
    """Whether each partition has one of these clients, and all have equally many."""
    return all(len(each.assigned) == PARTITIONS // len(clients) for each in clients) and set.union(*(each.assigned for each in clients)) == ALL


@pytest.mark.slow
@pytest.mark.xdist_group("secured seat")
async def test_seat_leads_with_password_and_the_rights_of_its_page(secured: SecuredBroker, tmp_path: Path) -> None:
    async with admin_client(Connection(bootstrap=secured.inside)) as admin:
        await admin.create_topics([NewTopic("orders", PARTITIONS, 1)])
    environment = {f"EQUIPOISE_{name.upper()}": value for name, value in secured.settings("seat").items()}
    with client(secured.inside, "orders", "first") as first, client(secured.inside, "orders", "second") as second:
        await until(lambda: shared(first, second))
        had = first.assigned, second.assigned
        with secured.without("seat", RIGHTS[0]), seat_of(secured.bootstrap, "orders", tmp_path, **environment) as refused:
            assert await asyncio.to_thread(refused.process.wait, 90) == 2
            assert "it needs READ and DESCRIBE on the group" in refused.said
        with seat_of(secured.bootstrap, "orders", tmp_path, "--evict", **environment) as seat:
            await until(lambda: seat.leads)
            await until(lambda: shared(first, second))
            assert (first.assigned, second.assigned) == had
            assert seat.end() == 0
            assert seat.verified()


@pytest.mark.slow
@pytest.mark.xdist_group("seat on three brokers")
async def test_seat_assigns_partitions_near_their_replicas(brokers: Brokers, tmp_path: Path) -> None:
    group, near = "near", (1, 1, 0, 0, 1, 0)
    async with admin_client(Connection(bootstrap=brokers.bootstrap)) as admin:
        placed = {partition: [2, at] for partition, at in enumerate(near)}
        assert await admin.create_topics([NewTopic(group, -1, -1, replica_assignments=placed, topic_configs={"min.insync.replicas": "1"})]) == {}
    ranges = {"partition_assignment_strategy": "org.apache.kafka.clients.consumer.RangeAssignor"}
    with contextlib.ExitStack() as stack:
        seat = stack.enter_context(seat_of(brokers.bootstrap, group, tmp_path))
        await until(lambda: seat.leads)
        started = [client(brokers.bootstrap, group, f"c{rack}", java_command, client_rack=f"rack-{rack}", **ranges) for rack in (0, 1)]
        for rack, each in enumerate([stack.enter_context(each) for each in started]):
            wanted = {partition for partition, at in enumerate(near) if at == rack}
            await until(lambda each=each, wanted=wanted: each.assigned == wanted)


@pytest.mark.slow
@pytest.mark.xdist_group("seat on three brokers")
async def test_group_goes_on_without_a_generation_when_the_coordinators_broker_dies(brokers: Brokers, tmp_path: Path) -> None:
    group = "failover"
    async with admin_client(Connection(bootstrap=brokers.bootstrap)) as admin:
        assert await admin.create_topics([NewTopic(group, PARTITIONS, 3, topic_configs={"min.insync.replicas": "1"})]) == {}
    with contextlib.ExitStack() as stack:
        seat = stack.enter_context(seat_of(brokers.bootstrap, group, tmp_path))
        await until(lambda: seat.leads)
        clients = [stack.enter_context(client(brokers.bootstrap, group, name, session_timeout_ms="20000")) for name in ("first", "second")]
        await until(lambda: shared(*clients))
        had = [each.assigned for each in clients]
        async with ConsumerGroup(Connection(bootstrap=brokers.bootstrap), group) as asking:
            addresses = await asking.coordinator()
        ports = [int(address.rpartition(":")[2]) for address in brokers.bootstrap.split(",")]
        (port,) = {port for _, port in addresses}
        led = seat.said.count(", assigned in")
        brokers.kill(ports.index(port))
        async with ConsumerGroup(Connection(bootstrap=brokers.bootstrap), group) as asking:
            await until_elsewhere(asking, port)
        await until(lambda: "the brokers answer again" in seat.said)
        assert seat.said.count(", assigned in") == led, "to join again at the new coordinator would have stopped everybody"
        third = stack.enter_context(client(brokers.bootstrap, group, "third"))
        await until(lambda: shared(*clients, third))
        assert seat.said.count(", assigned in") > led
        assert all(each.assigned <= before for each, before in zip(clients, had, strict=True)), "only the new client was given something"
        brokers.start(ports.index(port))


async def until_elsewhere(asking: ConsumerGroup, port: int) -> None:
    """Until another broker coordinates the group."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(KafkaError, OSError):
                await asking.members()  # a coordinator that does not answer is forgotten
                if {at for _, at in await asking.coordinator()} != {port}:
                    return
            await asyncio.sleep(0.5)
