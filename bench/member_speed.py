"""`python -m bench.member_speed`: how fast one member is, beside one process of its peers in the
same run on the same broker: a plain aiokafka loop, Faust, Kafka Streams with one thread, and a
script that shows the ceiling.

Each system gets a topic of its own with the same records, counts them by key and sends one output
for each. All is seen from outside: rates and latencies are times between appends, by the broker's
clock; CPU, memory and connections are the process's, as the kernel counts them. Every run is
recounted: each record has one output, with the right count. The start takes from the process's
start to the first output of each partition, and rates are taken after that; equipoise's group waits
for no other members. A member runs once before anything is measured, also at a steady rate: a
broker that has just started compiles its code, and is slow. Compare the lines of one run, not those
of two machines, and those in which the generator took as much CPU.

How long a new group takes to run its tasks is measured apart, with few records in each partition:
tasks that start behind others' records wait for these as well.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import sys
import tempfile
import time
import uuid
from bisect import bisect_left
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import click

from bench.__main__ import misses_goal
from bench.live import PATIENCE_S, broker, cpu_seconds, quantile
from bench.peers.apps.given import KEYS
from bench.peers.feed import BATCH_BYTES, Load, make_topics
from bench.peers.systems import (
    Ceiling,
    Equipoise,
    EquipoiseInBatches,
    EquipoiseInWindows,
    Faust,
    KafkaStreams,
    KafkaStreamsInWindows,
    KafkaStreamsLinger0,
    KafkaStreamsLinger5,
    Loop,
    System,
)
from bench.results import conditions, write_csv
from equipoise.kafka.client import TopicPartition, Unsent, acknowledged
from equipoise.kafka.connection import Connection
from equipoise.kafka.started_clients import reader, writer

VALUE = bytes(150)
FROM, TO = 0.1, 0.95
"""Parts of a drain between which its rate is taken, when all tasks run: the first records find cold
processes.
"""
RECORDS_PER_TASK = 12_000
"""At least, so that there are records left when all tasks run."""
IDLE_S = 20.0
LATENCY_S = 10.0
FEED_S = 0.003
"""The generator sends what is due in such steps: a request for each record would take much of the
machine from the system.
"""
LAST_COMMIT_S = 2.0
"""Outputs are there before the commit is over."""
GOAL_RATE, GOAL_P50_MS, GOAL_P99_MS = 2_000, 10, 50
WARM_UP_RECORDS = 400_000
MOST_WARM_UPS = 24
WARM = 0.97
"""The broker is warm once the machine's CPU at GOAL_RATE was not below this part of the least,
three times.
"""
START_RECORDS = 10
"""In each partition, where only the start counts."""
START_GOALS_S = {6: 1.5, 400: 6.0}
"""Tasks of a new group -> when all must run."""
SLOW_MS = 50
SLOW_S = 12.0
SLOW_TASKS = 26
LOOK_S = 0.1
SYSTEMS: dict[str, type[System]] = {
    "loop": Loop,
    "equipoise": Equipoise,
    "windows": EquipoiseInWindows,
    "batches": EquipoiseInBatches,
    "streams": KafkaStreams,
    "streams-linger-5": KafkaStreamsLinger5,
    "streams-linger-0": KafkaStreamsLinger0,
    "streams-windows": KafkaStreamsInWindows,
    "faust": Faust,
    "ceiling": Ceiling,
}
FAUST_PART = 20
"""Faust gets this part of the records."""


@attrs.frozen
class Output:
    """An output record: of which input record, and the count of its key."""

    at_ms: int
    partition: int
    offset: int
    count: int


@attrs.frozen(kw_only=True)
class Latency:
    """Waits from append to append at a steady rate, and the CPU that the system and the generator
    used meanwhile. The generator does the same work for each system: it takes more when the machine
    is slower, as one that shares its cores with others is at times.
    """

    p50_ms: float
    p99_ms: float
    cpu_percent: float
    generator_percent: float

    def cell(self) -> str:
        return f"{self.p50_ms:.0f} / {self.p99_ms:.0f}, {self.cpu_percent:.0f} %, {self.generator_percent:.0f} %"


@attrs.frozen(kw_only=True)
class Speed:
    """What one system does. `latencies`: rate in records a second -> waits."""

    label: str
    per_s: float
    cpu_s: float
    """Per 100,000 records."""
    idle_percent: float
    rss_mb: float
    connections: int
    start_s: float
    latencies: dict[int, Latency]

    def columns(self) -> dict[str, object]:
        """What was measured, by name."""
        waits = {
            f"{name}_at_{rate}_per_s": round(value, 1)
            for rate, each in self.latencies.items()
            for name, value in (("p50_ms", each.p50_ms), ("p99_ms", each.p99_ms), ("generator_cpu_percent", each.generator_percent))
        }
        return {
            "records_per_s": round(self.per_s),
            "cpu_s_per_100k": round(self.cpu_s, 2),
            "idle_cpu_percent": round(self.idle_percent, 1),
            "peak_rss_mb": round(self.rss_mb),
            "connections": self.connections,
            "start_s": round(self.start_s, 1),
            **waits,
        }

    def row(self) -> str:
        cells = (
            f"{self.per_s / 1_000:.1f}",
            f"{self.cpu_s:.2f}",
            f"{self.idle_percent:.1f}",
            f"{self.rss_mb:.0f}",
            str(self.connections),
            f"{self.start_s:.1f}",
            *(each.cell() for each in self.latencies.values()),
        )
        return f"| {self.label} | {' | '.join(cells)} |"


def best_of(rounds: Sequence[Speed]) -> Speed:
    """The best of each measure: what else runs on a machine can only slow a system. Of memory and
    connections the most.
    """
    waits = {rate: min((each.latencies[rate] for each in rounds), key=lambda of: of.p50_ms) for rate in rounds[0].latencies}
    return Speed(
        label=rounds[0].label,
        per_s=max(each.per_s for each in rounds),
        cpu_s=min(each.cpu_s for each in rounds),
        idle_percent=min(each.idle_percent for each in rounds),
        rss_mb=max(each.rss_mb for each in rounds),
        connections=max(each.connections for each in rounds),
        start_s=min(each.start_s for each in rounds),
        latencies=waits,
    )


class Topics:
    """The topics of one system: filled, fed and read."""

    def __init__(self, system: System) -> None:
        self._system, self._connection, self._tasks = system, Connection(bootstrap=system.bootstrap), system.load.tasks
        self.written = [0] * self._tasks
        """Records in each partition of the input."""
        self._read: dict[int, int] = {}

    async def make(self, records: int) -> None:
        system = self._system
        await make_topics(self._connection, system.load, input=system.input, output=system.output, changelog=system.changelog)
        async with writer(self._connection, max_batch_size=BATCH_BYTES) as producer:
            await producer.partitions_for(system.input)
            for partition in range(self._tasks):
                count = records // self._tasks
                await acknowledged(producer.send_batches(TopicPartition(system.input, partition), self._unsent(partition, count)))

    async def feed(self, per_s: float) -> None:
        """Sends records at a steady rate for LATENCY_S."""
        async with writer(self._connection) as producer:
            await producer.partitions_for(self._system.input)
            began_s, number, count = time.monotonic(), 0, int(per_s * LATENCY_S)
            while number < count:
                due = min(count, int((time.monotonic() - began_s) * per_s) + 1)
                for partition in (each % self._tasks for each in range(number, due)):
                    producer.send_batches(TopicPartition(self._system.input, partition), [(self._key(partition), VALUE, [], None)])
                    self.written[partition] += 1
                number = due
                await asyncio.sleep(FEED_S)

    def _unsent(self, partition: int, count: int) -> Iterator[Unsent]:
        for _ in range(count):
            yield self._key(partition), VALUE, [], None
            self.written[partition] += 1

    def _key(self, partition: int) -> bytes:
        return b"%03d-%06d" % (partition, self.written[partition] % KEYS)

    async def until_written(self, count: int, pid: int) -> list[tuple[int, float]]:
        """Waits until the output has so many records, as long as more of them come. Returns how
        many it had (with the markers of transactions) when the process had used how many CPU
        seconds.
        """
        seen: list[tuple[int, float]] = []
        end_s = 0.0
        async with reader(self._connection) as consumer:
            while not seen or seen[-1][0] < count:
                written = sum((await consumer.end_offsets(_partitions(self._system.output, self._tasks))).values())
                if not seen or written > seen[-1][0]:
                    end_s = time.monotonic() + PATIENCE_S
                assert time.monotonic() < end_s, f"{self._system.label}: {seen[-1:]} of {count} outputs; see {self._system.folder}"
                seen.append((written, cpu_seconds(pid)))
                await asyncio.sleep(LOOK_S)
        return seen

    async def outputs(self, count: int) -> list[Output]:
        """The next outputs. Raises AssertionError when a record has none or two, or a wrong
        count.
        """
        found: list[Output] = []
        async with self._records(self._system.output, self._read) as records:
            async for record in records:
                partition, offset, _, number = record.value.split()
                found.append(Output(record.timestamp_ms, int(partition), int(offset), int(number)))
                self._read[record.partition] = record.offset + 1
                if len(found) == count:
                    break
        wrong = [each for each in found if each.count != each.offset // KEYS + 1]
        assert not wrong, f"{self._system.label}: wrong counts, as {wrong[0]}"
        assert len({(each.partition, each.offset) for each in found}) == count, f"{self._system.label}: {count} outputs, but some twice"
        return found

    async def appended(self, since: list[int]) -> dict[tuple[int, int], int]:
        """(partition, offset) of an input -> when it was appended, from these offsets on."""
        times: dict[tuple[int, int], int] = {}
        count = sum(self.written) - sum(since)
        async with self._records(self._system.input, dict(enumerate(since))) as records:
            async for record in records:
                times[record.partition, record.offset] = record.timestamp_ms
                if len(times) == count:
                    break
        return times

    @asynccontextmanager
    async def _records(self, topic: str, since: dict[int, int]) -> AsyncIterator[AsyncIterator[Any]]:
        async def each() -> AsyncIterator[Any]:
            end_s = time.monotonic() + PATIENCE_S
            while True:
                assert time.monotonic() < end_s, f"{self._system.label}: {topic} has fewer records than expected"
                for records in (await consumer.getmany(timeout_ms=500)).values():
                    for record in records:
                        yield record

        async with reader(self._connection, read_committed=True) as consumer:
            consumer.assign(_partitions(topic, self._tasks))
            for place in _partitions(topic, self._tasks):
                consumer.seek(place, since.get(place.partition, 0))
            yield each()


def _partitions(topic: str, count: int) -> list[Any]:
    from aiokafka import TopicPartition

    return [TopicPartition(topic, number) for number in range(count)]


@attrs.frozen
class Run:
    """A process of a system that runs: with which topics, and since when."""

    topics: Topics
    pid: int
    began_ms: float

    def start_s(self, outputs: Sequence[Output]) -> float:
        """From the process's start to the first output of the last partition."""
        first = {each.partition: each.at_ms for each in reversed(outputs)}
        return (max(first.values()) - self.began_ms) / 1_000


