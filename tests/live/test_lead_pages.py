"""docs/seat.md, docs/streams.md and docs/migrate.md as a reader types them: from brokers and
clients in which nothing of equipoise is, each way, and back. The jars are those that the pages
build.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from aiokafka.admin import NewTopic

from equipoise.kafka.client import Admin
from equipoise.kafka.connection import Connection
from equipoise.lead.broker_seat.ways import SETTING, STREAMS_SETTING
from tests.live.group_clients import GroupClient, aiokafka_command, confluent_kafka_command
from tests.live.kafka import admin_client
from tests.live.streams import StreamsApplication
from tests.live.test_broker_seat import assignor_of
from tests.live.test_streams_seat import own_settings, prepared, until_running
from tests.typed import ROOT, Terminal, blocks, clone, run
from tools.brokers import Brokers, free_ports

pytestmark = [pytest.mark.slow, pytest.mark.docs]

PARTITIONS = 12
ALL = set(range(PARTITIONS))
PATIENCE_S = 150.0
"""A broker ends the session of a seat that was killed after 45 s."""
EXPORT = "export EQUIPOISE_BOOTSTRAP=broker1:9092"
SEAT, STREAMS, MIGRATE = "docs/seat.md", "docs/streams.md", "docs/migrate.md"
SOON = {"session_timeout_ms": "6000", "heartbeat_interval_ms": "500"}


class Reader:
    """Types commands of pages, with the broker's address, in the folder of a clone."""

    def __init__(self, brokers: Brokers, folder: Path, **environment: str) -> None:
        folder.mkdir()
        self.folder = clone(folder)
        shutil.copytree(ROOT / "java", folder / "java", ignore=shutil.ignore_patterns("target"))
        self._environment = {"EQUIPOISE_BOOTSTRAP": brokers.bootstrap, "EQUIPOISE_HTTP_PORT": "0", **environment}

    def terminal(self, command: str) -> Terminal:
        return Terminal(command, self.folder, **self._environment)

    async def types(self, command: str) -> str:
        """Returns what it prints, once it has ended well."""
        done = await asyncio.to_thread(run, command, self.folder, 400, **self._environment)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout + done.stderr


def lines(page: str, section: str) -> list[str]:
    """The commands of a section, in order, without the line that names the broker."""
    typed = [line for block in blocks(page) if block.kind == "sh" and block.section == section for line in block.text.splitlines()]
    return [line.partition("  #")[0].strip() for line in typed if line and line != EXPORT]


def properties(page: str, section: str) -> dict[str, str]:
    (block,) = (block for block in blocks(page) if block.kind == "properties" and block.section == section)
    return {name: value for name, _, value in (line.partition("=") for line in block.text.splitlines())}


async def until(condition: Callable[[], bool], *told: Terminal | GroupClient) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, [(each.command if isinstance(each, Terminal) else each.assigned, each.said) for each in told]
        await asyncio.sleep(0.05)


async def said(terminal: Terminal, text: str) -> None:
    await until(lambda: text in terminal.said, terminal)


