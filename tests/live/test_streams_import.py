"""`import kafka-streams kafka://...` of a real Kafka Streams group: what is imported is what
the application did.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import NewTopic

from equipoise.events.errors import InputError
from equipoise.events.facts import AssignmentObserved, LagReported, MemberJoined, PartitionsObserved, TopologyDeclared
from equipoise.events.records import FactRecord
from equipoise.kafka.connection import Connection
from equipoise.kafka.started_clients import admin_client, reader
from equipoise.log import open_log
from equipoise.replay.importers.kafka_streams.broker_reading import StreamsGroup, offsets_partition
from equipoise.replay.verification import Verdict, verify
from tests.live.streams import StreamsApplication, changelog_of

PARTITIONS = 4
QUIET_S = 8.0
"""Without another round for so long the group is at rest."""
SETTINGS = {
    "session.timeout.ms": "6000",
    "heartbeat.interval.ms": "500",
    "commit.interval.ms": "200",
    "acceptable.recovery.lag": "100",
    "probing.rebalance.interval.ms": "60000",
    "num.standby.replicas": "1",
}


def equipoise(*arguments: str, code: int = 0) -> str:
    done = subprocess.run([sys.executable, "-m", "equipoise", *arguments], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if code == 0 else done.stderr


class Watched:
    """The application's input and output: what was sent, and which instance processed which
    partition last.
    """

    def __init__(self, bootstrap: str, prefix: str) -> None:
        self.bootstrap, self.into, self.out = bootstrap, f"{prefix}-in", f"{prefix}-out"
        self.processed: dict[int, list[str]] = {}

    async def __aenter__(self) -> Watched:
        async with admin_client(Connection(bootstrap=self.bootstrap)) as admin:
            await admin.create_topics([NewTopic(topic, PARTITIONS, 1) for topic in (self.into, self.out)])
        self._producer = Connection(bootstrap=self.bootstrap).clients.producer()
        self._consumer = AIOKafkaConsumer(self.out, bootstrap_servers=self.bootstrap, auto_offset_reset="earliest")
        await self._producer.start()
        await self._consumer.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._consumer.stop()
        await self._producer.stop()

    async def until(self, holds: Callable[[dict[int, str]], bool]) -> dict[int, str]:
        """Feeds it until partition -> last instance is as wanted."""
        async with asyncio.timeout(120):
            while True:
                for partition in range(PARTITIONS):
                    await self._producer.send_and_wait(self.into, b"", key=b"k", partition=partition)
                for records in (await self._consumer.getmany(timeout_ms=300)).values():
                    for record in records:
                        partition, _, instance, _ = record.value.decode().split(" ")
                        self.processed.setdefault(int(partition), []).append(instance)
                last = {partition: instances[-1] for partition, instances in sorted(self.processed.items())}
                if len(last) == PARTITIONS and holds(last):
                    return last


async def ends(bootstrap: str, topic: str) -> dict[int, int]:
    async with reader(Connection(bootstrap=bootstrap)) as consumer:
        found = await consumer.end_offsets([TopicPartition(topic, partition) for partition in range(PARTITIONS)])
    return {place.partition: end for place, end in found.items()}


@pytest.mark.slow
async def test_imported_history_matches_the_application(bootstrap: str, prefix: str, tmp_path: Path) -> None:
    application = {"input": f"{prefix}-in", "output": f"{prefix}-out", "settings": SETTINGS}

    def instance(name: str) -> StreamsApplication:
        return StreamsApplication(bootstrap, prefix, name, tmp_path, **application)  # type: ignore[arg-type]

    async with Watched(bootstrap, prefix) as watched, StreamsGroup(f"kafka://{bootstrap}", prefix) as group:
        with instance("i1") as first:
            alone = await watched.until(lambda last: set(last.values()) == {"i1"})
            assert await group.catch_up() >= 1
            with instance("i2") as second:
                await watched.until(lambda last: set(last.values()) == {"i1", "i2"})
                new = await group.catch_up()
                assert new >= 1, "followed: only what is new is read"
                while new:  # follow-up rounds move more
                    quiet_s = time.monotonic() + QUIET_S
                    both = await watched.until(lambda last: time.monotonic() > quiet_s)  # noqa: B023  # used at once
                    new = await group.catch_up()
                changelog = changelog_of(prefix)
                log = tmp_path / "imported.db"
                told = json.loads(equipoise("import", "kafka-streams", f"kafka://{bootstrap}", "--group", prefix, "--to", str(log), "--json"))
                now = await ends(bootstrap, changelog)
                first.end("leave")
                await asyncio.to_thread(first.process.wait, 60)
                await watched.until(lambda last: set(last.values()) == {"i2"})
                second.end("leave")
                await asyncio.to_thread(second.process.wait, 60)

    with open_log(log) as read:
        facts = [entry for entry in read.read() if isinstance(entry, FactRecord)]
    observed = [record.event for record in facts if isinstance(record.event, AssignmentObserved)]
    (topology,) = [record.event for record in facts if isinstance(record.event, TopologyDeclared)]
    joined = {record.event.member_id for record in facts if isinstance(record.event, MemberJoined)}
    assert (told["members"], told["generations"]) == (2, len(observed))
    assert joined == {"i1", "i2"}
    assert [(part.partitions, part.stateful, part.source_topics, part.changelog_topics) for part in topology.subtopologies] == [
        (PARTITIONS, True, (f"{prefix}-in",), (changelog,))
    ]
    assert owners(observed[0]) == alone
    assert owners(observed[-1]) == both, "who processes it is who was given it"
    assert sum(len(member.standby) for member in observed[-1].members) == PARTITIONS, "one standby a task"
    known: dict[int, int] = {}
    for record in facts:
        if isinstance(record.event, PartitionsObserved):
            for partition, end in record.event.end_offsets.get(changelog, {}).items():
                assert end >= known.get(partition, 0), "end offsets do not fall"
                known[partition] = end
    assert all(0 < known[partition] <= now[partition] for partition in range(PARTITIONS))
    reports = [record.event for record in facts if isinstance(record.event, LagReported)]
    assert any(report.held for report in reports)
    with open_log(log) as read:
        found = verify(read.read())
    assert found.verdict is Verdict.IDENTICAL, "facts alone: nothing was decided, nothing differs"


def owners(event: Any) -> dict[int, str]:
    return dict(sorted((task.partition, member.member_id) for member in event.members for task in member.active))


@pytest.mark.smoke
async def test_unknown_streams_group_is_named(bootstrap: str, prefix: str, tmp_path: Path) -> None:
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=f"{prefix}-other")  # so that there is a topic of offsets
    await consumer.start()
    await consumer.stop()
    where = f"kafka://{bootstrap}"
    async with StreamsGroup(where, prefix) as group:
        assert await group.catch_up() == 0
    said = equipoise("import", "kafka-streams", where, "--group", prefix, "--to", str(tmp_path / "x.db"), code=2)
    assert f"no generation of group {prefix!r}" in said
    assert "--group: name the application id" in equipoise("import", "kafka-streams", where, "--to", str(tmp_path / "x.db"), code=2)
    with pytest.raises(InputError, match=r"write kafka://host:port"):
        StreamsGroup(f"{where}/prefix", prefix)


def test_coordinator_partition_is_the_java_hash_of_the_group() -> None:
    """As `"orders".hashCode()` and the like give it in Java; the last one is the one int without an
    absolute value.
    """
    assert [offsets_partition(group, 50) for group in ("orders", "", "a", "polygenelubricants")] == [abs(-1008770331) % 50, 0, 97 % 50, 0]