@asynccontextmanager
async def running(system: System, records: int) -> AsyncIterator[Run]:
    """One process of a system whose input has so many records; killed at the end."""
    topics = Topics(system)
    await topics.make(records)
    system.open()
    try:
        began_ms = time.time() * 1_000
        instance = system.start("m")
        try:
            yield Run(topics, instance.process.pid, began_ms)
        finally:
            instance.kill()
    finally:
        system.close()


async def speed_of(system: System, records: int, rates: tuple[int, ...]) -> Speed:
    """Runs one system. Raises AssertionError when its outputs are wrong."""
    async with running(system, records) as run:
        topics, pid = run.topics, run.pid
        total = sum(topics.written)
        seen = await topics.until_written(total, pid)
        await asyncio.sleep(LAST_COMMIT_S)
        over_cpu_s = cpu_seconds(pid)
        drained = await topics.outputs(total)
        times, start_s = sorted(each.at_ms for each in drained), run.start_s(drained)
        begin, end = max(int(FROM * total), bisect_left(times, run.began_ms + start_s * 1_000)), int(TO * total)
        assert begin < end, f"{system.label}: nothing was left when all tasks ran; take more --records"
        low, low_cpu_s = next(each for each in seen if each[0] >= begin)
        idle_s = cpu_seconds(pid)
        await asyncio.sleep(IDLE_S)
        idle_s = cpu_seconds(pid) - idle_s
        rss_mb, connections = _peak_rss_mb(pid), _connections(pid, system.bootstrap)
        latencies = {rate: await _latency(topics, pid, rate) for rate in rates}
    return Speed(
        label=system.label,
        per_s=(end - begin) / ((times[end] - times[begin]) / 1_000),
        cpu_s=(over_cpu_s - low_cpu_s) / max(1, total - low) * 100_000,
        idle_percent=idle_s / IDLE_S * 100,
        rss_mb=rss_mb,
        connections=connections,
        start_s=start_s,
        latencies=latencies,
    )


