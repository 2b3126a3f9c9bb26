"""Applications of Faust with equipoise's assignor, on a real broker."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from equipoise.events.decisions import RoundPlanned
from equipoise.faust.copies import worker_name
from equipoise.kafka.connection import Connection
from equipoise.log import open_log
from equipoise.replay.verification import Verdict, verify
from tests.live.faust_app import PARTITIONS, TABLE
from tests.live.group_clients import ROOT
from tests.live.kafka import admin_client, reader, writer

PATIENCE_S = 60.0
QUIET_S = 30.0
"""A number that is missing after so long without any new one counts as lost. Busy workers need
longer than that for all numbers.
"""
KEYS = 4
"""Of each partition."""
AT_ONCE = 60
"""Numbers that are there when the first worker starts."""


class Worker:
    """One process of the application."""

    def __init__(self, folder: Path, name: str, bootstrap: str, worker: str, *, led: bool) -> None:
        self.disk = folder / worker
        number = len(list(folder.glob(f"{worker}-*.out")))
        self._out = folder / f"{worker}-{number}.out"
        given = {"name": name, "bootstrap": bootstrap, "folder": str(self.disk), "led": led, "standbys": 1}
        command = [sys.executable, "-m", "tests.live.faust_app", json.dumps(given), "worker", "--loglevel", "info", "--without-web"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}
        with self._out.open("w") as file:
            self.process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=file, stderr=file)

    @property
    def said(self) -> str:
        return self._out.read_text(errors="replace")

    @property
    def assignments(self) -> dict[int, list[int]]:
        """Generation -> partitions."""
        found = [json.loads(line.split(" ", 1)[1]) for line in self.said.splitlines() if line.startswith("assigned {") and line.endswith("}")]
        return {each["generation"]: each["active"] for each in found}

    @property
    def active(self) -> list[int]:
        if self.process.poll() is not None:
            return []
        return next(reversed(self.assignments.values()), [])

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        if self.process.poll() is None:
            self.process.send_signal(how)
        self.process.wait(60)

    @property
    def log(self) -> Path:
        return self.disk / "v1" / "equipoise.db"


class Application:
    """Its workers, and its input: each key gets the numbers from 0 on."""

    def __init__(self, bootstrap: str, name: str, folder: Path) -> None:
        self.bootstrap, self.name, self.folder = bootstrap, name, folder
        self.workers: dict[str, Worker] = {}
        self._ended: list[Worker] = []
        self._sent = 0
        self._enough = False

    def start(self, worker: str, *, led: bool = True) -> Worker:
        if worker in self.workers:
            self._ended.append(self.workers[worker])
        self.workers[worker] = Worker(self.folder, self.name, self.bootstrap, worker, led=led)
        return self.workers[worker]

    async def restart(self, worker: str, *, led: bool) -> None:
        await asyncio.to_thread(self.workers[worker].stop)
        self.start(worker, led=led)
        await self.settled()

    async def settled(self) -> None:
        """Until all workers are of one generation and share the partitions evenly."""

        def is_settled() -> bool:
            newest = {max(worker.assignments, default=0) for worker in self.workers.values()}
            counts = [len(worker.active) for worker in self.workers.values()]
            return len(newest) == 1 and sum(counts) == PARTITIONS and max(counts) - min(counts) <= 1

        try:
            async with asyncio.timeout(PATIENCE_S):
                while not is_settled():
                    assert all(worker.process.poll() is None for worker in self.workers.values()), "a worker has ended"
                    await asyncio.sleep(0.1)
        except (TimeoutError, AssertionError) as error:
            said = "".join(f"\n{name}: {worker.assignments}\n{worker.said[-1_500:]}" for name, worker in self.workers.items())
            pytest.fail(f"the workers do not share the partitions ({error}):{said}")

    @contextlib.asynccontextmanager
    async def fed(self) -> AsyncIterator[None]:
        """Within the block each key gets its numbers, ten a second."""
        topic, over = f"{self.name}-in", asyncio.Event()

        async def feed() -> None:
            async with writer(Connection(bootstrap=self.bootstrap)) as producer:
                while not over.is_set():
                    for partition in range(PARTITIONS):
                        for key in range(KEYS):
                            await producer.send(topic, b"%d" % self._sent, key=b"%d-%d" % (partition, key), partition=partition)
                    await producer.flush()
                    self._sent += 1
                    await asyncio.sleep(0.1 if self._sent > AT_ONCE else 0)

        async with admin_client(Connection(bootstrap=self.bootstrap)) as admin:
            from aiokafka.admin import NewTopic

            await admin.create_topics([NewTopic(topic, PARTITIONS, 1)])
        feeding = asyncio.ensure_future(feed())
        try:
            yield
        finally:
            over.set()
            await feeding

    async def check(self) -> None:
        """Every number has come to the table, and no generation has a partition on two workers."""
        every = (1 << self._sent) - 1
        wanted = {f"{partition}-{key}" for partition in range(PARTITIONS) for key in range(KEYS)}
        seen: dict[str, int] = {}

        from aiokafka import TopicPartition

        async with reader(Connection(bootstrap=self.bootstrap), auto_offset_reset="earliest") as consumer:
            places = [TopicPartition(f"{self.name}-{TABLE}-changelog", number) for number in range(PARTITIONS)]
            consumer.assign(places)
            for at, offset in (await consumer.beginning_offsets(places)).items():
                consumer.seek(at, offset)

            news_s = time.monotonic()
            while any(seen.get(key) != every for key in wanted):
                found = await consumer.getmany(timeout_ms=500)
                for records in found.values():
                    seen.update({record.key.decode(): int(record.value) for record in records})
                if found:
                    news_s = time.monotonic()
                elif time.monotonic() - news_s > QUIET_S:
                    lost = {key: [number for number in range(self._sent) if not seen.get(key, 0) >> number & 1] for key in sorted(wanted)}
                    pytest.fail(f"lost: { {key: numbers for key, numbers in lost.items() if numbers} }")
        generations: dict[int, list[int]] = {}
        for worker in (*self.workers.values(), *self._ended):
            for generation, active in worker.assignments.items():
                generations.setdefault(generation, []).extend(active)
        assert all(len(active) == len(set(active)) for active in generations.values()), generations

    def close(self) -> None:
        for worker in self.workers.values():
            worker.stop(signal.SIGKILL)


@pytest.fixture
def application(bootstrap: str, prefix: str, tmp_path: Path) -> Iterator[Application]:
    made = Application(bootstrap, prefix, tmp_path)
    try:
        yield made
    finally:
        made.close()


def rounds_of(worker: Worker) -> list[RoundPlanned]:
    with open_log(worker.log) as log:
        return [decision for record in log.read() if isinstance(decision := getattr(record, "decision", None), RoundPlanned)]


def verdicts_of(workers: Any) -> set[Verdict]:
    found = set()
    for worker in workers:
        if worker.log.exists():
            with open_log(worker.log) as log:
                found.add(verify(log.read()).verdict)
    return found


@pytest.mark.smoke
async def test_worker_that_joins_restores_copies_first_and_one_that_returns_has_its_own(application: Application) -> None:
    async with application.fed():
        application.start("w1")
        application.start("w2")
        await application.settled()
        application.start("w3")
        await application.settled()
        joined = worker_name(application.workers["w3"].disk)
        (leader,) = [worker for worker in application.workers.values() if worker.log.exists()]
        to_joined = [(move.state, move.reason) for planned in rounds_of(leader) for move in planned.moves if move.destination == joined]
        await application.restart("w2", led=True)
    await application.check()
    assert to_joined == [("warming", "balance")] * 2 + [("granted", "ready")] * 2
    assert not any("Faust's own assignor decides" in worker.said for worker in application.workers.values())
    application.close()
    assert verdicts_of(application.workers.values()) == {Verdict.IDENTICAL}


@pytest.mark.slow
async def test_upgrade_from_stock_and_back_under_load_loses_nothing(application: Application) -> None:
    async with application.fed():
        for name in ("w1", "w2"):
            application.start(name, led=False)
        await application.settled()
        for led in (True, False):
            for name in ("w1", "w2"):
                await application.restart(name, led=led)
            decided = any("decided for 2 workers" in worker.said for worker in application.workers.values())
            assert decided is led
    await application.check()
    warned = "".join(worker.said for worker in (*application.workers.values(), *application._ended))
    assert "no report of its copies" in warned or "decided for 1 worker in" in warned
