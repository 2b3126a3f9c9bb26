"""Three brokers, of which one dies: what goes on with the other two."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from equipoise.kafka.connection import Connection
from equipoise.log.kafka.log_opening import open_partitions, read_opening
from equipoise.log.kafka.log_topics import Topics
from equipoise.log.kafka.topic_making import ensure_topics, partition_count
from equipoise.member import TaskContext
from equipoise.operations.doctor.examination import Examined, examine
from equipoise.worker.app import Worker
from equipoise.worker.settings import WorkerSettings
from tests.live.kafka import admin_client
from tests.live.leader import leading
from tests.live.test_member import COMPACTED, PARTITIONS, Application
from tests.live.test_restorer import producing, until
from tools.brokers import Brokers

pytestmark = pytest.mark.xdist_group("three brokers")  # one cluster serves all


@pytest.fixture(scope="module")
def brokers() -> Iterator[Brokers]:
    with Brokers(3, **{"broker.session.timeout.ms": "6000"}) as running:
        yield running


async def test_doctor_looks_at_each_of_three_brokers(brokers: Brokers) -> None:
    """Nothing has been asked of the cluster yet, so it makes its topic of groups meanwhile."""
    settings = WorkerSettings(bootstrap=brokers.bootstrap, prefix="doctor", http_port=0)
    await ensure_topics(settings, settings.topics)
    await open_partitions(settings, settings.topics)
    found = await examine(Examined(settings=settings, role="worker"))
    assert [each.text for each in found if each.check == "brokers"] == [f"3 of 3 brokers answer: {brokers.bootstrap.replace(',', ', ')}"]
    assert [each for each in found if each.status == "problem"] == []


async def test_client_started_after_a_broker_died_uses_another(brokers: Brokers) -> None:
    """The others name it as one of the cluster for seconds. A client that picks one of the three at
    random would fail in one start of three.
    """
    connection, topics = Connection(bootstrap=brokers.bootstrap), Topics("ask")
    await ensure_topics(connection, topics, partitions=2)
    opened = await open_partitions(connection, topics)
    brokers.kill(2)
    assert [await partition_count(connection, topics.facts) for _ in range(20)] == [2] * 20
    assert await read_opening(connection, topics) == opened
    brokers.start(2)


async def test_worker_starts_during_a_broker_failover(brokers: Brokers) -> None:
    """Until then they name one that is dead as the leader of the log, or as the controller,
    whatever they are asked for.
    """
    settings = WorkerSettings(bootstrap=brokers.bootstrap, prefix="failover", http_port=0)
    await ensure_topics(settings, settings.topics)
    opened = await open_partitions(settings, settings.topics)
    async with admin_client(settings) as admin:
        (facts,) = await admin.describe_topics([settings.topics.facts])
    leader = facts["partitions"][0]["leader"]
    brokers.kill(leader)
    async with Worker(settings) as worker:
        assert worker.log_id == opened.log_id
    brokers.start(leader)


async def make_topic_on(brokers: Brokers, topic: str, broker: int, **configs: str) -> None:
    """Each partition once, on that broker."""
    from aiokafka.admin import NewTopic

    async with admin_client(Connection(bootstrap=brokers.bootstrap)) as admin:
        assignments, settings = {partition: [broker] for partition in range(PARTITIONS)}, {"min.insync.replicas": "1", **configs}
        assert await admin.create_topics([NewTopic(topic, -1, -1, replica_assignments=assignments, topic_configs=settings)]) == {}


@pytest.mark.slow
async def test_state_is_never_ahead_of_its_published_decisions(brokers: Brokers, tmp_path: Path) -> None:
    """At least once. The output's broker is away for longer than a request may take, the
    changelog's is not: had the changelog stored the source position meanwhile, the next owner of
    the task would never send those outputs."""
    application = Application(brokers.bootstrap, "lag")
    await make_topic_on(brokers, application.source, 0)
    await make_topic_on(brokers, application.changelog, 0, **COMPACTED)
    await make_topic_on(brokers, application.counts, 2)
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(leading(brokers.bootstrap, "lag", "lag", application.config, application.topology))
        member = await stack.enter_async_context(application.member("m1", tmp_path, "at_least_once", session_timeout_ms=30_000))
        await until(lambda: len(member.running) == PARTITIONS)
        await application.order(20)
        await application.until_counted(exactly=True)
        brokers.kill(2)
        await application.order(60)
        begun_s = time.monotonic()
        await until(lambda: time.monotonic() - begun_s > 15)  # a request may take 9 s
        brokers.start(2)
        counted = await asyncio.wait_for(application.until_counted(exactly=False), 60)
        assert {key: {count for count, _ in each} for key, each in counted.items()} == {key: {1, 2, 3, 4} for key in application.sent}


@pytest.mark.slow
@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])
async def test_running_task_processes_new_records_of_a_source_that_has_lost_some(
    brokers: Brokers, tmp_path: Path, caplog: pytest.LogCaptureFixture, guarantee: str
) -> None:
    """Broker 2 has the source alone, and loses two records of it. More come than were lost, before
    the member can read on. Then the same, as many as were lost, while no member is there.
    """
    application = Application(brokers.bootstrap, f"cut-{guarantee.replace('_', '-')}")
    for topic, at, configs in ((application.source, 2, {}), (application.changelog, 0, COMPACTED), (application.counts, 1, {})):
        await make_topic_on(brokers, topic, at, **configs)
    handled: list[tuple[int, bytes]] = []

    async def count(record: Any, context: TaskContext) -> None:
        handled.append((record.offset, record.value))

    async def send(*values: bytes) -> None:
        async with producing(brokers.bootstrap) as producer:
            for value in values:
                await producer.send_and_wait(application.source, value, key=b"k", partition=0)

    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(leading(brokers.bootstrap, application.prefix, application.prefix, application.config, application.topology))
        async with application.member("m1", tmp_path, guarantee, handler=count, session_timeout_ms=60_000) as member:
            await until(lambda: len(member.running) == PARTITIONS)
            await send(b"a", b"b", b"c", b"d")
            await until(lambda: len(handled) == 4)
            brokers.kill(2)
            brokers.lose_tail(application.source, 0, 2)
            brokers.start(2)
            await send(b"new c", b"new d", b"new e")
            await until(lambda: len(handled) == 7)
        assert handled == [(0, b"a"), (1, b"b"), (2, b"c"), (3, b"d"), (2, b"new c"), (3, b"new d"), (4, b"new e")]
        brokers.kill(2)
        brokers.lose_tail(application.source, 0, 1)
        brokers.start(2)
        await send(b"other e")
        async with application.member("m2", tmp_path, guarantee, handler=count):
            await until(lambda: len(handled) == 8)
    assert handled[7:] == [(4, b"other e")]
    assert f"brokers have lost records 2 to 3 of {application.source}/0, which were processed: reading on at offset 2" in caplog.text
    assert f"brokers have lost records 4 to 4 of {application.source}/0, which were processed: reading on at offset 4" in caplog.text