async def _latency(topics: Topics, pid: int, rate: int) -> Latency:
    await asyncio.sleep(1.0)
    since, cpu_s, own_s, began_s = list(topics.written), cpu_seconds(pid), time.process_time(), time.monotonic()
    await topics.feed(rate)
    cpu, own, took_s = cpu_seconds(pid) - cpu_s, time.process_time() - own_s, time.monotonic() - began_s
    outputs = await topics.outputs(sum(topics.written) - sum(since))
    appended = await topics.appended(since)
    waits = [each.at_ms - appended[each.partition, each.offset] for each in outputs]
    return Latency(p50_ms=quantile(waits, 0.5), p99_ms=quantile(waits, 0.99), cpu_percent=cpu / took_s * 100, generator_percent=own / took_s * 100)


async def warm_up(system: System, records: int) -> None:
    """Runs one system until the machine does not get less busy any more: a broker compiles its code
    while it works, which on a slow machine takes minutes and most of the CPU.
    """
    async with running(system, records) as run:
        topics = run.topics
        await topics.until_written(sum(topics.written), run.pid)
        await topics.outputs(sum(topics.written))
        least_s, rounds, best = math.inf, 0, 0
        while rounds < min(best + 3, MOST_WARM_UPS):
            before, before_s = sum(topics.written), _busy_seconds()
            await topics.feed(GOAL_RATE)
            busy_s = _busy_seconds() - before_s
            await topics.outputs(sum(topics.written) - before)
            rounds += 1
            if busy_s < WARM * least_s:
                least_s, best = busy_s, rounds


