"""`equipoise cluster` on a real group whose rebalance waits for a member that does not poll."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from equipoise.cli import main
from equipoise.kafka.client import NewTopic
from equipoise.kafka.connection import Connection
from tests.live.kafka import admin_client

ROOT = Path(__file__).parents[2]
MOST_S = 60.0


async def make_topic(bootstrap: str, topic: str) -> None:
    async with admin_client(Connection(bootstrap=bootstrap)) as admin:
        await admin.create_topics([NewTopic(topic, 4, 1)])


def member(running: ExitStack, bootstrap: str, topic: str, name: str) -> subprocess.Popen[str]:
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": topic,
        "client.id": name,
        "max.poll.interval.ms": "120000",
        "session.timeout.ms": "45000",
        "auto.offset.reset": "earliest",
    }
    command = [sys.executable, "-m", "tests.live.faulty_consumer", "confluent", topic, *(f"{key}={value}" for key, value in settings.items())]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True)
    running.enter_context(process)
    running.callback(process.kill)
    return process


def until(bootstrap: str, group: str, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    end = time.monotonic() + MOST_S
    while True:
        listed = CliRunner().invoke(main, ["cluster", f"kafka://{bootstrap}", "--json"])
        assert listed.exit_code == 0, listed.output
        found: list[dict[str, Any]] = [each for each in json.loads(listed.stdout)["groups"] if each["group"] == group]
        if found and holds(found[0]):
            return found[0]
        assert time.monotonic() < end, found
        time.sleep(0.3)


def test_rebalance_that_waits_for_a_member_is_shown_with_that_member(bootstrap: str, prefix: str) -> None:
    topic = f"{prefix}-stuck"
    asyncio.run(make_topic(bootstrap, topic))
    with ExitStack() as running:
        first = member(running, bootstrap, topic, "m1")
        until(bootstrap, topic, lambda group: group["state"] == "stable" and group["work"] == 4)
        assert first.stdin is not None
        first.stdin.write("nap 100\n")
        first.stdin.flush()
        time.sleep(1.0)
        member(running, bootstrap, topic, "m2")
        waiting = until(bootstrap, topic, lambda group: group["state"] == "rebalancing")
        assert (waiting["members"], waiting["epoch"]) == (2, 1)
        shown = CliRunner().invoke(main, ["cluster", f"kafka://{bootstrap}", "--group", topic])
        assert "it most likely waits for m1, the only member of the last generation" in shown.output.replace("\n", " ")
