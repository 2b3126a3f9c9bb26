"""The log's topics are deleted and created again, or truncated, while members and workers use them,
on a real broker. See docs/protocol.md#l9.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import TopicPartition

from equipoise.events.facts import MemberLeft
from equipoise.folding.checkpoints import Index, index_records
from equipoise.folding.log_reading import FactReader
from equipoise.kafka.connection import Connection
from equipoise.log.kafka.envelope import stored_decision
from equipoise.log.kafka.log_opening import open_partitions
from equipoise.log.kafka.log_topics import MUST_BE, Topics
from equipoise.log.kafka.topic_making import ensure_topics
from equipoise.member import Member
from equipoise.worker.app import Worker
from equipoise.worker.metrics import WorkerMetrics
from equipoise.worker.settings import WorkerSettings
from tests.live.kafka import admin_client, delete_topics, reader, topic_names, writer
from tests.live.leader import leading
from tests.live.swarm import Swarm, everything, topology
from tests.live.test_member import PARTITIONS, SHORT, Application
from tests.live.test_restorer import until
from tests.live.test_worker import CONFIG
from tests.support.lone_hosts import LoneHost


async def delete_log(bootstrap: str, prefix: str) -> None:
    """Deletes the log. Returns when its topics are gone."""
    names = {Topics(prefix).name_of(what) for what in MUST_BE}
    async with admin_client(Connection(bootstrap=bootstrap)) as admin:
        await delete_topics(admin, sorted(names))
        while names & await topic_names(admin):  # noqa: ASYNC110  # the broker deletes them
            await asyncio.sleep(0.1)


@contextlib.asynccontextmanager
async def watching(*members: Member) -> AsyncIterator[list[str]]:
    """Collects the tasks that two members run at once, every 20 ms."""
    shared: list[str] = []

    async def watch() -> None:
        while True:
            running = [task for member in members for task in member.running]
            shared.extend(str(task) for task in set(running) if running.count(task) > 1)
            await asyncio.sleep(0.02)

    task = asyncio.create_task(watch())
    try:
        yield shared
    finally:
        task.cancel()


async def test_topic_that_is_created_again_has_another_id(bootstrap: str, prefix: str) -> None:
    connection, topics = Connection(bootstrap=bootstrap), Topics(prefix)
    await ensure_topics(connection, topics)
    place = TopicPartition(topics.decisions, 0)

    async def ids() -> tuple[str, ...] | None:
        async with reader(connection) as consumer:
            consumer.assign([place])
            await consumer.end_offsets([place])
            return await consumer.topic_ids((topics.facts, topics.decisions), place)

    before = await ids()
    assert before is not None
    assert len(set(before)) == 2
    assert await ids() == before
    await delete_log(bootstrap, prefix)
    await ensure_topics(connection, topics)
    after = await ids()
    assert after is not None
    assert not set(after) & set(before)


@pytest.mark.slow
async def test_members_of_a_replaced_log_join_the_new_one_and_no_task_has_two_owners(
    bootstrap: str, prefix: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    application = Application(bootstrap, prefix)
    await application.make_topics()
    async with contextlib.AsyncExitStack() as stack:
        async with leading(bootstrap, prefix, prefix, application.config, application.topology) as leader:
            first = await stack.enter_async_context(application.member("m1", tmp_path / "a", "at_least_once"))
            for _ in range(3):  # so many decisions that the new log stays shorter for a while than m1 has read
                async with application.member("m2", tmp_path / "b", "at_least_once") as second:
                    await until(lambda: len(first.running) + len(second.running) == PARTITIONS and second.running)
            await until(lambda: len(first.running) == PARTITIONS)
            former = leader.machine.state.log_id
        await delete_log(bootstrap, prefix)
        began = asyncio.get_running_loop().time()
        with caplog.at_level(logging.WARNING):
            leader = await stack.enter_async_context(leading(bootstrap, prefix, prefix, application.config, application.topology))
            again = await stack.enter_async_context(application.member("m2", tmp_path / "b", "at_least_once"))
            unaware = await stack.enter_async_context(application.member("m3", None, "at_least_once"))
            async with watching(first, again, unaware) as shared:
                await until(lambda: not first.running)
                await until(lambda: len(unaware.running) == PARTITIONS)
                assert leader.machine.state.log_id != former
                await until(lambda: first.running and again.running and unaware.running)
                assert asyncio.get_running_loop().time() - began > SHORT["session_timeout_ms"] / 1_000
            assert shared == []
        said = [each.getMessage() for each in caplog.records]
        for member in ("m1", "m2"):  # m1 stopped; m2 knows its former log by its state directory
            assert len([each for each in said if f"has replaced log {former}; member {member} joins it in" in each]) == 1
        assert len([each for each in said if f"member m1 has stopped its tasks: log {former} was replaced by another log" in each]) == 1


@pytest.mark.slow
async def test_member_whose_next_decision_was_deleted_rejoins(bootstrap: str, prefix: str) -> None:
    application = Application(bootstrap, prefix)
    await application.make_topics()
    async with (
        leading(bootstrap, prefix, prefix, application.config, application.topology) as leader,
        application.member("m1", None, "at_least_once") as member,
    ):
        await until(lambda: len(member.running) == PARTITIONS)
        incarnation = member.incarnation
        place = TopicPartition(leader.topics.decisions, leader.partition)
        async with admin_client(Connection(bootstrap=bootstrap)) as admin:
            await admin.delete_records({place: -1})
        assert member._host is not None
        link = member._host._link
        member._host._call(link._go_to, 0)  # as if its reader were that far behind
        await until(lambda: member.incarnation > incarnation and len(member.running) == PARTITIONS)


@pytest.mark.smoke
async def test_worker_of_a_replaced_log_leads_the_new_one_and_writes_nothing_of_the_former(bootstrap: str, prefix: str) -> None:
    settings = WorkerSettings(bootstrap=bootstrap, prefix=prefix, http_port=0, worker_session_timeout_ms=6_000)
    async with Worker(settings) as worker:
        async with Swarm(settings, settings.topics) as swarm:
            await swarm.configure("g", CONFIG, topology(4))
            swarm.add("g", ["m1", "m2"])
            swarm.start()
            await swarm.until_all_run("g", 4, ["m1", "m2"])
        former = worker.log_id
        await delete_log(bootstrap, prefix)
        await until(worker.unready)
        await ensure_topics(settings, settings.topics)  # as a worker would that starts now
        opened = await open_partitions(settings, settings.topics)
        assert opened.log_id != former
        await until(lambda: worker.log_id == opened.log_id and not worker.unready())
        async with Swarm(settings, settings.topics) as swarm:
            await swarm.configure("g", CONFIG, topology(4))
            swarm.add("g", ["m1", "m3"])
            swarm.start()
            await swarm.until_all_run("g", 4, ["m1", "m3"])
        published = [stored_decision(each.key, each.value, "here") for each in await everything(settings, settings.topics.decisions)]
        assert {each.log_id for each in published} == {opened.log_id}
        assert [each.row.number for each in published] == list(range(1, len(published) + 1))


async def test_worker_paused_while_its_log_was_replaced_folds_nothing_of_the_new_one(
    bootstrap: str, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By then its next offset exists in the new log, so the broker reports no error."""
    settings = WorkerSettings(bootstrap=bootstrap, prefix=prefix)
    await ensure_topics(settings, settings.topics)
    opened = await open_partitions(settings, settings.topics)
    async with reader(settings) as consumer:
        ids = await settings.topics.ids(consumer)
    replaced, awake = asyncio.Event(), asyncio.Event()
    awake.set()

    def when_awake(real: Any) -> Any:
        async def call(*arguments: Any) -> Any:
            await awake.wait()
            return await real(*arguments)

        return call

    monkeypatch.setattr(FactReader, "batch", when_awake(FactReader.batch))
    monkeypatch.setattr(FactReader, "topic_ids", when_awake(FactReader.topic_ids))
    host = LoneHost(settings, opened, 0, WorkerMetrics(), topic_ids=ids, replaced=replaced.set)
    host.start()
    try:
        await until(lambda: host.leading)
        awake.clear()
        await asyncio.sleep(1.5)  # a fetch under way returns nothing
        await delete_log(bootstrap, prefix)
        await ensure_topics(settings, settings.topics)
        await open_partitions(settings, settings.topics)
        async with Swarm(settings, settings.topics) as swarm:
            await swarm.configure("g", CONFIG, topology(4))
            for number in range(5):
                await (await swarm.send("g", MemberLeft(member_id="nobody", incarnation=number)))
        awake.set()
        async with asyncio.timeout(20):
            await replaced.wait()
        assert not host.leading
        assert "g" not in host.lead.groups
        assert await everything(settings, settings.topics.decisions) == []
    finally:
        awake.set()
        await host.stop()


async def test_worker_begins_at_the_start_when_its_checkpoint_is_ahead_of_the_facts(
    bootstrap: str, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = WorkerSettings(bootstrap=bootstrap, prefix=prefix)
    await ensure_topics(settings, settings.topics)
    opened = await open_partitions(settings, settings.topics)
    async with writer(settings) as producer:
        for key, value in index_records(opened.log_id, Index(position=501, recovery_offset=501)):
            await producer.send_and_wait(settings.topics.checkpoints, value, key=key, partition=0)
    host = LoneHost(settings, opened, 0, WorkerMetrics())
    host.start()
    try:
        with caplog.at_level(logging.WARNING):
            await until(lambda: host.leading)
        assert "ignoring its checkpoints, beginning at a base or at the log's start: the brokers have lost facts from offset 1 on" in caplog.text
    finally:
        await host.stop()
