"""The program of docs/applications.md on a broker: three members add up every order, and leave on
SIGTERM.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from equipoise.kafka.connection import Connection
from tests.live.kafka import reader
from tests.unit.test_applications_docs import files

ROOT = Path(__file__).parents[2]
MOST_S = 120
TASKS = 6
ORDERS = 1_000


@pytest.mark.smoke
async def test_three_members_add_up_every_order_and_leave_on_sigterm(bootstrap: str, prefix: str, tmp_path: Path) -> None:
    orders, spending = f"{prefix}-orders", f"{prefix}-spending"
    for name, text in files().items():
        text = text.replace('"orders"', f'"{orders}"').replace('"spending', f'"{spending}').replace("lead=True,", f'lead=True, prefix="{prefix}",')
        (tmp_path / name).write_text(text)
    environment = {**os.environ, "EQUIPOISE_BOOTSTRAP": bootstrap, "PYTHONPATH": str(ROOT)}
    members: list[subprocess.Popen[bytes]] = []

    def start(*words: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, *words], cwd=tmp_path, env=environment)

    try:
        members.append(start("spending.py", "1"))
        await until_topics(bootstrap, orders, spending)
        members += [start("spending.py", "2"), start("spending.py", "3")]
        sender = start("send.py")
        assert await asyncio.to_thread(sender.wait, MOST_S) == 0
        wanted, counts = await read_orders(bootstrap, orders)
        totals = await asyncio.wait_for(read_totals(bootstrap, spending), MOST_S)
        assert {key: len(found) for key, found in totals.items()} == dict(counts)
        assert {key: found[-1] for key, found in totals.items()} == dict(wanted)
        for member in members:
            member.send_signal(signal.SIGTERM)
        assert [await asyncio.to_thread(member.wait, MOST_S) for member in members] == [0, 0, 0]
    finally:
        for member in members:
            if member.poll() is None:
                member.kill()
                member.wait()


async def until_topics(bootstrap: str, *topics: str) -> None:
    from equipoise.log.kafka.topic_making import partition_count

    async with asyncio.timeout(MOST_S):
        while not all([await partition_count(Connection(bootstrap=bootstrap), topic) for topic in topics]):  # noqa: ASYNC110
            await asyncio.sleep(0.2)


async def read_all(bootstrap: str, topic: str, records: int) -> list[Any]:
    """So many committed records."""
    from aiokafka import TopicPartition

    found: list[Any] = []
    async with reader(Connection(bootstrap=bootstrap), read_committed=True) as consumer:
        partitions = [TopicPartition(topic, partition) for partition in range(TASKS)]
        consumer.assign(partitions)
        for at, offset in (await consumer.beginning_offsets(partitions)).items():
            consumer.seek(at, offset)
        while len(found) < records:
            found += [record for each in (await consumer.getmany(timeout_ms=500)).values() for record in each]
    return found


async def read_orders(bootstrap: str, topic: str) -> tuple[Counter[bytes], Counter[bytes]]:
    """Customer -> cents, and -> orders."""
    cents: Counter[bytes] = Counter()
    records = await read_all(bootstrap, topic, ORDERS)
    for record in records:
        cents[record.key] += json.loads(record.value)["cents"]
    return cents, Counter(record.key for record in records)


async def read_totals(bootstrap: str, topic: str) -> dict[bytes, list[int]]:
    """Customer -> its totals, in order."""
    totals: dict[bytes, list[int]] = {}
    for record in await read_all(bootstrap, topic, ORDERS):
        totals.setdefault(record.key, []).append(json.loads(record.value)["cents"])
    return totals
