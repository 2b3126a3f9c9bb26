"""On a real broker a topic of the log, or of a group's positions, is made again or loses its
beginning: the group goes on exactly, or `status` names the way on.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from equipoise.kafka.client import NewTopic, TopicPartition
from equipoise.kafka.connection import Connection
from equipoise.log.kafka.log_topics import MUST_BE, NEW_LOG, Topics
from equipoise.log.kafka.topic_making import partition_count
from equipoise.member.tasks.positions import SETTINGS, positions_topic
from tests.live.builds import THIS_BUILD, run_in
from tests.live.kafka import admin_client, delete_topics
from tests.live.test_member import PARTITIONS, Application
from tests.live.test_restorer import until

pytestmark = pytest.mark.slow
DELETED_S = 20.0
"""After this time a topic that is there has been made again."""


async def take(connection: Connection, topic: str, what: str, settings: dict[str, str]) -> None:
    partitions = await partition_count(connection, topic)
    async with admin_client(connection) as admin:
        if what == "loses its beginning":
            await admin.delete_records({TopicPartition(topic, number): -1 for number in range(partitions)})
            return
        await delete_topics(admin, [topic])
        made_s = time.monotonic() + DELETED_S
        while await admin.create_topics([NewTopic(topic, partitions, 1, settings)]) and time.monotonic() < made_s:  # noqa: ASYNC110  # brokers
            await asyncio.sleep(0.2)


async def run(application: Application, member_id: str, folder: Path) -> None:
    """A process of the member runs all tasks until every order is counted, and leaves."""
    async with application.member(member_id, folder, "exactly_once", lead=True, group_config=application.config) as member:
        await until(lambda: len(member.running) == PARTITIONS)
        await application.order(40)
        await application.until_counted(exactly=True)


@pytest.mark.parametrize(
    ("topic", "what"),
    [("decisions", "made again"), ("decisions", "loses its beginning"), ("checkpoints", "made again"), ("positions", "made again")],
)  # of compacted topics brokers delete no records
async def test_group_goes_on_exactly_when_a_topic_is_lost(bootstrap: str, prefix: str, tmp_path: Path, topic: str, what: str) -> None:
    application, connection = Application(bootstrap, prefix), Connection(bootstrap=bootstrap)
    await application.make_topics()
    name, settings = (positions_topic(prefix), SETTINGS) if topic == "positions" else (Topics(prefix).name_of(topic), MUST_BE[topic])
    async with application.member("m1", tmp_path, "exactly_once", lead=True, group_config=application.config) as member:
        await until(lambda: len(member.running) == PARTITIONS)
        await application.order(40)
        await application.until_counted(exactly=True)
        if what == "made again":  # while the member runs
            await take(connection, name, what, dict(settings))
        await application.order(40)
        await application.until_counted(exactly=True)
    if what != "made again":
        await take(connection, name, what, dict(settings))
    await run(application, "m1", tmp_path)
    await run(application, "m2", tmp_path)


@pytest.mark.parametrize("what", ["made again", "loses its beginning"])
async def test_status_names_the_way_on_when_facts_are_lost(bootstrap: str, prefix: str, tmp_path: Path, what: str) -> None:
    application = Application(bootstrap, prefix)
    await application.make_topics()
    await run(application, "m1", tmp_path)
    await take(Connection(bootstrap=bootstrap), Topics(prefix).facts, what, MUST_BE["facts"])
    said = await asyncio.to_thread(run_in, THIS_BUILD, "-m", "equipoise", "status", "--bootstrap", bootstrap, "--prefix", prefix)
    assert said.returncode != 0
    assert NEW_LOG in " ".join((said.stdout + said.stderr).split())
