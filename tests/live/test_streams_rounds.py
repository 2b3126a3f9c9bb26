"""A Kafka Streams application whose rounds equipoise decides (KIP-924), on a real broker: the
published jars, the assignor of ``java/streams-assignor`` and a deployed worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from equipoise.events.decisions import RoundPlanned
from equipoise.events.parts import whole
from equipoise.kafka.connection import Connection
from equipoise.log import open_log
from equipoise.replay.verification import Verdict, verify
from equipoise.statemachine.state import GroupState
from equipoise.worker.app import Worker
from equipoise.worker.settings import WorkerSettings
from tests.live.kafka import admin_client, writer
from tests.live.streams import StreamsApplication

PARTITIONS = 4
MOST_S = 90.0


async def until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + MOST_S
    while not condition():
        assert time.monotonic() < end, what
        await asyncio.sleep(0.1)


def rounds_of(settings: WorkerSettings) -> list[RoundPlanned]:
    with open_log(f"kafka://{settings.bootstrap}/{settings.prefix}") as log:
        found = [record.decision for record in log.read() if hasattr(record, "decision")]
    return [decision for decision in whole(found) if isinstance(decision, RoundPlanned)]


def verdict_of(settings: WorkerSettings) -> Verdict:
    with open_log(f"kafka://{settings.bootstrap}/{settings.prefix}") as log:
        return verify(log.read()).verdict


@pytest.mark.smoke
async def test_rounds_of_an_application_are_decided_here_and_without_a_worker_by_kafka_streams(bootstrap: str, prefix: str, tmp_path: Path) -> None:
    from aiokafka.admin import NewTopic

    into, out = f"{prefix}-in", f"{prefix}-out"
    settings = WorkerSettings(bootstrap=bootstrap, prefix=prefix, http_port=0, observe_interval_ms=500)
    connection = Connection(bootstrap=bootstrap)
    async with admin_client(connection) as admin, writer(connection) as producer:
        await admin.create_topics([NewTopic(topic, PARTITIONS, 1) for topic in (into, out)])
        for number in range(400):
            await producer.send(into, b"", key=b"%d" % number, partition=number % PARTITIONS)
        await producer.flush()

    worker = Worker(settings)

    def states() -> list[GroupState]:
        return [lead.machine.state for _, lead in worker.groups() if lead.name == prefix]

    def runs() -> dict[str, int]:
        return {name.rsplit("-", 1)[0]: len(member.active) for state in states() for name, member in state.members.items()}

    with contextlib.ExitStack() as running:
        await worker.start()
        try:
            await until(lambda: not worker.unready(), "the worker leads")
            how = {
                "task.assignor.class": "io.equipoise.streams.EquipoiseTaskAssignor",
                "equipoise.url": f"http://127.0.0.1:{worker.http_port}",
                "equipoise.retry.ms": "2000",
                "num.stream.threads": "2",
                "session.timeout.ms": "6000",
                "heartbeat.interval.ms": "500",
                "commit.interval.ms": "200",
                "acceptable.recovery.lag": "10",
            }

            def start(instance: str) -> StreamsApplication:
                return running.enter_context(StreamsApplication(bootstrap, prefix, instance, tmp_path, input=into, output=out, settings=how))

            one = start("i1")
            await asyncio.to_thread(one.until_said, "equipoise decided the round")
            await asyncio.to_thread(one.until_said, "state RUNNING")
            two = start("i2")
            await until(lambda: runs() == {"i1": 2, "i2": 2}, "each process runs two tasks")

            def moves() -> set[str]:
                return {move.state for planned in rounds_of(settings) for move in planned.moves if move.source is not None}

            await until(lambda: moves() == {"warming", "granted"}, "the log has what the worker decided")
            handed_over = {planned.generation for planned in rounds_of(settings) for move in planned.moves if move.state == "granted" and move.source}
            assert len(handed_over) == 1, "both tasks go over in one round"
        finally:
            await worker.stop()

        # Without a worker: nobody moves what runs, and what nobody runs goes on.
        two.end("leave")
        await asyncio.to_thread(one.until_said, "equipoise did not decide this round")
        worker = Worker(attrs.evolve(settings, http_port=worker.http_port))
        await worker.start()
        try:
            await until(lambda: runs() == {"i1": 4}, "the next round is asked here again")
            await until(lambda: metric(worker, 'equipoise_rounds_asked_total{status="200"}') >= 1, "the answer is counted")
            one.end("leave")
            await asyncio.to_thread(one.process.wait, MOST_S)
        finally:
            await worker.stop()
    assert verdict_of(settings) is Verdict.IDENTICAL


def metric(worker: Worker, name: str) -> float:
    lines = worker.metrics.text().decode().splitlines()
    return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(name)), 0.0)
