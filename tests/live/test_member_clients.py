"""Clients that connect before their task is granted: connecting fences no owner, and closing them
leaves no connection.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from equipoise.events.log.kafka.connection import Connection
from equipoise.events.tasks import TaskId
from equipoise.member.clients import TaskClients
from equipoise.member.options import MemberOptions
from tests.live.test_restorer import make_topic, producing

TASK = TaskId(0, 1)


@pytest.fixture
async def clients(bootstrap: str, prefix: str) -> Callable[[str], TaskClients]:
    """Returns a function that makes the clients of one task, whose topics exist."""
    await make_topic(bootstrap, f"{prefix}-in")
    await make_topic(bootstrap, f"{prefix}-log")

    def make(guarantee: str) -> TaskClients:
        options = MemberOptions(guarantee=guarantee)
        return TaskClients(Connection(bootstrap=bootstrap), prefix, TASK, options, sources=(f"{prefix}-in",), changelogs=(f"{prefix}-log",))

    return make


@pytest.mark.smoke
async def test_begin_fences_the_owner_and_connect_does_not(bootstrap: str, prefix: str, clients: Any) -> None:
    from aiokafka import TopicPartition
    from aiokafka.errors import ProducerFenced

    place = TopicPartition(f"{prefix}-in", TASK.partition)
    async with producing(bootstrap, transactional_id=f"{prefix}/{TASK}") as owner:
        ahead = clients("exactly_once")
        async with owner.transaction():
            ahead.connect()
            await ahead._connecting
            await owner.send_and_wait(f"{prefix}-log", b"still mine", partition=TASK.partition)
            await owner.send_offsets_to_transaction({place: 7}, prefix)
        await ahead.begin()
        assert await ahead.consumer.committed(place) == 7
        with pytest.raises(ProducerFenced):
            async with owner.transaction():
                await owner.send_and_wait(f"{prefix}-log", b"not any more", partition=TASK.partition)
        async with ahead.producer.transaction():
            await ahead.producer.send_and_wait(f"{prefix}-log", b"mine", partition=TASK.partition)
        await ahead.close()


async def test_consumer_fetches_nothing_before_its_sources_are_placed(bootstrap: str, prefix: str, clients: Any) -> None:
    async with producing(bootstrap) as producer:
        await producer.send_and_wait(f"{prefix}-in", b"early", partition=TASK.partition)
    ahead = clients("at_least_once")
    await ahead.begin()
    assert await ahead.consumer.getmany(timeout_ms=300) == {}
    (place,) = ahead.consumer.assignment()
    ahead.consumer.seek(place, 0)
    ahead.consumer.resume(place)
    assert (await ahead.consumer.getone(place)).value == b"early"
    await ahead.close()


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
@pytest.mark.parametrize("connected_for_s", [None, 0.0, 0.01, 1.0])
async def test_clients_of_a_task_that_is_not_granted_leave_no_connection(clients: Any, guarantee: str, connected_for_s: float | None) -> None:
    before = _sockets()
    ahead = clients(guarantee)
    if connected_for_s is not None:
        ahead.connect()
        await asyncio.sleep(connected_for_s)
    await ahead.close()
    async with asyncio.timeout(5):
        while _sockets() > before:  # noqa: ASYNC110  # transports close by themselves
            await asyncio.sleep(0.05)


def _sockets() -> int:
    folder = Path(f"/proc/{os.getpid()}/fd")
    return sum(os.readlink(each).startswith("socket:") for each in folder.iterdir() if each.is_symlink())
