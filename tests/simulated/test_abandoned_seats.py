"""Clients of the seats and of operators while brokers fall silent, in virtual time: each question
ends with an error that names a broker, a generation that is waited for is given up, and a seat that
is stopped ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import errors

from equipoise.cli.lead import configuration
from equipoise.events.errors import InputError
from equipoise.events.facts import DealRequested
from equipoise.kafka.asking import Asking, transaction_s
from equipoise.kafka.connection import Connection
from equipoise.kafka.consumer_groups import ConsumerGroup, GroupMember, listed_groups
from equipoise.kafka.group_client import ALIVE_S, MOST_LOOKS, GroupClient
from equipoise.kafka.held_group import HeldGroup
from equipoise.kafka.started_clients import NotNowError, UnreachableError, writer
from equipoise.kafka.throttling import Throttling
from equipoise.kafka.wire_clients import WireClients
from equipoise.lead.broker_seat.broker_seat import BrokerSeat
from equipoise.lead.broker_seat.extra_member import ExtraMember
from equipoise.lead.broker_seat.led_groups import HowToLead, LedGroups
from equipoise.lead.broker_seat.seat_queue import SeatQueue
from equipoise.lead.broker_seat.streams_seat import StreamsSeat
from equipoise.lead.broker_seat.ways import way_of
from equipoise.lead.migrating.asking_groups import GroupsAsking
from equipoise.lead.migrating.taking_over import TakingOver, give_back
from equipoise.lead.migrating.verdict import MigratedGroup
from equipoise.lead.seat.generation import SeatSettings
from equipoise.lead.seat.log import SeatLog
from equipoise.lead.seat.metadata import MetadataClient
from equipoise.lead.seat.seat import Seat
from equipoise.log.kafka.envelope import group_key, pack_fact
from equipoise.log.kafka.log_opening import open_partitions
from equipoise.log.kafka.topic_making import ensure_topics
from equipoise.operations.adopting import Adopting
from equipoise.operations.doctor import open_transactions
from equipoise.operations.follower import Follower
from equipoise.operations.leaving import LeavingMembers
from equipoise.operations.live_group import AnsweredFact
from equipoise.operations.worker_builds import check_workers_read
from equipoise.testing.simulated.connection import SimulatedClients, SimulatedSettings
from equipoise.testing.simulated.kafka import group_server, request_server
from equipoise.testing.simulated.kafka.cluster import Cluster
from equipoise.testing.simulated.kafka.cluster_state import Reply
from equipoise.testing.simulated.kafka.simulated_wire import SimulatedWire
from tests.simulated.test_kafka import TP, simulate
from tests.support.cluster_faults import pause_broker

BROKERS = 3
SILENT_AT_S = [0.0, 0.002, 0.01, 0.04, 0.1]
"""In the middle of one request or another."""
MOST_S = {"seat": 60.0, "operator": 130.0}
"""Their requests have a timeout of 3 s and of 40 s. Of the requests of a question one is not
answered, or one for each broker.
"""
STOP_S = 30.0
MEMBER = GroupMember(member_id="m", instance_id=None, client_id="c", host="h", protocol="classic")
Answers = Mapping[str, Callable[[Any], Any]]
ABOUT_GROUPS = {group_server.JOIN_GROUP, group_server.SYNC_GROUP, group_server.HEARTBEAT, group_server.LEAVE_GROUP, group_server.DESCRIBE_GROUPS}


class GroupWire(SimulatedWire):
    """Requests about groups have these answers, or none."""

    def __init__(self, cluster: Cluster, process: str, answers: Answers, **options: Any) -> None:
        super().__init__(cluster, process, Throttling(), **options)
        self._answers = answers

    async def send(self, node: int, request: Any, *, apart: bool = False) -> Any:
        if request.API_KEY in request_server.VERSIONS and request.API_KEY not in ABOUT_GROUPS:
            return await super().send(node, request, apart=apart)
        self._waits.check()
        name = type(request).__name__

        def handle(broker: Any, reply: Reply) -> None:
            if name in self._answers:
                reply(self._answers[name](request))

        return await self._ask(node, name, handle, apart=apart)


class Clock:
    """The runtime of a host in virtual time."""

    def __init__(self) -> None:
        self.monotonic_s = asyncio.get_running_loop().time

    def wall_us(self) -> int:
        return int(self.monotonic_s() * 1_000_000)

    def boot_ms(self) -> int:
        return int(self.monotonic_s() * 1_000)

    def unique(self) -> str:
        return "0123456789abcdef"


def _object(found: Any) -> SimpleNamespace:
    return SimpleNamespace(to_object=lambda: found, throttle_time_ms=0)


def _classic(*members: str) -> Any:
    described = [
        {"member_id": each, "group_instance_id": None, "client_id": "c", "client_host": "/h", "member_metadata": b"", "member_assignment": b""}
        for each in members
    ]
    group = {"group": "g", "error_code": 0, "state": "PreparingRebalance", "protocol_type": "consumer", "protocol": "range"}
    return _object({"groups": [{**group, "members": described, "authorized_operations": 0}]})


def _listed(kind: str) -> Callable[[Any], Any]:
    group = {"group": "g", "group_type": kind, "protocol_type": "consumer", "group_state": "Stable"}
    return lambda _: _object({"error_code": 0, "groups": [group]})


def _joined(request: Any) -> Any:
    if "" in request.__dict__.values():
        return SimpleNamespace(error_code=79, member_id="m", throttle_time_ms=0)
    raise AssertionError("a request that is kept has no answer")


CLASSIC: Answers = {
    "ListGroups": _listed("classic"),
    "DescribeGroups": lambda _: _classic("m"),
    "LeaveGroup": lambda _: SimpleNamespace(error_code=0, members=[("m", None, 0)]),
}
CONSUMER: Answers = {
    **CLASSIC,
    "ListGroups": _listed("consumer"),
    "DescribeGroups": lambda _: _classic(),
    "ConsumerGroupHeartbeat": lambda _: SimpleNamespace(error_code=0, error_message=None, member_epoch=1, heartbeat_interval_ms=1_000),
    "ConsumerGroupDescribe": lambda _: _object(
        {
            "groups": [
                {"group": "g", "error_code": 0, "state": "Stable", "assignor": "uniform", "group_epoch": 1, "assignment_epoch": 1, "members": []}
            ]
        }
    ),
}


def clients_of(cluster: Cluster, answers: Answers) -> WireClients:
    return WireClients(lambda *, request_timeout_ms, **_: GroupWire(cluster, "test", answers, request_timeout_ms=request_timeout_ms), Throttling())


Ask = Callable[[Any], Awaitable[Any]]


def _of_group(ask: Ask) -> Ask:
    async def asked(connection: Connection) -> Any:
        async with GroupClient(connection, "g") as client:
            client.member_id = "m"
            return await ask(client)

    return asked


def _new(ask: Ask) -> Ask:
    async def asked(connection: Connection) -> Any:
        async with GroupClient(connection, "g") as client:
            return await ask(client)

    return asked


def _extra(ask: Ask) -> Ask:
    async def asked(connection: Connection) -> Any:
        async with ExtraMember(connection, "g", "m") as member:
            return await ask(member)

    return asked


def _one(ask: Ask) -> Ask:
    async def asked(connection: Connection) -> Any:
        async with ConsumerGroup(connection, "g") as group:
            return await ask(group)

    return asked


def _held(ask: Ask) -> Ask:
    async def asked(connection: Connection) -> Any:
        held = HeldGroup(connection, "g", "equipoise-member", Clock().boot_ms)
        try:
            return await ask(held)
        finally:
            await held.leave()

    return asked


async def _left(member: ExtraMember) -> None:
    await member.beat()
    await member.leave()


async def _queued(connection: Connection) -> None:
    async with SeatQueue(connection, "g", Clock()) as queue:  # type: ignore[arg-type]  # as far as it needs one
        await queue.is_first()
        await queue.leave()


async def _known(connection: Connection) -> None:
    client = MetadataClient(connection, asyncio.get_running_loop().time)
    try:
        await client.ask({"numbers"})
    finally:
        await client.close()


SEAT: list[tuple[str, Answers, Ask]] = [
    ("kind", CLASSIC, _of_group(lambda client: client.kind())),
    ("describe", CLASSIC, _of_group(lambda client: client.describe())),
    ("describe_consumers", CONSUMER, _of_group(lambda client: client.describe_consumers())),
    ("a first join", {}, _new(lambda client: client.join(("range",)))),
    ("join", CLASSIC, _of_group(lambda client: client.join(("range",)))),
    ("join in", CLASSIC, _new(lambda client: client.join_in(0, ("range",)))),
    ("sync", CLASSIC, _of_group(lambda client: client.sync([]))),
    ("heartbeat", CLASSIC, _of_group(lambda client: client.heartbeat())),
    ("commit", CLASSIC, _of_group(lambda client: client.commit({("numbers", 0): 1}))),
    ("leave", CLASSIC, _of_group(lambda client: client.leave())),
    ("evict", CLASSIC, _of_group(lambda client: client.evict([MEMBER]))),
    ("members", CLASSIC, _one(lambda group: group.members())),
    ("members of KIP-848", CONSUMER, _one(lambda group: group.members())),
    ("remove", CLASSIC, _one(lambda group: group.remove(MEMBER))),
    ("node", CLASSIC, _one(lambda group: group.node())),
    ("consumers", CLASSIC, _held(lambda held: held.consumers())),
    ("look", CLASSIC, _held(lambda held: held.look())),
    ("enter and stay", CLASSIC, _held(lambda held: held.enter_and_stay(lambda _: None))),
    ("commit of a holder", CLASSIC, _held(lambda held: held.commit({("numbers", 0): 1}))),
    ("extra describe", CONSUMER, _extra(lambda member: member.describe())),
    ("extra beat", CONSUMER, _extra(lambda member: member.beat())),
    ("extra leave", CONSUMER, _extra(_left)),
    ("extra topics", CONSUMER, _extra(lambda member: member.topics({"numbers"}))),
    ("extra every topic", CONSUMER, _extra(lambda member: member.every_topic())),
    ("queue", CONSUMER, _queued),
]


def _asking(ask: Ask) -> Ask:
    async def asked(connection: Connection) -> Any:
        async with Asking(connection) as asking:
            return await ask(asking)

    return asked


async def _judged(connection: Connection) -> None:
    async with GroupsAsking(connection) as asking:
        await asking.judged(["g"])


async def _taken(connection: Connection) -> None:
    before = MigratedGroup(name="g", state="Stable", protocol_type="consumer", protocol="range")
    async with TakingOver(connection, before, Clock()) as taking:  # type: ignore[arg-type]
        await taking.take_over(20.0)


async def _appended(connection: Any) -> None:
    async with AnsweredFact(connection, "g") as group:
        await group.say(DealRequested())
        await group.is_answered_within(10.0)


async def _asked_to_leave(connection: Any) -> None:
    async with LeavingMembers(connection, "g") as members:
        await members.asked()


async def _moved(connection: Any, way: str) -> None:
    async def act() -> None: ...

    async with Adopting(connection, "g", "c", lambda _: None) as moving:
        await (moving.to_members(act) if way == "members" else moving.to_consumers(act))


OPERATOR: list[tuple[str, Answers, Ask]] = [
    ("metadata", CLASSIC, _known),
    ("way", CLASSIC, lambda connection: way_of(connection, "g", convert=True)),
    ("way of KIP-848", CONSUMER, lambda connection: way_of(connection, "g", convert=True)),
    ("listed", CLASSIC, listed_groups),
    ("versions", CLASSIC, _asking(lambda asking: asking.versions(0))),
    ("topics", CLASSIC, _asking(lambda asking: asking.topics(["numbers"]))),
    ("operations", {}, _asking(lambda asking: asking.group_operations("g"))),
    ("settings", CLASSIC, _asking(lambda asking: asking.settings(["numbers"]))),
    ("transaction", CLASSIC, lambda connection: transaction_s(connection, "x", "g", TP, 10.0)),
    ("held", CLASSIC, lambda connection: open_transactions.held_partitions(connection, [TP], 40_000)),
    ("judged", CLASSIC, _judged),
    ("taken over", CONSUMER, _taken),
    ("given back", CONSUMER, lambda connection: give_back(connection, "g", 10.0, Clock())),  # type: ignore[arg-type]
    ("workers", CLASSIC, check_workers_read),
    ("follow", {}, lambda connection: Follower(connection, connection.topics, "g").catch_up()),
    ("say", {}, _appended),
    ("ask to leave", {}, _asked_to_leave),
    ("to members", {}, partial(_moved, way="members")),
    ("to consumers", {}, partial(_moved, way="consumers")),
]
QUESTIONS = [("seat", *each) for each in SEAT] + [("operator", *each) for each in OPERATOR]
NAMES = [f"{who} {name}" for who, name, *_ in QUESTIONS]
LASTING = ("join", "sync", "enter and stay")
"""Who is in the group waits for others, as long as the coordinator has the member."""


def connection_of(cluster: Cluster, answers: Answers) -> SimulatedSettings:
    return SimulatedSettings(made=clients_of(cluster, answers))


async def begin(clients: SimulatedClients, who: str) -> None:
    """Operators ask about a log that no worker leads."""
    if who == "operator":
        connection = SimulatedSettings(made=clients)
        await ensure_topics(connection, connection.topics)
        await open_partitions(connection, connection.topics)
        async with writer(connection) as producer:
            await producer.send_and_wait(connection.topics.facts, pack_fact(configuration(())), key=group_key("g"), partition=0)


def silence(cluster: Cluster) -> None:
    cluster.network.cut.update(("test", broker) for broker in range(BROKERS))


async def ended(asked: asyncio.Future[Any], most_s: float) -> None:
    """It ends within `most_s`; an error names who has not answered, and what."""
    await asyncio.wait((asked,), timeout=most_s)
    assert asked.done(), f"it waits for longer than {most_s} s"
    error = asked.exception()
    if error is not None:
        assert isinstance(error, errors.KafkaError | OSError | InputError | TimeoutError), repr(error)
        if isinstance(error, errors.KafkaError | NotNowError | UnreachableError):
            assert any(word in str(error) for word in ("broker", "waited", "bootstrap")), repr(error)


@pytest.mark.parametrize("silent_at_s", SILENT_AT_S)
@pytest.mark.parametrize(("who", "name", "answers", "ask"), QUESTIONS, ids=NAMES)
def test_question_to_brokers_that_fall_silent_ends_and_names_one(who: str, name: str, answers: Answers, ask: Ask, silent_at_s: float) -> None:
    async def test(cluster: Cluster, clients: SimulatedClients) -> None:
        await begin(clients, who)
        asked = asyncio.ensure_future(ask(connection_of(cluster, answers)))
        await asyncio.sleep(silent_at_s)
        silence(cluster)
        await ended(asked, MOST_S[who])

    simulate(test, brokers=BROKERS)


@pytest.mark.parametrize("late_s", [1.0, 4.0, 20.0])
@pytest.mark.parametrize(("who", "name", "answers", "ask"), [each for each in QUESTIONS if each[1] not in LASTING])
def test_question_to_brokers_that_answer_late_ends(who: str, name: str, answers: Answers, ask: Ask, late_s: float) -> None:
    async def test(cluster: Cluster, clients: SimulatedClients) -> None:
        await begin(clients, who)
        asked = asyncio.ensure_future(ask(connection_of(cluster, answers)))
        await asyncio.sleep(0.005)
        silence(cluster)
        await asyncio.sleep(late_s)
        cluster.network.cut.clear()
        await ended(asked, MOST_S[who])

    simulate(test, brokers=BROKERS)


@pytest.mark.parametrize("after_s", [0.0, 0.01, 2.0, 10.0])
@pytest.mark.parametrize(("who", "name", "answers", "ask"), QUESTIONS, ids=NAMES)
def test_question_that_is_called_off_ends_at_once(who: str, name: str, answers: Answers, ask: Ask, after_s: float) -> None:
    async def test(cluster: Cluster, clients: SimulatedClients) -> None:
        await begin(clients, who)
        asked = asyncio.ensure_future(ask(connection_of(cluster, answers)))
        await asyncio.sleep(0.005)
        silence(cluster)
        await asyncio.sleep(after_s)
        asked.cancel()
        await asyncio.wait((asked,), timeout=STOP_S)
        assert asked.done(), "it goes on"
        if not asked.cancelled():
            asked.exception()

    simulate(test, brokers=BROKERS)


# A generation that is waited for


async def _join(cluster: Cluster, answers: Answers) -> tuple[asyncio.Future[Any], GroupClient]:
    client = GroupClient(connection_of(cluster, answers), "g")
    client.member_id = "m"
    joining = asyncio.ensure_future(client.join(("range",)))
    await asyncio.sleep(10 * ALIVE_S)
    assert not joining.done(), "others have not joined yet"
    return joining, client


@pytest.mark.parametrize("what", ["silent", "moved", "without the member"])
def test_generation_that_its_coordinator_does_not_know_is_given_up(what: str) -> None:
    there = ["m"]

    async def test(cluster: Cluster, clients: SimulatedClients) -> None:
        joining, client = await _join(cluster, {**CLASSIC, "DescribeGroups": lambda _: _classic(*there)})
        if what == "silent":
            silence(cluster)
        elif what == "moved":
            pause_broker(cluster, await client._joins.node())
        else:
            there.clear()
        await asyncio.wait((joining,), timeout=(MOST_LOOKS + 1) * (ALIVE_S + 20.0))
        assert joining.done(), "it waits for a generation that never begins"
        kind = {"silent": errors.KafkaError, "moved": errors.NotCoordinatorForGroupError, "without the member": errors.UnknownMemberIdError}[what]
        with pytest.raises(kind):
            joining.result()
        await client.close()

    simulate(test, brokers=BROKERS)


# Hosts


def _seat(connection: Connection, log: SeatLog) -> Any:
    return Seat(connection, "g", log, SeatSettings(), runtime=Clock())  # type: ignore[arg-type]


def _broker_seat(connection: Connection, log: SeatLog) -> Any:
    return BrokerSeat(connection, "g", log, SeatSettings(), runtime=Clock())  # type: ignore[arg-type]


def _streams_seat(connection: Connection, log: SeatLog) -> Any:
    return StreamsSeat(connection, "g", log, runtime=Clock())  # type: ignore[arg-type]


@pytest.mark.parametrize("stopped_at_s", [0.001, 0.02, 1.0, 2.5, 30.0, 200.0])
@pytest.mark.parametrize("silent_at_s", [0.0, 0.02, 0.1, 5.0])
@pytest.mark.parametrize(("answers", "made"), [(CLASSIC, _seat), (CONSUMER, _broker_seat), (CONSUMER, _streams_seat)])
def test_seat_that_is_stopped_while_brokers_are_silent_ends(
    answers: Answers, made: Callable[..., Any], silent_at_s: float, stopped_at_s: float, tmp_path: Path
) -> None:
    async def test(cluster: Cluster, clients: SimulatedClients) -> None:
        with SeatLog(tmp_path / "g.db", "g") as log:
            log.configure(configuration((), streams=made is _streams_seat))
            seat = made(connection_of(cluster, answers), log)
            running = asyncio.ensure_future(seat.run())
            await asyncio.sleep(silent_at_s)
            silence(cluster)
            await asyncio.sleep(stopped_at_s)
            assert not running.done(), "it goes on when brokers answer again"
            seat.stop()
            await asyncio.wait((running,), timeout=STOP_S)
            assert running.done(), "it does not end"
            running.result()

    simulate(test, brokers=BROKERS)


def test_process_that_leads_many_groups_ends_while_brokers_are_silent(tmp_path: Path) -> None:
    async def test(cluster: Cluster, clients: SimulatedClients) -> None:
        how = HowToLead(
            connection=connection_of(cluster, CONSUMER),
            settings=SeatSettings(),
            config=configuration(()),
            streams_config=configuration((), streams=True),
        )
        stopped = asyncio.Event()
        running = asyncio.ensure_future(LedGroups(how, ["*"], tmp_path).run(stopped))
        await asyncio.sleep(3.0)
        silence(cluster)
        await asyncio.sleep(60.0)
        assert not running.done()
        stopped.set()
        await asyncio.wait((running,), timeout=2 * STOP_S)
        assert running.done(), "it does not end"

    simulate(test, brokers=BROKERS)
