"""`python -m bench.streams_seat`: an application of Kafka Streams that brokers assign (KIP-1071),
stock and led by `equipoise lead`.

Three processes run 26 tasks, 20 of which have state, together STATE_MB in records of 1 kB, which is
in the changelogs before the first one starts. Every task gets 10 records/s. A fourth process joins
and leaves; the three are restarted one after the other (DOWN_S away, with their disks); one is
killed with SIGKILL, and joins again, and meanwhile the process that leads is killed as well. Each
action begins when the one before is over: everybody has the tasks that he is to have, none has more
than another one and one, and copies have caught up.

*Standing* are task-seconds in which a task that was assigned restored its state before it ran, with
the records that it restored. *Silent* are task-seconds in times longer than a second without a
record of a task, for whatever reason; a *move* is another owner than before. *Copied* are records
that copies restored, beside tasks that ran.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import attrs
import click
from aiokafka.errors import KafkaError

from bench.streams_rounds import silence
from equipoise.kafka.client import TopicPartition, Unsent, acknowledged
from equipoise.kafka.connection import Connection
from equipoise.kafka.started_clients import admin_client, writer
from equipoise.lead.broker_seat.ways import STREAMS_CLASS, STREAMS_SETTING
from tests.live.broker_assignor import assignor_jar_classes
from tests.live.seat_process import SeatProcess
from tests.live.streams import JAVA, described_streams
from tools import brokers

VERSION = "4.4.0"
GROUP = "orders"
INPUTS = {"orders-orders": 12, "orders-by-customer": 8, "orders-clicks": 6}
CHANGELOGS = {"orders-orders-store-changelog": 12, "orders-customer-store-changelog": 8}
OUTPUT = "orders-clicks-out"
TASKS = sum(INPUTS.values())
VALUE = bytes(range(250)) * 4
PER_S = 10
RECORDS_AT_ONCE, BATCH_BYTES = 5_000, 512 * 1024
DOWN_S, REST_S, MOST_S, START_S, LOOK_S = 5.0, 5.0, 120.0, 900.0, 0.5
BEHIND = 1_000
"""Records that a copy may be behind when an action begins."""
BROKERS = {
    STREAMS_SETTING: f"sticky,{STREAMS_CLASS}",
    "group.streams.min.heartbeat.interval.ms": "1000",
    "group.streams.heartbeat.interval.ms": "1000",
    "group.streams.min.session.timeout.ms": "6000",
    "group.streams.session.timeout.ms": "10000",
    "group.consumer.min.session.timeout.ms": "6000",
    "group.consumer.session.timeout.ms": "6000",
    "group.streams.min.task.offset.interval.ms": "1000",
    "group.streams.task.offset.interval.ms": "1000",
    "group.streams.max.standby.replicas": "2",
}


@attrs.frozen
class Restored:
    """What one task restored before it ran; `is_copy`: what copies restored meanwhile."""

    begin_ms: int
    end_ms: int
    records: int
    is_copy: bool


def read_restored(files: Sequence[Path]) -> list[Restored]:
    """What the samples of all processes say. One that was killed may have left half a line."""
    found = []
    for file in files:
        for line in file.read_text().splitlines():
            words = line.split()
            if len(words) == 6 and words[5] in ("restored", "copied"):
                found.append(Restored(int(words[0]), int(words[1]), int(words[4]), words[5] == "copied"))
    return found


class Application:
    """The application and, with `led`, the two processes of `equipoise lead` beside it."""

    def __init__(self, bootstrap: str, folder: Path, *, led: bool, standbys: int) -> None:
        self.bootstrap, self.folder, self.led, self.standbys = bootstrap, folder, led, standbys
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.marks: list[tuple[int, str]] = []
        self.seats: list[SeatProcess] = []
        libraries = f"{brokers.jars(JAVA / 'pom.xml', streams=VERSION)}/*"
        source = Path(silence.__file__).with_name("ScenarioApp.java")
        self._classpath = f"{brokers.classes(source, libraries)}:{libraries}"

    def start(self, name: str) -> None:
        """Starts a process, with the disk that one of this name had."""
        written = {
            "bootstrap.servers": self.bootstrap,
            "application.id": GROUP,
            "client.id": name,
            "state.dir": str(self.folder / f"state-{name}"),
            "prefix": GROUP,
            "instance": name,
            "samples": str(self.folder / f"{name}.samples"),
            "group.protocol": "streams",
            "num.stream.threads": 1,
            "commit.interval.ms": 1000,
            "statestore.cache.max.bytes": 1048576,
            "auto.offset.reset": "earliest",
        }
        file = self.folder / f"{name}.properties"
        file.write_text("".join(f"{key}={value}\n" for key, value in written.items()))
        options = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xms64m", "-Xmx384m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=info"]
        with open(self.folder / f"{name}.out", "ab") as out:
            command = ["java", *options, "-cp", self._classpath, "ScenarioApp", str(file)]
            self.processes[name] = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out, stderr=out)

    async def leave(self, name: str) -> None:
        """Has a process leave the group, and waits for its end."""
        process = self.processes.pop(name)
        assert process.stdin is not None
        process.stdin.write(b"leave\n")
        process.stdin.close()
        await asyncio.to_thread(process.wait)

    def kill(self, name: str) -> None:
        process = self.processes.pop(name)
        process.kill()
        process.wait()

    def lead(self, number: int) -> None:
        """Starts a process of `equipoise lead`, or another one in its place."""
        seat = SeatProcess(self.bootstrap, GROUP, self.folder / f"seat-{number}.db", "--set", f"num_standbys={self.standbys}")
        self.seats[number : number + 1] = [seat]

    async def restart(self, name: str) -> None:
        await self.leave(name)
        await asyncio.sleep(DOWN_S)
        self.start(name)

    async def is_over(self) -> bool:
        """Returns whether everybody has what he is to have, and it is spread."""
        try:
            found = await described_streams(self.bootstrap, GROUP)
        except KafkaError:  # it has no coordinator yet
            return False
        if found.assignment_epoch < found.group_epoch or len(found.members) != len(self.processes):
            return False
        runs: list[int] = []
        for each in found.members:
            if each.member_epoch < found.group_epoch or each.assignment != each.target_assignment:
                return False
            runs.append(sum(len(part.partitions) for part in each.assignment.active_tasks))
            copies = {(part.subtopology_id, number) for part in each.assignment.standby_tasks for number in part.partitions}
            at = {(one.subtopology_id, one.partition): one.offset for one in each.task_offsets}
            ends = {(one.subtopology_id, one.partition): one.offset for one in each.task_end_offsets}
            if any(task not in at or task not in ends or ends[task] - at[task] > BEHIND for task in copies):
                return False
        return sum(runs) == TASKS and max(runs) <= -(-TASKS // len(runs))

    async def until_over(self, most_s: float) -> None:
        end_s, since_s = time.monotonic() + most_s, time.monotonic()
        while time.monotonic() - since_s < REST_S:
            if time.monotonic() > end_s:
                print(f"cut off after {most_s:.0f} s", file=sys.stderr)
                return
            for name, process in self.processes.items():
                if process.poll() is not None:
                    raise RuntimeError(f"{name} has ended; see {self.folder}")
            if not await self.is_over():
                since_s = time.monotonic()
            await asyncio.sleep(LOOK_S)

    async def act(self, name: str, do: Callable[[], Awaitable[None] | None]) -> None:
        self.marks.append((int(time.time() * 1_000), name))
        done = do()
        if done is not None:
            await done
        await self.until_over(MOST_S)

    def close(self) -> None:
        for name in list(self.processes):
            self.kill(name)
        for seat in self.seats:
            seat.end()


async def make_topics(bootstrap: str) -> None:
    from aiokafka.admin import NewTopic

    compacted = {"cleanup.policy": "compact", "segment.bytes": "104857600"}
    made = [NewTopic(name, count, 1) for name, count in {**INPUTS, OUTPUT: INPUTS["orders-clicks"]}.items()]
    made += [NewTopic(name, count, 1, topic_configs=compacted) for name, count in CHANGELOGS.items()]
    async with admin_client(Connection(bootstrap=bootstrap)) as admin:
        await admin.create_topics(made)


def key_of(partition: int, number: int) -> bytes:
    return b"%02d-%06d" % (partition, number)


async def load_state(bootstrap: str, keys: int) -> None:
    """Writes so many keys to each changelog: the state of an application that ran before."""
    async with writer(Connection(bootstrap=bootstrap), max_batch_size=BATCH_BYTES, request_timeout_ms=60_000) as producer:
        for topic, count in CHANGELOGS.items():
            await producer.partitions_for(topic)
            for partition in range(count):
                for first in range(0, keys, RECORDS_AT_ONCE):
                    records: list[Unsent] = [
                        (key_of(partition, number), VALUE, [], None) for number in range(first, min(keys, first + RECORDS_AT_ONCE))
                    ]
                    await acknowledged(producer.send_batches(TopicPartition(topic, partition), iter(records)))


async def feed(bootstrap: str, keys: int) -> None:
    """Every task gets its records, until it is cancelled; what `orders` handles goes to customers,
    too.
    """
    async with writer(Connection(bootstrap=bootstrap)) as producer:
        began_s, turn = time.monotonic(), 0
        while True:
            for topic, count in INPUTS.items():
                for partition in range(count):
                    await producer.send(topic, VALUE, key=key_of(partition, turn * 7_919 % keys), partition=partition)
            turn += 1
            await asyncio.sleep(max(0.0, began_s + turn / PER_S - time.monotonic()))


async def actions(application: Application) -> None:
    """Joins and so on; see the module."""

    def joins_while_killed() -> Awaitable[None]:
        async def killed() -> None:
            application.start("i2")
            if application.led:
                await asyncio.sleep(DOWN_S)
                application.seats[0].process.kill()

        return killed()

    await application.act("one joins", lambda: application.start("i4"))
    await application.act("one leaves", lambda: application.leave("i4"))
    for name in ("i1", "i2", "i3"):
        await application.act("rolling restart", lambda name=name: application.restart(name))  # type: ignore[misc]
    await application.act("kill -9", lambda: application.kill("i2"))
    await application.act("it joins, equipoise is killed", joins_while_killed)


async def measured(bootstrap: str, folder: Path, *, led: bool, standbys: int, keys: int) -> tuple[Application, int]:
    """The application after all actions, and when they were over (ms since 1970)."""
    await make_topics(bootstrap)
    await load_state(bootstrap, keys)
    application = Application(bootstrap, folder, led=led, standbys=standbys)
    feeding = asyncio.create_task(feed(bootstrap, keys))
    try:
        for name in ("i1", "i2", "i3"):
            application.start(name)
        await asyncio.sleep(DOWN_S)
        for number in range(2 * led):
            application.lead(number)
        began_s = time.monotonic()
        await application.until_over(START_S)
        print(f"{'led' if led else 'stock'}: started in {time.monotonic() - began_s:.0f} s", file=sys.stderr, flush=True)
        await actions(application)
        end_ms = int(time.time() * 1_000)
        await asyncio.sleep(1)
    finally:
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)
        application.close()
    return application, end_ms


def rows_of(files: Sequence[Path], marks: list[tuple[int, str]], end_ms: int) -> list[list[str]]:
    """A row for each action, and one for join, leave and restart together: task-seconds and records
    of tasks that stand, silence, moves, records of copies.
    """
    found, restored = silence.windows(silence.read_spans(files), marks, end_ms), read_restored(files)
    sums: dict[str, list[float]] = {}
    for window, (from_ms, name), (to_ms, _) in zip(found, marks, [*marks[1:], (end_ms, "")], strict=True):
        here = [each for each in restored if from_ms <= each.begin_ms < to_ms]
        standing_s = sum(each.end_ms - each.begin_ms for each in here if not each.is_copy) / 1_000
        records, copied = (sum(each.records for each in here if each.is_copy == is_copy) for is_copy in (False, True))
        values = [standing_s, records, window.silent_s, window.longest_s, window.changes, copied, (to_ms - from_ms) / 1_000]
        for key in (name, *(("join, leave and restart",) if name in ("one joins", "one leaves", "rolling restart") else ())):
            had = sums.setdefault(key, [0.0] * len(values))
            sums[key] = [max(a, b) if index == 3 else a + b for index, (a, b) in enumerate(zip(had, values, strict=True))]
    return [
        [name, f"{of[0]:.1f}", f"{of[1]:,.0f}", f"{of[2]:.1f}", f"{of[3]:.1f}", f"{of[4]:.0f}", f"{of[5]:,.0f}", f"{of[6]:.0f}"]
        for name, of in sums.items()
    ]


@click.command()
@click.option("--state-mb", default=1_000, show_default=True, help="State of all tasks together.")
@click.option("--standbys", default=1, show_default=True, help="Copies of each task.")
@click.option("--leaders", default="stock; led", show_default=True, help="Separated by semicolons.")
@click.option("--keep", type=click.Path(path_type=Path, file_okay=False), help="Folder for logs; default: they are removed.")
def main(state_mb: int, standbys: int, leaders: str, keep: Path | None) -> None:
    """Measures the stock application beside the led one."""
    columns = ("action", "standing, task-s", "records", "silent, task-s", "longest, s", "moves", "copied", "over after, s")
    print(f"| leader | {' | '.join(columns)} |\n|{'---|' * (len(columns) + 1)}", flush=True)
    keys = max(1, state_mb * 1_000_000 // len(VALUE) // sum(CHANGELOGS.values()))
    home = Path(tempfile.mkdtemp(prefix="equipoise-streams-")) if keep is None else keep
    try:
        for leader in (each.strip() for each in leaders.split(";")):
            folder = home / leader
            folder.mkdir(parents=True, exist_ok=True)
            settings = {**BROKERS, "group.streams.num.standby.replicas": str(standbys)}
            with brokers.Brokers(java=brokers.FAST_JAVA, version=VERSION, classpath=str(assignor_jar_classes()), **settings) as started:
                application, end_ms = asyncio.run(measured(started.bootstrap, folder, led=leader == "led", standbys=standbys, keys=keys))
            log = "identical" if all(seat.verified() for seat in application.seats) else "NOT identical"
            print(f"{leader}: logs {log}", file=sys.stderr, flush=True)
            for row in rows_of(sorted(folder.glob("*.samples")), application.marks, end_ms):
                print(f"| {leader} | {' | '.join(row)} |", flush=True)
    finally:
        if keep is None:
            shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
