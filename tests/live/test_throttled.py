"""Real quotas of a real broker hold back a member, and its leader knows that."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

from equipoise.member import TaskContext
from tests.live.leader import leading
from tests.live.test_member import Application
from tests.live.test_restorer import until
from tools import brokers


def limit(broker: brokers.Brokers, bytes_per_s: int) -> None:
    """Lets clients that have no quota of their own send no more than this."""
    brokers.run(
        "java",
        "-cp",
        f"{brokers.jars()}/*",
        "kafka.admin.ConfigCommand",
        "--bootstrap-server",
        broker.bootstrap,
        "--alter",
        "--entity-type",
        "clients",
        "--entity-default",
        "--add-config",
        f"producer_byte_rate={bytes_per_s}",
    )


async def said_by(*words: str) -> str:
    """What a command prints."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "equipoise", *words, stdout=asyncio.subprocess.PIPE)
    return (await process.communicate())[0].decode()


async def test_member_that_quotas_hold_back_is_shown_by_status_and_doctor(prefix: str, caplog: pytest.LogCaptureFixture) -> None:
    with brokers.Brokers() as broker:
        application = Application(broker.bootstrap, prefix)
        await application.make_topics()

        async def send(record: Any, context: TaskContext) -> None:
            context.send(application.counts, b"x" * 2_000, key=record.key)

        async with (
            leading(broker.bootstrap, prefix, prefix, application.config, application.topology) as leader,
            application.member("m1", None, "at_least_once", handler=send),
        ):
            await application.order(30)
            await until(lambda: sum(leader.machine.state.behind.values()) == 0)
            await asyncio.to_thread(limit, broker, 5_000)
            await application.order(90)
            await until(lambda: bool(leader.machine.state.members["m1"].troubles))
            where = ("--bootstrap", broker.bootstrap, "--prefix", prefix, "--group", prefix)
            assert "m1: quotas of the brokers hold it back; `kafka-configs.sh" in await said_by("status", *where)
            assert f"group {prefix}: m1: quotas of the brokers hold it back" in await said_by("doctor", "--as", "reader", *where)
            await asyncio.to_thread(limit, broker, 10**9)
    assert sum("quotas of the brokers held back this process" in each for each in caplog.messages) == 1