def are_shared(*clients: GroupClient) -> bool:
    """Returns whether each partition has one of them, and each has its share."""
    assigned = [each.assigned for each in clients]
    return set[int]().union(*assigned) == ALL and all(len(each) == PARTITIONS // len(clients) for each in assigned)


async def make_topics(brokers: Brokers, *names: str) -> None:
    async with admin_client(Connection(bootstrap=brokers.bootstrap)) as admin:
        await admin.create_topics([NewTopic(name, PARTITIONS, min(brokers.count, 3)) for name in names])


class Clients:
    """Consumers that know nothing of equipoise; they are gone when this is left."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._started: list[GroupClient] = []

    def start(self, group: str, name: str, command: Callable[[], list[str]], **settings: str) -> GroupClient:
        """Its topic is called as its group is."""
        named = {"client_id": name} if name else {}
        self._started.append(GroupClient(command(), group, bootstrap_servers=self._brokers.bootstrap, group_id=group, **named, **settings))
        return self._started[-1]

    def __enter__(self) -> Clients:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._started:
            each.close()


def stopped(client: GroupClient) -> None:
    client.signal(signal.SIGTERM)
    client.ended()


async def test_classic_group_is_led_from_the_seat_and_back(tmp_path: Path) -> None:
    dry_run, first, second, *_ = lines(SEAT, "How to")
    verified, explained, timeline = lines(SEAT, "How it is recorded")
    with contextlib.ExitStack() as running:
        brokers = running.enter_context(Brokers())
        reader, clients = Reader(brokers, tmp_path / "clone"), running.enter_context(Clients(brokers))
        await make_topics(brokers, "orders")
        read = [clients.start("orders", name, aiokafka_command, **SOON) for name in ("app-1", "app-2")]
        await until(lambda: are_shared(*read), *read)
        assert "led from the seat of its leader" in await reader.types(dry_run)
        one = running.enter_context(reader.terminal(first))
        await said(one, "standing by")
        for at, name in enumerate(("app-1", "app-2")):  # the next rolling restart
            stopped(read[at])
            read[at] = clients.start("orders", name, aiokafka_command, **SOON)
            await until(lambda: are_shared(*read), one, *read)
        await said(one, ", assigned in")
        two = running.enter_context(reader.terminal(second))
        await said(two, "standing by")
        had = [each.assigned for each in read]
        one.end(signal.SIGKILL)
        await said(two, ", assigned in")
        assert [each.assigned for each in read] == had, "it moves nothing"
        assert two.end() == 0, two.said
        await until(lambda: are_shared(*read), *read)
        assert "identical" in await reader.types(verified)
        assert "0_3" in await reader.types(explained)
        assert await reader.types(timeline)


async def restarted(brokers: Brokers, index: int) -> None:
    """Stops a broker as an operator does, and starts it; returns when nothing is behind."""
    pid = brokers.pid(index)
    os.kill(pid, signal.SIGTERM)
    await until(lambda: not Path(f"/proc/{pid}").exists())
    brokers.kill(index)
    brokers.start(index)
    end = time.monotonic() + PATIENCE_S
    async with admin_client(Connection(bootstrap=brokers.bootstrap)) as admin:
        while behind := await _behind(admin, brokers.count):
            assert time.monotonic() < end, behind
            await asyncio.sleep(0.5)


async def _behind(admin: Admin, count: int) -> list[str]:
    return [
        f"{topic['topic']}-{each['partition']}"
        for topic in await admin.describe_topics(None)
        for each in topic["partitions"]
        if len(each["isr"]) < min(len(each["replicas"]), count) or each["leader"] < 0
    ]


async def test_groups_that_brokers_assign_are_led_with_the_jar_and_back(tmp_path: Path) -> None:
    dry_run, first, second, several, of_a_worker = lines(SEAT, "How to")
    build, convert = lines(SEAT, "Groups that the broker assigns")
    wanted = properties(SEAT, "Groups that the broker assigns") | properties(SEAT, "Kafka Streams that the broker assigns")
    assert sorted(wanted) == [SETTING, STREAMS_SETTING]
    libs = tmp_path / "libs"
    libs.mkdir()
    with contextlib.ExitStack() as running:
        brokers = running.enter_context(Brokers(3, version="4.4.0", classpath=f"{libs}/*"))
        reader, clients = Reader(brokers, tmp_path / "clone"), running.enter_context(Clients(brokers))
        await make_topics(brokers, "orders", "orders-eu", "payments")
        orders = [clients.start("orders", name, confluent_kafka_command, group_protocol="consumer") for name in ("app-1", "app-2")]
        payments = [clients.start("payments", name, aiokafka_command, **SOON) for name in ("pay-1", "pay-2")]
        application = await prepared(brokers, "clicks", tmp_path / "clicks")
        i1 = running.enter_context(application("i1"))
        await until(lambda: are_shared(*orders) and are_shared(*payments), *orders, *payments)
        refused = running.enter_context(reader.terminal(first))
        assert refused.process.wait(60) != 0
        assert SETTING in refused.said

        await reader.types(build)
        shutil.copy(reader.folder / "java/broker-assignor/target/broker-assignor-0.1.0.jar", libs)
        found = [brokers.properties_of(index).read_text() for index in range(brokers.count)]
        more = {"group.streams.min.task.offset.interval.ms": "1000", "group.streams.task.offset.interval.ms": "1000"}
        for index, text in enumerate(found):
            brokers.properties_of(index).write_text(text + "".join(f"{name}={value}\n" for name, value in {**wanted, **more}.items()))
            await restarted(brokers, index)
        await until(lambda: are_shared(*orders) and are_shared(*payments), *orders, *payments)

        # KIP-848, two seats
        assert "led from inside the brokers (KIP-848)" in await reader.types(dry_run)
        one = running.enter_context(reader.terminal(first))
        await said(one, "0 of 12 partitions move")
        two = running.enter_context(reader.terminal(second))
        await said(two, "standing by")
        orders.append(clients.start("orders", "app-3", confluent_kafka_command, group_protocol="consumer"))
        await until(lambda: are_shared(*orders), one, *orders)
        assert "4 of 12 partitions move" in one.said
        assert one.end() == 0
        await said(two, "partitions move")
        had = [each.assigned for each in orders]
        assert two.end() == 0
        assert await assignor_of(brokers, "orders") == "uniform"
        assert [each.assigned for each in orders] == had
        for command in lines(SEAT, "How it is recorded"):
            assert await reader.types(command)

        # classic, converted
        one = running.enter_context(reader.terminal(convert.replace("orders", "payments")))
        await said(one, "0 of 12 partitions move")
        await until(lambda: are_shared(*payments), one, *payments)
        assert await assignor_of(brokers, "payments") == "equipoise"
        assert one.end() == 0
        await until(lambda: are_shared(*payments), *payments)
        assert await assignor_of(brokers, "payments") == "", "it is classic again"

        # Kafka Streams
        one = running.enter_context(reader.terminal(first.replace("orders", "clicks")))
        await said(one, "0 tasks to move, 0 copies to begin")
        running.enter_context(application("i2"))
        await until_running(brokers, "clicks", 2)
        assert "2 copies to begin" in one.said
        assert "2 tasks to move" in one.said
        assert one.end() == 0
        assert await own_settings(brokers, "clicks") == {}
        assert i1.process.poll() is None

        # by a pattern, and by a worker
        eu = [clients.start("orders-eu", name, confluent_kafka_command, group_protocol="consumer") for name in ("eu-1", "eu-2")]
        await until(lambda: are_shared(*eu), *eu)
        for command in (several, of_a_worker):
            one = running.enter_context(reader.terminal(command))
            await said(one, "group orders-eu: epoch")
            assert one.end() == 0, one.said
        assert "identical" in await reader.types("equipoise verify logs/orders-eu.db")

        # back
        for index, text in enumerate(found):
            brokers.properties_of(index).write_text(text)
            await restarted(brokers, index)
        (libs / "broker-assignor-0.1.0.jar").unlink()
        eu.append(clients.start("orders-eu", "eu-3", confluent_kafka_command, group_protocol="consumer"))
        await until(lambda: are_shared(*orders) and are_shared(*payments) and are_shared(*eu), *orders, *payments, *eu)
        await until_running(brokers, "clicks", 2)
        async with admin_client(Connection(bootstrap=brokers.bootstrap)) as admin:
            topics = {each["topic"] for each in await admin.describe_topics(None)}
        assert not [topic for topic in topics if "equipoise-lead" in topic], "brokers make topics that are asked for, by default"


async def test_rounds_of_kafka_streams_are_decided_with_two_settings_and_back(tmp_path: Path) -> None:
    build, worker = lines(STREAMS, "Two settings")[:2]
    asked = lines(STREAMS, "Two settings")[2:]
    (port,) = free_ports(1)
    with contextlib.ExitStack() as running:
        brokers = running.enter_context(Brokers())
        reader = Reader(brokers, tmp_path / "clone", EQUIPOISE_HTTP_PORT=str(port))
        typed = [command.replace("127.0.0.1:9092", brokers.bootstrap) for command in (worker, *asked)]
        settings = {name: value.replace("8090", str(port)) for name, value in properties(STREAMS, "Two settings").items()}
        await prepared(brokers, "orders", tmp_path / "orders")
        await reader.types(build)
        jar = str(reader.folder / "java/streams-assignor/target/streams-assignor-0.1.0.jar")

        def start(instance: str, how: dict[str, str]) -> StreamsApplication:
            usual = {"session.timeout.ms": "6000", "heartbeat.interval.ms": "500", "commit.interval.ms": "200"}
            names = {"input": "orders-in", "output": "orders-out"}
            application = StreamsApplication(brokers.bootstrap, "orders", instance, tmp_path / "orders", settings=usual | how, assignor=jar, **names)
            return running.enter_context(application)

        async def restart(instances: list[StreamsApplication], how: dict[str, str]) -> None:
            for at, each in enumerate(instances):
                each.end("leave")
                await asyncio.to_thread(each.process.wait, 60)
                instances[at] = start(each.instance, how)
                await asyncio.to_thread(instances[at].until_said, "state RUNNING")

        instances = [start(name, {}) for name in ("i1", "i2")]
        for each in instances:
            await asyncio.to_thread(each.until_said, "state RUNNING")
        leading = running.enter_context(reader.terminal(typed[0]))
        await said(leading, "leading log")
        await restart(instances, settings)
        await until(lambda: any("equipoise decided the round" in each.said() for each in instances), leading)
        status, explained, verified = [await reader.types(command) for command in typed[1:]]
        assert "i1" in status
        assert "0_3" in explained
        assert "identical" in verified
        await restart(instances, {})
        assert not any("equipoise" in each.said().partition("state RUNNING")[2] for each in instances)
        assert leading.end() == 0, leading.said


async def test_group_is_migrated_and_back(tmp_path: Path) -> None:
    every, one_group, applied, back = lines(MIGRATE, "How to")
    with contextlib.ExitStack() as running:
        brokers = running.enter_context(Brokers())
        reader, clients = Reader(brokers, tmp_path / "clone"), running.enter_context(Clients(brokers))
        await make_topics(brokers, "orders")
        usual = {"partition_assignment_strategy": "range", **SOON}
        read = [clients.start("orders", "", confluent_kafka_command, **usual) for _ in range(2)]
        await until(lambda: are_shared(*read), *read)
        assert "orders" in await reader.types(every)
        assert "taken over: yes" in await reader.types(one_group)
        # interrupted before the clients are restarted, and killed: both give the group back
        applying = running.enter_context(reader.terminal(applied))
        await said(applying, "at rest")
        assert await assignor_of(brokers, "orders")
        applying.end(signal.SIGINT)
        assert await assignor_of(brokers, "orders") == "", applying.said
        applying = running.enter_context(reader.terminal(applied))
        await said(applying, "at rest")
        applying.end(signal.SIGKILL)
        assert "it is a classic group" in await reader.types(back)
        await until(lambda: are_shared(*read), *read)
        # and there
        applying = running.enter_context(reader.terminal(applied))
        await said(applying, "at rest")
        for at in range(2):
            stopped(read[at])
            read[at] = clients.start("orders", "", confluent_kafka_command, group_protocol="consumer")
            await until(lambda: are_shared(*read), applying, *read)
        await until(lambda: applying.process.poll() is not None, applying)
        assert applying.end() == 0, applying.said
        assert await assignor_of(brokers, "orders") == "uniform"
        assert await reader.types(every)
