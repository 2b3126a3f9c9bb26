"""``python -m bench.streams_rounds scale-out --leader equipoise``: one run of a recorded scenario
(replay/data/README.md) on a real broker, with the load of the recording and a fixed time for each
action. Prints a table; ``--json FILE`` keeps it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from bench.streams_rounds.silence import Window, read_spans, windows
from equipoise.kafka.client import TopicPartition, Unsent, acknowledged
from equipoise.kafka.connection import Connection
from tests.live.group_clients import children_of
from tests.live.kafka import admin_client, reader, writer
from tests.live.streams import JAVA, assignor_classes
from tools import brokers

HERE = Path(__file__).parent
WEIGHTS = (2.0, 1.6, 1.3, 1.1, 1.0, 1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.5)
ORDERS, CUSTOMERS, CLICKS = 12, 8, 6
KEYS = 360_000
VALUE = bytes(152)
ORDERS_PER_S, CLICKS_PER_S = 1_200, 600
BATCH_BYTES = 400_000
RECORDS_AT_ONCE = 20_000


class Run:
    """One broker, one application, one leader."""

    def __init__(
        self, leader: str, standbys: int, preload: int, step_s: float, folder: Path, bootstrap: str, *, kills_worker: bool, supervised: bool
    ) -> None:
        self.leader, self.standbys, self.preload, self.step_s, self.kills_worker = leader, standbys, preload, step_s, kills_worker
        self.supervised = supervised
        self.folder, self.bootstrap = folder, bootstrap
        self.instances: dict[str, subprocess.Popen[bytes]] = {}
        self.marks: list[tuple[int, str]] = []
        self.worker: subprocess.Popen[bytes] | None = None
        self.recorder: subprocess.Popen[bytes] | None = None
        self.port = brokers.free_ports(1)[0]
        libraries = f"{brokers.jars(JAVA / 'pom.xml')}/*"
        self.classpath = f"{brokers.classes(HERE / 'ScenarioApp.java', libraries)}:{assignor_classes()}:{libraries}"

    def start(self, name: str, *, keeps: bool = True) -> None:
        state = self.folder / f"state-{name}"
        if not keeps:
            shutil.rmtree(state, ignore_errors=True)
        written = {
            "bootstrap.servers": self.bootstrap,
            "application.id": "orders",
            "client.id": name,
            "state.dir": str(state),
            "prefix": "orders",
            "instance": name,
            "samples": str(self.folder / f"{name}.samples"),
            "num.stream.threads": 2,
            "num.standby.replicas": self.standbys,
            "acceptable.recovery.lag": 1000,
            "max.warmup.replicas": 2,
            "probing.rebalance.interval.ms": 60000,
            "commit.interval.ms": 1000,
            "statestore.cache.max.bytes": 1048576,
            "session.timeout.ms": 10000,
            "heartbeat.interval.ms": 3000,
            "auto.offset.reset": "earliest",
            "replication.factor": 1,
        }
        if self.leader == "equipoise":
            written |= {"task.assignor.class": "io.equipoise.streams.EquipoiseTaskAssignor", "equipoise.url": f"http://127.0.0.1:{self.port}"}
        file = self.folder / f"{name}.properties"
        file.write_text("".join(f"{key}={value}\n" for key, value in written.items()))
        options = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xms64m", "-Xmx384m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=info"]
        command = ["java", *options, "-cp", self.classpath, "ScenarioApp", str(file)]
        if self.supervised:
            membership = ["--group", "orders", "--bootstrap", self.bootstrap, "--client-id", f"{name}-StreamThread-*"]
            command = [sys.executable, "-m", "equipoise", "witness", *membership, "--", *command]
        with open(self.folder / f"{name}.out", "ab") as out:
            self.instances[name] = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out, stderr=out)

    def end(self, name: str, how: str) -> None:
        stdin = self.instances.pop(name).stdin
        assert stdin is not None
        stdin.write(f"{how}\n".encode())
        stdin.close()

    def kill(self, name: str) -> None:
        process = self.instances.pop(name)
        for pid in children_of(process.pid) if self.supervised else [process.pid]:
            os.kill(pid, signal.SIGKILL)
        process.wait()

    def lead(self) -> None:
        if self.leader != "equipoise":
            return
        command = [sys.executable, "-m", "equipoise", "worker", "--bootstrap", self.bootstrap, "--http-port", str(self.port)]
        with open(self.folder / "worker.out", "ab") as out:
            self.worker = subprocess.Popen(command, stdout=out, stderr=out, env={**os.environ})

    def record(self, file: Path) -> None:
        command = [sys.executable, "-m", "equipoise", "record", f"kafka://{self.bootstrap}", "--to", str(file), "--sample-s", "2"]
        with open(self.folder / "record.out", "wb") as out:
            self.recorder = subprocess.Popen(command, stdout=out, stderr=out)

    async def act(self, name: str, do: Callable[[], Awaitable[None] | None]) -> None:
        self.marks.append((int(time.time() * 1_000), name))
        is_away = self.kills_worker and self.worker is not None and name[1] == "2"
        if is_away and self.worker is not None:
            self.worker.kill()
            self.worker.wait()
        done = do()
        if done is not None:
            await done
        await asyncio.sleep(self.step_s / 2)
        if is_away:
            self.lead()
        await asyncio.sleep(self.step_s / 2)

    async def until_caught_up(self) -> None:
        """Until the application handles what arrives. Raises RuntimeError."""
        from aiokafka.errors import KafkaError

        for _ in range(300):
            with contextlib.suppress(KafkaError):  # before the group has a coordinator
                if await self.behind() <= 3_000:
                    return
            await asyncio.sleep(2)
        raise RuntimeError("the application does not catch up")

    async def behind(self) -> int:
        """Orders that the group has not committed."""
        from aiokafka import TopicPartition

        places = [TopicPartition("orders-orders", partition) for partition in range(ORDERS)]
        async with admin_client(Connection(bootstrap=self.bootstrap)) as admin, reader(Connection(bootstrap=self.bootstrap)) as consumer:
            committed = await admin.committed_offsets("orders", None)
            ends = await consumer.end_offsets(places)
        return sum(ends[place] - (committed.get(place) or 0) for place in places)

    def close(self) -> None:
        for name in list(self.instances):
            self.kill(name)
        for process in (self.recorder, self.worker):
            if process is not None:
                process.send_signal(signal.SIGTERM)
                process.wait()


async def make_topics(bootstrap: str) -> None:
    from aiokafka.admin import NewTopic

    counts = {"orders-orders": ORDERS, "orders-by-customer": CUSTOMERS, "orders-clicks": CLICKS, "orders-clicks-out": CLICKS}
    async with admin_client(Connection(bootstrap=bootstrap)) as admin:
        await admin.create_topics([NewTopic(name, count, 1) for name, count in counts.items()])


async def preload(bootstrap: str, count: int) -> None:
    """Orders, in batches; partitions by their weights."""
    async with writer(Connection(bootstrap=bootstrap), max_batch_size=BATCH_BYTES, request_timeout_ms=60_000) as producer:
        await producer.partitions_for("orders-orders")
        for partition, weight in enumerate(WEIGHTS):
            most, keys = int(count * weight / sum(WEIGHTS)), int(KEYS * weight / sum(WEIGHTS))
            for first in range(0, most, RECORDS_AT_ONCE):
                numbers = range(first, min(most, first + RECORDS_AT_ONCE))
                records: Iterator[Unsent] = ((b"%d-%d" % (partition, number % keys), VALUE, [], None) for number in numbers)
                await acknowledged(producer.send_batches(TopicPartition("orders-orders", partition), records))


async def feed(bootstrap: str, stopped: asyncio.Event) -> None:
    """Orders and clicks at a steady rate until `stopped`."""
    drawn = random.Random(7)
    async with writer(Connection(bootstrap=bootstrap)) as producer:
        began = time.monotonic()
        orders = clicks = 0
        while not stopped.is_set():
            passed = time.monotonic() - began
            while orders < passed * ORDERS_PER_S:
                partition = drawn.choices(range(ORDERS), WEIGHTS)[0]
                await producer.send("orders-orders", VALUE, key=b"%d-%d" % (partition, drawn.randrange(20_000)), partition=partition)
                orders += 1
            while clicks < passed * CLICKS_PER_S:
                await producer.send("orders-clicks", b"click", key=b"k", partition=clicks % CLICKS)
                clicks += 1
            await asyncio.sleep(0.02)


async def scale_out(run: Run) -> None:
    def two_join() -> None:
        run.start("i4")
        run.start("i5")

    run.start("i1")
    run.start("i2")
    await run.until_caught_up()
    await asyncio.sleep(20)
    await run.act("A1 one joins", lambda: run.start("i3"))
    await run.act("A2 two join", two_join)
    await run.act("A3 one killed", lambda: run.kill("i2"))
    await run.act("A4 it is back", lambda: run.start("i2"))
    await run.act("A5 one closes", lambda: run.end("i3", "close"))


async def rolling(run: Run) -> None:
    for name in ("i1", "i2", "i3"):
        run.start(name)
    await run.until_caught_up()
    await asyncio.sleep(20)

    def bounce(name: str, pause_s: float) -> Callable[[], Awaitable[None]]:
        async def bounced() -> None:
            run.end(name, "close")
            await asyncio.sleep(pause_s)
            run.start(name)

        return bounced

    async def loses_its_disk() -> None:
        run.kill("i2")
        await asyncio.sleep(3)
        run.start("i2", keeps=False)

    await run.act("B1 bounce, 2 s", bounce("i1", 2))
    await run.act("B2 bounce, 10 s", bounce("i2", 10))
    await run.act("B3 bounce, 18 s", bounce("i3", 18))
    await run.act("B4 disk loss", loses_its_disk)
    await run.act("B5 one leaves", lambda: run.end("i3", "leave"))


async def play(run: Run, scenario: str, record: Path | None) -> list[Window]:
    await make_topics(run.bootstrap)
    await preload(run.bootstrap, run.preload)
    run.lead()
    if record is not None:
        run.record(record)
    stopped = asyncio.Event()
    feeding = asyncio.create_task(feed(run.bootstrap, stopped))
    try:
        await (scale_out if scenario == "scale-out" else rolling)(run)
        end_ms = int(time.time() * 1_000)
        await asyncio.sleep(1)
    finally:
        stopped.set()
        await asyncio.gather(feeding, return_exceptions=True)
        run.close()
    return windows(read_spans(run.folder.glob("*.samples")), run.marks, end_ms)


def table(found: list[Window], of: str) -> str:
    lines = [f"| {of} | silent task-s | longest s | changes of owner |", "|---|--:|--:|--:|"]
    lines += [f"| {each.name} | {each.silent_s:.1f} | {each.longest_s:.1f} | {each.changes} |" for each in found]
    total = sum(each.silent_s for each in found), max(each.longest_s for each in found), sum(each.changes for each in found)
    return "\n".join([*lines, f"| **all** | {total[0]:.1f} | {total[1]:.1f} | {total[2]} |"])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.streams_rounds", description=__doc__)
    parser.add_argument("scenario", choices=("scale-out", "rolling"))
    parser.add_argument("--leader", choices=("equipoise", "stock"), default="equipoise")
    parser.add_argument("--preload", type=int, default=2_000_000, help="orders before the application starts")
    parser.add_argument("--step-s", type=float, default=120.0, help="time for each action")
    parser.add_argument("--kill-worker", action="store_true", help="kill -9 before the second action, and a new one half of its time later")
    parser.add_argument("--supervised", action="store_true", help="each under `equipoise witness --group orders --client-id NAME-StreamThread-*`")
    parser.add_argument("--record", type=Path, help="record the group there, for `equipoise import` and `what-if`")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--keep", type=Path, help="a folder for samples and logs")
    given = parser.parse_args()
    folder = given.keep or Path(tempfile.mkdtemp(prefix="equipoise-rounds-"))
    folder.mkdir(parents=True, exist_ok=True)
    settings = {"group.initial.rebalance.delay.ms": "3000", "log.cleaner.enable": "false"}
    with brokers.Brokers(**settings) as started:
        standbys = 1 if given.scenario == "rolling" else 0
        run = Run(
            given.leader,
            standbys,
            given.preload,
            given.step_s,
            folder,
            started.bootstrap,
            kills_worker=given.kill_worker,
            supervised=given.supervised,
        )
        found = asyncio.run(play(run, given.scenario, given.record))
    print(table(found, f"{given.scenario}, {given.leader}"))
    print(f"load average {os.getloadavg()[0]:.1f}")
    if given.json:
        given.json.write_text(json.dumps([{"name": w.name, "silent_s": w.silent_s, "longest_s": w.longest_s, "changes": w.changes} for w in found]))
    if given.keep is None:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