async def start_of(system: System) -> float:
    """Seconds in which all tasks of a new group run, each with START_RECORDS records."""
    async with running(system, START_RECORDS * system.load.tasks) as run:
        total = sum(run.topics.written)
        await run.topics.until_written(total, run.pid)
        return run.start_s(await run.topics.outputs(total))


async def slow_of(system: System) -> float:
    """Records a second with a handler that waits SLOW_MS for each record."""
    async with running(system, int(SLOW_TASKS * SLOW_S * 2 * 1_000 / SLOW_MS)) as run:
        await run.topics.until_written(SLOW_TASKS, run.pid)
        await asyncio.sleep(SLOW_S)
        async with reader(Connection(bootstrap=system.bootstrap)) as consumer:
            ends = await consumer.end_offsets(_partitions(system.output, SLOW_TASKS))
        times = sorted(each.at_ms for each in await run.topics.outputs(sum(ends.values())))
    times = [each for each in times if each > times[0] + 2_000]  # all tasks run by then
    return len(times) / ((times[-1] - times[0]) / 1_000)


def _busy_seconds() -> float:
    """CPU seconds that all processes of the machine have used."""
    user, nice, system, _, _, *interrupts = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:8])
    return (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")


def _peak_rss_mb(pid: int) -> float:
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) / 1_024


