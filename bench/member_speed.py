"""`python -m bench.member_speed`: how fast one member is, beside a plain aiokafka loop in the same
run on the same broker.

For each number of tasks, guarantee and system: one process drains the same preloaded records,
counts them by key and sends one output for each. Rates go from the first handled record to the one
at 95 %; every run is recounted from its output topic. Then it idles, and gets records at steady
rates: latencies go from append to append. The start is over when a record of each partition was
handled; equipoise's group is new and waits for no other members. Compare the lines of one run, not
those of two machines.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import resource
import sys
import tempfile
import time
import uuid
from collections import defaultdict
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

import attrs
import click

from bench.live import PATIENCE_S, WorkerProcess, broker, quantile
from equipoise import Member, Record, TaskContext
from equipoise.events.log.kafka.connection import Connection
from equipoise.events.log.kafka.opening import admin_client, reader, writer
from equipoise.worker.settings import WorkerSettings
from tests.groups import configured

KEYS = 5_000
"""Per partition."""
VALUE = bytes(150)
MOST_OF = 0.95
IDLE_S = 5.0
LATENCY_S = 10.0
SYSTEMS = ("aiokafka", "equipoise")
BATCH_BYTES = 256 * 1024


@attrs.frozen
class Run:
    """One process of one system: `tasks` partitions, `records` to drain."""

    system: str
    bootstrap: str
    prefix: str
    tasks: int
    exactly_once: bool
    records: int
    output: bool
    folder: str

    @property
    def name(self) -> str:
        """Of its group; its topics begin with it."""
        return f"{self.prefix}-{self.system}-{self.tasks}-{'eos' if self.exactly_once else 'alo'}"

    @property
    def out(self) -> str:
        return f"{self.name}-out"


@attrs.define
class Meter:
    """Counts handled records, in the process that handles them."""

    last: int
    """The record at which a drain is measured."""
    handled: int = 0
    began_s: float = 0.0
    began_cpu_s: float = 0.0
    took_s: float = 0.0
    cpu_s: float = 0.0
    unseen: set[int] = attrs.field(factory=set)
    """Partitions of which no record was handled yet."""
    since_s: float = attrs.field(factory=time.monotonic)
    start_s: float = 0.0
    """Until a record of each partition was handled."""

    def count(self, partition: int) -> None:
        self.handled += 1
        if self.unseen:
            self.unseen.discard(partition)
            self.start_s = time.monotonic() - self.since_s
        if self.handled == 1:
            self.began_s, self.began_cpu_s = time.monotonic(), time.process_time()
        elif self.handled == self.last:
            self.took_s, self.cpu_s = time.monotonic() - self.began_s, time.process_time() - self.began_cpu_s


# ------------------------------------------------------------------------------------------ systems


async def _be_equipoise(run: Run, meter: Meter, serve: Callable[[], Awaitable[None]]) -> None:
    async def handle(record: Record, context: TaskContext) -> None:
        state = context.state
        count = int(state.get(record.key) or b"0") + 1
        state.put(record.key, b"%d" % count)
        if run.output:
            context.send(run.out, b"%d %d" % (count, record.timestamp_ms), key=record.key, partition=record.partition)
        meter.count(record.partition)

    member = Member(
        run.name, handle, sources=f"{run.prefix}-{run.tasks}-in", state=f"{run.name}-log", member_id="m",
        connection=Connection(bootstrap=run.bootstrap),
        prefix=run.prefix, guarantee="exactly_once" if run.exactly_once else "at_least_once", state_directory=run.folder,
        group_config=configured(initial_delay_ms=0),
    )  # fmt: skip
    async with member:
        await serve()


async def _be_aiokafka(run: Run, meter: Meter, serve: Callable[[], Awaitable[None]]) -> None:
    """One consumer and one producer, record by record; commits each second, or each 100 ms in a
    transaction.
    """
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

    isolation = "read_committed" if run.exactly_once else "read_uncommitted"
    consumer = AIOKafkaConsumer(
        bootstrap_servers=run.bootstrap, group_id=run.name, enable_auto_commit=False, auto_offset_reset="earliest", isolation_level=isolation
    )
    producer = AIOKafkaProducer(bootstrap_servers=run.bootstrap, enable_idempotence=True, transactional_id=run.name if run.exactly_once else None)
    await producer.start()
    await consumer.start()
    consumer.assign([TopicPartition(f"{run.prefix}-{run.tasks}-in", number) for number in range(run.tasks)])
    counts: dict[tuple[int, bytes], int] = defaultdict(int)

    async def loop() -> None:
        interval_s = 0.1 if run.exactly_once else 1.0
        while True:
            end_s, positions, sent = time.monotonic() + interval_s, {}, None
            if run.exactly_once:
                await producer.begin_transaction()
            while (left_s := end_s - time.monotonic()) > 0:
                for place, records in (await consumer.getmany(timeout_ms=int(left_s * 1_000) + 1, max_records=1_000)).items():
                    for record in records:
                        counts[record.partition, record.key] += 1
                        if run.output:
                            value = b"%d %d" % (counts[record.partition, record.key], record.timestamp)
                            sent = await producer.send(run.out, value, key=record.key, partition=record.partition)
                        meter.count(record.partition)
                    positions[place] = records[-1].offset + 1
            if run.exactly_once:
                if positions:
                    await producer.send_offsets_to_transaction(positions, run.name)
                await producer.commit_transaction()
            elif positions:
                if sent is not None:
                    await producer.flush()
                await consumer.commit(positions)

    looping = asyncio.ensure_future(loop())
    await serve()
    looping.cancel()
    await asyncio.gather(looping, return_exceptions=True)
    await consumer.stop()
    await producer.stop()


def _be(run: Run, pipe: Pipe) -> None:
    """A process of the system. Sends its meter when asked for it, until asked to end."""
    meter = Meter(int(run.records * MOST_OF), unseen=set(range(run.tasks)))

    async def serve() -> None:
        while True:
            if pipe.poll():
                if pipe.recv() == "end":
                    return
                usage = resource.getrusage(resource.RUSAGE_SELF)
                pipe.send((meter, time.process_time(), usage.ru_maxrss / 1_024, _connections(run.bootstrap)))
            await asyncio.sleep(0.05)

    asyncio.run({"equipoise": _be_equipoise, "aiokafka": _be_aiokafka}[run.system](run, meter, serve))


def _connections(bootstrap: str) -> int:
    """Connections of this process to the broker."""
    port = f":{int(bootstrap.rpartition(':')[2]):04X}"
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    theirs = {fields[9] for fields in lines if fields[2].endswith(port) and fields[3] == "01"}
    own = {os.readlink(each) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()}
    return sum(f"socket:[{inode}]" in own for inode in theirs)


# ------------------------------------------------------------------------------------------ the run


async def _make_topics(connection: Connection, run: Run, *, with_input: bool) -> None:
    from aiokafka.admin import NewTopic

    dated = {"message.timestamp.type": "LogAppendTime"}
    topics = {run.out: dated, f"{run.name}-log": {"cleanup.policy": "compact"}, **({f"{run.prefix}-{run.tasks}-in": dated} if with_input else {})}
    async with admin_client(connection) as admin:
        await admin.create_topics([NewTopic(name, run.tasks, 1, topic_configs=configs) for name, configs in topics.items()])


async def _preload(connection: Connection, run: Run) -> None:
    async with writer(connection, max_batch_size=BATCH_BYTES) as client:
        producer: Any = client
        topic = f"{run.prefix}-{run.tasks}-in"
        for partition in range(run.tasks):
            number, count = 0, run.records // run.tasks
            while number < count:
                batch = producer.create_batch()
                while number < count and batch.append(key=b"%03d-%06d" % (partition, number % KEYS), value=VALUE, timestamp=None) is not None:
                    number += 1
                await (await producer.send_batch(batch, topic, partition=partition))


async def _feed(connection: Connection, run: Run, per_s: float) -> None:
    """Sends records at a steady rate for LATENCY_S."""
    async with writer(connection) as producer:
        began_s = time.monotonic()
        for number in range(int(per_s * LATENCY_S)):
            partition = number % run.tasks
            await producer.send(f"{run.prefix}-{run.tasks}-in", VALUE, key=b"%03d-%06d" % (partition, number % KEYS), partition=partition)
            ahead_s = number / per_s - (time.monotonic() - began_s)
            if ahead_s > 0:
                await asyncio.sleep(ahead_s)


async def _outputs(connection: Connection, run: Run, froms: dict[Any, int]) -> tuple[list[int], dict[Any, int], dict[bytes, int]]:
    """The outputs from offsets on: latencies in ms, ends, and the last count of each key."""
    from aiokafka import TopicPartition

    latencies: list[int] = []
    counts: dict[bytes, int] = {}
    async with reader(connection, read_committed=True) as consumer:
        places = [TopicPartition(run.out, number) for number in range(run.tasks)]
        consumer.assign(places)
        ends = await consumer.end_offsets(places)
        for place in places:
            consumer.seek(place, froms.get(place, 0))
        for place in places:
            while await consumer.position(place) < ends[place]:
                for records in (await consumer.getmany(timeout_ms=500)).values():
                    for record in records:
                        count, appended_ms = map(int, (record.value or b"").split())
                        latencies.append(record.timestamp - appended_ms)
                        counts[record.key or b""] = count
    return latencies, ends, counts


class Process:
    """One process of a system, from `start` on."""

    def __init__(self, run: Run) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=_be, args=(run, theirs))
        self.process.start()

    def ask(self) -> tuple[Meter, float, float, int]:
        self._pipe.send("meter")
        assert self._pipe.poll(PATIENCE_S), "it does not answer"
        answer: tuple[Meter, float, float, int] = self._pipe.recv()
        return answer

    def end(self) -> None:
        self._pipe.send("end")
        self.process.join(PATIENCE_S)


async def measure(run: Run, rates: tuple[int, ...]) -> str:
    """Runs one system, and returns its row. Raises AssertionError when its counts are wrong."""
    connection = Connection(bootstrap=run.bootstrap)
    began_s = time.monotonic()
    process = Process(run)
    while (found := process.ask())[0].handled < run.records:
        assert time.monotonic() - began_s < 2 * PATIENCE_S, f"{run.name}: {found[0]}"
        await asyncio.sleep(0.2)
    meter = found[0]
    await asyncio.sleep(2.0)
    cells = [f"{MOST_OF * run.records / meter.took_s / 1_000:.1f}", f"{meter.cpu_s / (MOST_OF * run.records / 100_000):.2f}"]
    ends: dict[Any, int] = {}
    if run.output:
        latencies, ends, counts = await _outputs(connection, run, {})
        assert len(latencies) == sum(counts.values()) == run.records, f"{run.name}: {len(latencies)} outputs, counts of {sum(counts.values())}"
    before = process.ask()[1]
    await asyncio.sleep(IDLE_S)
    _, after, rss_mb, connections = process.ask()
    cells += [f"{(after - before) / IDLE_S * 100:.1f}", f"{rss_mb:.0f}", f"{connections}", f"{meter.start_s:.1f}"]
    for rate in rates:
        await asyncio.sleep(1.0)
        before, wall_s = process.ask()[1], time.monotonic()
        await _feed(connection, run, rate)
        cpu = (process.ask()[1] - before) / (time.monotonic() - wall_s)
        await asyncio.sleep(2.0)
        latencies, ends, _ = await _outputs(connection, run, ends)
        assert len(latencies) == int(rate * LATENCY_S), f"{run.name}: {len(latencies)} outputs at {rate}/s"
        cells.append(f"{quantile(latencies, 0.5)} / {quantile(latencies, 0.99)}, {cpu * 100:.0f} %")
    process.end()
    return f"| {run.system} | {' | '.join(cells)} |"


@click.command()
@click.option("--tasks", default="6,26,100", show_default=True)
@click.option("--guarantees", default="alo,eos", show_default=True)
@click.option("--systems", default=",".join(SYSTEMS), show_default=True)
@click.option("--records", default=400_000, show_default=True, help="To drain.")
@click.option("--rates", default="200,2000", show_default=True, help="Records a second, for latencies; empty: none.")
@click.option("--no-output", is_flag=True, help="State alone; nothing is recounted.")
def main(tasks: str, guarantees: str, systems: str, records: int, rates: str, no_output: bool) -> None:
    """Measures one member beside a plain aiokafka loop."""
    prefix = f"speed{uuid.uuid4().hex[:6]}"
    steady = tuple(int(each) for each in rates.split(",") if each)
    with broker() as bootstrap, tempfile.TemporaryDirectory() as folder:
        settings = WorkerSettings(bootstrap=bootstrap, prefix=prefix, partitions=1)
        with WorkerProcess(settings, "--partitions", "1"):
            for count in map(int, tasks.split(",")):
                total = 0
                for guarantee in guarantees.split(","):
                    print(f"\n{count} tasks, {guarantee}")
                    latency = "".join(f" at {rate}/s p50 / p99 ms, CPU |" for rate in steady)
                    print(f"| | k records/s | CPU s per 100k | idle CPU % | peak RSS MB | connections | start s |{latency}")
                    print("|---|" + "---|" * (6 + len(steady)))
                    for system in systems.split(","):
                        has_input, total = total > 0, total or records // count * count
                        run = Run(system, bootstrap, prefix, count, guarantee == "eos", total, not no_output, str(Path(folder) / system))
                        connection = Connection(bootstrap=bootstrap)
                        asyncio.run(_make_topics(connection, run, with_input=not has_input))
                        if not has_input:
                            asyncio.run(_preload(connection, run))
                        print(asyncio.run(measure(run, () if no_output else steady)), flush=True)
                        total += 0 if no_output else sum(int(rate * LATENCY_S) for rate in steady)


if __name__ == "__main__":
    main()
    sys.exit(0)
