"""examples/clicks.py, which docs/deploy.md names, counts every click, and leaves on SIGTERM. It
runs with what the extra `member` installs, and no more.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from equipoise.kafka.connection import Connection
from tests.live.kafka import reader
from tests.live.test_restorer import make_topic, producing

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PARTITIONS = 6
CLICKS = 200
MOST_S = 90
AS_INSTALLED = (
    "import runpy, sys; sys.modules.update(dict.fromkeys(('numpy', 'ortools', 'pandas', 'pyarrow', 'faust')))\n"
    "del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"
)


async def test_example_member_counts_every_click_and_leaves_on_sigterm(bootstrap: str, prefix: str, tmp_path: Path) -> None:
    await make_topic(bootstrap, "clicks", PARTITIONS)
    environment = {**os.environ, "EQUIPOISE_BOOTSTRAP": bootstrap, "EQUIPOISE_PREFIX": prefix, "EQUIPOISE_HTTP_PORT": "0", "PYTHONPATH": str(ROOT)}
    pages = [f"{prefix}-{number % 7}".encode() for number in range(CLICKS)]
    async with producing(bootstrap) as producer:
        for page in pages:
            await producer.send("clicks", b"{}", key=page)
    worker = start(["-m", "equipoise", "worker"], tmp_path, environment)
    member = None
    try:
        await asyncio.sleep(8)  # the worker makes the log's topics
        member = start(["-c", AS_INSTALLED, str(ROOT / "examples" / "clicks.py"), "1"], tmp_path, environment)
        totals = await asyncio.wait_for(read_totals(bootstrap, Counter(pages)), MOST_S)
        assert {page: sorted(found) for page, found in totals.items()} == {page: list(range(1, count + 1)) for page, count in Counter(pages).items()}
        member.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(member.wait, MOST_S) == 0
    finally:
        for process in (member, worker):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()


def start(words: list[str], folder: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, *words], cwd=folder, env=environment)


async def read_totals(bootstrap: str, wanted: Counter[bytes]) -> dict[bytes, list[int]]:
    """Page -> committed totals, once as many have come as are wanted."""
    from aiokafka import TopicPartition

    found: dict[bytes, list[int]] = {page: [] for page in wanted}
    async with reader(Connection(bootstrap=bootstrap), read_committed=True) as consumer:
        partitions = [TopicPartition("clicks-totals", partition) for partition in range(PARTITIONS)]
        consumer.assign(partitions)
        for at, offset in (await consumer.beginning_offsets(partitions)).items():
            consumer.seek(at, offset)
        while sum(map(len, found.values())) < wanted.total():
            for records in (await consumer.getmany(timeout_ms=500)).values():
                for record in records:
                    if record.key in found:
                        found[record.key].append(int(record.value))
    return found