def _connections(pid: int, bootstrap: str) -> int:
    """Connections of the process to the broker."""
    port = f":{int(bootstrap.rpartition(':')[2]):04X}"
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    theirs = {fields[9] for fields in lines if fields[2].endswith(port) and fields[3] == "01"}
    own = {os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir() if each.is_symlink()}
    return sum(f"socket:[{inode}]" in own for inode in theirs)


def goals(tasks: int, speeds: dict[str, Speed]) -> list[tuple[str, float, str]]:
    """What was measured, the number, and its goal: those of the systems that ran."""
    rows: list[tuple[str, float, str]] = []

    def beside(name: str, peer: str, goal: str) -> None:
        if name in speeds and peer in speeds:
            ours, theirs = speeds[name], speeds[peer]
            rows.append((f"records/s: {ours.label} / {theirs.label}", ours.per_s / theirs.per_s, f"goal: at least {goal}"))

    beside("equipoise", "loop", "1.5")
    beside("equipoise", "streams", "0.8")
    beside("windows", "equipoise", "0.7")
    beside("windows", "streams-windows", "1")
    beside("batches", "streams", "1.2")
    beside("batches", "ceiling", "0.7")
    if "equipoise" in speeds:
        ours = speeds["equipoise"]
        rows.append(("connections", ours.connections, "goal: at most 4"))
        rows.append(("idle CPU, %", ours.idle_percent, f"goal: at most {1 if tasks <= 100 else 3}"))
        if "loop" in speeds:
            rows.append(("CPU of a record: equipoise / aiokafka loop", ours.cpu_s / speeds["loop"].cpu_s, "goal: at most 1"))
            rows.append(("peak RSS: equipoise / aiokafka loop", ours.rss_mb / speeds["loop"].rss_mb, "goal: at most 2"))
    for ours in (speeds[key] for key in ("equipoise", "batches") if key in speeds):
        if waits := ours.latencies.get(GOAL_RATE):
            rows.append((f"ms at {GOAL_RATE}/s, p50: {ours.label}", waits.p50_ms, f"goal: at most {GOAL_P50_MS}"))
            rows.append((f"ms at {GOAL_RATE}/s, p99: {ours.label}", waits.p99_ms, f"goal: at most {GOAL_P99_MS}"))
    return rows


def tell(rows: list[tuple[str, float, str]]) -> bool:
    """Prints the rows. Whether one misses its goal."""
    missed = False
    for measure, value, goal in rows:
        misses = misses_goal(value, goal)
        missed = missed or misses
        print(f"  {measure}: {value:.2f} ({goal}){', MISSED' if misses else ''}", flush=True)
    return missed


