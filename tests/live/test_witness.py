"""A killed process is proven dead by its witness: its tasks run elsewhere at once, although its
session lasts for a minute.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from equipoise.events.decisions import MemberExpired
from equipoise.events.facts import MemberEnded
from equipoise.events.settings import GroupSettings
from equipoise.hosting.proof import MemberProof
from equipoise.kafka.client import TopicPartition
from equipoise.kafka.connection import Connection
from equipoise.log.kafka.envelope import read_fact
from equipoise.log.kafka.log_topics import Topics
from equipoise.log.kafka.topic_making import ensure_topics
from equipoise.witness import child
from tests.live.cut import Relays
from tests.live.kafka import reader, writer
from tests.live.leader import leading
from tests.live.test_log_replaced import delete_log
from tests.live.test_member import BOTH, PARTITIONS, Application
from tests.live.test_restorer import until
from tools.brokers import Brokers

ROOT = Path(__file__).resolve().parents[2]
LONG: dict[str, Any] = {"session_timeout_ms": 60_000, "lease_margin_ms": 2_000, "heartbeat_interval_ms": 500}
SOON_S = 10.0
STOPPED_S = 5.0
RUN = "import asyncio, sys; from tests.live.test_witness import run; asyncio.run(run(*sys.argv[1:]))"


async def run(bootstrap: str, prefix: str, member_id: str, folder: str, guarantee: str, session_timeout_ms: str = "60000") -> None:
    """The process that is watched."""
    options = {**LONG, "session_timeout_ms": int(session_timeout_ms)}
    await application_of(bootstrap, prefix).member(member_id, Path(folder), guarantee, witness=True, **options).run()


def application_of(bootstrap: str, prefix: str) -> Application:
    application = Application(bootstrap, prefix)
    knobs = attrs.evolve(application.config.knobs, num_standbys=1)
    assert isinstance(knobs, GroupSettings)
    application.config = attrs.evolve(application.config, knobs=knobs)
    return application


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()


def start(processes: list[subprocess.Popen[bytes]], said: Path, *arguments: str) -> subprocess.Popen[bytes]:
    with open(said, "ab") as file:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        processes.append(subprocess.Popen([sys.executable, "-c", RUN, *arguments], cwd=ROOT, env=environment, stderr=file))
    return processes[-1]


@BOTH
@pytest.mark.smoke
async def test_tasks_of_a_killed_process_run_elsewhere_at_once(
    bootstrap: str, prefix: str, tmp_path: Path, guarantee: str, processes: list[subprocess.Popen[bytes]]
) -> None:
    application = application_of(bootstrap, prefix)
    await application.make_topics()
    said = tmp_path / "said"
    async with leading(bootstrap, prefix, prefix, application.config, application.topology) as leader:
        killed = start(processes, said, bootstrap, prefix, "m1", str(tmp_path / "m1"), guarantee)
        state = leader.machine.state
        await until(lambda: "m1" in state.members and len(state.members["m1"].held) == PARTITIONS)
        async with application.member("m2", tmp_path / "m2", guarantee, **LONG) as heir:
            await application.order(200)
            await until(lambda: "m2" in state.members and len(state.members["m2"].standby) + len(heir.running) == PARTITIONS)
            await application.until_counted(exactly=True)
            killed.send_signal(signal.SIGSTOP)
            await asyncio.sleep(STOPPED_S)
            assert leader.decided(MemberExpired) == [], "it was stopped, not dead"
            killed.send_signal(signal.SIGCONT)
            await application.order(100)
            killed.kill()
            began_s = time.monotonic()
            await until(lambda: len(heir.running) == PARTITIONS)
            assert time.monotonic() - began_s < SOON_S
            await application.until_counted(exactly=guarantee == "exactly_once")
            (expired,) = leader.decided(MemberExpired)
            assert (expired.member_id, expired.cause, expired.hold_ms) == ("m1", "proven_dead", 0)
            (proof,) = (record.event for record in leader.facts if isinstance(record.event, MemberEnded))
            assert proof.proof == f"process {killed.pid} has ended"
            await until(lambda: "proven after" in said.read_text())
            start(processes, said, bootstrap, prefix, "m1", str(tmp_path / "m1"), guarantee)
            await until(lambda: "m1" in state.members and len(state.members["m1"].held) > 0)


@pytest.mark.slow
async def test_member_that_is_cut_off_is_expired_by_its_session_timeout_and_not_proven_dead(
    prefix: str, tmp_path: Path, processes: list[subprocess.Popen[bytes]]
) -> None:
    network = Relays(["m1"])
    with Brokers(1, network.listeners) as brokers:
        application = application_of(brokers.bootstrap, prefix)
        await application.make_topics()
        async with leading(brokers.bootstrap, prefix, prefix, application.config, application.topology) as leader, network.relaying():
            folder = str(tmp_path / "m1")
            cut_off = start(processes, tmp_path / "said", network.bootstrap("m1"), prefix, "m1", folder, "at_least_once", "6000")
            members = leader.machine.state.members
            await until(lambda: "m1" in members and len(members["m1"].held) == PARTITIONS)
            incarnation = members["m1"].incarnation
            async with application.member("m2", tmp_path / "m2", "at_least_once", **LONG) as heir:
                await application.order(100)
                network.cut("m1")
                await until(lambda: len(heir.running) == PARTITIONS)
                (expired,) = leader.decided(MemberExpired)
                assert (expired.member_id, expired.cause) == ("m1", "session_timeout")
                network.mend("m1")
                await until(lambda: "m1" in members and members["m1"].incarnation > incarnation)
                await application.until_counted(exactly=False)
            assert cut_off.poll() is None
            assert not [record for record in leader.facts if isinstance(record.event, MemberEnded)]


async def test_process_that_leaves_proves_nothing(bootstrap: str, prefix: str, tmp_path: Path, processes: list[subprocess.Popen[bytes]]) -> None:
    application = application_of(bootstrap, prefix)
    await application.make_topics()
    async with leading(bootstrap, prefix, prefix, application.config, application.topology) as leader:
        process = start(processes, tmp_path / "said", bootstrap, prefix, "m1", str(tmp_path / "m1"), "at_least_once")
        await until(lambda: "m1" in leader.machine.state.members and len(leader.machine.state.members["m1"].held) == PARTITIONS)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 30) == 0
        await until(lambda: leader.machine.state.members == {})
        await asyncio.sleep(1)
        assert not [record for record in leader.facts if isinstance(record.event, MemberEnded)]
        assert "proven" not in (tmp_path / "said").read_text()


async def test_prepared_append_reaches_the_topic_and_not_one_that_was_made_again(
    bootstrap: str, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "PREPARED_S", SOON_S)
    connection, topics = Connection(bootstrap=bootstrap), Topics(prefix)
    place = TopicPartition(topics.facts, 1)

    async def said() -> dict[str, Any]:
        async with writer(connection) as producer:
            await producer.partitions_for(topics.facts)
            (topic_id,) = await producer.topic_ids((topics.facts,), place)
            proof = MemberProof(
                connection=connection,
                topic=place.topic,
                partition=place.partition,
                group="g",
                member_id="m1",
                incarnations=[3, 4],
                lock=None,
                within_s=5.0,
                leader=producer.leader(place),
                topic_id=topic_id,
            )
        return json.loads(proof.message(7))

    async def found() -> list[Any]:
        async with reader(connection) as consumer:
            consumer.assign([place])
            consumer.seek(place, 0)
            records = (await consumer.getmany(place, timeout_ms=2_000)).get(place, [])
            return [read_fact(each.key, each.value, each.offset, each.timestamp_ms) for each in records]

    await ensure_topics(connection, topics, partitions=2)
    prepared = await said()
    async with asyncio.timeout(SOON_S):  # the leader of a new partition takes nothing for a moment
        while not await asyncio.to_thread(child.was_appended, prepared):  # noqa: ASYNC110  # a broker
            await asyncio.sleep(0.2)
    records = await found()
    assert [record.group for record in records] == ["g", "g"]
    assert [record.event for record in records] == [MemberEnded(member_id="m1", incarnation=each, proof="process 7 has ended") for each in (3, 4)]
    await delete_log(bootstrap, prefix)
    await ensure_topics(connection, topics, partitions=2)
    assert not await asyncio.to_thread(child.was_appended, prepared)
    assert await found() == []


def worker(processes: list[subprocess.Popen[bytes]], said: Path, bootstrap: str, prefix: str) -> subprocess.Popen[bytes]:
    options = ["--bootstrap", bootstrap, "--prefix", prefix, "--witness", "true", "--worker-session-timeout-ms", "60000", "--http-port", "0"]
    with open(said, "ab") as file:
        processes.append(subprocess.Popen([sys.executable, "-m", "equipoise", "worker", *options], stderr=file))
    return processes[-1]


@pytest.mark.slow
async def test_next_worker_leads_soon_after_the_kill_of_the_leading_one(
    bootstrap: str, prefix: str, tmp_path: Path, processes: list[subprocess.Popen[bytes]]
) -> None:
    leading, spare = tmp_path / "leading", tmp_path / "spare"
    killed = worker(processes, leading, bootstrap, prefix)
    await until(lambda: "taken over" in leading.read_text())
    worker(processes, spare, bootstrap, prefix)
    await until(lambda: "http://" in spare.read_text())
    await asyncio.sleep(2)
    assert "taken over" not in spare.read_text()
    killed.kill()
    began_s = time.monotonic()
    await until(lambda: "taken over" in spare.read_text())
    assert time.monotonic() - began_s < SOON_S, "its session lasts for a minute"
    await until(lambda: "proven after" in leading.read_text())
