"""examples/pageviews.py on a real broker: a backlog of clicks and users, and a member that is
killed and comes back. Every click has the country of its user, and is counted once.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from equipoise.kafka.client import Producer, TopicPartition, Unsent, acknowledged, partition_of_key
from equipoise.kafka.connection import Connection
from tests.live.kafka import reader
from tests.live.test_restorer import make_topic, producing

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PARTITIONS = 2
USERS, CLICKS = 300, 12_000
COUNTRIES = ["SE", "NO", "DE"]
BEGIN_MS = 1_700_000_000_000 // 60_000 * 60_000
MOST_S = 120
PROGRAM = """
import asyncio, sys
from equipoise import Member
from examples.pageviews import OPTIONS, PROCESSORS
member = Member("pageviews", processors=PROCESSORS, create_topics=True, member_id="m1", lead=True, prefix=sys.argv[1], state_directory="state",
                session_timeout_ms=10_000, **OPTIONS)
sys.exit(asyncio.run(member.run()))
"""


def country(user: int) -> str:
    return COUNTRIES[user % 3]


def click(number: int) -> tuple[int, int]:
    """User and time of a click: 20 a second, some of them late, all of an old time."""
    return number * 7 % USERS, BEGIN_MS + number * 50 - (2_000 if number % 50 == 49 else 0)


async def test_every_click_meets_its_user_and_is_counted_once_though_the_member_is_killed(bootstrap: str, prefix: str, tmp_path: Path) -> None:
    for topic in ("clicks", "users"):
        await make_topic(bootstrap, topic, PARTITIONS, **{"retention.ms": "-1"})
    environment = {**os.environ, "EQUIPOISE_BOOTSTRAP": bootstrap, "PYTHONPATH": str(ROOT)}

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", PROGRAM, prefix], cwd=tmp_path, env=environment)

    async with producing(bootstrap) as producer:
        await send_clicks(producer, "clicks", [(*click(number), number) for number in range(CLICKS // 2)], PARTITIONS)
        for user in range(USERS):  # behind the clicks, and later than all of them
            key = b"u%d" % user
            partition = partition_of_key(key, PARTITIONS)
            await producer.send("users", json.dumps({"country": country(user)}).encode(), key=key, partition=partition)
        await producer.flush()
        member = start()
        try:
            await read_counts(bootstrap, CLICKS // 10)
            member.kill()
            member.wait()
            await send_clicks(producer, "clicks", [(*click(number), number) for number in range(CLICKS // 2, CLICKS)], PARTITIONS)
            member = start()
            counts = await read_counts(bootstrap, CLICKS)
        finally:
            member.kill()
            member.wait()
    expected = Counter((country(user), at_ms // 60_000 * 60_000) for user, at_ms in map(click, range(CLICKS)))
    assert counts == expected


async def send_clicks(producer: Producer, topic: str, clicks: Iterable[tuple[int, int, int]], partitions: int) -> None:
    """Sends clicks: user, time and page of each. Returns when they are in the topic."""
    await producer.partitions_for(topic)
    by_partition: dict[int, list[Unsent]] = {}
    for user, at_ms, page in clicks:
        key = b"u%d" % user
        by_partition.setdefault(partition_of_key(key, partitions), []).append((key, b'{"page": "/%d"}' % page, [], at_ms))
    await acknowledged(batch for partition, each in by_partition.items() for batch in producer.send_batches(TopicPartition(topic, partition), each))


async def read_counts(bootstrap: str, wanted: int) -> Counter[tuple[str, int]]:
    """Country and minute -> views, by the committed counts, once these are so many in all."""
    found: Counter[tuple[str, int]] = Counter()
    async with asyncio.timeout(MOST_S), reader(Connection(bootstrap=bootstrap), read_committed=True) as consumer:
        partitions = [TopicPartition("pv-counts", partition) for partition in range(PARTITIONS)]
        consumer.assign(partitions)
        while not consumer.partitions_for_topic("pv-counts"):  # noqa: ASYNC110  # it is asked for again and again
            await asyncio.sleep(0.5)
        for at, offset in (await consumer.beginning_offsets(partitions)).items():
            consumer.seek(at, offset)
        while found.total() < wanted:
            for records in (await consumer.getmany(timeout_ms=500)).values():
                for record in records:
                    value = json.loads(record.value)
                    place = record.key.decode(), value["minute"]
                    assert value["views"] == found[place] + 1, "each count follows the one before"
                    found[place] = value["views"]
    return found
