"""No record stops a partition: decisions that are too large for one event, foreign records, ends of
foreign transactions.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgpack
import pytest
from aiokafka import AIOKafkaProducer

from equipoise.events.codec import MOST_EVENT_BYTES, fits
from equipoise.events.decisions import AssignmentIssued, MemberAssigned
from equipoise.events.facts import Fact, MemberLeft, ProbingTick, Undecodable
from equipoise.events.parts import whole
from equipoise.events.records import DecisionRecord
from equipoise.kafka.started_clients import writer
from equipoise.log import open_log
from equipoise.log.kafka.envelope import fact_row, group_key, pack_fact, pack_payload
from equipoise.log.kafka.log import KafkaLog
from equipoise.log.kafka.log_archive import archive
from equipoise.replay.verification import Verdict, verify
from equipoise.worker.app import Worker
from equipoise.worker.settings import WorkerSettings
from tests.groups import configured, joined
from tests.groups import topology as stateless_topology
from tests.live.swarm import Swarm, everything, topology

CONFIG = configured(initial_delay_ms=0, acceptable_recovery_lag=100)


@pytest.fixture
def settings(bootstrap: str, prefix: str) -> WorkerSettings:
    return WorkerSettings(bootstrap=bootstrap, prefix=prefix, http_port=0, checkpoint_facts=50)


@asynccontextmanager
async def foreign(settings: WorkerSettings, **options: Any) -> AsyncIterator[Any]:
    """A producer of somebody who knows nothing of us."""
    producer = AIOKafkaProducer(bootstrap_servers=settings.bootstrap, **options)
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop()


def read(location: str | Path) -> list[Any]:
    with open_log(location) as log:
        return list(log.read())


@pytest.mark.slow
async def test_generation_and_assignment_larger_than_one_event_are_sent_in_parts(settings: WorkerSettings) -> None:
    async with Worker(settings) as worker, Swarm(settings, settings.topics) as swarm:
        await swarm.configure("small", CONFIG, topology(4))
        swarm.add("small", ["m1"])
        swarm.start()
        await swarm.until_all_run("small", 4, ["m1"])
        async with writer(settings) as producer:

            async def say(event: Fact) -> None:
                await producer.send_and_wait(settings.topics.facts, pack_fact(event), key=group_key("big"), partition=0)

            first, second = "a" * 120, "b" * 120
            left = MemberLeft(member_id=first, incarnation=1)
            for event in (CONFIG, stateless_topology(stateless=9_000), joined(first), joined(second), left):
                await say(event)
        swarm.add("small", ["m2"])
        await swarm.until_all_run("small", 4, ["m1", "m2"])
        assert worker.metrics.takeovers_failed._value.get() == 0
        assert not swarm.overlaps
    location = f"kafka://{settings.bootstrap}/{settings.prefix}"
    decisions = [each.decision for each in read(location) if isinstance(each, DecisionRecord) and each.group == "big"]
    assert all(map(fits, decisions))
    rounds = [(each.part, each.parts) for each in decisions if isinstance(each, AssignmentIssued)]
    assert rounds[:4] == [(1, 2), (2, 2)] * 2  # of 9,000 grants, and of 4,500 movements from one long name to another
    last = [each for each in whole(decisions) if isinstance(each, MemberAssigned)][-1]
    assert (last.member_id, len(last.active)) == ("b" * 120, 9_000)
    with open_log(location) as log:
        assert verify(log.read()).verdict is Verdict.IDENTICAL


@pytest.mark.smoke
async def test_undecodable_records_are_set_aside_and_the_partition_continues(settings: WorkerSettings, tmp_path: Path) -> None:
    random, letters = os.urandom(1_048_450), b"x" * 5_000_000
    facts = settings.topics.facts
    async with Worker(settings) as worker, Swarm(settings, settings.topics) as swarm:
        async with foreign(settings) as producer, foreign(settings, compression_type="gzip", max_request_size=6_000_000) as compressing:
            await producer.send_and_wait(facts, random, partition=0)
            await compressing.send_and_wait(facts, letters, partition=0)
            await compressing.send_and_wait(facts, pack_payload(6, 2, letters), key=b"g", partition=0)
            await compressing.send_and_wait(facts, pack_payload(99, 1, letters), key=b"g", partition=0)  # of any kind
            await compressing.send_and_wait(facts, b"long key", key=b"k" * 2_000_000, partition=0)
            await producer.send_and_wait(facts, None, key=b"g", partition=0)
            await producer.send_and_wait(facts, None, key=b"\xff", partition=0)
            await producer.send_and_wait(facts, pack_fact(ProbingTick()), key=b"", partition=0)
        async with foreign(settings, transactional_id=f"{settings.prefix}t") as producer, producer.transaction():
            await producer.send_and_wait(facts, pack_fact(ProbingTick()), key=b"g", partition=0)
        await swarm.configure("g", CONFIG, topology(4))
        swarm.add("g", ["m1"])
        swarm.start()
        await swarm.until_all_run("g", 4, ["m1"])
        assert worker.metrics.takeovers_failed._value.get() == 0
        # The end of this transaction is the last record of the partition.
        async with foreign(settings, transactional_id=f"{settings.prefix}t") as producer, producer.transaction():
            await producer.send_and_wait(facts, pack_fact(ProbingTick()), key=b"nobody", partition=0)
    rows = [fact_row(each.key, each.value, each.offset, 0).record() for each in await everything(settings, facts)]
    told = [(each.event, each.offset) for each in rows if not each.group and isinstance(each.event, Undecodable)]
    assert [(event.code, offset, event.length_bytes) for event, offset in told] == [
        ("no_group", 1, len(random)),
        ("no_group", 2, len(letters)),
        ("no_group", 5, 8),
        ("no_group", 7, 0),
        ("no_group", 8, len(pack_fact(ProbingTick()))),
    ]
    assert told[0][0].crc32 == zlib.crc32(random)
    location = f"kafka://{settings.bootstrap}/{settings.prefix}"
    with open_log(location) as log:
        (of_g, *_) = verify(log.read()).groups
    assert (of_g.group, of_g.verdict) == ("g", Verdict.IDENTICAL)
    with KafkaLog(location) as source, open_log(tmp_path / "copy.db", "a") as copy:
        archive(source, copy)
    copied = read(tmp_path / "copy.db")
    assert copied == read(location)[: len(copied)]
    codes = [entry.event.code for entry in copied if getattr(entry, "group", "") == "g" and hasattr(getattr(entry, "event", None), "code")]
    assert codes == ["too_large", "too_large", "no_envelope"]
    assert len(letters) > MOST_EVENT_BYTES


async def test_foreign_records_do_not_prevent_a_takeover(settings: WorkerSettings) -> None:
    async with Worker(settings), Swarm(settings, settings.topics) as swarm:
        await swarm.configure("g", CONFIG, topology(4))
        swarm.add("g", ["m1"])
        swarm.start()
        await swarm.until_all_run("g", 4, ["m1"])
    async with foreign(settings) as producer:
        for topic in (settings.topics.decisions, settings.topics.checkpoints):
            for key in (b"g", b"h", b"", msgpack.packb([[], 0, 0]), msgpack.packb(["g", 0, 0]), msgpack.packb([0])):
                for value in (b"rubbish", msgpack.packb(["log", 0, 0, 10**12, 0, b""]), msgpack.packb(["log", "5", None, [], {}])):
                    await producer.send_and_wait(topic, value, key=key, partition=0)
    async with Worker(settings) as worker, Swarm(settings, settings.topics) as swarm:
        await swarm.configure("h", CONFIG, topology(2))
        swarm.add("h", ["m1"])
        swarm.start()
        await swarm.until_all_run("h", 2, ["m1"])
        assert worker.metrics.takeovers_failed._value.get() == 0
        assert all(lead.halted is None for _, lead in worker.groups())
    with open_log(f"kafka://{settings.bootstrap}/{settings.prefix}") as log:
        assert verify(log.read()).verdict is Verdict.IDENTICAL
