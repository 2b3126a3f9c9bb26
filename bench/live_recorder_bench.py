"""`equipoise record` beside 1,000 groups that commit 5,000 offsets a second: its CPU, its memory,
and whether it keeps up.
"""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from aiokafka.client import AIOKafkaClient, ConnectionGroup, CoordinationType
from aiokafka.errors import KafkaError
from aiokafka.protocol.commit import OffsetCommitRequest

from bench.__main__ import Row
from bench.live import broker, cpu_seconds
from bench.live_large_bench import rss_mb
from equipoise.kafka.client import NewTopic
from equipoise.kafka.connection import Connection
from equipoise.replay.importers.groups.cluster_recording import open_recording
from tests.live.kafka import admin_client

GROUPS, PARTITIONS = 1_000, 5
RECORDS_PER_S = 5_000
WARM_S, MEASURED_S = 20.0, 60.0
_UNDER_WAY = 200
_TOPIC = "orders"


def run() -> list[Row]:
    """Rows for `python -m bench`."""
    with broker() as bootstrap, tempfile.TemporaryDirectory() as folder:
        asyncio.run(_make_topic(bootstrap))
        file = Path(folder) / "cluster.db"
        commits = multiprocessing.get_context("spawn").Process(target=_commit_all, args=(bootstrap, WARM_S + MEASURED_S + 60), daemon=True)
        commits.start()
        record = [sys.executable, "-m", "equipoise", "record", f"kafka://{bootstrap}", "--to", str(file)]
        with subprocess.Popen(record, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as recorder:
            time.sleep(WARM_S)
            begun_s, cpu_s, read = time.monotonic(), cpu_seconds(recorder.pid), _read(file)
            time.sleep(MEASURED_S)
            took_s = time.monotonic() - begun_s
            cores = (cpu_seconds(recorder.pid) - cpu_s) / took_s
            rate = (_read(file) - read) / took_s
            resident_mb = rss_mb(recorder.pid)
            recorder.terminate()
        commits.terminate()
        note = f"{GROUPS:,} groups, {rate:,.0f} records/s, {resident_mb:.0f} MB, {file.stat().st_size / took_s / 1_000:.0f} kB/s on disk"
    return [
        ("record: cores", cores, f"{note}; goal: at most 0.5"),
        ("record: records/s that it read, over those that were written", rate / RECORDS_PER_S, "goal: at least 0.95"),
    ]


def _read(file: Path) -> int:
    """Records of `__consumer_offsets` that the recorder has read."""
    with open_recording(str(file)) as recording:
        return sum(recording.positions().values())


async def _make_topic(bootstrap: str) -> None:
    async with admin_client(Connection(bootstrap=bootstrap)) as admin:
        await admin.create_topics([NewTopic(_TOPIC, PARTITIONS, 1)])


def _commit_all(bootstrap: str, lasts_s: float) -> None:
    asyncio.run(_commits(bootstrap, lasts_s))


async def _coordinator(client: AIOKafkaClient) -> int:
    """The only broker; the first request makes `__consumer_offsets`."""
    while True:
        try:
            node: int = await client.coordinator_lookup(CoordinationType.GROUP, "g0")
        except KafkaError:
            await asyncio.sleep(0.5)
        else:
            await client.ready(node, group=ConnectionGroup.DEFAULT)
            return node


async def _commits(bootstrap: str, lasts_s: float) -> None:
    """Commits for one group after the other, for all its partitions, at RECORDS_PER_S."""
    client = AIOKafkaClient(bootstrap_servers=bootstrap)
    await client.bootstrap()
    node = await _coordinator(client)
    begun_s, under_way = time.monotonic(), asyncio.Semaphore(_UNDER_WAY)
    sending: set[asyncio.Task[None]] = set()

    async def commit(group: str, offset: int) -> None:
        async with under_way:
            partitions = [(partition, offset, "") for partition in range(PARTITIONS)]
            await client.send(node, OffsetCommitRequest(group, -1, "", -1, [(_TOPIC, partitions)]))

    for number in itertools.count():
        due_s = begun_s + number * PARTITIONS / RECORDS_PER_S
        if due_s - begun_s > lasts_s:
            break
        if (left_s := due_s - time.monotonic()) > 0.01:
            await asyncio.sleep(left_s)
        task = asyncio.create_task(commit(f"g{number % GROUPS}", number))
        sending.add(task)
        task.add_done_callback(sending.discard)
    await asyncio.gather(*sending)
    await client.close()
