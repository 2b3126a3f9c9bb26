"""Two applications of Kafka Streams go from the stock assignor to equipoise's and back, one
instance at a time and under load, led by one worker: one with static members, exactly once, and one
with dynamic members, at least once.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections import Counter
from pathlib import Path

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import NewTopic

from equipoise.kafka.connection import Connection
from equipoise.replay.verification import Verdict
from equipoise.worker.app import Worker
from equipoise.worker.settings import WorkerSettings
from tests.live.kafka import admin_client, reader, writer
from tests.live.streams import StreamsApplication
from tests.live.test_streams_rounds import metric, until, verdict_of

PARTITIONS = 4
RECORDS_PER_S = 200
SETTINGS = {
    "num.stream.threads": "1",
    "session.timeout.ms": "6000",
    "heartbeat.interval.ms": "500",
    "commit.interval.ms": "200",
    "equipoise.retry.ms": "2000",
    "replication.factor": "1",
}
SAID = ("equipoise decided the round", "equipoise did not decide this round")


class Load:
    """One application, and what is sent to it."""

    def __init__(self, bootstrap: str, name: str, folder: Path, *, guarantee: str, static: bool, stack: contextlib.ExitStack) -> None:
        self.name, self.sent = name, 0
        self.input, self.output = f"{name}-in", f"{name}-out"
        self._bootstrap, self._folder, self._static, self._stack = bootstrap, folder / name, static, stack
        self._settings = {**SETTINGS, "processing.guarantee": guarantee}
        self.instances: dict[str, StreamsApplication] = {}

    def start(self, instance: str, url: str | None) -> StreamsApplication:
        """`url`: of the worker; None: with the stock assignor."""
        ours = {} if url is None else {"task.assignor.class": "io.equipoise.streams.EquipoiseTaskAssignor", "equipoise.url": url}
        static = {"group.instance.id": f"{self.name}-{instance}"} if self._static else {}
        settings = {**self._settings, **ours, **static}
        application = StreamsApplication(self._bootstrap, self.name, instance, self._folder, input=self.input, output=self.output, settings=settings)
        self.instances[instance] = self._stack.enter_context(application)
        return application

    async def restart(self, instance: str, url: str | None) -> None:
        old = self.instances[instance]
        old.end("close" if self._static else "leave")
        await asyncio.to_thread(old.process.wait, 90)
        await asyncio.to_thread(self.start(instance, url).until_said, "state RUNNING")

    async def counts(self, connection: Connection) -> Counter[tuple[int, int]]:
        """How often each record (partition, offset) was counted."""
        found: Counter[tuple[int, int]] = Counter()
        places = [TopicPartition(self.output, partition) for partition in range(PARTITIONS)]
        async with reader(connection, read_committed=True) as consumer:
            consumer.assign(places)
            for at, offset in (await consumer.beginning_offsets(places)).items():
                consumer.seek(at, offset)
            while batch := await consumer.getmany(timeout_ms=1_000):
                for records in batch.values():
                    for record in records:
                        partition, offset, _, _ = record.value.split()
                        found[int(partition), int(offset)] += 1
        return found


def runs(worker: Worker, group: str, instance: str, tasks: int) -> bool:
    """Whether the worker has so many tasks or more on processes with `instance` in their names."""
    states = [lead.machine.state for _, lead in worker.groups() if lead.name == group]
    return tasks <= sum(len(member.active) for state in states for name, member in state.members.items() if instance in name)


@pytest.mark.slow
async def test_applications_go_to_equipoise_and_back_one_instance_at_a_time(bootstrap: str, prefix: str, tmp_path: Path) -> None:
    connection = Connection(bootstrap=bootstrap)
    settings = WorkerSettings(bootstrap=bootstrap, prefix=prefix, http_port=0, observe_interval_ms=500)
    with contextlib.ExitStack() as stack:
        exact = Load(bootstrap, f"{prefix}-exact", tmp_path, guarantee="exactly_once_v2", static=True, stack=stack)
        least = Load(bootstrap, f"{prefix}-least", tmp_path, guarantee="at_least_once", static=False, stack=stack)
        both = (exact, least)
        async with admin_client(connection) as admin, writer(connection) as producer:
            await admin.create_topics([NewTopic(topic, PARTITIONS, 1) for load in both for topic in (load.input, load.output)])

            async def send() -> None:
                while True:
                    for load in both:
                        await producer.send(load.input, b"", key=b"%d" % (load.sent % 50), partition=load.sent % PARTITIONS)
                        load.sent += 1
                    await asyncio.sleep(1 / RECORDS_PER_S)

            for load in both:
                for instance in ("i1", "i2"):
                    load.start(instance, None)
            for load in both:
                for application in load.instances.values():
                    await asyncio.to_thread(application.until_said, "state RUNNING")
            sending = asyncio.create_task(send())
            worker = Worker(settings)
            await worker.start()
            try:
                await until(lambda: not worker.unready(), "the worker leads")
                url = f"http://127.0.0.1:{worker.http_port}"
                for instance in ("i1", "i2"):
                    await asyncio.gather(*(load.restart(instance, url) for load in both))
                for load in both:  # static members that restart begin no round, a new one does
                    load.start("i3", url)
                    await until(functools.partial(runs, worker, load.name, "i3", 1), f"{load.name}: the new process runs a task")
                    load.instances.pop("i3").end("leave")
                    await until(functools.partial(runs, worker, load.name, "", PARTITIONS), f"{load.name}: the others run all")
                assert metric(worker, 'equipoise_rounds_asked_total{status="200"}') >= 4
                for instance in ("i1", "i2"):
                    await asyncio.gather(*(load.restart(instance, None) for load in both))
            finally:
                await worker.stop()
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            await producer.flush()
        sizes = {load.name: load.sent for load in both}
        assert min(sizes.values()) > 500
        for load in both:
            counted: Counter[tuple[int, int]] = Counter()
            async with asyncio.timeout(90):
                while len(counted) < load.sent:
                    counted = await load.counts(connection)
            assert set(counted) == {(number % PARTITIONS, number // PARTITIONS) for number in range(load.sent)}
            if load is exact:
                assert set(counted.values()) == {1}, "each record once"
            assert not any(SAID[1] in application.said() for application in load.instances.values())
    assert verdict_of(settings) is Verdict.IDENTICAL