@click.command()
@click.option("--tasks", default="6,26,100,400", show_default=True, help="A table for each number; empty: none.")
@click.option("--guarantees", default="alo,eos", show_default=True)
@click.option("--systems", default=",".join(SYSTEMS), show_default=True)
@click.option("--records", default=2_400_000, show_default=True, help=f"To drain, at least {RECORDS_PER_TASK:,} a task; Faust gets a part of them.")
@click.option("--rates", default="200,2000", show_default=True, help="Records a second, for latencies; empty: none.")
@click.option("--rounds", default=1, show_default=True, help="How often to measure each system, in turn; the best figures count.")
@click.option("--starts/--no-starts", default=True, show_default=True, help="Also how soon new groups run all their tasks.")
@click.option("--slow/--no-slow", default=True, show_default=True, help="Also with a handler that waits.")
@click.option("--keep", type=click.Path(path_type=Path, file_okay=False), help="Folder for logs and states; default: they are removed.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="CSV file for every run, with the settings of each system.")
def main(
    tasks: str, guarantees: str, systems: str, records: int, rates: str, rounds: int, starts: bool, slow: bool, keep: Path | None, out: Path | None
) -> None:
    """Measures one member beside its peers. Exits with 1 when a goal is missed."""
    for name in ("aiokafka", "equipoise.kafka"):
        logging.getLogger(name).setLevel(logging.ERROR)  # the leaders of new partitions are not known at once
    steady = tuple(int(each) for each in rates.split(",") if each)
    missed = False
    under, written = conditions("bench.member_speed"), list[dict[str, object]]()
    print(*(f"{SYSTEMS[key].label}: {SYSTEMS[key].settings}" for key in systems.split(",")), sep="\n")
    with broker() as bootstrap, tempfile.TemporaryDirectory() as temporary:
        home = keep or Path(temporary)

        def made(key: str, count: int, *, exactly_once: bool = False, handler_ms: int = 0) -> System:
            name = f"speed-{key}-{uuid.uuid4().hex[:6]}"
            load = Load(tasks=count, state_mb=0, per_s=0)
            return SYSTEMS[key](bootstrap, name, home / name, load, 0, exactly_once=exactly_once, handler_ms=handler_ms, initial_delay_ms=0)

        for guarantee in guarantees.split(","):
            asyncio.run(warm_up(made("equipoise", 26, exactly_once=guarantee == "eos"), WARM_UP_RECORDS))
        for count in (int(each) for each in tasks.split(",") if each):
            print(f"\n{count} tasks")
            latency = "".join(f" at {rate}/s p50 / p99 ms, CPU, CPU of the generator |" for rate in steady)
            print(f"| | k records/s | CPU s per 100k | idle CPU % | peak RSS MB | connections | start s |{latency}")
            print("|---|" + "---|" * (6 + len(steady)))
            found: dict[str, dict[str, list[Speed]]] = {guarantee: {} for guarantee in guarantees.split(",")}
            for key in systems.split(",") * rounds:
                for guarantee, measured in found.items():  # next to each other: a machine may get slower within minutes
                    if key == "faust" and guarantee == "eos":
                        continue  # it has none
                    size = max(records, RECORDS_PER_TASK * count) // (FAUST_PART if key == "faust" else 1)
                    speed = asyncio.run(speed_of(made(key, count, exactly_once=guarantee == "eos"), size, steady))
                    if guarantee == "eos":
                        speed = attrs.evolve(speed, label=f"{speed.label}, exactly once")
                    measured.setdefault(key, []).append(speed)
                    written.append({"system": speed.label, "tasks": count, **speed.columns(), "settings": SYSTEMS[key].settings, **under})
                    print(speed.row(), flush=True)
                    if out is not None:
                        write_csv(out, written)
            speeds = {guarantee: {key: best_of(each) for key, each in measured.items()} for guarantee, measured in found.items()}
            if rounds > 1:
                print(f"the best of {rounds} rounds:")
                for key in systems.split(","):
                    print(*(measured[key].row() for measured in speeds.values() if key in measured), sep="\n", flush=True)
            rows = [row for measured in speeds.values() for row in goals(count, measured)]
            least, once = (speeds.get(guarantee, {}).get("equipoise") for guarantee in ("alo", "eos"))
            if least is not None and once is not None:
                rows.append(("records/s: exactly once / at least once", once.per_s / least.per_s, "goal: at least 0.9"))
            missed = tell(rows) or missed
        if starts:
            print(f"\nseconds in which all tasks of a new group run, {START_RECORDS} records each")
            rows = []
            for count, goal_s in START_GOALS_S.items():
                for guarantee in guarantees.split(","):
                    start_s = asyncio.run(start_of(made("equipoise", count, exactly_once=guarantee == "eos")))
                    rows.append((f"{count} tasks, {guarantee}", start_s, f"goal: at most {goal_s}"))
            missed = tell(rows) or missed
        if slow:
            ideal = SLOW_TASKS * 1_000 / SLOW_MS
            print(f"\na handler that waits {SLOW_MS} ms for each record, {SLOW_TASKS} tasks: part of {ideal:.0f} records/s")
            rows = [("equipoise", asyncio.run(slow_of(made("equipoise", SLOW_TASKS, handler_ms=SLOW_MS))) / ideal, "goal: at least 0.9")]
            rows.append(("aiokafka loop", asyncio.run(slow_of(made("loop", SLOW_TASKS, handler_ms=SLOW_MS))) / ideal, ""))
            missed = tell(rows) or missed
    sys.exit(missed)


if __name__ == "__main__":
    main()
