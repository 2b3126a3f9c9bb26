"""`equipoise lead` on a real broker, with clients that know nothing of it."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiokafka.protocol.group import HeartbeatRequest, JoinGroupRequest, SyncGroupRequest

from equipoise.cli.lead import configuration
from equipoise.events.java_order import FEWEST_BUCKETS
from equipoise.kafka.connection import Connection
from equipoise.kafka.consumer_groups import ConsumerGroup, repeated
from equipoise.kafka.group_client import GroupClient as SeatClient
from equipoise.kafka.group_client import bucket
from equipoise.lead.seat.generation import SeatSettings
from equipoise.lead.seat.log import SeatLog
from equipoise.lead.seat.seat import Seat
from tests.live.group_clients import GroupClient, aiokafka_command, confluent_kafka_command, java_command
from tests.live.kafka import admin_client, create_partitions
from tests.live.seat_process import SeatProcess
from tests.live.test_restorer import until

PARTITIONS = 6
ALL = set(range(PARTITIONS))
COOPERATIVE = {"partition_assignment_strategy": "cooperative-sticky"}
JAVA_COOPERATIVE = {"partition_assignment_strategy": "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"}
SOON = {"heartbeat_interval_ms": "500", "session_timeout_ms": "6000"}

Start = Callable[..., GroupClient]


@pytest.fixture
async def start(bootstrap: str, prefix: str) -> Any:
    """Starts a client of the group `prefix`, which reads a topic with the same name."""
    from aiokafka.admin import NewTopic

    started: list[GroupClient] = []

    def start(name: str, command: Callable[[], list[str]] = confluent_kafka_command, **settings: str) -> GroupClient:
        started.append(GroupClient(command(), prefix, bootstrap_servers=bootstrap, group_id=prefix, client_id=name, **{**SOON, **settings}))
        return started[-1]

    async with admin_client(Connection(bootstrap=bootstrap)) as admin:
        await admin.create_topics([NewTopic(prefix, PARTITIONS, 1)])
    yield start
    for client in started:
        client.close()


@pytest.fixture
def lead(bootstrap: str, prefix: str, tmp_path: Path) -> Any:
    """Starts a seat of the group `prefix`."""
    started: list[SeatProcess] = []

    def lead(*options: str, group: str = prefix) -> SeatProcess:
        started.append(SeatProcess(bootstrap, group, tmp_path / f"seat-{len(started)}.db", *options))
        return started[-1]

    yield lead
    for seat in started:
        seat.end(signal.SIGKILL)


async def until_shared(*clients: GroupClient) -> None:
    """Until each partition has one of these clients, and all have equally many."""
    share = PARTITIONS // len(clients)
    await until(lambda: all(len(each.assigned) == share for each in clients) and set.union(*(each.assigned for each in clients)) == ALL)


@pytest.mark.parametrize(
    ("command", "settings"),
    [
        pytest.param(aiokafka_command, {}, id="aiokafka", marks=pytest.mark.slow),
        pytest.param(confluent_kafka_command, {}, id="confluent-kafka", marks=pytest.mark.slow),
        pytest.param(confluent_kafka_command, COOPERATIVE, id="confluent-kafka-cooperative", marks=pytest.mark.smoke),
        pytest.param(java_command, JAVA_COOPERATIVE, id="java-cooperative", marks=pytest.mark.slow),
    ],
)
async def test_seat_takes_the_lead_holds_and_gives_it_back(start: Start, lead: Any, command: Any, settings: dict[str, str]) -> None:
    first, second = start("first", command, **settings), start("second", command, **settings)
    await until_shared(first, second)
    had = first.assigned, second.assigned
    seat = lead("--evict", "--hold", "30")
    await until(lambda: seat.leads)
    await until_shared(first, second)
    assert (first.assigned, second.assigned) == had, f"nothing moves because the seat leads\n{seat.said}"
    second.signal(signal.SIGKILL if command is java_command else signal.SIGTERM)
    second.ended()
    second = start("second", command, **settings)
    await until(lambda: second.assigned == had[1] and first.assigned == had[0])
    assert seat.end() == 0, seat.said
    await until(lambda: first.assigned | second.assigned == ALL)
    assert seat.verified()


@pytest.mark.slow
async def test_that_it_takes_the_lead_is_planned_and_judged(start: Start, lead: Any) -> None:
    usual = {"heartbeat_interval_ms": "3000", "session_timeout_ms": "10000"}
    clients = [start(name, aiokafka_command, **usual) for name in ("first", "second", "third")]
    await until_shared(*clients)
    seat = lead("--evict")
    await until(lambda: "lead-2 is over" in seat.said)
    assert seat.end() == 0, seat.said
    (known,) = seat.changes()
    assert known.judged is not None
    assert (known.kind, known.judged.outcome, known.judged.moves) == ("lead", "at_rest", 0), seat.said
    assert known.judged.unavailable_task_ms > 0, "an eager group stops"
    assert seat.verified()


async def test_waiting_seat_takes_nothing_from_java_cooperative(start: Start, lead: Any) -> None:
    """Java's cooperative leader would assign partitions to a member without topics that comes first
    in its table.
    """
    clients = [start(name, java_command, **JAVA_COOPERATIVE) for name in ("first", "second")]
    await until_shared(*clients)
    had = [client.assigned for client in clients]
    seat = lead()
    await until(lambda: "standing by" in seat.said)
    await asyncio.sleep(3)  # a second generation would have begun
    assert [client.assigned for client in clients] == had, seat.said
    assert seat.said.count("standing by") == 1
    clients[0].signal(signal.SIGKILL)
    await until(lambda: clients[1].assigned == ALL)


@pytest.mark.slow
async def test_waiting_seat_that_was_counted_joins_behind_another(
    start: Start, bootstrap: str, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "equipoise.lead.seat")
    monkeypatch.setattr("equipoise.lead.seat.seat.COUNTING_PROTOCOLS", ())
    clients = await started_behind(start, bootstrap, prefix, ("first", "second"), java_command, **JAVA_COOPERATIVE)
    await until_shared(*clients)
    with SeatLog(tmp_path / "seat.db", prefix) as log:
        log.configure(configuration(()))
        seat = Seat(Connection(bootstrap=bootstrap), prefix, log, SeatSettings())
        running = asyncio.create_task(seat.run())
        await until(lambda: "joins again behind another member" in caplog.text)
        await until(lambda: "standing by" in caplog.text.rpartition("joins again behind another member")[2])
        await until_shared(*clients)
        await asyncio.sleep(2)
        await until_shared(*clients)
        seat.stop()
        await running
    assert caplog.text.count("joins again behind another member") == 1


async def started_behind(
    start: Start, bootstrap: str, group: str, names: tuple[str, ...], command: Callable[[], list[str]] = confluent_kafka_command, **settings: str
) -> list[GroupClient]:
    """Starts clients until their member ids are none that a seat with the best id would be behind:
    one in sixteen is.
    """
    started: list[GroupClient] = []
    async with SeatClient(Connection(bootstrap=bootstrap), group) as looking:
        for name in names:
            while True:
                client = start(name, command, **settings)
                await until(lambda client=client: bool(client.assigned))
                members = [each.member_id for each in (await looking.describe()).members if each.member_id.startswith(f"{name}-")]
                if not any(bucket(each, FEWEST_BUCKETS) == 0 for each in members):
                    break
                client.signal(signal.SIGKILL if command is java_command else signal.SIGTERM)
                client.ended()
            started.append(client)
    return started


async def test_second_seat_takes_over_from_a_killed_one_without_a_move(start: Start, lead: Any, bootstrap: str, prefix: str) -> None:
    seat = lead()
    await until(lambda: seat.leads)
    clients = await started_behind(start, bootstrap, prefix, ("first", "second", "third"))
    await until_shared(*clients)
    standby = lead()
    await until(lambda: "standing by" in standby.said)
    await until_shared(*clients)
    await asyncio.sleep(2)  # it looks at what the others have
    had = [client.assigned for client in clients]
    seat.end(signal.SIGKILL)
    await until(lambda: standby.leads)
    await until(lambda: [client.assigned for client in clients] == had)
    assert "0 to" not in standby.said
    standby.end()
    assert standby.verified()


async def test_seat_notices_new_partitions(start: Start, lead: Any, bootstrap: str, prefix: str) -> None:
    seat = lead()
    await until(lambda: seat.leads)
    client = start("first")
    await until(lambda: client.assigned == ALL)
    async with admin_client(Connection(bootstrap=bootstrap)) as admin:
        await create_partitions(admin, {prefix: PARTITIONS + 2})
    await until(lambda: client.assigned == set(range(PARTITIONS + 2)))
    assert "partitions of its topics changed" in seat.said


@pytest.mark.slow
async def test_seat_assigns_by_pattern_and_by_name_and_sees_new_topics(lead: Any, bootstrap: str, prefix: str) -> None:
    """One member reads the topics of a pattern, another one only the first of them."""
    from aiokafka.admin import NewTopic

    seat = lead()
    await until(lambda: seat.leads)
    common = {"bootstrap_servers": bootstrap, "group_id": prefix, "topic_metadata_refresh_interval_ms": "500", **SOON}
    async with admin_client(Connection(bootstrap=bootstrap)) as admin:
        await admin.create_topics([NewTopic(f"{prefix}-a", 2, 1)])
        every = GroupClient(confluent_kafka_command(), f"^{prefix}-.*", client_id="every", **common)
        try:
            await until(lambda: every.assigned == {0, 1})
            one = GroupClient(confluent_kafka_command(), f"{prefix}-a", client_id="one", **common)
            try:
                await until(lambda: len(one.assigned) == len(every.assigned) == 1)
                await admin.create_topics([NewTopic(f"{prefix}-b", 8, 1)])
                await until(lambda: every.assigned == set(range(8)) and one.assigned == {0, 1})
            finally:
                one.close()
        finally:
            every.close()
    assert seat.end() == 0
    assert seat.verified()


async def test_seat_refuses_a_group_that_the_broker_assigns(start: Start, lead: Any) -> None:
    client = start("first", group_protocol="consumer", heartbeat_interval_ms="", session_timeout_ms="")
    await until(lambda: bool(client.assigned))
    seat = lead()
    assert await asyncio.to_thread(seat.process.wait, 90) == 2
    assert "the brokers assign it, and group.consumer.assignors of broker 0 does not name" in seat.said


@pytest.mark.parametrize(
    ("protocol_type", "protocol", "said"),
    [("connect", "sessioned", "Kafka Connect"), ("consumer", "stream", "Kafka Streams"), ("consumer", "faust", "protocol 'faust'")],
)
async def test_seat_refuses_other_members(lead: Any, bootstrap: str, prefix: str, protocol_type: str, protocol: str, said: str) -> None:
    async with ConsumerGroup(Connection(bootstrap=bootstrap), prefix) as group:

        async def joined() -> Any:
            """Its first answer is an id, the second a generation of its own."""
            member_id = ""
            for _ in range(2):
                request = JoinGroupRequest(prefix, 120_000, 120_000, member_id, None, protocol_type, [(protocol, b"")])
                member_id = (answer := await group.send(request)).member_id
            group.check(answer.error_code)
            return answer

        answer = await repeated(joined, 20)
        synced = await group.send(SyncGroupRequest(prefix, answer.generation_id, answer.member_id, None, [(answer.member_id, b"")]))
        assert synced.error_code == 0
        seat = lead()
        assert await asyncio.to_thread(seat.process.wait, 90) == 2
        assert said in seat.said
        heartbeat = await group.send(HeartbeatRequest(prefix, answer.generation_id, answer.member_id))
        assert heartbeat.error_code == 0, "the group was left alone"
